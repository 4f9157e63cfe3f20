//! The results file: one JSON line per result, written as soon as a case is done.
//!
//! The first line names the models of the results; a file of other models is rejected. An incomplete last
//! line, left by a killed run, is removed. A result counts only if its case has not changed: a case with
//! another text, question or answers is run again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::case::Case;
use crate::detect::Faults;

/// The version of the file's format.
const VERSION: u32 = 1;

/// The result of one case in one arm.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Id of the case.
    pub case: String,
    /// Digest of the case's content (see [`digest_of`]).
    pub digest: String,
    /// Name of the arm.
    pub arm: String,
    /// Suite of the case.
    pub suite: String,
    /// Group of the case.
    pub group: String,
    /// Length bucket of the case, in tokens.
    pub length: usize,
    /// Cluster of the case.
    pub cluster: u64,
    /// Name of the metric.
    #[serde(default)]
    pub metric: String,
    /// Score of the answer, 0 to 1; `None` for arms that do not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Share of the gold sentences that the mask keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<f64>,
    /// Whether the gold sentences fit into the mask's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gold_fits: Option<bool>,
    /// Share of the content's tokens that the mask keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f32>,
    /// Mean natural logarithm of the probability of the right answer's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_ln_p: Option<f64>,
    /// Share of the tokens of the cloud's answer that the device's model finds most probable too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance: Option<f64>,
    /// Tokens of the prompt that the answer was written from.
    #[serde(default)]
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    #[serde(default)]
    pub tokens: usize,
    /// For each of the cloud's tokens, `1` if the device would have written the same, else `0`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agreement: String,
    /// The faults of the answer.
    #[serde(default)]
    pub faults: Faults,
    /// The answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The models of the results: the first line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The version of the file's format.
    pub baton_eval: u32,
    /// Digest of the cloud's model, and its calibrated heads if there are any.
    pub cloud: String,
    /// For each device: name, digest of its model, window.
    pub devices: Vec<String>,
}

impl Origin {
    /// Makes the origin of these models.
    pub fn new(cloud: String, devices: Vec<String>) -> Self {
        Self { baton_eval: VERSION, cloud, devices }
    }
}

/// Why a results file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system reported an error.
    #[error("use results file `{path}`")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// The file is not a results file of this format.
    #[error("`{path}` is not a results file of format {VERSION}")]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// The file contains results of other models.
    #[error("`{path}` holds results of other models or devices; name another file")]
    OtherModels {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a result.
    #[error("line {line} of `{path}` is no result: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
}

/// Results in memory, and on disk if it was opened on a file.
#[derive(Debug, Default)]
pub struct Store {
    rows: HashMap<(String, String), Row>,
    file: Option<(PathBuf, File)>,
}

/// Returns the digest of everything that affects a case's prompt and score.
pub fn digest_of(case: &Case) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    };
    for text in [&case.system, &case.lead, &case.content, &case.question] {
        add(text);
    }
    case.answers.iter().chain(&case.classes).for_each(|answer| add(answer));
    add(&format!("{:?} {:?} {}", case.gold, case.metric, case.max_tokens));
    hex::encode(&digest.finalize()[..8])
}

