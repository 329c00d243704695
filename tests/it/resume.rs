//! After a restart: what is pending is finished, or refused with the reason. "Restart" is a new client on the same journal
//! here; `tests/crash.rs` kills real processes.

use std::sync::Arc;
use std::time::Duration;

use reqwest_idempotency::retry::{RetryBudget, RetryPolicy};
use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use reqwest_idempotency::{
    ClientBuilder, Contract, Delivery, Error, ErrorKind, IdempotentClient, Keep, OperationId, Phase, Response,
    ResumedItem, SqliteJournal, Timestamp,
};

use crate::support;

const HOUR: Duration = Duration::from_secs(3600);

/// A server, a journal file, and clients that come and go.
struct Town {
    server: TestServer,
    clock: ManualClock,
    folder: support::Folder,
}

impl Town {
    async fn with(faults: impl IntoIterator<Item = Fault>) -> Self {
        let clock = ManualClock::new();
        let server = TestServer::builder().clock(clock.clone()).faults(faults).start().await.unwrap();
        Self { server, clock, folder: support::Folder::new() }
    }

    /// A client of a new process, as far as the journal can tell.
    async fn client(&self) -> IdempotentClient {
        self.client_with(|builder| builder).await
    }

    async fn client_with(&self, build: impl FnOnce(ClientBuilder) -> ClientBuilder) -> IdempotentClient {
        let journal = self.journal().await;
        support::client(&self.clock, |builder| build(builder.journal(journal)))
    }

    async fn journal(&self) -> SqliteJournal {
        let path = self.folder.path("orders.journal");
        SqliteJournal::builder().clock(Arc::new(self.clock.clone())).open(path).await.unwrap()
    }

    /// Begins an operation and drops it while the server has executed it and does not reply.
    async fn interrupted(&self, client: IdempotentClient, id: &'static str) {
        let url = self.server.url("/orders?source=web");
        let call =
            tokio::spawn(async move { client.post(url).body(r#"{"item":"teapot"}"#).operation(id).send().await });
        self.server.fault_injected().await;
        call.abort();
        let _ = call.await;
    }
}

async fn resumed(client: &IdempotentClient) -> Vec<(OperationId, Result<Response, Error>)> {
    let mut stream = client.resume();
    let mut done = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            ResumedItem::Done(operation, result) => done.push((operation, result)),
            other => panic!("{other:?}"),
        }
    }
    done
}

async fn resumed_one(client: &IdempotentClient) -> Result<Response, Error> {
    let mut done = resumed(client).await;
    assert_eq!(done.len(), 1, "{done:?}");
    done.remove(0).1
}

#[tokio::test]
async fn k13_j03_what_was_under_way_is_sent_again_with_the_same_key_and_bytes() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "order-42").await;
    let response = resumed_one(&town.client().await).await.unwrap();
    assert!(response.replayed());
    let requests = town.server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].key(), requests[1].key());
    assert_eq!(requests[0].body(), requests[1].body());
    assert_eq!(requests[0].path_and_query(), requests[1].path_and_query());
    town.server.assert_executed_once(requests[0].key().unwrap());
    assert!(town.client().await.pending().await.unwrap().is_empty());
}

#[tokio::test]
async fn j04_a_stored_reply_is_answered_after_a_restart_without_the_network() {
    let town = Town::with([]).await;
    let keep = |builder: ClientBuilder| builder.keep(Keep::Exchange);
    let send = |client: IdempotentClient| {
        let url = town.server.url("/orders");
        async move { client.post(url).body("{}").operation("order-42").send().await }
    };
    let first = send(town.client_with(keep).await).await.unwrap();
    let again = send(town.client_with(keep).await).await.unwrap();
    assert_eq!(again.status(), 201);
    assert!(again.replayed());
    assert_eq!(again.body(), first.body());
    assert_eq!(again.headers()["location"], first.headers()["location"]);
    assert_eq!(town.server.requests().len(), 1);
}

#[tokio::test]
async fn k05_another_payload_after_a_restart_is_refused() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "order-42").await;
    let client = town.client().await;
    let error = client.post(town.server.url("/orders")).body("other").operation("order-42").send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::PayloadMismatch, Delivery::Unknown));
    assert_eq!(town.server.requests().len(), 1);
}

#[tokio::test]
async fn k07_three_calls_over_a_restart_have_one_effect() {
    let town = Town::with([]).await;
    let send = |client: IdempotentClient| {
        let url = town.server.url("/orders");
        async move { client.post(url).body("{}").operation("order-42").send().await.unwrap() }
    };
    let client = town.client().await;
    let first = send(client.clone()).await;
    let second = send(client).await;
    let third = send(town.client().await).await;
    assert!(second.replayed() && third.replayed());
    assert_eq!(first.key(), third.key());
    assert_eq!(town.server.executions(), 1);
}

