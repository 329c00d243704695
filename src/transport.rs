//! One exchange through reqwest: the request out, the reply in, and if there is none, what is known of the request.
//!
//! This is the only file that looks inside a reqwest error. reqwest names most causes correctly and the one that
//! matters most it cannot: whether the request may have reached the server. A POST that was executed and answered with
//! 303 to a dead target fails with `is_connect()`, like one that never left. So the body carries a witness: if the
//! transport never asked for it, the payload cannot have arrived anywhere.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use http_body::{Frame, SizeHint};
use url::Url;

use crate::fingerprint::without_credentials;
use crate::reply::{Failure, FailureKind, Reply, ReplyBody, Sent};

/// A request, ready to go out.
pub(crate) struct Outgoing {
    pub(crate) client: reqwest::Client,
    /// The client is of our making: it follows no redirects and repeats nothing by itself.
    pub(crate) guarded: bool,
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Only if the caller asked for one.
    pub(crate) version: Option<Version>,
    /// The caller's own limit for this request. It is passed on as it is; the attempt's limit is a timer around us.
    pub(crate) timeout: Option<Duration>,
}

/// One exchange, and what has been seen of it. It outlives the future of [`run`](Exchange::run), so that whoever drops
/// that future when time is up can still ask what had arrived.
pub(crate) struct Exchange<'a> {
    outgoing: &'a Outgoing,
    /// Whether the transport asked for the body.
    asked: Arc<AtomicBool>,
    /// The reply's head, from the moment it has been seen; its body is put in at the end.
    head: Option<Reply>,
    /// The reply's body so far.
    read: BytesMut,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(outgoing: &'a Outgoing) -> Self {
        Self { outgoing, asked: Arc::default(), head: None, read: BytesMut::new() }
    }

    /// Sends the request, once, and reads the reply. If the reply's body is longer than `limit`, the rest of it is
    /// still in the response that comes along.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped the server may have executed the request; [`timed_out`](Self::timed_out) says what
    /// had arrived by then.
    pub(crate) async fn run(&mut self, limit: usize) -> Result<(Reply, Option<reqwest::Response>), Failure> {
        let mut response = match self.outgoing.client.execute(self.request()).await {
            Ok(response) => response,
            Err(error) => return Err(self.failure(error)),
        };
        let reply = self.reply(&response);
        let expected = expected_length(&self.outgoing.method, &reply);
        self.head = Some(reply.clone());

        // A refusal says in its body what it means; only a success may be left unread.
        let limit = if reply.status.is_success() { limit } else { limit.max(LEAST_REFUSAL) };
        let mut rest = None;
        let body = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => self.read.extend_from_slice(&chunk),
                Ok(None) => break whole(self.read.split().freeze(), expected),
                Err(error) => break ReplyBody::Incomplete(self.read.split().freeze(), broken_off(error)),
            }
            if self.read.len() > limit {
                rest = Some(response);
                break ReplyBody::TooLong(self.read.split().freeze());
            }
        };
        Ok((Reply { body, ..reply }, rest))
    }

    /// What is known when the attempt's time is up and [`run`](Self::run) was dropped. A request whose connection was
    /// still being made is no exception: nothing says how far it got.
    pub(crate) fn timed_out(self) -> Result<Reply, Failure> {
        let failure = Failure { kind: FailureKind::Timeout, sent: Sent::Perhaps, source: None };
        match self.head {
            Some(head) => Ok(Reply { body: ReplyBody::Incomplete(self.read.freeze(), failure), ..head }),
            None => Err(failure),
        }
    }

    fn request(&self) -> reqwest::Request {
        let Outgoing { method, url, headers, body, version, timeout, .. } = self.outgoing;
        // reqwest turns user info into a header only in its request builder, which the caller has been through.
        let mut request = reqwest::Request::new(method.clone(), without_credentials(url));
        *request.headers_mut() = headers.clone();
        // hyper leaves the length out when there is no body, which some servers answer with 411, and believes a length
        // that is already there, true or not.
        let with_content = matches!(*method, Method::POST | Method::PUT | Method::PATCH);
        if with_content || !body.is_empty() {
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        } else {
            request.headers_mut().remove(CONTENT_LENGTH);
        }
        // The body is in one piece, and its length is known.
        request.headers_mut().remove(TRANSFER_ENCODING);
        if let Some(version) = version {
            *request.version_mut() = *version;
        }
        *request.timeout_mut() = *timeout;
        // Wrapped, the body also cannot be cloned by reqwest: it repeats no request and follows no 307 with it.
        let witnessed = Witnessed { body: body.clone(), asked: Arc::clone(&self.asked) };
        *request.body_mut() = Some(reqwest::Body::wrap(witnessed));
        request
    }

    fn reply(&self, response: &reqwest::Response) -> Reply {
        Reply {
            status: response.status(),
            version: response.version(),
            headers: response.headers().clone(),
            url: response.url().clone(),
            body: ReplyBody::Whole(Bytes::new()),
            redirected: without_credentials(response.url()) != without_credentials(&self.outgoing.url),
        }
    }

    /// No head has been seen. The order of the tests matters: a connect timeout is both connect and timeout.
    fn failure(&self, error: reqwest::Error) -> Failure {
        let (kind, sent) = if error.is_builder() {
            (FailureKind::Request, self.unless_asked())
        } else if error.is_redirect() {
            (FailureKind::Redirected, Sent::Perhaps)
        } else if error.is_connect() {
            (self.connect_kind(&error), self.unless_asked())
        } else if is_canceled(&error) {
            (FailureKind::Canceled, self.unless_asked())
        } else if is_refused(&error) {
            // Here it is the peer that says so, and proxies are known to say it wrongly: only a payload that was held
            // back proves it, and an empty one cannot be held back.
            let sent = if self.outgoing.body.is_empty() { Sent::Perhaps } else { self.unless_asked() };
            (FailureKind::Refused, sent)
        } else if error.is_timeout() {
            (FailureKind::Timeout, Sent::Perhaps)
        } else {
            (FailureKind::Connection, Sent::Perhaps)
        };
        Failure { kind, sent, source: source(error) }
    }

    /// An empty body is never asked for, and another client may have followed a redirect before it failed: then the
    /// witness proves nothing.
    fn unless_asked(&self) -> Sent {
        let Outgoing { body, guarded, .. } = self.outgoing;
        if self.asked.load(Ordering::Acquire) || (body.is_empty() && !guarded) { Sent::Perhaps } else { Sent::No }
    }

    fn connect_kind(&self, error: &reqwest::Error) -> FailureKind {
        if error.is_dns() {
            FailureKind::Dns
        } else if is_certificate(error) {
            FailureKind::Certificate
        } else if self.outgoing.url.scheme() == "https" && is_without_tls(error) {
            FailureKind::Request
        } else {
            FailureKind::Connect
        }
    }
}

