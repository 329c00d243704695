//! The test server, driven by plain reqwest and by raw sockets: it must be right without our client, and about clients
//! that are wrong.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests, which fail by panicking"
)]

mod about;
mod asking;
mod checks;
mod edges;
mod faults;
mod handlers;
mod http2;
mod leaving;
#[cfg(feature = "wiremock")]
mod mocks;
mod mutants;
mod network;
mod policies;
mod proxy;
mod replay;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest_idempotency::reqwest;
use reqwest_idempotency::testing::{TestServer, TestServerBuilder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

const HOUR: Duration = Duration::from_secs(3600);
const MILLISECOND: Duration = Duration::from_millis(1);
const TEAPOT: &str = r#"{"item":"teapot"}"#;

fn client() -> reqwest::Client {
    client_builder().build().unwrap()
}

fn client_builder() -> reqwest::ClientBuilder {
    // No resends by the client, so that each call is one attempt.
    let builder = reqwest::Client::builder().retry(reqwest::retry::never());
    // Nothing here speaks TLS, and reading the system's certificates takes longer than most of these tests.
    builder.redirect(reqwest::redirect::Policy::none()).no_proxy().tls_certs_only([])
}

/// A reply, read to its end.
#[derive(Debug, PartialEq)]
struct Got {
    status: u16,
    headers: http::HeaderMap,
    body: Bytes,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    #[track_caller]
    fn assert_problem(&self, status: u16, name: &str) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!((self.status, &problem["status"]), (status, &serde_json::json!(status)));
        assert_eq!(problem["type"], format!("/problems/{name}"));
        assert!(problem["title"].is_string() && problem["detail"].is_string());
    }
}

async fn send(request: reqwest::RequestBuilder) -> Result<Got, reqwest::Error> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Ok(Got { status, headers, body: response.bytes().await? })
}

fn order(server: &TestServer, key: &str) -> reqwest::RequestBuilder {
    order_by(&client(), server, key)
}

fn order_by(client: &reqwest::Client, server: &TestServer, key: &str) -> reqwest::RequestBuilder {
    client.post(server.url("/orders")).header("Idempotency-Key", key).body(TEAPOT)
}

/// The reply to the order once it is no longer in progress. Its handler runs on by itself, so that a few attempts may be
/// too early.
async fn settled(client: &reqwest::Client, server: &TestServer, key: &str) -> Got {
    for _ in 0..1000 {
        let got = send(order_by(client, server, key)).await.unwrap();
        if got.status != 409 {
            return got;
        }
    }
    panic!("still in progress; requests were:\n{}", server.history())
}

/// A handler that stops until it is let go on.
#[derive(Clone)]
struct Gate {
    entered: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { entered: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }

    fn guard(&self, builder: TestServerBuilder) -> TestServerBuilder {
        let gate = self.clone();
        builder.route(Method::POST, "/orders", move |_| {
            let gate = gate.clone();
            async move {
                gate.entered.add_permits(1);
                gate.open.acquire().await.unwrap().forget();
                created("made")
            }
        })
    }

    /// Until one more handler has stopped there.
    async fn entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    /// Lets one handler go on.
    fn open(&self) {
        self.open.add_permits(1);
    }
}

fn created(body: &'static str) -> http::Response<Bytes> {
    http::Response::builder().status(201).body(Bytes::from_static(body.as_bytes())).unwrap()
}

fn status(status: u16) -> http::Response<Bytes> {
    http::Response::builder().status(status).body(Bytes::new()).unwrap()
}

/// A POST of the teapot, byte by byte as it is on the wire.
fn raw_order(key_lines: &str) -> String {
    format!("POST /orders HTTP/1.1\r\nHost: x\r\n{key_lines}Content-Length: {}\r\n\r\n{TEAPOT}", TEAPOT.len())
}

async fn raw(server: &TestServer, bytes: impl AsRef<[u8]>) -> TcpStream {
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    socket.write_all(bytes.as_ref()).await.unwrap();
    socket
}

/// Everything up to the end of the connection, and how it ended.
async fn read_to_end(socket: &mut TcpStream) -> (String, Result<(), ErrorKind>) {
    let mut read = Vec::new();
    let end = socket.read_to_end(&mut read).await;
    (String::from_utf8(read).unwrap(), end.map(drop).map_err(|error| error.kind()))
}

async fn read_exactly(socket: &mut TcpStream, bytes: usize) -> String {
    let mut read = vec![0; bytes];
    socket.read_exact(&mut read).await.unwrap();
    String::from_utf8(read).unwrap()
}
