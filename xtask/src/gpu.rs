//! What the suites `gpu` need where there is no GPU: Mesa's software Vulkan, and NVIDIA's compilers.
//!
//! Both are fetched once, into `gpu` under the target folder. Never installs a package on the system, and
//! never changes what a variable of the caller names. Always: what cannot be had is a reason to skip, not a
//! failure.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    cargo,
    outcome::say,
    process::{self, Place, command, is_fine, is_installed},
    setup::{as_root, names_in},
    tools::remove,
};

/// Debian's packages of Vulkan's loader and Mesa's drivers. What they stand on is found out.
const VULKAN: [&str; 2] = ["mesa-vulkan-drivers", "libvulkan1"];

/// Folders in which a system lists its Vulkan drivers.
const DRIVER_LISTS: [&str; 2] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];

/// What Mesa calls the description of its driver that computes on the CPU: this, and an architecture.
const SOFTWARE: &str = "lvp_icd";

/// Variables that choose Vulkan's drivers: the name for loaders of today, and the older one.
const DRIVERS: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Names the library of NVIDIA that compiles while a program runs.
pub(crate) const LIBRARY: &str = "BATON_NVRTC";

/// The compiler of NVIDIA, and that library.
const COMPILERS: [&str; 2] = ["BATON_NVCC", LIBRARY];

/// What NVIDIA's compilers are locked to.
const REQUIREMENTS: &str = "tests/gpu/requirements.txt";

/// Fetches what is missing. Returns why something cannot be had.
pub(crate) fn install() -> Vec<String> {
    let named = |what: &str, done: Result<(), String>| done.err().map(|why| format!("{what}: {why}"));
    let vulkan = named("Mesa's software Vulkan", vulkan());
    let compilers = named("NVIDIA's compilers", compilers());
    vulkan.into_iter().chain(compilers).collect()
}

/// The variables by which a suite finds what [`install`] has fetched.
pub(crate) fn variables() -> Vec<(&'static str, OsString)> {
    let mut all = Vec::new();
    let description = vulkan_folder().join("icd.json");
    if description.is_file() && !are_set(&DRIVERS) && system_software().is_none() {
        // Drivers of real GPUs stay in use beside it.
        let drivers = system_drivers().into_iter().chain([description]);
        let drivers = env::join_paths(drivers).unwrap_or_default();
        all.extend(DRIVERS.map(|name| (name, drivers.clone())));
        let own = libraries(&vulkan_folder()).into_iter();
        let before = env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
        let before: Vec<PathBuf> = before.iter().flat_map(env::split_paths).collect();
        all.push(("LD_LIBRARY_PATH", env::join_paths(own.chain(before)).unwrap_or_default()));
    }
    if !are_set(&COMPILERS) {
        let files = compiler_files(&compilers_folder());
        all.extend(COMPILERS.into_iter().zip(files.into_iter().flatten().map(PathBuf::into_os_string)));
    }
    all
}

/// Whether one of these variables has a value.
fn are_set(names: &[&str]) -> bool {
    names.iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// A folder below `gpu` in the target folder, from the root on.
fn folder(name: &str) -> PathBuf {
    process::top().join(cargo::target_folder()).join("gpu").join(name)
}

fn vulkan_folder() -> PathBuf {
    folder("vulkan")
}

fn compilers_folder() -> PathBuf {
    folder("nvcc")
}

/// The descriptions of the drivers that the system has.
fn system_drivers() -> Vec<PathBuf> {
    let lists = DRIVER_LISTS.iter().map(Path::new);
    let files = lists.flat_map(|list| names_in(list).into_iter().map(|name| list.join(name)));
    files.filter(|file| file.extension() == Some(OsStr::new("json"))).collect()
}

/// The system's own software driver.
fn system_software() -> Option<PathBuf> {
    system_drivers().into_iter().find(|file| is_software(file))
}

fn is_software(description: &Path) -> bool {
    description.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SOFTWARE))
}

