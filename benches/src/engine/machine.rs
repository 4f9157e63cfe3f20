//! What the bench asks of the operating system: threads on CPUs of their own, and how much memory a process holds.
//!
//! Linux only: elsewhere every call says so.

use anyhow::{Context as _, Result, bail};

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// The most that was ever resident, mapped files included.
    pub peak: u64,
    /// What the system cannot take back by dropping pages of a file: anonymous and shared memory.
    pub unreclaimable: u64,
}

/// Reads the memory of process `pid`.
pub fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kilobytes = |key: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let line = line.with_context(|| format!("{path} has no {key}"))?;
        line.trim().trim_end_matches(" kB").parse().with_context(|| format!("read {key} of {path}"))
    };
    Ok(Memory {
        peak: kilobytes("VmHWM")? * 1024,
        unreclaimable: (kilobytes("RssAnon")? + kilobytes("RssShmem")?) * 1024,
    })
}

/// Bytes that process `pid` had a disk read, by reading or by touching mapped pages.
pub fn read_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/io");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes:"));
    let count = line.with_context(|| format!("{path} says no read_bytes"))?;
    count.trim().parse().with_context(|| format!("read {path}"))
}

/// Bounds this thread, and the processes and threads it starts, to the first `count` CPUs.
pub fn bound_to_first_cpus(count: usize) -> Result<()> {
    set_cpus(None, 0..count)
}

/// Pins each of the `count` threads that compute most while `work` runs to a CPU of its own: thread pools do not
/// tell their threads' names.
pub fn pin_busiest_threads(count: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = thread_times()?;
    work()?;
    let mut used: Vec<(u64, i32)> = thread_times()?
        .into_iter()
        .map(|(tid, after)| {
            let start = before.iter().find(|(earlier, _)| *earlier == tid).map_or(0, |(_, start)| *start);
            (after - start, tid)
        })
        .collect();
    used.sort_unstable_by(|a, b| b.cmp(a));
    for (cpu, (_, tid)) in used.into_iter().take(count).enumerate() {
        set_cpus(Some(tid), cpu..cpu + 1)?;
    }
    Ok(())
}

/// Nanoseconds that each thread of this process has run.
fn thread_times() -> Result<Vec<(i32, u64)>> {
    let mut times = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task").context("list this process's threads")? {
        let entry = entry.context("list this process's threads")?;
        let tid: i32 = entry.file_name().to_string_lossy().parse().context("read a thread's number")?;
        let path = entry.path().join("schedstat");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let Some(Ok(ran)) = text.split_whitespace().next().map(str::parse) else {
            bail!("{} holds `{text}`", path.display());
        };
        times.push((tid, ran));
    }
    Ok(times)
}

#[cfg(target_os = "linux")]
fn set_cpus(tid: Option<i32>, cpus: std::ops::Range<usize>) -> Result<()> {
    use rustix::thread::{CpuSet, Pid, sched_setaffinity};
    let mut set = CpuSet::new();
    cpus.clone().for_each(|cpu| set.set(cpu));
    let pid = tid.and_then(Pid::from_raw);
    sched_setaffinity(pid, &set).with_context(|| format!("pin a thread to the CPUs {cpus:?}"))
}

#[cfg(not(target_os = "linux"))]
fn set_cpus(_tid: Option<i32>, _cpus: std::ops::Range<usize>) -> Result<()> {
    bail!("threads can be pinned on Linux only")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_read() {
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.unreclaimable > 0 && memory.peak >= memory.unreclaimable, "{memory:?}");
    }
}
