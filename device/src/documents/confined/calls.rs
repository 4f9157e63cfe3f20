//! The system calls that reading a document needs; Linux refuses all others.

use std::collections::BTreeMap;

use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Memory, the pipes that are open, threads that are there, the clock, random numbers, the end.
const ALLOWED: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Allows these calls to all threads of the process. A system without such filters leaves the other limits.
pub(super) fn allow_few() {
    let Some(program) = filter() else { return };
    // What is not allowed fails with EPERM, so that a library can still say what it wanted.
    drop(seccompiler::apply_filter_all_threads(&program));
}

fn filter() -> Option<seccompiler::BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    // Signals to this process only: how it aborts.
    let own = u64::from(std::process::id());
    let to_itself = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own).ok()?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![to_itself]).ok()?]);
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH).ok()?;
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch).ok()?;
    filter.try_into().ok()
}
