//! Text that is not private: terms, questions, lists of numbers, versions; and what is found beside it.

use super::*;

fn redacted_in(conversation: bool, texts: &[&str]) -> Vec<String> {
    let names = PrivateNames::default().guessing(conversation);
    let redacted = Redactor::default().with_names(names).redact_all(texts).unwrap();
    redacted.iter().map(|text| text.as_str().to_owned()).collect()
}

/// Checks that a text leaves as it is, in a conversation and elsewhere.
#[track_caller]
fn stays(text: &str) {
    for conversation in [true, false] {
        assert_eq!(redacted_in(conversation, &[text]), [text], "in a conversation: {conversation}");
    }
}

#[track_caller]
fn check(text: &str, want: &str) {
    for conversation in [true, false] {
        assert_eq!(redacted_in(conversation, &[text]), [want], "in a conversation: {conversation}: {text}");
    }
}

#[test]
fn ordinary_questions_leave_as_they_are() {
    for question in [
        "What is the Monte Carlo method?",
        "What is the Pythagorean theorem, and who needs the Gram-Schmidt process?",
        "Explain Kubernetes to me.",
        "How do I use Emscripten with Rust?",
        "Is Jinja faster than Django?",
        "Write a haiku about Autumn.",
        "Why does my Dockerfile fail on Alpine?",
        "Compare Qwen and Mistral with Llama.",
        "Can you fix the Makefile? Thanks!",
        "Wie funktioniert die Fourier-Transformation?",
        "Was ist der Unterschied zwischen Miete und Pacht?",
        "¿Qué es la transformada de Fourier?",
        "¿Cómo funciona el algoritmo de Dijkstra?",
        "什么是蒙特卡洛方法？",
        "快速排序的时间复杂度是多少？",
    ] {
        stays(question);
    }
}

#[test]
fn words_of_a_dictionary_and_of_the_same_text_are_no_names() {
    for text in [
        "We propose Heterogeneous Pipeline Rings. Integer Linear programs said the rest.",
        "Apply Clippy suggestions. The clippy job runs nightly.",
        "Migrate to Criterion, which replaced Bencher.",
        "Die Installation steht in Klammern, siehe auch den Abschnitt Fehlerberichte.",
        "struct A { address: String, company: Option<Company> } // A String is kept.",
        "B. Protocol Encoding follows Appendix B. Except where noted.",
    ] {
        stays(text);
    }
    // In a conversation a word before a colon may be who speaks.
    let subject = "Unix: make libc optional";
    assert_eq!(redacted_in(false, &[subject]), [subject]);
}

#[test]
fn a_word_that_no_list_has_is_a_name_by_two_signs_or_at_half_of_its_places() {
    let told = |text: &str| redacted_in(true, &[text])[0].contains("[PERSON_1]");
    assert!(told("I met with Zephoran and Zephoran said no."), "a verb at half of its places");
    assert!(!told("Zephoran said no. Zephoran, Zephoran and Zephoran are here."), "at a quarter of them");
    assert!(told("We told Zephoran Vanekamp about it."));
    assert!(!redacted_in(false, &["Then Zephoran Vanekamp left it."])[0].contains("[PERSON"));
    // What is sure stays sure.
    check("Dear Ms. Zephoran, thanks.", "Dear Ms. [PERSON_1], thanks.");
    check("My neighbour Zephoran complained.", "My neighbour [PERSON_1] complained.");
}

#[test]
fn a_weak_finding_is_not_looked_for_elsewhere() {
    let texts = ["It can't pass 'cache', and pass: cache", "fn create_cache(&self) -> Cache { cache }"];
    assert_eq!(redacted_in(false, &texts)[1], texts[1]);
    let texts = ["See /home/apt/x.", "Run apt update, then apt install, from /etc/apt."];
    assert_eq!(redacted_in(false, &texts)[1], texts[1]);
}

#[test]
fn lists_of_numbers_are_no_cards() {
    stays("Ports: 4000 4040 4200 4222 are open on the gateway.");
    stays("The column of sizes is\n5000\n5400\n5800\n6200");
    stays("and the ids are 4003\t4103\t4203\t4303 in the table.");
    stays("Years 2019 2020 2021 2022 2023 2024 passed.");
    stays("27.72 7.14 27.49 25.32 29.11 27.75 33.15 30.99");
    stays("DuReader-zh 22.85 15.33 20.47 16.90 9.63 21.95 25.70");
    check("and 4539 1488 0343 6467 is a card.", "and [CARD_1] is a card.");
    check("4012 8888 8888 1881", "[CARD_1]");
    check("Card: 4111 1111\n1111 1111", "Card: [CARD_1]");
}

