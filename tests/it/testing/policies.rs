//! Where servers differ: every setting, driven over the wire.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderName, Method};
use reqwest_idempotency::testing::{
    At, BodyForm, EntryState, Fault, KeyScope, ManualClock, Payload, SeenRequest, ServerErrors, TestServer,
    TestServerBuilder, WhileRunning,
};
use reqwest_idempotency::{ErrorKind, IdempotentClient};
use tokio::task::JoinSet;

use super::*;

/// POST /orders fails so many times and then makes the order.
fn failing(builder: TestServerBuilder, times: usize) -> TestServerBuilder {
    let calls = Arc::new(AtomicUsize::new(0));
    builder.route(Method::POST, "/orders", move |_| {
        let fails = calls.fetch_add(1, Ordering::Relaxed) < times;
        async move { if fails { status(500) } else { created("made") } }
    })
}

fn our_client(clock: &ManualClock) -> IdempotentClient {
    let http = client_builder();
    IdempotentClient::builder().in_memory().http(http).clock(clock.clone()).build().unwrap()
}

#[tokio::test]
async fn s02_a_failure_is_released_by_default_and_the_client_gets_the_order_it_made_then() {
    let clock = ManualClock::new();
    let server = failing(TestServer::builder().clock(clock.clone()), 1).start().await.unwrap();
    let response = our_client(&clock).post(server.url("/orders")).body(TEAPOT).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.replayed(), response.attempts().len()), (201, false, 2));
    // What failed declared that nothing had happened.
    assert_eq!(server.executions(), 1);
}

#[tokio::test]
async fn s02_r08_a_stored_failure_is_replayed_and_the_client_stops() {
    let clock = ManualClock::new();
    let builder = TestServer::builder().clock(clock.clone()).server_errors(ServerErrors::Store);
    let server = failing(builder, 1).start().await.unwrap();
    let error = our_client(&clock).post(server.url("/orders")).body(TEAPOT).send().await.unwrap_err();
    assert_eq!((error.kind(), error.attempts().len()), (ErrorKind::StoredFailure, 2));
    assert_eq!(server.executions(), 1);
    assert_eq!(server.ledger()[0].state, EntryState::Stored(http::StatusCode::INTERNAL_SERVER_ERROR));
}

#[tokio::test]
async fn s02_a_failure_that_is_executed_again_counts_and_keeps_its_payload() {
    let clock = ManualClock::new();
    let builder = TestServer::builder().clock(clock.clone()).server_errors(ServerErrors::ReExecute);
    let server = failing(builder, 1).start().await.unwrap();
    assert_eq!(send(order(&server, "by-hand")).await.unwrap().status, 500);
    assert_eq!(server.ledger()[0].state, EntryState::Failed);
    send(order(&server, "by-hand").body("{}")).await.unwrap().assert_problem(422, "idempotency-key-reuse");
    assert_eq!(send(order(&server, "by-hand")).await.unwrap().status, 201);
    server.assert_executed("by-hand", 2);

    let server = failing(TestServer::builder().clock(clock.clone()).server_errors(ServerErrors::ReExecute), 1);
    let server = server.start().await.unwrap();
    let response = our_client(&clock).post(server.url("/orders")).body(TEAPOT).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.replayed()), (201, false));
    assert_eq!(server.executions(), 2);
}

#[tokio::test]
async fn s03_what_is_refused_before_the_handler_is_not_stored_and_the_key_executes_later() {
    let name = |headers: &http::HeaderMap| headers.get("x-caller")?.to_str().ok().map(str::to_owned);
    let server = TestServer::builder().principal(name).start().await.unwrap();
    let at = |key: &str| order(&server, key).header("x-caller", "ann");
    server.faults_for("k", [Fault::status(429), Fault::status(400)]);
    send(order(&server, "k")).await.unwrap().assert_problem(401, "unauthenticated");
    assert_eq!(send(at("k")).await.unwrap().status, 400);
    send(at("k, l")).await.unwrap().assert_problem(400, "idempotency-key-malformed");
    server.assert_never_executed("k");
    let done = send(at("k")).await.unwrap();
    assert_eq!((done.status, done.is_replay()), (201, false));
    server.assert_executed_once("k");
}

