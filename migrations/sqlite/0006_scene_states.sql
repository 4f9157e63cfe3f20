-- Which version of a scene is in force. Versions stay immutable: publishing one adds a row here, it changes no version.
ALTER TABLE scene_versions ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE scene_versions ADD COLUMN note TEXT NOT NULL DEFAULT '';
-- The version that this one was made from; a roll back is a copy of an old one.
ALTER TABLE scene_versions ADD COLUMN based_on INTEGER;

CREATE TABLE scenes (
    id                TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    -- One more at every change: what an editor's change is based on.
    revision          INTEGER NOT NULL CHECK (revision >= 1),
    newest_version    INTEGER NOT NULL CHECK (newest_version >= 1),
    -- Null: never published.
    published_version INTEGER,
    -- Null: nothing waits to be published.
    draft_version     INTEGER
) STRICT;

CREATE TABLE scene_publications (
    id           TEXT    NOT NULL,
    seq          INTEGER NOT NULL CHECK (seq >= 1),
    version      INTEGER NOT NULL,
    published_ms INTEGER NOT NULL,
    published_by TEXT    NOT NULL,
    note         TEXT    NOT NULL,
    PRIMARY KEY (id, seq),
    FOREIGN KEY (id, version) REFERENCES scene_versions (id, version)
) STRICT;

-- Every version from before was in force from the moment it was written.
INSERT INTO scenes (id, revision, newest_version, published_version, draft_version)
    SELECT id, MAX(version), MAX(version), MAX(version), NULL FROM scene_versions GROUP BY id;
INSERT INTO scene_publications (id, seq, version, published_ms, published_by, note)
    SELECT id, version, version, created_unix_s * 1000, '', '' FROM scene_versions;

CREATE TRIGGER scene_publications_are_immutable BEFORE UPDATE ON scene_publications
BEGIN SELECT RAISE(ABORT, 'a publication never changes'); END;
CREATE TRIGGER scene_publications_are_kept BEFORE DELETE ON scene_publications
BEGIN SELECT RAISE(ABORT, 'a publication is never deleted'); END;
