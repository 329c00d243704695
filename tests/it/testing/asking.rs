//! What a test can ask of the server.

use std::panic::AssertUnwindSafe;

use http::{Method, Version};
use reqwest_idempotency::Clock as _;
use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use tokio::net::TcpStream;

use super::*;

#[tokio::test]
async fn a_request_is_seen_as_it_was_sent_before_any_fault() {
    let server = TestServer::builder().faults([Fault::refused_before_claim()]).start().await.unwrap();
    let request = || send(order(&server, r#""k""#).query(&[("a", "1")]).header("x-mine", "yes"));
    assert!(request().await.is_err());
    assert_eq!(request().await.unwrap().status, 201);
    let seen = server.requests_of("k");
    assert_eq!(seen.len(), 2);
    for (number, request) in (1..).zip(&seen) {
        assert_eq!((request.method(), request.path_and_query()), (&Method::POST, "/orders?a=1"));
        assert_eq!((request.path(), request.query()), ("/orders", Some("a=1")));
        assert_eq!((request.key(), request.attempt()), (Some("k"), number));
        assert_eq!(request.headers()["x-mine"], "yes");
        assert_eq!(request.body(), TEAPOT);
        assert_eq!(request.version(), Version::HTTP_11);
    }
    assert!(!format!("{seen:?}").contains("teapot"));
}

#[tokio::test]
async fn an_assertion_that_fails_prints_the_history() {
    let server = TestServer::builder().faults([Fault::status(503)]).start().await.unwrap();
    for _ in 0..3 {
        send(order(&server, "order-42")).await.unwrap();
    }
    server.assert_executed_once("order-42");
    let failed = std::panic::catch_unwind(AssertUnwindSafe(|| server.assert_never_executed("order-42")));
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(
        message,
        "key \"order-42\" was executed 1 times and should have been 0 times; requests were:\n  \
         1. POST /orders (HTTP/1.1), key order-42, attempt 1: fault: answered 503 before the claim\n  \
         2. POST /orders (HTTP/1.1), key order-42, attempt 2: executed, 201\n  \
         3. POST /orders (HTTP/1.1), key order-42, attempt 3: replayed 201\n"
    );
}

#[tokio::test]
async fn the_date_is_that_of_the_servers_clock() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).start().await.unwrap();
    let first = send(order(&server, "k")).await.unwrap();
    clock.advance(HOUR);
    let replay = send(order(&server, "k")).await.unwrap();
    // C-33: a replay has a date of its own.
    assert_eq!(first.header("date"), Some("Thu, 01 Jan 2026 00:00:00 GMT"));
    assert_eq!(replay.header("date"), Some("Thu, 01 Jan 2026 01:00:00 GMT"));
    assert_eq!(clock.now().monotonic, HOUR);
}

#[tokio::test]
async fn a_server_that_is_dropped_takes_its_connections_and_executions_along() {
    let gate = Gate::new();
    let server = gate.guard(TestServer::builder()).start().await.unwrap();
    let addr = server.addr();
    let mut running = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    let mut idle = TcpStream::connect(addr).await.unwrap();
    gate.entered().await;
    drop(server);
    assert_eq!(read_to_end(&mut running).await.0, "");
    assert_eq!(read_to_end(&mut idle).await.0, "");
    assert!(TcpStream::connect(addr).await.is_err());
    // The handler's future is gone, and with it its hold on the gate.
    assert_eq!(Arc::strong_count(&gate.open), 1);
}
