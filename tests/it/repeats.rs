//! The same operation, asked for again: one flight, one key, one effect.

use std::sync::Arc;
use std::time::Duration;

use reqwest_idempotency::journal::JournalError;
use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use reqwest_idempotency::{Contract, Delivery, ErrorKind, IdempotentClient, Keep, MemoryJournal, Phase, Resolution};

use crate::support::{self, Pair};

#[tokio::test]
async fn k05_k08_k15_another_payload_under_the_same_id_is_refused_and_nothing_is_sent() {
    let pair = Pair::with([Fault::status(429)]).await;
    let url = pair.server.url("/orders");
    let send = |body: &'static str| pair.client.post(&url).body(body).operation("order-42").send();
    assert_eq!(send(r#"{"createdAt":1}"#).await.unwrap().status(), 429);
    let error = send(r#"{"createdAt":2}"#).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadMismatch);
    assert!(error.to_string().contains("order-42") && error.to_string().contains("new id"), "{error}");
    assert_eq!(pair.attempts_seen(), 1);
    // The operation itself is as it was.
    assert_eq!(send(r#"{"createdAt":1}"#).await.unwrap().status(), 201);
    let keys = pair.keys_seen();
    assert_eq!(keys[0], keys[1]);
    // Method, query and origin belong to the payload, too.
    let other_query = pair.client.post(format!("{url}?x=1")).body(r#"{"createdAt":1}"#).operation("order-42");
    assert_eq!(other_query.send().await.unwrap_err().kind(), ErrorKind::PayloadMismatch);
    let other_method = pair.client.patch(&url).body(r#"{"createdAt":1}"#).operation("order-42");
    assert_eq!(other_method.send().await.unwrap_err().kind(), ErrorKind::PayloadMismatch);
}

#[tokio::test]
async fn k07_three_calls_for_one_operation_have_one_effect_and_one_key() {
    let pair = Pair::with([]).await;
    for call in 0..3 {
        let response = pair.order().operation("order-42").send().await.unwrap();
        assert_eq!(response.replayed(), call > 0);
    }
    let keys = pair.keys_seen();
    assert!(keys.iter().all(|key| *key == keys[0]));
    pair.server.assert_executed_once(&keys[0]);
}

#[tokio::test]
async fn a_kept_exchange_is_answered_without_the_network() {
    let pair = Pair::built([], |builder| builder.keep(Keep::Exchange)).await;
    let first = pair.order().operation("order-42").send().await.unwrap().text().await.unwrap();
    let again = pair.order().operation("order-42").send().await.unwrap();
    assert!(again.replayed());
    assert_eq!(again.text().await.unwrap(), first);
    assert_eq!(pair.attempts_seen(), 1);
}

#[tokio::test]
async fn past_the_window_a_completed_operation_is_not_sent_again() {
    let contract = Contract::default().window(Duration::from_secs(100));
    let pair = Pair::built([], |builder| builder.contract(contract)).await;
    pair.order().operation("order-42").send().await.unwrap();
    pair.clock.advance(Duration::from_secs(91));
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Closed, Delivery::Answered));
    assert_eq!(pair.attempts_seen(), 1);
}

#[tokio::test]
async fn two_tasks_with_one_operation_share_one_flight() {
    let pair = Pair::with([Fault::stall_before_claim()]).await;
    let leader = tokio::spawn(pair.order().operation("order-42").send());
    pair.server.fault_injected().await;
    let followers: Vec<_> = (0..10).map(|_| tokio::spawn(pair.order().operation("order-42").send())).collect();
    tokio::task::yield_now().await;
    pair.clock.advance(Duration::from_secs(30));
    let led = leader.await.unwrap().unwrap();
    for follower in followers {
        let shared = follower.await.unwrap().unwrap();
        assert_eq!(shared.key(), led.key());
        assert_eq!(shared.body(), led.body());
    }
    assert_eq!(pair.server.executions(), 1);
    assert_eq!(pair.attempts_seen(), 2);
}

#[tokio::test]
async fn a_follower_with_another_payload_is_refused_at_once() {
    let pair = Pair::with([Fault::stall_before_claim()]).await;
    let _leader = tokio::spawn(pair.order().operation("order-42").send());
    pair.server.fault_injected().await;
    let error =
        pair.client.post(pair.server.url("/orders")).body("other").operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadMismatch);
    assert_eq!(error.delivery(), Delivery::Unknown);
}

#[tokio::test]
async fn a_dropped_leader_strands_nobody_and_the_key_stays_the_same() {
    let pair = Pair::with([Fault::stall_after_commit()]).await;
    let leader = tokio::spawn(pair.order().operation("order-42").send());
    pair.server.fault_injected().await;
    let follower = tokio::spawn(pair.order().operation("order-42").send());
    tokio::task::yield_now().await;
    leader.abort();
    assert!(leader.await.unwrap_err().is_cancelled());
    let response = follower.await.unwrap().unwrap();
    assert!(response.replayed());
    let keys = pair.keys_seen();
    assert_eq!(keys[0], keys[1]);
    assert_eq!(pair.server.executions(), 1);
}

#[tokio::test]
async fn a_dropped_call_leaves_the_operation_pending_and_the_next_one_takes_it_up_at_once() {
    let pair = Pair::with([Fault::stall_after_commit()]).await;
    let call = tokio::spawn(pair.order().operation("order-42").send());
    pair.server.fault_injected().await;
    call.abort();
    let _ = call.await;
    let record = pair.client.operation("order-42").await.unwrap().unwrap();
    assert_eq!(record.phase, Phase::Sending);
    let response = pair.order().operation("order-42").send().await.unwrap();
    assert!(response.replayed() && response.after_unknown());
    assert_eq!(response.key(), Some(&record.key));
}

#[tokio::test]
async fn two_clients_on_one_journal_keep_out_of_each_others_way() {
    let clock = ManualClock::new();
    let server =
        TestServer::builder().clock(clock.clone()).faults([Fault::stall_before_claim()]).start().await.unwrap();
    let journal = Arc::new(MemoryJournal::with(Arc::new(clock.clone()), 10));
    let make = || support::client(&clock, |builder| builder.shared_journal(journal.clone()));
    let (one, two) = (make(), make());
    let send = |client: &IdempotentClient| client.post(server.url("/orders")).body("{}").operation("order-42").send();
    let first = tokio::spawn(send(&one));
    server.fault_injected().await;
    let error = send(&two).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Locked, Delivery::Unknown));
    assert!(error.is_pending());
    clock.advance(Duration::from_secs(30));
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    assert!(send(&two).await.unwrap().replayed());
    assert_eq!(server.executions(), 1);
}

#[tokio::test]
async fn a_full_journal_refuses_to_begin_and_nothing_is_sent() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).faults(vec![Fault::status(503); 9]).start().await.unwrap();
    let journal = MemoryJournal::with(Arc::new(clock.clone()), 2);
    let client = support::client(&clock, |builder| builder.journal(journal));
    for id in ["a", "b"] {
        assert!(client.post(server.url("/orders")).body("{}").operation(id).send().await.unwrap_err().is_pending());
    }
    let before = server.requests().len();
    let error = client.post(server.url("/orders")).body("{}").operation("c").send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, Delivery::NotSent));
    let source = std::error::Error::source(&error).unwrap().downcast_ref::<JournalError>().unwrap();
    assert!(source.to_string().contains('2'), "the limit is named: {source}");
    assert_eq!(server.requests().len(), before);
}

#[tokio::test]
async fn a_person_closes_what_no_answer_settled() {
    let pair = Pair::with(vec![Fault::status(500).header("Idempotent-Replayed", "true"); 9]).await;
    for id in ["a", "b", "c"] {
        assert_eq!(pair.order().operation(id).send().await.unwrap_err().kind(), ErrorKind::StoredFailure);
    }
    pair.client.resolve("a", Resolution::Executed).await.unwrap();
    pair.client.resolve("b", Resolution::NotExecuted).await.unwrap();
    pair.client.abandon("c").await.unwrap();
    let sent = pair.attempts_seen();
    let phase = |record: Option<reqwest_idempotency::Record>| record.unwrap().phase;
    for (id, closed) in [("a", Phase::Completed), ("b", Phase::Rejected), ("c", Phase::Abandoned)] {
        assert_eq!(phase(pair.client.operation(id).await.unwrap()), closed);
        assert_eq!(pair.order().operation(id).send().await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(pair.client.abandon(id).await.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(pair.attempts_seen(), sent);
    assert_eq!(pair.client.abandon("unheard-of").await.unwrap_err().kind(), ErrorKind::UnknownOperation);
}
