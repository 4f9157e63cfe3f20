//! Keys of a terminal, as a conversation wants them.
//!
//! In a terminal's usual mode the system collects a line, and drops what is longer than 4,095 bytes. Keys
//! that are pressed while an answer is written also show up within it.

use std::io;

/// A terminal whose keys wait in the system until they are read, whole and unseen, while this lives. Pasted
/// text comes in brackets (DEC mode 2004). Ctrl-C and the like stay signals. Only one may live.
///
/// Dropping it gives the terminal back as it was, and so does [`leave`](crate::leave).
#[derive(Debug)]
pub struct KeyInput(());

impl KeyInput {
    /// Begins. Changes nothing on Windows, where keys wait in the console.
    ///
    /// # Errors
    /// Standard input is no terminal, or cannot be changed.
    pub fn begin() -> io::Result<Self> {
        mode::begin()?;
        Ok(Self(()))
    }
}

impl Drop for KeyInput {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was before [`KeyInput::begin`]. Does nothing if it was not changed.
pub(crate) fn restore() {
    mode::restore();
}

#[cfg(unix)]
mod mode {
    use std::io::{self, IsTerminal, Write as _};
    use std::sync::Mutex;

    use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

    const PASTE_IN_BRACKETS: &[u8] = b"\x1b[?2004h";
    const PASTE_AS_KEYS: &[u8] = b"\x1b[?2004l";

    /// The mode that the terminal had.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

    pub(super) fn begin() -> io::Result<()> {
        let before = tcgetattr(io::stdin())?;
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        if let Ok(mut place) = BEFORE.lock() {
            place.get_or_insert(before);
        }
        tell(PASTE_IN_BRACKETS)
    }

    pub(super) fn restore() {
        // The thread that holds the lock restores too, or has just begun.
        let Some(before) = BEFORE.try_lock().ok().and_then(|mut place| place.take()) else { return };
        // The program ends or goes on; there is nothing else to do about a terminal that cannot be changed.
        let _told = tell(PASTE_AS_KEYS);
        let _restored = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }

    /// Writes a sequence to the terminal.
    fn tell(sequence: &[u8]) -> io::Result<()> {
        if io::stderr().is_terminal() {
            return io::stderr().write_all(sequence);
        }
        let mut out = io::stdout().lock();
        if out.is_terminal() { out.write_all(sequence).and_then(|()| out.flush()) } else { Ok(()) }
    }
}

#[cfg(not(unix))]
mod mode {
    pub(super) fn begin() -> std::io::Result<()> {
        Ok(())
    }

    pub(super) fn restore() {}
}
