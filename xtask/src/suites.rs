//! `./x test`: which suites there are, how they are built, and how each runs.
//!
//! One suite is built with what it needs and no more; all suites are built at once.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use crate::{
    arm64,
    cargo::{self, Built},
    fuzz, lint,
    lockfile::Lock,
    outcome::{Outcome, Stop, out, say},
    packages::{self, Kind, Package, Suite},
    process::{command, succeed},
    run::{Manner, Run},
    setup, tools,
};

/// The package of the suites that drive the real programs.
const HARNESS: &str = "baton-e2e";

/// Suites of the harness that start real processes: one test at a time.
const ONE_THREAD: &[&str] = &[
    "dist",
    "processes",
    "receipt",
    "pull",
    "ring",
    "hostile",
    "documents",
    "clients",
    "console",
    "page",
    "image",
    "cluster",
    "openai",
    "apis",
    "agents",
    "gpu",
    "upstream",
    "rollout",
];

/// Suites of the harness that start no program.
const WITHOUT_PROGRAMS: &[&str] = &["tidy", "relay", "faults", "sim", "templates", "experiments"];

/// Programs that a suite of the harness starts beside those of the packages that the harness depends on.
const MORE_PROGRAMS: &[(&str, &str)] = &[("processes", "baton-bench")];

/// Suites that run only if they are named: `real` fetches 430 MB and computes for minutes, `dist` builds and
/// fetches for minutes.
const BY_NAME: &[&str] = &["dist", "real"];
/// Suites that run more if they are named.
const MORE_BY_NAME: &[&str] =
    &["agents", "clients", "documents", "gpu", "hostile", "ring", "templates", "upstream"];

/// What `./x test NAME` also does, by programs that cargo does not know as tests.
const PARTS: &[&str] = &["slow", "fuzz", "arm64", "targets", "loaded"];

/// A package that stands on fewer crates than this is built by itself. That may build some of them again,
/// with fewer features.
const CRATES_ALONE_MAX: usize = 120;

/// Prints the names of all suites, one a line, without building anything.
///
/// # Errors
/// Cargo cannot read a manifest.
pub(crate) fn list() -> Outcome {
    for name in names(&packages::read()?) {
        out(name);
    }
    for name in PARTS {
        out(name);
    }
    Ok(())
}

/// Runs every suite, and lints beside them.
///
/// # Errors
/// Something failed, or does not build.
pub(crate) fn every() -> Outcome {
    let begun = Instant::now();
    setup::everything()?;
    lint::formatted()?;
    let built = cargo::everything(&packages::suites(&packages::read()?))?;
    cargo::took("build", begun);
    let linting = lint::begin();
    let mut run = Run::new();
    for one in built.iter().filter(|one| !BY_NAME.contains(&one.suite.name().as_str())) {
        install(&mut run, one);
        run_one(&mut run, one, &[])?;
    }
    match linting.join() {
        Ok(linted) => run.add(&linted),
        Err(_) => run.fail(),
    }
    run.finish()
}

/// Runs what [`every`] leaves out because it takes long, and whole what it runs a part of.
///
/// # Errors
/// As [`every`].
pub(crate) fn slow() -> Outcome {
    setup::everything()?;
    let mut run = Run::new();
    fuzz::fuzz(&mut run)?;
    arm64::arm64(&mut run)?;
    crate::targets::targets(&mut run, crate::targets::Extent::Check)?;
    let packages = packages::read()?;
    let is_by_name = |suite: &Suite| [BY_NAME, MORE_BY_NAME].concat().contains(&suite.name().as_str());
    let chosen: Vec<Suite> = packages::suites(&packages).into_iter().filter(is_by_name).collect();
    for one in Plan::of(&packages, &chosen, "").build(&packages, &chosen)? {
        install(&mut run, &one);
        run_with(&mut run, &one, &[], &tools::variables_if_named(&one.suite.name()))?;
    }
    run.finish()
}

/// Runs the suites of this name or folder; with filters, the tests whose names contain one of them.
///
/// # Errors
/// No suite is called so, something failed or does not build, or no test's name contains a filter.
pub(crate) fn named(name: &str, filters: &[String]) -> Outcome {
    named_with(name, filters, &[])
}

