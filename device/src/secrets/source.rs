//! Where a secret comes from: the output of a command, such as one of the system's key store, or a file.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

/// The most bytes of a secret.
const SECRET_BYTES_MAX: u64 = 4096;

/// A command or a file that gives a secret: its first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// The system's shell runs it. Its standard input and errors are this program's own, so that it can ask
    /// a person.
    Command(String),
    /// A file, such as one that systemd or Kubernetes gives a service.
    File(PathBuf),
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The command cannot be run, or its output not read.
    #[error("run `{command}`")]
    Run {
        /// What was to be run.
        command: String,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// The command failed.
    #[error("`{command}` failed ({status}): its own message stands above; run it yourself to see")]
    Failed {
        /// What was run.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// The file cannot be read.
    #[error("read `{}`", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// What came is no secret.
    #[error("{origin} gave no secret: want one line of text, 1 to 4096 bytes in UTF-8")]
    NoSecret {
        /// The command or the file.
        origin: String,
    },
}

impl SecretSource {
    /// Reads the secret. Waits for the command, which may ask a person.
    ///
    /// # Errors
    /// [`SourceError`] if the command or the file does not give one.
    pub fn read(&self) -> Result<String, SourceError> {
        let (bytes, origin) = match self {
            Self::Command(command) => (output(command)?, format!("`{command}`")),
            Self::File(path) => {
                let named = |err| SourceError::File { path: path.clone(), err };
                let file = std::fs::File::open(path).map_err(named)?;
                (first_bytes(file).map_err(named)?, format!("`{}`", path.display()))
            }
        };
        let text = String::from_utf8(bytes).ok();
        let line = text.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
        match line.len() as u64 {
            1..=SECRET_BYTES_MAX => Ok(line.to_owned()),
            _ => Err(SourceError::NoSecret { origin }),
        }
    }
}

/// Reads a little more than a secret may have.
fn first_bytes(from: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(SECRET_BYTES_MAX + 2).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn output(command: &str) -> Result<Vec<u8>, SourceError> {
    let named = |err| SourceError::Run { command: command.to_owned(), err };
    let mut shell = if cfg!(windows) { Command::new("cmd") } else { Command::new("sh") };
    shell.arg(if cfg!(windows) { "/C" } else { "-c" }).arg(command);
    let mut child = shell.stdout(Stdio::piped()).spawn().map_err(named)?;
    let bytes = child.stdout.take().map(first_bytes).transpose().map(Option::unwrap_or_default);
    let status = child.wait().map_err(named)?;
    let bytes = bytes.map_err(named)?;
    // A command that was told off because it wrote too much fails too; what it wrote says more.
    if !status.success() && bytes.len() as u64 <= SECRET_BYTES_MAX {
        return Err(SourceError::Failed { command: command.to_owned(), status });
    }
    Ok(bytes)
}