#[test]
fn versions_and_objects_are_no_addresses() {
    for text in [
        "Upgrade from version 2.10.33.14 to 3.0.4.12.",
        "Fixed in releases 10.2.0.14, 10.3.0.7 and 11.0.0.1.",
        "Chrome/118.0.5993.70 Safari/537.36",
        "requires libfoo >= 12.3.45.6",
        "libfoo_12.3.45.6-rc1 and 12.3.45.6-rc1",
        "OID 2.5.29.15 and 1.3.6.1.4.1.311",
        "the extension 2.5.29.37",
        "## 1.12.0.3 (2024-05-01)",
    ] {
        stays(text);
    }
    check("ssh to 10.1.12.3 or 172.16.44.9:80", "ssh to [IP_1] or [IP_2]:80");
    check("5.9.12.44 - - [10/Oct/2000] \"GET / HTTP/1.1\"", "[IP_1] - - [10/Oct/2000] \"GET / HTTP/1.1\"");
}

#[test]
fn papers_exponents_and_protocols_are_no_numbers_or_keys() {
    stays("MobileLLM (mobile, arXiv 2402.14905), arXiv:1706.03762v5");
    stays("Decimal('1.2345E+12345680')");
    stays("GET /v1/private_key HTTP/1.1");
    stays("* Pass -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON via dh_auto_configure");
}

#[test]
fn phones_papers_and_addresses_of_people_are_found() {
    check("Handy: 0171 2345678", "Handy: [PHONE_1]");
    check("Tel.: 0171/2345678", "Tel.: [PHONE_1]");
    check("Telefon 0171-2345678, Fax 030/1234567", "Telefon [PHONE_1], Fax [PHONE_2]");
    check("My NINO is QQ 12 34 56 C.", "My NINO is [ID_1].");
    check("NI number: AB 12 34 56 C", "NI number: [ID_1]");
    check("Mail ann@localhost or root@LOCALHOST.", "Mail [EMAIL_1] or [EMAIL_2].");
    stays("listen@localhosting and user@host");
}

/// Redacts a message for a model with a function `name`; returns the message as it is sent.
fn with_tool(name: &str, field: &str, text: &str) -> Result<String, RedactError> {
    let parameters = serde_json::json!({ "type": "object", "properties": { field: { "type": "string" } } });
    let function = serde_json::json!({ "name": name, "description": "Does it.", "parameters": parameters });
    let request = serde_json::json!({
        "protocol": baton_protocol::PROTOCOL_VERSION, "request_id": uuid::Uuid::nil(), "scene": "chat",
        "model": "default", "segments": [Segment::fixed(Role::User, text)],
        "tools": { "functions": [function] },
    });
    let request = serde_json::from_value(request).unwrap();
    let redacted = Redactor::default().redact_request(&request)?;
    Ok(redacted.segments()[0].text.clone())
}

#[test]
fn names_of_functions_and_fields_are_public_words() {
    let text = "Dear Ms. Grep, my neighbour Glob said hi. password: read, and /home/edit/x.";
    assert!(with_tool("mail", "to", text).unwrap().contains("[PERSON_1]"));
    for (name, field, kept) in [
        ("Grep", "pattern", "Ms. Grep,"),
        ("search", "Glob", "neighbour Glob said"),
        ("read", "path", "password: read,"),
        ("edit", "path", "/home/edit/x"),
    ] {
        let sent = with_tool(name, field, text).unwrap_or_else(|err| panic!("{name}: {err}"));
        assert!(sent.contains(kept), "{sent}");
    }
    // A person elsewhere, whose name is a part of a function's.
    assert!(
        with_tool("get_Keller_data", "id", "Dear Ms. Keller, hello.").unwrap().contains("Ms. [PERSON_1]")
    );
}

#[test]
fn a_secret_never_leaves_in_the_name_of_a_function_or_field() {
    for (name, field, text) in [
        ("sk-canary0123456789abcdef", "x", "Hello."),
        ("x", "jane@example.com", "Hello."),
        ("get_Zebra7crossing", "x", "Password: Zebra7crossing"),
        ("x", "a8fh3k2h4k2h4", "api_key: a8fh3k2h4k2h4"),
    ] {
        let sent = with_tool(name, field, text);
        assert!(matches!(sent, Err(RedactError::PrivateName { field: "tools" })), "{name} {field}: {sent:?}");
    }
}
