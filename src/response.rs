//! The server's final answer, with the operation's story around it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use http_body::Frame;
use reqwest::ResponseBuilderExt as _;
use url::Url;

use crate::error::{Error, ErrorKind};
use crate::history::{Attempt, Delivery, Report};
use crate::key::IdempotencyKey;
use crate::operation::{OperationId, Phase, Record, StoredReply};
use crate::reply::{Failure, FailureKind, Problem, Reply, ReplyBody, Sent};

/// The server's final answer: a success, or a definite refusal.
///
/// Its body has been read already, as part of the attempt: a reply that breaks off halfway is tried again. Only a body
/// above the limit ([`reply_limit`](crate::IdempotentClient::builder), 8 MiB by default) is handed on as a stream, and if
/// *that* breaks off, the caller gets an error and has to ask for the operation again.
#[derive(Debug)]
pub struct Response {
    reply: Reply,
    story: Arc<Story>,
    /// The rest of a body that was over the limit.
    rest: Option<reqwest::Response>,
}

/// What is told around a reply.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) operation: Option<(OperationId, IdempotencyKey)>,
    pub(crate) phase: Option<Phase>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) replayed: bool,
    pub(crate) after_unknown: bool,
}

impl Response {
    pub(crate) fn new(reply: Reply, story: Story) -> Self {
        Self { reply, story: Arc::new(story), rest: None }
    }

    /// The answer that closed an operation earlier, from its record, if one did.
    pub(crate) fn recalled(record: &Record) -> Option<Self> {
        let closing = record.closing.as_ref()?;
        let status = closing.status?;
        let (headers, body) = match closing.reply.clone() {
            Some(reply) => (reply.headers, ReplyBody::Whole(reply.body)),
            None => {
                let not_kept = Failure { kind: FailureKind::ReplyLost, sent: Sent::Perhaps, source: None };
                (HeaderMap::new(), ReplyBody::Incomplete(Bytes::new(), not_kept))
            }
        };
        let url = record.url.clone();
        let reply = Reply { status, version: Version::HTTP_11, headers, url, body, redirected: false };
        let story = Story {
            operation: Some((record.operation.clone(), record.key.clone())),
            phase: Some(record.phase),
            attempts: Vec::new(),
            replayed: true,
            after_unknown: closing.after_unknown,
        };
        Some(Self::new(reply, story))
    }

    /// Attaches what is still to be read of a body over the limit.
    pub(crate) fn with_rest(mut self, rest: Option<reqwest::Response>) -> Self {
        self.rest = rest;
        self
    }

    /// A second copy for whoever shares the operation; a body that is still streaming has only one reader.
    pub(crate) fn share(&self) -> Option<Self> {
        self.reply.is_complete().then(|| Self { reply: self.reply.clone(), story: Arc::clone(&self.story), rest: None })
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.reply.status
    }

    /// The HTTP version of the answer.
    #[must_use]
    pub fn version(&self) -> Version {
        self.reply.version
    }

