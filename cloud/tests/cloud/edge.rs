//! Tests the HTTP edge over real sockets: how a server drains, and the limits of connections.

use std::time::Duration;

use baton_cloud::api::ApiLimits;
use baton_cloud::service::ServiceOptions;
use baton_edge::{HttpLimits, Phase};
use baton_engine::pace_emulation::PassCost;
use baton_protocol::{AssistEvent, AssistRequest, EndReason};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::{HANG, Server};
use crate::world::{QUESTION, document, end, options, request, tokens};

fn body(request: &AssistRequest) -> Vec<u8> {
    serde_json::to_vec(request).unwrap()
}

/// Returns options with slow decode passes, so that a test can interrupt answers.
fn slow() -> ServiceOptions {
    let emulation = Some(PassCost { base_ms: 0.0, prefill_ms_per_token: 0.0, decode_ms: 25.0 });
    ServiceOptions { emulation, ..options() }
}

async fn slow_server(http: HttpLimits) -> Server {
    Server::with(slow(), None, http, ApiLimits::default()).await
}

/// Reads until the other side closes.
async fn to_end(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    // A reset is an end as well.
    let _ =
        tokio::time::timeout(HANG, stream.read_to_end(&mut read)).await.expect("the connection is closed");
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn while_it_drains_it_refuses_politely_and_lets_answers_end() {
    let server = slow_server(HttpLimits::default()).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut some = [0; 17];
    idle.read_exact(&mut some).await.unwrap();
    let mut running =
        server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 40))).await;
    running.until("event: first").await;
    server.drain();
    assert!(to_end(&mut idle).await.ends_with("}"), "an idle connection is closed at once");
    let ready = server.get("/readyz").await;
    assert_eq!((ready.status, ready.header("connection")), (503, Some("close")));
    let refused = server.send("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 2))).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "unavailable");
    assert_eq!(server.get("/healthz").await.status, 200);
    let (reply, ()) = tokio::join!(running.read_all(), server.stop());
    assert_eq!((end(&reply.events()).reason, tokens(&reply.events()).len()), (EndReason::Cap, 40));
}

#[tokio::test]
async fn what_does_not_end_in_time_ends_with_an_error_event() {
    let limits = HttpLimits { drain_timeout: Duration::from_millis(100), ..HttpLimits::default() };
    let server = slow_server(limits).await;
    let mut assist =
        server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 1500))).await;
    // Like the assisted request, and greedy: with random sampling it could end earlier.
    let question = format!("{}{QUESTION}", document(3));
    let messages = json!([
        { "role": "system", "content": "You answer from the document." },
        { "role": "user", "content": question },
    ]);
    let chat = json!({ "model": "tiny", "stream": true, "temperature": 0, "messages": messages });
    let mut chat = server.open("POST", "/v1/chat/completions", &[], chat.to_string().as_bytes()).await;
    assist.until("event: token").await;
    chat.until("data: ").await;
    let (assist, chat, ()) = tokio::join!(assist.read_all(), chat.read_all(), server.stop());
    let events = assist.events();
    let Some(AssistEvent::Error(error)) = events.last() else { panic!("{events:?}") };
    assert_eq!((error.error.code.as_str(), error.error.retry_after_ms), ("unavailable", Some(1000)));
    let chunks = chat.chat_chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "unavailable", "then [DONE]");
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let limits = HttpLimits { drain_timeout: Duration::from_secs(600), ..HttpLimits::default() };
    let server = slow_server(limits).await;
    let mut open =
        server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 1500))).await;
    open.until("event: first").await;
    server.drain();
    server.phase.send_replace(Phase::Ending);
    let (reply, ()) = tokio::join!(open.read_all(), server.stop());
    assert!(matches!(reply.events().last(), Some(AssistEvent::Error(_))));
}

