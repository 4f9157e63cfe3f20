//! The container image: built without a daemon from the program beside this one, run read-only by a user
//! without a name, and asked.
//!
//! Needs buildah, podman and a kernel that supports them. If one is missing, the suite says so and is
//! skipped. Never touches the user's images and containers, because it has its own storage folder.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use baton_e2e::{
    http, kustomize,
    process::{models_folder, program},
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// Longest time for a container to start or end: a guard against hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// The user of the Containerfile.
const USER: &str = "65532";
const KEY: &str = "a-key-for-this-test";

/// Settings that work without systemd, journald and cgroup delegation.
const CONTAINERS_CONF: &str = r#"[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"#;

/// Private settings and storage of podman and buildah, in a folder of their own.
struct ContainerStorage {
    scratch: tempfile::TempDir,
}

impl ContainerStorage {
    fn open() -> Self {
        let scratch = tempfile::tempdir().expect("make a folder");
        let path = |name: &str| scratch.path().join(name).display().to_string();
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n",
            path("storage"),
            path("run")
        );
        std::fs::write(path("containers.conf"), CONTAINERS_CONF).expect("write settings");
        std::fs::write(path("storage.conf"), storage).expect("write settings");
        Self { scratch }
    }

    fn command(&self, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(name);
        command
            .env("CONTAINERS_CONF", self.scratch.path().join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", self.scratch.path().join("storage.conf"))
            .env_remove("CONTAINER_HOST")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        self.command(name).args(arguments).output().unwrap_or_else(|err| panic!("run {name}: {err}"))
    }

    /// Makes a folder that every user may write to, as a volume.
    fn open_folder(&self, name: &str) -> PathBuf {
        let folder = self.scratch.path().join(name);
        std::fs::create_dir(&folder).expect("make a folder");
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .expect("open it");
        folder
    }

    /// Builds the image with the script that operators use.
    fn build(&self, tag: &str, model: Option<&Path>, libraries: &[PathBuf]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/image.sh");
        let mut command = self.command(script);
        command.args(["--tag", tag]).arg("--program").arg(program("baton-cloud").expect("it is built"));
        if let Some(model) = model {
            command.arg("--model").arg(model);
        }
        for library in libraries {
            command.arg("--library").arg(library);
        }
        let out = command.output().expect("run image.sh");
        assert!(out.status.success(), "image.sh: {}", String::from_utf8_lossy(&out.stderr));
    }
}

impl Drop for ContainerStorage {
    /// Removes all containers, also after a failed test.
    fn drop(&mut self) {
        // If this fails, the containers have ended, or podman prints the reason.
        let _ = self.command("podman").args(["rm", "--all", "--force", "--time", "0"]).output();
    }
}

/// The restrictions of the manifests, as options of `podman run`.
const CONFINED: &[&str] = &[
    "run",
    "--rm",
    "--network=host",
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
];

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
        .trim()
        .to_owned()
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or("no message")
}

/// Builds the image in new storage; the error says why this machine cannot do that.
fn ready(tag: &str, model: Option<&Path>, libraries: &[PathBuf]) -> Result<ContainerStorage, String> {
    for name in ["buildah", "podman", "runc"] {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        if !folders.any(|folder| folder.join(name).is_file()) {
            return Err(format!("no {name} (Debian's buildah, podman, runc, catatonit)"));
        }
    }
    let storage = ContainerStorage::open();
    let empty = storage.run("buildah", &["from", "scratch"]);
    if !empty.status.success() {
        return Err(format!("buildah does not work here: {}", last_line(&said(&empty))));
    }
    storage.build(tag, model, libraries);
    let mut arguments = CONFINED.to_vec();
    arguments.extend([tag, "--version"]);
    let out = storage.run("podman", &arguments);
    // 125 means that podman cannot run anything here. Any other failure is the image's.
    if out.status.code() == Some(125) {
        return Err(format!("podman cannot run a container here: {}", last_line(&said(&out))));
    }
    assert!(out.status.success(), "the image does not run: {}", said(&out));
    assert!(said(&out).contains(env!("CARGO_PKG_VERSION")), "{}", said(&out));
    Ok(storage)
}

