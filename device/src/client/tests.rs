//! Tests the client: streams split at any byte, size limits, statuses, and what leaves the device.

use super::*;
use crate::privacy::Redactor;
use baton_protocol::{AssistRequest, RefineOptions, Role, Sampling, Segment, StreamChecksum};
use bytes::Bytes;
use futures_util::StreamExt;
use std::io::Read;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

fn request(text: &str) -> OutgoingRequest {
    let request = AssistRequest {
        protocol: baton_protocol::PROTOCOL_VERSION,
        request_id: Uuid::nil(),
        scene: "doc-qa".into(),
        scene_version: Some(1),
        model: "default".into(),
        tokenizer_sha256: None,
        segments: vec![Segment::refinable(Role::User, text)],
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        continue_from: None,
        device: None,
        sampling: Sampling::default(),
        refine: RefineOptions::default(),
        assist_tokens: None,
        resume: false,
        verify: false,
    };
    OutgoingRequest::new(&Redactor::default().redact_request(&request).unwrap()).unwrap()
}

fn name(name: &str) -> PublicName {
    PublicName::new("scene", name).unwrap()
}

async fn collect(chunks: Vec<Vec<u8>>) -> Vec<Result<AssistEvent, CloudFault>> {
    let bytes = futures_util::stream::iter(chunks.into_iter().map(|c| Ok::<_, ()>(Bytes::from(c))));
    assist_events(bytes, StreamChecksum::new(b"")).collect().await
}

const STREAM: &str = ": ping\n\nevent: token\nid: 1\ndata: {\"index\":1,\"id\":2,\"text\":\" é\"}\n\nevent: news\ndata: {}\n\n\
                      event: end\ndata: {\"reason\":\"cap\",\"usage\":{\"completion_tokens\":2}}\n\n";

