//! Walls between packages, and the licences of what they stand on.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};

use super::{check, top};

/// What each package of ours may reach, tests aside: the table of ARCHITECTURE.md, and what stands below.
const ALLOWED: &[(&str, &[&str])] = &[
    ("baton-kernels-cpu", &[]),
    ("baton-protocol", &[]),
    ("baton-edge", &[]),
    ("baton-pacing", &[]),
    ("baton-plan", &[]),
    ("baton-random", &[]),
    ("baton-corpus", &["baton-random"]),
    ("baton-longbench", &[]),
    ("baton-terminal", &[]),
    ("baton-openai", &["baton-protocol"]),
    ("baton-refine", &["baton-protocol"]),
    ("baton-registry", &["baton-protocol"]),
    ("baton-kernels-gpu", &["baton-kernels-cpu", "baton-random"]),
    ("baton-kernels-cuda", &["baton-kernels-cpu", "baton-kernels-gpu", "baton-random"]),
    ("baton-kernels-wgpu", &["baton-kernels-cpu", "baton-kernels-gpu", "baton-random"]),
    ("baton-engine", &["baton-kernels-cpu", "baton-kernels-gpu", "baton-random"]),
    (
        "baton-generate",
        &["baton-engine", "baton-kernels-cpu", "baton-kernels-gpu", "baton-pacing", "baton-random"],
    ),
    (
        "baton-constrain",
        &[
            "baton-engine",
            "baton-generate",
            "baton-kernels-cpu",
            "baton-kernels-gpu",
            "baton-openai",
            "baton-pacing",
            "baton-protocol",
            "baton-random",
        ],
    ),
    (
        "baton-gpu",
        &[
            "baton-engine",
            "baton-kernels-cpu",
            "baton-kernels-cuda",
            "baton-kernels-gpu",
            "baton-kernels-wgpu",
            "baton-random",
            "baton-terminal",
        ],
    ),
    ("baton-import", &["baton-engine", "baton-kernels-cpu", "baton-kernels-gpu", "baton-random"]),
    ("baton-synthetic", &["baton-engine", "baton-kernels-cpu", "baton-kernels-gpu", "baton-random"]),
    ("baton-baselines", &["baton-protocol", "baton-random", "baton-refine"]),
    (
        "baton-ring",
        &[
            "baton-engine",
            "baton-kernels-cpu",
            "baton-kernels-gpu",
            "baton-plan",
            "baton-random",
            "baton-terminal",
        ],
    ),
    (
        "baton-cloud",
        &[
            "baton-constrain",
            "baton-corpus",
            "baton-edge",
            "baton-engine",
            "baton-generate",
            "baton-import",
            "baton-openai",
            "baton-protocol",
            "baton-random",
            "baton-refine",
            "baton-registry",
            "baton-pacing",
            "baton-gpu",
            "baton-kernels-cpu",
            "baton-kernels-cuda",
            "baton-kernels-gpu",
            "baton-kernels-wgpu",
            "baton-terminal",
        ],
    ),
    (
        "baton-device",
        &[
            "baton-constrain",
            "baton-edge",
            "baton-engine",
            "baton-generate",
            "baton-import",
            "baton-openai",
            "baton-protocol",
            "baton-random",
            "baton-refine",
            "baton-registry",
            "baton-pacing",
            "baton-plan",
            "baton-ring",
            "baton-gpu",
            "baton-kernels-cpu",
            "baton-kernels-cuda",
            "baton-kernels-gpu",
            "baton-kernels-wgpu",
            "baton-terminal",
        ],
    ),
];

/// Packages below the two programs: pure or synchronous, so none of these may be reached from them.
const BELOW: &[&str] = &[
    "baton-gpu",
    "baton-kernels-cpu",
    "baton-kernels-cuda",
    "baton-kernels-gpu",
    "baton-kernels-wgpu",
    "baton-protocol",
    "baton-openai",
    "baton-pacing",
    "baton-plan",
    "baton-ring",
    "baton-random",
    "baton-refine",
    "baton-registry",
    "baton-engine",
    "baton-generate",
    "baton-constrain",
    "baton-import",
    "baton-corpus",
    "baton-synthetic",
    "baton-baselines",
    "baton-longbench",
    "baton-terminal",
];
const KEPT_ABOVE: &[&str] = &["tokio", "axum", "sqlx", "reqwest", "hyper"];