/// Fetches the software driver, if the system has none and the caller has chosen none.
fn vulkan() -> Result<(), String> {
    if !cfg!(target_os = "linux") || are_set(&DRIVERS) || system_software().is_some() {
        return Ok(());
    }
    let folder = vulkan_folder();
    let stamp = folder.join("stamp");
    if !stamp.is_file() {
        let failed = |err: io::Error| format!("{}: {err}", folder.display());
        remove(&folder).and_then(|()| fs::create_dir_all(&folder)).map_err(failed)?;
        unpack_packages(&folder)?;
        fs::write(&stamp, "").map_err(failed)?;
    }
    // The folder may have another name than it had then.
    describe(&folder)
}

/// Downloads the packages that are missing, and unpacks them into a folder.
fn unpack_packages(folder: &Path) -> Result<(), String> {
    if !is_installed("apt-get") || !is_installed("dpkg-deb") {
        return Err("only Debian's packages are fetched; install Mesa's Vulkan drivers".to_owned());
    }
    let files = folder.join("packages");
    fs::create_dir_all(&files).map_err(|err| format!("{}: {err}", files.display()))?;
    download(&files)?;
    for name in names_in(&files) {
        if !is_fine(command("dpkg-deb").arg("-x").arg(files.join(&name)).arg(folder)) {
            return Err(format!("dpkg-deb cannot unpack {name}"));
        }
    }
    remove(&files).map_err(|err| format!("{}: {err}", files.display()))
}

/// Downloads packages into a folder. If apt-get does not know them or their versions are gone, its lists are
/// made fresh, if no password is needed for that.
fn download(folder: &Path) -> Result<(), String> {
    let once = || {
        let wanted = missing_packages().ok_or("apt-get does not know its packages")?;
        say(format!("fetching {} into {}", wanted.join(", "), folder.display()));
        let mut apt_get = command("apt-get");
        let is_here = succeeds_aloud(apt_get.arg("download").args(&wanted).current_dir(folder));
        if is_here { Ok(()) } else { Err("apt-get cannot download its packages".to_owned()) }
    };
    once().or_else(|why: String| if has_fresh_lists() { once() } else { Err(why) })
}

/// Makes apt-get's lists of packages fresh, if no password is needed for that.
fn has_fresh_lists() -> bool {
    as_root().is_some_and(|as_root| {
        let words = [as_root, &["apt-get", "update"]].concat();
        is_fine(command(words[0]).args(&words[1..]))
    })
}

/// The packages of [`VULKAN`], and those that they stand on and the system lacks.
fn missing_packages() -> Option<Vec<String>> {
    let mut apt_get = command("apt-get");
    apt_get.args(["install", "--simulate", "--no-install-recommends"]).args(VULKAN);
    let told = apt_get.env("LC_ALL", "C").stdin(Stdio::null()).output().ok()?;
    let mut found = to_install(&String::from_utf8_lossy(&told.stdout));
    found.extend(VULKAN.map(str::to_owned));
    found.sort();
    found.dedup();
    told.status.success().then_some(found)
}

/// The packages that apt-get would install, without those of which it has an older version.
fn to_install(told: &str) -> Vec<String> {
    let lines = told.lines().filter_map(|line| line.strip_prefix("Inst "));
    let new = lines.filter_map(|line| line.split_once(' ')).filter(|(_, rest)| !rest.starts_with('['));
    new.map(|(name, _)| name.to_owned()).collect()
}

/// The folders of unpacked libraries.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let lists = ["usr/lib", "lib"].map(|list| folder.join(list));
    let folders = lists.iter().flat_map(|list| names_in(list).into_iter().map(move |name| list.join(name)));
    folders.filter(|folder| names_in(folder).iter().any(|name| name.contains(".so"))).collect()
}

/// Writes the driver's description with the place where the driver is now.
fn describe(folder: &Path) -> Result<(), String> {
    let lists = folder.join("usr/share/vulkan/icd.d");
    let file = names_in(&lists).into_iter().map(|name| lists.join(name)).find(|file| is_software(file));
    let file = file.ok_or("its package has no software driver")?;
    let failed = |err: io::Error| format!("{}: {err}", file.display());
    let text = fs::read_to_string(&file).map_err(failed)?;
    let described = at_folders(&text, &libraries(folder)).ok_or("its driver is not described as expected")?;
    fs::write(folder.join("icd.json"), described).map_err(failed)
}

