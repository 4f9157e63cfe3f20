//! Byte-level BPE of a `tokenizer.json`: tokens, merges, and the name of its pre-tokenizer.
//!
//! GGUF files do not hold the patterns that split a text into words, only a name for them. The name is found
//! by comparing the patterns of the file with a table; unknown patterns are refused.

use std::borrow::Cow;

use serde_json::Value;

use super::pieces::{Kind, Pieces};
use crate::error::ImportError;
use crate::json::JsonFile;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const CJK: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";

/// One step of a pre-tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Splits text around the matches of a pattern, in which line ends are written as escapes.
    Split(Cow<'static, str>),
    /// Makes every digit a word.
    Digits,
    /// Splits into words as GPT-2 does.
    Gpt2Words,
}

use Step::{Digits, Gpt2Words};

const fn split(pattern: &'static str) -> Step {
    Step::Split(Cow::Borrowed(pattern))
}

/// Steps, whether whole words stay tokens regardless of merges (`None` if any value will do), and the name in
/// GGUF files.
const TABLE: &[(&[Step], Option<bool>, &str)] = &[
    (&[Gpt2Words], Some(false), "gpt-2"),
    (&[Digits, Gpt2Words], Some(false), "starcoder"),
    (&[split(LLAMA3)], Some(true), "llama-bpe"),
    (&[split(LLAMA3)], Some(false), "dbrx"),
    (&[split(QWEN2)], Some(false), "qwen2"),
    (&[split(TEKKEN)], None, "tekken"),
    (&[split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3)], Some(false), "deepseek-v3"),
    (
        &[split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK), Digits],
        Some(false),
        "deepseek-coder",
    ),
];

/// Whether the file's tokens are bytes in GPT-2's alphabet.
pub(super) fn is_byte_level(json: &JsonFile) -> bool {
    ["pre_tokenizer", "decoder"].iter().any(|key| json.get(key).is_some_and(says_byte_level))
}

fn says_byte_level(part: &Value) -> bool {
    let steps =
        |key| part.get(key).and_then(Value::as_array).is_some_and(|steps| steps.iter().any(says_byte_level));
    part.get("type").is_some_and(|kind| kind == "ByteLevel") || steps("pretokenizers") || steps("decoders")
}

/// Returns the pre-tokenizer's name in GGUF files.
///
/// # Errors
/// If the patterns or the normalizer are not in the table.
pub(super) fn pre_tokenizer(json: &JsonFile) -> Result<&'static str, ImportError> {
    let unknown = |what: String| ImportError::Tokenizer { path: json.path().to_owned(), what };
    if let Some(normalizer) = json.get("normalizer").filter(|normalizer| !changes_nothing(normalizer)) {
        return Err(unknown(format!("normalizer {}", short(normalizer))));
    }
    let root = json.get("pre_tokenizer").ok_or_else(|| unknown("it has no pre-tokenizer".to_owned()))?;
    let mut steps = Vec::new();
    collect(root, &mut steps).ok_or_else(|| unknown(format!("pre-tokenizer {}", short(root))))?;
    let whole_words = model_flag(json, "ignore_merges");
    let found = TABLE
        .iter()
        .find(|(known, whole, _)| *known == steps && whole.is_none_or(|whole| whole == whole_words));
    found.map(|row| row.2).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|row| row.2).collect();
        unknown(format!(
            "pre-tokenizer {} (ignore_merges {whole_words}) is none of {}",
            short(root),
            names.join(", ")
        ))
    })
}

/// Whether a normalizer changes nothing: there is none, or it only composes characters.
fn changes_nothing(normalizer: &Value) -> bool {
    let parts = normalizer.get("normalizers").and_then(Value::as_array);
    normalizer.get("type").is_some_and(|kind| kind == "NFC")
        || parts.is_some_and(|parts| parts.iter().all(changes_nothing))
}

/// Collects the steps of a pre-tokenizer; returns `None` if one of them is unknown.
fn collect(part: &Value, steps: &mut Vec<Step>) -> Option<()> {
    let flag = |key: &str, default: bool| part.get(key).and_then(Value::as_bool).unwrap_or(default);
    match part.get("type")?.as_str()? {
        "Sequence" => part.get("pretokenizers")?.as_array()?.iter().try_for_each(|part| collect(part, steps)),
        "ByteLevel" => {
            if flag("use_regex", true) {
                steps.push(Gpt2Words);
            }
            (!flag("add_prefix_space", true)).then_some(())
        }
        "Digits" => {
            steps.push(Digits);
            flag("individual_digits", false).then_some(())
        }
        "Split" => {
            let pattern = part.get("pattern")?.get("Regex")?.as_str()?;
            steps.push(Step::Split(pattern.replace('\r', r"\r").replace('\n', r"\n").into()));
            let isolated = part.get("behavior")?.as_str()? == "Isolated" && !flag("invert", false);
            // Keeping only the matches is the same, because these patterns match all of a text.
            let kept = part.get("behavior")?.as_str()? == "Removed" && flag("invert", false);
            (isolated || kept).then_some(())
        }
        _ => None,
    }
}

/// Reads tokens and merges of a byte-level tokenizer.json.
pub(super) fn read(json: &JsonFile, pieces: &mut Pieces) -> Result<Vec<String>, ImportError> {
    read_vocab(json, |id, text| pieces.set(id, text.to_owned(), Kind::Normal, 0.0))?;
    // A space inside a token would end it, so it is written as in GPT-2's alphabet.
    let written = |part: &str| part.replace(' ', "\u{120}");
    Ok(merges(json)?
        .into_iter()
        .map(|(left, right)| format!("{} {}", written(left), written(right)))
        .collect())
}

/// Calls `token` with every entry of the BPE model's vocabulary.
pub(super) fn read_vocab(
    json: &JsonFile,
    mut token: impl FnMut(usize, &str) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let model = json.get("model");
    let kind = model.and_then(|model| model.get("type")).and_then(Value::as_str).unwrap_or("BPE");
    let vocab = model.and_then(|model| model.get("vocab")).and_then(Value::as_object);
    let (Some(vocab), "BPE") = (vocab, kind) else {
        let what = format!("its model is `{kind}`, want BPE with a vocabulary");
        return Err(ImportError::Tokenizer { path: json.path().to_owned(), what });
    };
    for (text, id) in vocab {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        token(id.ok_or_else(|| json.unsupported("model", "a vocabulary of ids"))?, text)?;
    }
    Ok(())
}

/// Returns the merges of a BPE model, in either of the two forms that the library writes.
pub(super) fn merges(json: &JsonFile) -> Result<Vec<(&str, &str)>, ImportError> {
    let merges = json.get("model").and_then(|model| model.get("merges")).and_then(Value::as_array);
    merges
        .and_then(|merges| merges.iter().map(split_merge).collect())
        .ok_or_else(|| json.unsupported("model", "a list of merges of two tokens"))
}

fn split_merge(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(pair) => pair.split_once(' '),
        Value::Array(pair) => match pair.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a flag of the BPE model; false if it is absent.
pub(super) fn model_flag(json: &JsonFile, key: &str) -> bool {
    json.get("model").and_then(|model| model.get(key)).and_then(Value::as_bool).unwrap_or(false)
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(300).collect()
}
