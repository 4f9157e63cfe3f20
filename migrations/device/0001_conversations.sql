-- Conversations of `baton chat`. Times are milliseconds since 1970, UTC.
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    system TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX conversations_by_time ON conversations (updated_ms);

-- Questions and answers, in order. Counts of tokens are those of answers.
CREATE TABLE turns (
    conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    text TEXT NOT NULL,
    cloud_tokens INTEGER NOT NULL DEFAULT 0,
    device_tokens INTEGER NOT NULL DEFAULT 0,
    written_ms INTEGER NOT NULL,
    PRIMARY KEY (conversation, position)
) STRICT, WITHOUT ROWID;
