//! Tests redaction: precision and recall on a fixed set, and restoring as its inverse.

mod hard;
mod names;
mod terms;

use super::*;
use baton_protocol::{Role, Segment};
use proptest::prelude::*;

/// Text, then the values that must be found in it, with their kinds; all other parts must stay.
type Case = (&'static str, &'static [(EntityKind, &'static str)]);

const CASES: &[Case] = &[
    ("Write to jane.doe@example.com today.", &[(EntityKind::Email, "jane.doe@example.com")]),
    ("邮箱是zhang_wei@mail.example.cn。", &[(EntityKind::Email, "zhang_wei@mail.example.cn")]),
    ("(a+b@sub.domain.org), x@y", &[(EntityKind::Email, "a+b@sub.domain.org")]),
    (
        "Call +1 (555) 010-9999 or +44 20 7946 0958.",
        &[(EntityKind::Phone, "+1 (555) 010-9999"), (EntityKind::Phone, "+44 20 7946 0958")],
    ),
    ("Her number is (212) 555-0187.", &[(EntityKind::Phone, "(212) 555-0187")]),
    ("212-555-0187 rings.", &[(EntityKind::Phone, "212-555-0187")]),
    ("手机：13812345678。", &[(EntityKind::Phone, "13812345678")]),
    ("0049 30 1234567 is Berlin", &[(EntityKind::Phone, "0049 30 1234567")]),
    ("tel: 030 1234567", &[(EntityKind::Phone, "030 1234567")]),
    ("电话 010-8888 6666", &[(EntityKind::Phone, "010-8888 6666")]),
    ("Card 4111 1111 1111 1111, exp 12/29", &[(EntityKind::Card, "4111 1111 1111 1111")]),
    ("5555-5555-5555-4444", &[(EntityKind::Card, "5555-5555-5555-4444")]),
    ("amex 378282246310005.", &[(EntityKind::Card, "378282246310005")]),
    ("卡号6011111111111117到期", &[(EntityKind::Card, "6011111111111117")]),
    ("IBAN DE89 3704 0044 0532 0130 00 bank", &[(EntityKind::Iban, "DE89 3704 0044 0532 0130 00")]),
    ("GB82WEST12345698765432", &[(EntityKind::Iban, "GB82WEST12345698765432")]),
    ("fr1420041010050500013m02606.", &[(EntityKind::Iban, "fr1420041010050500013m02606")]),
    ("host 192.168.10.254 answered", &[(EntityKind::Ip, "192.168.10.254")]),
    ("Is it 10.0.0.1?", &[(EntityKind::Ip, "10.0.0.1")]),
    ("addr 2001:db8::8a2e:370:7334 up", &[(EntityKind::Ip, "2001:db8::8a2e:370:7334")]),
    ("fe80::1, then ::1", &[(EntityKind::Ip, "fe80::1"), (EntityKind::Ip, "::1")]),
    (
        "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
        &[(EntityKind::Ip, "2001:0db8:85a3:0000:0000:8a2e:0370:7334")],
    ),
    ("key sk-abcDEF0123456789abcd here", &[(EntityKind::Key, "sk-abcDEF0123456789abcd")]),
    ("AKIAIOSFODNN7EXAMPLE", &[(EntityKind::Key, "AKIAIOSFODNN7EXAMPLE")]),
    (
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        &[(EntityKind::Key, "ghp_0123456789abcdefghijABCDEFGHIJ012345")],
    ),
    ("api_key = \"a1b2c3d4e5f6\"", &[(EntityKind::Key, "a1b2c3d4e5f6")]),
    ("password: hunter2hunter2", &[(EntityKind::Password, "hunter2hunter2")]),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAB=\n-----END RSA PRIVATE KEY-----\nafter",
        &[(EntityKind::Key, "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAB=\n-----END RSA PRIVATE KEY-----")],
    ),
    (
        "-----BEGIN PRIVATE KEY-----\nMIIEow cut",
        &[(EntityKind::Key, "-----BEGIN PRIVATE KEY-----\nMIIEow cut")],
    ),
    (
        "jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4 end",
        &[(EntityKind::Key, "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4")],
    ),
    // Look-alikes that must stay.
    ("Order 4111 1111 1111 1112 shipped in 2024.", &[]),
    ("Version 1.2.3.4 and v1.2.3.4 and 1.2.3.4.5", &[]),
    ("999.1.1.1 and 12:30:45 and std::vec::Vec a::b", &[]),
    ("The token ring network uses the password prompt.", &[]),
    ("In 1998-2004 they sold 12,345,678 units for 3.14159265358979.", &[]),
    ("ISBN 978-3-16-148410-0, pages 100-200", &[]),
    ("DE89 3704 0044 0532 0130 01 fails", &[]),
    ("He scored 555-1234 points; not@home", &[]),
    ("UUID 123e4567-e89b-12d3-a456-426614174000", &[]),
    ("2024-01-15 10:30:00.123456789 +0000", &[]),
    ("The lamp's code is 48210 and its weight is 312 grams.", &[]),
    ("0000 0000 0000 0000", &[]),
    ("Revenue rose 5% to 1234567890 yuan", &[]),
    ("secret meeting, bearer of news, call me", &[]),
];

fn found(text: &str) -> Vec<(EntityKind, String)> {
    Redactor::default()
        .check(text, 0..text.len())
        .unwrap()
        .found
        .into_iter()
        .map(|found| (found.kind, text[found.range].to_owned()))
        .collect()
}

#[test]
fn precision_and_recall_on_the_fixed_set() {
    let (mut hits, mut missed, mut extra) = (0, Vec::new(), Vec::new());
    for (text, want) in CASES {
        let got = found(text);
        for (kind, value) in *want {
            if got.iter().any(|(k, v)| k == kind && v == value) {
                hits += 1;
            } else {
                missed.push((*text, *value));
            }
        }
        extra.extend(
            got.into_iter()
                .filter(|(k, v)| !want.iter().any(|(wk, wv)| wk == k && wv == v))
                .map(|e| (*text, e)),
        );
    }
    let precision = f64::from(hits) / (f64::from(hits) + extra.len() as f64);
    let recall = f64::from(hits) / (f64::from(hits) + missed.len() as f64);
    println!("entities {hits}, precision {precision:.3}, recall {recall:.3}");
    assert!(missed.is_empty(), "missed {missed:#?}");
    assert!(extra.is_empty(), "extra {extra:#?}");
}

#[test]
fn same_value_same_placeholder_across_texts() {
    let mut redactor = Redactor::default();
    let first = redactor.redact("a@example.com and b@example.com").unwrap();
    let second = redactor.redact("b@example.com again, a@example.com").unwrap();
    assert_eq!(first.as_str(), "[EMAIL_1] and [EMAIL_2]");
    assert_eq!(second.as_str(), "[EMAIL_2] again, [EMAIL_1]");
    assert_eq!(redactor.table().counts(), vec![(EntityKind::Email, 2)]);
    assert!(!format!("{redactor:?} {first:?}").contains("example.com"), "debug output holds no value");
}

#[test]
fn text_that_looks_like_a_placeholder_is_escaped() {
    let mut redactor = Redactor::default();
    let text = "see [EMAIL_1], mail x@example.com, not [FIG_1]";
    let redacted = redactor.redact(text).unwrap();
    assert_eq!(redacted.as_str(), "see [TEXT_1], mail [EMAIL_1], not [FIG_1]");
    assert_eq!(restore(&redactor, redacted.as_str(), usize::MAX), text);
}

#[test]
fn answer_keeps_known_placeholders_only() {
    let mut redactor = Redactor::default();
    redactor.redact("mail x@example.com").unwrap();
    let answer = redactor.redact_answer("To [EMAIL_1], [EMAIL_7] and new@example.com").unwrap();
    assert_eq!(answer.as_str(), "To [EMAIL_1], [TEXT_1] and [EMAIL_2]");
}

#[test]
fn a_placeholder_that_a_model_changed_is_restored() {
    let mut redactor = Redactor::default();
    redactor.redact("x@example.com").unwrap();
    assert_eq!(restore(&redactor, r"To [EMAIL\_1], [email_1]", 1), "To x@example.com, x@example.com");
    assert_eq!(redactor.redact_answer(r"[Email\_1] [email_2]").unwrap().as_str(), r"[Email\_1] [TEXT_1]");
    let text = r"[EMAIL\_1] and [email_1]";
    let redacted = redactor.redact(text).unwrap();
    assert_eq!(redacted.as_str(), "[TEXT_2] and [TEXT_3]");
    assert_eq!(restore(&redactor, redacted.as_str(), usize::MAX), text);
}

#[test]
fn unknown_and_broken_placeholders_pass() {
    let redactor = Redactor::default();
    for text in [
        "[EMAIL_9]",
        "[EMAIL_",
        "[[IP_1]]",
        "[EMAIL_x]",
        "[IP_1234567890]",
        "a[b]c",
        "[",
        "[KEY_]",
        "[IPX_1]",
    ] {
        assert_eq!(restore(&redactor, text, 1), text);
    }
}

/// Redacts texts that belong together.
fn together(texts: &[&str]) -> Vec<String> {
    let redacted = Redactor::default().redact_all(texts).unwrap();
    redacted.into_iter().map(|text| text.as_str().to_owned()).collect()
}

#[test]
fn a_value_found_once_is_replaced_everywhere() {
    let said = "Phone: 5550143, password: Hunter2two, PIN: 4821, Password: \"sunshine\". Mail Jane.Doe@example.com. /home/jdoe/x";
    for (other, want) in [
        ("5550143 rang", "[PHONE_1] rang"),
        ("555-0143 or 555 01 43", "[PHONE_2] or [PHONE_3]"),
        ("５５５０１４３、5\u{200b}550143", "[PHONE_2]、[PHONE_3]"),
        ("tel5550143x", "tel[PHONE_1]x"),
        ("HUNTER2TWO, hunter2two", "[PASSWORD_4], [PASSWORD_5]"),
        ("4821 is not 14821 or 48 21", "[PASSWORD_2] is not 14821 or 48 21"),
        ("CVV 123 is not the 123 of", "CVV [PASSWORD_4] is not the 123 of"),
        ("Sunshine, sunshines", "[PASSWORD_4], sunshines"),
        ("JANE.DOE@EXAMPLE.COM", "[EMAIL_2]"),
        ("jane.doe\\u0040example.com", "[EMAIL_2]"),
        ("jane.doe (at) example.com", "[EMAIL_2]"),
        ("user jdoe logged in", "user [USER_1] logged in"),
    ] {
        assert_eq!(together(&[said, other])[1], want, "{other}");
        // A value found in a later text is replaced in an earlier one too.
        let before = together(&[other, said]).swap_remove(0);
        assert!(!before.contains("5550143") && before.contains('['), "{before}");
    }
}

#[test]
fn memory_outlives_a_redactor_and_stays_bounded() {
    let memory = Memory::default();
    let redact = |text: &str| {
        let mut redactor = Redactor::default().with_memory(memory.clone());
        redactor.redact(text).unwrap().as_str().to_owned()
    };
    assert_eq!(redact("It is 5550143."), "It is 5550143.");
    assert_eq!(redact("Phone: 5550143."), "Phone: [PHONE_1].");
    assert_eq!(redact("It is 5550143."), "It is [PHONE_1].");
    let many: String = (0..REMEMBERED_MAX + 50).map(|i| format!("user{i}@example.com ")).collect();
    assert!(!redact(&many).contains('@'));
    redact("new@example.org");
    assert!(memory.len() <= REMEMBERED_MAX + 1, "{memory:?}");
    assert!(!memory.is_empty() && !format!("{memory:?}").contains("example"));
}

#[test]
fn a_value_may_lie_across_texts_that_follow_each_other() {
    let request = baton_protocol::AssistRequest {
        protocol: baton_protocol::PROTOCOL_VERSION,
        request_id: uuid::Uuid::nil(),
        scene: "chat".into(),
        scene_version: None,
        model: "default".into(),
        tokenizer_sha256: None,
        segments: vec![
            Segment::refinable(Role::User, "Call me. Phone:"),
            Segment::fixed(Role::User, "\n5550143, card 4111 1111"),
            Segment::fixed(Role::User, " 1111 1111."),
            Segment::fixed(Role::Assistant, "4111-1111-1111-1111?"),
        ],
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        continue_from: None,
        device: None,
        sampling: baton_protocol::Sampling::default(),
        refine: baton_protocol::RefineOptions::default(),
        assist_tokens: None,
        resume: false,
        verify: false,
    };
    let redacted = Redactor::default().redact_request(&request).unwrap();
    let mut two = request.clone();
    two.segments =
        vec![Segment::fixed(Role::User, "My room is B7"), Segment::fixed(Role::User, "4111111111111111")];
    let two = Redactor::default().redact_request(&two).unwrap();
    assert_eq!(two.segments()[1].text, "[CARD_1]", "what stands before hides nothing");
    let texts: Vec<&str> = redacted.segments().iter().map(|s| s.text.as_str()).collect();
    assert_eq!(texts, ["Call me. Phone:", "\n[PHONE_1], card [CARD_1]", "[CARD_2].", "[CARD_3]?"]);
    assert!(!format!("{redacted:?}").contains("Call"), "debug output holds no text");
}

struct Failing;
impl Detector for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }
    fn find(&self, _: &str, _: &mut Vec<Found>) -> Result<(), DetectError> {
        Err(DetectError { reason: "model not loaded".into() })
    }
}

