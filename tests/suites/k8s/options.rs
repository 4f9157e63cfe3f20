//! The manifests agree with the program: its own parser reads their arguments and variables, and the real
//! program answers on the paths that they probe and scrape.

use std::{collections::BTreeSet, process::Stdio, time::Duration};

use baton_cloud::{
    cli::{Cli, Command},
    config::file,
};
use baton_e2e::{
    http,
    process::{cpu_program, models_folder},
};
use clap::{CommandFactory as _, Parser as _};
use k8s_openapi::api::core::v1::EnvVar;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{
    check,
    pods::{Pods, pods},
    render::{Render, renders},
};

/// Variables that the program reads through libraries, not through its own parser.
const LIBRARY_VARIABLES: &[&str] = &["RUST_LOG", "XDG_CACHE_HOME"];
/// Longest time for the program to print its address: a guard against hangs.
const START_LIMIT: Duration = Duration::from_secs(120);

/// What the pods of a Deployment serve, as the program understands it.
#[derive(Debug)]
pub(crate) struct Served {
    /// Name and number of each port, in the pod's order.
    pub listens: Vec<(&'static str, u16)>,
    /// How long running answers may continue after SIGTERM.
    pub drain: Duration,
    /// Address of the database.
    pub database: String,
}

/// Returns the options of a subcommand, or of one in another: the name without dashes, and the variable that
/// sets it.
pub(crate) fn known(subcommand: &str) -> Vec<(String, Option<String>)> {
    let cli = Cli::command();
    let command = subcommand.split(' ').fold(&cli, |command, name| {
        command.find_subcommand(name).unwrap_or_else(|| panic!("no subcommand `{subcommand}`"))
    });
    let options = command.get_arguments().filter_map(|arg| {
        let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        Some((arg.get_long()?.to_owned(), variable))
    });
    options.collect()
}

/// Returns a substitute for a value that only the cluster has.
fn value(variable: &EnvVar) -> Result<String, String> {
    if let Some(value) = &variable.value {
        return Ok(value.clone());
    }
    let from = variable.value_from.as_ref().ok_or_else(|| format!("{} has no value", variable.name))?;
    if let Some(secret) = &from.secret_key_ref {
        return match secret.key.as_str() {
            "database-url" => {
                Ok("postgres://baton:secret@postgres.example.com:5432/baton?sslmode=verify-full\
                                  &sslrootcert=/etc/baton-database/ca.crt"
                    .into())
            }
            other => Err(format!("nobody knows the key `{other}` of a Secret")),
        };
    }
    Err(format!("{} comes from elsewhere than a Secret", variable.name))
}

/// Returns the settings file that a pod mounts, as options, made by the program's own reader.
fn settings(render: &Render, pods: &Pods, path: &str) -> Result<Vec<String>, String> {
    let volumes = pods.spec.volumes.iter().flatten();
    let mut maps = volumes.filter_map(|volume| Some((&volume.name, volume.config_map.as_ref()?)));
    let (name, map) = maps.next().ok_or("no ConfigMap is mounted")?;
    let mut mounts = pods.container().volume_mounts.iter().flatten();
    let mount = mounts.find(|mount| mount.name == *name).ok_or("the ConfigMap is not mounted")?;
    let item = map.items.iter().flatten().find(|item| format!("{}/{}", mount.mount_path, item.path) == path);
    let item = item.ok_or_else(|| format!("nothing is mounted at `{path}`"))?;
    let object = render.of("ConfigMap").find(|object| object["metadata"]["name"] == *map.name);
    let text = object.and_then(|object| object["data"][&item.key].as_str());
    let text = text.ok_or_else(|| format!("no key `{}` in ConfigMap `{}`", item.key, map.name))?;
    let scratch = tempfile::tempdir().map_err(|err| err.to_string())?;
    let file = scratch.path().join("settings.yaml");
    std::fs::write(&file, text).map_err(|err| err.to_string())?;
    let words = file::words(&file, |_| file::Taken::One).map_err(|err| err.to_string())?;
    Ok(words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect())
}

/// Returns the command line of a pod, with its settings file and its variables as options.
fn words(render: &Render, pods: &Pods) -> Result<Vec<String>, String> {
    let container = pods.container();
    if container.command.is_some() {
        return Err("the image's entry point is replaced".into());
    }
    let args = container.args.clone().unwrap_or_default();
    let known = known(args.first().ok_or("no arguments")?);
    let mut words = vec!["baton-cloud".to_owned(), args[0].clone()];
    if let Some(path) = option(&args, "config") {
        words.extend(settings(render, pods, path)?);
    }
    words.extend(args.into_iter().skip(1));
    for variable in container.env.iter().flatten() {
        let value = value(variable)?;
        let option = known.iter().find(|(_, name)| name.as_deref() == Some(variable.name.as_str()));
        match option {
            Some((long, _)) => words.push(format!("--{long}={value}")),
            None if LIBRARY_VARIABLES.contains(&variable.name.as_str()) => (),
            None => return Err(format!("the program does not read the variable `{}`", variable.name)),
        }
    }
    Ok(words)
}

fn option<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
}

