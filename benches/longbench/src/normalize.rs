//! Normalizes an answer before it is compared, with Python's definitions of blanks and words and LongBench's
//! of punctuation.

use std::sync::LazyLock;

use regex::Regex;

/// Chinese punctuation that is removed in addition to ASCII punctuation.
const CHINESE_PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";

/// Runs of word characters as in Python's regular expressions.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+").expect("the pattern is a constant"));

/// Returns whether Python's `str.split` splits at a character: the blanks of Unicode, and four ASCII
/// separators.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// Returns the words of an English answer: lower case, without ASCII punctuation and articles.
pub(crate) fn english_words(text: &str) -> Vec<String> {
    let bare: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let without_articles = WORD.replace_all(&bare, |found: &regex::Captures<'_>| match &found[0] {
        "a" | "an" | "the" => " ".to_owned(),
        word => word.to_owned(),
    });
    without_articles.split(is_blank).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Normalizes one word of a Chinese answer: lower case, without punctuation and blanks. The result may be
/// empty.
pub(crate) fn chinese_word(word: &str) -> String {
    let kept = |c: &char| !c.is_ascii_punctuation() && !CHINESE_PUNCTUATION.contains(*c) && !is_blank(*c);
    word.to_lowercase().chars().filter(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_are_whole_words_only() {
        let check = |text: &str, want: &[&str]| assert_eq!(english_words(text), want, "{text}");
        check("The cat, an a-b test.", &["cat", "ab", "test"]);
        check("a_b the_end", &["ab", "theend"]);
        check("theory another 1a", &["theory", "another", "1a"]);
        // A combining mark is not a word character in Python, so the article before it is removed.
        check("a\u{301} x", &["\u{301}", "x"]);
        check("x\x1cy\u{3000}z", &["x", "y", "z"]);
    }

    #[test]
    fn chinese_punctuation_goes() {
        assert_eq!(chinese_word("「A。b」 "), "ab");
        assert_eq!(chinese_word("《"), "《");
        assert_eq!(chinese_word("》"), "");
    }
}
