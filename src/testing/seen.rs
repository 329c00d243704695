//! A request, as the server read it.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Method, Version};

use super::script::Subject;

/// One request, as the server read it. Handlers get it, and tests ask for it.
#[derive(Clone)]
pub struct SeenRequest {
    pub(super) method: Method,
    /// Path and query, as they were sent.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) key: Option<String>,
    pub(super) version: Version,
    pub(super) attempt: usize,
    pub(super) params: Vec<(String, String)>,
}

impl SeenRequest {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Path and query, as they were sent.
    #[must_use]
    pub fn path_and_query(&self) -> &str {
        &self.target
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The query, without its question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.target.split_once('?').map(|(_, query)| query)
    }

    /// A parameter of the route's path: `id` for `/orders/{id}`.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body, up to the server's limit.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The idempotency key, decoded. `None` if it is absent or malformed, or if requests of this method carry none.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The version of HTTP that it came by.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Which attempt it is for its key, counted from 1. Requests without a key are counted by method and path.
    #[must_use]
    pub fn attempt(&self) -> usize {
        self.attempt
    }

    /// A request that never came, for tests of decisions about one.
    #[cfg(test)]
    pub(super) fn sample(body: &str, attempt: usize) -> Self {
        Self {
            method: Method::POST,
            target: "/orders".to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            key: None,
            version: Version::HTTP_11,
            attempt,
            params: Vec::new(),
        }
    }

    pub(super) fn subject(&self) -> Subject {
        match &self.key {
            Some(key) => Subject::Key(key.clone()),
            None => Subject::Keyless(self.endpoint()),
        }
    }

    /// Method and path: what a key is scoped to, besides the principal.
    pub(super) fn endpoint(&self) -> String {
        format!("{} {}", self.method, self.path())
    }
}

impl fmt::Debug for SeenRequest {
    /// Without headers and body, which may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeenRequest")
            .field("method", &self.method)
            .field("path", &self.path())
            .field("version", &self.version)
            .field("attempt", &self.attempt)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
