//! Every statement of the store, written once for both databases, with a description.
//!
//! Always: [`ALL`] lists each statement, so that a test can prepare all of them on both databases. Values are
//! `$1`, `$2`, …. Sums are cast, because the type of a sum in PostgreSQL differs from that of its terms.

use super::db::Statement;

macro_rules! statements {
    ($($name:ident: $doing:literal = $($sql:expr),+;)*) => {
        $(pub(super) const $name: Statement = Statement { doing: $doing, sql: concat!($($sql),+) };)*

        /// Every statement.
        pub(super) const ALL: &[&Statement] = &[$(&$name),*];
    };
}

macro_rules! version {
    () => {
        "id, version, settings, created_unix_s, created_by, note, based_on"
    };
}

macro_rules! class {
    () => {
        "id, revision, label, prefill_ms_per_token, prefill_ms_per_token2, decode_ms, updated_ms, updated_by"
    };
}

macro_rules! tenant {
    () => {
        "id, revision, label, weight, requests_per_minute, concurrency_max, tokens_per_day, disabled, created_ms, \
         updated_ms, updated_by"
    };
}

macro_rules! key {
    () => {
        "id, revision, tenant, label, hash, scopes, created_ms, created_by, expires_ms, revoked_ms, last_used_ms, \
         rotated_from"
    };
}

macro_rules! experiment {
    () => {
        "id, revision, scene, plan, state, stopped_arms, promoted, created_ms, updated_ms, updated_by"
    };
}

macro_rules! experiment_sums {
    () => {
        "experiment, arm, bucket, marks, sampled_marks, ttft_ms_count, ttft_ms_total, shown_ttft_ms_count, \
         shown_ttft_ms_total, gap_ms_count, gap_ms_total, slot_ms_count, slot_ms_total, agreement_count, \
         agreement_total, rating_count, rating_total, failures_count, failures_total"
    };
}

macro_rules! telemetry {
    () => {
        "period_ms, start_ms, replica, scene, class, network, requests, failures, prompt_tokens, completion_tokens, \
         prompt_tokens_saved, slot_ms, slot_ms_saved, ttft_counts, assist_counts, ratio_counts"
    };
}