#[tokio::test]
async fn j08_past_the_window_nothing_is_sent_and_a_person_has_to_look() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "order-42").await;
    // 24 hours, less the margin of five minutes.
    town.clock.advance(24 * HOUR - Duration::from_secs(299));
    let error = resumed_one(&town.client().await).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::WindowExpired, Delivery::Unknown));
    assert_eq!(error.phase(), Some(Phase::Expired));
    assert!(error.to_string().contains("find out at the server"), "{error}");
    assert_eq!(town.server.requests().len(), 1);
    // It is closed: nothing is pending, and asking again sends nothing.
    let client = town.client().await;
    assert!(client.pending().await.unwrap().is_empty());
    assert_eq!(client.operation("order-42").await.unwrap().unwrap().phase, Phase::Expired);
}

#[tokio::test]
async fn just_inside_the_window_it_is_sent() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "order-42").await;
    town.clock.advance(24 * HOUR - Duration::from_secs(301));
    assert!(resumed_one(&town.client().await).await.unwrap().replayed());
}

#[tokio::test]
async fn a_clock_that_went_backwards_refuses_a_resume_and_closes_nothing() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "order-42").await;
    town.clock.step_wall(-1000);
    let error = resumed_one(&town.client().await).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::WindowExpired, Delivery::Unknown));
    assert!(error.is_pending());
    assert_eq!(town.server.requests().len(), 1);
    town.clock.step_wall(2000);
    assert!(resumed_one(&town.client().await).await.unwrap().replayed());
}

#[tokio::test]
async fn j11_under_another_credential_scope_it_is_refused() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    let scoped = |name: &'static str| move |builder: ClientBuilder| builder.credential_scope(name);
    town.interrupted(town.client_with(scoped("account-1")).await, "order-42").await;
    let error = resumed_one(&town.client_with(scoped("account-2")).await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadMismatch);
    assert!(error.to_string().contains("account-1") && error.to_string().contains("account-2"), "{error}");
    assert!(error.is_pending());
    assert_eq!(town.server.requests().len(), 1);
    assert!(resumed_one(&town.client_with(scoped("account-1")).await).await.unwrap().replayed());
}

#[tokio::test]
async fn j12_another_origin_is_refused() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    let elsewhere = TestServer::start().await.unwrap();
    town.interrupted(town.client().await, "order-42").await;
    let client = town.client().await;
    let request = client.post(elsewhere.url("/orders?source=web")).body(r#"{"item":"teapot"}"#).operation("order-42");
    let error = request.send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadMismatch);
    assert!(error.to_string().contains(&elsewhere.addr().to_string()), "{error}");
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn another_contract_is_refused() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "order-42").await;
    let client = town.client_with(|builder| builder.contract(Contract::named("other").header("x-request-id"))).await;
    let error = resumed_one(&client).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadMismatch);
    assert!(error.is_pending());
}

#[tokio::test]
async fn j10_a_purge_keeps_what_is_unknown_and_says_so() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.interrupted(town.client().await, "pending").await;
    let client = town.client().await;
    town.clock.advance(30 * 24 * HOUR);
    let purged = client.purge(Duration::ZERO).await.unwrap();
    assert_eq!((purged.pending, purged.dropped), (1, 0));
    assert_eq!(client.pending().await.unwrap().len(), 1);
    // Expired, it waits for a person, and is kept for that.
    let _ = resumed_one(&client).await;
    town.clock.advance(30 * 24 * HOUR);
    assert_eq!(client.purge(Duration::ZERO).await.unwrap().for_a_person, 1);
    assert!(client.operation("pending").await.unwrap().is_some());
}

#[tokio::test]
async fn a_purge_keeps_what_the_window_still_covers_and_drops_the_rest() {
    let town = Town::with([]).await;
    let client = town.client().await;
    client.post(town.server.url("/orders")).body("{}").operation("order-42").send().await.unwrap();
    let purged = client.purge(Duration::ZERO).await.unwrap();
    assert_eq!((purged.recent, purged.dropped), (1, 0));
    town.clock.advance(25 * HOUR);
    let purged = client.purge(Duration::ZERO).await.unwrap();
    assert_eq!((purged.recent, purged.dropped), (0, 1));
    assert!(client.operation("order-42").await.unwrap().is_none());
}

