//! Checks tokenizers against recorded vectors of llama.cpp.
//!
//! A set of vectors has three files: `NAME.gguf` (vocabulary only), `NAME.gguf.inp` (texts) and
//! `NAME.gguf.out` (the ids of each text, one line each).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{TokenId, Tokenizer, TokenizerError};
use crate::gguf::{Gguf, GgufError};

/// The separator of two texts in an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Why vectors could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VectorError {
    /// A file or the folder could not be read.
    #[error("read `{path}`")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// A vocabulary file is malformed.
    #[error("open vocabulary `{path}`")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: Box<GgufError>,
    },
    /// The numbers of texts and of id lines differ, or an id is not a number.
    #[error("`{path}` line {line} does not hold the ids of a text")]
    Malformed {
        /// The `.out` file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// The result for one vocabulary.
#[derive(Debug)]
pub struct VectorReport {
    /// The vocabulary file's name.
    pub name: String,
    /// Texts compared.
    pub cases: usize,
    /// Texts whose ids, spans or decoded bytes were wrong.
    pub failures: Vec<VectorFailure>,
    /// Why the vocabulary is refused; then nothing was compared.
    pub refused: Option<TokenizerError>,
}

/// A text with a wrong result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorFailure {
    /// The text.
    pub text: String,
    /// The recorded ids.
    pub want: Vec<TokenId>,
    /// The ids found.
    pub found: Vec<TokenId>,
}

/// Encodes every recorded text of every vocabulary in a folder (those with `.inp` and `.out` files).
///
/// Each case checks the ids, that the spans cover the text in order, and that the tokens' bytes are the text
/// again (after the space that SentencePiece adds).
///
/// # Errors
/// If a file cannot be read. A vocabulary that gives no tokenizer is a report of its own.
pub fn check_vectors(dir: &Path) -> Result<Vec<VectorReport>, VectorError> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|err| VectorError::Read { path: path.to_owned(), err })
    };
    let entries = fs::read_dir(dir).map_err(|err| VectorError::Read { path: dir.to_owned(), err })?;
    let mut inputs: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.to_str().is_some_and(|p| p.ends_with(".gguf.inp")))
        .collect();
    inputs.sort();
    let mut reports = Vec::with_capacity(inputs.len());
    for input in inputs {
        let model = input.with_extension("");
        let gguf = Gguf::open(&model)
            .map_err(|err| VectorError::Gguf { path: model.clone(), err: Box::new(err) })?;
        let output = model.with_extension("gguf.out");
        let name = model.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        reports.push(match Tokenizer::from_gguf(&gguf) {
            Ok(tokenizer) => check_one(&tokenizer, name, &read(&input)?, &read(&output)?, &output)?,
            Err(err) => VectorReport { name, cases: 0, failures: Vec::new(), refused: Some(err) },
        });
    }
    Ok(reports)
}

fn check_one(
    tokenizer: &Tokenizer,
    name: String,
    input: &str,
    output: &str,
    path: &Path,
) -> Result<VectorReport, VectorError> {
    let malformed = |line| VectorError::Malformed { path: path.to_owned(), line };
    let texts: Vec<&str> = input.split(SEPARATOR).collect();
    let mut lines: Vec<&str> = output.split('\n').collect();
    while lines.len() > texts.len() && lines.last().is_some_and(|l| l.trim().is_empty()) {
        lines.pop();
    }
    let texts = match texts.split_last() {
        Some((last, rest)) if lines.len() == rest.len() && last.is_empty() => rest,
        _ => &texts,
    };
    if lines.len() != texts.len() {
        return Err(malformed(lines.len().min(texts.len()) + 1));
    }
    let mut report = VectorReport { name, cases: texts.len(), failures: Vec::new(), refused: None };
    for (i, (&text, line)) in texts.iter().zip(lines).enumerate() {
        let want = line.split_whitespace().map(str::parse).collect::<Result<Vec<TokenId>, _>>();
        let want = want.map_err(|_| malformed(i + 1))?;
        let (found, spans) = tokenizer.encode_spans(text);
        let ends: Vec<usize> = spans.iter().map(|s| s.end).collect();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let covered = spans.iter().zip(starts).all(|(s, start)| s.start == start && s.end >= start)
            && ends.last().is_none_or(|&end| end == text.len());
        let bytes: Vec<u8> = found.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        let back = bytes == text.as_bytes() || bytes.strip_prefix(b" ") == Some(text.as_bytes());
        if found != want || !covered || !back {
            report.failures.push(VectorFailure { text: text.to_owned(), want, found });
        }
    }
    Ok(report)
}
