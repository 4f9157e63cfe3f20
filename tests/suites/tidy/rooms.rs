//! Rooms of the packages: no circle of imports, and the pure ones stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{check, rust_sources};

/// Packages whose modules import each other in one direction only.
const LAYERED: &[&str] = &["cloud/src", "device/src"];

/// Where the time, threads and the outside are only parameters: sources whose path begins like this.
const PURE: &[&str] = &[
    "shared/generate/src/answer",
    "shared/generate/src/scheduler",
    "shared/generate/src/speculation/lookup",
    "shared/generate/src/text",
    "shared/ring/src/core",
    "device/src/relay/",
    "device/src/relay.rs",
];
const IMPURE: &[&str] = &[
    "Instant",
    "SystemTime",
    "thread",
    "Mutex",
    "RwLock",
    "Condvar",
    "mpsc",
    "File",
    "TcpStream",
    "UdpSocket",
    "tokio",
    "tracing",
];

/// The text of a source without comments and without its tests.
fn product(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn is_test(path: &Path) -> bool {
    path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests")
}

/// The sources below `folder`, without tests: their paths inside it, and their text.
fn products(folder: &str) -> Vec<(PathBuf, String)> {
    rust_sources()
        .into_iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(folder).ok()?.to_owned(), text)))
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| (path, product(&text)))
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Names of top modules behind each `crate::`, also in groups.
fn imported(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, mark) in text.match_indices("crate::") {
        let rest = &text[at + mark.len()..];
        match rest.strip_prefix('{') {
            None => found.extend(words(rest).next().map(str::to_owned)),
            Some(group) => {
                let mut depth = 0_i32;
                let end = group.find(|c| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    depth < 0
                });
                let mut depth = 0_i32;
                let mut first = true;
                for part in group[..end.unwrap_or(group.len())].split_inclusive(['{', '}', ',']) {
                    if depth == 0 && first {
                        found.extend(words(part).next().map(str::to_owned));
                    }
                    depth += part.matches('{').count() as i32 - part.matches('}').count() as i32;
                    first = part.ends_with(',') || depth == 0;
                }
            }
        }
    }
    found
}

/// Which top module imports which.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let sources = products(folder);
    let top = |path: &Path| path.iter().next().map(|part| part.to_string_lossy().replace(".rs", ""));
    let modules: BTreeSet<String> = sources.iter().filter_map(|(path, _)| top(path)).collect();
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in &sources {
        let from = top(path).expect("a source has a name");
        if from == "lib" || from == "main" {
            continue;
        }
        let to = imported(text).into_iter().filter(|to| modules.contains(to) && *to != from);
        imports.entry(from.clone()).or_default().extend(to);
    }
    imports
}

/// Modules from which one can come back to themselves.
fn in_circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reached = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for to in imports.get(at).into_iter().flatten() {
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        seen
    };
    imports.keys().filter(|module| reached(module).contains(module.as_str())).cloned().collect()
}

#[test]
fn modules_import_each_other_in_one_direction() {
    for folder in LAYERED {
        let imports = imports(folder);
        assert!(imports.len() > 3, "{folder} has only {} modules: is it the right folder?", imports.len());
        check(&format!("modules of {folder} in a circle of imports"), &in_circles(&imports));
    }
}

#[test]
fn a_circle_of_imports_is_found() {
    let uses = |from: &str, to: &[&str]| (from.to_owned(), to.iter().map(|&to| to.to_owned()).collect());
    let line = BTreeMap::from([uses("a", &["b", "c"]), uses("b", &["c"]), uses("c", &[])]);
    assert!(in_circles(&line).is_empty());
    let circle = BTreeMap::from([uses("a", &["b"]), uses("b", &["c"]), uses("c", &["b"])]);
    assert_eq!(in_circles(&circle), ["b", "c"]);
    let text =
        "use crate::one::{Two, three};\nuse crate::{four, five::{six}, seven};\nlet x = crate::eight::f();";
    let found: Vec<String> = imported(text).into_iter().collect();
    assert_eq!(found, ["eight", "five", "four", "one", "seven"]);
}

#[test]
fn pure_modules_take_time_and_the_outside_as_parameters() {
    let mut offences = Vec::new();
    for (path, text) in rust_sources() {
        let name = path.to_string_lossy();
        if is_test(&path) || !PURE.iter().any(|pure| name.starts_with(pure)) {
            continue;
        }
        for (line_idx, line) in product(&text).lines().enumerate() {
            if let Some(word) = words(line).find(|word| IMPURE.contains(word)) {
                offences.push(format!("{name}:{}: {word}", line_idx + 1));
            }
        }
    }
    check("a pure module that reads a clock or reaches outside", &offences);
}
