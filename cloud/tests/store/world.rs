//! Runs each test on each database, in a database of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use baton_cloud::access::Actor;
use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{Database, Store, testing};
use baton_protocol::{Corrector, KvEncoding, VerifyPolicy};

use crate::postgres::Postgres;

/// A database of one test, removed with it.
pub(crate) struct TestDatabase {
    pub database: Database,
    /// The value of `--database`.
    pub address: String,
    _folder: Option<tempfile::TempDir>,
    _server: Option<Arc<Postgres>>,
}

impl TestDatabase {
    pub(crate) fn sqlite() -> TestDatabase {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cloud.db");
        let (address, database) = (path.display().to_string(), Database::File(path));
        TestDatabase { database, address, _folder: Some(folder), _server: None }
    }

    /// Makes a database on the server that the tests of this program share.
    pub(crate) async fn postgres(server: Arc<Postgres>) -> TestDatabase {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("store{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let admin: Database = server.url().parse().unwrap();
        testing::execute(&admin, &format!("CREATE DATABASE {name}")).await.unwrap();
        let url = server.url().replace("/postgres?", &format!("/{name}?"));
        TestDatabase { database: url.parse().unwrap(), address: url, _folder: None, _server: Some(server) }
    }

    pub(crate) async fn open(&self) -> Store {
        Store::open(&self.database).await.unwrap()
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.database, Database::Postgres(_))
    }

    /// Removes a trigger of a table, then runs SQL.
    pub(crate) async fn tamper(&self, trigger: &str, table: &str, sql: &str) {
        let on = if self.is_postgres() { format!(" ON {table}") } else { String::new() };
        testing::execute(&self.database, &format!("DROP TRIGGER {trigger}{on}; {sql}")).await.unwrap();
    }
}

/// Returns the server that tests share while any of them runs. If there is none, prints the reason once.
fn server() -> Option<Arc<Postgres>> {
    static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
    static LACKS: OnceLock<()> = OnceLock::new();
    if let Err(reason) = crate::postgres::programs() {
        LACKS.get_or_init(|| println!("skipped: store: on PostgreSQL: {reason:#}"));
        return None;
    }
    let mut shared = SHARED.lock().unwrap();
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(Postgres::start().unwrap());
    *shared = Arc::downgrade(&server);
    Some(server)
}

/// Returns settings that all differ from the defaults.
pub(crate) fn special() -> SceneSettings {
    SceneSettings {
        system: "Ünïcödé 系统 \"quoted\" \\ it's \n".into(),
        question_prefix: "\t?".into(),
        ratio: Some(0.3),
        xi: 0.1,
        assist_tokens: Some(24),
        assist_floor: 2,
        assist_max: 300,
        tau_ms: 80.5,
        tolerance: 0.015,
        refine: true,
        mode: "bm25".into(),
        least_value: Some(0.125),
        corrector: Corrector::Device,
        verify: VerifyPolicy::Strict,
        kv: Some(KvEncoding::Q8),
        model: Some("llama-3.2".into()),
        adapter: Some("law@2".into()),
    }
}

/// Runs a test on SQLite, then on PostgreSQL if there is a server.
pub(crate) fn on_each<F, Fut>(test: F)
where
    F: Fn(TestDatabase) -> Fut,
    Fut: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(TestDatabase::sqlite()));
    if let Some(server) = server() {
        runtime.block_on(async { test(TestDatabase::postgres(server).await).await });
    }
}

pub(crate) fn ann() -> Actor {
    Actor::user("ann")
}