/// Licences a dependency may offer; each is one that lets a product be shipped with a notice alone.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The text of a file of the project.
fn read(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap_or_else(|err| panic!("read {path}: {err}"))
}

/// The workspace as it is built on this machine: what only other systems need is not looked at, nor
/// downloaded.
fn metadata() -> Metadata {
    let out = std::process::Command::new("rustc").arg("-vV").output().expect("run rustc");
    let about = String::from_utf8(out.stdout).expect("rustc speaks UTF-8");
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    MetadataCommand::new()
        .current_dir(top())
        .other_options(["--locked", "--offline", "--filter-platform", host].map(str::to_owned))
        .exec()
        .expect("read the workspace by cargo metadata")
}

/// Names of every package that `package` reaches by normal and build dependencies.
fn reached(metadata: &Metadata, package: &str) -> BTreeSet<String> {
    let resolve = metadata.resolve.as_ref().expect("cargo metadata resolves the workspace");
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let root = metadata.workspace_packages().into_iter().find(|found| found.name.as_str() == package);
    let root = root.unwrap_or_else(|| panic!("the workspace has no package `{package}`"));
    let mut open = vec![&root.id];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        for dependency in &nodes[id].deps {
            let dev_only = dependency.dep_kinds.iter().all(|kind| kind.kind == DependencyKind::Development);
            if !dev_only && seen.insert(&dependency.pkg) {
                open.push(&dependency.pkg);
            }
        }
    }
    seen.into_iter().map(|id| metadata[id].name.to_string()).collect()
}

#[test]
fn packages_depend_only_downwards() {
    let metadata = metadata();
    let ours: BTreeSet<String> =
        metadata.workspace_packages().iter().map(|found| found.name.to_string()).collect();
    let mut offences = Vec::new();
    for &(package, allowed) in ALLOWED {
        for name in reached(&metadata, package) {
            if ours.contains(&name) && !allowed.contains(&name.as_str()) {
                offences.push(format!("{package} reaches {name}"));
            }
        }
    }
    check("a package reaches one that it may not depend on", &offences);
}

#[test]
fn async_and_sql_stay_in_the_programs() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for &package in BELOW {
        let reached = reached(&metadata, package);
        offences.extend(
            KEPT_ABOVE
                .iter()
                .filter(|&&name| reached.contains(name))
                .map(|name| format!("{package} reaches {name}")),
        );
    }
    check("an async or SQL crate stands below the programs", &offences);
}

#[test]
fn products_build_without_a_solver_or_a_reference() {
    let metadata = metadata();
    let mut offences = Vec::new();
    // Both programs import models by candle-core, and Halda's solver is built in where it is asked for. The
    // cloud runs without the solver, and the engine without both.
    let no_foreign: &[&str] = &["onig", "openssl-sys"];
    let no_solver: &[&str] = &["highs", "highs-sys", "onig", "openssl-sys"];
    let by_default = |package: &&cargo_metadata::Package| package.name.as_str() == "baton-plan";
    let planner =
        metadata.packages.iter().find(by_default).expect("the planner is a package of the workspace");
    assert!(!planner.features.contains_key("default"), "the planner's solver must be asked for");
    let no_reference: &[&str] = &["highs", "highs-sys", "candle-core", "onig", "openssl-sys"];
    for (program, kept_out) in
        [("baton-cloud", no_solver), ("baton-engine", no_reference), ("baton-device", no_foreign)]
    {
        let reached = reached(&metadata, program);
        offences.extend(
            kept_out
                .iter()
                .filter(|&&name| reached.contains(name))
                .map(|name| format!("{program} reaches {name}")),
        );
    }
    check("a product reaches a crate that only benches or other builds may use", &offences);
}

