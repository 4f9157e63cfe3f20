//! The command line as people and shells use it: interrupts, closed pipes, odd input, and a terminal that
//! external text must not control.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use baton_e2e::process::{cpu_program, models_folder};
use baton_protocol::{ErrorBody, ErrorCode};

/// Longest time for a program to print something: a guard against hangs, not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// A folder with a document and the settings of `baton`.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("make a folder");
        std::fs::write(folder.path().join("doc.txt"), "The gate is red.\n\nThe key is blue.\n")
            .expect("write");
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> Vec<String> {
        let model = models_folder().join("demo-device.gguf");
        let options = [
            "--model",
            &model.display().to_string(),
            "--config-dir",
            &self.path("config").display().to_string(),
        ];
        options.map(str::to_owned).to_vec()
    }

    pub(crate) fn baton(&self, command: &str, arguments: &[&str]) -> Command {
        let mut baton = cpu_program("baton").expect("the program is built");
        baton.arg(command).args(arguments).args(self.options()).stdin(Stdio::null());
        baton
    }

    /// Makes a `baton ask` about the document, on this device alone.
    fn ask(&self, arguments: &[&str]) -> Command {
        let document = self.path("doc.txt").display().to_string();
        let all =
            [&[document.as_str(), "Which colour is the key?", "--no-cloud", "--instant"], arguments].concat();
        self.baton("ask", &all)
    }
}

fn run(command: &mut Command) -> (Output, String) {
    let out = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!said.contains("panicked"), "{command:?}: {said}");
    (out, said)
}

