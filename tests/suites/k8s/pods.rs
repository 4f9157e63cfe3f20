//! Pods: the user they run as, what they may use, how they are probed and how they end.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Container, PodSpec, Probe},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{
    check,
    options::{self, Served},
    render::{Render, renders, title},
    rules::selects,
    version,
};

/// The volume claims that the operator fills: see "Models", "Import" and "Engines" in the operator's page.
const MODEL_CLAIMS: [&str; 3] = ["baton-models", "engine-models", "models-source"];
/// Account of the pods of other people's engines.
const ENGINE_ACCOUNT: &str = "baton-engine";
/// The Secret that the operator makes, and its keys.
const SECRET: (&str, &[&str]) = ("baton-cloud", &["database-url", "database-ca.crt"]);

/// The pods of one Deployment or Job.
#[derive(Debug)]
pub(crate) struct Pods {
    /// `Kind/name`.
    pub title: String,
    /// `Deployment` or `Job`.
    pub kind: String,
    /// The template's labels.
    pub labels: BTreeMap<String, String>,
    /// The template's spec.
    pub spec: PodSpec,
}

impl Pods {
    /// Returns the only container.
    pub(crate) fn container(&self) -> &Container {
        assert_eq!(self.spec.containers.len(), 1, "{}", self.title);
        &self.spec.containers[0]
    }

    /// Returns whether they run another program than this project's.
    pub(crate) fn is_engine(&self) -> bool {
        self.labels.get("app.kubernetes.io/component").is_some_and(|part| part == "engine")
    }

    /// Returns the names of the container's ports.
    pub(crate) fn port_names(&self) -> BTreeSet<String> {
        self.container().ports.iter().flatten().filter_map(|port| port.name.clone()).collect()
    }

    /// Returns the number of a port.
    pub(crate) fn port(&self, name: &str) -> Option<i64> {
        let mut ports = self.container().ports.iter().flatten();
        ports.find(|port| port.name.as_deref() == Some(name)).map(|port| i64::from(port.container_port))
    }
}

/// Returns the pods of a render, Deployments first.
pub(crate) fn pods(render: &Render) -> Vec<Pods> {
    let template = |object: &Value| {
        let template = match object["kind"].as_str() {
            Some("Deployment") => {
                let typed: Deployment = serde_json::from_value(object.clone()).expect("it is of its type");
                typed.spec.expect("a spec").template
            }
            _ => {
                let typed: Job = serde_json::from_value(object.clone()).expect("it is of its type");
                typed.spec.expect("a spec").template
            }
        };
        Pods {
            title: title(object),
            kind: object["kind"].as_str().unwrap_or_default().to_owned(),
            labels: template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default(),
            spec: template.spec.expect("a pod has a spec"),
        }
    };
    render.of("Deployment").chain(render.of("Job")).map(template).collect()
}

#[track_caller]
fn hold(rule: &str, offence: impl Fn(&Render, &Pods, &mut Vec<String>)) {
    for render in renders() {
        let mut offences = Vec::new();
        for pods in &pods(render) {
            offence(render, pods, &mut offences);
        }
        check(&format!("{}: {rule}", render.name), &offences);
    }
}

/// Returns the only Deployment of a render, and what its pods serve.
fn served(render: &Render) -> (Deployment, Pods, Served) {
    let object = render.of("Deployment").next().expect("one deployment");
    let deployment = serde_json::from_value(object.clone()).expect("it is of its type");
    let pods = pods(render).remove(0);
    let served = options::served(render, &pods).unwrap_or_else(|err| panic!("{}: {err}", render.name));
    (deployment, pods, served)
}

