//! Time and counts: Retry-After, deadlines, attempt limits, windows, budget. All of it on a clock that the test moves.

use std::time::Duration;

use reqwest_idempotency::retry::{Backoff, Jitter, RetryBudget, RetryPolicy};
use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use reqwest_idempotency::{Clock as _, Contract, Delivery, ErrorKind, FailureKind, Outcome, RetryAfterUnit};

use crate::support::{self, Pair};

const SECOND: Duration = Duration::from_secs(1);

/// How long the client waits after a 503 with this header; `None` if it does not wait.
async fn waits_for(retry_after: &str) -> Option<Duration> {
    let pair = Pair::with([Fault::status(503).retry_after(retry_after)]).await;
    let _ = pair.order().send().await;
    pair.clock.slept().first().copied()
}

#[tokio::test]
async fn a_retry_after_in_seconds_is_never_undercut() {
    assert!(waits_for("7").await.unwrap() >= 7 * SECOND);
    assert!(waits_for("60").await.is_none(), "a wait of 60 s leaves nothing of a deadline of 60 s");
}

#[tokio::test]
async fn a01_a16_a_date_is_waited_for_and_never_read_as_zero() {
    let in_thirty = {
        let clock = ManualClock::new();
        clock.now().wall.plus(30 * SECOND).to_string()
    };
    let pair = Pair::with([Fault::status(503)
        .retry_after(&in_thirty)
        .header("Date", &ManualClock::new().now().wall.to_string())])
    .await;
    assert_eq!(pair.order().send().await.unwrap().status(), 201);
    let waited = pair.clock.slept()[0];
    assert!(waited >= 29 * SECOND && waited <= 31 * SECOND, "{waited:?}");
}

#[tokio::test]
async fn a02_a11_a_longer_wait_than_the_limit_is_not_slept_but_recorded() {
    for asked in ["61", "3600", "86400"] {
        let pair = Pair::with([Fault::status(503).retry_after(asked)]).await;
        let error = pair.order().operation("order-42").send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RetryAfterTooLong, "{asked}");
        assert!(error.to_string().contains(asked), "{error}");
        assert!(pair.clock.slept().is_empty());
        let until = pair.clock.now().wall.plus(Duration::from_secs(asked.parse().unwrap()));
        assert_eq!(error.next_attempt_at(), Some(until));
        let record = pair.client.operation("order-42").await.unwrap().unwrap();
        assert_eq!(record.next_attempt_at, Some(until));
    }
}

#[tokio::test]
async fn a03_a06_a07_what_is_no_time_to_come_means_the_schedule() {
    for nonsense in ["soon", "-1", "1.5", "", "Wed, 01 Jan 2020 00:00:00 GMT"] {
        let policy = RetryPolicy::default().backoff(Backoff::default().base(3 * SECOND).jitter(Jitter::None));
        let pair = Pair::built([Fault::status(503).retry_after(nonsense)], |builder| builder.retry(policy)).await;
        assert_eq!(pair.order().send().await.unwrap().status(), 201);
        assert_eq!(pair.clock.slept(), [3 * SECOND], "{nonsense:?}");
    }
}

#[tokio::test]
async fn a10_a_header_of_the_contracts_own_is_read_in_its_own_unit() {
    let contract = Contract::default().retry_after_header("retry-after-ms", RetryAfterUnit::Milliseconds);
    let policy = RetryPolicy::default().backoff(Backoff::default().base(Duration::ZERO).jitter(Jitter::None));
    let pair = Pair::built([Fault::status(503).header("retry-after-ms", "250")], |builder| {
        builder.contract(contract).retry(policy)
    })
    .await;
    assert_eq!(pair.order().send().await.unwrap().status(), 201);
    assert_eq!(pair.clock.slept(), [Duration::from_millis(250)]);
}

#[tokio::test]
async fn a14_a_wait_beyond_the_deadline_is_not_begun() {
    let pair = Pair::with([Fault::status(503).retry_after("30")]).await;
    let error = pair.order().deadline(5 * SECOND).send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(pair.clock.slept().is_empty());
    assert!(error.next_attempt_at().is_some());
}

#[tokio::test]
async fn a17_at_once_on_every_409_is_not_a_tight_loop() {
    let pair = Pair::with(vec![Fault::in_progress("0"); 5]).await;
    pair.order().send().await.unwrap();
    let slept = pair.clock.slept();
    assert_eq!(slept.len(), 5);
    assert!(slept.iter().all(|wait| *wait >= Duration::from_millis(100)), "{slept:?}");
}

#[tokio::test]
async fn a18_the_longer_of_schedule_and_header_is_waited_for() {
    let policy = RetryPolicy::default().backoff(Backoff::default().base(5 * SECOND).jitter(Jitter::None));
    for (asked, waited) in [("2", 5), ("9", 9)] {
        let pair = Pair::built([Fault::status(503).retry_after(asked)], |builder| builder.retry(policy.clone())).await;
        pair.order().send().await.unwrap();
        assert_eq!(pair.clock.slept(), [waited * SECOND]);
    }
}

#[tokio::test]
async fn a20_retry_after_is_honoured_on_409_and_on_every_5xx() {
    for status in [409, 423, 500, 502, 503, 504] {
        let pair = Pair::with([Fault::status(status).retry_after("7")]).await;
        assert_eq!(pair.order().send().await.unwrap().status(), 201);
        assert!(pair.clock.slept()[0] >= 7 * SECOND, "{status}");
    }
}

