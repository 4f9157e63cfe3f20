//! `./x dist`: the agent as people install it.
//!
//! For each target: an archive with the program, its manual pages, completions, service files and a list of
//! what is in it (SBOM). Beside the archives: their SHA-256 digests, the installer, a Debian package, and,
//! if the place of the archives is known, Homebrew's formula. Always: the same sources give the same archive
//! from the same compiler, and what cannot be made here is named in a line `skipped:`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{
    cargo,
    outcome::{Outcome, Stop, out, say},
    process::{self, command, is_fine, is_installed},
    rust_std, setup,
    targets::STATIC,
};

mod debian;
mod formula;
mod sbom;
mod stage;

/// Where the files that are packed beside the program stand.
const PACKAGING: &str = "device/packaging";

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// The targets; none means this machine's, and the static ones that can be built here.
    targets: Vec<String>,
    /// The folder of what is made.
    out: Option<PathBuf>,
    /// A program that is built already, for the one target that is named.
    program: Option<PathBuf>,
    /// The address at which the archives will be found.
    downloads: Option<String>,
}

impl Options {
    fn read(words: &[String]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next().filter(|value| !value.starts_with('-'));
                value.cloned().ok_or_else(|| Stop::usage(format!("./x dist: {word} needs a value")))
            };
            match word.as_str() {
                "--target" => options.targets.push(value()?),
                "--out" => options.out = Some(value()?.into()),
                "--program" => options.program = Some(value()?.into()),
                "--downloads" => options.downloads = Some(value()?.trim_end_matches('/').to_owned()),
                _ => {
                    return Err(Stop::usage(format!("./x dist does not take `{word}` (./x dist --help)")));
                }
            }
        }
        if options.program.is_some() && options.targets.len() > 1 {
            return Err(Stop::usage("./x dist: --program is for one --target"));
        }
        Ok(options)
    }
}

/// An archive that was made.
#[derive(Debug)]
struct Archive {
    target: String,
    /// Its name, without a folder.
    name: String,
    sha256: String,
}

/// Makes archives and packages.
///
/// # Errors
/// A word is not understood, something does not build, or a file cannot be written.
pub(crate) fn dist(words: &[String]) -> Outcome {
    let options = Options::read(words)?;
    let host = host()?;
    let out_folder = options.out.clone().unwrap_or_else(|| cargo::target_folder().join("dist-archives"));
    made(fs::create_dir_all(&out_folder), "make", &out_folder)?;
    let version = version()?;
    let chosen = chosen(&options, &host)?;
    // What a program says of itself comes from one that runs on this machine.
    let mut own: Option<PathBuf> = None;
    let mut archives = Vec::new();
    for target in &chosen {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => build(target, &host)?,
        };
        if is_fine(command(&program).arg("--version")) {
            own = Some(program.clone());
        }
        let Some(speaker) = own.clone() else {
            let program = program.display();
            let why = format!("{program} does not run on this machine; name this machine's target first");
            return Err(Stop::failed(why));
        };
        archives.push(archive(&version, target, &program, &speaker, &out_folder)?);
    }
    if !chosen.iter().any(|target| target.ends_with("-linux-gnu")) {
        say("skipped: dist: no Debian package, which is made for a target *-linux-gnu");
    }
    beside(&version, &archives, &options, &out_folder)
}

/// The version of the workspace.
fn version() -> Outcome<String> {
    let manifest = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let section = manifest.split("[workspace.package]").nth(1).unwrap_or_default();
    let line = section.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.split('"').next()).map(str::to_owned);
    version.ok_or_else(|| Stop::failed("Cargo.toml names no version of the workspace"))
}