#[tokio::test]
async fn two_lengths_of_one_body_are_refused() {
    let server = Server::start().await;
    let ask = async |fields: &str, body: &str| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("POST /v1/assist HTTP/1.1\r\nhost: x\r\n{fields}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        to_end(&mut stream).await
    };
    let smuggled = "0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    ] {
        let reply = ask(fields, smuggled).await;
        assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("not both"), "{reply}");
        assert_eq!(reply.matches("HTTP/1.1").count(), 1, "nothing behind it is a request: {reply}");
    }
    let reply = ask("Content-Length: 5\r\nContent-Length: 6\r\n", "{}   {}").await;
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    let reply = ask("Transfer-Encoding: gzip\r\n", "").await;
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    // A body in chunks is read, and the connection closes after it.
    let reply = ask("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("connection: close"), "{reply}");
    assert_eq!(reply.matches("HTTP/1.1").count(), 1, "{reply}");
}

#[tokio::test]
async fn a_connection_makes_so_many_requests_and_then_closes() {
    let limits = HttpLimits { requests_per_connection: 3, ..HttpLimits::default() };
    let server = slow_server(limits).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let one = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    // Sent all at once, they are answered one after another.
    stream.write_all(one.repeat(5).as_bytes()).await.unwrap();
    let replies = to_end(&mut stream).await;
    assert_eq!(replies.matches("HTTP/1.1 200").count(), 3, "{replies}");
    assert_eq!(replies.matches("connection: close").count(), 1, "{replies}");
}

#[tokio::test]
async fn a_head_has_at_most_64_kib() {
    let server = slow_server(HttpLimits::default()).await;
    let ask = async |bytes: usize| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-filler: {}\r\n\r\n",
            "a".repeat(bytes)
        );
        // Sent all at once, so that the server may read as much of it as it wants before it checks.
        let _ = stream.write_all(head.as_bytes()).await;
        to_end(&mut stream).await
    };
    for (bytes, want) in [(60_000, "200"), (66_000, "431"), (100_000, "431"), (130_000, "431")] {
        let reply = ask(bytes).await;
        // A reset may arrive before the reply to a head that was not read to its end.
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {want}")) || (want == "431" && reply.is_empty()),
            "{reply}"
        );
    }
    // The limit also holds after another request on the same connection.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let second = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let both = format!("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n{second}");
    let _ = stream.write_all(both.as_bytes()).await;
    let replies = to_end(&mut stream).await;
    assert_eq!(replies.matches("HTTP/1.1 200").count(), 1, "{replies}");
}

#[tokio::test]
async fn an_address_has_so_many_connections() {
    let limits = HttpLimits { connections_per_ip: 2, ..HttpLimits::default() };
    let server = slow_server(limits).await;
    let from = async |address: &str| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut status = [0; 12];
        let read =
            tokio::time::timeout(HANG, stream.read_exact(&mut status)).await.expect("an answer or an end");
        (read.is_ok(), stream)
    };
    let first = from("127.0.0.1").await;
    let second = from("127.0.0.1").await;
    assert!(first.0 && second.0);
    assert!(!from("127.0.0.1").await.0, "a third one is closed");
    #[cfg(target_os = "linux")]
    assert!(from("127.0.0.2").await.0, "another address has its own");
    drop(first);
    let again = async {
        while !from("127.0.0.1").await.0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, again).await.expect("a place is given back");
}

