//! What is refused before a key is claimed. None of it marks a key as used.

use http::Method;
use reqwest_idempotency::testing::TestServer;
use reqwest_idempotency::{Contract, Serialisation};

use super::*;

#[tokio::test]
async fn c1_c31_a_missing_key_is_refused_and_nothing_executed() {
    let server = TestServer::start().await.unwrap();
    let got = send(client().post(server.url("/orders")).body(TEAPOT)).await.unwrap();
    got.assert_problem(422, "idempotency-key-missing");
    assert_eq!(server.executions(), 0);
}

#[tokio::test]
async fn c2_where_the_key_is_optional_each_request_without_one_executes() {
    let server = TestServer::builder().optional_key().start().await.unwrap();
    for _ in 0..2 {
        let got = send(client().post(server.url("/orders")).body(TEAPOT)).await.unwrap();
        assert_eq!((got.status, got.header("idempotent-replayed")), (201, None));
    }
    assert_eq!(server.executions(), 2);
    send(order(&server, "k")).await.unwrap();
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
    assert_eq!(server.executions(), 3);
}

#[tokio::test]
async fn c3_c4_c8_c9_malformed_keys_are_refused_as_they_are_on_the_wire() {
    let server = TestServer::start().await.unwrap();
    let too_long = format!("Idempotency-Key: {}\r\n", "k".repeat(256));
    for lines in [
        "Idempotency-Key:\r\n",
        "Idempotency-Key:   \r\n",
        "Idempotency-Key: \"\"\r\n",
        "Idempotency-Key: a\r\nIdempotency-Key: a\r\n",
        "Idempotency-Key: a, b\r\n",
        "Idempotency-Key: \"a\", \"b\"\r\n",
        "Idempotency-Key: \"open\r\n",
        "Idempotency-Key: \"bad\\escape\"\r\n",
        "Idempotency-Key: a\tb\r\n",
        "Idempotency-Key: k\u{e4}\r\n",
        &too_long,
    ] {
        let mut socket = raw(&server, raw_order(&format!("Connection: close\r\n{lines}"))).await;
        let (reply, _) = read_to_end(&mut socket).await;
        assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{lines:?}: {reply}");
        assert!(reply.contains("content-type: application/problem+json\r\n"), "{lines:?}: {reply}");
        assert!(reply.contains(r#""type":"/problems/idempotency-key-malformed""#), "{lines:?}: {reply}");
    }
    assert_eq!(server.executions(), 0);
    // C-31: none of that marked a key as used.
    assert_eq!(send(order(&server, "a")).await.unwrap().status, 201);
    assert_eq!(send(order(&server, &"k".repeat(255))).await.unwrap().status, 201);
}

#[tokio::test]
async fn c7_v04_a_quoted_key_and_its_parameters_are_the_same_key_as_it_is() {
    let server = TestServer::start().await.unwrap();
    send(order(&server, "abc")).await.unwrap();
    for value in [r#""abc""#, r#""abc";v=1"#] {
        assert!(send(order(&server, value)).await.unwrap().is_replay(), "{value}");
    }
    server.assert_executed_once("abc");
    send(order(&server, r#""a\"b\\c""#)).await.unwrap();
    server.assert_executed_once(r#"a"b\c"#);
}

#[tokio::test]
async fn c5_the_structured_field_contract_takes_quoted_keys_only() {
    let contract = Contract::default().serialisation(Serialisation::StructuredField);
    let server = TestServer::builder().contract(contract).start().await.unwrap();
    send(order(&server, "abc")).await.unwrap().assert_problem(400, "idempotency-key-malformed");
    assert_eq!(send(order(&server, r#""abc""#)).await.unwrap().status, 201);
    server.assert_executed_once("abc");
}

#[tokio::test]
async fn c12_c13_the_other_methods_ignore_the_key_even_a_malformed_one() {
    let server = TestServer::start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    for (method, path, expected) in [
        (Method::PUT, "/orders/1", 200),
        (Method::PUT, "/orders/1", 200),
        (Method::GET, "/orders/1", 200),
        (Method::HEAD, "/orders/1", 200),
        (Method::GET, "/orders", 200),
        (Method::DELETE, "/orders/1", 204),
        (Method::DELETE, "/orders/1", 204),
        (Method::GET, "/orders/1", 404),
    ] {
        let request = client().request(method.clone(), server.url(path)).header("Idempotency-Key", "k, l");
        let got = send(request).await.unwrap();
        assert_eq!((got.status, got.is_replay()), (expected, false), "{method} {path}");
    }
    assert_eq!(server.executions(), 1);
    assert!(server.requests().iter().skip(1).all(|request| request.key().is_none()));
}

#[tokio::test]
async fn c26_a_body_over_the_limit_is_refused_before_the_claim() {
    let server = TestServer::builder().body_limit(8).start().await.unwrap();
    let with = |body: &'static str| send(order(&server, "k").body(body));
    with("123456789").await.unwrap().assert_problem(413, "content-too-large");
    server.assert_never_executed("k");
    assert_eq!(with("12345678").await.unwrap().status, 201);
}

#[tokio::test]
async fn b09_a_client_that_sends_far_over_the_limit_still_reads_the_refusal() {
    let server = TestServer::builder().body_limit(8).start().await.unwrap();
    let got = send(order(&server, "k").body(vec![b'x'; 8 * 1024 * 1024])).await.unwrap();
    got.assert_problem(413, "content-too-large");
    assert_eq!(server.requests()[0].body(), "xxxxxxxx");
}

#[tokio::test]
async fn c26_large_bodies_are_fingerprinted_in_full() {
    let server = TestServer::start().await.unwrap();
    let mut body = vec![b'x'; 1024 * 1024];
    let with = |body: &[u8]| send(order(&server, "k").body(body.to_vec()));
    assert_eq!(with(&body).await.unwrap().status, 201);
    assert!(with(&body).await.unwrap().is_replay());
    *body.last_mut().unwrap() = b'y';
    with(&body).await.unwrap().assert_problem(422, "idempotency-key-reuse");
}

#[tokio::test]
async fn what_is_not_served_is_404_or_405_and_claims_nothing() {
    let server = TestServer::start().await.unwrap();
    let at =
        |method: Method, path: &str| send(client().request(method, server.url(path)).header("Idempotency-Key", "k"));
    at(Method::POST, "/elsewhere").await.unwrap().assert_problem(404, "not-found");
    let got = at(Method::PATCH, "/orders").await.unwrap();
    got.assert_problem(405, "method-not-allowed");
    assert_eq!(got.header("allow"), Some("POST, GET"));
    server.assert_never_executed("k");
}
