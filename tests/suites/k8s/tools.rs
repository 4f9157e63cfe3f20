//! External checkers: kubernetes-validate and checkov on everything rendered, promtool on the rules.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{folder, render::renders, scaling::rule_files};

/// API groups of Kubernetes itself; kubernetes-validate has no schema of others.
const OWN_GROUPS: &[&str] =
    &["apps/v1", "autoscaling/v2", "batch/v1", "networking.k8s.io/v1", "policy/v1", "v1"];

/// Finds a program in the folder that `./x k8s` fills, or in the path; if it is missing, prints the reason
/// once.
fn tool(name: &str, wanted: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().expect("the running program has a path");
    let installed = own.ancestors().nth(3).map(|target| target.join("k8s-tools/bin").join(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = installed
        .into_iter()
        .chain(std::env::split_paths(&path).map(|folder| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: k8s: {name}: not here ({wanted})");
    }
    found
}

fn run(program: &Path, arguments: &[impl AsRef<std::ffi::OsStr>], folder: &Path) -> Output {
    Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap_or_else(|err| panic!("run {}: {err}", program.display()))
}

#[track_caller]
fn passes(what: &str, out: &Output) {
    let (said, complained) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{what}:\n{said}\n{complained}");
}

/// Writes each render to a file; with `own_only`, only kinds of Kubernetes itself.
fn write_renders(into: &Path, own_only: bool) -> Vec<String> {
    let mut files = Vec::new();
    for render in renders() {
        let file = format!("{}.yaml", render.name.replace('/', "-"));
        let is_own = |version: Option<&str>| version.is_some_and(|version| OWN_GROUPS.contains(&version));
        let kept = render.objects.iter().filter(|object| !own_only || is_own(object["apiVersion"].as_str()));
        // JSON is YAML that every reader understands in the same way; for example, `off` is never a Boolean
        // in it.
        let documents: Vec<String> = kept.map(|object| format!("{object:#}\n")).collect();
        std::fs::write(into.join(&file), documents.join("---\n")).expect("write a render");
        files.push(file);
    }
    files
}

#[test]
fn kubernetes_validate_finds_nothing() {
    let Some(program) = tool("kubernetes-validate", "./x k8s installs it from PyPI") else { return };
    let scratch = tempfile::tempdir().expect("make a folder");
    let files = write_renders(scratch.path(), true);
    let mut arguments = vec!["--strict"];
    arguments.extend(files.iter().map(String::as_str));
    if files.is_empty() {
        return;
    }
    passes("kubernetes-validate", &run(&program, &arguments, scratch.path()));
    // It must find an error if there is one.
    let text = std::fs::read_to_string(scratch.path().join(&files[0])).expect("read a render");
    let wrong = text.replace("minReadySeconds", "minReadySecond");
    assert_ne!(wrong, text);
    std::fs::write(scratch.path().join("wrong.yaml"), wrong).expect("write a wrong render");
    assert!(!run(&program, &["--strict", "wrong.yaml"], scratch.path()).status.success());
}

#[test]
fn checkov_finds_nothing() {
    let Some(program) = tool("checkov", "./x k8s installs it from PyPI") else { return };
    let scratch = tempfile::tempdir().expect("make a folder");
    if write_renders(scratch.path(), false).is_empty() {
        return;
    }
    let config = folder().join("checkov.yaml");
    let arguments = ["--config-file", &config.display().to_string(), "--directory", ".", "--output", "json"];
    let out = run(&program, &arguments, scratch.path());
    passes("checkov", &out);
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("checkov prints JSON");
    let passed = said["summary"]["passed"].as_u64().unwrap_or(0);
    assert!(passed >= 500, "checkov looked at little: {}", said["summary"]);
}

#[test]
fn promtool_finds_nothing() {
    let Some(program) = tool("promtool", "Debian's prometheus") else { return };
    let place = folder().join("observability");
    let (rules, tests) = rule_files();
    let with = |first: &'static str, files: &[String]| -> Vec<String> {
        [first, "rules"].map(str::to_owned).into_iter().chain(files.iter().cloned()).collect()
    };
    passes("promtool check", &run(&program, &with("check", &rules), &place));
    let out = run(&program, &with("test", &tests), &place);
    passes("promtool test", &out);
    assert_eq!(String::from_utf8_lossy(&out.stdout).matches("SUCCESS").count(), tests.len());
}
