//! `longbench`: a user's folder of LongBench's `jsonl` files, scored with LongBench's metrics.
//!
//! The name of a file is the name of its data set. Prompts follow LongBench's `dataset2prompt.json` if it is
//! in the folder; else the context comes first and the input after it. Answers have LongBench's token limits.

use std::collections::HashMap;
use std::path::Path;

use baton_longbench::{DataSet, dataset};
use serde::Deserialize;

use crate::case::Case;
use crate::metric::Metric;
use crate::suite::SuiteError;

/// The file in the folder that contains the prompt templates.
const PROMPTS: &str = "dataset2prompt.json";
/// LongBench's token limits of answers; 32 for all other data sets.
const MAX_TOKENS: [(&str, usize); 14] = [
    ("narrativeqa", 128),
    ("qasper", 128),
    ("multifieldqa_en", 64),
    ("multifieldqa_zh", 64),
    ("dureader", 128),
    ("gov_report", 512),
    ("qmsum", 512),
    ("multi_news", 512),
    ("vcsum", 512),
    ("trec", 64),
    ("samsum", 128),
    ("lsht", 64),
    ("lcc", 64),
    ("repobench-p", 64),
];

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    input: String,
    context: String,
    answers: Vec<String>,
    #[serde(default)]
    all_classes: Option<Vec<String>>,
}

/// The prompt template before and after `{context}`; `{input}` stands for the question.
struct Layout {
    lead: String,
    question: String,
}

impl Layout {
    fn new(template: Option<&String>) -> Self {
        match template.and_then(|template| template.split_once("{context}")) {
            Some((lead, question)) => Self { lead: lead.to_owned(), question: question.to_owned() },
            None => Self { lead: String::new(), question: "\n\n{input}\n".to_owned() },
        }
    }
}

/// Reads the cases of a folder: at most `count` of each file, or all if `count` is 0.
///
/// # Errors
/// [`SuiteError`] if the folder has no such files, or a file cannot be read.
pub fn cases(folder: &Path, count: usize) -> Result<Vec<Case>, SuiteError> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|err| SuiteError::Read { path: path.to_owned(), err })
    };
    let prompts: HashMap<String, String> = match read(&folder.join(PROMPTS)) {
        Ok(text) => serde_json::from_str(&text).map_err(|err| data(format!("{PROMPTS}: {err}")))?,
        Err(SuiteError::Read { err, .. }) if err.kind() == std::io::ErrorKind::NotFound => HashMap::new(),
        Err(err) => return Err(err),
    };
    let entries =
        std::fs::read_dir(folder).map_err(|err| SuiteError::Read { path: folder.to_owned(), err })?;
    let mut files: Vec<(String, &'static DataSet, std::path::PathBuf)> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?.to_owned();
            Some((name.clone(), dataset(&name)?, path))
        })
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    if files.is_empty() {
        return Err(data(format!("`{}` has no jsonl file named as a data set", folder.display())));
    }
    let mut cases = Vec::new();
    for (name, set, path) in files {
        let layout = Layout::new(prompts.get(set.name));
        let most = if count == 0 { usize::MAX } else { count };
        cases.extend(of_file(&name, set, &layout, &read(&path)?, most)?);
    }
    Ok(cases)
}

fn data(message: String) -> SuiteError {
    SuiteError::Data { suite: "longbench", message }
}

fn of_file(
    name: &str,
    set: &'static DataSet,
    layout: &Layout,
    text: &str,
    most: usize,
) -> Result<Vec<Case>, SuiteError> {
    let max_tokens = MAX_TOKENS.iter().find(|(of, _)| *of == set.name).map_or(32, |(_, tokens)| *tokens);
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate().take(most);
    lines
        .map(|(index, line)| {
            let line: Line = serde_json::from_str(line)
                .map_err(|err| data(format!("line {} of {name}: {err}", index + 1)))?;
            Ok(Case {
                id: format!("longbench/{name}/{index}"),
                suite: "longbench",
                group: name.to_owned(),
                length: 0,
                cluster: index as u64,
                system: String::new(),
                lead: layout.lead.replace("{input}", &line.input),
                content: line.context,
                question: layout.question.replace("{input}", &line.input),
                answers: line.answers,
                gold: Vec::new(),
                metric: Metric::LongBench(set),
                classes: line.all_classes.unwrap_or_default(),
                max_tokens,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_and_scored_by_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let line =
            r#"{"input":"Who?","context":"It was Bo.","answers":["Bo"],"all_classes":null,"length":3}"#;
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("hotpotqa.jsonl", &format!("{line}\n{line}\n"));
        write("notes.jsonl", "not ours");
        write(PROMPTS, r#"{"hotpotqa":"Read.\n{context}\nNow: {input}"}"#);
        let cases = cases(folder.path(), 1).unwrap();
        assert_eq!(cases.len(), 1);
        let case = &cases[0];
        assert_eq!((case.lead.as_str(), case.question.as_str()), ("Read.\n", "\nNow: Who?"));
        assert_eq!((case.max_tokens, case.metric.name()), (32, "qa_f1_score"));
        assert_eq!(case.judge("the Bo").unwrap().0, 1.0);
        write("hotpotqa.jsonl", "nonsense\n");
        let refused = super::cases(folder.path(), 0).unwrap_err().to_string();
        assert!(refused.contains("line 1 of hotpotqa"), "{refused}");
    }

    #[test]
    fn a_folder_without_data_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(cases(folder.path(), 0).unwrap_err().to_string().contains("no jsonl file"));
        assert!(matches!(cases(&folder.path().join("none"), 0), Err(SuiteError::Read { .. })));
    }
}