#[tokio::test]
async fn credentials_are_never_written_and_prepare_supplies_them_again() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    let client = town.client().await;
    let url = town.server.url("/orders");
    let call =
        tokio::spawn(
            async move { client.post(url).bearer_auth("hunter2").body("{}").operation("order-42").send().await },
        );
    town.server.fault_injected().await;
    call.abort();
    let _ = call.await;
    for file in town.folder.files() {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"), "in {}", file.display());
    }
    // Without them it is not sent.
    let client = town.client().await;
    let mut stream = client.resume();
    let Some(ResumedItem::NeedsRequest(needs)) = stream.next().await else { panic!("it was sent without credentials") };
    assert_eq!(needs.operation().as_str(), "order-42");
    assert!(stream.next().await.is_none());
    assert_eq!(town.server.requests().len(), 1);
    drop((stream, client));
    // The hook has them.
    let prepared = town
        .client_with(|builder| {
            builder.prepare(|_, headers| {
                Box::pin(async move {
                    headers.insert("authorization", "Bearer hunter2".parse()?);
                    Ok(())
                })
            })
        })
        .await;
    assert!(resumed_one(&prepared).await.unwrap().replayed());
}

#[tokio::test]
async fn what_went_through_a_foreign_client_is_handed_back_with_its_stored_request() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    let foreign = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = town.client().await;
    let request = foreign.post(town.server.url("/orders")).body("{}");
    let call = tokio::spawn(async move { client.send_as("order-42", request).await });
    town.server.fault_injected().await;
    call.abort();
    let _ = call.await;
    let client = town.client().await;
    let mut stream = client.resume();
    let Some(ResumedItem::NeedsRequest(needs)) = stream.next().await else { panic!("it was sent by another client") };
    assert_eq!(needs.record().request.as_ref().unwrap().body, "{}");
    drop(stream);
    assert!(needs.send(&foreign, http::HeaderMap::new()).await.unwrap().replayed());
}