#[test]
fn pods_may_do_nothing_that_they_need_not() {
    hold("security", |_, pods, offences| {
        let mut want = |holds: bool, what: &str| {
            if !holds {
                offences.push(format!("{}: {what}", pods.title));
            }
        };
        let pod = pods.spec.security_context.clone().unwrap_or_default();
        want(pod.run_as_non_root == Some(true), "may run as root");
        want(pod.run_as_user.is_some_and(|user| user >= 10_000), "names no user of its own");
        want(
            pod.seccomp_profile.is_some_and(|profile| profile.type_ == "RuntimeDefault"),
            "has no seccomp profile",
        );
        want(pods.spec.automount_service_account_token == Some(false), "gets a token of the API server");
        let account = if pods.is_engine() { ENGINE_ACCOUNT } else { "baton-cloud" };
        want(pods.spec.service_account_name.as_deref() == Some(account), "has no account of its own");
        let container = pods.container().security_context.clone().unwrap_or_default();
        want(container.read_only_root_filesystem == Some(true), "may write to its image");
        want(container.allow_privilege_escalation == Some(false), "may gain privileges");
        let capabilities = container.capabilities.unwrap_or_default();
        want(capabilities.drop == Some(vec!["ALL".to_owned()]), "keeps capabilities");
        want(capabilities.add.is_none(), "adds capabilities");
    });
}

#[test]
fn pods_name_what_they_use() {
    hold("resources", |_, pods, offences| {
        let resources = pods.container().resources.clone().unwrap_or_default();
        for (part, amounts) in [("requests", resources.requests), ("limits", resources.limits)] {
            for unit in ["cpu", "memory", "ephemeral-storage"] {
                if !amounts.as_ref().is_some_and(|amounts| amounts.contains_key(unit)) {
                    offences.push(format!("{}: no {unit} in {part}", pods.title));
                }
            }
        }
    });
}

#[test]
fn images_are_of_this_version() {
    hold("images", |_, pods, offences| {
        let image = pods.container().image.clone().unwrap_or_default();
        let tag = image.rsplit_once(':').map(|(_, tag)| tag).unwrap_or_default();
        if pods.is_engine() {
            if !tag.starts_with('v') {
                offences.push(format!("{}: `{image}` is of no version", pods.title));
            }
            return;
        }
        if image.rsplit_once(':').map(|(_, tag)| tag) != Some(version()) {
            offences.push(format!("{}: `{image}` is not of version {}", pods.title, version()));
        }
    });
    let name = format!("baton-cloud-migrate-{}", version().replace('.', "-"));
    for render in renders() {
        for job in render.migrations() {
            assert_eq!(job["metadata"]["name"], *name, "{}: a Job cannot be changed", render.name);
        }
    }
}

fn probe(container: Option<&Probe>) -> (&str, &IntOrString) {
    let get = container.and_then(|probe| probe.http_get.as_ref()).expect("a probe asks over HTTP");
    (get.path.as_deref().unwrap_or_default(), &get.port)
}

#[test]
fn probes_ask_what_they_are_for() {
    let port = IntOrString::String("http".into());
    for render in renders() {
        let (_, pods, _) = served(render);
        let container = pods.container();
        assert_eq!(probe(container.startup_probe.as_ref()), ("/healthz", &port), "{}", render.name);
        assert_eq!(probe(container.readiness_probe.as_ref()), ("/readyz", &port), "{}", render.name);
        assert_eq!(probe(container.liveness_probe.as_ref()), ("/healthz", &port), "{}", render.name);
        let startup = container.startup_probe.as_ref().expect("it was just read");
        let patience = startup.period_seconds.unwrap_or(10) * startup.failure_threshold.unwrap_or(3);
        assert!(patience >= 300, "{}: a large model has {patience} s to load", render.name);
    }
}

#[test]
fn ports_are_those_that_the_program_listens_on() {
    for render in renders() {
        let (_, pods, served) = served(render);
        let want: Vec<_> =
            served.listens.iter().map(|(name, port)| ((*name).to_owned(), i64::from(*port))).collect();
        let ports = pods.container().ports.iter().flatten();
        let has: Vec<_> = ports
            .map(|port| (port.name.clone().unwrap_or_default(), i64::from(port.container_port)))
            .collect();
        assert_eq!(has, want, "{}", render.name);
    }
}

#[test]
fn the_grace_period_covers_pre_stop_and_drain() {
    for render in renders() {
        let (_, pods, served) = served(render);
        let lifecycle = pods.container().lifecycle.clone().expect("a lifecycle");
        let sleep = lifecycle.pre_stop.and_then(|handler| handler.sleep).expect("preStop sleeps").seconds;
        let grace = pods.spec.termination_grace_period_seconds.expect("a grace period");
        let drain = i64::try_from(served.drain.as_secs()).expect("a drain is short");
        assert!(sleep >= 5, "{}: endpoints need time to be forgotten", render.name);
        assert!(
            grace > sleep + drain,
            "{}: grace {grace} s, preStop {sleep} s, drain {drain} s",
            render.name
        );
    }
}

