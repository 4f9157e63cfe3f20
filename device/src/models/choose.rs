//! Which model of a repository is meant: files are grouped to models, and one is chosen by file name or
//! quantization, or is the one that most people take. Drafters, projectors and importance matrices lie beside
//! models in many repositories, and never compete with them. Pure.

use super::size;

/// Quantizations that are taken if none is named, the best one first: small, and close to the model's own
/// quality.
const PREFERRED: [&str; 6] = ["Q4_K_M", "Q4_K_XL", "Q4_K_S", "MXFP4", "Q4_0", "Q8_0"];
/// The quantization that is named as another one, if there is one file of it.
const LARGE: &str = "Q8_0";
/// Words in the paths of files that help a model and are none by themselves: drafters for speculation, and
/// adapters. A word that every file has is the name of a family.
const HELPERS: [&str; 14] = [
    "adapter",
    "assistant",
    "dflash",
    "draft",
    "drafter",
    "dspark",
    "eagle",
    "eagle2",
    "eagle3",
    "lora",
    "medusa",
    "mtp",
    "nextn",
    "speculator",
];
/// Most models that an error lists.
const LISTED_MAX: usize = 40;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// Its path in the repository.
    pub(super) path: String,
    /// Its length.
    pub(super) bytes: u64,
    /// Its SHA-256 in lower-case hex, if the hub says it.
    pub(super) sha256: Option<String>,
}

/// A model of a repository: one file, or the parts of one that is split, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variant {
    /// The path of its file; for a split model without the part's number.
    pub(super) path: String,
    /// Its files.
    pub(super) files: Vec<Listed>,
}

impl Variant {
    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Whether a word of its name is this quantization: `Q4_K` is not a word of `…-Q4_K_M.gguf`.
    fn has_word(&self, word: &str) -> bool {
        self.before_word(word).is_some()
    }

    /// Returns what its lower-case path has before this quantization, if it is a word of the path. The last
    /// such word counts.
    fn before_word(&self, word: &str) -> Option<String> {
        let path = stem(&self.path);
        let word = word.to_ascii_lowercase();
        let is_word = |&(at, _): &(usize, &str)| {
            let before = path[..at].chars().next_back();
            let after = path[at + word.len()..].chars().next();
            before.is_none_or(|c| !c.is_ascii_alphanumeric())
                && after.is_none_or(|c| matches!(c, '-' | '.' | '/'))
        };
        path.rmatch_indices(&word).find(is_word).map(|(at, _)| path[..at].to_owned())
    }

    /// Returns the name of the model that a file of this quantization has: what stands before the
    /// quantization, also before `UD-`, by which Unsloth marks its own mixtures.
    fn base(&self, word: &str) -> Option<String> {
        let separators = ['-', '.', '_'];
        let before = self.before_word(word)?;
        let name = file_name(&before).trim_end_matches(separators);
        Some(name.strip_suffix("-ud").unwrap_or(name).trim_end_matches(separators).to_owned())
    }
}

/// Returns a path in lower case and without `.gguf`.
fn stem(path: &str) -> String {
    let path = path.to_ascii_lowercase();
    path.strip_suffix(".gguf").map(str::to_owned).unwrap_or(path)
}

