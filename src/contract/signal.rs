//! How an answer is recognised, by status, header and code, and what it can be declared to mean.

use http::{HeaderMap, HeaderName, StatusCode};

/// What a server's answer can be declared to mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Meaning {
    /// The first request with this key is still running: wait, and ask again with the same key.
    InProgress,
    /// The key was used for another payload.
    KeyReused,
    /// The server cannot read the key.
    KeyMalformed,
    /// The server saw no key.
    KeyMissing,
    /// The operation was executed and its reply cannot be had again.
    Executed,
    /// A passing failure: try again with the same key.
    Transient,
    /// A failure that is stored under the key, so that the same key can only get it again.
    StoredFailure,
    /// The operation's own final answer.
    Final,
    /// Refused in front of the idempotency layer; says nothing about earlier attempts.
    InFront,
}

/// How to recognise an answer: all that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    statuses: Vec<u16>,
    header: Option<(HeaderName, String)>,
    code: Option<String>,
}

impl Signal {
    /// An answer whose problem type (RFC 9457) or error code is this. Of a type that is a URI the last segment counts.
    /// Case and the difference between `-` and `_` do not.
    #[must_use]
    pub fn code(code: &str) -> Self {
        Self { code: Some(code.to_owned()), ..Self::default() }
    }

    /// An answer that carries this header with this value, compared without case.
    ///
    /// # Panics
    ///
    /// `name` is not a header name. Names are written in the program, so this shows in its first run.
    #[must_use]
    pub fn header(name: &'static str, value: &str) -> Self {
        Self { header: Some((HeaderName::from_static(name), value.to_owned())), ..Self::default() }
    }

    /// Only with this status; call it again to allow another.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.statuses.push(status);
        self
    }

    /// And only with this header, compared without case.
    ///
    /// # Panics
    ///
    /// `name` is not a header name, in lower case.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.header = Some((HeaderName::from_static(name), value.to_owned()));
        self
    }

    fn allows(&self, status: StatusCode) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&status.as_u16())
    }

    fn matches(&self, status: StatusCode, headers: &HeaderMap, codes: &[String]) -> bool {
        let header_matches = self.header.as_ref().is_none_or(|(name, wanted)| {
            headers.get_all(name).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()))
        });
        let code_matches = self.code.as_ref().is_none_or(|wanted| codes.iter().any(|code| same_code(code, wanted)));
        self.allows(status) && header_matches && code_matches
    }
}

/// What the first signal that matches declares. The body is only read if a signal for this status asks for its codes.
pub(super) fn recognise(
    signals: &[(Signal, Meaning)],
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Option<Meaning> {
    let asks_for_code = signals.iter().any(|(signal, _)| signal.code.is_some() && signal.allows(status));
    let codes = if asks_for_code { codes(body) } else { Vec::new() };
    signals.iter().find(|(signal, _)| signal.matches(status, headers, &codes)).map(|(_, meaning)| *meaning)
}

fn same_code(code: &str, wanted: &str) -> bool {
    let last = code.rsplit(['/', '#', ':']).next().unwrap_or(code);
    let folded = |text: &str| text.to_ascii_lowercase().replace('_', "-");
    folded(code) == folded(wanted) || folded(last) == folded(wanted)
}

pub(super) fn default_signals() -> Vec<(Signal, Meaning)> {
    let mut signals = Vec::new();
    let mut add = |codes: &[&str], statuses: &[u16], meaning| {
        for code in codes {
            signals.push((Signal { statuses: statuses.to_vec(), ..Signal::code(code) }, meaning));
        }
    };
    add(
        &[
            "in-progress",
            "idempotency-in-progress",
            "idempotency-key-in-progress",
            "idempotency-in-flight",
            "idempotency-key-in-use",
        ],
        &[409, 423],
        Meaning::InProgress,
    );
    // An explicit "this key is for another payload" is that, whichever of the two statuses a server picks for it.
    add(&["idempotency-key-reuse", "idempotency-key-reused", "idempotency-conflict"], &[422, 409], Meaning::KeyReused);
    add(&["response-not-replayable"], &[409], Meaning::Executed);
    add(&["idempotency-key-malformed"], &[400], Meaning::KeyMalformed);
    add(&["idempotency-key-missing", "idempotency-key-required"], &[400, 422], Meaning::KeyMissing);
    signals
}

/// The problem type and the error codes of a JSON body, wherever APIs were seen to put them: at the top, in an `error`
/// object, or in the first of a list of `errors` or `details`.
pub(crate) fn codes(body: &[u8]) -> Vec<String> {
    const NAMES: [&str; 6] = ["type", "code", "error_code", "errorCode", "issue", "reason"];
    const NESTED: [&str; 3] = ["error", "errors", "details"];
    let Ok(serde_json::Value::Object(top)) = serde_json::from_slice(body) else { return Vec::new() };
    let mut found = Vec::new();
    let mut collect = |object: &serde_json::Map<String, serde_json::Value>| {
        for name in NAMES {
            match object.get(name) {
                Some(serde_json::Value::String(code)) => found.push(code.clone()),
                Some(serde_json::Value::Number(code)) => found.push(code.to_string()),
                _ => {}
            }
        }
    };
    collect(&top);
    for nested in NESTED {
        match top.get(nested) {
            Some(serde_json::Value::Object(inner)) => collect(inner),
            Some(serde_json::Value::Array(list)) => {
                list.iter().filter_map(serde_json::Value::as_object).for_each(&mut collect);
            }
            _ => {}
        }
    }
    // `{"error": "in_progress"}` is common, too.
    found.extend(top.get("error").and_then(serde_json::Value::as_str).map(str::to_owned));
    found
}
