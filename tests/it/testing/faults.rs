//! Every fault, as it is on the wire, and what the ledger makes of it.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use reqwest_idempotency::testing::{At, Fault, ManualClock, TestServer};

use super::*;

#[tokio::test]
async fn a_status_is_answered_and_nothing_executed() {
    let faults = [
        Fault::status(503).retry_after("7"),
        Fault::status(500).header("X-Should-Retry", "false").body("text/html", "<p>sorry"),
        Fault::status(429).problem("too-many"),
        Fault::none(),
    ];
    let server = TestServer::builder().faults(faults).start().await.unwrap();
    let bare = send(order(&server, "k")).await.unwrap();
    assert_eq!((bare.status, bare.header("retry-after"), bare.header("content-type")), (503, Some("7"), None));
    assert_eq!(bare.body, "");
    let html = send(order(&server, "k")).await.unwrap();
    assert_eq!(
        (html.status, html.header("x-should-retry"), html.header("content-type")),
        (500, Some("false"), Some("text/html"))
    );
    assert_eq!(html.body, "<p>sorry");
    send(order(&server, "k")).await.unwrap().assert_problem(429, "too-many");
    server.assert_never_executed("k");

    let done = send(order(&server, "k")).await.unwrap();
    assert_eq!((done.status, done.is_replay()), (201, false));
    server.assert_executed_once("k");
    assert!(server.unused_faults().is_empty());
}

#[tokio::test]
async fn c41_a_failure_after_success_is_stored_as_the_success() {
    let server = TestServer::builder().faults([Fault::status(503).after_commit()]).start().await.unwrap();
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 503);
    server.assert_executed_once("k");
    let replay = send(order(&server, "k")).await.unwrap();
    assert_eq!((replay.status, replay.is_replay()), (201, true));
}

#[tokio::test]
async fn in_progress_is_answered_as_the_contract_has_it_and_the_ledger_knows_nothing_of_it() {
    let server = TestServer::builder().faults([Fault::in_progress("3")]).start().await.unwrap();
    let got = send(order(&server, "k")).await.unwrap();
    got.assert_problem(409, "in-progress");
    assert_eq!(got.header("retry-after"), Some("3"));
    let first = send(order(&server, "k").body("{}")).await.unwrap();
    assert_eq!((first.status, first.is_replay()), (201, false));
}

#[tokio::test]
async fn a_request_refused_before_the_claim_is_not_executed_and_gets_no_byte() {
    let server = TestServer::builder().faults([Fault::refused_before_claim()]).start().await.unwrap();
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    assert_eq!(read_to_end(&mut socket).await, (String::new(), Ok(())));
    server.assert_never_executed("k");
    assert!(!send(order(&server, "k")).await.unwrap().is_replay());
}

#[tokio::test]
async fn a_lost_reply_was_executed_and_its_repeat_is_replayed() {
    let server = TestServer::builder().faults([Fault::reply_lost()]).start().await.unwrap();
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    assert_eq!(read_to_end(&mut socket).await, (String::new(), Ok(())));
    server.assert_executed_once("k");
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
    server.assert_executed_once("k");
}

#[tokio::test]
async fn the_reply_to_a_repeat_can_be_lost_as_well() {
    let server = TestServer::builder().faults([Fault::none(), Fault::reply_lost()]).start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    assert!(send(order(&server, "k")).await.is_err());
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
    assert!(server.unused_faults().is_empty());
}

#[tokio::test]
async fn a_reset_is_seen_as_one_at_every_position() {
    for at in [At::BeforeClaim, At::AfterClaim, At::AfterEffect, At::AfterCommit, At::HeadBytes(0), At::HeadBytes(9)] {
        let server = TestServer::builder().faults([Fault::reset(at)]).start().await.unwrap();
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        let (_, end) = read_to_end(&mut socket).await;
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{at}");
        assert_eq!(server.fault_injected().await.fault, Fault::reset(at));
    }
}

