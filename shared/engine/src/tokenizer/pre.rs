//! Pre-tokenizers: split text into words before byte-pair merging.
//!
//! Source of the patterns: `llm_tokenizer_bpe` of llama.cpp (the table for `tokenizer.ggml.pre`), which
//! follows each model's tokenizer.json. They use a look-ahead, `\s+(?!\S)`, which linear-time regular
//! expressions lack. Here the pattern is `\s+`, and afterwards the last space of a run before a word is given
//! back to the word, which splits at the same positions (see [`SpaceRun`]). Linear in any text; every byte is
//! in exactly one word, in order.

use regex::Regex;

use super::error::TokenizerError;

/// Words of GPT-2: contractions, letters, digits, other signs, each with an optional space before it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// Words of Llama 3; Qwen2 differs by taking digits one by one.
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// Words of Qwen 3.5: combining marks belong to letters.
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// Words of GPT-4o and Llama 4; like Tekken's, with contractions and up to three digits.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
/// DeepSeek LLM's list of cased letters (the category L& of an older Unicode, written out). Escaped if a
/// canonical equivalent would change a letter.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/// The range `가-퟿` reaches past the Hangul syllables on purpose, as in the models.
const CJK: &str = r"[一-龥ࠀ-一가-\u{d7ff}]+";

/// How a match of `\s+` before a word is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceRun {
    /// The pattern has no such rule.
    Kept,
    /// The last space goes to the word, in any run of two or more.
    LastGivenBack,
    /// As above, but runs that end a line belong to another rule and stay whole.
    LastGivenBackInLine,
}

/// One pattern; the text between its matches stays as separate pieces.
#[derive(Debug)]
struct Pass {
    regex: Regex,
    space_run: SpaceRun,
}

/// A pre-tokenizer: patterns applied one after the other, each to the pieces of the previous one.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    passes: Vec<Pass>,
    /// Whether a word that is a token stays whole, regardless of merges.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with the begin token if metadata does not say.
    pub(super) adds_bos: bool,
}

impl PreTokenizer {
    /// Returns the pre-tokenizer for a value of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`TokenizerError::UnsupportedPre`] if the name is not in the table.
    pub(super) fn named(name: &str) -> Result<PreTokenizer, TokenizerError> {
        use SpaceRun::{Kept, LastGivenBack, LastGivenBackInLine};
        let (passes, ignore_merges, adds_bos): (&[(&str, SpaceRun)], bool, bool) = match name {
            "default" => (
                &[
                    (r"[\p{P}\$\+<=>\^~\|]+", Kept),
                    (GPT2, LastGivenBack),
                    (r"\p{N}+", Kept),
                    (r"[0-9][0-9][0-9]", Kept),
                ],
                false,
                false,
            ),
            "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling"
            | "exaone4" | "gigachat" | "a.x-4.0" | "mellum" => (&[(GPT2, LastGivenBack)], false, false),
            "falcon" => (
                &[(r"[\p{P}\$\+<=>\^~\|`]+", Kept), (GPT2, LastGivenBack), (r"[0-9][0-9][0-9]", Kept)],
                false,
                false,
            ),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
            | "lfm2" => (&[(LLAMA3, LastGivenBackInLine)], true, true),
            "dbrx" | "smaug-bpe" | "chatglm-bpe" => (&[(LLAMA3, LastGivenBackInLine)], false, false),
            "glm4" => (&[(LLAMA3, LastGivenBackInLine)], true, false),
            "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "kormo" | "grok-2" => {
                (&[(QWEN2, LastGivenBackInLine)], false, false)
            }
            "qwen35" => (&[(QWEN35, LastGivenBackInLine)], false, false),
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" => {
                (&[(r"\p{N}", Kept), (GPT2, LastGivenBack)], false, false)
            }
            "gpt-4o" | "llama4" | "kanana2" => (&[(GPT4O, LastGivenBackInLine)], false, false),
            "deepseek-llm" => (
                &[
                    (r"[\r\n]", Kept),
                    (DEEPSEEK_LETTERS, Kept),
                    (r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+", Kept),
                    (r"\s+$", Kept),
                    (CJK, Kept),
                    (r"\p{N}+", Kept),
                ],
                false,
                false,
            ),
            "deepseek-coder" => (
                &[
                    (r"[\r\n]", Kept),
                    (r"\s?\p{L}+", Kept),
                    (r"\s?\p{P}+", Kept),
                    (CJK, Kept),
                    (r"\p{N}", Kept),
                ],
                false,
                false,
            ),
            "deepseek-v3" => (
                &[(r"\p{N}{1,3}", Kept), (r"[一-龥぀-ゟ゠-ヿ]+", Kept), (DEEPSEEK3, LastGivenBackInLine)],
                false,
                false,
            ),
            "tekken" => (&[(TEKKEN, LastGivenBackInLine)], true, true),
            _ => return Err(TokenizerError::UnsupportedPre { found: name.chars().take(80).collect() }),
        };
        let pass = |&(pattern, space_run): &(&str, SpaceRun)| Pass {
            regex: Regex::new(pattern).expect("the table's patterns are valid"),
            space_run,
        };
        Ok(PreTokenizer { passes: passes.iter().map(pass).collect(), ignore_merges, adds_bos })
    }

    /// Splits text into words, calling `word` on each in order; together they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        split_from(&self.passes, text, word);
    }
}

