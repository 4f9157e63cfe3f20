//! Conversations of `baton chat` are kept, taken up again, found and forgotten.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use baton_e2e::process::{cpu_program, models_folder};
use serde_json::Value;

/// Runs `baton` with this standard input; returns what it printed.
fn baton(folder: &Path, words: &[&str], input: &str) -> (bool, String, String) {
    let mut command = cpu_program("baton").expect("the program is built");
    command.args(words).arg("--config-dir").arg(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // It may end before it has read everything.
    let _ = child.stdin.take().expect("a standard input").write_all(input.as_bytes());
    let out = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (out.status.success(), text(out.stdout), text(out.stderr))
}

fn chat(folder: &Path, words: &[&str], input: &str) -> String {
    let model = models_folder().join("demo-device.gguf");
    let own = ["chat", "--no-cloud", "--instant", "--max-tokens", "12", "--model"];
    let model = model.display().to_string();
    let (is_good, out, said) = baton(folder, &[&own[..], &[&model], words].concat(), input);
    assert!(is_good, "{said}");
    out
}

fn json(folder: &Path, words: &[&str]) -> Value {
    let (is_good, out, said) = baton(folder, &[words, &["--json"]].concat(), "");
    assert!(is_good, "{said}");
    serde_json::from_str(&out).unwrap_or_else(|err| panic!("{out}: {err}"))
}

#[test]
fn a_chat_is_kept_and_goes_on_as_if_it_had_not_ended() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("make a folder"));
    let (first, second) = ("Name a colour, please.\n", "And another one.\n");
    // At once, and in two parts.
    let whole = chat(one.path(), &[], &format!("{first}{second}"));
    let begun = chat(other.path(), &[], first);
    let resumed = chat(other.path(), &["--resume"], second);
    assert_eq!(format!("{begun}{resumed}"), whole);
    let [show, resumed] = [one.path(), other.path()].map(|folder| json(folder, &["conversations", "show"]));
    let texts = |shown: &Value| -> Vec<String> {
        let turns = shown["turns"].as_array().expect("turns");
        turns.iter().map(|turn| turn["text"].as_str().expect("a text").to_owned()).collect()
    };
    assert_eq!(texts(&show).len(), 4);
    assert_eq!(texts(&show), texts(&resumed));
    let listed = json(other.path(), &["conversations", "list"]);
    assert_eq!(listed["conversations"].as_array().map(Vec::len), Some(1), "{listed}");
    let found = json(other.path(), &["conversations", "search", "ANOTHER"]);
    assert_eq!(found["found"][0]["role"], "user");
    let (_, markdown, _) = baton(other.path(), &["conversations", "show", "1"], "");
    assert!(markdown.starts_with("# Name a colour, please.\n\n## Question"), "{markdown}");
    // What is private is not kept, and what is forgotten is gone.
    chat(other.path(), &["--private"], "A secret.\n");
    assert_eq!(
        json(other.path(), &["conversations", "search", "secret"])["found"].as_array().map(Vec::len),
        Some(0)
    );
    assert_eq!(json(other.path(), &["conversations", "rm", "1"])["removed"], 1);
    let (is_good, _, said) = baton(other.path(), &["conversations", "show"], "");
    assert!(!is_good && said.contains("no conversation"), "{said}");
}
