-- Devices on which a user has logged in before. Others' failed log-ins do not keep them out.
-- Never the cookie itself: only SHA-256 of it.
CREATE TABLE known_devices (
    token_hash BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    user_name  TEXT    NOT NULL REFERENCES users (name),
    seen_ms    INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX known_devices_by_user ON known_devices (user_name, seen_ms);

-- What was counted under the names of before, which a user's name could imitate.
DELETE FROM login_failures;