/// How much of a refusal's body is read in any case.
const LEAST_REFUSAL: usize = 64 * 1024;

/// A body in one piece that records whether anybody asked for it.
struct Witnessed {
    body: Bytes,
    asked: Arc<AtomicBool>,
}

impl http_body::Body for Witnessed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.asked.store(true, Ordering::Release);
        let body = std::mem::take(&mut self.body);
        Poll::Ready((!body.is_empty()).then(|| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.len() as u64)
    }
}

/// The length that the head promises for the body as we read it: none if there is no body, if it is chunked (RFC 9112
/// section 6.3), or if it was coded, for reqwest removes the header from a reply that it decodes.
fn expected_length(method: &Method, head: &Reply) -> Option<u64> {
    let bodiless = *method == Method::HEAD || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if bodiless || head.headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The body came to its end. On HTTP/1 that is the promised one; on HTTP/2 a stream reset with NO_ERROR also reads as
/// an end.
fn whole(body: Bytes, expected: Option<u64>) -> ReplyBody {
    match expected {
        Some(expected) if expected != body.len() as u64 => {
            let text = format!("the reply ended after {} of {expected} bytes", body.len());
            let source = Arc::new(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            let failure = Failure { kind: FailureKind::ReplyLost, sent: Sent::Perhaps, source: Some(source) };
            ReplyBody::Incomplete(body, failure)
        }
        _ => ReplyBody::Whole(body),
    }
}

/// The body failed after the head. Whatever the error says, even REFUSED_STREAM, the server had begun to answer.
fn broken_off(error: reqwest::Error) -> Failure {
    let kind = if error.is_timeout() { FailureKind::Timeout } else { FailureKind::ReplyLost };
    Failure { kind, sent: Sent::Perhaps, source: source(error) }
}

/// reqwest's own account, if it can be had without a URL: a query may hold credentials. A redirect that failed may hold
/// a second one deeper down, where it cannot be taken out.
fn source(error: reqwest::Error) -> Option<Arc<dyn Error + Send + Sync>> {
    let error = error.without_url();
    if find(&error, |cause: &reqwest::Error| cause.url().is_some()) { None } else { Some(Arc::new(error)) }
}

/// hyper gave the request back, or dropped it, before it wrote any of it.
fn is_canceled(error: &reqwest::Error) -> bool {
    find(error, hyper::Error::is_canceled)
}

/// The peer says that it did not process the request. h2 hands a remote GOAWAY only to streams above the last one that
/// the peer processed.
#[cfg(feature = "http2")]
fn is_refused(error: &reqwest::Error) -> bool {
    find(error, |error: &h2::Error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (refused || error.is_go_away())
    })
}

#[cfg(not(feature = "http2"))]
fn is_refused(_: &reqwest::Error) -> bool {
    false
}

#[cfg(any(feature = "default-tls", feature = "rustls", feature = "rustls-no-provider"))]
fn is_certificate(error: &reqwest::Error) -> bool {
    find(error, |error: &rustls::Error| matches!(error, rustls::Error::InvalidCertificate(_)))
}

/// With another TLS library it stays a failed connection.
#[cfg(not(any(feature = "default-tls", feature = "rustls", feature = "rustls-no-provider")))]
fn is_certificate(_: &reqwest::Error) -> bool {
    false
}

/// reqwest was built without TLS and asked for https. Only the text tells; under another text it stays a failed
/// connection.
fn is_without_tls(error: &reqwest::Error) -> bool {
    causes(error).any(|cause| cause.to_string() == "invalid URL, scheme is not http")
}

fn find<T: Error + 'static>(error: &reqwest::Error, test: impl Fn(&T) -> bool) -> bool {
    causes(error).any(|cause| cause.downcast_ref().is_some_and(&test))
}

/// The error and everything below it. An `io::Error` that wraps another error skips it in `source()`; two of them hide
/// a certificate error.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let wrapped = error.downcast_ref().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

#[cfg(test)]
mod tests;