#[test]
fn replicas_follow_the_database_and_the_autoscaler() {
    for render in renders() {
        let (deployment, pods, served) = served(render);
        let spec = deployment.spec.expect("a spec");
        let scaled = render.of("ScaledObject").chain(render.of("HorizontalPodAutoscaler")).count();
        assert!(scaled <= 1, "{}: two autoscalers pull at one deployment", render.name);
        let strategy = spec.strategy.and_then(|strategy| strategy.type_).unwrap_or_default();
        let job = render.migrations().count();
        if served.database.starts_with("sqlite:") {
            assert_eq!((spec.replicas, strategy.as_str(), job), (Some(1), "Recreate", 0), "{}", render.name);
            let file = served.database.trim_start_matches("sqlite://");
            let mounts = pods.container().volume_mounts.clone().unwrap_or_default();
            let on_volume = mounts.iter().any(|mount| file.starts_with(&format!("{}/", mount.mount_path)));
            assert!(on_volume, "{}: `{file}` is not on a volume", render.name);
        } else {
            let replicas = if scaled == 1 { None } else { Some(2) };
            assert_eq!(
                (spec.replicas, strategy.as_str(), job),
                (replicas, "RollingUpdate", 1),
                "{}",
                render.name
            );
        }
    }
}

#[test]
fn replicas_are_spread_and_selected_by_their_labels() {
    for render in renders() {
        let (deployment, pods, _) = served(render);
        let selector = deployment.spec.expect("a spec").selector.match_labels.unwrap_or_default();
        assert!(!selector.is_empty() && selects(&selector, &pods.labels), "{}", render.name);
        let spread = pods.spec.topology_spread_constraints.clone().unwrap_or_default();
        let keys: Vec<&str> = spread.iter().map(|one| one.topology_key.as_str()).collect();
        let one_node = render.name == "overlays/edge-cpu";
        let want: &[&str] =
            if one_node { &[] } else { &["topology.kubernetes.io/zone", "kubernetes.io/hostname"] };
        assert_eq!(keys, want, "{}", render.name);
        for one in &spread {
            let labels = one.label_selector.clone().and_then(|selector| selector.match_labels);
            assert_eq!(labels.as_ref(), Some(&selector), "{}", render.name);
        }
    }
}

#[test]
fn volumes_are_there_and_used() {
    hold("volumes", |render, pods, offences| {
        let volumes = pods.spec.volumes.clone().unwrap_or_default();
        let mounts = pods.container().volume_mounts.clone().unwrap_or_default();
        let has: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        let uses: BTreeSet<&str> = mounts.iter().map(|mount| mount.name.as_str()).collect();
        if has != uses {
            offences.push(format!("{}: volumes {has:?}, mounts {uses:?}", pods.title));
        }
        for claim in volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
            let own = render
                .of("PersistentVolumeClaim")
                .any(|object| object["metadata"]["name"] == *claim.claim_name);
            if !own && !MODEL_CLAIMS.contains(&claim.claim_name.as_str()) {
                offences.push(format!("{}: nobody makes the claim `{}`", pods.title, claim.claim_name));
            }
        }
    });
}

/// An engine's Service is where the service's own option says, and takes the time that a large model needs.
#[test]
fn engines_are_where_the_service_asks_them() {
    let mut looked_at = 0;
    for render in renders() {
        let all = pods(render);
        for engine in all.iter().filter(|pods| pods.is_engine()) {
            let name = &engine.labels["app.kubernetes.io/name"];
            let port = engine.port("http").expect("an engine has a port");
            let (_, service, _) = served(render);
            let mut variables = service.container().env.iter().flatten();
            let upstream = variables.find(|variable| variable.name == "BATON_UPSTREAM").expect("it is asked");
            let want = format!("baton=http://{name}:{port}");
            assert_eq!(upstream.value.as_deref(), Some(want.as_str()), "{}", render.name);
            let container = engine.container();
            let startup = container.startup_probe.as_ref().expect("a startup probe");
            assert_eq!(probe(Some(startup)).0, "/health", "{}", render.name);
            let patience = startup.period_seconds.unwrap_or(10) * startup.failure_threshold.unwrap_or(3);
            assert!(patience >= 1200, "{}: a large model has {patience} s to load", render.name);
            let limits = container.resources.clone().and_then(|resources| resources.limits);
            assert!(limits.is_some_and(|limits| limits.contains_key("nvidia.com/gpu")), "{}", render.name);
            looked_at += 1;
        }
    }
    assert!(looked_at > 0 || renders().is_empty(), "no render has an engine");
}