/// The description of a driver, with the place of its library in one of these folders.
fn at_folders(text: &str, folders: &[PathBuf]) -> Option<String> {
    let mut description = serde_json::from_str::<Value>(text).ok()?;
    let path = description.get_mut("ICD")?.get_mut("library_path")?;
    let name = Path::new(path.as_str()?).file_name()?.to_owned();
    let library = folders.iter().map(|folder| folder.join(&name)).find(|library| library.is_file())?;
    *path = library.to_str()?.into();
    Some(description.to_string())
}

/// Fetches NVIDIA's compilers, if the caller has named none.
fn compilers() -> Result<(), String> {
    if are_set(&COMPILERS) {
        return Ok(());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("fetched for x86-64 Linux only".to_owned());
    }
    let folder = compilers_folder();
    let failed = |err: io::Error| format!("{}: {err}", folder.display());
    let (stamp, wanted) = (folder.join("stamp"), fs::read(REQUIREMENTS).map_err(failed)?);
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    remove(&folder).map_err(failed)?;
    say(format!("fetching NVIDIA's compilers (180 MB) into {}", folder.display()));
    let mut pip = command("python3");
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--retries", "1", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--require-hashes", "--target"]).arg(&folder);
    if !succeeds_aloud(pip.args(["-r", REQUIREMENTS])) {
        remove(&folder).map_err(failed)?;
        return Err("pip cannot install the packages of tests/gpu/requirements.txt".to_owned());
    }
    if compiler_files(&folder).is_none() {
        return Err("its packages do not have the expected files".to_owned());
    }
    fs::write(&stamp, wanted).map_err(failed)
}

/// The files that [`COMPILERS`] name, if the packages are unpacked in this folder.
fn compiler_files(folder: &Path) -> Option<[PathBuf; 2]> {
    let all = folder.join("nvidia");
    let set =
        names_in(&all).into_iter().map(|name| all.join(name)).find(|set| set.join("bin/nvcc").is_file())?;
    let libraries = set.join("lib");
    let library = names_in(&libraries).into_iter().find(|name| name.starts_with("libnvrtc.so"))?;
    Some([set.join("bin/nvcc"), libraries.join(library)])
}

/// Runs a program that shows its progress.
fn succeeds_aloud(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(io::stderr());
    process::run(command, Place::Terminal).is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_packages_are_fetched() {
        let told = "Reading package lists...\n\
            Inst libgbm1 [22.3.6-1] (22.3.7 Debian:12 [amd64]) []\n\
            Inst libllvm15 (1:15.0.6-4+b1 Debian:12 [amd64])\n\
            Inst libvulkan1 (1.3.239.0-1 Debian:12 [amd64]) []\n\
            Conf libvulkan1 (1.3.239.0-1 Debian:12 [amd64])\n";
        assert_eq!(to_install(told), ["libllvm15", "libvulkan1"]);
        assert!(to_install("").is_empty());
    }

    #[test]
    fn a_description_names_the_library_where_it_is() {
        // Any folder that has a file of that name will do.
        let text = r#"{"ICD": {"api_version": "1.3.230", "library_path": "/usr/lib/Cargo.toml"}}"#;
        let folders = [PathBuf::from("/a-folder-that-nobody-has"), process::top().to_owned()];
        let described = serde_json::from_str::<Value>(&at_folders(text, &folders).unwrap()).unwrap();
        assert_eq!(described["ICD"]["library_path"], process::top().join("Cargo.toml").to_str().unwrap());
        assert_eq!(described["ICD"]["api_version"], "1.3.230");
        for bad in ["", "{}", r#"{"ICD": {"library_path": 1}}"#, r#"{"ICD": {"library_path": "none.so"}}"#] {
            assert_eq!(at_folders(bad, &folders), None, "{bad}");
        }
    }

    #[test]
    fn every_package_is_locked_to_its_content() {
        let text = fs::read_to_string(process::top().join(REQUIREMENTS)).unwrap();
        let packages: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(packages.len(), 5);
        for line in packages {
            assert!(line.contains("==") && line.contains(" --hash=sha256:"), "{line}");
        }
    }

    #[test]
    fn a_software_driver_is_known_by_its_name() {
        assert!(is_software(Path::new("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")));
        assert!(!is_software(Path::new("/usr/share/vulkan/icd.d/radeon_icd.x86_64.json")));
        assert!(compiler_files(Path::new("/a-folder-that-nobody-has")).is_none());
    }
}