/// Runs a coding agent, and writes what it sent to `tests/agents`, where the suite `agents` reads it.
///
/// # Errors
/// As [`named`].
pub(crate) fn record_agent(agent: &str) -> Outcome {
    let here = std::env::current_dir().map_err(|err| Stop::failed(format!("this folder: {err}")))?;
    let folder = here.join("tests/agents");
    let folder = folder.to_string_lossy();
    let variables = [("BATON_AGENTS_RECORD", &*folder), ("BATON_AGENTS_ONLY", agent)];
    named_with("agents", &["agents_of_".to_owned()], &variables)
}

/// As [`named`], with more variables.
fn named_with(name: &str, filters: &[String], more: &[(&str, &str)]) -> Outcome {
    let packages = packages::read()?;
    let chosen = chosen(&packages, name)?;
    let begun = Instant::now();
    let plan = Plan::of(&packages, &chosen, &fs::read_to_string("Cargo.lock").unwrap_or_default());
    plan.setup()?;
    let built = plan.build(&packages, &chosen)?;
    cargo::took("build", begun);
    let mut run = Run::new();
    for one in &built {
        install(&mut run, one);
        let variables = [&tools::variables_if_named(&one.suite.name())[..], more].concat();
        run_with(&mut run, one, filters, &variables)?;
    }
    let only_names = !filters.is_empty() && filters.iter().all(|filter| !filter.starts_with('-'));
    if only_names && run.tests() == 0 {
        say(format!("no test of `{name}` has a name that contains `{}`", filters.join("` or `")));
        run.fail();
    }
    run.finish()
}

/// Builds the one suite of this name, and returns its program.
///
/// # Errors
/// It does not build, or there is none.
pub(crate) fn build_one(name: &str) -> Outcome<PathBuf> {
    let packages = packages::read()?;
    let chosen = chosen(&packages, name)?;
    let built = Plan::of(&packages, &chosen, "").build(&packages, &chosen)?;
    let first = built.into_iter().next().map(|one| one.program);
    first.ok_or_else(|| Stop::failed(format!("the suite `{name}` was not built")))
}

/// Installs what a suite needs. What cannot be had is skipped.
fn install(run: &mut Run, built: &Built) {
    let name = built.suite.name();
    for why in tools::install_for(&name) {
        run.skip(&name, &why);
    }
}

/// Runs one suite's program in the way that it needs.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run_one(run: &mut Run, built: &Built, filters: &[String]) -> Outcome {
    run_with(run, built, filters, &[])
}

/// As [`run_one`], with more variables.
fn run_with(run: &mut Run, built: &Built, filters: &[String], more: &[(&str, &str)]) -> Outcome {
    let name = built.suite.name();
    let one_thread = is_of_harness(&built.suite) && ONE_THREAD.contains(&name.as_str());
    let manner = Manner { one_thread, shows_all: !filters.is_empty() };
    let mut program = command(&built.program);
    program.args(filters).envs(tools::variables_for(&name)).envs(more.iter().copied());
    run.suite(&name, &mut program, manner)?;
    Ok(())
}

fn is_of_harness(suite: &Suite) -> bool {
    suite.package == HARNESS && suite.kind == Kind::Integration
}

/// The names of all suites, each once, in the order in which they run.
fn names(packages: &[Package]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let names = packages::suites(packages).into_iter().map(|suite| suite.name());
    names.filter(|name| seen.insert(name.clone())).collect()
}

/// The suites of this name; else those of the packages in a folder of this name. A slash at the end means the
/// folder.
fn chosen(packages: &[Package], name: &str) -> Outcome<Vec<Suite>> {
    let all = packages::suites(packages);
    let by_name: Vec<Suite> = all.iter().filter(|suite| suite.name() == name).cloned().collect();
    if !by_name.is_empty() {
        return Ok(by_name);
    }
    let is_in_folder = |suite: &Suite| !name.is_empty() && suite.is_below(Path::new(name));
    let in_folder: Vec<Suite> = all.into_iter().filter(is_in_folder).collect();
    if !in_folder.is_empty() {
        return Ok(in_folder);
    }
    let names = names(packages).join(", ");
    let why = format!("no suite is called `{name}`, and no folder with packages.");
    Err(Stop::usage(format!("{why}\nSuites: {names}, {}", PARTS.join(", "))))
}

/// How chosen suites are built.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Packages that are built by themselves, and the features of each that others ask for.
    alone: Vec<(String, Vec<String>)>,
    /// Whether suites of other packages are chosen: these are built with the features of the whole workspace.
    has_others: bool,
}

