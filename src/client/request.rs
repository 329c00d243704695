//! A request as the caller builds it.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::freeze::{self, Frozen};
use super::job::Job;
use super::settings::{Settings, setters};
use super::{Call, IdempotentClient};
use crate::error::{Error, ErrorKind};
use crate::key::IdempotencyKey;
use crate::operation::OperationId;
use crate::response::Response;

/// Makes a body that can be read once.
pub(super) type BodyFactory = Box<dyn FnOnce() -> reqwest::Body + Send>;

/// A request that is sent as an operation. It has reqwest's setters by reqwest's names, and this crate's own.
#[must_use = "a request does nothing until it is sent"]
pub struct RequestBuilder {
    client: IdempotentClient,
    http: reqwest::RequestBuilder,
    factory: Option<BodyFactory>,
    operation: Option<Result<OperationId, Error>>,
    key: Option<IdempotencyKey>,
    settings: Settings,
}

impl RequestBuilder {
    pub(super) fn new(client: IdempotentClient, http: reqwest::RequestBuilder) -> Self {
        Self { client, http, factory: None, operation: None, key: None, settings: Settings::default() }
    }

    setters!();

    /// Names the operation, for instance `order-42`. Asked for again under this name it is the same operation: in another
    /// task, and after a restart if the journal is durable. Without a name it is an operation of its own.
    pub fn operation(mut self, id: impl AsRef<str>) -> Self {
        let parsed = OperationId::parse(id.as_ref());
        self.operation = Some(parsed.map_err(|error| Error::new(ErrorKind::InvalidKey, error.to_string())));
        self
    }

    /// Sends this key instead of a generated one. A key in the contract's header does the same.
    pub fn key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds a header.
    pub fn header<K, V>(self, name: K, value: V) -> Self
    where
        HeaderName: TryFrom<K>,
        <HeaderName as TryFrom<K>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.map(|http| http.header(name, value))
    }

    /// Adds headers.
    pub fn headers(self, headers: HeaderMap) -> Self {
        self.map(|http| http.headers(headers))
    }

    /// Authenticates with a user name and a password.
    pub fn basic_auth<U: fmt::Display, P: fmt::Display>(self, user: U, password: Option<P>) -> Self {
        self.map(|http| http.basic_auth(user, password))
    }

    /// Authenticates with a bearer token.
    pub fn bearer_auth<T: fmt::Display>(self, token: T) -> Self {
        self.map(|http| http.bearer_auth(token))
    }

    /// Sets a shorter time limit for each attempt than the policy's.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.map(|http| http.timeout(timeout))
    }

    /// Sets the HTTP version.
    pub fn version(self, version: http::Version) -> Self {
        self.map(|http| http.version(version))
    }

    /// Sets the body. It must be in memory: bytes or text.
    pub fn body(self, body: impl Into<reqwest::Body>) -> Self {
        self.map(|http| http.body(body))
    }

    /// Sets a body that may be a stream or a file: it is read once when the request is sent, kept in memory, and repeated
    /// byte for byte.
    ///
    /// A multipart form goes this way, too, with its boundary fixed in the header:
    ///
    /// ```
    /// # #[cfg(all(feature = "multipart", feature = "stream"))]
    /// # fn example(request: reqwest_idempotency::RequestBuilder) -> reqwest_idempotency::RequestBuilder {
    /// let form = reqwest::multipart::Form::new().text("title", "invoice");
    /// let content_type = format!("multipart/form-data; boundary={}", form.boundary());
    /// let request = request
    ///     .header("content-type", content_type)
    ///     .body_with(move || reqwest::Body::wrap_stream(form.into_stream()));
    /// # request }
    /// ```
    pub fn body_with<F, B>(mut self, factory: F) -> Self
    where
        F: FnOnce() -> B + Send + 'static,
        B: Into<reqwest::Body>,
    {
        self.factory = Some(Box::new(move || factory().into()));
        self
    }

    /// Sets the body to a value as JSON, serialised once.
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn json<T: serde::Serialize + ?Sized>(self, value: &T) -> Self {
        self.map(|http| http.json(value))
    }

    /// Sets the body to a value as a form, serialised once.
    #[cfg(feature = "form")]
    #[cfg_attr(docsrs, doc(cfg(feature = "form")))]
    pub fn form<T: serde::Serialize + ?Sized>(self, value: &T) -> Self {
        self.map(|http| http.form(value))
    }

    /// Adds a query string.
    #[cfg(feature = "query")]
    #[cfg_attr(docsrs, doc(cfg(feature = "query")))]
    pub fn query<T: serde::Serialize + ?Sized>(self, query: &T) -> Self {
        self.map(|http| http.query(query))
    }

    /// Sends the request until the server has answered or a limit is reached, always with the same key and the same bytes.
    ///
    /// `Ok` is the server's final answer: a success, or a definite refusal (4xx).
    ///
    /// # Errors
    ///
    /// There is no trustworthy answer. [`Error::kind`] says why and whose move it is; nothing was sent, and nothing begun, for
    /// [`Configuration`](ErrorKind::Configuration), [`Request`](ErrorKind::Request), [`InvalidKey`](ErrorKind::InvalidKey) and
    /// [`BodyNotReplayable`](ErrorKind::BodyNotReplayable). [`Error::delivery`] says what is known, and
    /// [`Error::is_pending`] whether the operation is still to be asked for.
    ///
    /// # Cancel safety
    ///
    /// Once the operation is begun, dropping the future leaves it pending, with its key, and gives its lease back. The
    /// request may have been executed. Ask for the operation again under its id.
    pub async fn send(self) -> Result<Response, Error> {
        let (client, mut call, factory) = self.into_call()?;
        if let Some(factory) = factory {
            let limit = Job::of(&client, &call)?;
            let read = limit.within(freeze::read(factory())).await;
            call.request.body = read.ok_or_else(|| {
                Error::new(ErrorKind::DeadlineExceeded, "the body from `body_with` was not read before the deadline")
            })??;
        }
        client.perform(call).await
    }

    /// The call that this request makes, and where its body is still to be read from.
    pub(super) fn into_call(self) -> Result<(IdempotentClient, Call, Option<BodyFactory>), Error> {
        let Self { client, http, factory, operation, key, settings } = self;
        let operation = operation.transpose()?;
        let (http, request) = http.build_split();
        let request = request.map_err(|error| {
            Error::new(ErrorKind::Request, "the request could not be built; nothing was sent")
                .caused_by(std::sync::Arc::new(error.without_url()))
        })?;
        let request = Frozen::of(request)?;
        let guarded = client.0.is_guarded(&http);
        Ok((client, Call { http, guarded, request, operation, key, settings }, factory))
    }

    fn map(mut self, change: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder) -> Self {
        self.http = change(self.http);
        self
    }
}

impl fmt::Debug for RequestBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBuilder")
            .field("operation", &self.operation)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
