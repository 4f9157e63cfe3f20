//! The process that reads one document: little memory, little time, nothing of the system but its pipes.
//!
//! `baton` starts itself with the command [`COMMAND`]. The process takes the limits on itself before the
//! first byte of the document: on Unix by `setrlimit`, on Linux also by a list of allowed system calls. Where
//! the system does not hold the limits of memory and time, a thread watches them. It also ends the process if
//! the one that started it is gone.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod calls;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use super::{FILE_BYTES_MAX, Kind, TEXT_BYTES_MAX, extract};

/// The hidden command. Behind it stand the format's name and the starting process's number.
pub const COMMAND: &str = "read-document";
/// Memory of the process, in MiB.
pub const MEMORY_MIB: u64 = 256;
/// Time that it may compute, in seconds. It has one core, and shares that if the machine is busy.
pub const TIME_S: u64 = 9;
/// Time from the end of the document to the end of the process, in seconds: a guard against one that waits.
/// Without a limit on computing it is that limit.
pub(super) const WALL_S: u64 = if cfg!(unix) { 6 * TIME_S } else { TIME_S };
/// Bytes of the limit on writable memory: the program's own pages come to it.
#[cfg(unix)]
const DATA_BYTES_MAX: u64 = (MEMORY_MIB - 24) << 20;
/// Stack of the thread that reads: formats nest as deep as a broken file says.
const STACK_BYTES: usize = 32 << 20;
/// Time between two looks of the watching thread.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// How the process ends, as its exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The output is the text.
    Text = 0,
    /// The output is the reason why there is none.
    Refused = 10,
    TextTooLong,
    OutOfMemory,
    OutOfTime,
    /// The process that started it is gone, or the limits could not be set.
    GivenUp,
}

impl Ending {
    /// Returns the ending of an exit status.
    pub(super) fn of(status: i32) -> Option<Self> {
        let all =
            [Self::Text, Self::Refused, Self::TextTooLong, Self::OutOfMemory, Self::OutOfTime, Self::GivenUp];
        all.into_iter().find(|&ending| ending as i32 == status)
    }

    fn exit(self) -> ! {
        std::process::exit(self as i32)
    }
}

/// Reads the document on standard input and writes its text, if the command line says so; otherwise does
/// nothing. To be called before a program does anything else: then the process starts in milliseconds.
pub fn run_if_asked(line: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut words = line.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    if words.next()? != COMMAND {
        return None;
    }
    let kind = words.next().and_then(|name| Kind::ALL.into_iter().find(|kind| kind.name() == name));
    let (Some(kind), Some(parent)) = (kind, words.next().and_then(|number| number.parse().ok())) else {
        return Some(ExitCode::from(Ending::GivenUp as u8));
    };
    // Messages of a library that fails may be as long as the document.
    std::panic::set_hook(Box::new(|_| {}));
    // One of the limits is that no thread begins, so both must have begun before.
    let both = Arc::new(Barrier::new(2));
    let begun = both.clone();
    let watching = Builder::new().spawn(move || {
        begun.wait();
        watch(parent);
    });
    let reading = Builder::new().stack_size(STACK_BYTES).spawn(move || {
        both.wait();
        read(kind);
    });
    if let (Ok(_), Ok(reading)) = (watching, reading) {
        // It returns only if it panics.
        drop(reading.join());
    }
    Some(ExitCode::from(Ending::GivenUp as u8))
}

/// When the document was there as a whole.
static COMPLETE: OnceLock<Instant> = OnceLock::new();

/// Reads the document and ends the process.
fn read(kind: Kind) {
    if limit().is_err() {
        Ending::GivenUp.exit();
    }
    let mut bytes = Vec::new();
    let document = io::stdin().take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    bytes.shrink_to_fit();
    COMPLETE.get_or_init(Instant::now);
    let text = document.map_err(|err| err.to_string()).and_then(|_| extract(kind, bytes));
    let (ending, output) = match text {
        Ok(text) if text.len() > TEXT_BYTES_MAX => (Ending::TextTooLong, String::new()),
        Ok(text) => (Ending::Text, text),
        Err(reason) => (Ending::Refused, reason.chars().take(REASON_CHARS_MAX).collect()),
    };
    let mut out = io::stdout();
    let written = out.write_all(output.as_bytes()).and_then(|()| out.flush());
    written.map_or(Ending::GivenUp, |()| ending).exit()
}

/// Longest reason, in characters: a library's message may hold a part of the document.
const REASON_CHARS_MAX: usize = 300;

/// Ends the process when its parent is gone, or its memory or its time is over.
fn watch(parent: u32) {
    loop {
        if is_gone(parent) {
            Ending::GivenUp.exit();
        }
        // Linux holds the limit itself.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        if baton_engine::platform::own_bytes().is_some_and(|bytes| bytes > MEMORY_MIB << 20) {
            Ending::OutOfMemory.exit();
        }
        if COMPLETE.get().is_some_and(|at| at.elapsed() > Duration::from_secs(WALL_S)) {
            Ending::OutOfTime.exit();
        }
        thread::sleep(WATCH_EVERY);
    }
}

#[cfg(unix)]
fn is_gone(parent: u32) -> bool {
    rustix::process::getppid().is_none_or(|now| now.as_raw_nonzero().get().cast_unsigned() != parent)
}

/// Whoever ends it there kills it, or it ends by its time.
#[cfg(not(unix))]
fn is_gone(_parent: u32) -> bool {
    false
}

/// Takes the limits on the process.
#[cfg(unix)]
fn limit() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limits = [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
        (Resource::Data, DATA_BYTES_MAX),
        (Resource::Cpu, TIME_S),
        // No file is opened after this, nor a socket.
        (Resource::Nofile, 0),
    ];
    for (resource, most) in limits {
        // The first limit on computing ends the process by a signal of its own, the second one kills it.
        let more = u64::from(resource == Resource::Cpu);
        let maximum = getrlimit(resource).maximum.map_or(most + more, |now| now.min(most + more));
        setrlimit(resource, Rlimit { current: Some(most.min(maximum)), maximum: Some(maximum) })?;
    }
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    calls::allow_few();
    Ok(())
}

#[cfg(not(unix))]
fn limit() -> io::Result<()> {
    Ok(())
}
