-- Whose reports count when a rollout pauses by itself: those with a key, of devices that had
-- reported before it began.
-- The key that reported last; empty for a service without keys.
ALTER TABLE model_reports ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
-- When the device reported first, in milliseconds since 1970; 0 if that was before this step.
ALTER TABLE model_reports ADD COLUMN first_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX model_reports_by_key ON model_reports (key_id, seen_ms);
