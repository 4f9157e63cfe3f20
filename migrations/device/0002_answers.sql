-- Records of answers: how each came about, and what of it left the device. Texts in `sent` are redacted.
-- `key` is random: programs that ask over HTTP get it, and read only records of their own answers by it.
CREATE TABLE answers (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    ended_ms INTEGER NOT NULL,
    asked_by TEXT NOT NULL,
    report TEXT NOT NULL,
    sent TEXT
) STRICT;
