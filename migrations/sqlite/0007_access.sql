-- Who may ask, and who may change: tenants and their keys, device classes, users and their sessions, the audit log.

-- One row. Every change of settings raises the generation, in the same transaction: replicas read what is newer than
-- what they have. The end of the audit log stands here too, so that rows cut off its end are missed.
CREATE TABLE service_state (
    one        INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,
    audit_seq  INTEGER NOT NULL,
    audit_hash BLOB    NOT NULL CHECK (length(audit_hash) = 32)
) STRICT;
INSERT INTO service_state (one, generation, audit_seq, audit_hash) VALUES (1, 1, 0, zeroblob(32));

-- Each row's hash covers all its fields and the hash of the row before.
CREATE TABLE audit_log (
    seq       INTEGER NOT NULL PRIMARY KEY CHECK (seq >= 1),
    at_ms     INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    target    TEXT    NOT NULL,
    detail    TEXT    NOT NULL,
    prev_hash BLOB    NOT NULL CHECK (length(prev_hash) = 32),
    hash      BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TRIGGER audit_log_is_immutable BEFORE UPDATE ON audit_log
BEGIN SELECT RAISE(ABORT, 'an audit row never changes'); END;
CREATE TRIGGER audit_log_is_kept BEFORE DELETE ON audit_log
BEGIN SELECT RAISE(ABORT, 'an audit row is never deleted'); END;

CREATE TABLE device_classes (
    id                    TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision              INTEGER NOT NULL CHECK (revision >= 1),
    label                 TEXT    NOT NULL,
    -- Null, all three together: what devices report counts.
    prefill_ms_per_token  REAL    CHECK (prefill_ms_per_token > 0.0),
    prefill_ms_per_token2 REAL    CHECK (prefill_ms_per_token2 >= 0.0),
    decode_ms             REAL    CHECK (decode_ms > 0.0),
    updated_ms            INTEGER NOT NULL,
    updated_by            TEXT    NOT NULL
) STRICT;

CREATE TABLE tenants (
    id                  TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision            INTEGER NOT NULL CHECK (revision >= 1),
    label               TEXT    NOT NULL,
    weight              INTEGER NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    -- Null: no limit.
    requests_per_minute INTEGER CHECK (requests_per_minute >= 1),
    concurrency_max     INTEGER CHECK (concurrency_max >= 1),
    tokens_per_day      INTEGER CHECK (tokens_per_day >= 1),
    disabled            INTEGER NOT NULL CHECK (disabled IN (0, 1)),
    created_ms          INTEGER NOT NULL,
    updated_ms          INTEGER NOT NULL,
    updated_by          TEXT    NOT NULL
) STRICT;
INSERT INTO tenants (id, revision, label, weight, disabled, created_ms, updated_ms, updated_by)
    VALUES ('default', 1, 'Default', 10, 0, unixepoch() * 1000, unixepoch() * 1000, '');

-- Never the key itself: only SHA-256 of it.
CREATE TABLE api_keys (
    id           TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision     INTEGER NOT NULL CHECK (revision >= 1),
    tenant       TEXT    NOT NULL REFERENCES tenants (id),
    label        TEXT    NOT NULL,
    hash         BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    scopes       TEXT    NOT NULL,
    created_ms   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_ms   INTEGER,
    revoked_ms   INTEGER,
    last_used_ms INTEGER,
    -- The key that this one replaces.
    rotated_from TEXT
) STRICT;

CREATE TABLE users (
    name          TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    revision      INTEGER NOT NULL CHECK (revision >= 1),
    role          TEXT    NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    -- argon2id as a PHC string.
    password_hash TEXT    NOT NULL,
    disabled      INTEGER NOT NULL CHECK (disabled IN (0, 1)),
    created_ms    INTEGER NOT NULL,
    updated_ms    INTEGER NOT NULL,
    updated_by    TEXT    NOT NULL
) STRICT;

-- Never the cookie itself: only SHA-256 of it.
CREATE TABLE sessions (
    token_hash BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    user_name  TEXT    NOT NULL REFERENCES users (name),
    csrf       TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    seen_ms    INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE login_failures (
    subject TEXT    NOT NULL,
    at_ms   INTEGER NOT NULL
) STRICT;
CREATE INDEX login_failures_by_subject ON login_failures (subject, at_ms);
