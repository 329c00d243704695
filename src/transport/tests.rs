//! What reqwest 0.13 does on real sockets, and what we make of it.

mod connect;
mod http1;
#[cfg(feature = "http2")]
mod http2;
mod raw;
mod redirect;
#[cfg(any(feature = "default-tls", feature = "rustls"))]
mod tls;

use super::*;

const LIMIT: usize = 8 << 20;
const ORDER: &[u8] = b"{\"amount\":5000}";

/// Undisturbed by the environment: no proxy of its own, and no wait for the system's certificates.
fn builder() -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder().no_proxy();
    #[cfg(any(feature = "default-tls", feature = "rustls", feature = "rustls-no-provider"))]
    let builder = builder.tls_certs_only([]);
    builder
}

/// Guarded as the crate does it for its own client.
fn guarded(builder: reqwest::ClientBuilder) -> reqwest::Client {
    let builder = builder.redirect(reqwest::redirect::Policy::none()).retry(reqwest::retry::never());
    builder.build().unwrap()
}

/// A POST of an order, through our own client.
fn order(url: Url) -> Outgoing {
    Outgoing {
        client: guarded(builder()),
        guarded: true,
        method: Method::POST,
        url,
        headers: HeaderMap::new(),
        body: Bytes::from_static(ORDER),
        version: None,
        timeout: None,
    }
}

impl Outgoing {
    /// Through a client as a caller may bring it along: it follows redirects and has reqwest's own retry.
    fn foreign(self) -> Self {
        Self { client: builder().build().unwrap(), guarded: false, ..self }
    }

    fn empty(self) -> Self {
        Self { body: Bytes::new(), ..self }
    }

    fn through(self, client: reqwest::Client) -> Self {
        Self { client, ..self }
    }

    fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

type Outcome = Result<(Reply, Option<reqwest::Response>), Failure>;

async fn exchange(outgoing: &Outgoing) -> Outcome {
    Exchange::new(outgoing).run(LIMIT).await
}

/// The exchange and the server's script, side by side.
async fn against<T>(outgoing: &Outgoing, script: impl Future<Output = T>) -> (Outcome, T) {
    tokio::join!(exchange(outgoing), script)
}

#[track_caller]
fn failed(outcome: Outcome) -> (FailureKind, Sent) {
    let failure = outcome.expect_err("no reply");
    (failure.kind, failure.sent)
}

#[track_caller]
fn answered(outcome: Outcome) -> Reply {
    let (reply, rest) = outcome.expect("a reply");
    assert!(rest.is_none(), "there is more");
    reply
}

#[track_caller]
fn broke_off(outcome: Outcome) -> (Bytes, Failure) {
    match answered(outcome).body {
        ReplyBody::Incomplete(bytes, failure) => (bytes, failure),
        body => panic!("{body:?}"),
    }
}

/// Everything that the failure and its causes say.
fn told(failure: &Failure) -> String {
    causes(failure).map(|cause| format!("{cause} {cause:?}\n")).collect()
}