impl Store {
    /// Makes a store that is only in memory.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Opens a results file, or creates it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path, origin: &Origin) -> Result<Self, StoreError> {
        let io = |err| StoreError::Io { path: path.to_owned(), err };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        let mut store = Self::default();
        let whole = store.read(path, &file, origin)?;
        file.set_len(whole).map_err(io)?;
        if whole == 0 {
            let mut line = serde_json::to_string(origin).expect("an origin is JSON");
            line.push('\n');
            file.write_all(line.as_bytes()).map_err(io)?;
        }
        store.file = Some((path.to_owned(), file));
        Ok(store)
    }

    /// Reads the file; returns the length of all complete lines in bytes.
    fn read(&mut self, path: &Path, file: &File, origin: &Origin) -> Result<u64, StoreError> {
        let mut reader = BufReader::new(file);
        let mut whole = 0;
        for number in 1.. {
            let mut line = Vec::new();
            let n = reader
                .read_until(b'\n', &mut line)
                .map_err(|err| StoreError::Io { path: path.to_owned(), err })?;
            if !line.ends_with(b"\n") {
                // The end, or an incomplete line of a killed run. A file that is not a results file is left
                // alone.
                if number == 1 && !line.is_empty() && !line.starts_with(b"{\"baton_eval\"") {
                    return Err(StoreError::Format { path: path.to_owned() });
                }
                break;
            }
            if number == 1 {
                let have: Origin = serde_json::from_slice(&line)
                    .map_err(|_| StoreError::Format { path: path.to_owned() })?;
                if have.baton_eval != origin.baton_eval {
                    return Err(StoreError::Format { path: path.to_owned() });
                }
                if have != *origin {
                    return Err(StoreError::OtherModels { path: path.to_owned() });
                }
            } else {
                let row: Row = serde_json::from_slice(&line).map_err(|err| StoreError::Line {
                    path: path.to_owned(),
                    line: number,
                    message: err.to_string(),
                })?;
                self.rows.insert((row.case.clone(), row.arm.clone()), row);
            }
            whole += n as u64;
        }
        Ok(whole)
    }

    /// Returns the result of a case in an arm, or `None` if there is none or the case has changed.
    pub fn get(&self, case: &Case, arm: &str) -> Option<&Row> {
        let row = self.rows.get(&(case.id.clone(), arm.to_owned()))?;
        (row.digest == digest_of(case)).then_some(row)
    }

    /// Stores the results of one case, on disk first.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn add(&mut self, rows: Vec<Row>) -> Result<(), StoreError> {
        if let Some((path, file)) = &mut self.file {
            let lines: String = rows
                .iter()
                .map(|row| serde_json::to_string(row).expect("rows have finite numbers") + "\n")
                .collect();
            file.write_all(lines.as_bytes()).map_err(|err| StoreError::Io { path: path.clone(), err })?;
        }
        for row in rows {
            self.rows.insert((row.case.clone(), row.arm.clone()), row);
        }
        Ok(())
    }

    /// Returns all results, ordered by case and arm.
    pub fn rows(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        rows.sort_by(|a, b| (&a.case, &a.arm).cmp(&(&b.case, &b.arm)));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{Metric, TextMetric};

    fn case(id: &str, question: &str) -> Case {
        Case {
            id: id.into(),
            suite: "facts",
            group: "short".into(),
            length: 0,
            cluster: 1,
            system: String::new(),
            lead: String::new(),
            content: "Text.".into(),
            question: question.into(),
            answers: vec!["A".into()],
            gold: vec![],
            metric: Metric::Text(TextMetric::Exact),
            classes: vec![],
            max_tokens: 4,
        }
    }

    fn row(case: &Case, arm: &str, score: f64) -> Row {
        Row {
            case: case.id.clone(),
            digest: digest_of(case),
            arm: arm.into(),
            score: Some(score),
            ..Row::default()
        }
    }

    fn origin(cloud: &str) -> Origin {
        Origin::new(cloud.into(), vec!["phone".into()])
    }

    #[test]
    fn results_outlive_the_run_and_a_cut_line_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let (one, two) = (case("one", "Q?"), case("two", "Q?"));
        let mut store = Store::open(&path, &origin("c")).unwrap();
        store.add(vec![row(&one, "cloud", 1.0), row(&one, "device:d", 0.5)]).unwrap();
        drop(store);
        let mut cut = std::fs::read(&path).unwrap();
        cut.extend_from_slice(b"{\"case\":\"two\",\"dig");
        std::fs::write(&path, &cut).unwrap();
        let mut store = Store::open(&path, &origin("c")).unwrap();
        assert_eq!(store.get(&one, "device:d").unwrap().score, Some(0.5));
        assert_eq!(store.rows().len(), 2);
        store.add(vec![row(&two, "cloud", 0.25)]).unwrap();
        drop(store);
        let store = Store::open(&path, &origin("c")).unwrap();
        assert_eq!(store.get(&two, "cloud").unwrap().score, Some(0.25));
        assert_eq!(store.get(&case("two", "Other?"), "cloud"), None, "the question has changed");
    }

    #[test]
    fn other_files_are_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        drop(Store::open(&path, &origin("c")).unwrap());
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(Store::open(&path, &origin("d")), Err(StoreError::OtherModels { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::write(&path, "some notes\nof mine\n").unwrap();
        assert!(matches!(Store::open(&path, &origin("c")), Err(StoreError::Format { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "some notes\nof mine\n");
        std::fs::write(&path, "one line, not ended").unwrap();
        assert!(matches!(Store::open(&path, &origin("c")), Err(StoreError::Format { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one line, not ended");
        let line = serde_json::to_string(&origin("c")).unwrap();
        std::fs::write(&path, format!("{line}\nnonsense\n")).unwrap();
        assert!(matches!(Store::open(&path, &origin("c")), Err(StoreError::Line { line: 2, .. })));
        assert!(matches!(Store::open(folder.path(), &origin("c")), Err(StoreError::Io { .. })));
    }
}
