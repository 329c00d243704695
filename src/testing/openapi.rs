//! The server's contract as an OpenAPI 3.1 document, from the values that it binds. Pure.

use std::time::Duration;

use http::{HeaderName, Method};
use serde_json::{Map, Value, json};

use super::exchange::REPLAYED;
use super::policy::KeyPolicy;
use super::routes::Pattern;
use super::server::Parts;
use crate::contract::Contract;
use crate::key::{IdempotencyKey, Serialisation};

pub(super) fn document(parts: &Parts, window: Duration) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for (method, pattern) in parts.routes.endpoints() {
        let path = paths.entry(pattern.to_string()).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            let operation = operation(parts, window, method, pattern);
            path.entry(method.as_str().to_ascii_lowercase()).or_insert(operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Test server of reqwest-idempotency",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Executes an operation once for each key, and replays its answer.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "security": [{}, { "bearer": [] }],
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "The token names the caller." },
            },
            "schemas": { "Problem": problem() },
            "headers": {
                "Replayed": {
                    "description": "There when the answer was given before, and the operation was not executed again.",
                    "schema": { "type": "string", "const": "true" },
                },
                "RetryAfter": {
                    "description": "Seconds to wait before the next attempt with the same key.",
                    "schema": { "type": "string", "pattern": "^[1-9][0-9]*$" },
                },
            },
        },
    })
}

fn operation(parts: &Parts, window: Duration, method: &Method, pattern: &Pattern) -> Value {
    let has_key = !method.is_safe() && parts.contract.carries_key(method);
    let success = success_of(method, pattern);
    let mut parameters: Vec<Value> = pattern.names().into_iter().map(path_parameter).collect();
    let mut responses = Map::new();
    let mut answered = json!({ "description": "The operation's answer." });
    if has_key {
        parameters.push(key_parameter(parts, window, method, pattern));
        let replayed = json!({ title_case(&REPLAYED): { "$ref": "#/components/headers/Replayed" } });
        merge(&mut answered, "headers", replayed);
        for (status, description) in [
            ("400", "The key is malformed."),
            ("409", "The first request with this key is still running, or its answer was not kept."),
            ("413", "The body is too large."),
            ("422", "The key is missing, or was used for another payload."),
            ("503", "No key can be taken at present. Nothing was executed."),
        ] {
            responses.insert(status.to_owned(), problem_response(description));
        }
        if let Some(in_progress) = responses.get_mut("409") {
            let header = json!({ "Retry-After": { "$ref": "#/components/headers/RetryAfter" } });
            merge(in_progress, "headers", header);
        }
    }
    if let Some((_, schema)) = success.as_ref().filter(|(_, schema)| !schema.is_null()) {
        merge(&mut answered, "content", json!({ "application/json": { "schema": schema } }));
    }
    let status = success.map_or_else(|| "2XX".to_owned(), |(status, _)| status.to_string());
    responses.insert(status, answered);
    responses.insert("401".to_owned(), problem_response("The request names no caller that is known here."));
    if method != Method::DELETE && !pattern.names().is_empty() {
        responses.insert("404".to_owned(), json!({ "description": "There is none." }));
    }
    let mut operation = json!({
        "operationId": format!("{}{}", method.as_str().to_ascii_lowercase(), pattern).replace(['/', '{', '}', '.'], "_"),
        "parameters": parameters,
        "responses": responses,
    });
    if !method.is_safe() && method != Method::DELETE {
        merge(&mut operation, "requestBody", json!({ "content": { "application/json": { "schema": {} } } }));
    }
    operation
}

