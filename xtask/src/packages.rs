//! The packages of the project and their suites, as `cargo metadata` tells them: nothing is built, nothing is
//! fetched.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    json::Json as _,
    outcome::{Outcome, Stop},
    process,
};

/// This program's package: a workspace of its own.
pub(crate) const OWN: &str = "xtask";

/// What a suite tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The unit tests of a library.
    Library,
    /// The unit tests of a program.
    Program,
    /// An integration test.
    Integration,
}

/// One test program. The order is that in which suites run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Suite {
    /// The package's name.
    pub(crate) package: String,
    /// What is tested.
    pub(crate) kind: Kind,
    /// The name of the library, the program or the integration test, as cargo knows it.
    pub(crate) target: String,
    /// The package's folder.
    folder: PathBuf,
}

impl Suite {
    /// The name that people use. Unit tests go by their package's name, those of a program with `-bin` behind
    /// it, and integration tests by their own name. Several suites may have one name.
    pub(crate) fn name(&self) -> String {
        let name = self.target.replace('-', "_");
        let name = name.strip_prefix("baton_").unwrap_or(&name);
        if self.kind == Kind::Program { format!("{name}-bin") } else { name.to_owned() }
    }

    /// Whether the package's folder is this one, or lies below it; relative to the top of the checkout.
    pub(crate) fn is_below(&self, folder: &Path) -> bool {
        self.folder.strip_prefix(process::top()).is_ok_and(|own| own.starts_with(folder))
    }
}

/// A package of the project.
#[derive(Debug)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// The programs that it builds.
    pub(crate) programs: Vec<String>,
    /// Its test programs.
    pub(crate) suites: Vec<Suite>,
    /// Its features, and what each switches on.
    features: BTreeMap<String, Vec<String>>,
    /// What it depends on by name, and the features that it asks for there.
    uses: Vec<(String, Vec<String>)>,
}

/// Reads the packages of the project, with this program's own.
///
/// # Errors
/// Cargo cannot read a manifest.
pub(crate) fn read() -> Outcome<Vec<Package>> {
    let mut cargo = process::command("cargo");
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let text = process::read(&mut cargo)?;
    let metadata =
        serde_json::from_str::<Value>(&text).map_err(|err| Stop::failed(format!("cargo metadata: {err}")))?;
    let found = metadata["packages"].list();
    let mut packages: Vec<Package> = found.iter().map(Package::from_metadata).collect();
    packages.push(own());
    Ok(packages)
}

/// The package of this program, which the workspace does not have.
fn own() -> Package {
    let folder = process::top().join(OWN);
    let unit_tests = Suite { package: OWN.to_owned(), kind: Kind::Program, target: OWN.to_owned(), folder };
    Package {
        name: OWN.to_owned(),
        programs: vec![OWN.to_owned()],
        suites: vec![unit_tests],
        features: BTreeMap::new(),
        uses: Vec::new(),
    }
}

/// Every suite, in the order in which they run.
pub(crate) fn suites(packages: &[Package]) -> Vec<Suite> {
    let mut suites: Vec<Suite> = packages.iter().flat_map(|package| package.suites.iter().cloned()).collect();
    suites.sort();
    suites
}

/// The features of `package` that other packages switch on by default, so that a build of it alone has the
/// same tests as a build of all.
pub(crate) fn features_from_others(packages: &[Package], package: &Package) -> Vec<String> {
    let mut asked = BTreeSet::new();
    for other in packages.iter().filter(|other| other.name != package.name) {
        for (name, features) in &other.uses {
            if *name == package.name {
                asked.extend(features.iter().cloned());
            }
        }
        for feature in other.default_features() {
            let named = feature.split_once('/');
            if let Some((_, feature)) = named.filter(|(name, _)| name.trim_end_matches('?') == package.name) {
                asked.insert(feature.to_owned());
            }
        }
    }
    asked.into_iter().filter(|feature| package.features.contains_key(feature)).collect()
}

impl Package {
    fn from_metadata(found: &Value) -> Self {
        let name = found["name"].text().to_owned();
        let folder = folder_of(found);
        let mut programs = Vec::new();
        let mut suites = Vec::new();
        for target in found["targets"].list() {
            let own_name = target["name"].text().to_owned();
            let Some(kind) = kind_of(target) else { continue };
            if kind == Kind::Program {
                programs.push(own_name.clone());
            }
            if target["test"] == true {
                suites.push(Suite { package: name.clone(), kind, target: own_name, folder: folder.clone() });
            }
        }
        let features = match &found["features"] {
            Value::Object(fields) => fields.iter().map(|(name, on)| (name.clone(), on.texts())).collect(),
            _ => BTreeMap::new(),
        };
        let used = |one: &Value| (one["name"].text().to_owned(), one["features"].texts());
        let uses = found["dependencies"].list().iter().map(used).collect();
        Self { name, programs, suites, features, uses }
    }

