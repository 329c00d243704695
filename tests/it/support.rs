//! A client and a server that share a clock.

use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use reqwest_idempotency::{ClientBuilder, IdempotentClient, RequestBuilder};

/// A server with a script, a client, and the clock that both go by.
pub(crate) struct Pair {
    pub(crate) server: TestServer,
    pub(crate) client: IdempotentClient,
    pub(crate) clock: ManualClock,
}

impl Pair {
    pub(crate) async fn with(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::built(faults, |builder| builder).await
    }

    pub(crate) async fn built(
        faults: impl IntoIterator<Item = Fault>,
        build: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Self {
        let clock = ManualClock::new();
        let server = TestServer::builder().clock(clock.clone()).faults(faults).start().await.unwrap();
        Self { server, client: client(&clock, build), clock }
    }

    /// A POST of an order.
    pub(crate) fn order(&self) -> RequestBuilder {
        self.client.post(self.server.url("/orders")).json(&serde_json::json!({ "item": "teapot" }))
    }

    /// The keys that the server saw, attempt by attempt.
    pub(crate) fn keys_seen(&self) -> Vec<String> {
        self.server.requests().iter().map(|request| request.key().unwrap_or("none").to_owned()).collect()
    }

    pub(crate) fn attempts_seen(&self) -> usize {
        self.server.requests().len()
    }
}

pub(crate) fn client(clock: &ManualClock, build: impl FnOnce(ClientBuilder) -> ClientBuilder) -> IdempotentClient {
    // No proxy of the machine that the tests run on gets between a test and its server.
    let http = reqwest::Client::builder().no_proxy();
    build(IdempotentClient::builder().in_memory().http(http).clock(clock.clone())).build().unwrap()
}

/// An address on this machine where nobody listens.
pub(crate) fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/orders", listener.local_addr().unwrap())
}

/// A folder of its own for a test, gone when it is dropped.
pub(crate) struct Folder(std::path::PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("reqwest-idempotency-it-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }

    /// All files in it, at any depth.
    pub(crate) fn files(&self) -> Vec<std::path::PathBuf> {
        let (mut folders, mut files) = (vec![self.0.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