#[tokio::test]
async fn events_are_read_however_they_are_split() {
    let whole = collect(vec![STREAM.as_bytes().to_vec()]).await;
    assert_eq!(whole.len(), 2);
    assert!(matches!(&whole[0], Ok(AssistEvent::Token(t)) if t.index == 1 && t.text == " é"));
    assert!(matches!(&whole[1], Ok(AssistEvent::End(_))));
    for cut in 0..STREAM.len() {
        let (a, b) = STREAM.as_bytes().split_at(cut);
        assert_eq!(collect(vec![a.to_vec(), b.to_vec()]).await, whole, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_byte_order_mark_is_skipped_and_no_byte_of_it_panics() {
    let whole = collect(vec![STREAM.as_bytes().to_vec()]).await;
    let mark = "\u{feff}";
    let marked = format!("{mark}{STREAM}");
    for cut in 0..8 {
        let (a, b) = marked.as_bytes().split_at(cut);
        assert_eq!(collect(vec![a.to_vec(), b.to_vec()]).await, whole, "cut at {cut}");
    }
    // Only the first is a byte order mark; a second one belongs to the name of the first field.
    assert_eq!(collect(vec![format!("{mark}{marked}").into_bytes()]).await, whole);
    for cut in 0..=mark.len() {
        assert_eq!(
            collect(vec![mark.as_bytes()[..cut].to_vec()]).await.len(),
            usize::from((1..3).contains(&cut))
        );
    }
}

/// Makes a stream as a cloud with checksums sends it.
fn sealed() -> Vec<u8> {
    let mut sum = StreamChecksum::new(b"");
    let events = [
        (
            "mask",
            r#"{"unit":"sentence","segmenter":"s1","count":2,"kept":1,"data":"AQEC","content_sha256":"0","ratio":0.5,"prompt_ratio":0.5}"#,
        ),
        (
            "first",
            r#"{"protocol":1,"scene_version":1,"index":0,"id":7,"text":"The","assist_tokens":3,"assist_bound_by":"tau","tau_ms":100}"#,
        ),
        ("token", r#"{"index":1,"id":8,"text":" ship é"}"#),
        ("token", r#"{"index":2,"id":9,"text":" 41"}"#),
        (
            "end",
            r#"{"reason":"cap","usage":{"prompt_tokens":5,"cached_prefix_tokens":0,"completion_tokens":3}}"#,
        ),
    ];
    let frame = |(name, data): (&str, &str)| {
        let mut data = data.to_owned();
        sum.seal(name, &mut data);
        format!("event: {name}\ndata: {data}\n\n")
    };
    events.into_iter().map(frame).collect::<String>().into_bytes()
}

#[tokio::test]
async fn no_flipped_bit_changes_what_is_heard() {
    let stream = sealed();
    let whole = collect(vec![stream.clone()]).await;
    assert!(whole.len() == 5 && whole.iter().all(Result::is_ok), "{whole:?}");
    for bit in 0..stream.len() * 8 {
        let mut flipped = stream.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let heard = collect(vec![flipped]).await;
        let right = heard.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        // The events before the damage are correct; then a fault follows, or the stream ends without its
        // `end`.
        let rest = &heard[right..];
        assert!(matches!(rest, [] | [Err(_)]), "bit {bit}: {rest:?}");
        assert!(right < 5 || rest.is_empty(), "bit {bit}");
    }
}

#[tokio::test]
async fn a_reply_to_another_request_is_not_believed() {
    let bytes = futures_util::stream::iter([Ok::<_, ()>(Bytes::from(sealed()))]);
    let heard: Vec<_> = assist_events(bytes, StreamChecksum::new(b"another question")).collect().await;
    assert!(matches!(heard[..], [Err(CloudFault::Damaged { .. })]), "{heard:?}");
}

#[tokio::test]
async fn broken_and_endless_streams_end_in_one_fault() {
    let bad =
        collect(vec![b"event: token\ndata: {\"index\":-1}\n\n".to_vec(), STREAM.as_bytes().to_vec()]).await;
    assert!(matches!(bad[..], [Err(CloudFault::Malformed { .. })]), "{bad:?}");
    let not_utf8 = collect(vec![b"event: token\ndata: \xff\xff\n\n".to_vec()]).await;
    assert!(matches!(not_utf8[..], [Err(CloudFault::Malformed { .. })]), "{not_utf8:?}");
    let line = vec![b'x'; 64 * 1024];
    let endless_line = collect(vec![line; 20]).await;
    assert_eq!(endless_line, [Err(CloudFault::TooLarge { max: EVENT_BYTES_MAX })]);
    let comment = b": padding padding padding\n".repeat(4096);
    let endless = collect(vec![comment; 200]).await;
    assert_eq!(endless, [Err(CloudFault::TooLarge { max: STREAM_BYTES_MAX })]);
}

#[test]
fn long_bodies_are_gzipped_and_read_back() {
    let short = request("hello a@example.com");
    assert!(!short.gzipped());
    assert!(String::from_utf8_lossy(short.body()).contains("hello [EMAIL_1]"));
    let long = request(&"word ".repeat(4000));
    assert!(long.gzipped() && long.body().len() < 2000);
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(long.body()).read_to_end(&mut json).unwrap();
    let request = AssistRequest::parse(&json).unwrap();
    assert_eq!(request.segments[0].text.len(), 20_000);
    assert!(!format!("{long:?}").contains("word"), "debug output holds no text");
}

#[test]
fn bad_addresses_and_keys_are_refused() {
    for url in ["", "ftp://x", "localhost:80", "http://", "not a url"] {
        assert!(matches!(CloudClient::new(url, None), Err(ClientError::BadUrl { .. })), "{url}");
    }
    assert!(matches!(CloudClient::new("http://127.0.0.1", Some("a\nb")), Err(ClientError::BadKey)));
    assert!(CloudClient::new("http://127.0.0.1:1/base", Some("key")).is_ok());
}

/// Starts a server that answers one request with these bytes.
async fn server(response: String) -> (CloudClient, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 65536];
        let n = socket.read(&mut request).await.unwrap();
        socket.write_all(response.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&request[..n]).into_owned()
    });
    (CloudClient::new(&url, Some("secret")).unwrap(), task)
}

fn http(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

async fn assist_fault(response: String) -> CloudFault {
    let (client, task) = server(response).await;
    let fault = match client.assist(&request("q")).await {
        Ok(_) => panic!("a stream"),
        Err(fault) => fault,
    };
    let seen = task.await.unwrap().to_ascii_lowercase();
    assert!(seen.contains("authorization: bearer secret"));
    assert!(seen.contains("x-baton-scene: doc-qa"), "a gateway may route by the scene: {seen}");
    fault
}

#[tokio::test]
async fn statuses_become_faults() {
    let json = "content-type: application/json\r\n";
    let body = r#"{"error":{"code":"overloaded","message":"busy","retry_after_ms":800}}"#;
    let fault = assist_fault(http("429 Too Many Requests", json, body)).await;
    assert_eq!(
        fault,
        CloudFault::Overloaded { status: 429, reason: "busy".into(), retry_after_ms: Some(800) }
    );
    assert_eq!(fault.to_string(), "the cloud takes no request now: busy; try again in 1 s");
    let fault = assist_fault(http("503 Unavailable", "retry-after: 2\r\n", "down")).await;
    let reason = "status 503".to_owned();
    assert_eq!(fault, CloudFault::Overloaded { status: 503, reason, retry_after_ms: Some(2000) });
    let fault = assist_fault(http("401 Unauthorized", json, "{}")).await;
    assert_eq!(fault, CloudFault::SignIn { status: 401 });
    let fault =
        assist_fault(http("400 Bad Request", json, r#"{"error":{"code":"unknown_scene","message":"no"}}"#))
            .await;
    assert_eq!(
        fault,
        CloudFault::Refused { status: 400, code: "unknown_scene".into(), message: "no".into() }
    );
    let fault =
        assist_fault(http("200 OK", "content-type: text/html; charset=utf-8\r\n", "<html>sign in</html>"))
            .await;
    assert_eq!(fault, CloudFault::NotAnEventStream { content_type: "text/html; charset=utf-8".into() });
    let fault = assist_fault(http("302 Found", "location: http://portal/\r\n", "")).await;
    assert!(matches!(fault, CloudFault::NotAnEventStream { .. }), "{fault:?}");
}

#[tokio::test]
async fn nobody_listening_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = CloudClient::new(&url, None).unwrap();
    assert!(matches!(client.scene(&name("doc-qa"), None).await, Err(CloudFault::Unreachable { .. })));
}

#[tokio::test]
async fn scenes_are_read_and_checked() {
    let scene = crate::scene::built_in("doc-qa");
    let json = serde_json::to_string(&scene).unwrap();
    let headers = "content-type: application/json\r\netag: \"7\"\r\n";
    let (client, _task) = server(http("200 OK", headers, &json)).await;
    let reply = client.scene(&name("doc-qa"), None).await.unwrap();
    assert_eq!(reply, SceneReply::Scene { scene: Box::new(scene), etag: Some("\"7\"".into()) });
    let (client, task) = server("HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".into()).await;
    assert_eq!(client.scene(&name("doc qa/../x"), Some("\"7\"")).await.unwrap(), SceneReply::NotModified);
    let seen = task.await.unwrap();
    assert!(seen.starts_with("GET /v1/scenes/doc%20qa%2F..%2Fx "), "{seen}");
    let bad = json.replace("\"xi\":0.25", "\"xi\":7");
    let (client, _task) = server(http("200 OK", headers, &bad)).await;
    assert!(matches!(client.scene(&name("doc-qa"), None).await, Err(CloudFault::Malformed { .. })));
}

#[tokio::test]
async fn figures_are_sent_only_by_a_device_with_a_name() {
    let arm = baton_protocol::ArmEvent { id: "e".into(), arm: "a".into(), feedback: Some("token".into()) };
    let shown = |at_ms| crate::relay::Shown { index: 0, at_ms, source: crate::relay::Source::Cloud };
    let timeline = crate::relay::Timeline {
        experiment: Some(arm),
        ttft_user_ms: Some(1e9),
        shown: vec![shown(10.0), shown(40.0), shown(50.0)],
        ..crate::relay::Timeline::default()
    };
    let id = Uuid::from_u128(7);
    assert_eq!(Feedback::of(id, &crate::relay::Timeline::default()), None);
    let feedback = Feedback::of(id, &timeline).unwrap();
    assert_eq!((feedback.ttft_ms, feedback.gap_ms, feedback.agreement), (600_000.0, Some(30.0), None));

    let (client, task) = server("HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".into()).await;
    for wrong in ["", "short", "two words", &"x".repeat(129)] {
        assert!(matches!(client.clone().with_device_id(wrong), Err(ClientError::BadDeviceId)), "{wrong}");
    }
    assert_eq!(client.feedback(&feedback).await, Ok(()));
    assert!(!task.is_finished(), "nothing was sent");
    assert_eq!(client.with_device_id("4f1c9a77").unwrap().feedback(&feedback).await, Ok(()));
    assert!(task.await.unwrap().starts_with("POST /v1/feedback "));
}

#[test]
fn the_trace_is_the_requests_own() {
    let id = Uuid::parse_str("4bf92f35-77b3-4da6-a3ce-929d0e0e4736").unwrap();
    assert_eq!(traceparent(id), "00-4bf92f3577b34da6a3ce929d0e0e4736-a3ce929d0e0e4736-01");
}
