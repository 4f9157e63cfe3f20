-- Tokens that each replica has set aside for the answers it writes now.
ALTER TABLE replica_load ADD COLUMN reserved BIGINT NOT NULL DEFAULT 0;