struct BadRange;
impl Detector for BadRange {
    fn name(&self) -> &'static str {
        "bad-range"
    }
    fn find(&self, _: &str, found: &mut Vec<Found>) -> Result<(), DetectError> {
        found.push(Found { range: 1..2, kind: EntityKind::Ip, certainty: Certainty::Shown });
        Ok(())
    }
}

#[test]
fn a_failing_detector_gives_nothing_to_send() {
    let mut redactor = Redactor::new(vec![Box::new(Failing)]);
    let err = redactor.redact("harmless").unwrap_err();
    assert!(matches!(err, RedactError::Detector { detector: "failing", .. }), "{err}");
    let err = Redactor::new(vec![Box::new(BadRange)]).redact("é").unwrap_err();
    assert!(matches!(err, RedactError::BadRange { start: 1, end: 2, .. }), "{err}");
    let err = Redactor::default().redact(&"a".repeat(TEXT_BYTES_MAX + 1)).unwrap_err();
    assert!(matches!(err, RedactError::TooLong { max: TEXT_BYTES_MAX, .. }), "{err}");
}

fn restore(redactor: &Redactor, text: &str, chunk_chars: usize) -> String {
    let mut restorer = Restorer::new(redactor.table());
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    for piece in chars.chunks(chunk_chars.min(chars.len().max(1))) {
        out.push_str(&restorer.push(&piece.iter().collect::<String>()));
    }
    out.push_str(&restorer.finish());
    out
}