/// The image has no home, and its files cannot be changed. Without a folder of their own a GPU's kernels
/// would be compiled at each start.
#[test]
fn kernels_of_a_gpu_are_kept_on_a_volume() {
    let mut looked_at = 0;
    for render in renders() {
        let pods = pods(render).remove(0);
        let value = |name: &str| {
            let mut variables = pods.container().env.iter().flatten();
            variables.find(|variable| variable.name == name).and_then(|variable| variable.value.as_deref())
        };
        let cache = value("XDG_CACHE_HOME");
        assert_eq!(cache.is_some(), value("BATON_GPU").is_some(), "{}", render.name);
        let Some(cache) = cache else { continue };
        let mut mounts = pods.container().volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| mount.mount_path == cache && mount.read_only != Some(true));
        let mount = mount.unwrap_or_else(|| panic!("{}: nothing to write to at {cache}", render.name));
        let mut volumes = pods.spec.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name).expect("every volume is there");
        let is_bounded = volume.empty_dir.as_ref().is_some_and(|folder| folder.size_limit.is_some());
        assert!(is_bounded, "{}: {volume:?}", render.name);
        looked_at += 1;
    }
    assert!(looked_at > 0 || renders().is_empty(), "no render has a GPU");
}

#[test]
fn secrets_are_named_and_never_written() {
    for render in renders() {
        assert_eq!(render.of("Secret").count(), 0, "{}: a secret stands in the sources", render.name);
    }
    hold("references", |_, pods, offences| {
        for variable in pods.container().env.iter().flatten() {
            let Some(from) = &variable.value_from else { continue };
            if let Some(secret) = &from.secret_key_ref
                && (secret.name != SECRET.0 || !SECRET.1.contains(&secret.key.as_str()))
            {
                offences.push(format!("{}: Secret `{}` key `{}`", pods.title, secret.name, secret.key));
            }
        }
        for secret in pods.spec.volumes.iter().flatten().filter_map(|volume| volume.secret.as_ref()) {
            let name = secret.secret_name.as_deref().unwrap_or_default();
            // Only the named keys are mounted; the password is not mounted beside the certificate.
            let keys: Vec<&str> = secret.items.iter().flatten().map(|item| item.key.as_str()).collect();
            if name != SECRET.0 || keys.is_empty() || keys.iter().any(|key| !SECRET.1.contains(key)) {
                offences.push(format!("{}: Secret `{name}` keys {keys:?} as files", pods.title));
            }
        }
    });
}

#[test]
fn the_authority_of_postgres_is_where_the_page_says() {
    let page = super::read(&super::folder().join("README.md"));
    let named = page.split("sslrootcert=").nth(1).and_then(|text| text.split(['\'', '`', '&']).next());
    let named = named.expect("the page shows an address with sslrootcert");
    for render in renders()
        .iter()
        .filter(|render| render.name.ends_with("postgres-ca") || render.name.ends_with("prod-postgres"))
    {
        for pods in pods(render) {
            let volumes = pods.spec.volumes.iter().flatten();
            let secret = volumes.clone().find_map(|volume| Some((&volume.name, volume.secret.as_ref()?)));
            let (volume, secret) =
                secret.unwrap_or_else(|| panic!("{}: {} has it not", render.name, pods.title));
            let mount = pods.container().volume_mounts.iter().flatten().find(|mount| mount.name == *volume);
            let mount = mount.expect("every volume is mounted");
            let mut files =
                secret.items.iter().flatten().map(|item| format!("{}/{}", mount.mount_path, item.path));
            assert_eq!(files.next().as_deref(), Some(named), "{}: {}", render.name, pods.title);
        }
    }
}
