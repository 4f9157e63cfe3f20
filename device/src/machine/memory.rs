//! How much memory weights, KV cache and buffers may use, by the rules of each system.
//!
//! Linux reports what it can give without swapping (`MemAvailable`). The limits of a container, its own and
//! those above it, may leave less. Their page cache counts as free, because mapped weights are part of it.
//! Android swaps other programs' pages out first, so what it can swap is added. The kernels of macOS and
//! Windows answer a call.
//!
//! Files are read below a root folder, so that tests can use recorded systems.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Share of the available memory that is used: the rest is for what other programs need meanwhile.
const USED_SHARE: f64 = 0.9;
/// The same share within a control group: no other programs share it, only the kernel's pages for it come
/// on top.
const GROUP_USED_SHARE: f64 = 0.98;

/// Memory for a model, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// What may be used without swapping.
    pub available_bytes: u64,
    /// What Android can swap out in addition; 0 elsewhere.
    pub swap_bytes: u64,
    /// What sets the limit: the system, or the container whose limit is smaller.
    pub bound_by: String,
}

/// Why the memory cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A file of the system cannot be read.
    #[error("read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A field is missing in what the system reports.
    #[error("`{place}` says no {field}")]
    Missing {
        /// The file.
        place: String,
        /// The missing field.
        field: &'static str,
    },
    /// The kernel does not say it.
    #[error("ask the system for its free memory: {0}")]
    Kernel(std::io::Error),
}

/// Reads the memory of a Linux or Android system whose `/proc` and `/sys` are below `root`. This program
/// gives `held_bytes` of its own back when others need them, so they count as available.
///
/// # Errors
/// [`MemoryError`] naming the file and the field.
pub fn of_linux(root: &Path, android: bool, held_bytes: u64) -> Result<Memory, MemoryError> {
    let path = root.join("proc/meminfo");
    let text = read(&path)?;
    let fields = fields(&text);
    let kilobytes = |field: &'static str| {
        let missing = || MemoryError::Missing { place: path.display().to_string(), field };
        fields.get(field).copied().ok_or_else(missing)
    };
    let with_held = |bytes: u64, share| used(bytes.saturating_add(held_bytes), share);
    let mut available_bytes = with_held(kilobytes("MemAvailable")? * 1024, USED_SHARE);
    let mut bound_by = "system".to_owned();
    if let Some((left, group)) = cgroup_left(root)
        && with_held(left, GROUP_USED_SHARE) < available_bytes
    {
        (available_bytes, bound_by) = (with_held(left, GROUP_USED_SHARE), group);
    }
    let swap_bytes = if android {
        let anonymous = kilobytes("Active(anon)")? + kilobytes("Inactive(anon)")?;
        anonymous.min(kilobytes("SwapFree")?) * 1024
    } else {
        0
    };
    Ok(Memory { available_bytes, swap_bytes, bound_by })
}

/// Returns the memory of a macOS or Windows system, whose kernel says how many bytes are free. `held_bytes`
/// count as for [`of_linux`].
///
/// # Errors
/// [`MemoryError::Kernel`] if it does not say that.
pub fn of_kernel(free: std::io::Result<u64>, held_bytes: u64) -> Result<Memory, MemoryError> {
    let free = free.map_err(MemoryError::Kernel)?;
    let available_bytes = used(free.saturating_add(held_bytes), USED_SHARE);
    Ok(Memory { available_bytes, swap_bytes: 0, bound_by: "system".to_owned() })
}

fn used(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

fn read(path: &Path) -> Result<String, MemoryError> {
    std::fs::read_to_string(path).map_err(|source| MemoryError::Read { path: path.to_owned(), source })
}

/// Reads lines such as `Name: 12 kB` or `name 12`.
fn fields(text: &str) -> BTreeMap<&str, u64> {
    let field = |line: &'_ str| -> Option<(usize, u64)> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        Some((name.len(), words.next()?.parse().ok()?))
    };
    text.lines()
        .filter_map(|line| field(line).map(|(len, value)| (line[..len].trim_end_matches(':'), value)))
        .collect()
}

/// The files of one version of control groups.
struct Version {
    limit: &'static str,
    usage: &'static str,
    /// The fields of `memory.stat` that count page cache.
    cache: [&'static str; 2],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};
const V2: Version =
    Version { limit: "memory.max", usage: "memory.current", cache: ["inactive_file", "active_file"] };

/// Returns the least that this process's control group, or one above it, leaves, and its name. Returns
/// `None` without limits.
fn cgroup_left(root: &Path) -> Option<(u64, String)> {
    let membership = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut least: Option<(u64, String)> = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, own) = (parts.next()?, parts.next()?, parts.next()?);
        let (version, mount) = match controllers {
            "" => (V2, "sys/fs/cgroup"),
            list if list.split(',').any(|name| name == "memory") => (V1, "sys/fs/cgroup/memory"),
            _ => continue,
        };
        // In a container this path may not exist below the mount point, which is then the process's own
        // group.
        let mut path = own.trim_start_matches('/');
        loop {
            let found = left(&root.join(mount).join(path), &version);
            if let Some(left) = found
                && least.as_ref().is_none_or(|(least, _)| left < *least)
            {
                least = Some((left, format!("control group /{path}")));
            }
            if path.is_empty() {
                break;
            }
            path = path.rfind('/').map_or("", |at| &path[..at]);
        }
    }
    least
}