/// The target of this machine's compiler.
fn host() -> Outcome<String> {
    let about = process::read(command(rust_std::IN_USE).arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
    host.ok_or_else(|| Stop::failed("rustc does not name this machine's target"))
}

/// The targets to make. Static ones that cannot be built here are skipped, with the reason.
fn chosen(options: &Options, host: &str) -> Outcome<Vec<String>> {
    if !options.targets.is_empty() {
        return Ok(options.targets.clone());
    }
    let mut all = vec![host.to_owned()];
    if options.program.is_none() {
        for one in &STATIC {
            match lack_of(one.target, host) {
                None => all.push(one.target.to_owned()),
                Some(lack) => say(format!("skipped: dist: {}: {lack}", one.target)),
            }
        }
    }
    Ok(all)
}

/// What keeps the agent from being built here for a target, after installing what can be installed.
fn lack_of(target: &str, host: &str) -> Option<String> {
    let of_static = STATIC.iter().find(|one| one.target == target).and_then(|one| one.lack());
    let has_library = || target == host || rust_std::is_here(target);
    of_static.or_else(|| (!has_library()).then(|| "no Rust standard library for it".to_owned()))
}

/// Builds the agent for a target with the profile of what is given to users, and returns the program.
fn build(target: &str, host: &str) -> Outcome<PathBuf> {
    if let Some(lack) = lack_of(target, host) {
        return Err(Stop::failed(format!("./x dist: {target} cannot be built here: {lack}")));
    }
    say(format!("building baton for {target}"));
    let mut build = command("cargo");
    build.args(["build", "--profile", "dist", "--locked", "-p", "baton-device", "--bin", "baton"]);
    if let Some(one) = STATIC.iter().find(|one| one.target == target) {
        setup::compiler()?;
        one.set_for(&mut build);
        // A static program can open neither a driver nor the C++ library of the solver.
        build.args(["--no-default-features", "--features", "constrain,import"]);
    } else {
        setup::everything()?;
        if target != host {
            build.args(["--target", target]);
        }
    }
    process::succeed(&mut build)?;
    let mut folder = cargo::target_folder();
    if target != host {
        folder = folder.join(target);
    }
    let name = if target.contains("windows") { "baton.exe" } else { "baton" };
    Ok(folder.join("dist").join(name))
}

/// Packs one target: the archive, its list of parts, and for Debian's systems the package.
fn archive(version: &str, target: &str, program: &Path, speaker: &Path, folder: &Path) -> Outcome<Archive> {
    let name = format!("baton-{version}-{target}");
    let work = cargo::target_folder().join("dist-stage");
    remove(&work)?;
    let root = work.join(&name);
    stage::lay_out(&root, program, speaker)?;
    let sbom = sbom::of(version, target, STATIC.iter().any(|one| one.target == target))?;
    let list = root.join("share/doc/baton/sbom.cdx.json");
    made(fs::write(&list, &sbom), "write", &list)?;
    let beside = folder.join(format!("{name}.cdx.json"));
    made(fs::write(&beside, &sbom), "write", &beside)?;
    let file = folder.join(format!("{name}.tar.gz"));
    pack(&work, &name, &file)?;
    if target.ends_with("-linux-gnu") {
        debian::package(version, target, &root, folder)?;
    }
    remove(&work)?;
    out(format!("{}  {}", size_of(&file), file.display()));
    let sha256 = digest(&file)?;
    Ok(Archive { target: target.to_owned(), name: format!("{name}.tar.gz"), sha256 })
}

/// Writes an archive whose bytes depend on the files alone: in order, without times and owners.
fn pack(folder: &Path, name: &str, file: &Path) -> Outcome {
    let mut names = files_below(&folder.join(name), Path::new(name))?;
    names.sort();
    let list = folder.join("names");
    made(fs::write(&list, names.join("\n") + "\n"), "write", &list)?;
    let mut tar = command("tar");
    tar.arg("-C").arg(folder).args(["--format", "ustar", "-T"]).arg(&list);
    if is_gnu_tar() {
        tar.args(["--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    }
    let plain = file.with_extension("");
    process::succeed(tar.arg("-cf").arg(&plain))?;
    // `gzip -n` keeps neither a name nor a time.
    process::succeed(command("gzip").args(["-9", "-n", "-f"]).arg(&plain))
}

fn is_gnu_tar() -> bool {
    let about = command("tar").arg("--version").output();
    about.is_ok_and(|about| String::from_utf8_lossy(&about.stdout).contains("GNU tar"))
}

/// The files below a folder, with `prefix` instead of it.
fn files_below(folder: &Path, prefix: &Path) -> Outcome<Vec<String>> {
    let mut files = Vec::new();
    let entries = made(fs::read_dir(folder), "list", folder)?;
    for entry in entries {
        let path = made(entry, "list", folder)?.path();
        let Some(name) = path.file_name() else { continue };
        let below = prefix.join(name);
        if path.is_dir() {
            files.extend(files_below(&path, &below)?);
        } else {
            files.push(below.display().to_string());
        }
    }
    Ok(files)
}

/// Writes what belongs to all archives: digests, the installer, and the formula.
fn beside(version: &str, archives: &[Archive], options: &Options, folder: &Path) -> Outcome {
    let script = fs::read_to_string(Path::new(PACKAGING).join("install.sh"));
    let script = made(script, "read", Path::new(PACKAGING))?.replace("@VERSION@", version);
    let installer = folder.join("install.sh");
    made(fs::write(&installer, script), "write", &installer)?;
    made(fs::set_permissions(&installer, fs::Permissions::from_mode(0o755)), "change", &installer)?;
    match &options.downloads {
        Some(address) => formula::write(version, archives, address, folder)?,
        None => say("skipped: dist: no formula for Homebrew; --downloads says where the archives will be"),
    }
    container(archives, folder)?;
    let mut lines = String::new();
    for name in setup::names_in(folder) {
        if name != "SHA256SUMS" && folder.join(&name).is_file() {
            lines.push_str(&format!("{}  {name}\n", digest(&folder.join(&name))?));
        }
    }
    let sums = folder.join("SHA256SUMS");
    made(fs::write(&sums, lines), "write", &sums)?;
    out(format!("archives, digests and installer are in {}", folder.display()));
    Ok(())
}

/// Makes a container image of the static program, if podman is here.
fn container(archives: &[Archive], folder: &Path) -> Outcome {
    let Some(archive) = archives.iter().find(|one| one.target == "x86_64-unknown-linux-musl") else {
        say("skipped: dist: no container, which is made of the static program for x86-64");
        return Ok(());
    };
    if !is_installed("podman") {
        say("skipped: dist: no container without podman");
        return Ok(());
    }
    let work = cargo::target_folder().join("dist-stage");
    remove(&work)?;
    made(fs::create_dir_all(&work), "make", &work)?;
    process::succeed(command("tar").arg("-xzf").arg(folder.join(&archive.name)).arg("-C").arg(&work))?;
    let root = work.join(archive.name.trim_end_matches(".tar.gz"));
    made(fs::copy("LICENSE", root.join("LICENSE")), "copy", Path::new("LICENSE"))?;
    let image = folder.join(archive.name.replace(".tar.gz", "-image.tar"));
    let mut podman = command("podman");
    podman
        .args(["build", "--timestamp", "0", "-t", "baton"])
        .arg("-f")
        .arg(Path::new(PACKAGING).join("Containerfile"));
    if !is_fine(podman.arg(&root)) {
        say("skipped: dist: podman cannot build a container here");
        return remove(&work);
    }
    remove_file(&image)?;
    process::succeed(
        command("podman").args(["save", "--format", "oci-archive", "-o"]).arg(&image).arg("baton"),
    )?;
    remove(&work)
}

/// The SHA-256 digest of a file, as 64 digits.
fn digest(file: &Path) -> Outcome<String> {
    let mut sum = if is_installed("sha256sum") {
        command("sha256sum")
    } else {
        let mut sum = command("shasum");
        sum.args(["-a", "256"]);
        sum
    };
    let line = process::read(sum.arg(file))?;
    let digest = line.split_whitespace().next().unwrap_or_default().to_owned();
    let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { Ok(digest) } else { Err(Stop::failed(format!("no digest of {}: {line}", file.display()))) }
}

fn size_of(file: &Path) -> String {
    let bytes = fs::metadata(file).map_or(0, |about| about.len());
    format!("{:>6.1} MB", bytes as f64 / 1e6)
}

/// Names what could not be done to a path.
fn made<T>(done: std::io::Result<T>, what: &str, path: &Path) -> Outcome<T> {
    done.map_err(|err| Stop::failed(format!("{what} {}: {err}", path.display())))
}

fn remove(folder: &Path) -> Outcome {
    match fs::remove_dir_all(folder) {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => made(Err(err), "remove", folder),
        _ => Ok(()),
    }
}

fn remove_file(file: &Path) -> Outcome {
    match fs::remove_file(file) {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => made(Err(err), "remove", file),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Outcome<Options> {
        Options::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = read("--target a --target b --out o --downloads https://d.example/v1/").unwrap();
        assert_eq!(options.targets, ["a", "b"]);
        assert_eq!(options.downloads.as_deref(), Some("https://d.example/v1"));
        for (line, want) in [
            ("--out", "--out needs a value"),
            ("--target --out x", "--target needs a value"),
            ("--fast", "does not take `--fast`"),
            ("--program p --target a --target b", "--program is for one --target"),
        ] {
            assert!(format!("{:?}", read(line)).contains(want), "{line}");
        }
    }

    #[test]
    fn a_target_without_a_library_is_named_before_anything_is_built() {
        let host = host().unwrap();
        assert_eq!(lack_of(&host, &host), None);
        let said = format!("{:?}", build("no-such-machine", &host).unwrap_err());
        assert!(said.contains("no-such-machine cannot be built here: no Rust standard"), "{said}");
    }

    #[test]
    fn the_version_is_that_of_the_workspace() {
        std::env::set_current_dir(process::top()).unwrap();
        let version = version().unwrap();
        assert!(
            version.split('.').count() == 3 && version.starts_with(|c: char| c.is_ascii_digit()),
            "{version}"
        );
    }
}