#[tokio::test]
async fn the_execution_goes_on_when_the_connection_is_gone_after_the_claim() {
    for at in [At::AfterClaim, At::AfterEffect] {
        for fault in [Fault::close(at), Fault::reset(at), Fault::stall(at)] {
            let server = TestServer::builder().faults([fault.clone()]).start().await.unwrap();
            let lost = tokio::spawn(send(order(&server, "k")));
            assert_eq!(server.fault_injected().await.fault, fault);
            let replay = settled(&client(), &server, "k").await;
            assert!(replay.is_replay(), "{fault}");
            server.assert_executed_once("k");
            drop(server);
            assert!(lost.await.unwrap().is_err(), "{fault}");
        }
    }
}

#[tokio::test]
async fn t02_c55_a_cut_body_has_exactly_its_bytes_under_the_whole_content_length() {
    // The built-in answer to the teapot has 42 bytes.
    for (cut, expected) in
        [(0, ""), (1, "{"), (10, r#"{"id":"ord"#), (41, r#"{"id":"order-1","order":{"item":"teapot"}"#)]
    {
        let server = TestServer::builder().faults([Fault::reply_cut(cut)]).start().await.unwrap();
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        let (reply, end) = read_to_end(&mut socket).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 201 Created\r\n") && head.lines().any(|line| line == "content-length: 42"),
            "{head}"
        );
        assert_eq!((body, end), (expected, Ok(())));

        let replay = send(order(&server, "k")).await.unwrap();
        assert!(replay.is_replay());
        assert_eq!(replay.body, r#"{"id":"order-1","order":{"item":"teapot"}}"#);
        server.assert_executed_once("k");
    }
}

#[tokio::test]
async fn a_large_body_is_cut_to_the_byte() {
    let large = |_| async { http::Response::new(Bytes::from(vec![b'x'; 3_000_000])) };
    let builder = TestServer::builder().route(Method::POST, "/orders", large).faults([Fault::reply_cut(2_999_999)]);
    let server = builder.start().await.unwrap();
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    let (reply, end) = read_to_end(&mut socket).await;
    assert_eq!((reply.split_once("\r\n\r\n").unwrap().1.len(), end), (2_999_999, Ok(())));
}

#[tokio::test]
async fn a_cut_body_is_an_error_to_reqwest_and_not_a_short_reply() {
    let server = TestServer::builder().faults([Fault::reply_cut(10)]).start().await.unwrap();
    let response = order(&server, "k").send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert!(response.bytes().await.is_err());
}

#[tokio::test]
async fn a_cut_head_has_exactly_its_bytes() {
    for (bytes, expected) in [(0, ""), (1, "H"), (12, "HTTP/1.1 201")] {
        let server = TestServer::builder().faults([Fault::close(At::HeadBytes(bytes))]).start().await.unwrap();
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        assert_eq!(read_to_end(&mut socket).await, (expected.to_owned(), Ok(())));
        server.assert_executed_once("k");
    }
}

#[tokio::test]
async fn a_cut_behind_the_end_of_the_reply_strikes_nobody_not_even_the_next_reply() {
    for fault in [Fault::reply_cut(42), Fault::close(At::BodyBytes(1000)), Fault::close(At::HeadBytes(1000))] {
        let server = TestServer::builder().faults([fault.clone()]).start().await.unwrap();
        let client = client();
        for _ in 0..9 {
            assert_eq!(send(order_by(&client, &server, "k")).await.unwrap().status, 201);
        }
        assert_eq!(server.unused_faults(), [fault]);
    }
}

#[tokio::test]
async fn a_stall_before_the_claim_keeps_the_connection_open_and_executes_nothing() {
    let server = TestServer::builder().faults([Fault::stall_before_claim()]).start().await.unwrap();
    let stalled = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    let injected = server.fault_injected().await;
    assert_eq!((injected.key.as_deref(), injected.attempt), (Some("k"), 1));
    assert_eq!(injected.fault, Fault::stall_before_claim());
    assert_eq!(stalled.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.assert_never_executed("k");
    assert!(!send(order(&server, "k")).await.unwrap().is_replay());
}

#[tokio::test]
async fn a_stall_after_the_commit_keeps_the_connection_open_and_the_repeat_is_replayed() {
    let server = TestServer::builder().faults([Fault::stall_after_commit()]).start().await.unwrap();
    let stalled = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    server.fault_injected().await;
    server.assert_executed_once("k");
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
    assert_eq!(stalled.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_stall_within_the_reply_sends_what_comes_before_it_and_no_more() {
    for (at, bytes) in [(At::HeadBytes(12), 12), (At::BodyBytes(5), 0)] {
        let server = TestServer::builder().faults([Fault::stall(at)]).start().await.unwrap();
        let mut stalled = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        if bytes > 0 {
            assert_eq!(read_exactly(&mut stalled, bytes).await, "HTTP/1.1 201");
        } else {
            let mut read = String::new();
            while !read.ends_with("\r\n\r\n{\"id\"") {
                read += &read_exactly(&mut stalled, 1).await;
            }
        }
        assert_eq!(server.fault_injected().await.fault, Fault::stall(at));
        assert_eq!(stalled.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(send(order(&server, "k")).await.unwrap().is_replay());
    }
}

#[tokio::test]
async fn c43_an_owner_that_crashes_before_its_effect_leaves_the_key_locked() {
    let clock = ManualClock::new();
    let builder = TestServer::builder().clock(clock.clone()).window(HOUR).lease(Duration::from_secs(60));
    let server = builder.faults([Fault::crash_owner(At::AfterClaim)]).start().await.unwrap();
    assert!(send(order(&server, "k")).await.is_err());
    server.assert_never_executed("k");
    clock.advance(Duration::from_secs(60));
    send(order(&server, "k")).await.unwrap().assert_problem(409, "in-progress");
    clock.advance(HOUR);
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c44_a_takeover_after_a_crash_that_followed_the_effect_executes_twice_and_the_server_says_so() {
    let clock = ManualClock::new();
    let server = TestServer::builder()
        .clock(clock.clone())
        .lease(Duration::from_secs(60))
        .take_over_expired_leases()
        .faults([Fault::crash_owner(At::AfterEffect)])
        .start()
        .await
        .unwrap();
    assert!(send(order(&server, "k")).await.is_err());
    server.assert_executed_once("k");
    send(order(&server, "k")).await.unwrap().assert_problem(409, "in-progress");
    clock.advance(Duration::from_secs(60));
    let again = send(order(&server, "k")).await.unwrap();
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(server.executions_of("k"), 2);
}

#[tokio::test]
async fn faults_strike_requests_without_a_key_by_method_and_path() {
    let server = TestServer::builder().faults([Fault::status(503)]).start().await.unwrap();
    let get = || send(client().get(server.url("/orders")));
    assert_eq!(get().await.unwrap().status, 503);
    assert_eq!(get().await.unwrap().status, 200);
    assert_eq!(send(client().put(server.url("/orders/1"))).await.unwrap().status, 503);
}

#[tokio::test]
async fn a_key_can_have_faults_of_its_own() {
    let server = TestServer::start().await.unwrap();
    server.faults_for("k", [Fault::status(500), Fault::reply_lost()]);
    assert_eq!(send(order(&server, "other")).await.unwrap().status, 201);
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 500);
    assert_eq!(server.unused_faults(), [Fault::reply_lost()]);
    assert!(send(order(&server, "k")).await.is_err());
    assert!(server.unused_faults().is_empty());
}

#[tokio::test]
async fn faults_are_reported_in_order_once_and_to_one_who_asks_later() {
    let faults = [Fault::status(500), Fault::none(), Fault::status(502)];
    let server = TestServer::builder().faults(faults).start().await.unwrap();
    for _ in 0..3 {
        send(order(&server, "k")).await.unwrap();
    }
    let reported = [server.fault_injected().await, server.fault_injected().await];
    assert_eq!(
        reported.map(|injected| (injected.attempt, injected.fault)),
        [(1, Fault::status(500)), (3, Fault::status(502))]
    );
    // There is no third one, so that the call waits.
    tokio::select! {
        biased;
        injected = server.fault_injected() => panic!("reported twice: {injected:?}"),
        () = tokio::task::yield_now() => {}
    }
}
