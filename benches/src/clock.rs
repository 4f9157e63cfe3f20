//! CPU time, which other programs on the machine do not affect.
//!
//! If the system does not report it, wall-clock time is used instead.

#[cfg(not(target_os = "linux"))]
use std::{sync::LazyLock, time::Instant};

/// Returns the CPU time of this thread in seconds.
pub(crate) fn thread_seconds() -> f64 {
    seconds(Whose::Thread)
}

/// Returns the CPU time of all threads of this process in seconds.
pub(crate) fn process_seconds() -> f64 {
    seconds(Whose::Process)
}

enum Whose {
    Thread,
    Process,
}

#[cfg(target_os = "linux")]
fn seconds(whose: Whose) -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(match whose {
        Whose::Thread => ClockId::ThreadCPUTime,
        Whose::Process => ClockId::ProcessCPUTime,
    });
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

#[cfg(not(target_os = "linux"))]
fn seconds(_: Whose) -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_while_something_is_computed() {
        let (thread, process) = (thread_seconds(), process_seconds());
        let mut x = 1u64;
        while thread_seconds() <= thread || process_seconds() <= process {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(x != 0);
    }
}
