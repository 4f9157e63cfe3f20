//! Manifests as written, and as kustomize renders them.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

use baton_e2e::kustomize;
use serde::Deserialize as _;
use serde_json::Value;

use super::{check, folder, read};

/// Components that every pod of the base may have; each is also rendered alone over the base.
const COMPONENTS: &[&str] = &[
    "gpu",
    "grafana-dashboard",
    "hpa",
    "httproute",
    "inferencepool",
    "ingress",
    "keda",
    "model-volume",
    "models-import",
    "opentelemetry",
    "postgres-ca",
    "prometheusrule",
    "servicemonitor",
    "sglang",
    "sqlite",
    "vllm",
];
const OVERLAYS: &[&str] = &["dev-sqlite", "edge-cpu", "prod-postgres"];

/// The result of one kustomization.
#[derive(Debug)]
pub(crate) struct Render {
    /// `overlays/NAME` or `base+NAME`.
    pub name: String,
    /// Its objects.
    pub objects: Vec<Value>,
}

impl Render {
    /// Returns the Jobs that migrate the database.
    pub(crate) fn migrations(&self) -> impl Iterator<Item = &Value> {
        let label = |job: &&Value| &job["metadata"]["labels"]["app.kubernetes.io/component"] == "migration";
        self.of("Job").filter(label)
    }

    /// Returns the objects of one kind.
    pub(crate) fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }
}

/// Returns `Kind/name`, for messages.
pub(crate) fn title(object: &Value) -> String {
    format!(
        "{}/{}",
        object["kind"].as_str().unwrap_or("?"),
        object["metadata"]["name"].as_str().unwrap_or("?")
    )
}

/// Returns the documents of a YAML text.
pub(crate) fn documents(text: &str, what: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap_or_else(|err| panic!("{what}: {err}")))
        .filter(|document| !document.is_null())
        .collect()
}

/// Returns every folder with a kustomization, and its content.
pub(crate) fn kustomizations() -> BTreeMap<PathBuf, Value> {
    fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, Value>) {
        for entry in std::fs::read_dir(folder).expect("list a folder") {
            let path = entry.expect("list a folder").path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.ends_with("kustomization.yaml") {
                let text = read(&path);
                let mut documents = documents(&text, &path.display().to_string());
                assert_eq!(documents.len(), 1, "{}", path.display());
                found.insert(folder.to_owned(), documents.remove(0));
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(&folder(), &mut found);
    found
}

/// Returns the strings of a list that may be missing.
pub(crate) fn strings<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    value[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the objects of every file that a kustomization lists as a resource, with the file.
pub(crate) fn written() -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    for (folder, kustomization) in kustomizations() {
        for resource in strings(&kustomization, "resources") {
            let path = folder.join(resource);
            if path.is_file() {
                let text = read(&path);
                let objects = documents(&text, &path.display().to_string());
                assert!(!objects.is_empty(), "{} is empty", path.display());
                found.extend(objects.into_iter().map(|object| (path.clone(), object)));
            }
        }
    }
    found
}

/// Renders every overlay, and each component over the base; empty if there is no renderer, which is printed
/// once.
pub(crate) fn renders() -> &'static [Render] {
    static RENDERS: OnceLock<Vec<Render>> = OnceLock::new();
    RENDERS.get_or_init(|| {
        let Some(renderer) = kustomize::renderer() else {
            println!("skipped: k8s: kustomize: {}", kustomize::MISSING);
            return Vec::new();
        };
        let scratch = tempfile::tempdir().expect("make a folder");
        let overlays =
            OVERLAYS.iter().map(|name| (format!("overlays/{name}"), folder().join("overlays").join(name)));
        let alone = COMPONENTS.iter().map(|name| (format!("base+{name}"), over_base(scratch.path(), name)));
        overlays.chain(alone).map(|(name, path)| render(renderer, name, &path)).collect()
    })
}

fn render(renderer: &[&str], name: String, path: &Path) -> Render {
    let text = kustomize::render(renderer, path).unwrap_or_else(|err| panic!("{name}: {err:#}"));
    Render { objects: documents(&text, &name), name }
}

/// Writes a kustomization of the base and one component; paths in it must be relative.
fn over_base(scratch: &Path, component: &str) -> PathBuf {
    let own = scratch.join(component).canonicalize().unwrap_or_else(|_| {
        std::fs::create_dir_all(scratch.join(component)).expect("make a folder");
        scratch.join(component).canonicalize().expect("it was just made")
    });
    let target = folder().canonicalize().expect("the manifests are there");
    let up = own.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| "..");
    let down = target.strip_prefix("/").expect("a canonical path is absolute");
    let path = up.collect::<PathBuf>().join(down);
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: baton\nresources:\n  - {0}/base\ncomponents:\n  - {0}/components/{component}\n",
        path.display()
    );
    std::fs::write(own.join("kustomization.yaml"), text).expect("write a kustomization");
    own
}

#[test]
fn every_folder_is_known_to_this_suite() {
    let listed = |kind: &str| -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder().join(kind))
            .expect("list a folder")
            .map(|entry| entry.expect("list a folder").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(listed("components"), COMPONENTS);
    assert_eq!(listed("overlays"), OVERLAYS);
}

#[test]
fn every_file_is_used_by_a_kustomization() {
    let kustomizations = kustomizations();
    let mut offences = Vec::new();
    for (folder, kustomization) in &kustomizations {
        let patches = kustomization["patches"].as_array().into_iter().flatten();
        let mut used: Vec<&str> = patches.filter_map(|patch| patch["path"].as_str()).collect();
        used.extend(strings(kustomization, "resources"));
        for generator in kustomization["configMapGenerator"].as_array().into_iter().flatten() {
            used.extend(strings(generator, "files").iter().filter_map(|file| file.split('=').next_back()));
        }
        let parts =
            strings(kustomization, "resources").into_iter().chain(strings(kustomization, "components"));
        for part in parts.chain(used.iter().copied()) {
            if !folder.join(part).exists() {
                offences.push(format!("{}: `{part}` is not there", folder.display()));
            }
        }
        // Rules and their tests are for promtool.
        if folder.ends_with("observability") {
            continue;
        }
        for entry in std::fs::read_dir(folder).expect("list a folder") {
            let name = entry.expect("list a folder").file_name().to_string_lossy().into_owned();
            if name != "kustomization.yaml" && !used.contains(&name.as_str()) {
                offences.push(format!("{}/{name} is not used", folder.display()));
            }
        }
    }
    check("kustomizations and their files", &offences);
}

#[test]
fn every_overlay_and_component_renders() {
    for render in renders() {
        let is_own =
            |object: &&Value| object["metadata"]["labels"]["app.kubernetes.io/component"] != "engine";
        let deployments = render.of("Deployment").filter(is_own).count();
        assert_eq!(deployments, 1, "{} has {deployments} deployments", render.name);
        let mut names: Vec<String> = render.objects.iter().map(title).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{} has an object twice", render.name);
    }
}
