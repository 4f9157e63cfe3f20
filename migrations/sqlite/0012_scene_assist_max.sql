-- The largest L of a scene, whatever a request asks for. Null in versions from before: 4,096, or L or its floor if
-- that is more.
ALTER TABLE scene_versions ADD COLUMN assist_max INTEGER CHECK (assist_max BETWEEN 1 AND 65536);
