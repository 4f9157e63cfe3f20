//! What is left of an answer before it is compared: Python's idea of blanks and words, and LongBench's of punctuation.

use std::sync::LazyLock;

use regex::Regex;

/// Chinese punctuation that is left out beside the ASCII one.
const CHINESE_PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";

/// Runs of what Python's regular expressions take for word characters.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+").expect("the pattern is a constant"));

/// Whether Python's `str.split` splits there: the blanks of Unicode, and four separators of ASCII.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// The words of an English answer: lower case, without ASCII punctuation and articles.
pub(crate) fn english_words(text: &str) -> Vec<String> {
    let bare: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let without_articles = WORD.replace_all(&bare, |found: &regex::Captures<'_>| match &found[0] {
        "a" | "an" | "the" => " ".to_owned(),
        word => word.to_owned(),
    });
    without_articles.split(is_blank).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// One word of a Chinese answer: lower case, without punctuation and blanks; may be empty.
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
        // A combining mark is no word character in Python: the article before it goes.
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