/// A running container that serves.
struct Served {
    child: tokio::process::Child,
    base: String,
}

impl Served {
    async fn start(storage: &ContainerStorage, name: &str, more: &[&str], image: &[&str]) -> Self {
        let mut command = tokio::process::Command::from(storage.command("podman"));
        command.args(CONFINED).args(["--name", name, "--env"]).arg(format!("BATON_API_KEY={KEY}"));
        command.args(more).args(image).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("podman starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let line = tokio::time::timeout(LIMIT, lines.next_line()).await.expect("it starts in time");
        let line = line.expect("a line").expect("the container ended before it listened");
        let hello: Value = serde_json::from_str(&line).expect("an address");
        Self { child, base: hello["listening"].as_str().expect("an address").to_owned() }
    }

    async fn answer(&self) -> String {
        answer(&self.base).await
    }
}

/// Asks the chat API; returns the answer's text.
async fn answer(base: &str) -> String {
    let body = json!({
        "model": "default",
        "messages": [{ "role": "user", "content": "Who wrote the report?" }],
        "max_tokens": 8,
    });
    let request = http::client().post(format!("{base}/v1/chat/completions"));
    let reply = request.bearer_auth(KEY).json(&body).send().await.expect("it answers");
    assert_eq!(reply.status().as_u16(), 200);
    let reply: Value = reply.json().await.expect("an object");
    reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// Returns the words of the line of a /proc file that starts with `name`.
fn proc_line<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name));
    line.map(|line| line.split_whitespace().skip(1).collect()).unwrap_or_default()
}

/// Checks the container's first process as this kernel sees it: not root, no capability, nothing to write to.
fn check_confined(storage: &ContainerStorage, name: &str) {
    let out = storage.run("podman", &["inspect", "--format", "{{.State.Pid}}", name]);
    let pid: u32 = said(&out).parse().expect("a process id");
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("read /proc");
    let status = read("status");
    // Rootless podman maps the user to another user of the host, which is never root.
    assert!(proc_line(&status, "Uid").iter().all(|uid| *uid != "0"), "{status}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(proc_line(&status, set), ["0000000000000000"], "{set}");
    }
    assert_eq!(proc_line(&status, "NoNewPrivs"), ["1"]);
    let mounts = read("mountinfo");
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("a root is mounted");
    let options = root.split(' ').nth(5).unwrap_or_default();
    assert!(options.split(',').any(|option| option == "ro"), "{root}");
    let own: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/root") + "/bin").into_iter().flatten().collect();
    assert!(own.is_empty(), "the image holds other programs: {own:?}");
}

#[tokio::test]
async fn the_image_answers_read_only_and_as_nobody() {
    let tag = "localhost/baton-cloud-test:baked";
    let storage = match ready(tag, Some(&models_folder().join("demo-cloud.gguf")), &[]) {
        Ok(storage) => storage,
        Err(reason) => return println!("skipped: image: {reason}"),
    };
    let user = storage.run("podman", &["image", "inspect", "--format", "{{.Config.User}}", tag]);
    assert_eq!(said(&user), format!("{USER}:{USER}"));
    let serve = ["serve", "--listen=127.0.0.1:0", "--model=/models/model.gguf", "--json"];
    let data = storage.open_folder("data");
    let volume = format!("{}:/var/lib/baton", data.display());
    let more = ["--volume", &volume, "--env", "BATON_DATABASE=sqlite:///var/lib/baton/cloud.db"];
    let image: Vec<&str> = std::iter::once(tag).chain(serve).collect();
    let mut served = Served::start(&storage, "baton-image-baked", &more, &image).await;
    let answer = served.answer().await;
    assert!(!answer.trim().is_empty(), "the answer is empty");
    check_confined(&storage, "baton-image-baked");
    assert!(data.join("cloud.db").is_file(), "the database is on the volume");

    // SIGTERM reaches process 1, which then ends normally.
    let out = storage.run("podman", &["kill", "--signal", "TERM", "baton-image-baked"]);
    assert!(out.status.success(), "{}", said(&out));
    let status = tokio::time::timeout(LIMIT, served.child.wait()).await.expect("it ends").expect("a status");
    assert!(status.success(), "ended with {status}");
}

