-- Which pair of base and adapter devices of a class should have for a scene, and the rollout of another one.
CREATE TABLE model_targets (
    -- SCENE/CLASS; the scene `*` is for every scene without a row of its own.
    id         TEXT   NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 3 AND 129),
    revision   BIGINT NOT NULL CHECK (revision >= 1),
    scene      TEXT   NOT NULL CHECK (length(scene) BETWEEN 1 AND 64),
    class      TEXT   NOT NULL CHECK (length(class) BETWEEN 1 AND 64),
    -- JSON: the stable pair, the rollout, and pairs that were given up lately.
    target     TEXT   NOT NULL,
    updated_ms BIGINT NOT NULL,
    updated_by TEXT   NOT NULL
);

-- What each device said last of its models. Never its name, only SHA-256 of it and its tenant.
CREATE TABLE model_reports (
    device_hash BYTEA  NOT NULL CHECK (length(device_hash) = 32),
    scene       TEXT   NOT NULL,
    class       TEXT   NOT NULL,
    -- The pair that it answers with; empty if it has none.
    active      TEXT   NOT NULL,
    -- The pair that it last failed to load; empty if it loaded all.
    failed      TEXT   NOT NULL,
    seen_ms     BIGINT NOT NULL,
    PRIMARY KEY (device_hash, scene)
);
CREATE INDEX model_reports_by_class ON model_reports (class, scene, seen_ms);
