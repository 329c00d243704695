//! What the server says: a status, headers and a whole body.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::policy::ServerErrors;

/// An answer, as a handler gives it, the ledger keeps it and a fault cans it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What becomes of a claim when the handler has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// The answer is the operation's outcome: it is stored and replayed.
    Store,
    /// The handler declares that nothing happened: the next attempt executes.
    Release,
    /// Something may have happened: the execution counts, and the next attempt executes again.
    ReExecute,
}

/// The headers that are kept for replays unless others are named. An allowlist: a cookie or a rate limit belongs to one
/// response, not to the operation.
pub(super) const SAFE_HEADERS: [HeaderName; 9] = [
    CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_DISPOSITION,
    header::LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
];

impl Answer {
    /// A status and nothing else.
    pub(super) fn bare(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// Problem details (RFC 9457), of the type `/problems/<name>`.
    pub(super) fn problem(status: StatusCode, name: &str, detail: &str) -> Self {
        let problem = serde_json::json!({
            "type": format!("/problems/{name}"),
            "title": name.replace('-', " "),
            "status": status.as_u16(),
            "detail": detail,
        });
        let mut answer = Self::bare(status);
        answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        answer.body = Bytes::from(problem.to_string());
        answer
    }

    /// The first request with this key is still running.
    pub(super) fn in_progress(retry_after: HeaderValue) -> Self {
        let detail = "The first request with this key is still running; repeat it later with the same key.";
        Self::problem(StatusCode::CONFLICT, "in-progress", detail).with(RETRY_AFTER, retry_after)
    }

    /// The key belongs to another payload.
    pub(super) fn key_reused() -> Self {
        let detail = "This key was used for another payload. A new operation needs a new key.";
        Self::problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reuse", detail)
    }

    /// Only a tombstone is left.
    pub(super) fn not_replayable() -> Self {
        let detail = "The operation was executed, and its response was not kept.";
        Self::problem(StatusCode::CONFLICT, "response-not-replayable", detail)
    }

    /// No key can be claimed.
    pub(super) fn store_unavailable() -> Self {
        let detail = "No key can be taken at present. Nothing was executed.";
        Self::problem(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// What this answer, given by a handler, says about the operation.
    pub(super) fn disposition(&self, server_errors: ServerErrors) -> Disposition {
        match (self.status.as_u16(), server_errors) {
            (401 | 403 | 408 | 425 | 429, _) | (500..=599, ServerErrors::Release) => Disposition::Release,
            (500..=599, ServerErrors::ReExecute) => Disposition::ReExecute,
            _ => Disposition::Store,
        }
    }

    /// What of this answer is kept for replays: status, body and these headers.
    pub(super) fn for_replay(&self, allowed: &[HeaderName]) -> Self {
        let mut headers = HeaderMap::new();
        for name in allowed {
            for value in self.headers.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self { status: self.status, headers, body: self.body.clone() }
    }

    /// How many bytes it takes to keep this.
    pub(super) fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        headers + self.body.len()
    }
}

impl From<Response<Bytes>> for Answer {
    /// Drops the headers that frame a message: the connection writes its own.
    fn from(response: Response<Bytes>) -> Self {
        let (parts, body) = response.into_parts();
        let mut headers = parts.headers;
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE] {
            headers.remove(name);
        }
        Self { status: parts.status, headers, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_json_with_type_title_status_and_detail() {
        let answer = Answer::problem(StatusCode::BAD_REQUEST, "idempotency-key-malformed", "A \"bad\" key.");
        assert_eq!(answer.headers[CONTENT_TYPE], "application/problem+json");
        let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let expected = serde_json::json!({
            "type": "/problems/idempotency-key-malformed",
            "title": "idempotency key malformed",
            "status": 400,
            "detail": "A \"bad\" key.",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn c35_cookies_and_per_response_headers_are_not_kept_for_replays() {
        let response = Response::builder()
            .header("content-type", "text/plain")
            .header("location", "/orders/1")
            .header("etag", "\"a\"")
            .header("set-cookie", "session=1")
            .header("www-authenticate", "Bearer")
            .header("date", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("server", "x")
            .header("alt-svc", "h3")
            .header("x-request-id", "7")
            .header("ratelimit-remaining", "1")
            .header("proxy-authenticate", "Basic")
            .header("keep-alive", "timeout=5")
            .body(Bytes::from_static(b"done"))
            .unwrap();
        let kept = Answer::from(response).for_replay(&SAFE_HEADERS);
        let names: Vec<_> = kept.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-type", "location", "etag"]);
        assert_eq!(kept.body, "done");
    }

    #[test]
    fn c39_c40_what_is_stored_and_what_is_released() {
        for (status, disposition) in [
            (200, Disposition::Store),
            (201, Disposition::Store),
            (204, Disposition::Store),
            (307, Disposition::Store), // C-65
            (400, Disposition::Store),
            (401, Disposition::Release),
            (402, Disposition::Store),
            (403, Disposition::Release),
            (404, Disposition::Store),
            (408, Disposition::Release),
            (409, Disposition::Store),
            (422, Disposition::Store),
            (425, Disposition::Release),
            (429, Disposition::Release),
            (500, Disposition::Release),
            (503, Disposition::Release),
        ] {
            let answer = Answer::bare(StatusCode::from_u16(status).unwrap());
            assert_eq!(answer.disposition(ServerErrors::Release), disposition, "{status}");
        }
    }
}