/// Restores the whole text at once.
fn restore_all(redactor: &Redactor, text: &str) -> String {
    restore(redactor, text, usize::MAX)
}

/// Makes strings with many entities, placeholders and their fragments.
fn hostile_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("[EMAIL_1]".to_owned()),
        Just("[EMAIL_".to_owned()),
        Just("[email\\_1]".to_owned()),
        Just("password%20is%20hunter2\r\n".to_owned()),
        Just("1]".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just("a@example.com".to_owned()),
        Just("4111 1111 1111 1111".to_owned()),
        Just("10.0.0.1".to_owned()),
        Just("+1 212 555 0187".to_owned()),
        Just("[IP_2]".to_owned()),
        Just("-----BEGIN PRIVATE KEY-----".to_owned()),
        Just("密码 password=abc123def".to_owned()),
        Just("Phone: 5550143".to_owned()),
        Just("５５５０１４３".to_owned()),
        Just("/home/İstanbulẞ/x".to_owned()),
        Just("https://ann:pass word@x".to_owned()),
        Just("\u{200b}".to_owned()),
        Just("=\r\n".to_owned()),
        Just("&#64;".to_owned()),
        Just("%40\\u0040＠".to_owned()),
        Just("PIN: 4821 SSN 078-05-1120 DE89370400440532013000".to_owned()),
        "[\\\\nrt@.\"'_&#;%\u{300}\u{feff}0-9A-Zaäßж密が]{0,16}",
        "\\PC{0,12}",
        "[0-9 .:@-]{0,16}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|v| v.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn restore_undoes_redact(text in hostile_text(), other in hostile_text()) {
        let mut redactor = Redactor::default();
        let first = redactor.redact(&text).unwrap();
        let second = redactor.redact(&other).unwrap();
        for chunk in [1, 2, 3, usize::MAX] {
            prop_assert_eq!(&restore(&redactor, first.as_str(), chunk), &text);
            prop_assert_eq!(&restore(&redactor, second.as_str(), chunk), &other);
        }
    }

    #[test]
    fn restore_undoes_redact_split_anywhere(text in hostile_text(), cut in 0usize..200) {
        let mut redactor = Redactor::default();
        let redacted = redactor.redact(&text).unwrap();
        let s = redacted.as_str();
        let cut = (0..=cut.min(s.len())).rev().find(|&i| s.is_char_boundary(i)).unwrap();
        let mut restorer = Restorer::new(redactor.table());
        let mut out = restorer.push(&s[..cut]);
        out.push_str(&restorer.push(&s[cut..]));
        out.push_str(&restorer.finish());
        prop_assert_eq!(out, text);
    }

    #[test]
    fn a_second_pass_restores_too(text in any::<String>(), hostile in hostile_text()) {
        for text in [text, hostile] {
            let mut redactor = Redactor::default();
            let redacted = redactor.redact(&text).unwrap();
            prop_assert_eq!(&restore(&redactor, redacted.as_str(), 1), &text);
            let twice = redactor.redact_all(&[&text, "5550143", &text]).unwrap();
            prop_assert_eq!(&restore(&redactor, twice[2].as_str(), 1), &text);
            let again = redactor.redact_answer(redacted.as_str()).unwrap();
            prop_assert_eq!(&restore_all(&redactor, again.as_str()), &text);
        }
    }
}
