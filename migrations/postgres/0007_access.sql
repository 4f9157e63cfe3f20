-- Who may ask, and who may change: tenants and their keys, device classes, users and their sessions, the audit log.

-- One row. Every change of settings raises the generation, in the same transaction: replicas read what is newer than
-- what they have. The end of the audit log stands here too, so that rows cut off its end are missed.
CREATE TABLE service_state (
    one        BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    generation BIGINT NOT NULL,
    audit_seq  BIGINT NOT NULL,
    audit_hash BYTEA NOT NULL CHECK (length(audit_hash) = 32)
);
INSERT INTO service_state (one, generation, audit_seq, audit_hash) VALUES (1, 1, 0, decode(repeat('00', 32), 'hex'));

-- Each row's hash covers all its fields and the hash of the row before.
CREATE TABLE audit_log (
    seq       BIGINT NOT NULL PRIMARY KEY CHECK (seq >= 1),
    at_ms     BIGINT NOT NULL,
    actor     TEXT NOT NULL,
    action    TEXT NOT NULL,
    target    TEXT NOT NULL,
    detail    TEXT NOT NULL,
    prev_hash BYTEA NOT NULL CHECK (length(prev_hash) = 32),
    hash      BYTEA NOT NULL CHECK (length(hash) = 32)
);
CREATE TRIGGER audit_log_is_immutable BEFORE UPDATE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION refuse_change('an audit row never changes');
CREATE TRIGGER audit_log_is_kept BEFORE DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION refuse_change('an audit row is never deleted');
CREATE TRIGGER audit_log_not_emptied BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change('an audit row is never deleted');

CREATE TABLE device_classes (
    id                    TEXT NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision              BIGINT NOT NULL CHECK (revision >= 1),
    label                 TEXT NOT NULL,
    -- Null, all three together: what devices report counts.
    prefill_ms_per_token  DOUBLE PRECISION CHECK (prefill_ms_per_token > 0.0),
    prefill_ms_per_token2 DOUBLE PRECISION CHECK (prefill_ms_per_token2 >= 0.0),
    decode_ms             DOUBLE PRECISION CHECK (decode_ms > 0.0),
    updated_ms            BIGINT NOT NULL,
    updated_by            TEXT NOT NULL
);

CREATE TABLE tenants (
    id                  TEXT NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision            BIGINT NOT NULL CHECK (revision >= 1),
    label               TEXT NOT NULL,
    weight              BIGINT NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    -- Null: no limit.
    requests_per_minute BIGINT CHECK (requests_per_minute >= 1),
    concurrency_max     BIGINT CHECK (concurrency_max >= 1),
    tokens_per_day      BIGINT CHECK (tokens_per_day >= 1),
    disabled            BIGINT NOT NULL CHECK (disabled IN (0, 1)),
    created_ms          BIGINT NOT NULL,
    updated_ms          BIGINT NOT NULL,
    updated_by          TEXT NOT NULL
);
INSERT INTO tenants (id, revision, label, weight, disabled, created_ms, updated_ms, updated_by)
    VALUES ('default', 1, 'Default', 10, 0, EXTRACT(EPOCH FROM now())::BIGINT * 1000, EXTRACT(EPOCH FROM now())::BIGINT * 1000, '');

-- Never the key itself: only SHA-256 of it.
CREATE TABLE api_keys (
    id           TEXT NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    revision     BIGINT NOT NULL CHECK (revision >= 1),
    tenant       TEXT NOT NULL REFERENCES tenants (id),
    label        TEXT NOT NULL,
    hash         BYTEA NOT NULL UNIQUE CHECK (length(hash) = 32),
    scopes       TEXT NOT NULL,
    created_ms   BIGINT NOT NULL,
    created_by   TEXT NOT NULL,
    expires_ms   BIGINT,
    revoked_ms   BIGINT,
    last_used_ms BIGINT,
    -- The key that this one replaces.
    rotated_from TEXT
);

CREATE TABLE users (
    name          TEXT NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    revision      BIGINT NOT NULL CHECK (revision >= 1),
    role          TEXT NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    -- argon2id as a PHC string.
    password_hash TEXT NOT NULL,
    disabled      BIGINT NOT NULL CHECK (disabled IN (0, 1)),
    created_ms    BIGINT NOT NULL,
    updated_ms    BIGINT NOT NULL,
    updated_by    TEXT NOT NULL
);

-- Never the cookie itself: only SHA-256 of it.
CREATE TABLE sessions (
    token_hash BYTEA NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    user_name  TEXT NOT NULL REFERENCES users (name),
    csrf       TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    seen_ms    BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
);

CREATE TABLE login_failures (
    subject TEXT NOT NULL,
    at_ms   BIGINT NOT NULL
);
CREATE INDEX login_failures_by_subject ON login_failures (subject, at_ms);

-- Every replica that listens hears of a change when it is committed.
CREATE FUNCTION tell_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('baton_settings', NEW.generation::TEXT);
    RETURN NULL;
END
$$;
CREATE TRIGGER generation_is_told AFTER UPDATE OF generation ON service_state
    FOR EACH ROW WHEN (OLD.generation IS DISTINCT FROM NEW.generation) EXECUTE FUNCTION tell_generation();
