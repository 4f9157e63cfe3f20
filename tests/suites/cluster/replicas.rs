//! The cluster: database, replicas, proxy, and the program's own commands on the database.

use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

use baton_e2e::{
    balancer::{Balancer, Spread},
    demo::emulation::Speed,
    http,
    postgres::{self, Postgres},
    process::{CloudProcess, cpu_program, models_folder},
};
use serde_json::Value;

/// Longest wait for anything: a guard against hangs.
const LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

/// Returns why this machine cannot run the suite, if it cannot.
pub(crate) fn lacks() -> Option<String> {
    if Balancer::program().is_none() {
        return Some("no haproxy (Debian's haproxy)".into());
    }
    postgres::programs().err().map(|err| err.to_string())
}

/// Waits until a condition holds.
pub(crate) async fn wait_until(what: &str, holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// One of the service's processes.
pub(crate) struct Replica {
    /// `host:port`, the same after a restart.
    pub address: String,
    /// The process that has this address now.
    pub process: CloudProcess,
}

/// The whole cluster; the fields are dropped in this order.
pub(crate) struct Cluster {
    /// The proxy in front of the replicas.
    pub balancer: Balancer,
    /// The two replicas.
    pub replicas: Vec<Replica>,
    /// A key with every scope.
    pub key: String,
    http: reqwest::Client,
    speed: Speed,
    postgres: Postgres,
}

impl Cluster {
    /// Starts everything and waits until both replicas get requests.
    pub(crate) async fn start(spread: Spread, speed: Speed) -> Self {
        let postgres = Postgres::start().expect("a database");
        admin(&postgres, &["migrate"]);
        let mut replicas = Vec::new();
        for _ in 0..2 {
            let process = replica("127.0.0.1:0", &postgres, speed).await;
            replicas.push(Replica { address: process.address().to_owned(), process });
        }
        let addresses: Vec<&str> = replicas.iter().map(|replica| replica.address.as_str()).collect();
        let balancer = Balancer::start(&addresses, spread).await.expect("a proxy");
        let http = http::client();
        let mut cluster = Self { balancer, replicas, key: String::new(), http, speed, postgres };
        cluster.key = cluster.create_key("the suite").1;
        let key = cluster.key.clone();
        cluster.wait_for_both().await;
        for idx in 0..cluster.replicas.len() {
            wait_until("the key is known", async || cluster.get(idx, "/v1/models", &key).await.0 == 200)
                .await;
        }
        cluster
    }

    /// Runs a command of the program on the cluster's database; returns what it prints.
    pub(crate) fn admin(&self, words: &[&str]) -> String {
        admin(&self.postgres, words)
    }

    /// Makes a key with every scope; returns its id, and the key itself.
    pub(crate) fn create_key(&self, label: &str) -> (String, String) {
        let said = self.admin(&["keys", "create", "--label", label, "--scopes", "all", "--json"]);
        let made: Value = serde_json::from_str(&said).expect("one object");
        let text =
            |field: &str| made[field].as_str().unwrap_or_else(|| panic!("no `{field}`: {said}")).to_owned();
        (text("id"), text("key"))
    }

    /// Revokes a key.
    pub(crate) fn revoke_key(&self, id: &str) {
        self.admin(&["keys", "revoke", id]);
    }

    /// Asks one replica directly, not through the proxy; a missing answer is status 0.
    pub(crate) async fn get(&self, idx: usize, path: &str, key: &str) -> (u16, Value) {
        let url = format!("http://{}{path}", self.replicas[idx].address);
        let Ok(reply) = self.http.get(url).bearer_auth(key).send().await else { return (0, Value::Null) };
        (reply.status().as_u16(), reply.json().await.unwrap_or_default())
    }

    /// Returns the statistics of one replica.
    pub(crate) async fn stats(&self, idx: usize) -> Value {
        let (status, stats) = self.get(idx, "/v1/stats", &self.key).await;
        assert_eq!(status, 200, "replica {idx}: {stats}");
        stats
    }

    /// Waits until a replica writes this many answers at the same time.
    pub(crate) async fn wait_for_running(&self, idx: usize, answers: u64) {
        wait_until("answers are being written", async || {
            self.stats(idx).await["slots_used"].as_u64() >= Some(answers)
        })
        .await;
    }

    /// Starts an ended replica again at its address, and waits until it gets requests.
    pub(crate) async fn start_again(&mut self, idx: usize) {
        let replica = &mut self.replicas[idx];
        replica.process = self::replica(&replica.address, &self.postgres, self.speed).await;
        self.wait_for_both().await;
    }

    async fn wait_for_both(&self) {
        let want = self.replicas.len();
        wait_until("the proxy asks every replica", async || self.balancer.up().await.ok() == Some(want))
            .await;
    }
}

async fn replica(listen: &str, postgres: &Postgres, speed: Speed) -> CloudProcess {
    let mut options = speed.options();
    options.extend(["--auth", "keys", "--threads", "1", "--slots", "8"].map(OsString::from));
    let model = models_folder().join("demo-cloud.gguf");
    CloudProcess::start_at(listen, &postgres.url(), &model, &options).await.expect("a replica starts")
}

fn admin(postgres: &Postgres, words: &[&str]) -> String {
    let out = cpu_program("baton-cloud")
        .expect("the program is built")
        .args(words)
        .env("BATON_DATABASE", postgres.url())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "baton-cloud {words:?}: {said}");
    String::from_utf8(out.stdout).expect("text")
}
