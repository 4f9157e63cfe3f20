//! Rules that a reader of the sources relies on.

use std::path::Path;

use super::{check, files, rust_sources, top};

/// Where `unsafe` may stand.
const UNSAFE: &[&str] = &["kernels/", "shared/engine/src/gguf/map.rs", "shared/engine/src/platform/"];
const LINES_MAX: usize = 600;
/// Lines of `x`, which runs before anything is built.
const ENTRY_LINES_MAX: usize = 40;
const FILE_BYTES_MAX: u64 = 500_000;
const MODELS_BYTES_MAX: u64 = 24 << 20;

/// A line without its comment and without what stands between double quotes: enough to look for keywords.
fn code(line: &str) -> String {
    let mut out = String::new();
    let mut in_text = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_text => {
                chars.next();
            }
            '"' => in_text = !in_text,
            '/' if !in_text && chars.peek() == Some(&'/') => break,
            _ if !in_text => out.push(c),
            _ => {}
        }
    }
    out
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Lines of code for which `found` answers, as `file:line: text`.
fn lines_where(found: impl Fn(&Path, &str) -> bool) -> Vec<String> {
    let mut offences = Vec::new();
    for (path, text) in rust_sources() {
        for (line_idx, line) in text.lines().enumerate() {
            if found(&path, &code(line)) {
                offences.push(format!("{}:{}: {}", path.display(), line_idx + 1, line.trim()));
            }
        }
    }
    offences
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let offences = lines_where(|path, line| {
        words(line).any(|word| word == "unsafe") && !UNSAFE.iter().any(|place| path.starts_with(place))
    });
    check("`unsafe` outside the kernels, the mapped-file module and the calls of systems", &offences);
}

#[test]
fn sql_stands_in_one_module_of_each_program() {
    let modules = ["cloud/src/store.rs", "device/src/conversations.rs"].map(Path::new);
    let folders = ["cloud/src/store", "device/src/conversations"];
    let offences = lines_where(|path, line| {
        words(line).any(|word| word == "sqlx")
            && !folders.iter().any(|folder| path.starts_with(folder))
            && !modules.contains(&path)
    });
    check("sqlx outside the cloud's store and the device's conversations", &offences);
}

/// Programs that print text from outside, through `shared/terminal` alone; tests print for themselves.
const PRINTING: &[&str] = &["device/src"];

#[test]
fn text_reaches_a_terminal_through_one_filter() {
    let prints = ["print!(", "println!(", "io::stdout().lock()", "io::stderr().lock()", "writeln!(std::io::"];
    let mut offences = Vec::new();
    for (path, text) in rust_sources() {
        let is_test = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
        if is_test || !PRINTING.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
        for (line_idx, line) in text[..tests].lines().enumerate() {
            if prints.iter().any(|print| code(line).contains(print)) {
                offences.push(format!("{}:{}: {}", path.display(), line_idx + 1, line.trim()));
            }
        }
    }
    check("output that does not go through shared/terminal", &offences);
}

/// Programs of the workshop: standard output through `shared/terminal` too, which knows a reader that has
/// gone. `xtask` does not use the packages of the project, and has a function of its own for that.
const PRINTING_OUT: &[&str] = &["benches/src", "benches/eval/src", "tests/src", "xtask/src"];

#[test]
fn a_closed_pipe_is_no_panic_of_benches_and_the_demo() {
    let offences = lines_where(|path, line| {
        let prints = |print: &str| line.contains(print) && !line.contains(&format!("e{print}"));
        PRINTING_OUT.iter().any(|folder| path.starts_with(folder))
            && (prints("print!(") || prints("println!("))
    });
    check("standard output that does not go through shared/terminal", &offences);
}

#[test]
fn nothing_is_left_for_later() {
    let marks = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!"));
    let offences = lines_where(|_, line| marks.iter().any(|mark| line.contains(mark.as_str())));
    check("an unfinished marker", &offences);
    let ignored = format!("#[{}", "ignore");
    check("an ignored test", &lines_where(|_, line| line.contains(ignored.as_str())));
}

#[test]
fn exceptions_from_lints_have_a_reason() {
    let mark = format!("#[{}(", "allow");
    let mut offences = Vec::new();
    for (path, text) in rust_sources() {
        for (start, _) in text.match_indices(mark.as_str()) {
            let end = text[start..].find(']').map_or(text.len(), |at| start + at);
            if !text[start..end].contains("reason") {
                offences.push(format!("{}: {}", path.display(), &text[start..end]));
            }
        }
    }
    check("a lint exception without a reason", &offences);
}

#[test]
fn files_stay_short() {
    let offences: Vec<String> = rust_sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    check("a source file over 600 lines", &offences);
}

#[test]
fn the_entry_point_is_a_shim() {
    let script = std::fs::read_to_string(top().join("x")).expect("read x");
    let lines = script.lines().count();
    assert!(lines <= ENTRY_LINES_MAX, "x has {lines} lines, {ENTRY_LINES_MAX} at most: xtask/ does the work");
}

#[test]
fn names_say_what_a_thing_is() {
    let vague = |word: &str| ["Manager", "Helper", "Utils", "V2"].iter().any(|end| word.ends_with(end));
    let offences = lines_where(|_, line| {
        let mut words = words(line);
        let defines = words.any(|word| matches!(word, "struct" | "enum" | "trait" | "type"));
        defines && words.next().is_some_and(vague)
    });
    check("a type whose name says nothing", &offences);
    let modules: Vec<String> = files()
        .iter()
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name == "mod.rs" || name == "utils.rs" || name == "helpers.rs")
        })
        .map(|path| path.display().to_string())
        .collect();
    check("a file name that says nothing", &modules);
}

#[test]
fn every_source_says_what_it_is_for() {
    let offences: Vec<String> = rust_sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    check("a source file that does not begin with its purpose", &offences);
}

#[test]
fn large_files_are_only_the_models() {
    let mut offences = Vec::new();
    let mut models = 0;
    for path in files() {
        let bytes = std::fs::metadata(top().join(&path)).expect("a listed file is there").len();
        if path.starts_with("models") {
            models += bytes;
        } else if bytes > FILE_BYTES_MAX {
            offences.push(format!("{}: {bytes} bytes", path.display()));
        }
    }
    check("a large file outside models/", &offences);
    assert!(models <= MODELS_BYTES_MAX, "models/ holds {models} bytes, {MODELS_BYTES_MAX} at most");
}

#[test]
fn the_documents_name_what_exists() {
    let read = |name: &str| {
        std::fs::read_to_string(top().join(name)).unwrap_or_else(|err| panic!("read {name}: {err}"))
    };
    let (readme, architecture) = (read("README.md"), read("ARCHITECTURE.md"));
    for command in ["./x demo", "./x test", "./x bench", "./x lint"] {
        assert!(readme.contains(command), "README.md does not name `{command}`");
    }
    assert!(read(".ci/run").contains("./x test"), ".ci/run does not call ./x test");
    let manifests: Vec<_> = files().into_iter().filter(|path| path.ends_with("Cargo.toml")).collect();
    for manifest in &manifests {
        let folder = manifest.parent().expect("a manifest has a folder").display().to_string();
        assert!(
            folder.is_empty() || architecture.contains(&format!("`{folder}/`")),
            "ARCHITECTURE.md does not name `{folder}/`"
        );
    }
    for place in
        architecture.split('`').skip(1).step_by(2).filter(|text| text.ends_with('/') && !text.contains(' '))
    {
        assert!(top().join(place).is_dir(), "ARCHITECTURE.md names `{place}`, which is not there");
    }
}