    /// The names of the packages that it depends on.
    pub(crate) fn uses(&self) -> impl Iterator<Item = &str> {
        self.uses.iter().map(|(name, _)| name.as_str())
    }

    /// What its default features switch on, of its own and of others.
    fn default_features(&self) -> BTreeSet<&str> {
        let mut open = vec!["default"];
        let mut on = BTreeSet::new();
        while let Some(feature) = open.pop() {
            if on.insert(feature) {
                open.extend(self.features.get(feature).into_iter().flatten().map(String::as_str));
            }
        }
        on
    }
}

/// The suite and the program that one of cargo's messages tells of, if it tells of a built test program.
pub(crate) fn built_suite(message: &Value, known: &[Suite]) -> Option<(Suite, PathBuf)> {
    let program = message["executable"].text();
    if program.is_empty() || message["profile"]["test"] != true {
        return None;
    }
    let (folder, target) = (folder_of(message), &message["target"]);
    let kind = kind_of(target)?;
    let name = target["name"].text();
    let is_it = |suite: &&Suite| suite.kind == kind && suite.target == name && suite.folder == folder;
    Some((known.iter().find(is_it)?.clone(), PathBuf::from(program)))
}

fn folder_of(found: &Value) -> PathBuf {
    let manifest = Path::new(found["manifest_path"].text());
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// What the tests of a target test; none of examples, benches and build scripts.
fn kind_of(target: &Value) -> Option<Kind> {
    match target["kind"].texts().first()?.as_str() {
        "bin" => Some(Kind::Program),
        "test" => Some(Kind::Integration),
        "example" | "bench" | "custom-build" => None,
        _ => Some(Kind::Library),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packages, as cargo writes them.
    fn sample() -> Vec<Package> {
        let folder = process::top().join("shared/plan").display().to_string();
        let text = r#"[
          {"name": "baton-plan", "manifest_path": "FOLDER/Cargo.toml", "features": {"halda": ["dep:highs"]},
           "dependencies": [{"name": "serde", "features": ["derive"]}],
           "targets": [{"kind": ["lib"], "name": "baton_plan", "test": true},
                       {"kind": ["example"], "name": "speed", "test": false}]},
          {"name": "baton-device", "manifest_path": "/device/Cargo.toml",
           "features": {"default": ["ilp"], "ilp": ["baton-plan/halda"], "cuda": ["baton-plan/other"]},
           "dependencies": [{"name": "baton-plan", "features": []}],
           "targets": [{"kind": ["test"], "name": "ring", "test": true},
                       {"kind": ["bin"], "name": "baton", "test": true},
                       {"kind": ["bin"], "name": "baton-demo", "test": true},
                       {"kind": ["lib"], "name": "baton_device", "test": true}]}
        ]"#;
        let packages = serde_json::from_str::<Value>(&text.replace("FOLDER", &folder)).unwrap();
        packages.list().iter().map(Package::from_metadata).collect()
    }

    #[test]
    fn suites_have_names_and_an_order() {
        let names: Vec<String> = suites(&sample()).iter().map(Suite::name).collect();
        assert_eq!(names, ["device", "baton-bin", "demo-bin", "ring", "plan"]);
    }

    #[test]
    fn suites_know_their_folder() {
        let packages = sample();
        let plan = &packages[0].suites[0];
        let cases = [("shared", true), ("shared/plan", true), ("sha", false), ("device", false)];
        for (folder, is_below) in cases {
            assert_eq!(plan.is_below(Path::new(folder)), is_below, "{folder}");
        }
    }

    #[test]
    fn features_that_others_ask_for_by_default_are_known() {
        let packages = sample();
        assert_eq!(features_from_others(&packages, &packages[0]), ["halda"]);
        assert!(features_from_others(&packages, &packages[1]).is_empty());
    }

    #[test]
    fn messages_of_test_programs_are_understood() {
        let known = suites(&sample());
        let message = |test: bool, kind: &str| {
            let text = format!(
                r#"{{"reason": "compiler-artifact", "manifest_path": "/device/Cargo.toml",
                    "executable": "/deps/baton-1", "target": {{"kind": ["{kind}"], "name": "baton"}},
                    "profile": {{"test": {test}}}}}"#
            );
            built_suite(&serde_json::from_str::<Value>(&text).unwrap(), &known)
        };
        let (suite, program) = message(true, "bin").unwrap();
        assert_eq!((suite.name().as_str(), program.as_path()), ("baton-bin", Path::new("/deps/baton-1")));
        assert!(message(false, "bin").is_none());
        assert!(message(true, "test").is_none());
    }
}
