-- How a scene's sentences are ranked; a request may name another mode. Rows from before were all ranked by attention.
ALTER TABLE scene_versions ADD COLUMN refine_mode TEXT NOT NULL DEFAULT 'attention';
