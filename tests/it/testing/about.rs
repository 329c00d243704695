//! What the server says about itself agrees with what it does.

use http::Method;
use reqwest_idempotency::testing::{At, KeyScope, SeenRequest, TestServer};
use reqwest_idempotency::{Contract, KeyRule, Serialisation};
use serde_json::{Value, json};

use super::*;

async fn get(server: &TestServer, path: &str) -> Value {
    let got = send(client().get(server.url(path))).await.unwrap();
    assert_eq!((got.status, got.header("content-type")), (200, Some("application/json")));
    serde_json::from_slice(&got.body).unwrap()
}

fn key_parameter(document: &Value, path: &str, method: &str) -> Value {
    let parameters = document["paths"][path][method]["parameters"].as_array().unwrap();
    parameters.iter().find(|parameter| parameter["in"] == "header").cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_document_has_what_the_contract_promises() {
    let server = TestServer::start().await.unwrap();
    let document = get(&server, "/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    let post = &document["paths"]["/orders"]["post"];
    let mut statuses: Vec<&str> = post["responses"].as_object().unwrap().keys().map(String::as_str).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, ["201", "400", "401", "409", "413", "422", "503"]);
    for status in ["400", "401", "409", "413", "422", "503"] {
        let schema = &post["responses"][status]["content"]["application/problem+json"]["schema"];
        assert_eq!(schema, &json!({ "$ref": "#/components/schemas/Problem" }), "{status}");
    }
    let replayed = json!({ "$ref": "#/components/headers/Replayed" });
    assert_eq!(post["responses"]["201"]["headers"]["Idempotent-Replayed"], replayed);
    assert!(post["responses"]["409"]["headers"]["Retry-After"].is_object());
    // What a key does nothing for has none.
    assert_eq!(key_parameter(&document, "/orders", "get"), Value::Null);
    assert_eq!(key_parameter(&document, "/orders/{id}", "put"), Value::Null);
}

#[tokio::test]
async fn the_document_is_made_of_what_the_server_binds() {
    let made = |_: SeenRequest| async { created("made") };
    let contract = Contract::named("acme").header("x-acme-request-id").key_bytes(64).window(HOUR);
    let server = TestServer::builder()
        .contract(contract)
        .optional_key_at(Method::POST, "/notes/{id}")
        .route(Method::POST, "/notes/{id}", made)
        .route(Method::PATCH, "/notes/{id}", made)
        .start()
        .await
        .unwrap();
    let document = get(&server, "/openapi.json").await;
    let paths: Vec<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(paths, ["/ledger", "/notes/{id}", "/openapi.json"]);
    let (post, patch) =
        (key_parameter(&document, "/notes/{id}", "post"), key_parameter(&document, "/notes/{id}", "patch"));
    assert_eq!((&post["name"], &post["required"]), (&json!("X-Acme-Request-Id"), &json!(false)));
    assert_eq!(patch["required"], true);
    assert_eq!((&patch["schema"]["maxLength"], &patch["x-window-seconds"]), (&json!(64), &json!(3600)));
    assert!(document["paths"]["/notes/{id}"]["post"]["responses"]["2XX"].is_object());
    let too_long = client().patch(server.url("/notes/1")).header("x-acme-request-id", "k".repeat(65));
    send(too_long).await.unwrap().assert_problem(400, "idempotency-key-malformed");
}

#[tokio::test]
async fn the_schema_of_the_key_follows_the_contract() {
    for (contract, expected) in [
        (
            Contract::default(),
            json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[!#-+\--~]([ -+\--~]*[!-+\--~])?$" }),
        ),
        (
            Contract::default().key_rule(KeyRule::Token(40)),
            json!({ "type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[A-Za-z0-9_-]+$" }),
        ),
        (Contract::default().key_rule(KeyRule::Uuid), json!({ "type": "string", "format": "uuid" })),
        (
            Contract::default().serialisation(Serialisation::StructuredField),
            json!({ "type": "string", "minLength": 3, "maxLength": 257, "pattern": r#"^"[!#-\[\]-~]+"$"# }),
        ),
    ] {
        let server = TestServer::builder().contract(contract).start().await.unwrap();
        let document = get(&server, "/openapi.json").await;
        assert_eq!(key_parameter(&document, "/orders", "post")["schema"], expected);
    }
}

#[tokio::test]
async fn the_ledger_can_be_read_over_http() {
    let server = Arc::new(TestServer::start().await.unwrap());
    for _ in 0..2 {
        send(order(&server, "done").bearer_auth("ann")).await.unwrap();
    }
    let hold = server.hold_for("running", At::AfterEffect);
    let running = tokio::spawn(send(order(&server, "running")));
    hold.reached().await;
    let expected = json!([
        { "principal": "", "endpoint": "POST /orders", "key": "running", "attempts": 1, "executions": 1,
          "state": "running", "status": null },
        { "principal": "ann", "endpoint": "POST /orders", "key": "done", "attempts": 2, "executions": 1,
          "state": "stored", "status": 201 },
    ]);
    assert_eq!(get(&server, "/ledger").await, expected);
    hold.open();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_route_of_the_users_goes_before_the_servers_own() {
    let own = |_: SeenRequest| async { created("own") };
    let builder = TestServer::builder().key_scope(KeyScope::Caller).orders().route(Method::GET, "/ledger", own);
    let server = builder.start().await.unwrap();
    assert_eq!(send(client().get(server.url("/ledger"))).await.unwrap().body, "own");
    send(order(&server, "k")).await.unwrap();
    assert_eq!(server.ledger()[0].endpoint, "");
}

#[tokio::test]
async fn an_order_that_was_deleted_stays_gone() {
    let server = TestServer::start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    let at = |method| send(client().request(method, server.url("/orders/order-1")).header("Idempotency-Key", "l"));
    assert_eq!(at(Method::GET).await.unwrap().status, 200);
    assert_eq!(at(Method::DELETE).await.unwrap().status, 204);
    for method in [Method::GET, Method::PATCH, Method::PUT] {
        assert_eq!(at(method.clone()).await.unwrap().status, 404, "{method}");
    }
}