#[tokio::test]
async fn t07_an_attempt_that_times_out_is_tried_again() {
    for fault in [
        Fault::stall_before_claim(),
        Fault::stall_after_commit(),
        Fault::stall(reqwest_idempotency::testing::At::BodyBytes(5)),
    ] {
        let pair = Pair::with([fault.clone()]).await;
        let request = tokio::spawn(pair.order().send());
        pair.server.fault_injected().await;
        let mut request = request;
        // The stalled attempt has begun its timer; nothing but its time limit can end it.
        pair.clock.advance(30 * SECOND);
        let response = (&mut request).await.unwrap().unwrap();
        assert_eq!(response.status(), 201, "{fault}");
        assert_eq!(response.attempts().len(), 2, "{fault}");
        assert_eq!(response.attempts()[0].delivery, Delivery::Unknown, "{fault}");
        assert_eq!(pair.server.executions(), 1, "{fault}");
    }
}

#[tokio::test]
async fn t08_the_last_attempt_gets_what_is_left_of_the_deadline() {
    let policy = RetryPolicy::default()
        .deadline(40 * SECOND)
        .backoff(Backoff::default().base(Duration::ZERO).jitter(Jitter::None));
    let pair = Pair::built(vec![Fault::stall_before_claim(); 5], |builder| builder.retry(policy)).await;
    let request = tokio::spawn(pair.order().send());
    pair.server.fault_injected().await;
    pair.clock.advance(30 * SECOND);
    pair.server.fault_injected().await;
    // Ten seconds are left, and no attempt gets more.
    pair.clock.advance(10 * SECOND);
    let error = request.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(pair.attempts_seen(), 2);
    assert_eq!(error.attempts()[1].took, 10 * SECOND);
}

#[tokio::test]
async fn t15_attempts_that_are_shorter_than_the_servers_work_still_end_in_one_execution() {
    let pair = Pair::with([Fault::stall_after_commit(), Fault::in_progress("1")]).await;
    let request = tokio::spawn(pair.order().send());
    pair.server.fault_injected().await;
    pair.clock.advance(30 * SECOND);
    assert!(request.await.unwrap().unwrap().replayed());
    assert_eq!(pair.server.executions(), 1);
}

#[tokio::test]
async fn a_shorter_timeout_of_the_callers_own_is_never_raised() {
    let server = TestServer::builder().faults([Fault::stall_before_claim()]).start().await.unwrap();
    // A real clock: reqwest's own timeout cannot be moved by hand.
    let client = reqwest_idempotency::IdempotentClient::builder()
        .in_memory()
        .http(reqwest::Client::builder().no_proxy())
        .retry(RetryPolicy::default().max_attempts(1))
        .build()
        .unwrap();
    let error =
        client.post(server.url("/orders")).body("{}").timeout(Duration::from_millis(50)).send().await.unwrap_err();
    assert_eq!(error.attempts()[0].outcome, Outcome::Failure(FailureKind::Timeout));
    assert_eq!(error.delivery(), Delivery::Unknown);
}

#[tokio::test]
async fn no_attempt_is_made_that_the_window_no_longer_protects() {
    let contract = Contract::default().window(100 * SECOND);
    let policy = RetryPolicy::default().deadline(1000 * SECOND).retry_after_cap(500 * SECOND);
    let pair = Pair::built([Fault::reply_lost(), Fault::status(503).retry_after("95")], |builder| {
        builder.contract(contract).retry(policy)
    })
    .await;
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WindowExpired);
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert!(!error.is_pending());
    assert_eq!(pair.attempts_seen(), 2);
    // It is closed for a person: asked again, nothing is sent.
    let contract = Contract::default().window(100 * SECOND);
    let error = pair.order().contract(contract).operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(pair.attempts_seen(), 2);
}

#[tokio::test]
async fn t13_a_wall_clock_that_jumps_back_changes_no_wait_and_no_deadline() {
    let pair = Pair::with([Fault::stall_before_claim(), Fault::status(503).retry_after("5")]).await;
    let request = tokio::spawn(pair.order().send());
    pair.server.fault_injected().await;
    pair.clock.step_wall(-3_600_000);
    pair.clock.advance(30 * SECOND);
    let response = request.await.unwrap().unwrap();
    assert_eq!(response.attempts().len(), 3);
    assert!(pair.clock.slept()[1] >= 5 * SECOND);
}

#[tokio::test]
async fn the_retry_budget_is_shared_by_all_operations_of_a_client() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).faults(vec![Fault::status(503); 9]).start().await.unwrap();
    // 0 % of the traffic, one retry a second over two seconds: two retries in all.
    let budget = RetryBudget::new(0, 1, 2 * SECOND);
    let policy = RetryPolicy::default().backoff(Backoff::default().base(Duration::ZERO).jitter(Jitter::None));
    let client = support::client(&clock, |builder| builder.budget(budget).retry(policy));
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(client.clone().post(server.url("/orders")).body("{}").send().await.unwrap_err().kind());
    }
    assert_eq!(kinds, [ErrorKind::BudgetExhausted; 3]);
    assert_eq!(server.requests().len(), 3 + 2);
}

#[tokio::test]
async fn waiting_for_one_in_progress_costs_no_budget() {
    let pair =
        Pair::built(vec![Fault::in_progress("1"); 20], |builder| builder.budget(RetryBudget::new(0, 1, SECOND))).await;
    assert_eq!(pair.order().send().await.unwrap().status(), 201);
}