#[tokio::test]
async fn a_mounted_model_is_served_too() {
    let tag = "localhost/baton-cloud-test:plain";
    let storage = match ready(tag, None, &[]) {
        Ok(storage) => storage,
        Err(reason) => return println!("skipped: image: {reason}"),
    };
    let none = [tag, "serve", "--listen=127.0.0.1:0", "--model=/models/model.gguf", "--database=:memory:"];
    let out = storage.run("podman", &[CONFINED, &none].concat());
    assert!(!out.status.success() && said(&out).contains("/models/model.gguf"), "{}", said(&out));

    let volume = format!("{}:/models:ro", models_folder().canonicalize().expect("it is there").display());
    let image = [
        tag,
        "serve",
        "--listen=127.0.0.1:0",
        "--model=/models/demo-cloud.gguf",
        "--database=:memory:",
        "--json",
    ];
    let mut served = Served::start(&storage, "baton-image-mounted", &["--volume", &volume], &image).await;
    assert!(!served.answer().await.trim().is_empty(), "the answer is empty");
    let out = storage.run("podman", &["kill", "baton-image-mounted"]);
    assert!(out.status.success(), "{}", said(&out));
    tokio::time::timeout(LIMIT, served.child.wait()).await.expect("it ends").expect("a status");
}

/// Returns NVRTC and the library that it opens itself, if `BATON_NVRTC` names the first.
fn nvrtc() -> Result<[PathBuf; 2], String> {
    let given = std::env::var_os("BATON_NVRTC").filter(|path| !path.is_empty()).map(PathBuf::from);
    let library = given.ok_or("no NVRTC (`./x test gpu` fetches it, or BATON_NVRTC names it)")?;
    let folder = library.parent().ok_or("BATON_NVRTC names no file")?;
    let entries = std::fs::read_dir(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let is_opened = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libnvrtc-builtins.so.")
    };
    let opened = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_opened);
    Ok([library, opened.ok_or("NVRTC is without its built-in functions")?])
}

#[test]
fn an_image_for_gpus_holds_what_compiles_kernels() {
    const LOADER: &str = if cfg!(target_arch = "aarch64") {
        "/lib/ld-linux-aarch64.so.1"
    } else {
        "/lib64/ld-linux-x86-64.so.2"
    };
    let tag = "localhost/baton-cloud-test:gpu";
    let model = models_folder().join("demo-cloud.gguf");
    let made = nvrtc().and_then(|libraries| Ok((ready(tag, Some(&model), &libraries)?, libraries)));
    let (storage, libraries) = match made {
        Ok(made) => made,
        Err(reason) => return println!("skipped: image: {reason}"),
    };
    // The loader looks for them in its own folders: no variable names a folder.
    let variables = said(&storage.run("podman", &["image", "inspect", "--format", "{{.Config.Env}}", tag]));
    assert!(variables.contains("MALLOC_ARENA_MAX=4") && !variables.contains("LD_"), "{variables}");
    for library in &libraries {
        let path = format!("/usr/lib/{}", library.file_name().expect("a file").to_string_lossy());
        let list = ["--entrypoint", LOADER, tag, "--list", &path];
        let out = storage.run("podman", &[CONFINED, &list].concat());
        assert!(out.status.success() && !said(&out).contains("not found"), "{path}: {}", said(&out));
    }
    let serve = [
        "serve",
        "--gpu=cuda:0",
        "--model=/models/model.gguf",
        "--database=:memory:",
        "--listen=127.0.0.1:0",
    ];
    let out = storage.run("podman", &[CONFINED, &[tag], &serve].concat());
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(said(&out).contains("there is no GPU `cuda:0`"), "{}", said(&out));
}

