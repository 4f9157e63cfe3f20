-- The scenes that a new database starts with.
INSERT INTO scene_versions
    (id, version, system, question_prefix, ratio, xi, assist_tokens, assist_floor, tau_ms, corrector, refine)
VALUES
    ('doc-qa', 1, 'You answer from the document.', E'\n\nQuestion: ', 0.25, 0.25, NULL, 4, 100.0, 'cloud', 1),
    ('doc-qa-full', 1, 'You answer from the document.', E'\n\nQuestion: ', 1.0, 1.0, NULL, 4, 100.0, 'cloud', 0),
    ('chat', 1, 'You are a helpful assistant.', '', NULL, 0.25, NULL, 4, 100.0, 'cloud', 1);
