-- What a scene's answers may lose against the full prompt, as a share of the score; xi is fitted to an evaluation by it.
ALTER TABLE scene_versions ADD COLUMN tolerance DOUBLE PRECISION NOT NULL DEFAULT 0.02 CHECK (tolerance BETWEEN 0.0 AND 1.0);