statements! {
    // The state of the service, and the audit log.
    STATE: "read the generation" = "SELECT generation, audit_seq, audit_hash FROM service_state WHERE one = 1";
    // Locks the row until the change is committed, so that changes and audit rows have the same order.
    STATE_LOCK: "begin a change" =
        "UPDATE service_state SET generation = generation + $1 WHERE one = 1 RETURNING generation, audit_seq, audit_hash";
    STATE_AUDITED: "record the end of the audit log" =
        "UPDATE service_state SET audit_seq = $1, audit_hash = $2 WHERE one = 1";
    AUDIT_ADD: "add an audit row" =
        "INSERT INTO audit_log (seq, at_ms, actor, action, target, detail, prev_hash, hash) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    AUDIT_AFTER: "read audit rows" =
        "SELECT seq, at_ms, actor, action, target, detail, prev_hash, hash FROM audit_log \
         WHERE seq > $1 ORDER BY seq LIMIT $2";
    AUDIT_BEFORE: "read audit rows" =
        "SELECT seq, at_ms, actor, action, target, detail, prev_hash, hash FROM audit_log \
         WHERE seq < $1 AND (target = $2 OR $2 = '') AND (actor = $3 OR $3 = '') ORDER BY seq DESC LIMIT $4";

    // Scenes.
    SCENE_STATES: "read scenes" =
        "SELECT scenes.id AS id, scenes.revision AS revision, scenes.newest_version AS newest_version, \
         scenes.published_version AS published_version, scenes.draft_version AS draft_version, \
         published.settings AS published_settings, draft.settings AS draft_settings FROM scenes \
         LEFT JOIN scene_versions AS published \
         ON published.id = scenes.id AND published.version = scenes.published_version \
         LEFT JOIN scene_versions AS draft ON draft.id = scenes.id AND draft.version = scenes.draft_version \
         WHERE scenes.id = $1 OR $1 = '' ORDER BY scenes.id";
    SCENE_HEAD: "read a scene" =
        "SELECT id, revision, newest_version, published_version, draft_version FROM scenes WHERE id = $1";
    SCENE_ADD: "add a scene" =
        "INSERT INTO scenes (id, revision, newest_version, published_version, draft_version) VALUES ($1, $2, $3, $4, $5)";
    SCENE_CHANGE: "change a scene" =
        "UPDATE scenes SET revision = $2, newest_version = $3, published_version = $4, draft_version = $5 WHERE id = $1";
    SCENES_PUBLISHED: "read scenes" =
        "SELECT ", version!(), " FROM scene_versions WHERE EXISTS (SELECT 1 FROM scene_publications \
         WHERE scene_publications.id = scene_versions.id AND scene_publications.version = scene_versions.version) \
         ORDER BY id, version";
    SCENE_VERSIONS: "read versions of a scene" =
        "SELECT ", version!(), " FROM scene_versions WHERE id = $1 ORDER BY version";
    SCENE_VERSION: "read a version of a scene" =
        "SELECT ", version!(), " FROM scene_versions WHERE id = $1 AND version = $2";
    SCENE_VERSION_ADD: "add a version of a scene" =
        "INSERT INTO scene_versions (", version!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7)";
    PUBLICATIONS: "read publications of a scene" =
        "SELECT seq, version, published_ms, published_by, note FROM scene_publications WHERE id = $1 ORDER BY seq";
    PUBLICATION_ADD: "publish a scene" =
        "INSERT INTO scene_publications (id, seq, version, published_ms, published_by, note) \
         SELECT CAST($1 AS TEXT), COALESCE(MAX(seq), 0) + 1, CAST($2 AS BIGINT), CAST($3 AS BIGINT), CAST($4 AS TEXT), \
         CAST($5 AS TEXT) FROM scene_publications WHERE id = $1";

    // Device classes.
    CLASSES: "read device classes" = "SELECT ", class!(), " FROM device_classes ORDER BY id";
    CLASS: "read a device class" = "SELECT ", class!(), " FROM device_classes WHERE id = $1";
    CLASS_ADD: "add a device class" =
        "INSERT INTO device_classes (", class!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    CLASS_CHANGE: "change a device class" =
        "UPDATE device_classes SET revision = $2, label = $3, prefill_ms_per_token = $4, prefill_ms_per_token2 = $5, \
         decode_ms = $6, updated_ms = $7, updated_by = $8 WHERE id = $1";
    CLASS_REMOVE: "remove a device class" = "DELETE FROM device_classes WHERE id = $1";

    // Models of devices.
    TARGETS: "read targets of models" =
        "SELECT id, revision, scene, class, target, updated_ms, updated_by FROM model_targets ORDER BY id";
    TARGET: "read a target of models" =
        "SELECT id, revision, scene, class, target, updated_ms, updated_by FROM model_targets WHERE id = $1";
    TARGET_ADD: "add a target of models" =
        "INSERT INTO model_targets (id, revision, scene, class, target, updated_ms, updated_by) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)";
    TARGET_CHANGE: "change a target of models" =
        "UPDATE model_targets SET revision = $2, scene = $3, class = $4, target = $5, updated_ms = $6, updated_by = $7 \
         WHERE id = $1";
    TARGET_REMOVE: "remove a target of models" = "DELETE FROM model_targets WHERE id = $1";
    REPORT_PUT: "note what a device has" =
        "INSERT INTO model_reports (device_hash, scene, class, active, failed, seen_ms, first_ms, key_id) \
         SELECT $1, $2, $3, $4, $5, $6, $6, $7 \
         WHERE EXISTS (SELECT 1 FROM model_reports WHERE device_hash = $1 AND scene = $2) \
         OR (SELECT COUNT(*) FROM model_reports WHERE key_id = $7) < $8 \
         ON CONFLICT (device_hash, scene) DO UPDATE SET class = excluded.class, active = excluded.active, \
         failed = excluded.failed, seen_ms = excluded.seen_ms, key_id = excluded.key_id";
    REPORT_DROP_OLDEST: "forget the device of a key that reported longest ago" =
        "DELETE FROM model_reports WHERE (device_hash, scene) IN \
         (SELECT device_hash, scene FROM model_reports WHERE key_id = $1 ORDER BY seen_ms LIMIT 1)";
    REPORTS_COUNTED: "count devices for the guard, by key" =
        "SELECT key_id, SUM(CASE WHEN active = $4 THEN 1 ELSE 0 END) AS has, \
         SUM(CASE WHEN failed = $4 THEN 1 ELSE 0 END) AS failed FROM model_reports \
         WHERE scene = $1 AND class = $2 AND seen_ms > $3 AND first_ms < $5 AND key_id <> '' GROUP BY key_id";
    REPORTS_ACTIVE: "count what devices have" =
        "SELECT active AS pair, COUNT(*) AS devices FROM model_reports WHERE scene = $1 AND class = $2 AND seen_ms > $3 \
         GROUP BY active ORDER BY active";
    REPORTS_FAILED: "count what devices could not load" =
        "SELECT failed AS pair, COUNT(*) AS devices FROM model_reports WHERE scene = $1 AND class = $2 AND seen_ms > $3 \
         AND failed <> '' GROUP BY failed ORDER BY failed";
    REPORTS_FORGET: "forget devices" = "DELETE FROM model_reports WHERE seen_ms <= $1";

    // Tenants.
    TENANTS: "read tenants" = "SELECT ", tenant!(), " FROM tenants ORDER BY id";
    TENANT: "read a tenant" = "SELECT ", tenant!(), " FROM tenants WHERE id = $1";
    TENANT_ADD: "add a tenant" =
        "INSERT INTO tenants (", tenant!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    TENANT_CHANGE: "change a tenant" =
        "UPDATE tenants SET revision = $2, label = $3, weight = $4, requests_per_minute = $5, concurrency_max = $6, \
         tokens_per_day = $7, disabled = $8, created_ms = $9, updated_ms = $10, updated_by = $11 WHERE id = $1";

    // API keys.
    KEYS: "read keys" = "SELECT ", key!(), " FROM api_keys ORDER BY created_ms, id";
    KEY: "read a key" = "SELECT ", key!(), " FROM api_keys WHERE id = $1";
    KEY_ADD: "add a key" =
        "INSERT INTO api_keys (", key!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    KEY_CHANGE: "change a key" =
        "UPDATE api_keys SET revision = $2, label = $3, scopes = $4, expires_ms = $5, revoked_ms = $6 WHERE id = $1";
    KEY_USED: "note when a key was used" =
        "UPDATE api_keys SET last_used_ms = $2 WHERE id = $1 AND COALESCE(last_used_ms, 0) < $2";

    // Users, their sessions, and logins that failed.
    USERS: "read users" =
        "SELECT name, revision, role, password_hash, disabled, created_ms, updated_ms, updated_by FROM users ORDER BY name";
    USER: "read a user" =
        "SELECT name, revision, role, password_hash, disabled, created_ms, updated_ms, updated_by FROM users \
         WHERE name = $1";
    USER_ADD: "add a user" =
        "INSERT INTO users (name, revision, role, password_hash, disabled, created_ms, updated_ms, updated_by) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    USER_CHANGE: "change a user" =
        "UPDATE users SET revision = $2, role = $3, password_hash = $4, disabled = $5, created_ms = $6, \
         updated_ms = $7, updated_by = $8 WHERE name = $1";
    ADMINS: "count admins" =
        "SELECT COUNT(*) AS n FROM users WHERE role = 'admin' AND disabled = 0";
    SESSION_ADD: "begin a session" =
        "INSERT INTO sessions (token_hash, user_name, csrf, created_ms, seen_ms, expires_ms) \
         VALUES ($1, $2, $3, $4, $5, $6)";
    SESSION: "read a session" =
        "SELECT sessions.csrf, sessions.created_ms AS begun_ms, sessions.seen_ms, sessions.expires_ms, users.name, \
         users.revision, users.role, users.disabled, users.created_ms, users.updated_ms, users.updated_by \
         FROM sessions JOIN users ON users.name = sessions.user_name WHERE sessions.token_hash = $1";
    SESSION_SEEN: "note that a session is in use" = "UPDATE sessions SET seen_ms = $2 WHERE token_hash = $1";
    SESSION_END: "end a session" = "DELETE FROM sessions WHERE token_hash = $1";
    SESSIONS_END: "end a user's sessions" = "DELETE FROM sessions WHERE user_name = $1";
    SESSIONS_FORGET: "forget ended sessions" = "DELETE FROM sessions WHERE expires_ms <= $1 OR seen_ms <= $2";
    LOGIN_FAILED: "note a failed login" = "INSERT INTO login_failures (subject, at_ms) VALUES ($1, $2)";
    LOGIN_FAILURES: "count failed logins" =
        "SELECT COUNT(*) AS n, COALESCE(MIN(at_ms), 0) AS first_ms FROM login_failures \
         WHERE subject = $1 AND at_ms > $2 AND at_ms <= $3 + 60000";
    LOGIN_FORGET: "forget old failed logins" = "DELETE FROM login_failures WHERE at_ms <= $1 OR at_ms > $2 + 60000";
    LOGIN_UNDO: "forget a failed login" = "DELETE FROM login_failures WHERE subject = $1 AND at_ms = $2";
    LOGIN_FORGIVE: "forget failed logins" = "DELETE FROM login_failures WHERE subject = $1";
    DEVICE: "read a known device" =
        "SELECT seen_ms FROM known_devices WHERE token_hash = $1 AND user_name = $2 AND expires_ms > $3";
    DEVICE_PUT: "know a device" =
        "INSERT INTO known_devices (token_hash, user_name, seen_ms, expires_ms) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (token_hash) DO UPDATE SET seen_ms = excluded.seen_ms, expires_ms = excluded.expires_ms";
    DEVICES_FORGET: "forget devices" =
        "DELETE FROM known_devices WHERE expires_ms <= $2 OR (user_name = $1 AND token_hash NOT IN \
         (SELECT token_hash FROM known_devices WHERE user_name = $1 ORDER BY seen_ms DESC, token_hash LIMIT $3))";
    DEVICE_END: "forget a device" = "DELETE FROM known_devices WHERE token_hash = $1";
    DEVICES_END: "forget a user's devices" = "DELETE FROM known_devices WHERE user_name = $1";

    // Usage.
    USAGE_ADD: "count usage" =
        "INSERT INTO tenant_usage (tenant, period_ms, start_ms, requests, tokens) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (tenant, period_ms, start_ms) DO UPDATE SET requests = tenant_usage.requests + excluded.requests, \
         tokens = tenant_usage.tokens + excluded.tokens RETURNING requests, tokens";
    USAGE: "read usage" =
        "SELECT tenant, requests, tokens FROM tenant_usage WHERE period_ms = $1 AND start_ms = $2 ORDER BY tenant";
    // At most one row of the minute and one of the day for each tenant. Both are found by the primary key.
    USAGE_NOW: "read usage" =
        "SELECT tenants.id AS tenant, COALESCE(in_minute.requests, 0) AS requests, COALESCE(on_day.tokens, 0) AS tokens \
         FROM tenants \
         LEFT JOIN tenant_usage AS in_minute ON in_minute.tenant = tenants.id AND in_minute.period_ms = $1 \
         AND in_minute.start_ms = $2 \
         LEFT JOIN tenant_usage AS on_day ON on_day.tenant = tenants.id AND on_day.period_ms = $3 \
         AND on_day.start_ms = $4 \
         WHERE COALESCE(in_minute.requests, 0) > 0 OR COALESCE(on_day.tokens, 0) > 0 ORDER BY tenants.id";
    USAGE_DAYS: "read usage by day" =
        "SELECT tenant, start_ms, requests, tokens FROM tenant_usage WHERE period_ms = $1 AND start_ms >= $2 \
         AND start_ms < $3 AND (tenant = $4 OR $4 = '') ORDER BY start_ms DESC, tenant LIMIT $5";
    USAGE_TENANTS: "sum usage by tenant" =
        "SELECT tenant, CAST(SUM(requests) AS BIGINT) AS requests, CAST(SUM(tokens) AS BIGINT) AS tokens \
         FROM tenant_usage WHERE period_ms = $1 AND start_ms >= $2 AND start_ms < $3 AND (tenant = $4 OR $4 = '') \
         GROUP BY tenant ORDER BY 3 DESC, 1 LIMIT $5";
    USAGE_FORGET: "forget old usage" = "DELETE FROM tenant_usage WHERE period_ms = $1 AND start_ms < $2";
    LOAD_PUT: "tell what runs here" =
        "INSERT INTO replica_load (replica, tenant, running, reserved, updated_ms) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (replica, tenant) DO UPDATE SET running = excluded.running, reserved = excluded.reserved, \
         updated_ms = excluded.updated_ms";
    LOAD_OTHERS: "read what runs elsewhere" =
        "SELECT tenant, CAST(SUM(running) AS BIGINT) AS running, CAST(SUM(reserved) AS BIGINT) AS reserved \
         FROM replica_load \
         WHERE replica <> $1 AND updated_ms > $2 AND (running > 0 OR reserved > 0) GROUP BY tenant ORDER BY tenant";
    LOAD_FORGET: "forget replicas that are gone" = "DELETE FROM replica_load WHERE updated_ms < $1";
    TELEMETRY_PUT: "keep telemetry" =
        "INSERT INTO telemetry (", telemetry!(), ") \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) \
         ON CONFLICT (period_ms, start_ms, replica, scene, class, network) DO UPDATE SET requests = excluded.requests, \
         failures = excluded.failures, prompt_tokens = excluded.prompt_tokens, \
         completion_tokens = excluded.completion_tokens, prompt_tokens_saved = excluded.prompt_tokens_saved, \
         slot_ms = excluded.slot_ms, slot_ms_saved = excluded.slot_ms_saved, ttft_counts = excluded.ttft_counts, \
         assist_counts = excluded.assist_counts, ratio_counts = excluded.ratio_counts";
    TELEMETRY: "read telemetry" =
        "SELECT ", telemetry!(), " FROM telemetry WHERE period_ms = $1 AND start_ms >= $2 AND start_ms < $3 \
         ORDER BY start_ms, scene, class, network, replica";
    TELEMETRY_BOTH: "read telemetry of minutes and hours" =
        "SELECT ", telemetry!(), " FROM telemetry WHERE period_ms IN ($1, $2) AND start_ms >= $3 AND start_ms < $4 \
         ORDER BY start_ms, scene, class, network, replica";
    TELEMETRY_FORGET: "forget old telemetry" =
        "DELETE FROM telemetry WHERE period_ms = $1 AND start_ms >= $2 AND start_ms < $3";

    // Experiments.
    EXPERIMENTS: "read experiments" = "SELECT ", experiment!(), " FROM experiments ORDER BY created_ms DESC, id";
    EXPERIMENTS_RUNNING: "read running experiments" =
        "SELECT ", experiment!(), " FROM experiments WHERE state = 'running' ORDER BY id";
    EXPERIMENT: "read an experiment" = "SELECT ", experiment!(), " FROM experiments WHERE id = $1";
    EXPERIMENT_ADD: "add an experiment" =
        "INSERT INTO experiments (", experiment!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    EXPERIMENT_CHANGE: "change an experiment" =
        "UPDATE experiments SET revision = $2, scene = $3, plan = $4, state = $5, stopped_arms = $6, promoted = $7, \
         created_ms = $8, updated_ms = $9, updated_by = $10 WHERE id = $1";
    EXPERIMENT_SUMS: "read sums of an experiment" =
        "SELECT ", experiment_sums!(), " FROM experiment_sums WHERE experiment = $1 ORDER BY arm, bucket";
    EXPERIMENT_SUMS_ADD: "add to sums of an experiment" =
        "INSERT INTO experiment_sums (", experiment_sums!(), ") \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) \
         ON CONFLICT (experiment, arm, bucket) DO UPDATE SET \
         marks = experiment_sums.marks | excluded.marks, \
         sampled_marks = experiment_sums.sampled_marks | excluded.sampled_marks, \
         ttft_ms_count = experiment_sums.ttft_ms_count + excluded.ttft_ms_count, \
         ttft_ms_total = experiment_sums.ttft_ms_total + excluded.ttft_ms_total, \
         shown_ttft_ms_count = experiment_sums.shown_ttft_ms_count + excluded.shown_ttft_ms_count, \
         shown_ttft_ms_total = experiment_sums.shown_ttft_ms_total + excluded.shown_ttft_ms_total, \
         gap_ms_count = experiment_sums.gap_ms_count + excluded.gap_ms_count, \
         gap_ms_total = experiment_sums.gap_ms_total + excluded.gap_ms_total, \
         slot_ms_count = experiment_sums.slot_ms_count + excluded.slot_ms_count, \
         slot_ms_total = experiment_sums.slot_ms_total + excluded.slot_ms_total, \
         agreement_count = experiment_sums.agreement_count + excluded.agreement_count, \
         agreement_total = experiment_sums.agreement_total + excluded.agreement_total, \
         rating_count = experiment_sums.rating_count + excluded.rating_count, \
         rating_total = experiment_sums.rating_total + excluded.rating_total, \
         failures_count = experiment_sums.failures_count + excluded.failures_count, \
         failures_total = experiment_sums.failures_total + excluded.failures_total";
    FEEDBACK_ADD: "note feedback" =
        "INSERT INTO experiment_feedback (name_hash, expires_ms) VALUES ($1, $2) ON CONFLICT (name_hash) DO NOTHING \
         RETURNING expires_ms";
    FEEDBACK_FORGET: "forget old feedback" = "DELETE FROM experiment_feedback WHERE expires_ms <= $1";
    SERVICE_KEY: "read a key of the service" = "SELECT secret FROM service_keys WHERE purpose = $1";
    SERVICE_KEY_ADD: "make a key of the service" =
        "INSERT INTO service_keys (purpose, secret) VALUES ($1, $2) ON CONFLICT (purpose) DO NOTHING";

    // Costs.
    COEFFICIENTS: "read coefficients" =
        "SELECT kind, name, figure, value, samples FROM coefficients \
         ORDER BY CASE kind WHEN 'cloud' THEN 0 ELSE 1 END, updated_unix_s DESC, kind, name, figure LIMIT 300";
    COEFFICIENTS_FORGET: "forget coefficients that nobody keeps" = "DELETE FROM coefficients WHERE updated_unix_s < $1";
    COEFFICIENT_PUT: "keep coefficients" =
        "INSERT INTO coefficients (kind, name, figure, value, samples, updated_unix_s) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (kind, name, figure) DO UPDATE SET value = excluded.value, samples = excluded.samples, \
         updated_unix_s = excluded.updated_unix_s";
}
