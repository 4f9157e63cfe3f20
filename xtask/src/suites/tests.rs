//! Suites are chosen and built as their names say; the project's own packages are the cases.

use super::*;
use crate::{process, setup::names_in};

fn project() -> (Vec<Package>, String) {
    std::env::set_current_dir(process::top()).unwrap();
    (packages::read().unwrap(), fs::read_to_string("Cargo.lock").unwrap())
}

fn plan(name: &str) -> Plan {
    let (packages, lock) = project();
    Plan::of(&packages, &chosen(&packages, name).unwrap(), &lock)
}

#[test]
fn suites_are_chosen_by_name_and_by_folder() {
    let (packages, _) = project();
    let of = |name: &str| {
        let suites = chosen(&packages, name).unwrap();
        let packages: BTreeSet<String> = suites.into_iter().map(|suite| suite.package).collect();
        packages.into_iter().collect::<Vec<_>>()
    };
    let sets = ["baton-kernels-cpu", "baton-kernels-cuda", "baton-kernels-gpu", "baton-kernels-wgpu"];
    assert_eq!(of("kernels"), sets);
    assert_eq!(of("kernels/cpu"), ["baton-kernels-cpu"]);
    assert_eq!(of("kernels_cpu"), ["baton-kernels-cpu"]);
    assert_eq!(of("shared/protocol/"), ["baton-protocol"]);
    assert_eq!(of("processes"), ["baton-e2e"]);
    assert_eq!(of("xtask"), ["xtask"]);
    assert!(of("shared").len() > 5);
    assert!(chosen(&packages, "cloud/").unwrap().len() > chosen(&packages, "cloud").unwrap().len());
    for unknown in ["", "/", "nothing", "shared/proto", "-x"] {
        assert!(chosen(&packages, unknown).is_err(), "{unknown}");
    }
}

#[test]
fn a_package_on_few_crates_is_built_by_itself() {
    let alone = |package: &str, features: &[&str]| Plan {
        alone: vec![(package.to_owned(), features.iter().map(|one| (*one).to_owned()).collect())],
        has_others: false,
    };
    assert_eq!(plan("kernels_cpu"), alone("baton-kernels-cpu", &["free-order"]));
    assert_eq!(plan("kernels_gpu"), alone("baton-kernels-gpu", &["cases"]));
    assert_eq!(plan("protocol"), alone("baton-protocol", &[]));
    assert_eq!(plan("xtask"), alone("xtask", &[]));
    for many in ["device", "processes", "tidy"] {
        assert_eq!(plan(many), Plan { alone: Vec::new(), has_others: true }, "{many}");
    }
}

#[test]
fn options_name_each_target() {
    let (packages, _) = project();
    let suites = chosen(&packages, "cloud/").unwrap();
    let words = targets(&suites.iter().collect::<Vec<_>>()).join(" ");
    assert!(words.starts_with("--lib --bin baton-cloud --test "), "{words}");
}

#[test]
fn names_are_there_once() {
    let (packages, _) = project();
    let names = names(&packages);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for name in ["tidy", "kernels_cpu", "baton-bin", "xtask-bin"] {
        assert!(names.contains(&name.to_owned()), "{name} in {names:?}");
    }
}

/// The programs that the sources of a suite name.
fn started_programs(sources: &str) -> Vec<String> {
    let calls = sources.split("program(\"").skip(1);
    calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[test]
fn the_programs_of_a_suite_are_built_for_it() {
    let (packages, _) = project();
    let folder = Path::new("tests/suites");
    let mut looked_at = 0;
    for suite in packages::suites(&packages).iter().filter(|suite| is_of_harness(suite)) {
        let name = suite.name();
        let built = programs_of(&packages, &[suite]);
        let more = folder.join(&name);
        let mut files: Vec<PathBuf> = names_in(&more).into_iter().map(|file| more.join(file)).collect();
        files.push(more.with_extension("rs"));
        for file in files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "rs")) {
            for program in started_programs(&fs::read_to_string(file).unwrap()) {
                assert!(built.contains(&program), "{} starts {program}, built are {built:?}", file.display());
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 5, "only {looked_at} calls found: the sources call it by another name now");
}

#[test]
fn lists_name_suites() {
    let (packages, _) = project();
    let names = names(&packages);
    for listed in WITHOUT_PROGRAMS.iter().chain(MORE_PROGRAMS.iter().map(|(suite, _)| suite)) {
        assert!(names.contains(&(*listed).to_owned()), "{listed}");
    }
}