#[tokio::test]
async fn silence_and_trickles_are_cut() {
    let http = HttpLimits {
        header_timeout: Duration::from_millis(200),
        idle_timeout: Duration::from_millis(50),
        ..HttpLimits::default()
    };
    let api =
        ApiLimits { body_grace: Duration::from_millis(50), body_rate_min: 1 << 20, ..ApiLimits::default() };
    let server = Server::with(options(), None, http, api).await;
    // A client that sends nothing, and one that sends a head in single bytes.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(to_end(&mut silent).await, "");
    let (mut reader, mut writer) = TcpStream::connect(server.address).await.unwrap().into_split();
    let trickle = tokio::spawn(async move {
        loop {
            if writer.write_all(b"G").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut read = Vec::new();
    let _ = tokio::time::timeout(HANG, reader.read_to_end(&mut read)).await.expect("a slow head is cut");
    assert!(read.is_empty());
    tokio::time::timeout(HANG, trickle).await.expect("its writer hears of it").unwrap();
    // A request, then silence.
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(to_end(&mut idle).await.starts_with("HTTP/1.1 200"));
    // A body that is announced, begun, and sent too slowly.
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST /v1/assist HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    slow.write_all(head).await.unwrap();
    let reply = to_end(&mut slow).await;
    assert!(reply.starts_with("HTTP/1.1 408") && reply.contains("less than 1048576 bytes/s"), "{reply}");
    // A body that is announced as too long is not read at all.
    let mut long = TcpStream::connect(server.address).await.unwrap();
    long.write_all(b"POST /v1/assist HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n").await.unwrap();
    let reply = to_end(&mut long).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
}

#[tokio::test]
async fn a_deadline_is_kept_or_refused() {
    let cost = PassCost { base_ms: 0.0, prefill_ms_per_token: 0.5, decode_ms: 25.0 };
    let server = Server::with(
        ServiceOptions { slots: 1, emulation: Some(cost), ..options() },
        None,
        HttpLimits::default(),
        ApiLimits::default(),
    )
    .await;
    let ask = async |tokens: u32, deadline: &str| {
        let request = request("doc-qa", &document(5), tokens);
        server.send("POST", "/v1/assist", &[("x-deadline-ms", deadline)], &body(&request)).await
    };
    assert_eq!(ask(2, "60000").await.status, 200);
    let never = ask(2, "1").await;
    assert_eq!((never.status, never.header("retry-after").is_some()), (429, true));
    assert!(never.json()["error"]["message"].as_str().unwrap().contains("the deadline leaves"), "{never:?}");
    assert_eq!(ask(2, "soon").await.status, 400);
    // A long answer takes the slot; the prompt alone would be in time.
    let mut long =
        server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(5), 1500))).await;
    long.until("event: first").await;
    let late = ask(2, "5000").await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (408, &json!("timeout")), "{late:?}");
    let stats = server.get("/v1/stats").await.json();
    assert_eq!((&stats["expired_total"], &stats["refused_total"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn a_reader_that_goes_before_the_first_token_leaves_the_queue() {
    let server = Server::with(
        ServiceOptions { slots: 1, ..slow() },
        None,
        HttpLimits::default(),
        ApiLimits::default(),
    )
    .await;
    let mut long =
        server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(5), 1500))).await;
    long.until("event: first").await;
    let waiting = server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(5), 5))).await;
    let until = async |wanted: usize| {
        while server.service.stats().waiting != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, until(1)).await.expect("it waits");
    drop(waiting);
    tokio::time::timeout(HANG, until(0)).await.expect("it leaves");
    assert_eq!(server.service.stats().running, 1);
}