/// The same key at another path, with another method, query and body, each against a first POST to /orders?a=1.
async fn elsewhere(builder: TestServerBuilder) -> Vec<u16> {
    let made = |_: SeenRequest| async { created("made") };
    let builder = builder.route(Method::POST, "/orders", made).route(Method::PATCH, "/orders", made);
    let server = builder.route(Method::POST, "/notes", made).start().await.unwrap();
    let mut statuses = Vec::new();
    for (method, target, body) in [
        (Method::POST, "/orders?a=1", TEAPOT),
        (Method::POST, "/notes?a=1", TEAPOT),
        (Method::PATCH, "/orders?a=1", TEAPOT),
        (Method::POST, "/orders?a=2", TEAPOT),
        (Method::POST, "/orders?a=1", "{}"),
    ] {
        let request = client().request(method, server.url(target)).header("Idempotency-Key", "k").body(body);
        let got = send(request).await.unwrap();
        statuses.push(if got.is_replay() { 0 } else { got.status });
    }
    statuses
}

#[tokio::test]
async fn s04_what_a_key_belongs_to_and_what_its_payload_is_can_be_set() {
    const REPLAY: u16 = 0;
    // By default an endpoint is part of what a key belongs to.
    assert_eq!(elsewhere(TestServer::builder()).await, [201, 201, 201, 422, 422]);
    let by_caller = || TestServer::builder().key_scope(KeyScope::Caller);
    assert_eq!(elsewhere(by_caller()).await, [201, 422, 422, 422, 422]);
    // Body-only.
    assert_eq!(elsewhere(by_caller().payload(Payload::Body)).await, [201, REPLAY, REPLAY, REPLAY, 422]);
    // Route-independent, and reuse is never detected.
    assert_eq!(elsewhere(by_caller().payload(Payload::Nothing)).await, [201, REPLAY, REPLAY, REPLAY, REPLAY]);
}

#[tokio::test]
async fn s05_two_tenants_share_a_key_and_nothing_else_even_where_it_belongs_to_its_caller_alone() {
    let server = TestServer::builder().key_scope(KeyScope::Caller).start().await.unwrap();
    for (tenant, body) in [("ann", TEAPOT), ("bob", "{}")] {
        let got = send(order(&server, "k").bearer_auth(tenant).body(body)).await.unwrap();
        assert_eq!((got.status, got.is_replay()), (201, false), "{tenant}");
    }
    let entries = server.ledger();
    let seen: Vec<_> = entries.iter().map(|entry| (entry.principal.as_str(), entry.executions)).collect();
    assert_eq!(seen, [("ann", 1), ("bob", 1)]);
}

