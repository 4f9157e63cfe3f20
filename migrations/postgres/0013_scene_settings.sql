-- The settings of a version as one JSON object, by the names that the API has. A new setting needs no new column: rows
-- without it have its default.
ALTER TABLE scene_versions ADD COLUMN settings TEXT;

-- Replicas of the version before know only the columns of before. So both forms stay, and each is made from the one
-- that was written; the version after this one drops the columns, the trigger and its function.
--
-- The same settings as before, but for two rules. `assist_max` was null in versions from before it: 4,096, or L or its
-- floor if that is more. Modes that only evaluations use are gone: attention ranks in their place.
CREATE FUNCTION both_forms_of_settings() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    written JSON;
BEGIN
    IF NEW.settings IS NULL THEN
        NEW.settings := json_build_object(
            'system', NEW.system,
            'question_prefix', NEW.question_prefix,
            'ratio', NEW.ratio,
            'xi', NEW.xi,
            'assist_tokens', NEW.assist_tokens,
            'assist_floor', NEW.assist_floor,
            'assist_max', coalesce(NEW.assist_max, greatest(4096, NEW.assist_tokens, NEW.assist_floor)),
            'tau_ms', NEW.tau_ms,
            'tolerance', NEW.tolerance,
            'refine', NEW.refine = 1,
            'mode', CASE WHEN NEW.refine_mode IN ('attention', 'bm25', 'none') THEN NEW.refine_mode ELSE 'attention' END,
            'corrector', NEW.corrector,
            'model', NEW.model,
            'adapter', NEW.adapter
        )::TEXT;
    ELSE
        written := NEW.settings::JSON;
        NEW.system := written ->> 'system';
        NEW.question_prefix := written ->> 'question_prefix';
        NEW.ratio := (written ->> 'ratio')::DOUBLE PRECISION;
        NEW.xi := (written ->> 'xi')::DOUBLE PRECISION;
        NEW.assist_tokens := (written ->> 'assist_tokens')::BIGINT;
        NEW.assist_floor := (written ->> 'assist_floor')::BIGINT;
        NEW.assist_max := (written ->> 'assist_max')::BIGINT;
        NEW.tau_ms := (written ->> 'tau_ms')::DOUBLE PRECISION;
        NEW.tolerance := (written ->> 'tolerance')::DOUBLE PRECISION;
        NEW.refine := (written ->> 'refine')::BOOLEAN::INTEGER;
        NEW.refine_mode := written ->> 'mode';
        NEW.corrector := written ->> 'corrector';
        NEW.model := written ->> 'model';
        NEW.adapter := written ->> 'adapter';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER scene_versions_have_both_forms BEFORE INSERT OR UPDATE ON scene_versions
    FOR EACH ROW EXECUTE FUNCTION both_forms_of_settings();

-- The trigger makes the JSON of the rows that there are.
ALTER TABLE scene_versions DISABLE TRIGGER scene_versions_are_immutable;
UPDATE scene_versions SET settings = NULL;
ALTER TABLE scene_versions ENABLE TRIGGER scene_versions_are_immutable;
ALTER TABLE scene_versions ALTER COLUMN settings SET NOT NULL;
