-- What is used, summed up: no request, no device and no text.

-- Requests and tokens of each tenant in windows of `period_ms`, over all replicas.
CREATE TABLE tenant_usage (
    tenant    TEXT    NOT NULL,
    period_ms INTEGER NOT NULL,
    start_ms  INTEGER NOT NULL,
    requests  INTEGER NOT NULL,
    tokens    INTEGER NOT NULL,
    PRIMARY KEY (tenant, period_ms, start_ms)
) STRICT;

-- Answers that each replica writes now.
CREATE TABLE replica_load (
    replica    TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    running    INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    PRIMARY KEY (replica, tenant)
) STRICT;

-- Sums and histograms (counts by bucket, separated by spaces) for each minute, later for each hour.
CREATE TABLE telemetry (
    period_ms           INTEGER NOT NULL,
    start_ms            INTEGER NOT NULL,
    -- Empty once rows of several replicas are summed up.
    replica             TEXT    NOT NULL,
    scene               TEXT    NOT NULL,
    class               TEXT    NOT NULL,
    network             TEXT    NOT NULL,
    requests            INTEGER NOT NULL,
    failures            INTEGER NOT NULL,
    prompt_tokens       INTEGER NOT NULL,
    completion_tokens   INTEGER NOT NULL,
    prompt_tokens_saved INTEGER NOT NULL,
    slot_ms             INTEGER NOT NULL,
    slot_ms_saved       INTEGER NOT NULL,
    ttft_counts         TEXT    NOT NULL,
    assist_counts       TEXT    NOT NULL,
    ratio_counts        TEXT    NOT NULL,
    PRIMARY KEY (period_ms, start_ms, replica, scene, class, network)
) STRICT;
