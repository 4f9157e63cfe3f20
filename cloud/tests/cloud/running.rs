//! Tests the running program: signals, and settings that are applied while it runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

use crate::client::HANG;
use crate::program::{program, refused};

pub(crate) struct Running {
    child: Child,
    pub address: String,
    /// Address for Prometheus, if there is one.
    pub metrics: Option<String>,
    /// Lines of standard error, from a thread that reads them: a line that does not come is no hang.
    log: Receiver<String>,
}

pub(crate) fn model(folder: &Path) -> PathBuf {
    let model = folder.join("tiny.gguf");
    std::fs::write(&model, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
    model
}

impl Running {
    pub(crate) fn start(words: &[&str]) -> Running {
        let mut child = program()
            .args(["serve", "--database", ":memory:", "--listen", "127.0.0.1:0", "--threads", "1"])
            .args(words)
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = |begin: &str| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line.trim().strip_prefix(begin).expect("an address").to_owned()
        };
        let address = line("listening on http://");
        let metrics = words.contains(&"--metrics-listen").then(|| line("metrics on http://"));
        let metrics = metrics.map(|url| url.trim_end_matches("/metrics").to_owned());
        let err = BufReader::new(child.stderr.take().unwrap());
        let (lines, log) = channel();
        std::thread::spawn(move || err.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        Running { child, address, metrics, log }
    }

    fn signal(&self, name: &str) {
        let told = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Reads the log until a line contains `text`; returns that line.
    pub(crate) fn logs(&mut self, text: &str) -> String {
        let (begun, mut seen) = (Instant::now(), String::new());
        while let Ok(line) = self.log.recv_timeout(HANG.saturating_sub(begun.elapsed())) {
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        panic!("no `{text}` in {seen}");
    }

    fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        Running::send(&self.address, &request)
    }

    /// Returns the reply to a request, as it is on the wire.
    pub(crate) fn send(address: &str, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn ends_well(mut self) {
        let begun = Instant::now();
        while begun.elapsed() < HANG {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn settings_come_from_a_file_and_are_taken_over_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = (model(folder.path()), folder.path().join("cloud.yaml"));
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&format!("model: {}\nslots: 3\nqueue: 7\nqueue-seconds: 11\n", model.display()));
    let mut running = Running::start(&["--config", file.to_str().unwrap(), "--slots", "2"]);
    let stats = running.get("/v1/stats");
    assert!(stats.contains("\"slots\":2"), "the command line wins: {stats}");
    assert!(
        stats.contains("\"queue_len_max\":7") && stats.contains("\"prefill_backlog_ms_max\":11000.0"),
        "{stats}"
    );

    write(&format!("model: {}\nslots: 4\nqueue: 9\nchunk-tokens: 64\n", model.display()));
    running.signal("-HUP");
    running.logs("taken over");
    running.logs("read only at start-up");
    assert!(running.get("/v1/stats").contains("\"queue_len_max\":9"));

    write("slots: [1]\nqueue: 1");
    running.signal("-HUP");
    running.logs("the old settings stay");
    write(&format!("model: {}\nqueue: 12345678\n", model.display()));
    running.signal("-HUP");
    running.logs("the old settings stay");
    assert!(running.get("/v1/stats").contains("\"queue_len_max\":9"));
    running.signal("-TERM");
    running.ends_well();
}

#[test]
fn a_settings_file_that_is_wrong_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud.yaml");
    let serve = |text: &str| {
        std::fs::write(&file, text).unwrap();
        program().args(["serve", "--config"]).arg(&file).output().unwrap()
    };
    refused(&serve("slots: [1]"), "setting `slots` of");
    for unknown in ["slotz: 1", "help: true", "config: other.yaml"] {
        let out = serve(unknown);
        let (name, _) = unknown.split_once(':').unwrap();
        refused(&out, &format!("setting `{name}` of `{}` is no option of serve", file.display()));
        assert_eq!(out.status.code(), Some(2), "{unknown}");
    }
    let many = serve("slots: many");
    refused(&many, &format!("settings file `{}`: invalid value 'many'", file.display()));
    assert_eq!(many.status.code(), Some(2));
    refused(
        &serve("model: m.gguf\nslots: 2000"),
        &format!("also those of `{}`: --slots is 2000", file.display()),
    );
    refused(&serve("- slots"), "must hold one setting a line");
    std::fs::remove_file(&file).unwrap();
    let missing = program().args(["serve", "--config"]).arg(&file).output().unwrap();
    refused(&missing, "read the settings file");
}

/// Requests a chat stream, and reads until its first chunk is there.
fn chat(address: &str) -> TcpStream {
    let body = r#"{"model":"default","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("data: ") {
        let mut some = [0; 1024];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "the reply ends early");
        read.extend_from_slice(&some[..count]);
    }
    stream
}

#[test]
fn one_signal_drains_and_a_second_one_ends() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let slow = ["--emulate-decode-ms", "100", "--model", model.to_str().unwrap()];
    for (more, second) in [(&["--drain-timeout", "600"][..], true), (&["--drain-timeout", "0.2"], false)] {
        let mut running = Running::start(&[&slow[..], more].concat());
        let mut stream = chat(&running.address);
        running.signal("-TERM");
        running.logs("draining");
        if second {
            let refused = running.get("/readyz");
            assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
            running.signal("-TERM");
        }
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"code\":\"unavailable\"") && rest.contains("data: [DONE]"), "{rest}");
        running.ends_well();
    }
}
