//! Receipts against what a scripted cloud got.

use crate::agent::AnswerReport;
use crate::conversations::Conversations;
use crate::receipt::{BytesMark, Purpose, Receipt};

/// Checks that the receipt of an answer holds, and that it lists just the bodies of these requests.
pub(super) async fn check_receipt(
    kept: &Conversations,
    report: &AnswerReport,
    requests: &[String],
    purposes: &[Purpose],
) -> Receipt {
    let key = report.record.as_deref().unwrap();
    let id = kept.recorded_by_key(key).await.unwrap().answered.id;
    let (_, stored) = kept.stored_answer(Some(id)).await.unwrap();
    let receipt = Receipt::read(stored.receipt.as_ref().unwrap().as_bytes()).unwrap();
    receipt.check_record(&stored).unwrap();
    let told: Vec<_> =
        receipt.requests.iter().map(|request| (request.purpose, request.body, request.json)).collect();
    let body = |request: &String| BytesMark::of(request.split_once("\r\n\r\n").unwrap().1.as_bytes());
    let sent = requests.iter().map(body).zip(purposes);
    assert_eq!(told, sent.map(|(body, purpose)| (*purpose, body, body)).collect::<Vec<_>>());
    receipt
}
