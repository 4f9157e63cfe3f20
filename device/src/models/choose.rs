//! Which model of a repository is meant: files are grouped to models, and one is chosen by file name or
//! quantization. Pure.

use super::size;

/// The quantization that is recommended: small, and close to the model's own quality.
const RECOMMENDED: &str = "Q4_K_M";
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
        let (path, word) = (self.path.to_ascii_lowercase(), word.to_ascii_lowercase());
        let path = path.strip_suffix(".gguf").unwrap_or(&path);
        path.match_indices(&word).any(|(at, _)| {
            let before = path[..at].chars().next_back();
            let after = path[at + word.len()..].chars().next();
            before.is_none_or(|c| !c.is_ascii_alphanumeric())
                && after.is_none_or(|c| matches!(c, '-' | '.' | '/'))
        })
    }
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

/// Groups a repository's files to models, by path. Sets with missing parts are left out, and projectors of
/// images, which are no models by themselves.
pub(super) fn variants(mut files: Vec<Listed>) -> Vec<Variant> {
    files.retain(|file| {
        let name = file_name(&file.path).to_ascii_lowercase();
        name.ends_with(".gguf") && !name.starts_with("mmproj")
    });
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

/// Chooses the model that is meant: by a file's path or name, by a quantization, or the only one.
///
/// # Errors
/// A text that lists what there is, if none or several are meant. `ask` is how a user writes the source
/// without which one, such as `hf:OWNER/REPO`.
pub(super) fn choose(variants: Vec<Variant>, which: Option<&str>, ask: &str) -> Result<Variant, String> {
    if variants.is_empty() {
        return Err(format!("`{ask}` holds no GGUF model: look for a repository whose name ends in -GGUF"));
    }
    let means = |variant: &Variant| match which {
        None => true,
        Some(which) if which.to_ascii_lowercase().ends_with(".gguf") => {
            let is_file = |path: &str| path == which || file_name(path) == which;
            is_file(&variant.path) || variant.files.iter().any(|file| is_file(&file.path))
        }
        Some(which) => variant.has_word(which),
    };
    let meant: Vec<&Variant> = variants.iter().filter(|variant| means(variant)).collect();
    match meant[..] {
        [one] => return Ok(one.clone()),
        // A path means its own file, also if another folder has one of the same name.
        [_, _, ..] => {
            if let Some(one) = meant.iter().find(|variant| which == Some(variant.path.as_str())) {
                return Ok((*one).clone());
            }
        }
        [] => {
            let which = which.unwrap_or_default();
            let listed = list(&variants.iter().collect::<Vec<_>>());
            return Err(format!("`{ask}` has no model `{which}`; it has:\n{listed}"));
        }
    }
    let recommended: Vec<&&Variant> = meant.iter().filter(|variant| variant.has_word(RECOMMENDED)).collect();
    let example = match recommended[..] {
        [_] => RECOMMENDED,
        [first, ..] => &first.path,
        [] => &meant[0].path,
    };
    Err(format!(
        "`{ask}` has several models; name one, for example {ask}:{example} ({RECOMMENDED} is small and nearly \
         as good as the largest):\n{}",
        list(&meant)
    ))
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
mod tests {
    use super::*;

    fn listed(path: &str, bytes: u64) -> Listed {
        Listed { path: path.into(), bytes, sha256: None }
    }

    fn repository() -> Vec<Variant> {
        variants(vec![
            listed("README.md", 10),
            listed("small-Q8_0.gguf", 800_000_000),
            listed("small-Q4_K_M.gguf", 400_000_000),
            listed("small-Q4_K_S.gguf", 380_000_000),
            listed("small-IQ4_XS.gguf", 370_000_000),
            listed("mmproj-small-f16.gguf", 5),
            listed("F16/small-F16-00002-of-00002.gguf", 700_000_000),
            listed("F16/small-F16-00001-of-00002.gguf", 900_000_000),
            listed("BF16/small-BF16-00001-of-00002.gguf", 900_000_000),
        ])
    }

    #[track_caller]
    fn check(which: Option<&str>, want: &str) {
        let found = choose(repository(), which, "hf:a/b").map(|variant| variant.path);
        assert_eq!(found.as_deref(), Ok(want), "{which:?}");
    }

    #[test]
    fn a_model_is_chosen_by_quantization_or_file() {
        check(Some("Q4_K_M"), "small-Q4_K_M.gguf");
        check(Some("q4_k_m"), "small-Q4_K_M.gguf");
        check(Some("IQ4_XS"), "small-IQ4_XS.gguf");
        check(Some("small-Q8_0.gguf"), "small-Q8_0.gguf");
        check(Some("F16"), "F16/small-F16.gguf");
        check(Some("small-F16-00001-of-00002.gguf"), "F16/small-F16.gguf");
        check(Some("F16/small-F16-00002-of-00002.gguf"), "F16/small-F16.gguf");
        let split = choose(repository(), Some("F16"), "").unwrap();
        assert_eq!(split.bytes(), 1_600_000_000);
        assert_eq!(split.files[0].path, "F16/small-F16-00001-of-00002.gguf", "parts are in order");
    }

    #[test]
    fn what_is_not_clear_is_listed_with_sizes() {
        let said = choose(repository(), None, "hf:a/b").unwrap_err();
        assert!(said.contains("for example hf:a/b:Q4_K_M"), "{said}");
        assert!(said.contains("400.0 MB  small-Q4_K_M.gguf\n"), "{said}");
        assert!(said.contains("1.60 GB  F16/small-F16.gguf in 2 files"), "{said}");
        assert!(!said.contains("mmproj") && !said.contains("BF16"), "{said}");
        for unknown in ["Q4_K", "4_K_M", "Q5_K_M", "other.gguf", "XS-"] {
            let said = choose(repository(), Some(unknown), "hf:a/b").unwrap_err();
            assert!(said.contains(&format!("has no model `{unknown}`; it has:")), "{unknown}: {said}");
        }
        let none = choose(variants(vec![listed("config.json", 1)]), None, "hf:a/b").unwrap_err();
        assert!(none.contains("holds no GGUF model"), "{none}");
        let one = variants(vec![listed("x.gguf", 1)]);
        assert_eq!(choose(one.clone(), None, "").unwrap(), one[0]);
    }

    #[test]
    fn parts_of_sets_are_known_by_their_names() {
        for (name, want) in [
            ("a-00001-of-00003.gguf", Some(("a", 1, 3))),
            ("d/a-b-00003-of-00003.gguf", Some(("d/a-b", 3, 3))),
            ("a-00004-of-00003.gguf", None),
            ("a-00000-of-00003.gguf", None),
            ("a-1-of-3.gguf", None),
            ("a-00001-of-00001.gguf", None),
            ("a.gguf", None),
        ] {
            assert_eq!(split_name(name), want, "{name}");
        }
    }
}
