-- What is used, summed up: no request, no device and no text.

-- Requests and tokens of each tenant in windows of `period_ms`, over all replicas.
CREATE TABLE tenant_usage (
    tenant    TEXT NOT NULL,
    period_ms BIGINT NOT NULL,
    start_ms  BIGINT NOT NULL,
    requests  BIGINT NOT NULL,
    tokens    BIGINT NOT NULL,
    PRIMARY KEY (tenant, period_ms, start_ms)
);

-- Answers that each replica writes now.
CREATE TABLE replica_load (
    replica    TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    running    BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (replica, tenant)
);

-- Sums and histograms (counts by bucket, separated by spaces) for each minute, later for each hour.
CREATE TABLE telemetry (
    period_ms           BIGINT NOT NULL,
    start_ms            BIGINT NOT NULL,
    -- Empty once rows of several replicas are summed up.
    replica             TEXT NOT NULL,
    scene               TEXT NOT NULL,
    class               TEXT NOT NULL,
    network             TEXT NOT NULL,
    requests            BIGINT NOT NULL,
    failures            BIGINT NOT NULL,
    prompt_tokens       BIGINT NOT NULL,
    completion_tokens   BIGINT NOT NULL,
    prompt_tokens_saved BIGINT NOT NULL,
    slot_ms             BIGINT NOT NULL,
    slot_ms_saved       BIGINT NOT NULL,
    ttft_counts         TEXT NOT NULL,
    assist_counts       TEXT NOT NULL,
    ratio_counts        TEXT NOT NULL,
    PRIMARY KEY (period_ms, start_ms, replica, scene, class, network)
);