impl Plan {
    /// Finds out which packages stand on few crates, by the text of the lock file.
    fn of(packages: &[Package], chosen: &[Suite], lock: &str) -> Self {
        let lock = Lock::parse(lock);
        let mut plan = Self::default();
        for package in packages {
            if !chosen.iter().any(|suite| suite.package == package.name) {
                continue;
            }
            let is_known = package.name == packages::OWN || lock.has(&package.name);
            if is_known && lock.crates_below(&package.name) < CRATES_ALONE_MAX {
                plan.alone.push((package.name.clone(), packages::features_from_others(packages, package)));
            } else {
                plan.has_others = true;
            }
        }
        plan
    }

    /// Looks for the compilers that the builds need.
    fn setup(&self) -> Outcome {
        let is_small = !self.has_others && self.alone.iter().all(|(_, features)| features.is_empty());
        if is_small { setup::compiler() } else { setup::everything() }
    }

    /// Builds the chosen suites and the programs that they start.
    fn build(&self, packages: &[Package], chosen: &[Suite]) -> Outcome<Vec<Built>> {
        let mut built = Vec::new();
        for (package, features) in &self.alone {
            let own: Vec<&Suite> = chosen.iter().filter(|suite| suite.package == *package).collect();
            let mut build = cargo::test_build();
            if package == packages::OWN {
                cargo::own_workspace(&mut build);
            } else {
                build.args(["-p", package]);
            }
            if !features.is_empty() {
                build.arg("--features").arg(features.join(","));
            }
            built.extend(cargo::tests(build.args(targets(&own)), chosen)?);
        }
        if self.has_others {
            let is_alone = |suite: &Suite| self.alone.iter().any(|(package, _)| *package == suite.package);
            let others: Vec<&Suite> = chosen.iter().filter(|suite| !is_alone(suite)).collect();
            let programs = programs_of(packages, &others);
            if !programs.is_empty() {
                let tests = targets(&integration(&others));
                let words = [options("--bin", programs), tests].concat();
                succeed(cargo::cargo("build").arg("--workspace").args(words))?;
            }
            let mut build = cargo::test_build();
            // Packages that are built by themselves may have a suite of the same name.
            let wanted: Vec<Suite> = others.iter().copied().cloned().collect();
            built.extend(cargo::tests(build.arg("--workspace").args(targets(&others)), &wanted)?);
        }
        built.sort_by(|one, other| one.suite.cmp(&other.suite));
        Ok(built)
    }
}

/// The options by which cargo builds these suites. `--lib` selects the unit tests of every library that is
/// selected.
fn targets(suites: &[&Suite]) -> Vec<String> {
    let of_kind = |kind: Kind| suites.iter().filter(move |suite| suite.kind == kind);
    let lib = of_kind(Kind::Library).take(1).map(|_| "--lib".to_owned());
    let bins = options("--bin", of_kind(Kind::Program).map(|suite| suite.target.clone()));
    let tests = options("--test", of_kind(Kind::Integration).map(|suite| suite.target.clone()));
    lib.chain(bins).chain(tests).collect()
}

fn options(option: &str, values: impl IntoIterator<Item = String>) -> Vec<String> {
    values.into_iter().flat_map(|value| [option.to_owned(), value]).collect()
}

fn integration<'a>(suites: &[&'a Suite]) -> Vec<&'a Suite> {
    suites.iter().copied().filter(|suite| suite.kind == Kind::Integration).collect()
}

/// The programs that these suites start. Cargo itself builds those of a suite's own package.
fn programs_of(packages: &[Package], suites: &[&Suite]) -> Vec<String> {
    let mut programs = BTreeSet::new();
    for suite in suites.iter().filter(|suite| is_of_harness(suite)) {
        let name = suite.name();
        if WITHOUT_PROGRAMS.contains(&name.as_str()) {
            continue;
        }
        let used: Vec<&str> =
            packages.iter().filter(|package| package.name == HARNESS).flat_map(Package::uses).collect();
        let below = packages.iter().filter(|package| used.contains(&package.name.as_str()));
        programs.extend(below.flat_map(|package| package.programs.iter().cloned()));
        let more = MORE_PROGRAMS.iter().filter(|(suite, _)| *suite == name);
        programs.extend(more.map(|(_, program)| (*program).to_owned()));
    }
    programs.into_iter().collect()
}

#[cfg(test)]
mod tests;