/// Returns what one group leaves: its limit minus its usage without page cache.
fn left(group: &Path, version: &Version) -> Option<u64> {
    let number = |file: &str| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // `max`, which means no limit, does not parse as a number.
    let limit = number(version.limit)?;
    let usage = number(version.usage)?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let stat = fields(&stat);
    let cache: u64 = version.cache.iter().filter_map(|name| stat.get(name)).sum();
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24684092 kB\nMemFree:        15157292 kB\nMemAvailable:   17114356 kB\n\
                           Active(anon):    3000000 kB\nInactive(anon):  1000000 kB\nSwapTotal:       8000000 kB\nSwapFree:        2500000 kB\n";

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", MEMINFO)].iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_system_without_limits_gives_what_it_calls_available() {
        let root = system(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]);
        let memory = of_linux(root.path(), false, 0).unwrap();
        let want = Memory {
            available_bytes: used(17_114_356 * 1024, USED_SHARE),
            swap_bytes: 0,
            bound_by: "system".to_owned(),
        };
        assert_eq!(memory, want);
    }

    /// Checks how many bytes the processes of a control group have, of how many that are free, and its name.
    #[track_caller]
    fn check_group(files: &[(&str, &str)], free_bytes: u64, group: &str) {
        let memory = of_linux(system(files).path(), false, 0).unwrap();
        let want = (used(free_bytes, GROUP_USED_SHARE), format!("control group {group}"));
        assert_eq!((memory.available_bytes, memory.bound_by), want);
    }

    #[test]
    fn the_smallest_limit_above_a_process_counts_and_its_page_cache_is_free() {
        let stat = "anon 300000000\ninactive_file 900000000\nactive_file 200000000\n";
        let files = [
            ("proc/self/cgroup", "0::/home/ring\n"),
            ("sys/fs/cgroup/home/ring/memory.max", "4000000000\n"),
            ("sys/fs/cgroup/home/ring/memory.current", "100000000\n"),
            ("sys/fs/cgroup/home/memory.max", "2000000000\n"),
            ("sys/fs/cgroup/home/memory.current", "1500000000\n"),
            ("sys/fs/cgroup/home/memory.stat", stat),
        ];
        check_group(&files, 1_600_000_000, "/home");
    }

    #[test]
    fn the_first_version_of_control_groups_is_read_as_well() {
        let stat = "cache 1\ntotal_inactive_file 700000000\ntotal_active_file 400000000\n";
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n0::/\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1300000000\n"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1200000000\n"),
            ("sys/fs/cgroup/memory/a/b/memory.stat", stat),
        ];
        check_group(&files, 1_200_000_000, "/a/b");
    }

    #[test]
    fn what_the_program_itself_gives_back_counts_as_free() {
        let system = system(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "4000000000\n"),
            ("sys/fs/cgroup/a/memory.current", "3000000000\n"),
        ]);
        let with = |held| of_linux(system.path(), false, held).unwrap();
        assert_eq!(with(500_000_000).available_bytes, used(1_500_000_000, GROUP_USED_SHARE));
        assert_eq!(with(0).bound_by, with(500_000_000).bound_by);
        assert_eq!(of_kernel(Ok(600_000), 400_000).unwrap().available_bytes, 900_000);
    }

    #[test]
    fn android_swaps_out_what_others_hold() {
        let memory = of_linux(system(&[]).path(), true, 0).unwrap();
        assert_eq!(memory.swap_bytes, 2_500_000 * 1024);
    }

    #[test]
    fn a_kernel_that_counts_leaves_a_part_to_others() {
        assert_eq!(of_kernel(Ok(1_000_000), 0).unwrap().available_bytes, 900_000);
        let error = of_kernel(Err(std::io::Error::other("no")), 0).unwrap_err().to_string();
        assert_eq!(error, "ask the system for its free memory: no");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert!(of_linux(root.path(), false, 0).unwrap_err().to_string().contains("proc/meminfo"));
        let root = system(&[("proc/meminfo", "MemTotal: 1 kB\n")]);
        assert!(of_linux(root.path(), false, 0).unwrap_err().to_string().ends_with("says no MemAvailable"));
    }
}