    /// The response headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.reply.headers
    }

    /// Where the answer came from.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.reply.url
    }

    /// The body as far as it is in memory: all of it, unless it was over the limit.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        self.reply.body()
    }

    /// Whether the whole body is in memory. If not, a success has more to stream, and a refusal's body broke off.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.reply.is_complete()
    }

    /// The problem details (RFC 9457) of the body, if it has any.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        self.reply.problem()
    }

    /// The operation's id; `None` for a method that carries no key.
    #[must_use]
    pub fn operation(&self) -> Option<&OperationId> {
        self.story.operation.as_ref().map(|(operation, _)| operation)
    }

    /// The key that every attempt carried; `None` for a method that carries none.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.story.operation.as_ref().map(|(_, key)| key)
    }

    /// The attempts that this call made.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.story.attempts
    }

    /// Whether this is the stored reply of an earlier attempt: the server says so, or the journal kept it.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.story.replayed
    }

    /// Whether an earlier attempt had an unknown outcome. A refusal after that may refuse what was executed already, for
    /// instance because its name is taken.
    #[must_use]
    pub fn after_unknown(&self) -> bool {
        self.story.after_unknown
    }

    /// The story of the attempts, for people.
    #[must_use]
    pub fn report(&self) -> Report<'_> {
        Report {
            headline: &self.reply.status,
            attempts: &self.story.attempts,
            next_attempt_at: None,
            known: "the server has answered",
        }
    }

    /// The whole body. One that is within the limit is there already. For the rest of a longer one no time limit of this crate
    /// holds any more; set reqwest's own, or one around this call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Decode`] if the body broke off, or was not kept in the journal: only possible for a refusal, and for a
    /// body over the limit.
    ///
    /// # Cancel safety
    ///
    /// A body within the limit is in memory, and the call returns at once. Dropping it while a longer one streams loses
    /// the rest of that body; the operation itself is settled either way.
    pub async fn bytes(self) -> Result<Bytes, Error> {
        let fail = |story: &Story, message: &'static str| Self::error(story, ErrorKind::Decode, message);
        match (self.reply.body, self.rest) {
            (ReplyBody::Whole(bytes), _) => Ok(bytes),
            (ReplyBody::TooLong(first), Some(mut rest)) => {
                let mut all = Vec::from(first);
                loop {
                    match rest.chunk().await {
                        Ok(Some(chunk)) => all.extend_from_slice(&chunk),
                        Ok(None) => return Ok(all.into()),
                        Err(error) => {
                            return Err(fail(&self.story, "the body was over the limit and broke off while streaming")
                                .caused_by(Arc::new(error.without_url())));
                        }
                    }
                }
            }
            (ReplyBody::Incomplete(_, failure), _) => Err(fail(
                &self.story,
                "the body of the refusal is not to be had: it broke off, or the journal did not keep it",
            )
            .caused_by(Arc::new(failure))),
            (ReplyBody::TooLong(_), None) => Err(fail(&self.story, "the rest of the body went to another caller")),
        }
    }

    /// The whole body as text, in UTF-8; what is not UTF-8 is replaced.
    ///
    /// # Errors
    ///
    /// As [`bytes`](Self::bytes).
    ///
    /// # Cancel safety
    ///
    /// As [`bytes`](Self::bytes).
    pub async fn text(self) -> Result<String, Error> {
        let bytes = self.bytes().await?;
        Ok(String::from_utf8(bytes.into())
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The whole body, read as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Decode`] if it is not the JSON that is asked for, and as [`bytes`](Self::bytes).
    ///
    /// # Cancel safety
    ///
    /// As [`bytes`](Self::bytes).
    #[cfg(feature = "json")]
    pub async fn json<T: serde::de::DeserializeOwned>(self) -> Result<T, Error> {
        let story = Arc::clone(&self.story);
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            // serde_json quotes values of the body in its messages, so only the place is told.
            Self::error(&story, ErrorKind::Decode, "the body is not the JSON that was asked for").caused_by(Arc::new(
                std::io::Error::other(format!("at line {} column {}", error.line(), error.column())),
            ))
        })
    }

    /// Turns a refusal into an error that keeps the answer: [`Error::last_response`] has its body and problem details.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Status`] if the status is not a success.
    pub fn error_for_status(self) -> Result<Self, Error> {
        let status = self.status();
        if !(status.is_client_error() || status.is_server_error()) {
            return Ok(self);
        }
        let problem = self.problem().and_then(|problem| problem.title);
        let message = match problem {
            Some(title) => format!("the server answered {status}: {title}"),
            None => format!("the server answered {status}"),
        };
        Err(Self::error(&self.story, ErrorKind::Status, message)
            .tried(self.story.attempts.clone(), Some(self.reply.clone())))
    }

    /// As a plain `reqwest::Response`, for code that takes one. The story around it is gone.
    #[must_use]
    pub fn into_reqwest(self) -> reqwest::Response {
        let first = self.reply.body().clone();
        let body = match self.rest {
            Some(rest) => reqwest::Body::wrap(Continued { first: Some(first), rest: rest.into() }),
            None => reqwest::Body::from(first),
        };
        let placed = http::Response::builder().url(self.reply.url).body(());
        // A URL is all that this builder was given, and it takes any.
        let mut response = placed.unwrap_or_default().map(|()| body);
        *response.status_mut() = self.reply.status;
        *response.version_mut() = self.reply.version;
        *response.headers_mut() = self.reply.headers;
        response.into()
    }

    fn error(story: &Story, kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        let error = Error::new(kind, message).delivered(Delivery::Answered).tried(story.attempts.clone(), None);
        match (&story.operation, story.phase) {
            (Some((operation, key)), Some(phase)) => error.of_operation(operation.clone(), key.clone(), phase),
            _ => error,
        }
    }
}

impl StoredReply {
    /// What is kept of a response: nothing that sets a credential.
    pub(crate) fn of(response: &Response) -> Self {
        let mut headers = response.headers().clone();
        headers.remove(http::header::SET_COOKIE);
        Self { headers, body: response.body().clone() }
    }
}

/// A body whose first part is in memory and whose rest is still streaming.
struct Continued {
    first: Option<Bytes>,
    rest: reqwest::Body,
}

impl http_body::Body for Continued {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let this = self.get_mut();
        match this.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }
}
