-- Scenes: what the cloud is allowed to do for one kind of question. Each row is one version and never changes:
-- a new setting is a new row, and a roll back is a copy of an old row.
CREATE TABLE scene_versions (
    id              TEXT             NOT NULL CHECK (length(id) BETWEEN 1 AND 64),
    version         BIGINT NOT NULL CHECK (version >= 1),
    system          TEXT             NOT NULL,
    question_prefix TEXT             NOT NULL,
    -- Null: the optimizer answers.
    ratio           DOUBLE PRECISION CHECK (ratio IS NULL OR (ratio >= xi AND ratio <= 1.0)),
    xi              DOUBLE PRECISION NOT NULL CHECK (xi > 0.0 AND xi <= 1.0),
    assist_tokens   BIGINT CHECK (assist_tokens IS NULL OR assist_tokens >= assist_floor),
    assist_floor    BIGINT NOT NULL CHECK (assist_floor >= 1),
    tau_ms          DOUBLE PRECISION NOT NULL CHECK (tau_ms > 0.0),
    corrector       TEXT             NOT NULL CHECK (corrector IN ('cloud', 'device')),
    refine          BIGINT NOT NULL CHECK (refine IN (0, 1)),
    created_unix_s  BIGINT NOT NULL DEFAULT (EXTRACT(EPOCH FROM now())::BIGINT),
    PRIMARY KEY (id, version)
);

-- Raises its argument: what is refused, and why.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0];
END
$$;

CREATE TRIGGER scene_versions_are_immutable BEFORE UPDATE ON scene_versions
    FOR EACH ROW EXECUTE FUNCTION refuse_change('a scene version never changes');
CREATE TRIGGER scene_versions_are_kept BEFORE DELETE ON scene_versions
    FOR EACH ROW EXECUTE FUNCTION refuse_change('a scene version is never deleted');
CREATE TRIGGER scene_versions_are_not_emptied BEFORE TRUNCATE ON scene_versions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change('a scene version is never deleted');