#[tokio::test]
async fn keep_key_stores_neither_body_nor_query_and_asks_for_the_request() {
    let town = Town::with([Fault::stall_after_commit()]).await;
    let keep = |builder: ClientBuilder| builder.keep(Keep::Key);
    town.interrupted(town.client_with(keep).await, "order-42").await;
    for file in town.folder.files() {
        let bytes = std::fs::read(&file).unwrap();
        for secret in [&b"teapot"[..], b"source=web"] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret), "in {}", file.display());
        }
    }
    let client = town.client_with(keep).await;
    let mut stream = client.resume();
    assert!(matches!(stream.next().await, Some(ResumedItem::NeedsRequest(_))));
    drop(stream);
    let send =
        |body: &'static str| client.post(town.server.url("/orders?source=web")).body(body).operation("order-42").send();
    assert_eq!(send("other").await.unwrap_err().kind(), ErrorKind::PayloadMismatch);
    assert!(send(r#"{"item":"teapot"}"#).await.unwrap().replayed());
    let unnamed = client.post(town.server.url("/orders")).body("{}").send().await.unwrap_err();
    assert_eq!(unnamed.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn a_resume_does_not_come_before_the_time_that_the_server_asked_for() {
    let town = Town::with([Fault::status(503).retry_after("3600")]).await;
    let client = town.client().await;
    let request = client.post(town.server.url("/orders")).body("{}").operation("order-42");
    assert_eq!(request.send().await.unwrap_err().kind(), ErrorKind::RetryAfterTooLong);
    let error = resumed_one(&town.client().await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RetryAfterTooLong);
    assert!(error.is_pending() && error.next_attempt_at() > Some(Timestamp::default()));
    assert_eq!(town.server.requests().len(), 1);
    town.clock.advance(HOUR);
    assert_eq!(resumed_one(&town.client().await).await.unwrap().status(), 201);
}

#[tokio::test]
async fn t09_a_call_dropped_at_each_of_its_waits_can_be_resumed() {
    // Waiting for the answer, waiting between attempts, and waiting behind another flight: whatever is dropped, the
    // operation is pending and has its key.
    for point in ["exchange", "wait", "flight"] {
        let faults = if point == "wait" { vec![Fault::status(503)] } else { vec![Fault::stall_after_commit()] };
        let clock = ManualClock::held();
        let server = TestServer::builder().clock(clock.clone()).faults(faults).start().await.unwrap();
        let folder = support::Folder::new();
        let journal = || SqliteJournal::builder().clock(Arc::new(clock.clone())).open(folder.path("orders.journal"));
        let opened = journal().await.unwrap();
        let client = support::client(&clock, |builder| builder.journal(opened));
        let send = || client.post(server.url("/orders")).body("{}").operation("order-42").send();
        let first = tokio::spawn(send());
        server.fault_injected().await;
        if point == "wait" {
            clock.until_asleep().await;
        }
        if point == "flight" {
            let follower = tokio::spawn(send());
            tokio::task::yield_now().await;
            follower.abort();
            let _ = follower.await;
        }
        first.abort();
        let _ = first.await;
        let record = client.operation("order-42").await.unwrap().unwrap();
        assert_eq!(record.phase, Phase::Sending, "{point}");
        let sent = server.requests().len();
        drop(client);
        // No retry goes on in the background.
        clock.advance(HOUR / 60);
        assert_eq!(server.requests().len(), sent, "{point}");
        let opened = journal().await.unwrap();
        let client = support::client(&clock, |builder| builder.journal(opened));
        let response = resumed_one(&client).await.unwrap();
        assert_eq!(response.key(), Some(&record.key), "{point}");
        assert_eq!(server.executions(), 1, "{point}");
    }
}

#[tokio::test]
async fn three_hundred_unfinished_operations_are_resumed_a_few_at_a_time() {
    let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let now = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).faults([Fault::status(503)]).start().await.unwrap();
    let folder = support::Folder::new();
    let journal = SqliteJournal::builder().clock(Arc::new(clock.clone())).open(folder.path("j")).await.unwrap();
    let client = support::client(&clock, |builder| {
        let (most, now) = (most.clone(), now.clone());
        builder.journal(journal).budget(RetryBudget::unlimited()).retry(RetryPolicy::default().max_attempts(1)).prepare(
            move |_, _| {
                let (most, now) = (most.clone(), now.clone());
                Box::pin(async move {
                    let running = now.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                    most.fetch_max(running, std::sync::atomic::Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    now.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    Ok(())
                })
            },
        )
    });
    let mut orders = tokio::task::JoinSet::new();
    for number in 0..300 {
        orders.spawn(client.post(server.url("/orders")).body("{}").operation(format!("order-{number}")).send());
    }
    assert!(orders.join_all().await.into_iter().all(|result| result.unwrap_err().is_pending()));
    most.store(0, std::sync::atomic::Ordering::SeqCst);
    let done = resumed(&client).await;
    assert_eq!(done.len(), 300);
    assert!(done.iter().all(|(_, result)| result.as_ref().unwrap().status() == 201));
    let most = most.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=8).contains(&most), "{most} at once");
    assert_eq!(server.executions(), 300);
}

/// Begun with `Keep::Key` and asked for again with the request kept, it was resumed without its query, under the same key.
#[tokio::test]
async fn a_request_that_is_kept_later_is_kept_whole() {
    let town = Town::with([Fault::status(503), Fault::status(503)]).await;
    let once = |keep| move |builder: ClientBuilder| builder.keep(keep).retry(RetryPolicy::default().max_attempts(1));
    for keep in [Keep::Key, Keep::Request] {
        let client = town.client_with(once(keep)).await;
        let request = client.post(town.server.url("/orders?account=7")).body("{}").operation("order-42");
        assert!(request.send().await.unwrap_err().is_pending());
    }
    assert_eq!(resumed_one(&town.client().await).await.unwrap().status(), 201);
    let requests = town.server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.path_and_query() == "/orders?account=7"));
}

/// The clock had run days ahead, was set right, and the record's first attempt lay in the future: it was taken as new.
#[tokio::test]
async fn an_age_that_nobody_can_tell_is_not_taken_as_none() {
    use reqwest_idempotency::journal::rusqlite::Connection;
    let town = Town::with([Fault::stall_after_commit()]).await;
    town.clock.step_wall(5 * 24 * 3_600_000);
    town.interrupted(town.client().await, "order-42").await;
    town.clock.step_wall(-5 * 24 * 3_600_000);
    let database = Connection::open(town.folder.path("orders.journal")).unwrap();
    database.execute("UPDATE idempotency_journal SET newest = 0", []).unwrap();
    drop(database);
    let error = resumed_one(&town.client().await).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::WindowExpired, Delivery::Unknown));
    assert!(error.is_pending());
    assert_eq!(town.server.requests().len(), 1);
}

/// The file was emptied beside its log, and opened as a new journal: the pending operation got another key.
#[tokio::test]
async fn what_is_left_of_a_journal_is_not_taken_for_a_new_one() {
    let remains = support::Folder::new();
    std::fs::write(remains.path("orders.journal-wal"), b"what a killed process left").unwrap();
    let error = SqliteJournal::open(remains.path("orders.journal")).await.unwrap_err();
    assert!(error.to_string().contains("orders.journal-wal"), "{error}");
    std::fs::write(remains.path("orders.journal"), b"").unwrap();
    assert!(SqliteJournal::open(remains.path("orders.journal")).await.is_err());
}
