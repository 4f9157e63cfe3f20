-- Experiments: several settings of a scene side by side.

CREATE TABLE experiments (
    id           TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision     INTEGER NOT NULL CHECK (revision >= 1),
    scene        TEXT    NOT NULL,
    -- Arms, goal and guard rails, as JSON.
    plan         TEXT    NOT NULL CHECK (json_valid(plan)),
    state        TEXT    NOT NULL CHECK (state IN ('draft', 'running', 'stopped', 'promoted')),
    -- A JSON list of names and reasons.
    stopped_arms TEXT    NOT NULL CHECK (json_valid(stopped_arms)),
    promoted     TEXT,
    created_ms   INTEGER NOT NULL,
    updated_ms   INTEGER NOT NULL,
    updated_by   TEXT    NOT NULL
) STRICT;
-- A request takes part in at most one experiment.
CREATE UNIQUE INDEX experiments_one_runs_in_a_scene ON experiments (scene) WHERE state = 'running';

-- Sums over all replicas. Devices are hashed into buckets, and marks count different ones: no device, request or text.
CREATE TABLE experiment_sums (
    experiment          TEXT    NOT NULL,
    arm                 TEXT    NOT NULL,
    bucket              INTEGER NOT NULL CHECK (bucket BETWEEN 0 AND 255),
    marks               INTEGER NOT NULL,
    sampled_marks       INTEGER NOT NULL,
    ttft_ms_count       INTEGER NOT NULL,
    ttft_ms_total       REAL    NOT NULL,
    shown_ttft_ms_count INTEGER NOT NULL,
    shown_ttft_ms_total REAL    NOT NULL,
    gap_ms_count        INTEGER NOT NULL,
    gap_ms_total        REAL    NOT NULL,
    slot_ms_count       INTEGER NOT NULL,
    slot_ms_total       REAL    NOT NULL,
    agreement_count     INTEGER NOT NULL,
    agreement_total     REAL    NOT NULL,
    rating_count        INTEGER NOT NULL,
    rating_total        REAL    NOT NULL,
    failures_count      INTEGER NOT NULL,
    failures_total      REAL    NOT NULL,
    PRIMARY KEY (experiment, arm, bucket)
) STRICT;

-- Hashes of the names of answers that have had their feedback, until the names expire.
CREATE TABLE experiment_feedback (
    name_hash  BLOB    NOT NULL PRIMARY KEY CHECK (length(name_hash) = 32),
    expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX experiment_feedback_by_end ON experiment_feedback (expires_ms);

-- Random keys that all replicas share.
CREATE TABLE service_keys (
    purpose TEXT NOT NULL PRIMARY KEY,
    secret  BLOB NOT NULL CHECK (length(secret) = 32)
) STRICT;