/// Returns the words of a path in lower case.
fn words(path: &str) -> Vec<String> {
    let stem = stem(path);
    stem.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether a file holds no weights of a language model: a projector of images, an importance matrix, or a
/// vocabulary. `imatrix` within a name tells how the model was quantized.
fn is_no_model(path: &str) -> bool {
    let name = words(file_name(path));
    let is_imatrix = [name.first(), name.last()].into_iter().flatten().any(|word| word == "imatrix");
    is_imatrix || name.iter().any(|word| word == "vocab") || stem(file_name(path)).contains("mmproj")
}

/// Returns the models that compete if no file is named.
pub(super) fn competing(variants: &[Variant]) -> Vec<&Variant> {
    let models: Vec<&Variant> = variants.iter().filter(|variant| !is_no_model(&variant.path)).collect();
    let words: Vec<Vec<String>> = models.iter().map(|variant| words(&variant.path)).collect();
    let has = |words: &[String], helper: &str| words.iter().any(|word| word == helper);
    let marks = |helper: &&&str| !words.iter().all(|words| has(words, helper));
    let marks: Vec<&&str> = HELPERS.iter().filter(marks).collect();
    let is_helper = |words: &[String]| marks.iter().any(|helper| has(words, helper));
    let with_words = models.iter().zip(&words);
    let alone: Vec<&Variant> =
        with_words.filter(|(_, words)| !is_helper(words)).map(|(&model, _)| model).collect();
    if alone.is_empty() { models } else { alone }
}

/// Returns the last part of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Takes `NAME-00001-of-00003.gguf` apart: the name, the part's number from 1, and their count.
pub(super) fn split_name(path: &str) -> Option<(&str, u32, u32)> {
    let rest = path.strip_suffix(".gguf")?;
    let number = |text: &str| -> Option<u32> {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let (no, count) = (number(no)?, number(count)?);
    (1 <= no && no <= count && count > 1).then_some((stem, no, count))
}

/// Groups a repository's GGUF files to models, by path. Sets with missing parts are left out.
pub(super) fn variants(mut files: Vec<Listed>) -> Vec<Variant> {
    files.retain(|file| file.path.to_ascii_lowercase().ends_with(".gguf"));
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut found: Vec<(Variant, u32)> = Vec::new();
    for file in files {
        let (path, count) = match split_name(&file.path) {
            Some((stem, _, count)) => (format!("{stem}.gguf"), count),
            None => (file.path.clone(), 1),
        };
        match found.last_mut().filter(|(last, of)| last.path == path && *of == count && count > 1) {
            Some((last, _)) => last.files.push(file),
            None => found.push((Variant { path, files: vec![file] }, count)),
        }
    }
    let whole = |(variant, count): &(Variant, u32)| variant.files.len() == *count as usize;
    found.into_iter().filter(whole).map(|(variant, _)| variant).collect()
}

/// The model that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The model.
    pub(super) variant: Variant,
    /// A sentence for the user, if others were there and none was named.
    pub(super) note: Option<String>,
}

/// Chooses the model that is meant: by a file's path or name, by a quantization, the only one, or the one in
/// the first of the [`PREFERRED`] quantizations. `ask` is how a user writes the source without which one,
/// such as `hf:OWNER/REPO`.
///
/// # Errors
/// A text that lists what there is, if none or several are meant.
pub(super) fn choose(variants: &[Variant], which: Option<&str>, ask: &str) -> Result<Choice, String> {
    let models = competing(variants);
    let meant: Vec<&Variant> = match which {
        None => models.clone(),
        // A drafter can be wanted too, if its file is named.
        Some(which) if which.to_ascii_lowercase().ends_with(".gguf") => {
            let is_file = |path: &str| path == which || file_name(path) == which;
            let means = |variant: &&Variant| {
                is_file(&variant.path) || variant.files.iter().any(|file| is_file(&file.path))
            };
            variants.iter().filter(means).collect()
        }
        Some(which) => models.iter().filter(|variant| variant.has_word(which)).copied().collect(),
    };
    match meant[..] {
        [one] => return Ok(Choice { variant: one.clone(), note: None }),
        [] if models.is_empty() => {
            return Err(format!(
                "`{ask}` holds no GGUF model: look for a repository whose name ends in -GGUF"
            ));
        }
        [] => {
            let which = which.unwrap_or_default();
            return Err(format!("`{ask}` has no model `{which}`; it has:\n{}", list(&models)));
        }
        [_, _, ..] => {}
    }
    // A path means its own file, also if another folder has one of the same name.
    if let Some(&one) = meant.iter().find(|variant| which == Some(variant.path.as_str())) {
        return Ok(Choice { variant: one.clone(), note: None });
    }
    match which {
        Some(which) => {
            if let Some(variant) = only_one(&meant, which) {
                return Ok(Choice { variant, note: None });
            }
        }
        None => {
            if let Some(variant) = preferred(&meant) {
                let note = Some(note(&variant, &meant, ask));
                return Ok(Choice { variant, note });
            }
        }
    }
    let example = &meant[0].path;
    Err(format!("`{ask}` has several models; name one of these, like {ask}:{example}\n{}", list(&meant)))
}

/// Returns the only model of this quantization. If a model is there in Unsloth's mixture (`UD-`) and in the
/// usual one, that is the usual one.
fn only_one(models: &[&Variant], word: &str) -> Option<Variant> {
    let of_word: Vec<&&Variant> = models.iter().filter(|model| model.has_word(word)).collect();
    let usual = |model: &&&Variant| model.path.to_ascii_lowercase().replace("ud-", "");
    let mut names: Vec<String> = of_word.iter().map(usual).collect();
    names.dedup();
    let one = of_word.into_iter().min_by_key(|model| model.path.len())?;
    (names.len() == 1).then(|| (**one).clone())
}

/// Returns the model in the first quantization that is preferred, if all are quantizations of one model.
fn preferred(models: &[&Variant]) -> Option<Variant> {
    let word = PREFERRED.into_iter().find(|word| models.iter().any(|model| model.has_word(word)))?;
    let one = only_one(models, word)?;
    let base = one.base(word)?;
    let is_of_one = models.iter().all(|model| stem(file_name(&model.path)).starts_with(&base));
    is_of_one.then_some(one)
}

/// Says which model was taken, and how another one is named.
fn note(taken: &Variant, models: &[&Variant], ask: &str) -> String {
    let bytes = || models.iter().map(|model| model.bytes());
    let least = bytes().min().unwrap_or_default();
    let most = bytes().max().unwrap_or_default();
    let is_other = |model: &&&Variant| model.path != taken.path;
    let large = only_one(models, LARGE).filter(|large| large.path != taken.path).map(|_| LARGE);
    let other = large.or_else(|| models.iter().find(is_other).map(|model| model.path.as_str()));
    format!(
        "`{ask}` has {} models of {} to {}; this is {}. Another one: {ask}:{}",
        models.len(),
        size(least),
        size(most),
        file_name(&taken.path),
        other.unwrap_or_default()
    )
}

/// Lists models with their sizes, one a line.
fn list(variants: &[&Variant]) -> String {
    let line = |variant: &&Variant| {
        let parts = match variant.files.len() {
            1 => String::new(),
            parts => format!(" in {parts} files"),
        };
        format!("  {:>9}  {}{parts}", size(variant.bytes()), variant.path)
    };
    let mut lines: Vec<String> = variants.iter().take(LISTED_MAX).map(line).collect();
    if variants.len() > LISTED_MAX {
        lines.push(format!("  and {} more", variants.len() - LISTED_MAX));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
