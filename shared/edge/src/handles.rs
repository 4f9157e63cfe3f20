//! Open files: how many this process may have, and how many connections that allows.
//!
//! Systems give a program a low soft limit (often 1,024) and let it raise that to a hard one. Always: files
//! are reserved for what the program needs besides connections, so that connections never take those of the
//! database.

use std::io;

use tracing::{info, warn};

use super::HttpLimits;

/// Files besides connections: model parts, database, listeners, traces, logs, those of the runtime.
const RESERVED: u64 = 64;

/// Raises the soft limit to the hard one. Returns the limit in force, or `None` if there is no limit.
///
/// # Errors
/// The system's error, with the limit that stays in force. macOS refuses to set a limit that it reports as
/// unlimited.
#[cfg(unix)]
fn raise_open_files() -> Result<Option<u64>, (io::Error, Option<u64>)> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(limit.current);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => Ok(limit.maximum),
        Err(err) => Err((err.into(), limit.current)),
    }
}

/// Windows has no such limit: open files are bounded by memory.
#[cfg(not(unix))]
fn raise_open_files() -> Result<Option<u64>, (io::Error, Option<u64>)> {
    Ok(None)
}

impl HttpLimits {
    /// Returns these limits with no more connections than the process may have open files, after raising the
    /// number of open files as far as the system allows.
    #[must_use]
    pub fn within_open_files(self) -> HttpLimits {
        let open_files = raise_open_files().unwrap_or_else(|(err, open_files)| {
            warn!(%err, "cannot raise the limit of open files");
            open_files
        });
        let asked = self.connections_max;
        let connections = connections_within(open_files, asked);
        if connections < asked {
            warn!(open_files, connections, asked, "fewer connections than asked for: each is an open file");
        } else {
            info!(open_files, connections, "open files");
        }
        HttpLimits { connections_max: connections, ..self }
    }
}

/// Returns how many of the connections asked for can have a file; at least one, however few files there are.
fn connections_within(open_files: Option<u64>, asked: usize) -> usize {
    let Some(files) = open_files else { return asked };
    let room = files.saturating_sub(RESERVED).max(files / 2).max(1);
    usize::try_from(room).map_or(asked, |room| asked.min(room))
}

#[cfg(test)]
mod tests {
    use super::connections_within;

    #[test]
    fn connections_leave_files_for_the_rest() {
        for (files, asked, want) in [
            (None, 2048, 2048),
            (Some(1 << 20), 2048, 2048),
            (Some(2112), 2048, 2048),
            (Some(2111), 2048, 2047),
            (Some(1024), 2048, 960),
            (Some(1024), 100, 100),
            (Some(96), 2048, 48),
            (Some(1), 2048, 1),
            (Some(0), 2048, 1),
        ] {
            assert_eq!(connections_within(files, asked), want, "{files:?} files, {asked} asked");
        }
    }
}