/// The harness is in the demo, which is built without GPU kernels: their libraries take minutes to build.
#[test]
fn only_suites_of_the_harness_use_gpus() {
    let metadata = metadata();
    let harness = metadata.packages.iter().find(|package| package.name.as_str() == "baton-e2e");
    let harness = harness.expect("the harness is a package of the workspace");
    let kernels = ["baton-gpu", "baton-kernels-cuda", "baton-kernels-wgpu"];
    let used = harness.dependencies.iter().filter(|used| kernels.contains(&used.name.as_str()));
    let offences: Vec<String> = used
        .filter(|used| used.kind != DependencyKind::Development)
        .map(|used| format!("baton-e2e depends on {}", used.name))
        .collect();
    check("the demo would be built with GPU kernels", &offences);
}

/// The names, versions and checksums that a lock file has from a registry.
fn registry_packages(lock: &str) -> Vec<&str> {
    lock.split("[[package]]\n")
        .skip(1)
        .filter(|package| package.contains("\nchecksum = "))
        .map(|package| package.split("\ndependencies = ").next().unwrap_or(package).trim())
        .collect()
}

/// `xtask` is a workspace of its own, which `cargo metadata` of the project does not show. Licences and
/// sources are checked for the project, so `xtask` may use only the very packages that the project uses.
#[test]
fn the_entry_point_uses_what_the_project_uses() {
    let (project, own) = (read("Cargo.lock"), read("xtask/Cargo.lock"));
    let wanted = registry_packages(&project);
    let strange: Vec<&str> =
        registry_packages(&own).into_iter().filter(|package| !wanted.contains(package)).collect();
    assert!(strange.is_empty(), "xtask uses what the project does not use: {strange:?}");
}

/// The settings in a section of a manifest, without comments.
fn section<'a>(manifest: &'a str, head: &str) -> Vec<&'a str> {
    let lines = manifest.lines().skip_while(|line| *line != head).skip(1);
    let own = lines.take_while(|line| !line.starts_with('['));
    own.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn the_entry_point_has_the_lints_of_the_project() {
    let (project, own) = (read("Cargo.toml"), read("xtask/Cargo.toml"));
    for lints in ["rust", "clippy"] {
        let wanted = section(&project, &format!("[workspace.lints.{lints}]"));
        assert!(!wanted.is_empty(), "Cargo.toml has no lints of {lints}");
        let found = section(&own, &format!("[lints.{lints}]"));
        assert_eq!(found, wanted, "the lints of {lints} in xtask/Cargo.toml are not those of Cargo.toml");
    }
}

#[test]
fn a_section_of_a_manifest_ends_at_the_next() {
    let manifest = "[a]\none = 1\n\n# two\ntwo = 2\n[b]\nthree = 3\n";
    assert_eq!(section(manifest, "[a]"), ["one = 1", "two = 2"]);
    assert_eq!(section(manifest, "[b]"), ["three = 3"]);
    assert!(section(manifest, "[c]").is_empty());
}

#[test]
fn licences_are_on_the_list() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for package in &metadata.packages {
        let Some(licence) = &package.license else {
            if package.license_file.is_none() {
                offences.push(format!("{} {} names no licence", package.name, package.version));
            }
            continue;
        };
        let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .unwrap_or_else(|err| panic!("{}: licence `{licence}`: {err}", package.name));
        if !expression.evaluate(|required| LICENCES.contains(&required.to_string().as_str())) {
            offences.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    check("a dependency's licence is not on the list", &offences);
}

#[test]
fn one_version_of_each_named_library() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for name in
        ["axum", "tokio", "reqwest", "sqlx", "tokenizers", "candle-core", "memmap2", "flate2", "minijinja"]
    {
        let count = metadata.packages.iter().filter(|package| package.name.as_str() == name).count();
        if count > 1 {
            offences.push(format!("{name}: {count} versions"));
        }
    }
    check("a named library is there in more than one version", &offences);
}
