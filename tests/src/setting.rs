//! A generated document on disk, its question, and a folder for the runs of `baton ask` about it.

use std::{ffi::OsString, path::PathBuf};

use anyhow::Context as _;
use baton_corpus::QuestionKind;
use baton_engine::Model;

use crate::{
    demo::{
        ask::{Ask, Report},
        emulation::PHONE,
    },
    process::models_folder,
    question::{self, Asked, Wanted},
};

/// Least tokens of an answer: long enough that both sides have a part to write.
const ANSWER_TOKENS_MIN: usize = 45;
/// Most tokens of an answer.
const TOKENS_MAX: &str = "160";

/// The document, the question, and a folder for the runs.
#[derive(Debug)]
pub struct Setting {
    /// The folder for the runs' files; removed when dropped.
    pub scratch: tempfile::TempDir,
    /// The file with the document.
    pub document: PathBuf,
    /// The document and the question, with its only correct answer.
    pub asked: Asked,
}

impl Setting {
    /// Makes a document of this seed with at least `document_tokens_min` tokens, and a question with a long
    /// answer.
    ///
    /// # Errors
    /// Fails if there is no such document, or it cannot be written.
    pub fn new(model: &Model, seed: u64, document_tokens_min: usize) -> anyhow::Result<Self> {
        let wanted = Wanted {
            seed,
            document_tokens_min,
            answer_tokens_min: ANSWER_TOKENS_MIN,
            kind: QuestionKind::Long,
        };
        let asked = question::ask(model.tokenizer(), wanted)?;
        let scratch = tempfile::tempdir().context("make a folder")?;
        let document = scratch.path().join("document.md");
        std::fs::write(&document, &asked.document.text).context("write the document")?;
        Ok(Self { scratch, document, asked })
    }

    /// Asks on the emulated phone with the demo's model and the cloud at `url`; returns the report.
    ///
    /// # Errors
    /// The errors of [`Ask::run`].
    pub async fn ask(&self, url: &str, more: &[&str]) -> anyhow::Result<Report> {
        let mut options = PHONE.options();
        options.extend(["--cloud", url, "--max-tokens", TOKENS_MAX].map(OsString::from));
        if !more.contains(&"--mode") {
            options.extend(["--mode", "relay"].map(OsString::from));
        }
        options.extend(more.iter().map(OsString::from));
        let model = models_folder().join("demo-device.gguf");
        let ask = Ask {
            document: &self.document,
            question: &self.asked.question.text,
            model: &model,
            scratch: self.scratch.path(),
            options,
            live: false,
        };
        ask.run().await
    }
}
