//! Calls to the operating system: pinning threads to CPUs, and reading the memory and disk reads of a
//! process.
//!
//! Linux only: on other systems every call fails with an error.

use anyhow::{Context as _, Result, bail};

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// Peak resident memory, including mapped files.
    pub peak: u64,
    /// Memory that the system cannot free by dropping pages of a file: anonymous and shared memory.
    pub unreclaimable: u64,
}

/// Reads the memory of process `pid`.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
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

/// Returns the bytes that process `pid` has read from disk, by read calls or through mapped pages.
pub(crate) fn read_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/io");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes:"));
    let count = line.with_context(|| format!("{path} says no read_bytes"))?;
    count.trim().parse().with_context(|| format!("read {path}"))
}

/// Binds this thread, and the processes and threads that it starts, to the first `count` CPUs.
pub(crate) fn bound_to_first_cpus(count: usize) -> Result<()> {
    set_cpus(None, 0..count)
}

/// Pins each of the `count` threads that use most CPU time during `work` to its own CPU. They are found by
/// CPU time, because thread pools do not name their threads.
pub(crate) fn pin_busiest_threads(count: usize, work: impl FnOnce() -> Result<()>) -> Result<()> {
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

/// Returns the id and the CPU time in nanoseconds of each thread of this process.
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
