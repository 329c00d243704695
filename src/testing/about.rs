//! What the server says about itself: its OpenAPI document and its ledger.

use std::sync::Weak;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response};
use serde_json::{Value, json};

use super::ledger::{EntryState, LedgerEntry};
use super::openapi;
use super::routes::{Routes, handler};
use super::server::Shared;

/// `GET /openapi.json` and `GET /ledger`. A user's routes go before them.
pub(super) fn routes(shared: &Weak<Shared>) -> Routes {
    let about = |tell: fn(&Shared) -> Value| {
        let shared = shared.clone();
        // Only while a server is being dropped is it gone and still asked.
        let tell = move || shared.upgrade().map_or(Value::Null, |shared| tell(&shared));
        handler(move |_| std::future::ready(json_response(&tell())))
    };
    let mut routes = Routes::default();
    routes.add(
        Method::GET,
        "/openapi.json",
        about(|shared| openapi::document(&shared.parts, shared.ledger().window())),
    );
    routes.add(Method::GET, "/ledger", about(ledger));
    routes
}

fn ledger(shared: &Shared) -> Value {
    let now = shared.now();
    shared.ledger().entries(now).iter().map(entry).collect()
}

fn entry(entry: &LedgerEntry) -> Value {
    let status = match entry.state {
        EntryState::Stored(status) => json!(status.as_u16()),
        _ => Value::Null,
    };
    json!({
        "principal": entry.principal,
        "endpoint": entry.endpoint,
        "key": entry.key,
        "attempts": entry.attempts,
        "executions": entry.executions,
        "state": entry.state.name(),
        "status": status,
    })
}

fn json_response(body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
