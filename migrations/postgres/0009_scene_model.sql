-- The model that answers a scene, and its adapter; null: the service's default model, and no adapter.
ALTER TABLE scene_versions ADD COLUMN model TEXT CHECK (length(model) BETWEEN 1 AND 128);
ALTER TABLE scene_versions ADD COLUMN adapter TEXT CHECK (length(adapter) BETWEEN 1 AND 128);
