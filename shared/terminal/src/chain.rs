//! An error as one line of text, for people, reports and frames, whose readers cannot ask the error for its
//! cause.

use std::error::Error;

/// Returns the error, then each of its causes after a colon. Nothing is repeated. A cause is left out if the
/// text already ends with it, or if it only names the same file again (``open `a` `` after ``open model `a`
/// ``).
pub fn chain(err: &dyn Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        let words = err.to_string();
        if !text.ends_with(&words) && !only_names_again(&words, &text) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = err.source();
    }
    text
}

/// Whether `words` is only a verb and a quoted name that `text` also quotes.
fn only_names_again(words: &str, text: &str) -> bool {
    let Some((verb, name)) = words.split_once(' ') else { return false };
    let quoted = name.len() > 2 && name.starts_with('`') && name.ends_with('`');
    quoted && verb.chars().all(|c| c.is_ascii_lowercase()) && text.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    /// The text of an error and of its causes, the outermost first.
    #[derive(Debug)]
    struct Words(&'static str, Option<Box<Words>>);

    impl fmt::Display for Words {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Words {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[track_caller]
    fn check(words: &[&'static str], want: &str) {
        let made = words.iter().rev().fold(None, |cause, words| Some(Box::new(Words(words, cause))));
        assert_eq!(chain(made.as_deref().unwrap()), want);
    }

    #[test]
    fn causes_follow_in_order() {
        check(&["above"], "above");
        check(&["above", "between", "below"], "above: between: below");
    }

    #[test]
    fn nothing_is_said_twice() {
        check(
            &["open model `a.gguf`", "read `a.gguf`: open `a.gguf`", "open `a.gguf`", "no such file"],
            "open model `a.gguf`: read `a.gguf`: open `a.gguf`: no such file",
        );
        check(&["open model `a`", "open `a`", "no such file"], "open model `a`: no such file");
        check(&["read `a`: cut off", "cut off"], "read `a`: cut off");
        // Other files, and causes that add more than a name, stay.
        check(&["open model `a`", "open `b`", "no such file"], "open model `a`: open `b`: no such file");
        check(&["open `a`", "`a` is a folder"], "open `a`: `a` is a folder");
    }
}