#[tokio::test]
async fn a_cut_stream_is_taken_up_again() {
    let server = slow_server(HttpLimits::default()).await;
    let mut resumable = request("doc-qa", &document(5), 30);
    resumable.resume = true;
    let path = format!("/v1/assist/{}", resumable.request_id);
    assert_eq!(server.get(&path).await.status, 410, "nothing is kept yet");
    let mut open = server.open("POST", "/v1/assist", &[], &body(&resumable)).await;
    open.until("event: token").await;
    drop(open);
    // First the rest, after the token seen last; then the whole stream, by sending the request again.
    let rest = server.send("GET", &path, &[("last-event-id", "1")], b"").await;
    let events = rest.events();
    assert_eq!(events[0].index(), Some(2), "{events:?}");
    assert_eq!((end(&events).reason, end(&events).usage.completion_tokens), (EndReason::Cap, 30));
    let again = server.send("POST", "/v1/assist", &[], &body(&resumable)).await.events();
    assert!(matches!(again[0], AssistEvent::Mask(_)) && tokens(&again).len() == 30, "{again:?}");
    assert_eq!(tokens(&again)[2..], tokens(&events));
    assert_eq!(server.service.stats().closed_total, 1, "never two charges for one request");
    let other = server.send("GET", &path, &[("authorization", "Bearer other")], b"").await;
    assert_eq!((other.status, &other.json()["error"]["code"]), (410, &json!("gone")));
    assert_eq!(server.send("GET", &path, &[("last-event-id", "x")], b"").await.status, 400);
    assert_eq!(server.get("/v1/assist/not-a-uuid").await.status, 400);
    // Without `resume`, a reader that disconnects frees the slot, and nothing is kept.
    let mut plain = request("doc-qa", &document(5), 1500);
    plain.request_id = uuid::Uuid::from_u128(8);
    let mut open = server.open("POST", "/v1/assist", &[], &body(&plain)).await;
    open.until("event: token").await;
    drop(open);
    server.idle().await;
    assert_eq!(server.get(&format!("/v1/assist/{}", plain.request_id)).await.status, 410);
}

#[tokio::test]
async fn a_client_ends_its_request_in_every_phase() {
    let options = ServiceOptions { slots: 1, ..slow() };
    let server = Server::with(options, None, HttpLimits::default(), ApiLimits::default()).await;
    let resumable = |id: u128, tokens| {
        let request_id = uuid::Uuid::from_u128(id);
        AssistRequest { request_id, resume: true, ..request("doc-qa", &document(5), tokens) }
    };
    let path = |request: &AssistRequest| format!("/v1/assist/{}", request.request_id);
    let holds = async |running: usize, waiting: usize| {
        let held = async {
            loop {
                let stats = server.service.stats();
                if (stats.running, stats.waiting) == (running, waiting) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANG, held).await.expect("it comes to that");
    };
    // While it writes, and its connection stays open: the reader hears of the end.
    let writes = resumable(1, 1500);
    let mut open = server.open("POST", "/v1/assist", &[], &body(&writes)).await;
    open.until("event: token").await;
    let other = server.send("DELETE", &path(&writes), &[("authorization", "Bearer other")], b"").await;
    assert_eq!((other.status, server.service.stats().running), (204, 1), "it is not theirs");
    assert_eq!(server.send("DELETE", &path(&writes), &[], b"").await.status, 204);
    assert_eq!(end(&open.read_all().await.events()).reason, EndReason::Cancelled);
    server.idle().await;
    assert_eq!(server.get(&path(&writes)).await.status, 410, "nothing is kept");
    // While it waits for a slot, with and without `resume`.
    let running = server.open("POST", "/v1/assist", &[], &body(&resumable(2, 1500))).await;
    holds(1, 0).await;
    for (id, resume) in [(3, true), (4, false)] {
        let waits = AssistRequest { resume, ..resumable(id, 5) };
        let open = server.open("POST", "/v1/assist", &[], &body(&waits)).await;
        holds(1, 1).await;
        assert_eq!(server.send("DELETE", &path(&waits), &[], b"").await.status, 204);
        holds(1, 0).await;
        assert_eq!(end(&open.read_all().await.events()).reason, EndReason::Cancelled);
    }
    // A request that comes behind its end does not begin. The next one of the client does.
    let late = resumable(5, 5);
    assert_eq!(server.send("DELETE", &path(&late), &[], b"").await.status, 204);
    let refused = server.send("POST", "/v1/assist", &[], &body(&late)).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (410, &json!("gone")));
    holds(1, 0).await;
    assert_eq!(server.send("DELETE", &path(&resumable(2, 1500)), &[], b"").await.status, 204);
    drop(running);
    server.idle().await;
    let next = server.send("POST", "/v1/assist", &[], &body(&resumable(6, 5))).await;
    assert_eq!(tokens(&next.events()).len(), 5);
    assert_eq!(server.send("DELETE", "/v1/assist/not-a-uuid", &[], b"").await.status, 400);
}
