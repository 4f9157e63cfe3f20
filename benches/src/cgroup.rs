//! Linux control groups (version 1 or 2) with limits on memory and on disk reads, for one process each.
//!
//! They need Linux and root. If a limit cannot be set, the error gives the reason and no folder is left
//! behind. A group is removed from the system when it is dropped, after its processes have ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};

/// Shell script that enters the groups in `$1`, separated by colons, and then runs the program in the other
/// arguments.
const ENTER: &str = r#"IFS=:; for group in $1; do echo $$ >"$group/cgroup.procs" || exit 1; done; unset IFS; shift; exec "$@""#;

/// A control group.
#[derive(Debug)]
pub(crate) struct Cgroup {
    /// One folder in version 2; one for each controller in version 1.
    folders: Vec<PathBuf>,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The limits of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of memory, including page cache.
    pub memory: u64,
    /// Bytes per second read from the disk of the model file; `None` for no limit.
    pub reads_per_s: Option<u64>,
}

impl Cgroup {
    /// Makes a group called `name` with these limits. `file` is on the disk whose reads are limited.
    ///
    /// # Errors
    /// If that is not possible on this system.
    pub(crate) fn new(name: &str, limits: &Limits, file: &Path) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        let name = format!("{name}-{}", std::process::id());
        let mut group = match (mount_of(&mounts, "memory"), unified(&mounts)) {
            (Some(mount), _) => Self { folders: vec![mount.join(&name)], version: Version::One },
            (None, Some(mount)) => {
                // An error is ignored here: if the controllers are missing, setting the limit fails below.
                let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory +io");
                Self { folders: vec![mount.join(&name)], version: Version::Two }
            }
            (None, None) => return Err(anyhow!("no control groups for memory are mounted")),
        };
        let folder = group.folders[0].clone();
        fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let limit = if group.version == Version::One { "memory.limit_in_bytes" } else { "memory.max" };
        write(&folder.join(limit), &limits.memory.to_string())?;
        if group.version == Version::Two {
            let _ = fs::write(folder.join("memory.swap.max"), "0"); // The file is missing if swapping is off.
        }
        if let Some(rate) = limits.reads_per_s {
            group.limit_reads(&mounts, &name, file, rate)?;
        }
        Ok(group)
    }

    fn limit_reads(&mut self, mounts: &str, name: &str, file: &Path, rate: u64) -> Result<()> {
        let disk = disk_of(file)?;
        match self.version {
            Version::Two => write(&self.folders[0].join("io.max"), &format!("{disk} rbps={rate}")),
            Version::One => {
                let mount = mount_of(mounts, "blkio").context("no control groups for disks are mounted")?;
                let folder = mount.join(name);
                fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
                self.folders.push(folder.clone());
                write(&folder.join("blkio.throttle.read_bps_device"), &format!("{disk} {rate}"))
            }
        }
    }

    /// Makes a command that runs `program` in the group from its first instruction on.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let [shell, words @ ..] = self.launcher();
        let mut command = Command::new(shell);
        command.args(words).arg(program);
        command
    }

    /// Returns the words that run a program in the group if they are put before its command line.
    pub(crate) fn launcher(&self) -> [String; 5] {
        let groups: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        ["sh", "-c", ENTER, "sh", &groups.join(":")].map(str::to_owned)
    }

    /// Returns how many processes of the group were killed because they exceeded the memory limit.
    pub(crate) fn kills(&self) -> Result<u64> {
        let file = if self.version == Version::One { "memory.oom_control" } else { "memory.events" };
        let path = self.folders[0].join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let count = line.with_context(|| format!("{} counts no kills", path.display()))?;
        count.trim().parse().with_context(|| format!("read {}", path.display()))
    }

    /// Returns the peak memory of the group in bytes, including page cache.
    pub(crate) fn peak_bytes(&self) -> Result<u64> {
        let file = if self.version == Version::One { "memory.max_usage_in_bytes" } else { "memory.peak" };
        let path = self.folders[0].join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        text.trim().parse().with_context(|| format!("read {}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            // A process that has just ended leaves its group after a short delay.
            for _ in 0..100 {
                if fs::remove_dir(folder).is_ok() || !folder.is_dir() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write `{text}` to {}", path.display()))
}

/// Returns the mount point of a controller of version 1.
fn mount_of(mounts: &str, controller: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, place, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        (kind == "cgroup" && options.split(',').any(|option| option == controller)).then(|| place.into())
    })
}

/// Returns the mount point of version 2.
fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| place.into())
    })
}

/// Returns the disk of a file as `major:minor`. Limits apply to whole disks, not to partitions.
#[cfg(target_os = "linux")]
fn disk_of(file: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt as _;
    let dev = fs::metadata(file).with_context(|| format!("look at {}", file.display()))?.dev();
    let own = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let block = PathBuf::from("/sys/dev/block").join(&own);
    if !block.join("partition").exists() {
        return Ok(own);
    }
    let whole = fs::canonicalize(&block).with_context(|| format!("look at {}", block.display()))?;
    let parent = whole.parent().context("a partition has a disk")?.join("dev");
    let text = fs::read_to_string(&parent).with_context(|| format!("read {}", parent.display()))?;
    Ok(text.trim().to_owned())
}

#[cfg(not(target_os = "linux"))]
fn disk_of(_file: &Path) -> Result<String> {
    Err(anyhow!("disks can be limited on Linux only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                         cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                         cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    #[test]
    fn controllers_are_found_where_they_are_mounted() {
        assert_eq!(mount_of(MIXED, "memory"), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(mount_of(MIXED, "blkio"), None);
        assert_eq!(unified(MIXED), Some("/sys/fs/cgroup/unified".into()));
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!((mount_of(two, "memory"), unified(two)), (None, Some("/sys/fs/cgroup".into())));
        assert_eq!(unified("proc /proc proc rw 0 0"), None);
    }

    #[test]
    fn a_process_runs_in_its_group_or_the_reason_is_given() {
        let limits = Limits { memory: 64 << 20, reads_per_s: None };
        match Cgroup::new("baton-test", &limits, Path::new(".")) {
            Ok(group) => {
                let folders = group.folders.clone();
                let mut command = group.command(Path::new("cat"));
                let out = command.arg("/proc/self/cgroup").output().unwrap();
                let text = String::from_utf8(out.stdout).unwrap();
                assert!(out.status.success() && text.contains("baton-test-"), "{text}");
                assert_eq!(group.kills().unwrap(), 0);
                drop(group);
                assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?} are left");
            }
            Err(err) => assert!(!format!("{err:#}").is_empty()),
        }
    }
}
