//! The child process that reads a document: this program, with a hidden command.
//!
//! It gets the document on standard input and gives the text on standard output. Always: it is killed when
//! the reading is given up, and there are few at once.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::confined::{COMMAND, Ending, MEMORY_MIB, TIME_S, WALL_S};
use super::{FILE_BYTES_MAX, Kind, TEXT_BYTES_MAX, Unreadable};

/// Children at once: each may have its memory and a core to itself.
static CHILDREN: Semaphore = Semaphore::const_new(2);
/// What a program may need to start: where its libraries are. Others may be secret.
const VARIABLES: [&str; 3] = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SystemRoot"];
/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Most bytes of the child's messages.
const MESSAGES_BYTES_MAX: u64 = 4096;
/// The standard library's words when memory is refused, and when a stack overflows.
const OUT_OF_MEMORY: &str = "memory allocation of ";
const OUT_OF_STACK: &str = "has overflowed its stack";
/// Signals of a stack that has overflowed and of the limit on CPU time, on Linux and macOS.
const SIGSEGV: i32 = 11;
const SIGXCPU: i32 = 24;

/// Has a child process read the document.
pub(super) async fn text(kind: Kind, document: impl AsyncRead + Unpin) -> Result<String, Unreadable> {
    // The semaphore is never closed.
    let _one_of_few = CHILDREN.acquire().await;
    let no_process = |err| Unreadable::NoProcess { kind: kind.name(), err };
    let mut child = command(kind).and_then(|mut command| command.spawn()).map_err(no_process)?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(input), Some(output), Some(messages)) = pipes else {
        return Err(no_process(io::ErrorKind::BrokenPipe.into()));
    };
    // The document may come as slowly as its sender likes.
    feed(input, document).await?;
    let (mut text, mut said) = (Vec::new(), Vec::new());
    let ended = async {
        let mut output = output.take(TEXT_BYTES_MAX as u64 + 1);
        let mut messages = messages.take(MESSAGES_BYTES_MAX);
        let read = tokio::join!(output.read_to_end(&mut text), messages.read_to_end(&mut said));
        read.0.and(read.1)?;
        child.wait().await
    };
    let ended = timeout(Duration::from_secs(WALL_S), ended).await;
    match ended {
        Ok(Ok(status)) => read_of(kind, status, text, &String::from_utf8_lossy(&said)),
        Ok(Err(err)) => Err(no_process(err)),
        Err(_) => {
            // It is gone before the next one may begin.
            child.kill().await.map_err(no_process)?;
            Err(Unreadable::TooSlow { kind: kind.name(), max_s: TIME_S })
        }
    }
}

/// Returns the command of a child with nothing of this process but its pipes.
fn command(kind: Kind) -> io::Result<Command> {
    let mut command = Command::new(program()?);
    command.args([COMMAND, kind.name(), &std::process::id().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let variables = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(variables).kill_on_drop(true);
    #[cfg(unix)]
    command.arg0("baton");
    #[cfg(windows)]
    {
        /// `CREATE_NO_WINDOW`.
        const NO_WINDOW: u32 = 0x0800_0000;
        command.creation_flags(NO_WINDOW);
    }
    Ok(command)
}

/// Returns the path of this program. On Linux it leads to the running program also after an update has
/// replaced or removed the file.
fn program() -> io::Result<std::path::PathBuf> {
    let running = std::path::Path::new("/proc/self/exe");
    match cfg!(any(target_os = "linux", target_os = "android")) && running.exists() {
        true => Ok(running.to_owned()),
        false => std::env::current_exe(),
    }
}

/// Gives the document to the child, or as much of it as the child takes.
async fn feed(mut child: ChildStdin, mut document: impl AsyncRead + Unpin) -> Result<(), Unreadable> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let more = document.read(&mut chunk).await.map_err(Unreadable::Input)?;
        bytes += more as u64;
        if bytes > FILE_BYTES_MAX {
            return Err(Unreadable::FileTooLong);
        }
        // A child that takes no more has ended, and its status says why.
        if more == 0 || child.write_all(&chunk[..more]).await.is_err() {
            return Ok(());
        }
    }
}

/// Returns what a child has read, or why it has not.
fn read_of(kind: Kind, status: ExitStatus, text: Vec<u8>, said: &str) -> Result<String, Unreadable> {
    let name = kind.name();
    let broken = |reason| Unreadable::Format { kind: name, reason };
    if text.len() > TEXT_BYTES_MAX {
        return Err(Unreadable::TooLong { max: TEXT_BYTES_MAX });
    }
    let text = String::from_utf8(text).map_err(|_| broken("its text is no UTF-8".to_owned()));
    match status.code().and_then(Ending::of) {
        Some(Ending::Text) => text,
        Some(Ending::Refused) => Err(broken(text?)),
        Some(Ending::TextTooLong) => Err(Unreadable::TooLong { max: TEXT_BYTES_MAX }),
        Some(Ending::OutOfMemory) => Err(Unreadable::TooLarge { kind: name, max_mib: MEMORY_MIB }),
        Some(Ending::OutOfTime) => Err(Unreadable::TooSlow { kind: name, max_s: TIME_S }),
        _ if said.contains(OUT_OF_MEMORY) => Err(Unreadable::TooLarge { kind: name, max_mib: MEMORY_MIB }),
        _ if said.contains(OUT_OF_STACK) || signal(status) == Some(SIGSEGV) => {
            Err(Unreadable::TooDeep { kind: name })
        }
        _ if signal(status) == Some(SIGXCPU) => Err(Unreadable::TooSlow { kind: name, max_s: TIME_S }),
        _ => Err(Unreadable::Crashed { kind: name, status: status.to_string() }),
    }
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal()
}

#[cfg(not(unix))]
fn signal(_status: ExitStatus) -> Option<i32> {
    None
}
