//! The real programs: a registry in a folder, a mirror that damages bytes, a rollout while `baton serve`
//! runs, a roll back and a revocation.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path as UrlPath, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use baton_e2e::demo::emulation::PHONE;
use baton_e2e::http::client;
use baton_e2e::process::{AgentProcess, CloudProcess, cpu_program, models_folder};
use baton_registry::digest::Digest;
use baton_registry::rollout::SETTLE_S;
use serde_json::{Value, json};
use tokio::process::Command;

/// A hang guard, not a measurement.
const LIMIT: Duration = Duration::from_secs(90);

/// A folder with a registry, a database, and a device's models and settings.
struct Place {
    folder: tempfile::TempDir,
    key: String,
}

impl Place {
    /// Makes a registry with small@1 and small@2, which are the two demo models of devices.
    fn new() -> Self {
        let mut place = Self { folder: tempfile::tempdir().unwrap(), key: String::new() };
        let key_file = place.path("registry.key");
        place.key = place.cloud(&["registry", "key", &key_file]).trim().to_owned();
        for (version, file) in [("small@1", "demo-device.gguf"), ("small@2", "demo-device-b.gguf")] {
            let file = models_folder().join(file).display().to_string();
            let line = [
                "registry",
                "publish",
                &file,
                "--as",
                version,
                "--licence",
                "Apache-2.0",
                "--key",
                &key_file,
            ];
            place.cloud(&[&line[..], &["--to", &place.path("registry")]].concat());
        }
        place
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs a command of `baton-cloud`; returns what it printed.
    fn cloud(&self, line: &[&str]) -> String {
        let out = cpu_program("baton-cloud").unwrap().args(line).env("RUST_LOG", "error").output().unwrap();
        assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn rollouts(&self, line: &[&str]) -> Value {
        let database = self.path("cloud.db");
        let out = self.cloud(&[&["rollouts"], line, &["--json", "--database", &database]].concat());
        serde_json::from_str(&out).unwrap()
    }

    async fn serve(&self, mirror: &str) -> CloudProcess {
        let (database, registry) = (self.path("cloud.db"), self.path("registry"));
        let options = ["--registry", &registry, "--registry-key", &self.key, "--registry-mirror", mirror];
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        CloudProcess::start_on(&models_folder().join("demo-cloud.gguf"), &database, &options).await.unwrap()
    }

    /// Makes a command of `baton` on the device, which is a phone.
    fn device(&self, line: &[&str], cloud: &CloudProcess) -> Command {
        self.device_of("phone", &self.key, line, cloud)
    }

    /// Makes a command of `baton` on a device of a class, which trusts a key.
    fn device_of(&self, class: &str, key: &str, line: &[&str], cloud: &CloudProcess) -> Command {
        let mut command = Command::from(cpu_program("baton").unwrap());
        command.args(line).args(["--cloud", &format!("http://{}", cloud.address()), "--yes"]);
        command.args(["--device-class", class, "--registry-key", key]);
        // By the environment, so that a test can name other folders.
        command.env("BATON_CONFIG_DIR", self.path("config")).env("BATON_MODELS", self.path("models"));
        command.env("RUST_LOG", "error").kill_on_drop(true);
        command
    }

    async fn sync(&self, cloud: &CloudProcess) -> (Value, String) {
        let out = self.device(&["model", "sync", "--json"], cloud).output().await.unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{said}");
        (serde_json::from_slice(&out.stdout).unwrap(), said)
    }

    /// Returns how the last answer came about.
    async fn last(&self) -> Value {
        let mut command = Command::from(cpu_program("baton").unwrap());
        let out =
            command.args(["trace", "show", "--json", "--config-dir", &self.path("config")]).output().await;
        serde_json::from_slice(&out.unwrap().stdout).unwrap()
    }
}

/// A mirror of a registry's folder that flips a bit of every file of more than a mebibyte.
async fn mirror(folder: PathBuf) -> String {
    async fn blob(State(folder): State<PathBuf>, UrlPath(hex): UrlPath<String>) -> Response {
        let Ok(mut bytes) = tokio::fs::read(folder.join("blobs/sha256").join(hex)).await else {
            return StatusCode::NOT_FOUND.into_response();
        };
        if bytes.len() > 1 << 20 {
            bytes[1 << 19] ^= 1;
        }
        bytes.into_response()
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().route("/blobs/sha256/{hex}", get(blob)).with_state(folder);
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// A private bucket with a registry's folder at `/models/v1`: signed requests are answered, and those without
/// a signature or with a key beside it are refused, as S3 does. Returns its address.
async fn bucket(folder: PathBuf) -> String {
    async fn object(
        State(folder): State<PathBuf>,
        UrlPath(path): UrlPath<String>,
        request: Request,
    ) -> Response {
        let is_signed = request.uri().query().is_some_and(|query| query.contains("X-Amz-Signature="));
        if !is_signed || request.headers().contains_key("authorization") {
            return StatusCode::FORBIDDEN.into_response();
        }
        match tokio::fs::read(folder.join(path)).await {
            Ok(bytes) => bytes.into_response(),
            Err(_) => StatusCode::NOT_FOUND.into_response(),
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().route("/models/v1/{*path}", get(object)).with_state(folder);
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn digest_of(model: &str) -> String {
    Digest::of(&std::fs::read(models_folder().join(model)).unwrap()).hex()
}

/// Returns the digest of the model that an agent answers with.
async fn answering(agent: &AgentProcess) -> String {
    let tags = client().get(format!("{}/api/tags", agent.url())).send().await.unwrap();
    let tags: Value = tags.json().await.unwrap();
    tags["models"][0]["digest"].as_str().unwrap().to_owned()
}

async fn answers_with(agent: &AgentProcess, model: &str) {
    let (want, begun) = (digest_of(model), Instant::now());
    while answering(agent).await != want {
        assert!(begun.elapsed() < LIMIT, "{model} does not answer");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn ask(agent: &AgentProcess) {
    let body = json!({ "messages": [{ "role": "user", "content": "Say it once more. ".repeat(30) }], "max_tokens": 16 });
    let answer =
        client().post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
}

/// Waits until every replica would know of a change.
async fn settled() {
    tokio::time::sleep(Duration::from_secs(SETTLE_S + 1)).await;
}

fn codes(answer: &Value) -> String {
    answer["report"]["notes"].to_string()
}

#[tokio::test]
async fn a_device_follows_a_rollout_while_it_serves() {
    let place = Place::new();
    place.rollouts(&["set", "--class", "phone", "small@1"]);
    let mirror = mirror(Path::new(&place.path("registry")).to_owned()).await;
    let cloud = place.serve(&mirror).await;
    // The mirror damages what it sends; the cloud has it too.
    let (synced, said) = place.sync(&cloud).await;
    assert_eq!(synced["active"], "small@1", "{said}");
    assert!(said.contains(&mirror) && said.contains("damaged"), "{said}");
    let kept = std::fs::read(synced["base"].as_str().unwrap()).unwrap();
    assert_eq!(Digest::of(&kept).hex(), digest_of("demo-device.gguf"));
    settled().await;
    // The device is as slow as a phone, so the cloud's tokens come first.
    let line = ["serve", "--listen", "127.0.0.1:0", "--managed", "--mode", "relay"];
    let serve = || {
        let mut command = place.device(&line, &cloud);
        command.args(PHONE.options());
        command
    };
    let agent = AgentProcess::start(&mut serve()).await.unwrap();
    assert_eq!(answering(&agent).await, digest_of("demo-device.gguf"));
    ask(&agent).await;
    let last = place.last().await;
    assert!(last["report"]["tokens_from_cloud"].as_u64() > Some(0), "{last}");
    drop(agent);

    let started = place.rollouts(&["start", "--class", "phone", "small@2", "--share", "100"]);
    assert_eq!(started[0]["devices"]["small@1"], 1, "the device has reported: {started}");
    settled().await;
    // It begins with what it has, and gets the candidate while it serves.
    let agent = AgentProcess::start(&mut serve()).await.unwrap();
    answers_with(&agent, "demo-device-b.gguf").await;
    ask(&agent).await;
    let last = place.last().await;
    assert!(last["report"]["tokens_from_cloud"].as_u64() > Some(0), "{last}");

    // A pair that is revoked is refused; the device answers alone, and goes back at once.
    place.rollouts(&["rollback", "--class", "phone"]);
    place.rollouts(&["revoke", "--class", "phone", "small@2"]);
    let begun = Instant::now();
    while !codes(&place.last().await).contains("pair_not_allowed") {
        assert!(begun.elapsed() < LIMIT, "{}", place.last().await);
        ask(&agent).await;
    }
    answers_with(&agent, "demo-device.gguf").await;
    ask(&agent).await;
    // It tells the cloud at once what it has now.
    let begun = Instant::now();
    while place.rollouts(&["list"])[0]["devices"] != json!({ "small@1": 1 }) {
        assert!(begun.elapsed() < LIMIT, "{}", place.rollouts(&["list"]));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_pair_that_is_not_allowed_is_refused_with_what_to_do() {
    let place = Place::new();
    place.rollouts(&["set", "--class", "phone", "small@1"]);
    let cloud = place.serve("http://127.0.0.1:9").await;
    let assist = async |pair: Value| {
        let body = json!({
            "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "chat", "model": "default",
            "segments": [{ "role": "user", "text": "Say it." }], "assist_tokens": 4,
            "device": { "class": "phone", "model": "small", "pair": pair },
        });
        let reply =
            client().post(format!("http://{}/v1/assist", cloud.address())).json(&body).send().await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    assert_eq!(assist(json!({ "base": "small@1" })).await.0, 200);
    assert_eq!(assist(Value::Null).await.0, 200);
    let (status, said) = assist(json!({ "base": "small@9", "adapter": "law@1" })).await;
    assert_eq!(status, 409, "{said}");
    let error: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["param"]),
        (&json!("pair_not_allowed"), &json!("device.pair"))
    );
    assert!(said.contains("small@9+law@1") && said.contains("baton model sync"), "{said}");
    // A device that trusts another key takes nothing; a class without models is told so.
    let synced = async |class: &str, key: &str| {
        let out = place.device_of(class, key, &["model", "sync"], &cloud).output().await.unwrap();
        (
            out.status.success(),
            String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap(),
        )
    };
    let (done, said) = synced("phone", &"00".repeat(32)).await;
    assert!(!done && said.contains("no trusted key signed"), "{said}");
    let (_, said) = synced("watch", &place.key).await;
    assert!(said.contains("no models for this class"), "{said}");
}

#[tokio::test]
async fn a_device_gets_models_from_a_private_bucket_without_its_key() {
    let place = Place::new();
    place.rollouts(&["set", "--class", "phone", "small@1"]);
    let bucket = bucket(Path::new(&place.path("registry")).to_owned()).await;
    let variables = [
        ("AWS_ACCESS_KEY_ID", "AKID"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
        ("AWS_ENDPOINT_URL", bucket.as_str()),
    ];
    let options = ["--registry", "s3://models/v1", "--registry-key", &place.key];
    let options: Vec<OsString> = options.iter().map(OsString::from).collect();
    let model = models_folder().join("demo-cloud.gguf");
    let cloud =
        CloudProcess::start_with(&variables, &model, &place.path("cloud.db"), &options).await.unwrap();
    let (synced, said) = place.sync(&cloud).await;
    assert_eq!(synced["active"], "small@1", "{said}");
    let kept = std::fs::read(synced["base"].as_str().unwrap()).unwrap();
    assert_eq!(Digest::of(&kept).hex(), digest_of("demo-device.gguf"));
    // The service says what is missing for a bucket.
    let mut list = cpu_program("baton-cloud").unwrap();
    list.args(["registry", "list", "--from", "s3://models", "--trust", &place.key]);
    list.env_remove("AWS_ACCESS_KEY_ID");
    let out = list.output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && said.contains("AWS_ACCESS_KEY_ID"), "{said}");
}

#[tokio::test]
async fn a_device_asks_the_others_of_the_home_first() {
    let place = Place::new();
    place.rollouts(&["set", "--class", "phone", "small@1"]);
    let cloud = place.serve("http://127.0.0.1:9").await;
    place.sync(&cloud).await;
    let line = ["serve", "--listen", "127.0.0.1:0", "--managed", "--key", "house"];
    let first = AgentProcess::start(&mut place.device(&line, &cloud)).await.unwrap();
    // Nothing is given out without its key, nor anything that no model from the registry has.
    let blob = |digest: &str| format!("{}/registry/blobs/sha256/{digest}", first.url());
    let status = async |url: String, key: &str| {
        client().get(url).bearer_auth(key).send().await.unwrap().status().as_u16()
    };
    let digest = digest_of("demo-device.gguf");
    assert_eq!(status(blob(&digest), "house").await, 200);
    assert_eq!(status(blob(&digest), "guess").await, 401);
    assert_eq!(status(blob(&digest_of("demo-cloud.gguf")), "house").await, 404);
    assert_eq!(status(blob("x"), "house").await, 404);
    let ranged = client().get(blob(&digest)).bearer_auth("house").header("range", "bytes=8-11");
    let ranged = ranged.send().await.unwrap();
    assert_eq!(ranged.status().as_u16(), 206);
    let whole = std::fs::read(models_folder().join("demo-device.gguf")).unwrap();
    assert_eq!(ranged.bytes().await.unwrap(), &whole[8..12]);

    // The cloud's copy is damaged, so what comes is the peer's.
    let stored = Path::new(&place.path("registry")).join("blobs/sha256").join(&digest);
    std::fs::write(&stored, vec![0; whole.len()]).unwrap();
    let second = |more: &[&str], folder: &str| {
        let mut sync = place.device(&["model", "sync", "--json"], &cloud);
        sync.args(more).env("BATON_MODELS", place.path(folder)).env("BATON_CONFIG_DIR", place.path(folder));
        sync
    };
    let alone = second(&[], "alone").output().await.unwrap();
    assert!(!alone.status.success(), "{}", String::from_utf8_lossy(&alone.stdout));
    let peer = ["--peer", first.url(), "--peer-key", "house"];
    let helped = second(&peer, "helped").output().await.unwrap();
    assert!(helped.status.success(), "{}", String::from_utf8_lossy(&helped.stderr));
    let synced: Value = serde_json::from_slice(&helped.stdout).unwrap();
    assert!(std::fs::read(synced["base"].as_str().unwrap()).unwrap() == whole);
}

/// A device that takes connections and never says a word. Returns its address.
async fn mute() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            held.push(socket);
        }
    });
    url
}

/// A device that gives small blobs whole, and of large ones a byte now and then, for ever. Returns its
/// address.
async fn dribbling(folder: PathBuf) -> String {
    async fn blob(State(folder): State<PathBuf>, UrlPath(hex): UrlPath<String>) -> Response {
        let Ok(bytes) = tokio::fs::read(folder.join("blobs/sha256").join(hex)).await else {
            return StatusCode::NOT_FOUND.into_response();
        };
        if bytes.len() < 1 << 20 {
            return bytes.into_response();
        }
        let drops = futures_util::stream::unfold(bytes.into_iter(), async |mut rest| {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let drop = rest.next()?;
            Some((Ok::<_, std::io::Error>(vec![drop]), rest))
        });
        axum::body::Body::from_stream(drops).into_response()
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().route("/registry/blobs/sha256/{hex}", get(blob)).with_state(folder);
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// The limit guards against hangs: each device that stands still costs five seconds.
#[tokio::test]
async fn devices_of_the_home_that_hang_or_dribble_are_left_for_the_next_source() {
    let place = Place::new();
    place.rollouts(&["set", "--class", "phone", "small@1"]);
    let registry = PathBuf::from(place.path("registry"));
    let cloud = place.serve("http://127.0.0.1:9").await;
    let mute = mute().await;
    let dribbling = dribbling(registry).await;
    let mut sync = place.device(&["model", "sync", "--json"], &cloud);
    sync.args(["--peer", &mute, "--peer", &dribbling]);
    let out = tokio::time::timeout(LIMIT, sync.output()).await.expect("the next source is asked").unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let synced: Value = serde_json::from_slice(&out.stdout).unwrap();
    let kept = std::fs::read(synced["base"].as_str().unwrap()).unwrap();
    assert_eq!(Digest::of(&kept).hex(), digest_of("demo-device.gguf"));
}

#[tokio::test]
async fn a_device_of_one_scene_has_the_scene_s_own_models() {
    let place = Place::new();
    place.rollouts(&["set", "--class", "phone", "small@1"]);
    place.rollouts(&["set", "--class", "phone", "--scene", "law", "small@2"]);
    let cloud = place.serve("http://127.0.0.1:9").await;
    let active = async |scene: &str| {
        let mut sync = place.device(&["model", "sync", "--json", "--models-of", scene], &cloud);
        let out = sync.output().await.unwrap();
        assert!(out.status.success(), "{scene}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()["active"].as_str().unwrap().to_owned()
    };
    assert_eq!(active("law").await, "small@2");
    // A scene without models of its own has those of all scenes.
    assert_eq!((active("*").await, active("chat").await), ("small@1".to_owned(), "small@1".to_owned()));
}

#[test]
fn a_rollout_of_what_the_registry_does_not_have_is_refused() {
    let place = Place::new();
    let (registry, database) = (place.path("registry"), place.path("cloud.db"));
    let run = |line: &[&str]| {
        let mut command = cpu_program("baton-cloud").unwrap();
        command.arg("rollouts").args(line).args(["--class", "phone", "--database", &database]);
        let out = command.args(["--registry", &registry, "--registry-key", &place.key]).output().unwrap();
        (out.status.success(), String::from_utf8(out.stderr).unwrap())
    };
    let (done, said) = run(&["set", "small@7"]);
    assert!(!done && said.contains("the registry has no small@7"), "{said}");
    assert!(run(&["set", "small@1"]).0);
    let (done, said) = run(&["start", "small@1+law@1"]);
    assert!(!done && said.contains("the registry has no law@1"), "{said}");
    assert!(run(&["start", "small@2"]).0);
}

#[test]
fn a_version_never_changes_and_damage_is_found() {
    let place = Place::new();
    let (registry, key) = (place.path("registry"), place.path("registry.key"));
    let list = place.cloud(&["registry", "list", "--json", "--from", &registry, "--trust", &place.key]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[0]["model"], &list[1]["model"]), (&json!("small@1"), &json!("small@2")));
    assert_eq!(list[0]["files"][0]["digest"], format!("sha256:{}", digest_of("demo-device.gguf")));
    let run = |line: &[&str]| {
        let out = cpu_program("baton-cloud").unwrap().args(line).output().unwrap();
        (out.status.success(), String::from_utf8(out.stderr).unwrap())
    };
    let other = models_folder().join("demo-cloud.gguf").display().to_string();
    let publish = [
        "registry",
        "publish",
        &other,
        "--as",
        "small@1",
        "--licence",
        "MIT",
        "--key",
        &key,
        "--to",
        &registry,
    ];
    let (done, said) = run(&publish);
    assert!(!done && said.contains("a version never changes"), "{said}");
    let verify = ["registry", "verify", "--from", &registry, "--trust", &place.key];
    assert!(run(&verify).0);
    let blob = Path::new(&registry).join("blobs/sha256").join(digest_of("demo-device.gguf"));
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[1 << 20] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let (done, said) = run(&verify);
    assert!(!done && said.contains("small@1") && said.contains("is damaged"), "{said}");
    // Nothing is trusted that another key has signed.
    let (done, said) = run(&["registry", "list", "--from", &registry, "--trust", &"00".repeat(32)]);
    assert!(done && said.contains("no trusted key signed"), "{said}");
}