#[tokio::test]
async fn c21_json_that_is_written_otherwise_is_the_same_payload_where_that_is_set() {
    let server = TestServer::builder().body_form(BodyForm::Json).start().await.unwrap();
    let with = |body: &'static str| send(order(&server, "k").body(body));
    assert_eq!(with(r#"{"item":"teapot","total":99.95}"#).await.unwrap().status, 201);
    assert!(with("{ \"total\" : 99.95,\n\"item\" : \"te\\u0061pot\" }").await.unwrap().is_replay());
    with(r#"{"item":"teapot","total":99.950}"#).await.unwrap().assert_problem(422, "idempotency-key-reuse");
    // What is no JSON is compared by its bytes.
    with("item=teapot").await.unwrap().assert_problem(422, "idempotency-key-reuse");
}

#[tokio::test]
async fn c25_a_multipart_form_with_another_boundary_is_another_payload() {
    let server = TestServer::start().await.unwrap();
    let form = || reqwest::multipart::Form::new().text("item", "teapot");
    let (one, other) = (form(), form());
    assert_ne!(one.boundary(), other.boundary());
    let post = || client().post(server.url("/orders")).header("Idempotency-Key", "k");
    assert_eq!(send(post().multipart(one)).await.unwrap().status, 201);
    send(post().multipart(other)).await.unwrap().assert_problem(422, "idempotency-key-reuse");
}

#[tokio::test]
async fn a_key_can_be_required_or_optional_for_each_endpoint() {
    let made = |_: SeenRequest| async { created("made") };
    let server = TestServer::builder()
        .optional_key()
        .required_key_at(Method::POST, "/orders")
        .optional_key_at(Method::POST, "/orders/{id}/notes")
        .route(Method::POST, "/orders", made)
        .route(Method::PATCH, "/orders", made)
        .route(Method::POST, "/orders/{id}/notes", made)
        .start()
        .await
        .unwrap();
    let without = |method, path: &str| send(client().request(method, server.url(path)));
    without(Method::POST, "/orders").await.unwrap().assert_problem(422, "idempotency-key-missing");
    assert_eq!(without(Method::PATCH, "/orders").await.unwrap().status, 201);
    assert_eq!(without(Method::POST, "/orders/7/notes").await.unwrap().status, 201);
}

#[tokio::test]
async fn the_headers_that_a_replay_keeps_can_be_named() {
    let answer = |_| async {
        let response = http::Response::builder().header("x-ledger", "7").header("etag", "\"1\"");
        response.body(Bytes::from_static(b"made")).unwrap()
    };
    let builder = TestServer::builder().replay_headers([HeaderName::from_static("x-ledger")]);
    let server = builder.route(Method::POST, "/orders", answer).start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    let replay = send(order(&server, "k")).await.unwrap();
    assert_eq!((replay.header("x-ledger"), replay.header("etag")), (Some("7"), None));
}

#[tokio::test]
async fn an_attempt_that_waits_gets_the_outcome_of_the_running_one() {
    let server = TestServer::builder().while_running(WhileRunning::Wait).start().await.unwrap();
    let server = Arc::new(server);
    let hold = server.hold(At::AfterEffect);
    let mut attempts = JoinSet::new();
    attempts.spawn(send(order(&server, "k")));
    hold.reached().await;
    for _ in 0..5 {
        attempts.spawn(send(order(&server, "k")));
    }
    while server.attempts_of("k") < 6 {
        tokio::task::yield_now().await;
    }
    assert!(attempts.try_join_next().is_none());
    hold.open();
    let got: Vec<Got> = attempts.join_all().await.into_iter().map(Result::unwrap).collect();
    assert!(got.iter().all(|got| got.status == 201));
    assert_eq!(got.iter().filter(|got| got.is_replay()).count(), 5);
    server.assert_replayed("k");
}

#[tokio::test]
async fn an_attempt_does_not_wait_past_the_lease_of_an_owner_that_is_gone() {
    let clock = ManualClock::new();
    let builder = TestServer::builder().clock(clock.clone()).while_running(WhileRunning::Wait);
    let server = builder.lease(60 * 1000 * MILLISECOND).faults([Fault::crash_owner(At::AfterClaim)]);
    let server = Arc::new(server.start().await.unwrap());
    assert!(send(order(&server, "k")).await.is_err());
    let waiting = tokio::spawn(send(order(&server, "k")));
    while server.attempts_of("k") < 2 {
        tokio::task::yield_now().await;
    }
    clock.advance(60 * 1000 * MILLISECOND);
    waiting.await.unwrap().unwrap().assert_problem(409, "in-progress");
    server.assert_never_executed("k");
}

#[tokio::test]
async fn s11_a_server_that_ignores_the_key_executes_every_attempt_and_its_ledger_says_so() {
    let clock = ManualClock::new();
    let contract = reqwest_idempotency::Contract::named("ignores").methods([]);
    let builder = TestServer::builder().contract(contract).clock(clock.clone());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let server = builder
        .route(Method::POST, "/orders", move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { created("made") }
        })
        .fault_by(|request| if request.attempt() == 1 { Fault::reply_lost() } else { Fault::none() })
        .start()
        .await
        .unwrap();
    let response = our_client(&clock).post(server.url("/orders")).body(TEAPOT).send().await.unwrap();
    // Nothing in the answer tells: the promise needs a server that honours the contract.
    assert_eq!((response.status().as_u16(), response.replayed()), (201, false));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert!(server.ledger().is_empty());
}

#[tokio::test]
async fn s12_problems_that_are_told_by_a_code_are_read_as_what_they_say() {
    let json = |status, code: &str| Fault::status(status).body("application/json", format!(r#"{{"code":"{code}"}}"#));
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).start().await.unwrap();
    server.faults_for("waits", [json(409, "idempotency_in_flight").retry_after("2")]);
    server.faults_for("reused", [json(422, "idempotency_conflict")]);
    server.faults_for("missing", [json(400, "idempotency_key_required")]);
    let client = our_client(&clock);
    let post = |key: &str| client.post(server.url("/orders")).header("Idempotency-Key", key).body(TEAPOT).send();
    assert_eq!(post("waits").await.unwrap().status(), 201);
    assert_eq!(clock.slept(), [2000 * MILLISECOND]);
    assert_eq!(post("reused").await.unwrap_err().kind(), ErrorKind::KeyReused);
    assert_eq!(post("missing").await.unwrap_err().kind(), ErrorKind::KeyRefused);
    server.assert_no_unused_faults();
}

#[tokio::test]
async fn s14_a_replay_may_tell_the_state_of_now_and_the_client_takes_it() {
    let clock = ManualClock::new();
    let now = Fault::status(200).header("idempotent-replayed", "true").body("application/json", r#"{"state":"paid"}"#);
    let server = TestServer::builder().clock(clock.clone()).faults([Fault::reply_lost(), now]).start().await.unwrap();
    let response = our_client(&clock).post(server.url("/orders")).body(TEAPOT).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.replayed()), (200, true));
    assert_eq!(response.text().await.unwrap(), r#"{"state":"paid"}"#);
    assert_eq!(server.executions(), 1);
}