fn split_from<'t>(passes: &[Pass], text: &'t str, word: &mut impl FnMut(&'t str)) {
    let Some((pass, rest)) = passes.split_first() else {
        if !text.is_empty() {
            word(text);
        }
        return;
    };
    let mut at = 0;
    while let Some(found) = pass.regex.find_at(text, at) {
        if found.is_empty() {
            break; // No pattern of the table matches an empty text; this only prevents an endless loop.
        }
        split_from(rest, &text[at..found.start()], word);
        at = found.end() - given_back(pass.space_run, found.as_str(), &text[found.end()..]);
        split_from(rest, &text[found.start()..at], word);
    }
    split_from(rest, &text[at..], word);
}

/// Returns the bytes of a match that go to the word after it: the last space of a longer run of spaces.
///
/// Only `\s+` can end in white space that is not a line break: the other alternatives end in letters, digits,
/// signs, or line breaks. So the last character of a match shows which alternative matched.
fn given_back(space_run: SpaceRun, found: &str, after: &str) -> usize {
    let Some(last) = found.chars().next_back() else { return 0 };
    let is_space_run = match space_run {
        SpaceRun::Kept => false,
        SpaceRun::LastGivenBack => last.is_whitespace(),
        SpaceRun::LastGivenBackInLine => last.is_whitespace() && !matches!(last, '\r' | '\n'),
    };
    let longer = found.len() > last.len_utf8();
    if is_space_run && longer && !after.is_empty() { last.len_utf8() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pre: &str, text: &str, want: &[&str]) {
        let mut words = Vec::new();
        PreTokenizer::named(pre).unwrap().split(text, &mut |w| words.push(w));
        assert_eq!(words, want, "{pre}: {text:?}");
    }

    #[test]
    fn words_are_cut_as_each_model_cuts_them() {
        check("gpt-2", "It's 2024,  ok!\n\n x", &["It", "'s", " 2024", ",", " ", " ok", "!", "\n\n", " x"]);
        check("gpt-2", "\t\tx \n", &["\t", "\t", "x", " \n"]);
        check("gpt-2", "a   ", &["a", "   "]);
        check("llama-bpe", "It'S 20245\n\n  if", &["It", "'S", " ", "202", "45", "\n\n", " ", " if"]);
        check("llama-bpe", "x \n\n y!\n", &["x", " \n\n", " y", "!\n"]);
        check("llama-bpe", "\u{3000}\u{3000}字", &["\u{3000}", "\u{3000}字"]);
        check("qwen2", "v1.25  z", &["v", "1", ".", "2", "5", " ", " z"]);
        check("deepseek-coder", "for i:\n  x=12", &["for", " i", ":", "\n", " ", " x", "=", "1", "2"]);
        // The third pattern's range `:-~` includes the ASCII letters and splits the words of the second
        // again.
        check("deepseek-llm", "Ünder 12 你好。", &["Ü", "nder", " ", "12", " ", "你好", "。"]);
        check("deepseek-v3", "a_b 1234", &["a", "_b", " ", "123", "4"]);
        check("smollm", "a12", &["a", "1", "2"]);
        check("default", "a=1234 b", &["a", "=", "123", "4", " b"]);
        check("falcon", "a `x` 12345", &["a", " ", "`", "x", "`", " ", "123", "45"]);
        check("gpt-4o", "it's 1234 helloWorld", &["it's", " ", "123", "4", " hello", "World"]);
        check("tekken", "helloWorld XMLtag 12", &["hello", "World", " XMLtag", " ", "1", "2"]);
        check("qwen2", "", &[]);
    }

    #[test]
    fn unknown_names_are_refused() {
        let err = PreTokenizer::named("chameleon").unwrap_err().to_string();
        assert_eq!(err, "pre-tokenizer `chameleon` is not supported");
    }

    #[test]
    fn no_byte_is_lost_and_long_runs_are_linear() {
        let names = [
            "default",
            "gpt-2",
            "llama-bpe",
            "qwen2",
            "deepseek-llm",
            "deepseek-coder",
            "deepseek-v3",
            "tekken",
        ];
        let texts = [
            " ".repeat(300_000) + "x",
            "\n \t".repeat(50_000),
            "é😀 1\u{85}".repeat(5_000),
            "'".repeat(9_999),
        ];
        for name in names {
            let pre = PreTokenizer::named(name).unwrap();
            for text in &texts {
                let mut joined = String::new();
                pre.split(text, &mut |w| joined.push_str(w));
                assert!(&joined == text, "{name}");
            }
        }
    }
}
