-- The signed receipt of an answer (docs/receipts.md). It has digests of `report` and `sent` as they are
-- stored, so that a later change of them is found.
ALTER TABLE answers ADD COLUMN receipt TEXT;
