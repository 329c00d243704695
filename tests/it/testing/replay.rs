//! One execution for each key, and the same reply to every repeat of it.

use http::Method;
use reqwest_idempotency::Contract;
use reqwest_idempotency::testing::{ManualClock, TestServer};
use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn s08_c33_c34_a_repeat_gets_the_same_status_headers_and_bytes_and_says_so() {
    let server = TestServer::start().await.unwrap();
    let first = send(order(&server, "k")).await.unwrap();
    let second = send(order(&server, "k")).await.unwrap();

    assert_eq!(first.status, 201);
    assert_eq!(first.body, r#"{"id":"order-1","order":{"item":"teapot"}}"#);
    assert_eq!(first.header("location"), Some("/orders/order-1"));
    assert_eq!(first.header("idempotent-replayed"), None);

    assert_eq!(second.header("idempotent-replayed"), Some("true"));
    assert_eq!((second.status, &second.body), (first.status, &first.body));
    for name in ["location", "content-type", "content-length"] {
        assert_eq!(second.header(name), first.header(name));
    }
    server.assert_executed_once("k");
}

#[tokio::test]
async fn s01_c27_of_50_at_once_one_executes_and_49_are_told_to_wait() {
    let gate = Gate::new();
    let server = Arc::new(gate.guard(TestServer::builder()).start().await.unwrap());
    let client = client();
    let mut racers = JoinSet::new();
    for _ in 0..50 {
        racers.spawn(send(order_by(&client, &server, "k")));
    }
    gate.entered().await;
    for _ in 0..49 {
        let loser = tokio::select! {
            loser = racers.join_next() => loser.unwrap().unwrap().unwrap(),
            () = gate.entered() => panic!("a second one executes"),
        };
        loser.assert_problem(409, "in-progress");
        assert_eq!(loser.header("retry-after"), Some("1"));
    }
    gate.open();
    assert_eq!(racers.join_next().await.unwrap().unwrap().unwrap().status, 201);
    server.assert_executed_once("k");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn c27_on_several_threads_too_a_key_executes_once() {
    let server = Arc::new(TestServer::start().await.unwrap());
    let client = client();
    for round in 0..10 {
        let key = format!("key-{round}");
        let mut racers = JoinSet::new();
        for _ in 0..50 {
            racers.spawn(send(order_by(&client, &server, &key)));
        }
        let got: Vec<Got> = racers.join_all().await.into_iter().map(Result::unwrap).collect();
        let first = got.iter().filter(|got| got.status == 201 && !got.is_replay()).count();
        assert_eq!(first, 1);
        assert!(got.iter().all(|got| matches!(got.status, 201 | 409)));
        server.assert_executed_once(&key);
    }
}

#[tokio::test]
async fn c30_a_duplicate_while_the_first_runs_is_in_progress_and_changes_nothing() {
    let gate = Gate::new();
    let server = gate.guard(TestServer::builder()).start().await.unwrap();
    let first = tokio::spawn(send(order(&server, "k")));
    gate.entered().await;

    let second = send(order(&server, "k")).await.unwrap();
    second.assert_problem(409, "in-progress");
    assert_eq!(second.header("retry-after"), Some("1"));
    server.assert_executed_once("k");

    gate.open();
    assert_eq!(first.await.unwrap().unwrap().body, "made");
    let third = send(order(&server, "k")).await.unwrap();
    assert_eq!((third.status, third.is_replay(), &third.body[..]), (201, true, &b"made"[..]));
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c20_c19_another_payload_is_refused_while_the_first_runs_and_afterwards() {
    let gate = Gate::new();
    let server = gate.guard(TestServer::builder()).start().await.unwrap();
    let first = tokio::spawn(send(order(&server, "k")));
    gate.entered().await;
    send(order(&server, "k").body("{}")).await.unwrap().assert_problem(422, "idempotency-key-reuse");
    gate.open();
    first.await.unwrap().unwrap();
    send(order(&server, "k").body("{}")).await.unwrap().assert_problem(422, "idempotency-key-reuse");

    let replay = send(order(&server, "k")).await.unwrap();
    assert!(replay.is_replay());
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c18_c21_the_payload_is_the_query_in_any_order_and_the_bytes_of_the_body() {
    let server = TestServer::start().await.unwrap();
    let with = |query: &str, body: &'static str| {
        let request = client().post(server.url(&format!("/orders{query}"))).header("Idempotency-Key", "k");
        send(request.body(body))
    };
    assert_eq!(with("?a=1&b=2", TEAPOT).await.unwrap().status, 201);
    assert!(with("?b=2&a=1", TEAPOT).await.unwrap().is_replay());
    for (query, body) in [("?a=1&b=3", TEAPOT), ("", TEAPOT), ("?a=1&b=2", "{\"item\": \"teapot\"}"), ("?a=1&b=2", "")]
    {
        with(query, body).await.unwrap().assert_problem(422, "idempotency-key-reuse");
    }
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c24_an_empty_body_and_an_absent_one_are_the_same_payload() {
    let server = TestServer::start().await.unwrap();
    let empty = client().post(server.url("/orders")).header("Idempotency-Key", "k");
    assert_eq!(send(empty.body("")).await.unwrap().status, 201);
    let mut socket =
        raw(&server, "POST /orders HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: k\r\n\r\n").await;
    let (reply, _) = read_to_end(&mut socket).await;
    assert!(
        reply.starts_with("HTTP/1.1 201 Created\r\n") && reply.contains("idempotent-replayed: true\r\n"),
        "{reply}"
    );
}

#[tokio::test]
async fn c15_c16_a_key_belongs_to_its_caller_whatever_token_they_hold() {
    let name = |headers: &http::HeaderMap| {
        let token = headers.get("authorization")?.to_str().ok()?;
        token.strip_prefix("Bearer ")?.split('-').next().map(str::to_owned)
    };
    let server = TestServer::builder().principal(name).start().await.unwrap();
    let as_caller = |token: &str, body: &'static str| send(order(&server, "k").bearer_auth(token).body(body));

    assert_eq!(as_caller("ann-1", "1").await.unwrap().status, 201);
    assert!(as_caller("ann-2", "1").await.unwrap().is_replay());
    // Not even a mismatch tells one caller what another one did.
    let other = as_caller("bob-1", "2").await.unwrap();
    assert_eq!((other.status, other.is_replay()), (201, false));
    assert_eq!(server.executions_of("k"), 2);
}

#[tokio::test]
async fn c14_c66_without_a_caller_nothing_is_claimed_nor_replayed() {
    let name = |headers: &http::HeaderMap| headers.get("x-caller")?.to_str().ok().map(str::to_owned);
    let server = TestServer::builder().principal(name).start().await.unwrap();
    for _ in 0..2 {
        let refused = send(order(&server, "k")).await.unwrap();
        refused.assert_problem(401, "unauthenticated");
        server.assert_never_executed("k");
    }
    assert_eq!(send(order(&server, "k").header("x-caller", "ann")).await.unwrap().status, 201);
    send(order(&server, "k")).await.unwrap().assert_problem(401, "unauthenticated");
}

#[tokio::test]
async fn two_bearer_tokens_are_two_callers_and_none_is_a_third() {
    let server = TestServer::start().await.unwrap();
    for request in [order(&server, "k"), order(&server, "k").bearer_auth("a"), order(&server, "k").bearer_auth("b")] {
        assert!(!send(request).await.unwrap().is_replay());
    }
    assert_eq!(server.executions_of("k"), 3);
}

#[tokio::test]
async fn c17_the_same_key_at_another_endpoint_or_path_parameter_is_another_operation() {
    let server = TestServer::start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    for path in ["/orders/1", "/orders/2"] {
        let change = client().patch(server.url(path)).header("Idempotency-Key", "k").body("{}");
        let got = send(change).await.unwrap();
        assert_eq!((got.status, got.is_replay()), (200, false), "{path}");
    }
    assert_eq!(server.executions_of("k"), 3);
}

#[tokio::test]
async fn c17_another_method_at_the_same_path_is_another_operation() {
    let server = TestServer::builder()
        .route(Method::POST, "/orders", |_| async { created("made") })
        .route(Method::PATCH, "/orders", |_| async { created("changed") })
        .start()
        .await
        .unwrap();
    for (method, body) in [(Method::POST, "made"), (Method::PATCH, "changed")] {
        let request = client().request(method, server.url("/orders")).header("Idempotency-Key", "k");
        assert_eq!(send(request).await.unwrap().body, body);
    }
    assert_eq!(server.executions_of("k"), 2);
}

#[tokio::test]
async fn c57_the_window_ends_by_the_servers_clock_to_the_millisecond() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).window(HOUR).start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    clock.advance(HOUR - MILLISECOND);
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
    clock.advance(MILLISECOND);
    // S-07: and then it is a new request, for another payload, too.
    let again = send(order(&server, "k").body("{}")).await.unwrap();
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(server.executions_of("k"), 2);
}

#[tokio::test]
async fn c58_the_window_counts_from_the_completion_and_a_week_is_the_default() {
    let (clock, gate) = (ManualClock::new(), Gate::new());
    let server = gate.guard(TestServer::builder().clock(clock.clone())).start().await.unwrap();
    let first = tokio::spawn(send(order(&server, "k")));
    gate.entered().await;
    clock.advance(HOUR);
    gate.open();
    first.await.unwrap().unwrap();
    clock.advance(7 * 24 * HOUR - MILLISECOND);
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
}

#[tokio::test]
async fn the_contract_gives_header_window_and_methods() {
    let clock = ManualClock::new();
    let contract = Contract::named("acme").header("x-request-id").window(HOUR).methods([Method::PUT]);
    let server = TestServer::builder().contract(contract).clock(clock.clone()).start().await.unwrap();
    let put = || send(client().put(server.url("/orders/1")).header("X-Request-Id", "k").body("{}"));
    assert!(!put().await.unwrap().is_replay());
    assert!(put().await.unwrap().is_replay());
    clock.advance(HOUR);
    assert!(!put().await.unwrap().is_replay());
    assert_eq!(server.executions_of("k"), 2);
    // POST carries no key in this contract, so it is no operation.
    assert_eq!(send(client().post(server.url("/orders")).body("{}")).await.unwrap().status, 201);
    assert_eq!(server.executions(), 2);
}
