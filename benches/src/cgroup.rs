//! Control groups with limits on memory and on reading from a disk, for one process each; version 1 or 2.
//!
//! Linux and root only: elsewhere, and where a limit cannot be set, the reason is given and nothing is left behind.
//! A group and what is left of it in the system are removed when it is dropped, after its processes have ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};

/// Enters the groups in `$1`, separated by colons, then becomes the program behind it.
const ENTER: &str = r#"IFS=:; for group in $1; do echo $$ >"$group/cgroup.procs" || exit 1; done; unset IFS; shift; exec "$@""#;

/// A control group of its own.
#[derive(Debug)]
pub struct Cgroup {
    /// One in version 2; one for each controller in version 1.
    folders: Vec<PathBuf>,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// What a group may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of memory, page cache included.
    pub memory: u64,
    /// Bytes a second that are read from the disk with a file on it; no limit where `None`.
    pub reads_per_s: Option<u64>,
}

impl Cgroup {
    /// Makes a group called `name` with these limits; `file` lies on the disk that they are about.
    ///
    /// # Errors
    /// Why that cannot be done on this system.
    pub fn new(name: &str, limits: &Limits, file: &Path) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
        let name = format!("{name}-{}", std::process::id());
        let mut group = match (mount_of(&mounts, "memory"), unified(&mounts)) {
            (Some(mount), _) => Self { folders: vec![mount.join(&name)], version: Version::One },
            (None, Some(mount)) => {
                // Where it is there already, or cannot be had, the limit itself says so.
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
            let _ = fs::write(folder.join("memory.swap.max"), "0"); // Not there where nothing can be swapped.
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

    /// A command that runs `program` in the group, from its first instruction on.
    pub fn command(&self, program: &Path) -> Command {
        let [shell, words @ ..] = self.launcher();
        let mut command = Command::new(shell);
        command.args(words).arg(program);
        command
    }

    /// The words that stand before a program to run it in the group.
    pub fn launcher(&self) -> [String; 5] {
        let groups: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        ["sh", "-c", ENTER, "sh", &groups.join(":")].map(str::to_owned)
    }

    /// How many processes of the group were killed because its memory was at its end.
    pub fn kills(&self) -> Result<u64> {
        let file = if self.version == Version::One { "memory.oom_control" } else { "memory.events" };
        let path = self.folders[0].join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let count = line.with_context(|| format!("{} counts no kills", path.display()))?;
        count.trim().parse().with_context(|| format!("read {}", path.display()))
    }

    /// The most bytes that the group ever used, page cache included.
    pub fn peak_bytes(&self) -> Result<u64> {
        let file = if self.version == Version::One { "memory.max_usage_in_bytes" } else { "memory.peak" };
        let path = self.folders[0].join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        text.trim().parse().with_context(|| format!("read {}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            // A process that has just ended leaves its group a moment later.
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

/// Where the controller of version 1 is mounted.
fn mount_of(mounts: &str, controller: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, place, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        (kind == "cgroup" && options.split(',').any(|option| option == controller)).then(|| place.into())
    })
}

/// Where version 2 is mounted.
fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| place.into())
    })
}

/// The disk under a file, as `major:minor`; limits are for whole disks, not for their partitions.
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
