//! A receipt is read as it was signed, or not at all; a record that was changed is found.

use super::*;
use crate::conversations::StoredAnswer;
use crate::privacy::Redactor;
use baton_protocol::{AssistRequest, Role, Segment};
use serde_json::json;

const GIVEN: &str = "Write to ann@example.com. She is in.";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32]).unwrap()
}

/// Makes a record with its receipt.
fn record(key: &SigningKey) -> (StoredAnswer, Receipt) {
    let base = json!({ "protocol": baton_protocol::PROTOCOL_VERSION, "request_id": Uuid::nil(),
        "scene": "chat", "model": "default", "segments": [Segment::fixed(Role::User, GIVEN)] });
    let request: AssistRequest = serde_json::from_value(base).unwrap();
    let redacted = Redactor::default().redact_request(&request).unwrap();
    let json = serde_json::to_string(redacted.as_request()).unwrap();
    let mut stored = StoredAnswer {
        ended_ms: 1,
        asked_by: "baton ask".into(),
        report: r#"{"ending":"stop"}"#.into(),
        sent: Some(format!(r#"{{"cloud":"http://a","bytes":9,"request":{json}}}"#)),
        receipt: None,
    };
    let receipt = Receipt {
        key: key.public(),
        ended_ms: 1,
        asked_by: "baton ask".into(),
        record: RecordDigests::of(&stored),
        device: DeviceSide { program: "baton 0".into(), model: None },
        cloud: None,
        requests: vec![SentRequest {
            purpose: Purpose::Answer,
            url: "http://a/v1/assist".into(),
            id: Uuid::nil(),
            encoding: None,
            body: BytesMark::of(json.as_bytes()),
            json: BytesMark::of(json.as_bytes()),
            texts: redacted.origins().to_vec(),
        }],
        tokens: vec![Written { from: 0, to: 3, by: Source::Cloud, verified_by: None }],
    };
    stored.receipt = Some(receipt.sign(key).unwrap());
    (stored, receipt)
}

#[test]
fn a_receipt_is_read_as_it_was_signed() {
    let (stored, receipt) = record(&key(1));
    let signed = stored.receipt.clone().unwrap();
    let read = Receipt::read(signed.as_bytes()).unwrap();
    assert_eq!(read, receipt);
    assert_eq!(Receipt::read(format!("{signed}\n").as_bytes()).unwrap(), receipt);
    read.check_key(key(1).public()).unwrap();
    assert!(matches!(read.check_key(key(2).public()), Err(ReceiptError::OtherKey { .. })));
    read.check_record(&stored).unwrap();
    assert_eq!(read.check_document(&stored, GIVEN).unwrap(), ["/segments/0/text"]);
    assert_eq!(read.requests[0].given_bytes(), (GIVEN.len() - 15, 15));
    assert_eq!(read.requests[0].replaced().into_iter().collect::<Vec<_>>(), [(EntityKind::Email, 1)]);
    // A value that stayed here may be another one: nobody else knows it. What left may not.
    let document = |text: &str| read.check_document(&stored, text);
    assert!(matches!(document(&GIVEN.replace("She", "Her")), Err(ReceiptError::Document(_))));
    assert!(matches!(document("Another."), Err(ReceiptError::NoDocument(8))));
}

#[test]
fn no_changed_bit_and_no_other_form_is_taken() {
    let (stored, _) = record(&key(1));
    let signed = format!("{}\n", stored.receipt.unwrap()).into_bytes();
    for at in 0..signed.len() {
        for bit in 0..8 {
            let mut changed = signed.clone();
            changed[at] ^= 1 << bit;
            assert!(Receipt::read(&changed).is_err(), "bit {bit} of byte {at}");
        }
        assert!(Receipt::read(&signed[..at.saturating_sub(1)]).is_err(), "cut at {at}");
    }
    let spaced = String::from_utf8(signed).unwrap().replacen(':', ": ", 1);
    assert!(matches!(Receipt::read(spaced.as_bytes()), Err(ReceiptError::Form)));
    let other = key(1).sign_bytes("text/plain", b"{}").to_json();
    assert!(matches!(Receipt::read(&other), Err(ReceiptError::None(_))));
    let other = key(1).sign_bytes(PAYLOAD_TYPE, b"{}").to_json();
    assert!(matches!(Receipt::read(&other), Err(ReceiptError::Json(_))));
}

#[test]
fn a_changed_record_is_found() {
    let (stored, receipt) = record(&key(1));
    #[track_caller]
    fn check(receipt: &Receipt, stored: &StoredAnswer, what: &str) {
        let said = receipt.check_record(stored).unwrap_err().to_string();
        assert!(said.contains(what), "{said}");
    }
    check(&receipt, &StoredAnswer { ended_ms: 2, ..stored.clone() }, "the time");
    check(&receipt, &StoredAnswer { asked_by: "baton chat".into(), ..stored.clone() }, "the command");
    check(&receipt, &StoredAnswer { report: "{}".into(), ..stored.clone() }, "the report");
    check(&receipt, &StoredAnswer { sent: None, ..stored.clone() }, "what was sent");
    let sent = stored.sent.as_ref().map(|sent| sent.replace("She", "Her"));
    check(&receipt, &StoredAnswer { sent, ..stored.clone() }, "what was sent");
    // A device whose record and receipt disagree from the start.
    let mut other = receipt.clone();
    other.requests[0].json = BytesMark::of(b"something else");
    check(&other, &stored, "none that it lists");
}

#[test]
fn tokens_are_joined_by_writer() {
    let shown = |index, source| Shown { index, at_ms: 0.0, source };
    let (cloud, device) = (Source::Cloud, Source::Device);
    let all = [shown(0, cloud), shown(1, cloud), shown(2, device), shown(3, cloud)];
    let written = Written::of(&all, 0);
    let told: Vec<_> = written.iter().map(|one| (one.from, one.to, one.by)).collect();
    assert_eq!(told, [(0, 2, cloud), (2, 3, device), (3, 4, cloud)]);
    assert_eq!(written.iter().map(Written::tokens).sum::<usize>(), all.len());
    assert!(written.iter().all(|one| one.verified_by.is_none()));
    assert_eq!(Written::of(&[], 0), []);
    let all = [shown(0, cloud), shown(1, device), shown(2, device), shown(3, device)];
    let told: Vec<_> = Written::of(&all, 2).iter().map(|one| (one.from, one.to, one.verified_by)).collect();
    assert_eq!(told, [(0, 1, None), (1, 2, Some(cloud)), (2, 4, None)]);
}

#[test]
fn a_device_has_one_key() {
    let folder = tempfile::tempdir().unwrap();
    let public = || signing_key(&Keys::new(folder.path(), None)).map(|key| key.public());
    let made = public().unwrap();
    assert_eq!(public().unwrap(), made);
    std::fs::write(folder.path().join(RECEIPT_KEY), b"short").unwrap();
    assert!(matches!(public(), Err(SigningKeyError::File(_))));
}
