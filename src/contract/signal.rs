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
    /// `name` is not a header name.
    #[must_use]
    pub fn header(name: &str, value: &str) -> Self {
        Self { header: Some((super::header_name(name), value.to_owned())), ..Self::default() }
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
    /// `name` is not a header name.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.header = Some((super::header_name(name), value.to_owned()));
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
/// object, in a list of `errors` or `details`, or in such a list inside of `error`. A text with spaces is for people and no
/// code.
pub(crate) fn codes(body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if let Ok(serde_json::Value::Object(top)) = serde_json::from_slice(body) {
        collect(&top, 2, &mut found);
    }
    found
}

fn collect(object: &serde_json::Map<String, serde_json::Value>, depth: u32, found: &mut Vec<String>) {
    use serde_json::Value;
    // `{"error": "in_progress"}` is common, too.
    const NAMES: [&str; 7] = ["type", "code", "error_code", "errorCode", "issue", "reason", "error"];
    const NESTED: [&str; 3] = ["error", "errors", "details"];
    for name in NAMES {
        match object.get(name) {
            Some(Value::String(code)) if !code.contains(char::is_whitespace) => found.push(code.clone()),
            Some(Value::Number(code)) => found.push(code.to_string()),
            _ => {}
        }
    }
    if depth == 0 {
        return;
    }
    for nested in NESTED {
        match object.get(nested) {
            Some(Value::Object(inner)) => collect(inner, depth - 1, found),
            Some(Value::Array(list)) => {
                list.iter().filter_map(Value::as_object).for_each(|inner| collect(inner, depth - 1, found));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::codes;

    #[test]
    fn codes_are_found_wherever_apis_put_them() {
        for body in [
            r#"{"type":"x"}"#,
            r#"{"code":"x"}"#,
            r#"{"error":"x"}"#,
            r#"{"error":{"code":"x"}}"#,
            r#"{"errors":[{"code":"x"}]}"#,
            r#"{"details":[{"issue":"x"}]}"#,
            r#"{"error":{"errors":[{"reason":"x"}]}}"#,
        ] {
            assert_eq!(codes(body.as_bytes()), ["x"], "{body}");
        }
        assert_eq!(codes(br#"{"errorCode":704}"#), ["704"]);
    }

    #[test]
    fn a_text_for_people_is_no_code_and_broken_json_has_none() {
        assert!(codes(br#"{"error":"A request is in progress"}"#).is_empty());
        for body in [&b"<html>"[..], b"", b"[1]", br#"{"code":"#, b"\xff"] {
            assert!(codes(body).is_empty());
        }
    }
}
