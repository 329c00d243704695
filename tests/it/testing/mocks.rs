//! The contract in wiremock.

use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest_idempotency::testing::ManualClock;
use reqwest_idempotency::testing::wiremock::ContractResponder;
use reqwest_idempotency::{Contract, IdempotentClient};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;

async fn serve(responder: &ContractResponder) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(responder.clone()).mount(&server).await;
    server
}

fn orders() -> ContractResponder {
    ContractResponder::new(|_| {
        let response = http::Response::builder().status(201).header("content-type", "application/json");
        response.header("set-cookie", "session=1").body(Bytes::from_static(b"{\"id\":1}")).unwrap()
    })
}

fn post(server: &MockServer, key: &str, body: &'static str) -> reqwest::RequestBuilder {
    client().post(format!("{}/orders", server.uri())).header("Idempotency-Key", key).body(body)
}

#[tokio::test]
async fn the_contract_holds_for_requests_that_come_one_after_the_other() {
    let responder = orders();
    let server = serve(&responder).await;
    let first = send(post(&server, "k", TEAPOT)).await.unwrap();
    assert_eq!((first.status, first.header("set-cookie"), first.is_replay()), (201, Some("session=1"), false));
    let replay = send(post(&server, "k", TEAPOT)).await.unwrap();
    assert_eq!((replay.status, &replay.body, replay.header("set-cookie")), (201, &first.body, None));
    assert_eq!(replay.header("content-type"), Some("application/json"));
    assert!(replay.is_replay());
    send(post(&server, "k", "{}")).await.unwrap().assert_problem(422, "idempotency-key-reuse");
    send(post(&server, "", TEAPOT)).await.unwrap().assert_problem(400, "idempotency-key-malformed");
    let without = client().post(format!("{}/orders", server.uri()));
    send(without).await.unwrap().assert_problem(422, "idempotency-key-missing");
    let other = send(post(&server, "k", "{}").bearer_auth("bob")).await.unwrap();
    assert_eq!((other.status, other.is_replay()), (201, false));
    assert_eq!(responder.executions_of("k"), 2);
    let get = send(client().get(server.uri()).header("Idempotency-Key", "k")).await.unwrap();
    assert_eq!((get.status, get.is_replay()), (201, false));
}

#[tokio::test]
async fn what_did_not_happen_executes_again_and_the_window_ends() {
    let (clock, calls) = (ManualClock::new(), AtomicUsize::new(0));
    let responder =
        ContractResponder::new(move |_| status(if calls.fetch_add(1, Ordering::Relaxed) == 0 { 503 } else { 201 }))
            .clock(clock.clone())
            .contract(Contract::default().window(HOUR));
    let server = serve(&responder).await;
    for (expected, is_replay) in [(503, false), (201, false), (201, true)] {
        let got = send(post(&server, "k", TEAPOT)).await.unwrap();
        assert_eq!((got.status, got.is_replay()), (expected, is_replay));
    }
    clock.advance(HOUR);
    assert!(!send(post(&server, "k", TEAPOT)).await.unwrap().is_replay());
    assert_eq!(responder.executions_of("k"), 2);
}

#[tokio::test]
async fn our_client_gets_the_replay_of_a_lost_reply_and_waits_for_a_canned_409() {
    let (clock, responder) = (ManualClock::new(), orders());
    let server = MockServer::start().await;
    Mock::given(any()).respond_with_err(responder.reply_lost()).up_to_n_times(1).mount(&server).await;
    let running = ResponseTemplate::new(409).insert_header("retry-after", "2");
    Mock::given(any()).respond_with(running).up_to_n_times(1).mount(&server).await;
    Mock::given(any()).respond_with(responder.clone()).mount(&server).await;
    let client = IdempotentClient::builder().in_memory().http(client_builder()).clock(clock.clone()).build().unwrap();
    let request = client.post(format!("{}/orders", server.uri())).header("Idempotency-Key", "k").body(TEAPOT);
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.replayed(), response.attempts().len()), (201, true, 3));
    assert_eq!(responder.executions_of("k"), 1);
    assert!(clock.slept().contains(&(2000 * MILLISECOND)));
}
