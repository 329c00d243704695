//! What handlers say, and what becomes of it.

use bytes::Bytes;
use http::Method;
use reqwest_idempotency::testing::{SeenRequest, TestServer};

use super::*;

#[tokio::test]
async fn c39_c40_c65_refusals_and_redirects_are_replayed_and_what_did_not_happen_executes_again() {
    let server = TestServer::builder()
        .route(Method::POST, "/{status}", |request: SeenRequest| async move {
            status(request.param("status").unwrap().parse().unwrap())
        })
        .start()
        .await
        .unwrap();
    for (code, is_stored) in [(400, true), (404, true), (409, true), (422, true), (307, true), (204, true)]
        .into_iter()
        .chain([401, 403, 408, 425, 429, 500, 501, 503].map(|code| (code, false)))
    {
        let key = format!("key-{code}");
        let attempt = || send(client().post(server.url(&format!("/{code}"))).header("Idempotency-Key", &key));
        let first = attempt().await.unwrap();
        let second = attempt().await.unwrap();
        assert_eq!((first.status, second.status), (code, code));
        assert_eq!(second.is_replay(), is_stored, "{code}");
        assert_eq!(server.executions_of(&key), usize::from(is_stored), "{code}");
    }
}

#[tokio::test]
async fn c37_a_reply_without_a_body_is_replayed_without_one() {
    let server = TestServer::builder().route(Method::POST, "/orders", |_| async { status(204) }).start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\nConnection: close\r\n")).await;
    let (reply, _) = read_to_end(&mut socket).await;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 204 No Content\r\n") && head.contains("idempotent-replayed: true"), "{head}");
    assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
    assert_eq!(body, "");
}

#[tokio::test]
async fn c35_the_first_reply_has_all_headers_and_the_replay_those_of_the_operation() {
    let answer = |_| async {
        http::Response::builder()
            .status(201)
            .header("content-type", "text/plain")
            .header("etag", "\"1\"")
            .header("set-cookie", "session=1")
            .header("x-request-id", "7")
            .header("content-length", "1")
            .header("transfer-encoding", "chunked")
            .body(Bytes::from_static(b"made"))
            .unwrap()
    };
    let server = TestServer::builder().route(Method::POST, "/orders", answer).start().await.unwrap();
    let first = send(order(&server, "k")).await.unwrap();
    assert_eq!((first.header("set-cookie"), first.header("x-request-id")), (Some("session=1"), Some("7")));
    // What frames the message is the connection's to say.
    assert_eq!((first.header("content-length"), first.header("transfer-encoding")), (Some("4"), None));
    let replay = send(order(&server, "k")).await.unwrap();
    assert_eq!((replay.header("set-cookie"), replay.header("x-request-id")), (None, None));
    assert_eq!((replay.header("etag"), replay.header("content-type")), (Some("\"1\""), Some("text/plain")));
}

#[tokio::test]
async fn c42_a_handler_that_panics_has_done_nobody_knows_what_and_its_key_stays_locked() {
    let explode = |_| async { if TEAPOT.is_empty() { created("") } else { panic!("as the test wants it") } };
    let server = TestServer::builder().route(Method::POST, "/orders", explode).start().await.unwrap();
    send(order(&server, "k")).await.unwrap().assert_problem(500, "handler-panicked");
    send(order(&server, "k")).await.unwrap().assert_problem(409, "in-progress");
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c56_an_answer_too_large_to_keep_is_given_once_and_never_executed_again() {
    let server = TestServer::builder().max_replay_bytes(10).start().await.unwrap();
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
    send(order(&server, "k")).await.unwrap().assert_problem(409, "response-not-replayable");
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c64_a_full_ledger_refuses_new_keys_and_serves_those_it_has() {
    let server = TestServer::builder().max_keys(1).start().await.unwrap();
    send(order(&server, "old")).await.unwrap();
    send(order(&server, "new")).await.unwrap().assert_problem(503, "store-unavailable");
    assert!(send(order(&server, "old")).await.unwrap().is_replay());
    server.assert_never_executed("new");
}

#[tokio::test]
async fn c67_servers_share_nothing() {
    let (one, other) = (TestServer::start().await.unwrap(), TestServer::start().await.unwrap());
    send(order(&one, "k")).await.unwrap();
    assert_eq!(send(order(&other, "k")).await.unwrap().body, r#"{"id":"order-1","order":{"item":"teapot"}}"#);
    one.assert_executed_once("k");
    other.assert_executed_once("k");
}
