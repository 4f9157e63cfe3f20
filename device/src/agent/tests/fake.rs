//! A scripted cloud on loopback.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A cloud that answers requests with fixed bytes and keeps the requests. What devices end is kept apart.
pub(crate) struct FakeCloud {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    ended: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl FakeCloud {
    pub(crate) async fn start(response: String) -> Self {
        Self::answering(vec![response]).await
    }

    /// Answers each request with the next response; the last response is repeated.
    pub(crate) async fn answering(responses: Vec<String>) -> Self {
        Self::serving(responses, false).await
    }

    /// Answers the first request with `begun`, whose connection stays open, and each later one with `whole`.
    pub(super) async fn answering_and_holding(begun: String, whole: String) -> Self {
        Self::serving(vec![begun, whole], true).await
    }

    pub(super) async fn serving(responses: Vec<String>, holds_first: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, ended) = <(Arc<Mutex<Vec<Vec<u8>>>>, Arc<Mutex<Vec<Vec<u8>>>>)>::default();
        let log = seen.clone();
        let ends = ended.clone();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let request = whole_request(&mut socket).await;
                if request.starts_with(b"DELETE ") {
                    ends.lock().unwrap().push(request);
                    let _sent =
                        socket.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
                    continue;
                }
                let seen = {
                    let mut log = log.lock().unwrap();
                    log.push(request);
                    log.len()
                };
                // The client may have closed the connection; all errors are fine.
                let response = &responses[seen.min(responses.len()) - 1];
                let _sent = socket.write_all(response.as_bytes()).await;
                if holds_first && held.is_empty() {
                    held.push(socket);
                } else {
                    let _closed = socket.shutdown().await;
                }
            }
        });
        Self { url, seen, ended }
    }

    /// Returns how many requests the device has ended.
    pub(super) fn ended(&self) -> usize {
        self.ended.lock().unwrap().len()
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|r| String::from_utf8_lossy(r).into_owned()).collect()
    }
}

/// Reads a request with its body: a reply to half of one would end the connection.
async fn whole_request(socket: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if request.len() >= head.len() + 4 + length.unwrap_or(0) {
                return request;
            }
        }
        if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return request;
        }
    }
}