/// Reads a pod's command line as the program does.
///
/// # Errors
/// Fails with the program's own message if it would not start.
pub(crate) fn served(render: &Render, pods: &Pods) -> Result<Served, String> {
    let words = words(render, pods)?;
    let Command::Serve(serve) = Cli::try_parse_from(&words).map_err(|err| err.to_string())?.command else {
        return Err(format!("{} does not serve", pods.title));
    };
    let config = serve.options.check().map_err(|err| err.to_string())?;
    let mut listens = Vec::new();
    for (name, long) in [("http", "listen"), ("metrics", "metrics-listen")] {
        if let Some(address) = option(&words, long) {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            listens.push((name, port.ok_or_else(|| format!("`{address}` has no port"))?));
        }
    }
    let drain = config.edge.http.drain_timeout;
    let database = option(&words, "database").ok_or("no database")?.to_owned();
    Ok(Served { listens, drain, database })
}

#[test]
fn the_program_reads_every_command_line() {
    for render in renders() {
        let mut offences = Vec::new();
        for pods in pods(render).iter().filter(|pods| !pods.is_engine()) {
            let read = match pods.kind.as_str() {
                "Deployment" => served(render, pods).map(|_| ()),
                _ => words(render, pods)
                    .and_then(|words| Cli::try_parse_from(words).map(|_| ()).map_err(|err| err.to_string())),
            };
            offences.extend(read.err().map(|err| format!("{}: {err}", pods.title)));
        }
        check(&render.name, &offences);
    }
}

#[test]
fn what_does_not_exist_is_refused() {
    let Some(render) = renders().first() else { return };
    let with = |change: &dyn Fn(&mut Pods)| {
        let mut pods = pods(render).remove(0);
        change(&mut pods);
        served(render, &pods).err().unwrap_or_default()
    };
    assert_eq!(with(&|_| ()), "");
    let more = |arg: &str| {
        with(&|pods| {
            pods.spec.containers[0].args.get_or_insert_default().push(arg.to_owned());
        })
    };
    assert!(more("--no-such-option=1").contains("--no-such-option"));
    assert!(more("--prefix-cache=200").contains("--prefix-cache is 200"));
    let variable = with(&|pods| {
        let variable = EnvVar { name: "BATON_NO_SUCH".into(), value: Some("1".into()), ..EnvVar::default() };
        pods.spec.containers[0].env.get_or_insert_default().push(variable);
    });
    assert!(variable.contains("does not read the variable `BATON_NO_SUCH`"), "{variable}");
}

/// Returns the paths that a render requests from each port, with the port's name.
fn asked(render: &Render) -> BTreeSet<(&'static str, String)> {
    let mut asked = BTreeSet::new();
    for pods in pods(render).iter().filter(|pods| pods.kind == "Deployment" && !pods.is_engine()) {
        let container = pods.container();
        for probe in [&container.startup_probe, &container.readiness_probe, &container.liveness_probe] {
            let get =
                probe.as_ref().and_then(|probe| probe.http_get.as_ref()).expect("a probe asks over HTTP");
            asked.insert(("http", get.path.clone().unwrap_or_default()));
        }
    }
    for object in render.of("ServiceMonitor") {
        for endpoint in object["spec"]["endpoints"].as_array().into_iter().flatten() {
            asked.insert(("metrics", endpoint["path"].as_str().unwrap_or_default().to_owned()));
        }
    }
    asked
}

/// Returns the pod's own command line with the demo model and free ports of the loopback.
fn local(words: &[String]) -> Vec<String> {
    let model = models_folder().join("demo-cloud.gguf");
    let change = |word: &String| {
        Some(match word.split_once('=').map(|(name, _)| name) {
            // Its settings are already among the words.
            Some("--config") => return None,
            Some(name @ ("--listen" | "--metrics-listen")) => format!("{name}=127.0.0.1:0"),
            Some("--model") => format!("--model={}", model.display()),
            Some("--database") => "--database=:memory:".to_owned(),
            _ => word.clone(),
        })
    };
    words.iter().skip(1).filter_map(change).chain(["--json".to_owned()]).collect()
}

#[tokio::test]
async fn the_program_answers_on_the_paths_that_are_asked() {
    let Some(render) = renders().iter().find(|render| render.of("ServiceMonitor").count() > 0) else {
        return;
    };
    let pods = pods(render).remove(0);
    let words = words(render, &pods).expect("a command line");
    let mut child = tokio::process::Command::from(cpu_program("baton-cloud").expect("the program is built"))
        .args(local(&words))
        .env("RUST_LOG", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let line = tokio::time::timeout(START_LIMIT, lines.next_line()).await.expect("it starts in time");
    let hello: serde_json::Value =
        serde_json::from_str(&line.expect("a line").expect("an address")).expect("one object");
    let bases = [("http", &hello["listening"]), ("metrics", &hello["metrics"])];
    let client = http::client();
    for (port, path) in asked(render).into_iter().chain([("http", "/no-such-path".to_owned())]) {
        let base = bases.iter().find(|(name, _)| *name == port).and_then(|(_, base)| base.as_str());
        let base = base.map(|base| base.trim_end_matches("/metrics"));
        let base = base.unwrap_or_else(|| panic!("the program names no address of `{port}`: {hello}"));
        let reply = client.get(format!("{base}{path}")).send().await.expect("it answers");
        let want = if path == "/no-such-path" { 404 } else { 200 };
        assert_eq!(reply.status().as_u16(), want, "{port}{path}");
    }
    child.kill().await.expect("it is killed");
}
