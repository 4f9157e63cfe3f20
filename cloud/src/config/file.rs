//! A settings file: the options of `serve` in YAML, named as on the command line.
//!
//! ```yaml
//! listen: 0.0.0.0:8300
//! slots: 16
//! tls-cert: /etc/baton/tls.crt
//! ```
//! A setting that may be given several times is a list.
//!
//! The settings become words of the command line, in front of the words written there. So names and checks
//! are the same, and the command line (or the environment) overrides the file; a list is replaced as a whole.
//! Never: takes a setting that the command line does not know.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde_norway::Value;

/// A settings file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("read `{path}`")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: std::io::Error,
    },
    /// It is not YAML.
    #[error("`{path}` is not YAML")]
    Yaml {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: serde_norway::Error,
    },
    /// It is YAML, but not a map of settings.
    #[error("`{path}` must hold one setting a line, `option: value`")]
    NotAMap {
        /// Path of the file.
        path: PathBuf,
    },
    /// A setting is not allowed in the file.
    #[error("setting `{setting}` of `{path}` is no option of serve that a file may set")]
    Unknown {
        /// Path of the file.
        path: PathBuf,
        /// Which setting.
        setting: String,
    },
    /// A setting has a value that no option takes.
    #[error(
        "setting `{setting}` of `{path}` must be text, a number, or true or false, or where it may be repeated a list"
    )]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Which setting.
        setting: String,
    },
}

/// How a setting of the file is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The file may not contain it.
    Unknown,
    /// Ignored, because the command line or the environment sets it.
    Left,
    /// One value.
    One,
    /// One value or a list.
    Many,
}

/// Returns the settings of the file as words of the command line. `taken` says how to use a setting, by its
/// name.
///
/// # Errors
/// [`FileError`] if the file cannot be read, is not a flat map of settings, or contains a setting that is not
/// allowed.
pub fn words(path: &Path, taken: impl Fn(&str) -> Taken) -> Result<Vec<OsString>, FileError> {
    let text = std::fs::read_to_string(path).map_err(|err| FileError::Read { path: path.to_owned(), err })?;
    parse(path, &text, taken)
}

fn parse(path: &Path, text: &str, taken: impl Fn(&str) -> Taken) -> Result<Vec<OsString>, FileError> {
    let map = match serde_norway::from_str(text) {
        Ok(Value::Mapping(map)) => map,
        Ok(Value::Null) => return Ok(Vec::new()),
        Ok(_) => return Err(FileError::NotAMap { path: path.to_owned() }),
        Err(err) => return Err(FileError::Yaml { path: path.to_owned(), err }),
    };
    let mut words = Vec::new();
    for (name, value) in map {
        let Value::String(name) = name else { return Err(FileError::NotAMap { path: path.to_owned() }) };
        let values = match (taken(&name), value) {
            (Taken::Unknown, _) => return Err(FileError::Unknown { path: path.to_owned(), setting: name }),
            (Taken::Left, _) => continue,
            (Taken::Many, Value::Sequence(values)) => values,
            (_, value) => vec![value],
        };
        for value in values {
            match value {
                Value::Null | Value::Bool(false) => (),
                Value::Bool(true) => words.push(format!("--{name}").into()),
                Value::Number(number) => words.push(format!("--{name}={number}").into()),
                Value::String(text) => words.push(format!("--{name}={text}").into()),
                _ => return Err(FileError::Value { path: path.to_owned(), setting: name }),
            }
        }
    }
    Ok(words)
}

/// Returns the command line with the file's words inserted after the command's name.
pub fn with_words(line: &[OsString], command: &str, words: Vec<OsString>) -> Vec<OsString> {
    let at = line.iter().position(|word| word == OsStr::new(command)).map_or(line.len(), |at| at + 1);
    let mut whole = line.to_vec();
    whole.splice(at..at, words);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Result<&[&str], &str>) {
        let taken = |name: &str| match name {
            "env" => Taken::Left,
            "model" => Taken::Many,
            "help" => Taken::Unknown,
            _ => Taken::One,
        };
        let have = parse(Path::new("f"), text, taken).map_err(|err| err.to_string());
        let want = want.map(|words| words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(have, want.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn settings_are_words() {
        check("", Ok(&[]));
        check("listen: 127.0.0.1:0\nslots: 16", Ok(&["--listen=127.0.0.1:0", "--slots=16"]));
        check("drain-timeout: 2.5\njson: true\nother: false", Ok(&["--drain-timeout=2.5", "--json"]));
        check("model-name: '-1'\nenv: x\nnone: ~", Ok(&["--model-name=-1"]));
        check("- a", Err("`f` must hold one setting a line, `option: value`"));
        check("model: [a.gguf, 'b=c.gguf']", Ok(&["--model=a.gguf", "--model=b=c.gguf"]));
        check("model: a.gguf", Ok(&["--model=a.gguf"]));
        let wrong = |name: &str| {
            format!(
                "setting `{name}` of `f` must be text, a number, or true or false, or where it may be repeated a list"
            )
        };
        check("a: [1]", Err(&wrong("a")));
        check("model: [[1]]", Err(&wrong("model")));
        check("a: b: c", Err("`f` is not YAML"));
        check("help: true", Err("setting `help` of `f` is no option of serve that a file may set"));
    }

    #[test]
    fn the_line_comes_after_the_file() {
        let line = ["baton-cloud", "serve", "--slots", "4"].map(OsString::from);
        let whole = with_words(&line, "serve", vec!["--slots=16".into()]);
        assert_eq!(whole, ["baton-cloud", "serve", "--slots=16", "--slots", "4"].map(OsString::from));
    }
}
