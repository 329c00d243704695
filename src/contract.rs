//! The dialect that a server speaks: which header, which key, which window, and how it says what.
//!
//! A [`Contract`] is plain data, so the client and the test server can take the same one.

mod signal;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
pub(crate) use signal::codes;
pub use signal::{Meaning, Signal};
use signal::{default_signals, recognise};

use crate::key::{IdempotencyKey, KeyError, Serialisation};

/// What a server expects and what its answers mean. Cheap to clone.
///
/// [`Contract::default`] reads what most live servers say; the setters make a dialect of it:
///
/// ```
/// use std::time::Duration;
/// use reqwest_idempotency::{Contract, Meaning, Signal};
///
/// let contract = Contract::named("acme")
///     .header("x-acme-request-id")
///     .key_bytes(64)
///     .window(Duration::from_secs(6 * 60 * 60))
///     .signal(Signal::code("PREVIOUS_REQUEST_IN_PROGRESS").status(409), Meaning::InProgress);
/// assert_eq!(contract.name(), "acme");
/// ```
#[derive(Clone)]
pub struct Contract(Arc<Terms>);

#[derive(Clone)]
struct Terms {
    name: Arc<str>,
    header: HeaderName,
    serialisation: Serialisation,
    key_rule: KeyRule,
    methods: Vec<Method>,
    window: Duration,
    replay_headers: Vec<HeaderName>,
    should_retry_headers: Vec<HeaderName>,
    retry_after_headers: Vec<(HeaderName, RetryAfterUnit)>,
    signals: Vec<(Signal, Meaning)>,
}

/// Which keys the server takes, beyond what a header can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRule {
    /// Printable ASCII up to this many bytes.
    Bytes(usize),
    /// Letters, digits, `-` and `_`, up to this many bytes.
    Token(usize),
    /// A UUID in its hyphenated form.
    Uuid,
}

/// The unit of a header that says when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryAfterUnit {
    /// As `Retry-After`: whole seconds, or an HTTP-date.
    SecondsOrDate,
    /// A whole number of milliseconds.
    Milliseconds,
}

impl Default for Contract {
    /// Header `Idempotency-Key` with the key as it is, POST and PATCH, a window of 24 hours, and the signals that live
    /// servers were seen to give.
    fn default() -> Self {
        const REPLAY: [&str; 5] = [
            "idempotent-replayed",
            "idempotency-replayed",
            "x-idempotent-replayed",
            "idempotency-replay",
            "idempotent-replay",
        ];
        Self(Arc::new(Terms {
            name: Arc::from("default"),
            header: HeaderName::from_static("idempotency-key"),
            serialisation: Serialisation::Raw,
            key_rule: KeyRule::Bytes(255),
            methods: vec![Method::POST, Method::PATCH],
            window: Duration::from_secs(24 * 60 * 60),
            replay_headers: REPLAY.map(HeaderName::from_static).to_vec(),
            should_retry_headers: Vec::new(),
            retry_after_headers: vec![(http::header::RETRY_AFTER, RetryAfterUnit::SecondsOrDate)],
            signals: default_signals(),
        }))
    }
}