/// Returns the pieces of a stream as they come.
fn pieces(mut stream: impl std::io::Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut piece) {
            if sender.send(piece[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn ended(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("look at the program") {
            return status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().expect("end the program");
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let place = Place::new();
    for mut command in [place.ask(&["--max-tokens", "8"]), place.ask(&["--json", "--max-tokens", "8"])] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let (out, said) = run(command.stdout(writer).stderr(Stdio::piped()));
        assert_eq!(out.status.code(), Some(141), "{said}");
        // A report says on standard error that its answer was cut, before it is written.
        let other = said.lines().filter(|line| !line.starts_with("note: the answer was cut"));
        assert_eq!(other.collect::<String>(), "", "nothing else is said");
    }
}

#[test]
fn a_closed_pipe_ends_a_bench_quietly() {
    let mut bench = cpu_program("baton-bench").expect("the program is built");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    bench.args(["mask", "--documents", "1"]).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let (out, said) = run(&mut bench);
    assert_eq!(out.status.code(), Some(141), "{said}");
    assert_eq!(said, "", "nothing is said");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("open /dev/full");
    for arguments in [&["--max-tokens", "4"][..], &["--json", "--max-tokens", "4"]] {
        let (out, said) = run(place.ask(arguments).stdout(full()).stderr(Stdio::piped()));
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
    }
    // If the log cannot be written, the answer still succeeds.
    let out = place.ask(&["--max-tokens", "4"]).stderr(full()).output().expect("it starts");
    assert!(out.status.success() && !out.stdout.is_empty());
    let (out, said) = run(&mut place.ask(&["--report", "/dev/full", "--max-tokens", "4"]));
    assert!(said.contains("write `/dev/full`: No space left") && out.status.code() == Some(1), "{said}");
    // A report that cannot be written is noticed before the answer is made.
    let nowhere = place.path("no/folder.json").display().to_string();
    let (out, said) = run(&mut place.ask(&["--report", &nowhere, "--max-tokens", "4"]));
    assert!(out.stdout.is_empty() && said.contains("folder.json") && out.status.code() == Some(1), "{said}");
}

#[test]
fn a_model_without_a_template_is_named() {
    let place = Place::new();
    let model = std::fs::read(models_folder().join("demo-device.gguf")).expect("the demo model");
    let (name, other) = (b"tokenizer.chat_template", b"tokenizer.chat_templaTE");
    let at = model.windows(name.len()).position(|window| window == name).expect("its template");
    let base = place.path("base.gguf");
    std::fs::write(&base, [&model[..at], other, &model[at + name.len()..]].concat()).expect("write");
    let (base, document) = (base.display().to_string(), place.path("doc.txt").display().to_string());
    let mut command = cpu_program("baton").expect("the program is built");
    command.args(["ask", &document, "Q", "--no-cloud", "--model", &base, "--max-tokens", "32", "--instant"]);
    let (out, said) = run(command.env("BATON_CONFIG_DIR", place.path("config")));
    assert!(out.status.success() && said.contains("has no chat template"), "{said}");
    let answer = String::from_utf8_lossy(&out.stdout);
    assert!(!answer.contains("<|im_"), "{answer}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_answer_ends_with_the_status_of_its_signal() {
    let place = Place::new();
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        let mut command = place.ask(&["--max-tokens", "512", "--emulate-decode-ms", "50"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let text = pieces(child.stdout.take().expect("its output"));
        text.recv_timeout(LIMIT).expect("the answer begins");
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("run kill");
        assert!(sent.success());
        assert_eq!(ended(&mut child).code(), Some(status), "{signal}");
        let mut said = String::new();
        child.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
        assert!(!said.contains("error") && !said.contains("panicked"), "{said}");
    }
}

/// On Linux all addresses of 127.0.0.0/8 belong to this machine.
#[cfg(target_os = "linux")]
#[test]
fn serve_answers_at_its_own_address_and_ends_in_order() {
    let place = Place::new();
    for signal in ["-INT", "-TERM"] {
        let mut serve = place.baton("serve", &["--listen", "127.0.0.2:0", "--no-cloud", "--threads", "1"]);
        let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let pieces = pieces(child.stdout.take().expect("its output"));
        let mut said = String::new();
        while !said.ends_with('\n') {
            said.push_str(&String::from_utf8_lossy(&pieces.recv_timeout(LIMIT).expect("it listens")));
        }
        let address = said.trim().strip_prefix("listening on http://").expect("an address").to_owned();
        let mut stream = std::net::TcpStream::connect(&address).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("set a limit");
        write!(stream, "GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("ask");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("run kill");
        assert!(sent.success());
        assert_eq!(ended(&mut child).code(), Some(0), "{signal}");
    }
}

#[cfg(unix)]
#[test]
fn a_killed_answer_leaves_what_was_shown_and_a_suspended_one_goes_on() {
    let place = Place::new();
    let (whole, said) = run(&mut place.ask(&["--max-tokens", "48"]));
    assert!(whole.status.success(), "{said}");
    let signal = |child: &Child, signal: &str| {
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("run kill");
        assert!(sent.success());
    };
    let begin = |text: &Path| {
        let file = std::fs::File::create(text).expect("make a file");
        let mut command = place.ask(&["--max-tokens", "48", "--emulate-decode-ms", "20"]);
        let child = command.stdout(file).stderr(Stdio::null()).spawn().expect("it starts");
        let begun = Instant::now();
        while std::fs::metadata(text).expect("the file").len() == 0 {
            assert!(begun.elapsed() < LIMIT, "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    };
    let text = place.path("killed.txt");
    let mut child = begin(&text);
    signal(&child, "-KILL");
    child.wait().expect("it is gone");
    let left = std::fs::read(&text).expect("read");
    assert!(!left.is_empty() && whole.stdout.starts_with(&left), "{:?}", String::from_utf8_lossy(&left));

    let text = place.path("suspended.txt");
    let mut child = begin(&text);
    signal(&child, "-STOP");
    signal(&child, "-CONT");
    assert!(ended(&mut child).success());
    assert_eq!(std::fs::read(&text).expect("read"), whole.stdout);
    // Neither leaves anything that would disturb the next answer.
    let (again, said) = run(&mut place.ask(&["--max-tokens", "48"]));
    assert_eq!(again.stdout, whole.stdout, "{said}");
}

#[test]
fn line_ends_do_not_change_an_answer() {
    let place = Place::new();
    let text = std::fs::read_to_string(place.path("doc.txt")).expect("read");
    let answer = || {
        let (out, said) = run(&mut place.ask(&["--json", "--max-tokens", "24"]));
        assert!(out.status.success(), "{said}");
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
        (json["answer"].clone(), json["prompt_tokens"].clone())
    };
    let unix = answer();
    std::fs::write(place.path("doc.txt"), text.replace('\n', "\r\n")).expect("write");
    assert_eq!(answer(), unix);
}

#[test]
fn a_file_is_named_once_and_a_missing_home_is_no_obstacle() {
    let place = Place::new();
    let missing = place.path("none.gguf").display().to_string();
    let document = place.path("doc.txt").display().to_string();
    let baton = || cpu_program("baton").expect("the program is built");
    let (_, said) = run(baton().args(["ask", &document, "Q", "--no-cloud", "--model", &missing]));
    assert_eq!(said.matches(&missing).count(), 1, "{said}");
    assert!(said.contains("open model") && said.contains("(os error 2)"), "{said}");

    let model = models_folder().join("demo-device.gguf").display().to_string();
    let mut homeless = baton();
    homeless.env_remove("HOME").env_remove("XDG_CONFIG_HOME").env_remove("BATON_CONFIG_DIR");
    homeless.args(["ask", &document, "Q", "--model", &model, "--max-tokens", "4", "--instant"]);
    // The cloud does not exist. A consent for one answer is not stored, so it needs no folder.
    let (out, said) = run(homeless.args(["--yes", "--cloud", "127.0.0.1:1"]));
    assert!(out.status.success() && !out.stdout.is_empty(), "{said}");
    assert!(!said.contains("remembered") && said.contains("cannot reach the cloud"), "{said}");
}

#[test]
fn the_word_for_one_run_is_not_kept() {
    let place = Place::new();
    let document = place.path("doc.txt").display().to_string();
    let ask = |more: &[&str]| {
        let line = [&[document.as_str(), "Q", "--instant", "--max-tokens", "4", "--cloud"], more].concat();
        run(&mut place.baton("ask", &line))
    };
    let (out, said) = ask(&["127.0.0.1:1", "--yes"]);
    assert!(out.status.success() && said.contains("cannot reach the cloud"), "{said}");
    for cloud in ["127.0.0.1:1", "127.0.0.1:2"] {
        let (out, said) = ask(&[cloud]);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("nobody was asked yet whether http://{cloud} may be used")), "{said}");
    }
    let (out, said) = ask(&["http://ann:secret@127.0.0.1:1", "--yes"]);
    assert!(out.status.code() == Some(2) && said.contains("by --cloud-key"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn each_cloud_is_asked_about() {
    let place = Place::new();
    let document = place.path("doc.txt").display().to_string();
    let ask = |cloud: &str| {
        let line = [document.as_str(), "Q", "--instant", "--max-tokens", "4", "--cloud", cloud];
        place.baton("ask", &line)
    };
    let mut terminal = Terminal::start(&ask("127.0.0.1:1"));
    terminal.wait_for("would be sent to http://127.0.0.1:1.");
    terminal.wait_for("[y/N] ");
    terminal.press("y\n");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(0), "{shown}");
    // The consent is stored, for this cloud only.
    let (out, said) = run(&mut ask("127.0.0.1:1"));
    assert!(out.status.success() && said.contains("cannot reach the cloud"), "{said}");
    let (out, said) = run(&mut ask("127.0.0.1:2"));
    assert!(out.status.code() == Some(1) && said.contains("http://127.0.0.1:2 may be used"), "{said}");
}

/// Starts a service that refuses every request with this message.
fn refusing_cloud(words: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("its address");
    let body = serde_json::to_string(&ErrorBody::new(ErrorCode::InvalidRequest, words)).expect("JSON");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 65536];
            // The request may come in several pieces; only the reply matters.
            let _read = stream.read(&mut request);
            let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _sent = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
            // The rest of the request is read, so that the reply is not lost by a reset.
            let _closed = stream.shutdown(std::net::Shutdown::Write);
            let _rest = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    address.to_string()
}

/// A program on its own terminal, made with `script`, which every Linux has.
#[cfg(target_os = "linux")]
pub(crate) struct Terminal {
    child: Child,
    keys: ChildStdin,
    pieces: Receiver<Vec<u8>>,
    shown: Vec<u8>,
    read: usize,
}

#[cfg(target_os = "linux")]
impl Terminal {
    pub(crate) fn start(command: &Command) -> Self {
        let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
        let line = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted);
        let line = line.collect::<Vec<_>>().join(" ");
        let mut child = Command::new("script")
            .args(["-qefc", &line, "/dev/null"])
            .env("TERM", "xterm")
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run script (package bsdutils)");
        let pieces = pieces(child.stdout.take().expect("its output"));
        let keys = child.stdin.take().expect("its input");
        Self { child, keys, pieces, shown: Vec::new(), read: 0 }
    }

    /// Waits until this text is shown, after the texts waited for before.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        loop {
            let new = &self.shown[self.read..];
            if let Some(at) = new.windows(text.len()).position(|window| window == text.as_bytes()) {
                self.read += at + text.len();
                return;
            }
            match self.pieces.recv_timeout(LIMIT) {
                Ok(piece) => self.shown.extend(piece),
                Err(_) => panic!("no {text:?} in {:?}", self.text()),
            }
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("press keys");
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// Waits for the end; returns the status and all that was shown.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = ended(&mut self.child);
        while let Ok(piece) = self.pieces.recv_timeout(LIMIT) {
            self.shown.extend(piece);
        }
        (status.code(), self.text())
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_person_who_waits_sees_how_far_the_prompt_is() {
    let place = Place::new();
    let long: String = (0..120).map(|n| format!("Sentence {n} speaks of gates and keys. ")).collect();
    std::fs::write(place.path("doc.txt"), long).expect("write");
    let ask = place.ask(&["--max-tokens", "8", "--emulate-prefill-ms-per-token", "3"]);
    let mut terminal = Terminal::start(&ask);
    terminal.wait_for("this device reads the prompt: ");
    terminal.wait_for(" left");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(0), "{shown}");
    // Each progress line is removed before anything else is shown.
    let kept =
        shown.split("\r\x1b[K").filter(|piece| !piece.starts_with("this device reads")).collect::<String>();
    let is_said = |line: &&str| line.contains("EMULATION") || line.starts_with("note: the answer was cut");
    let lines: Vec<&str> = kept.lines().filter(|line| !is_said(line)).collect();
    let (plain, said) = run(&mut place.ask(&["--max-tokens", "8"]));
    assert_eq!(lines.join("\n").trim(), String::from_utf8_lossy(&plain.stdout).trim(), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn text_from_outside_does_not_steer_a_terminal() {
    let place = Place::new();
    let steering = "\x1b]0;owned\x07 \x1b[2J \u{9b}2J \u{202e}desrever";
    let cloud = refusing_cloud(steering);
    let document = place.path("doc.txt").display().to_string();
    let options = ["--cloud", &cloud, "--yes", "--instant", "--max-tokens", "4"];
    let ask = place.baton("ask", &[&[document.as_str(), "Q"], &options[..]].concat());
    let (status, shown) = Terminal::start(&ask).end();
    assert_eq!(status, Some(0), "{shown}");
    assert!(shown.contains("␛]0;owned␇ ␛[2J"), "the words are shown: {shown:?}");
    for steers in ["\x1b]0", "\x07", "\x1b[2J", "\u{9b}", "\u{202e}"] {
        assert!(!shown.contains(steers), "{steers:?} reached the terminal: {shown:?}");
    }
    // The name of a file is external text too.
    let named = place.path("\x1b[31mred.txt").display().to_string();
    let (status, shown) = Terminal::start(&place.baton("ask", &[&named, "Q", "--no-cloud"])).end();
    assert!(status == Some(1) && shown.contains("␛[31mred.txt") && !shown.contains("\x1b[31"), "{shown:?}");
    // A wrong argument may be external text too.
    let (status, shown) = Terminal::start(&place.baton("ask", &["--\x1b[31m", "Q"])).end();
    assert!(status == Some(2) && !shown.contains("\x1b["), "{shown:?}");
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_what_is_wanted() {
    let plan = ["ring", "plan", "--devices", "d.json", "--model", "m.gguf"];
    for (program_name, line, want) in [
        ("baton", &["ask", "d", "q", "--ratio", "2"][..], "'2' for '--ratio <R>': must be 0.01 to 1"),
        ("baton", &["ask", "d", "q", "--top-k", "-1"], "must be a whole number from 1 to 1000000"),
        ("baton", &["ask", "d", "q", "--stop", ""], "must be 1 to 1024 bytes long"),
        ("baton", &["serve", "--ring-f16"], "--ring-f16 does nothing without --ring"),
        ("baton", &["serve", "--listen", "8017"], "want HOST:PORT"),
        ("baton", &[&plan[..], &["--context", "0"]].concat(), "'0' for '--context <N>'"),
        ("baton", &[&plan[..], &["--planner", "halda", "--rounds", "2"]].concat(), "for --planner exact"),
        ("baton-demo", &["--seeds", "1..2", "ring"], "belong to the demo without a ring"),
        ("baton-demo", &["--real-model", "ring"], "belong to the demo without a ring"),
        ("baton-demo", &["--document", "d", "--question", "q", "--tokens", "2000"], "--tokens"),
    ] {
        let mut command = cpu_program(program_name).expect("the program is built");
        let (out, said) = run(command.args(line).stdin(Stdio::null()));
        assert_eq!(out.status.code(), Some(2), "{line:?}: {said}");
        assert!(said.contains(want) && out.stdout.is_empty(), "{line:?}: {said}");
    }
}

#[test]
fn what_cannot_be_done_is_said_with_what_helps() {
    let place = Place::new();
    let document = place.path("doc.txt").display().to_string();
    let state = place.path("ring").display().to_string();
    let check = |program_name: &str, line: &[&str], want: &str| {
        let mut command = cpu_program(program_name).expect("the program is built");
        command.env_remove("BATON_KEY").args(line).stdin(Stdio::null());
        let (out, said) = run(&mut command);
        assert_eq!(out.status.code(), Some(1), "{line:?}: {said}");
        assert!(said.contains(want) && out.stdout.is_empty(), "{line:?}: {said}");
    };
    check("baton", &["serve", "--listen", "0.0.0.0:0"], "pass --key or set BATON_KEY");
    let swapped = ["ask", "Which colour is the key?", &document, "--no-cloud"];
    check("baton", &swapped, &format!("the document comes first: baton ask {document} \"Which colour"));
    let bare = ["model", "pull", "ann/small-GGUF"];
    check("baton", &bare, "a repository of the hub is hf:ann/small-GGUF");
    let no_model = ["ask", &document, "Q", "--no-cloud", "--model", &document];
    check("baton", &no_model, "this is not a GGUF file: it begins with \"The \"");
    let init = ["ring", "init", "--state", &state, "--interface", "nope"];
    check("baton", &init, "no interface is called `nope`; there are: ");
    let missing = place.path("none.gguf").display().to_string();
    let demo = ["--document", &document, "--question", "Q", "--cloud-model", &missing];
    check("baton-demo", &demo, "none.gguf`: No such file");

    // `ask` has no API option that would shorten a prompt.
    let (out, said) = run(&mut place.ask(&["--kv-tokens", "10", "--ratio", "0.5"]));
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("(--kv-tokens)") && !said.contains("truncation"), "{said}");
    assert!(said.contains("no cloud takes part, so these options change nothing: --ratio"), "{said}");
}

#[test]
fn a_model_is_named_and_never_guessed() {
    let place = Place::new();
    let document = place.path("doc.txt").display().to_string();
    let [config, models] = ["config", "models"].map(|name| place.path(name).display().to_string());
    let baton = |line: &[&str], folder: &Path| {
        let mut command = cpu_program("baton").expect("the program is built");
        command.env_remove("BATON_MODEL").env("BATON_MODELS", &models).env("BATON_CONFIG_DIR", &config);
        run(command.args(line).current_dir(folder).stdin(Stdio::null()))
    };
    // The demo model of the checkout is there, and is not taken.
    let checkout = models_folder().join("..");
    let ask = ["ask", &document, "Q", "--no-cloud", "--max-tokens", "4", "--instant"];
    for line in [&ask[..], &["chat", "--no-cloud"], &["serve", "--no-cloud", "--listen", "127.0.0.1:0"]] {
        let (out, said) = baton(line, &checkout);
        assert_eq!(out.status.code(), Some(1), "{line:?}: {said}");
        assert!(out.stdout.is_empty() && said.starts_with("error: no model is named: "), "{line:?}: {said}");
        for way in ["`baton model pull hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF`", "--model PATH"] {
            assert!(said.contains(way), "{line:?}: {said}");
        }
    }
    // What is kept is there, also for a command in another folder.
    let (out, said) = baton(&["config", "set", "model", "nothing"], &checkout);
    assert!(out.status.code() == Some(1) && said.contains("no model is called `nothing`"), "{said}");
    let (out, said) = baton(&["config", "set", "model", "models/none.gguf"], &checkout);
    assert!(out.status.code() == Some(1) && said.contains("open `models/none.gguf`"), "{said}");
    let (out, said) = baton(&["config", "set", "model", "models/demo-device.gguf"], &checkout);
    assert!(out.status.success(), "{said}");
    let (out, said) = baton(&ask, place.folder.path());
    assert!(out.status.success() && !out.stdout.is_empty(), "{said}");
}

#[cfg(unix)]
#[test]
fn odd_files_are_refused_in_words() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = Place::new();
    let not_text = place.path("").join(std::ffi::OsStr::from_bytes(b"\xff\xfe.txt"));
    std::fs::write(&not_text, b"bad \xff byte").expect("write");
    let empty = place.path("empty.txt");
    std::fs::write(&empty, " \n").expect("write");
    let refused = |document: &Path, want: &str| {
        let mut command = cpu_program("baton").expect("the program is built");
        command.arg("ask").arg(document).args(["Q", "--no-cloud"]).args(place.options()).stdin(Stdio::null());
        let (out, said) = run(&mut command);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(want) && out.stdout.is_empty(), "{want}: {said}");
    };
    let folder = place.path("nothing");
    std::fs::create_dir(&folder).expect("make a folder");
    refused(&not_text, "is not UTF-8 text: bad byte at 4");
    refused(&empty, "is empty");
    refused(Path::new("-"), "read standard input: it is empty");
    refused(&folder, "no file in the folder");
}
