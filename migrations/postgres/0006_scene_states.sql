-- Which version of a scene is in force. Versions stay immutable: publishing one adds a row here, it changes no version.
ALTER TABLE scene_versions ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE scene_versions ADD COLUMN note TEXT NOT NULL DEFAULT '';
-- The version that this one was made from; a roll back is a copy of an old one.
ALTER TABLE scene_versions ADD COLUMN based_on BIGINT;

CREATE TABLE scenes (
    id                TEXT NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    -- One more at every change: what an editor's change is based on.
    revision          BIGINT NOT NULL CHECK (revision >= 1),
    newest_version    BIGINT NOT NULL CHECK (newest_version >= 1),
    -- Null: never published.
    published_version BIGINT,
    -- Null: nothing waits to be published.
    draft_version     BIGINT
);

CREATE TABLE scene_publications (
    id           TEXT NOT NULL,
    seq          BIGINT NOT NULL CHECK (seq >= 1),
    version      BIGINT NOT NULL,
    published_ms BIGINT NOT NULL,
    published_by TEXT NOT NULL,
    note         TEXT NOT NULL,
    PRIMARY KEY (id, seq),
    FOREIGN KEY (id, version) REFERENCES scene_versions (id, version)
);

-- Every version from before was in force from the moment it was written.
INSERT INTO scenes (id, revision, newest_version, published_version, draft_version)
    SELECT id, MAX(version), MAX(version), MAX(version), NULL FROM scene_versions GROUP BY id;
INSERT INTO scene_publications (id, seq, version, published_ms, published_by, note)
    SELECT id, version, version, created_unix_s * 1000, '', '' FROM scene_versions;

CREATE TRIGGER scene_publications_are_immutable BEFORE UPDATE ON scene_publications
    FOR EACH ROW EXECUTE FUNCTION refuse_change('a publication never changes');
CREATE TRIGGER scene_publications_are_kept BEFORE DELETE ON scene_publications
    FOR EACH ROW EXECUTE FUNCTION refuse_change('a publication is never deleted');
CREATE TRIGGER scene_publications_not_emptied BEFORE TRUNCATE ON scene_publications
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change('a publication is never deleted');
