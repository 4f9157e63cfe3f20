-- The settings of a version as one JSON object, by the names that the API has. A new setting needs no new column: rows
-- without it have its default.
ALTER TABLE scene_versions ADD COLUMN settings TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(settings));

-- The same settings as before, but for two rules. `assist_max` was null in versions from before it: 4,096, or L or its
-- floor if that is more. Modes that only evaluations use are gone: attention ranks in their place.
DROP TRIGGER scene_versions_are_immutable;
UPDATE scene_versions SET settings = json_object(
    'system', system,
    'question_prefix', question_prefix,
    'ratio', ratio,
    'xi', xi,
    'assist_tokens', assist_tokens,
    'assist_floor', assist_floor,
    'assist_max', coalesce(assist_max, max(4096, coalesce(assist_tokens, 0), assist_floor)),
    'tau_ms', tau_ms,
    'tolerance', tolerance,
    'refine', json(CASE refine WHEN 1 THEN 'true' ELSE 'false' END),
    'mode', CASE WHEN refine_mode IN ('attention', 'bm25', 'none') THEN refine_mode ELSE 'attention' END,
    'corrector', corrector,
    'model', model,
    'adapter', adapter
);
CREATE TRIGGER scene_versions_are_immutable BEFORE UPDATE ON scene_versions
BEGIN SELECT RAISE(ABORT, 'a scene version never changes'); END;

-- One program at a time has a file, so that nobody reads the columns of before. First those whose bounds name others.
ALTER TABLE scene_versions DROP COLUMN ratio;
ALTER TABLE scene_versions DROP COLUMN assist_tokens;
ALTER TABLE scene_versions DROP COLUMN system;
ALTER TABLE scene_versions DROP COLUMN question_prefix;
ALTER TABLE scene_versions DROP COLUMN xi;
ALTER TABLE scene_versions DROP COLUMN assist_floor;
ALTER TABLE scene_versions DROP COLUMN assist_max;
ALTER TABLE scene_versions DROP COLUMN tau_ms;
ALTER TABLE scene_versions DROP COLUMN tolerance;
ALTER TABLE scene_versions DROP COLUMN refine;
ALTER TABLE scene_versions DROP COLUMN refine_mode;
ALTER TABLE scene_versions DROP COLUMN corrector;
ALTER TABLE scene_versions DROP COLUMN model;
ALTER TABLE scene_versions DROP COLUMN adapter;
