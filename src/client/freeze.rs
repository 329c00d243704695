//! From a reqwest request to one that can be repeated byte for byte.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_LANGUAGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT,
};
use http::{HeaderMap, HeaderName, Method, Version};
use http_body::Body as _;
use url::Url;

use crate::error::{Error, ErrorKind};
use crate::operation::{Record, StoredRequest};

/// A request whose every part is fixed.
pub(super) struct Frozen {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) version: Option<Version>,
    pub(super) timeout: Option<Duration>,
}

impl Frozen {
    /// Takes a request whose body is in memory.
    pub(super) fn of(mut request: reqwest::Request) -> Result<Self, Error> {
        let body = match request.body_mut().take() {
            None => Bytes::new(),
            Some(body) if body.as_bytes().is_some() => in_memory(body),
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::BodyNotReplayable,
                    "the body is a stream, a multipart form or a file and can be sent only once; pass bytes, or a body \
                     factory with `body_with(|| …)`, which is read once and then repeated byte for byte",
                ));
            }
        };
        Ok(Self::with_body(request, body))
    }

    /// The request of a record, as far as it was stored.
    pub(super) fn restored(record: &Record, stored: &StoredRequest) -> Self {
        Self {
            method: record.method.clone(),
            url: record.url.clone(),
            headers: stored.headers.clone(),
            body: stored.body.clone(),
            version: None,
            timeout: None,
        }
    }

    fn with_body(mut request: reqwest::Request, body: Bytes) -> Self {
        let version = Some(request.version()).filter(|version| *version != Version::default());
        Self {
            method: request.method().clone(),
            url: request.url().clone(),
            headers: std::mem::take(request.headers_mut()),
            body,
            version,
            timeout: request.timeout().copied(),
        }
    }

    /// What a journal may store of it: the body, and headers that cannot be credentials. What a client that is not ours
    /// adds to them, nobody knows.
    pub(super) fn stored(&self, key_header: &HeaderName, guarded: bool) -> StoredRequest {
        const STORED: [HeaderName; 7] =
            [ACCEPT, ACCEPT_LANGUAGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, HOST, USER_AGENT];
        let (mut headers, mut needs_headers) = (HeaderMap::new(), !guarded);
        for (name, value) in &self.headers {
            if STORED.contains(name) {
                headers.append(name.clone(), value.clone());
            } else if name != key_header && *name != CONTENT_LENGTH {
                needs_headers = true;
            }
        }
        StoredRequest { headers, body: self.body.clone(), needs_headers }
    }
}

/// Reads a body to its end: what a factory made, here and once.
pub(super) async fn read(mut body: reqwest::Body) -> Result<Bytes, Error> {
    let mut read = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| {
            Error::new(ErrorKind::Request, "the body from `body_with` could not be read; nothing was sent")
                .caused_by(Arc::new(error.without_url()))
        })?;
        if let Ok(data) = frame.into_data() {
            read.extend_from_slice(&data);
        }
    }
    Ok(read.into())
}

/// The bytes of a body that is in memory, without copying them: reqwest hands such a body out in one frame, at once.
fn in_memory(mut body: reqwest::Body) -> Bytes {
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut body).poll_frame(&mut cx) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    }
}