/// Status and schema of what is built in.
fn success_of(method: &Method, pattern: &Pattern) -> Option<(u16, Value)> {
    let order = json!({
        "type": "object",
        "properties": { "id": { "type": "string" }, "order": {} },
        "required": ["id", "order"],
    });
    let entry = json!({
        "type": "object",
        "properties": {
            "principal": { "type": "string" },
            "endpoint": { "type": "string" },
            "key": { "type": "string" },
            "attempts": { "type": "integer", "minimum": 0 },
            "executions": { "type": "integer", "minimum": 0 },
            "state": { "enum": ["absent", "running", "stored", "tombstone", "failed"] },
            "status": { "type": ["integer", "null"] },
        },
        "required": ["principal", "endpoint", "key", "attempts", "executions", "state", "status"],
    });
    let list_of = |schema: Value| json!({ "type": "array", "items": schema });
    match (method.as_str(), pattern.to_string().as_str()) {
        ("POST", "/orders") => Some((201, order)),
        ("GET", "/orders") => Some((200, list_of(order))),
        ("GET" | "PATCH" | "PUT", "/orders/{id}") => Some((200, order)),
        ("DELETE", "/orders/{id}") => Some((204, Value::Null)),
        ("GET", "/ledger") => Some((200, list_of(entry))),
        ("GET", "/openapi.json") => Some((200, json!({ "type": "object" }))),
        _ => None,
    }
}

fn path_parameter(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
}

fn key_parameter(parts: &Parts, window: Duration, method: &Method, pattern: &Pattern) -> Value {
    let path = pattern.to_string();
    let required = parts.policies.key_policy(method, &path) == KeyPolicy::Required;
    let seconds = window.as_secs();
    json!({
        "name": title_case(parts.contract.key_header()),
        "in": "header",
        "required": required,
        "description": format!(
            "One key for each operation, the same on every attempt. It is remembered for {seconds} seconds after the \
             operation was completed; a repeat within them gets the stored answer."
        ),
        "schema": key_schema(&parts.contract),
        "x-window-seconds": seconds,
    })
}

/// What the server takes for a key, as it is on the wire. Asked of the contract key by key, so that the document says what
/// the server does.
fn key_schema(contract: &Contract) -> Value {
    let takes = |key: &str| IdempotencyKey::parse(key).is_ok_and(|key| contract.accepts(&key).is_ok());
    let limit = (1..=IdempotencyKey::MAX_BYTES).rev().find(|length| takes(&"a".repeat(*length)));
    let quoted = contract.key_serialisation() == Serialisation::StructuredField;
    let (characters, limit) = match (limit, takes("a!"), quoted) {
        (None, _, false) => return json!({ "type": "string", "format": "uuid" }),
        (None, _, true) => (r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", 36),
        (Some(limit), false, _) => ("[A-Za-z0-9_-]+", limit),
        // Neither a quote in front, nor a comma, nor a space at either end.
        (Some(limit), true, false) => (r"[!#-+\--~]([ -+\--~]*[!-+\--~])?", limit),
        // Without what would have to be escaped, which would make the length on the wire another one.
        (Some(limit), true, true) => (r"[!#-\[\]-~]+", limit),
    };
    let quote = if quoted { "\"" } else { "" };
    let quotes = 2 * quote.len();
    json!({
        "type": "string",
        "minLength": 1 + quotes,
        "maxLength": limit + quotes,
        "pattern": format!("^{quote}{characters}{quote}$"),
    })
}

fn problem() -> Value {
    json!({
        "type": "object",
        "description": "Problem details (RFC 9457).",
        "properties": {
            "type": { "type": "string", "format": "uri-reference" },
            "title": { "type": "string" },
            "status": { "type": "integer", "minimum": 100, "maximum": 599 },
            "detail": { "type": "string" },
        },
        "required": ["type", "title", "status", "detail"],
    })
}

fn problem_response(description: &str) -> Value {
    json!({
        "description": description,
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    })
}

fn merge(object: &mut Value, name: &str, value: Value) {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
}

/// As headers are written in documents: `Idempotency-Key`.
fn title_case(name: &HeaderName) -> String {
    let capitalised = |part: &str| {
        let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
        first.to_ascii_uppercase() + rest
    };
    name.as_str().split('-').map(capitalised).collect::<Vec<_>>().join("-")
}
