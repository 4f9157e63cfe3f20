//! Tests of the connection to PostgreSQL: what each `sslmode` accepts of a real server, and its error if it
//! refuses.

use std::path::PathBuf;
use std::process::Command;

use baton_cloud::store::{Database, Store, StoreError, testing};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::postgres::{Postgres, Reach, programs};

/// Returns SQL that fails unless the connection uses TLS (`ssl`) or does not (`!ssl`).
fn refuse_unless(ssl: bool) -> String {
    let which = if ssl { "" } else { "NOT " };
    format!(
        "DO $$ BEGIN IF NOT (SELECT {which}ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) \
         THEN RAISE EXCEPTION 'ssl is not {ssl}'; END IF; END $$"
    )
}

/// Makes a certificate authority.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Starts a server whose certificate this authority signed for `localhost` alone.
fn server(authority: &CertifiedIssuer<'static, KeyPair>) -> Postgres {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap().pem();
    Postgres::start_with(&Reach::Tls { certificate, key: key.serialize_pem() }).unwrap()
}

/// Returns the error and its causes, as `main` prints them.
fn chain(err: &StoreError) -> String {
    let mut text = err.to_string();
    let mut cause = std::error::Error::source(err);
    while let Some(err) = cause {
        text.push_str(&format!(": {err}"));
        cause = err.source();
    }
    text
}

async fn refusal(url: &str) -> String {
    let database: Database = url.parse().unwrap();
    match Store::open(&database).await {
        Ok(_) => panic!("{url} was opened"),
        Err(err) => chain(&err),
    }
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| said.contains(part)), "want {parts:?}: {said}");
}

/// A server, and a folder with two authorities, of which one signed the server's certificate.
struct World {
    server: Postgres,
    good: PathBuf,
    wrong: PathBuf,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let [good, wrong] = ["good.crt", "wrong.crt"].map(|name| folder.path().join(name));
        let issuer = authority("good");
        std::fs::write(&good, issuer.pem()).unwrap();
        std::fs::write(&wrong, authority("wrong").pem()).unwrap();
        World { server: server(&issuer), good, wrong, folder }
    }

    fn url(&self, host: &str, options: &str) -> String {
        self.server.tcp_url(host, options).expect("the server listens on TCP")
    }

    fn full(&self, host: &str, authority: &std::path::Path) -> String {
        self.url(host, &format!("sslmode=verify-full&sslrootcert={}", authority.display()))
    }
}

#[tokio::test]
async fn a_managed_server_is_verified_before_anything_is_said() {
    if let Err(reason) = programs() {
        println!("skipped: store: TLS to PostgreSQL: {reason:#}");
        return;
    }
    let world = World::new();
    let verified: Database = world.full("localhost", &world.good).parse().unwrap();
    let store = Store::open(&verified).await.unwrap();
    assert!(store.check_statements().await.unwrap() > 50);
    testing::execute(&verified, &refuse_unless(true)).await.unwrap();
    assert_eq!(verified.exposure(), None);

    let tls = "no TLS connection to database `postgres://baton@";
    says(&refusal(&world.full("localhost", &world.wrong)).await, &[tls, "UnknownIssuer"]);
    // The certificate does not have this name.
    says(&refusal(&world.full("127.0.0.1", &world.good)).await, &[tls, "not valid for name"]);
    // Without a file, only the machine's own authorities are trusted.
    says(&refusal(&world.url("localhost", "sslmode=verify-full")).await, &[tls, "UnknownIssuer"]);

    for (name, text, want) in
        [("missing.crt", None, "read `"), ("empty.crt", Some("nothing\n"), "holds no certificate")]
    {
        let file = world.folder.path().join(name);
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let said = refusal(&world.full("localhost", &file)).await;
        says(&said, &["read sslrootcert", want, name]);
    }

    // `require` and `prefer` speak TLS without looking at the certificate; `disable` does not.
    for (options, ssl) in [("sslmode=require", true), ("sslmode=prefer", true), ("sslmode=disable", false)] {
        let database: Database = world.url("127.0.0.1", options).parse().unwrap();
        testing::execute(&database, &refuse_unless(ssl))
            .await
            .unwrap_or_else(|err| panic!("{}", chain(&err)));
    }
    store.close().await;
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    if programs().is_err() {
        return;
    }
    let server = Postgres::start_with(&Reach::Tcp).unwrap();
    let url = |options: &str| server.tcp_url("localhost", options).expect("the server listens on TCP");
    for options in ["sslmode=require", "sslmode=verify-full"] {
        let said = refusal(&url(options)).await;
        says(&said, &["no TLS connection to database", "server does not support TLS"]);
    }
    let clear: Database = url("sslmode=prefer").parse().unwrap();
    testing::execute(&clear, &refuse_unless(false)).await.unwrap();

    // The program prints the same error, without a panic.
    let output = Command::new(env!("CARGO_BIN_EXE_baton-cloud"))
        .args(["migrate", "--database", &url("sslmode=require")])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    says(&err, &["no TLS connection to database", "server does not support TLS"]);
    assert!(!err.contains("panicked"), "{err}");
}
