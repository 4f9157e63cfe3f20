-- Experiments: several settings of a scene side by side.

CREATE TABLE experiments (
    id           TEXT NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision     BIGINT NOT NULL CHECK (revision >= 1),
    scene        TEXT NOT NULL,
    -- Arms, goal and guard rails, as JSON.
    plan         TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('draft', 'running', 'stopped', 'promoted')),
    -- A JSON list of names and reasons.
    stopped_arms TEXT NOT NULL,
    promoted     TEXT,
    created_ms   BIGINT NOT NULL,
    updated_ms   BIGINT NOT NULL,
    updated_by   TEXT NOT NULL
);
-- A request takes part in at most one experiment.
CREATE UNIQUE INDEX experiments_one_runs_in_a_scene ON experiments (scene) WHERE state = 'running';

-- Sums over all replicas. Devices are hashed into buckets, and marks count different ones: no device, request or text.
CREATE TABLE experiment_sums (
    experiment          TEXT NOT NULL,
    arm                 TEXT NOT NULL,
    bucket              BIGINT NOT NULL CHECK (bucket BETWEEN 0 AND 255),
    marks               BIGINT NOT NULL,
    sampled_marks       BIGINT NOT NULL,
    ttft_ms_count       BIGINT NOT NULL,
    ttft_ms_total       DOUBLE PRECISION NOT NULL,
    shown_ttft_ms_count BIGINT NOT NULL,
    shown_ttft_ms_total DOUBLE PRECISION NOT NULL,
    gap_ms_count        BIGINT NOT NULL,
    gap_ms_total        DOUBLE PRECISION NOT NULL,
    slot_ms_count       BIGINT NOT NULL,
    slot_ms_total       DOUBLE PRECISION NOT NULL,
    agreement_count     BIGINT NOT NULL,
    agreement_total     DOUBLE PRECISION NOT NULL,
    rating_count        BIGINT NOT NULL,
    rating_total        DOUBLE PRECISION NOT NULL,
    failures_count      BIGINT NOT NULL,
    failures_total      DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (experiment, arm, bucket)
);

-- Hashes of the names of answers that have had their feedback, until the names expire.
CREATE TABLE experiment_feedback (
    name_hash  BYTEA NOT NULL PRIMARY KEY CHECK (length(name_hash) = 32),
    expires_ms BIGINT NOT NULL
);
CREATE INDEX experiment_feedback_by_end ON experiment_feedback (expires_ms);

-- Random keys that all replicas share.
CREATE TABLE service_keys (
    purpose TEXT NOT NULL PRIMARY KEY,
    secret  BYTEA NOT NULL CHECK (length(secret) = 32)
);