/// Converts the Deployment of `dev-sqlite` for podman: on the loopback, with a folder as its volume, without
/// what only a cluster does (probes, preStop).
fn playable(rendered: &str, image: &str, data: &Path) -> String {
    let mut documents: Vec<Value> = serde_norway::Deserializer::from_str(rendered)
        .map(|document| Value::deserialize(document).expect("a document"))
        .filter(|object| object["kind"] == "ConfigMap" || object["kind"] == "Deployment")
        .collect();
    let deployment =
        documents.iter_mut().find(|object| object["kind"] == "Deployment").expect("a deployment");
    let spec = &mut deployment["spec"]["template"]["spec"];
    spec["hostNetwork"] = true.into();
    for volume in spec["volumes"].as_array_mut().expect("volumes") {
        if volume["persistentVolumeClaim"].is_object() {
            *volume = json!({ "name": volume["name"], "hostPath": { "path": data, "type": "Directory" } });
        }
    }
    let container = spec["containers"][0].as_object_mut().expect("a container");
    for only_a_cluster in ["ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"] {
        assert!(container.remove(only_a_cluster).is_some(), "the deployment has no {only_a_cluster}");
    }
    container.insert("image".into(), image.into());
    for argument in container["args"].as_array_mut().expect("arguments") {
        let text = argument.as_str().expect("text");
        if let Some((name, _)) = text.split_once("=0.0.0.0:") {
            *argument = format!("{name}=127.0.0.1:0").into();
        }
    }
    container["env"]
        .as_array_mut()
        .expect("variables")
        .push(json!({ "name": "BATON_API_KEY", "value": KEY }));
    let texts = documents.iter().map(|document| serde_norway::to_string(document).expect("YAML"));
    texts.collect::<Vec<_>>().join("---\n")
}

#[tokio::test]
async fn the_rendered_deployment_runs() {
    let Some(renderer) = kustomize::renderer() else {
        return println!("skipped: image: {}", kustomize::MISSING);
    };
    let tag = "localhost/baton-cloud-test:played";
    let storage = match ready(tag, Some(&models_folder().join("demo-cloud.gguf")), &[]) {
        Ok(storage) => storage,
        Err(reason) => return println!("skipped: image: {reason}"),
    };
    let overlay = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/overlays/dev-sqlite");
    let rendered = kustomize::render(renderer, &overlay).expect("it renders");
    let data = storage.open_folder("data");
    let file = storage.scratch.path().join("play.yaml");
    std::fs::write(&file, playable(&rendered, tag, &data)).expect("write the manifests");
    let file = file.display().to_string();
    let out = storage.run("podman", &["play", "kube", "--network=host", &file]);
    assert!(out.status.success(), "podman play kube: {}", said(&out));
    let name = "baton-cloud-pod-0-baton-cloud";
    let begun = std::time::Instant::now();
    let base = loop {
        let log = said(&storage.run("podman", &["logs", name]));
        if let Some(base) = log.lines().find_map(|line| line.strip_prefix("listening on ")) {
            break base.split_whitespace().next().expect("an address").to_owned();
        }
        assert!(begun.elapsed() < LIMIT, "it does not listen: {log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(!answer(&base).await.trim().is_empty(), "the answer is empty");
    check_confined(&storage, name);
    assert!(data.join("cloud.db").is_file(), "the database is on the volume");
    let out = storage.run("podman", &["play", "kube", "--down", &file]);
    assert!(out.status.success(), "podman play kube --down: {}", said(&out));
}