impl Contract {
    /// The default contract under another name, to build a dialect from.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::default().with(|terms| terms.name = Arc::from(name))
    }

    /// The contract's name. Records store it, and a repeat under a contract of another wire form is refused.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Sets the header that carries the key.
    ///
    /// # Panics
    ///
    /// `name` is not a header name.
    #[must_use]
    pub fn header(self, name: &str) -> Self {
        let name = header_name(name);
        self.with(|terms| terms.header = name)
    }

    /// Sets how the key is written into its header.
    #[must_use]
    pub fn serialisation(self, serialisation: Serialisation) -> Self {
        self.with(|terms| terms.serialisation = serialisation)
    }

    /// Sets the longest key that the server takes, in bytes.
    #[must_use]
    pub fn key_bytes(self, limit: usize) -> Self {
        self.key_rule(KeyRule::Bytes(limit))
    }

    /// Sets which keys the server takes.
    #[must_use]
    pub fn key_rule(self, rule: KeyRule) -> Self {
        self.with(|terms| terms.key_rule = rule)
    }

    /// Sets the methods that carry a key. The rest are sent without one.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().collect();
        self.with(|terms| terms.methods = methods)
    }

    /// Sets how long the server remembers a key. The client counts from its first send, less a margin of five minutes or
    /// a tenth of the window, whichever is less.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.with(|terms| terms.window = window)
    }

    /// Adds a header that marks a replayed reply; any value but `false` counts.
    ///
    /// # Panics
    ///
    /// `name` is not a header name.
    #[must_use]
    pub fn replay_header(self, name: &str) -> Self {
        let name = header_name(name);
        self.with(|terms| terms.replay_headers.push(name))
    }

    /// Adds a header in which the server says whether to retry (`true` or `false`).
    ///
    /// # Panics
    ///
    /// `name` is not a header name.
    #[must_use]
    pub fn should_retry_header(self, name: &str) -> Self {
        let name = header_name(name);
        self.with(|terms| terms.should_retry_headers.push(name))
    }

    /// Adds a header that says when to come back, looked at before those added earlier.
    ///
    /// # Panics
    ///
    /// `name` is not a header name.
    #[must_use]
    pub fn retry_after_header(self, name: &str, unit: RetryAfterUnit) -> Self {
        let name = header_name(name);
        self.with(|terms| terms.retry_after_headers.insert(0, (name, unit)))
    }

    /// Adds a way to recognise an answer, looked at before those added earlier.
    #[must_use]
    pub fn signal(self, signal: Signal, meaning: Meaning) -> Self {
        self.with(|terms| terms.signals.insert(0, (signal, meaning)))
    }

    /// Refuses what no request can work under.
    pub(crate) fn check(&self) -> Result<(), String> {
        const TAKEN: [HeaderName; 7] =
            [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, AUTHORIZATION, COOKIE];
        let Terms { name, header, key_rule, window, .. } = &*self.0;
        if TAKEN.contains(header) {
            return Err(format!(
                "the contract {name:?} puts the key into `{header}`, which has another use; name another"
            ));
        }
        if *window < Duration::from_secs(1) {
            return Err(format!(
                "the contract {name:?} has a window of {window:?}, and less than 1 s protects nothing"
            ));
        }
        match key_rule {
            KeyRule::Bytes(0) | KeyRule::Token(0) => {
                Err(format!("the contract {name:?} takes keys of 0 bytes; take at least 1, and 36 for a UUID"))
            }
            _ => Ok(()),
        }
    }

    /// Whether requests of this method carry a key.
    #[must_use]
    pub fn carries_key(&self, method: &Method) -> bool {
        self.0.methods.contains(method)
    }

    /// The header that carries the key.
    #[must_use]
    pub fn key_header(&self) -> &HeaderName {
        &self.0.header
    }

    /// How the key is written into its header.
    #[must_use]
    pub fn key_serialisation(&self) -> Serialisation {
        self.0.serialisation
    }

    /// How long the server remembers a key.
    #[must_use]
    pub fn dedup_window(&self) -> Duration {
        self.0.window
    }

    /// How long after the first send an attempt may still end: the window, less the margin.
    pub(crate) fn safe_window(&self) -> Duration {
        const LARGEST_MARGIN: Duration = Duration::from_secs(5 * 60);
        self.0.window.saturating_sub((self.0.window / 10).min(LARGEST_MARGIN))
    }

    /// Checks a key against this server's rule.
    ///
    /// # Errors
    ///
    /// The key is too long or has a character that the server does not take.
    pub fn accepts(&self, key: &IdempotencyKey) -> Result<(), KeyError> {
        let text = key.as_str();
        let (limit, character_allowed): (usize, fn(char) -> bool) = match self.0.key_rule {
            KeyRule::Bytes(limit) => (limit, |_| true),
            KeyRule::Token(limit) => (limit, |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')),
            KeyRule::Uuid => {
                let hyphenated = text.len() == uuid::fmt::Hyphenated::LENGTH;
                return match uuid::Uuid::try_parse(text) {
                    Ok(uuid) if hyphenated && !uuid.is_nil() => Ok(()),
                    _ => Err(KeyError::NotUuid),
                };
            }
        };
        if text.len() > limit {
            return Err(KeyError::TooLong { bytes: text.len(), limit });
        }
        match text.char_indices().find(|(_, c)| !character_allowed(*c)) {
            Some((position, character)) => Err(KeyError::Character { character, position }),
            None => Ok(()),
        }
    }

    /// The header value for a key, marked sensitive so that no header dump prints it.
    pub(crate) fn header_value(&self, key: &IdempotencyKey) -> HeaderValue {
        let text = self.0.serialisation.write(key);
        let mut value = HeaderValue::try_from(text).expect("a key is printable ASCII, which every header can carry");
        value.set_sensitive(true);
        value
    }

    /// Whether a reply says that it is a replay.
    pub(crate) fn is_replay(&self, headers: &HeaderMap) -> bool {
        self.0.replay_headers.iter().filter_map(|name| headers.get(name)).any(|value| !is_false(value))
    }

    /// Whether the server says outright to retry, or not to.
    pub(crate) fn should_retry(&self, headers: &HeaderMap) -> Option<bool> {
        self.0.should_retry_headers.iter().find_map(|name| headers.get(name)).map(|value| !is_false(value))
    }

    /// The headers that say when to come back, the most specific first.
    pub(crate) fn retry_after_headers(&self) -> &[(HeaderName, RetryAfterUnit)] {
        &self.0.retry_after_headers
    }

    /// What the server declares an answer to mean, if it matches a signal.
    pub(crate) fn meaning(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Option<Meaning> {
        recognise(&self.0.signals, status, headers, body)
    }

    fn with(mut self, change: impl FnOnce(&mut Terms)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl fmt::Debug for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terms { name, header, serialisation, key_rule, methods, window, .. } = &*self.0;
        f.debug_struct("Contract")
            .field("name", name)
            .field("header", header)
            .field("serialisation", serialisation)
            .field("key_rule", key_rule)
            .field("methods", methods)
            .field("window", window)
            .finish_non_exhaustive()
    }
}

/// # Panics
///
/// It is none.
#[track_caller]
fn header_name(name: &str) -> HeaderName {
    HeaderName::from_bytes(name.as_bytes())
        .expect("the name of a header has letters, digits and few signs, and no space")
}

fn is_false(value: &HeaderValue) -> bool {
    value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"false")
}
