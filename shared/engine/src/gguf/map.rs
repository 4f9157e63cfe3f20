//! The one place of the engine that maps files: read-only, whole, for the life of the model.
//!
//! Never writes, never hands out the mapping itself, only its bytes.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A model file mapped into memory.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole of `file` for reading.
    ///
    /// The file has to keep still while it is mapped: the model store writes a model under another name
    /// and renames it when it is whole, so a finished file is replaced, never changed in place. A person
    /// who truncates a model in use ends the program with a bus error, as with every mapped loader.
    ///
    /// # Errors
    /// What the system says when it cannot map.
    pub(super) fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private and read-only, and model files are replaced by rename, never
        // changed in place (the model store's rule, stated above), so the bytes keep still.
        let map = unsafe { Mmap::map(file) }?;
        // Pages read from now on come in huge ones, where the file system has them: with pages of 4 KiB decoding
        // spends a tenth of its time on looking addresses up (measured). Elsewhere this is refused and changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(MappedFile { map })
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
