-- Scenes: what the cloud is allowed to do for one kind of question. Each row is one version and never changes:
-- a new setting is a new row, the current one is the highest version, and a roll back is a copy of an old row.
CREATE TABLE scene_versions (
    id              TEXT    NOT NULL CHECK (length(id) BETWEEN 1 AND 64),
    version         INTEGER NOT NULL CHECK (version >= 1),
    system          TEXT    NOT NULL,
    question_prefix TEXT    NOT NULL,
    -- Null: the optimizer answers.
    ratio           REAL    CHECK (ratio IS NULL OR (ratio >= xi AND ratio <= 1.0)),
    xi              REAL    NOT NULL CHECK (xi > 0.0 AND xi <= 1.0),
    assist_tokens   INTEGER CHECK (assist_tokens IS NULL OR assist_tokens >= assist_floor),
    assist_floor    INTEGER NOT NULL CHECK (assist_floor >= 1),
    tau_ms          REAL    NOT NULL CHECK (tau_ms > 0.0),
    corrector       TEXT    NOT NULL CHECK (corrector IN ('cloud', 'device')),
    refine          INTEGER NOT NULL CHECK (refine IN (0, 1)),
    created_unix_s  INTEGER NOT NULL DEFAULT (unixepoch()),
    PRIMARY KEY (id, version)
) STRICT;

CREATE TRIGGER scene_versions_are_immutable BEFORE UPDATE ON scene_versions
BEGIN SELECT RAISE(ABORT, 'a scene version never changes'); END;

CREATE TRIGGER scene_versions_are_kept BEFORE DELETE ON scene_versions
BEGIN SELECT RAISE(ABORT, 'a scene version is never deleted'); END;
