//! Regressions: each opens with the story of what went wrong.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use reqwest_idempotency::journal::{Acquired, Begun, Journal, JournalError, JournalErrorKind, Lease, Purged};
use reqwest_idempotency::retry::RetryPolicy;
use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use reqwest_idempotency::{
    AfterSave, BoxError, BoxFuture, Contract, Delivery, Durability, ErrorKind, IdempotencyKey, IdempotentClient,
    KeyError, MemoryJournal, OperationId, Phase, Record, Resolution, ResumedItem,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{self, Pair};

/// A second caller under the same id, with other credentials, was handed the first caller's receipt.
#[tokio::test]
async fn a_follower_under_another_scope_contract_or_key_does_not_get_the_leaders_answer() {
    let pair = Pair::with([Fault::stall_before_claim()]).await;
    let order = || pair.order().operation("order-42").credential_scope("tenant-a");
    let leader = tokio::spawn(order().send());
    pair.server.fault_injected().await;
    for other in [
        order().credential_scope("tenant-b"),
        order().contract(Contract::named("other").window(Duration::from_secs(60))),
        order().key(IdempotencyKey::parse("another-key").unwrap()),
    ] {
        let error = other.send().await.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::PayloadMismatch, Delivery::Unknown));
        assert!(error.is_pending());
    }
    pair.clock.advance(Duration::from_secs(30));
    assert_eq!(leader.await.unwrap().unwrap().status(), 201);
}

/// A journal that another one stands behind, and that can be out of reach.
#[derive(Debug)]
struct Faulty {
    within: MemoryJournal,
    down: std::sync::atomic::AtomicBool,
    saves_fail: std::sync::atomic::AtomicBool,
    hanging: bool,
}

impl Faulty {
    fn new(hanging: bool) -> Arc<Self> {
        Arc::new(Self { within: MemoryJournal::new(), down: false.into(), saves_fail: false.into(), hanging })
    }

    fn fail(&self) {
        self.down.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn fail_saves(&self) {
        self.saves_fail.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn reach<'a, T: Send + 'a>(
        &'a self,
        call: BoxFuture<'a, Result<T, JournalError>>,
    ) -> BoxFuture<'a, Result<T, JournalError>> {
        match (self.down.load(std::sync::atomic::Ordering::SeqCst), self.hanging) {
            (false, _) => call,
            (true, true) => Box::pin(std::future::pending()),
            (true, false) => {
                Box::pin(async { Err(JournalError::new(JournalErrorKind::Unavailable, "the store is out of reach")) })
            }
        }
    }
}

impl Journal for Faulty {
    fn begin(&self, record: Record, lease: Duration) -> BoxFuture<'_, Result<Begun, JournalError>> {
        self.reach(self.within.begin(record, lease))
    }
    fn acquire(&self, operation: OperationId, lease: Duration) -> BoxFuture<'_, Result<Acquired, JournalError>> {
        self.reach(self.within.acquire(operation, lease))
    }
    fn save(
        &self,
        record: Record,
        lease: Lease,
        then: AfterSave,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), JournalError>> {
        if self.saves_fail.load(std::sync::atomic::Ordering::SeqCst) {
            return Box::pin(async {
                Err(JournalError::new(JournalErrorKind::Unavailable, "the store takes no writes"))
            });
        }
        self.reach(self.within.save(record, lease, then, durability))
    }
    fn get(&self, operation: OperationId) -> BoxFuture<'_, Result<Option<Record>, JournalError>> {
        self.reach(self.within.get(operation))
    }
    fn pending(
        &self,
        after: Option<OperationId>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OperationId>, JournalError>> {
        self.within.pending(after, limit)
    }
    fn purge(&self, older_than: Duration) -> BoxFuture<'_, Result<Purged, JournalError>> {
        self.reach(self.within.purge(older_than))
    }
    fn relinquish(&self, lease: Lease) {
        self.within.relinquish(lease);
    }
    fn is_durable(&self) -> bool {
        false
    }
    fn salt(&self) -> &[u8] {
        b""
    }
}

/// An order was sent and its reply lost. Asked again while the journal was down, the caller was told "not sent, drop it".
#[tokio::test]
async fn what_the_journal_cannot_be_asked_about_is_unknown_and_not_not_sent() {
    let journal = Faulty::new(false);
    let pair = Pair::built([Fault::status(503), Fault::status(503)], |builder| {
        builder.shared_journal(journal.clone()).retry(RetryPolicy::default().max_attempts(1))
    })
    .await;
    assert!(pair.order().operation("order-42").send().await.unwrap_err().is_pending());
    journal.fail();
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, Delivery::Unknown));
    assert!(error.is_pending());
    let Some(ResumedItem::Done(_, Err(error))) = pair.client.resume().next().await else { panic!("it was resumed") };
    assert_eq!((error.kind(), error.delivery(), error.is_pending()), (ErrorKind::Journal, Delivery::Unknown, true));
    // What has no name cannot have been asked for before.
    let error = pair.order().send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, Delivery::NotSent));
}

/// A known operation could not be asked for again because no new key could be made, which it does not need.
#[tokio::test]
async fn a_known_operation_needs_no_new_key() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let source = broken.clone();
    let pair = Pair::built([Fault::status(503)], |builder| {
        builder.retry(RetryPolicy::default().max_attempts(1)).key_source(move || {
            if source.load(std::sync::atomic::Ordering::SeqCst) {
                return Err(BoxError::from("no randomness"));
            }
            Ok(IdempotencyKey::generate()?)
        })
    })
    .await;
    let pending = pair.order().operation("order-42").send().await.unwrap_err();
    broken.store(true, std::sync::atomic::Ordering::SeqCst);
    let response = pair.order().operation("order-42").send().await.unwrap();
    assert_eq!(response.key(), pending.key());
    assert_eq!(pair.order().operation("order-43").send().await.unwrap_err().kind(), ErrorKind::InvalidKey);
}

/// After an outage of a hundred thousand unnamed calls, the memory journal refused all work for seven days.
#[tokio::test]
async fn what_nobody_can_ask_for_does_not_fill_the_journal() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).faults([Fault::status(400)]).start().await.unwrap();
    let client = support::client(&clock, |builder| builder.journal(MemoryJournal::with(clock.clone(), 5)));
    for _ in 0..20 {
        assert_eq!(client.post(server.url("/orders")).body("{}").send().await.unwrap().status(), 400);
        let nobody = client.post(support::nobody()).body("{}").retry(RetryPolicy::never());
        assert_eq!(nobody.send().await.unwrap_err().delivery(), Delivery::NotSent);
    }
}

/// The wall clock was set back by 20 hours, and a key was sent 41 hours after its first send, under a window of 24.
#[tokio::test]
async fn a_clock_that_is_set_back_does_not_make_the_window_longer() {
    const HOUR: Duration = Duration::from_secs(3600);
    let pair = Pair::built([Fault::status(503)], |builder| builder.retry(RetryPolicy::default().max_attempts(1))).await;
    assert!(pair.order().operation("order-42").send().await.unwrap_err().is_pending());
    pair.clock.advance(HOUR);
    pair.clock.step_wall(-20 * 3_600_000);
    pair.clock.advance(40 * HOUR);
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::WindowExpired, Delivery::Unknown));
    assert_eq!(pair.attempts_seen(), 1);
}

/// NestJS, Fastify and Spring put the reason phrase into the body, and an order in progress was taken as refused.
#[tokio::test]
async fn a_bare_409_of_a_framework_is_still_bare() {
    let bodies = [
        r#"{"statusCode":409,"message":"A request with this key is in progress","error":"Conflict"}"#,
        r#"{"status":409,"error":"Conflict","path":"/orders"}"#,
        r#"{"type":"about:blank","title":"Conflict"}"#,
    ];
    for body in bodies {
        let bare = Fault::status(409).body("application/json", body);
        let pair = Pair::with([Fault::reply_lost(), bare]).await;
        assert!(pair.order().send().await.unwrap().replayed(), "{body}");
    }
}

/// Two operations had keys that differed in a space, and were one to the server.
#[tokio::test]
async fn a_key_with_a_space_around_it_is_refused() {
    assert_eq!(IdempotencyKey::parse(" abcdefghijkl "), Err(KeyError::Padded));
}

/// With a small limit for replies, "executed, but the response is gone" became a definite refusal.
#[tokio::test]
async fn a_small_reply_limit_does_not_change_what_a_refusal_means() {
    let gone = Fault::status(409).problem("response-not-replayable");
    let pair = Pair::built([gone], |builder| builder.reply_limit(0)).await;
    assert_eq!(pair.order().send().await.unwrap_err().kind(), ErrorKind::ReplyUnavailable);
}

/// A completed operation, asked for its reply once more, answered `Ok(402)`.
#[tokio::test]
async fn what_was_completed_is_never_told_as_refused() {
    for status in [402, 401, 404] {
        let pair = Pair::with([Fault::none(), Fault::status(status)]).await;
        assert_eq!(pair.order().operation("order-42").send().await.unwrap().status(), 201);
        let error = pair.order().operation("order-42").send().await.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::ReplyUnavailable, Delivery::Answered), "{status}");
        assert_eq!(error.phase(), Some(Phase::Completed));
        assert_eq!(pair.client.operation("order-42").await.unwrap().unwrap().phase, Phase::Completed);
    }
}

/// A 429 said "not before 40 seconds", and the same operation was sent again two milliseconds later.
#[tokio::test]
async fn what_a_refusal_in_front_asked_for_is_kept_for_the_next_call() {
    let pair = Pair::with([Fault::status(429).retry_after("40")]).await;
    assert_eq!(pair.order().operation("order-42").send().await.unwrap().status(), 429);
    assert_eq!(pair.order().operation("order-42").send().await.unwrap().status(), 201);
    assert!(pair.clock.slept()[0] >= Duration::from_secs(39), "{:?}", pair.clock.slept());

    let pair = Pair::with([Fault::status(429).retry_after("4000")]).await;
    assert_eq!(pair.order().operation("order-42").send().await.unwrap().status(), 429);
    for _ in 0..2 {
        let error = pair.order().operation("order-42").send().await.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::RetryAfterTooLong, Some(Phase::Rejected)));
    }
    assert_eq!(pair.attempts_seen(), 1);
}

/// A call with a deadline of 300 ms hung for as long as its journal did.
#[tokio::test]
async fn a_journal_that_hangs_does_not_outlast_the_deadline() {
    let journal = Faulty::new(true);
    journal.fail();
    let clock = ManualClock::new();
    let client = support::client(&clock, |builder| builder.shared_journal(journal));
    let call = tokio::spawn(client.post(support::nobody()).body("{}").operation("order-42").send());
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(60));
    let error = call.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::DeadlineExceeded, Delivery::Unknown));
    assert!(error.is_pending());
}

/// A follower with time left was told that the leader's time was up.
#[tokio::test]
async fn a_follower_with_more_time_goes_on_where_the_leader_had_to_stop() {
    let pair = Pair::with([Fault::stall_before_claim()]).await;
    let leader = tokio::spawn(pair.order().operation("order-42").deadline(Duration::from_secs(10)).send());
    pair.server.fault_injected().await;
    let follower = tokio::spawn(pair.order().operation("order-42").send());
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    pair.clock.advance(Duration::from_secs(10));
    assert_eq!(leader.await.unwrap().unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(follower.await.unwrap().unwrap().status(), 201);
}

/// The way the README shows was treated as a stranger's client: warned about, and never resumed.
#[tokio::test]
async fn a_request_built_with_the_guarded_client_is_not_foreign() {
    let pair = Pair::built([Fault::status(503)], |builder| builder.retry(RetryPolicy::default().max_attempts(1))).await;
    let request = || pair.client.http().post(pair.server.url("/orders")).body("{}");
    assert!(pair.client.send_as("order-42", request()).await.unwrap_err().is_pending());
    let item = pair.client.resume().next().await;
    assert!(matches!(item, Some(ResumedItem::Done(_, Ok(_)))), "{item:?}");
    let nowhere = pair.client.http().post(support::nobody());
    assert_eq!(pair.client.send(nowhere).await.unwrap_err().delivery(), Delivery::NotSent);
}

/// A hook panicked while operations were resumed, and they were passed over in silence.
#[tokio::test]
#[should_panic(expected = "the hook is broken")]
async fn a_panic_of_a_hook_is_heard_of() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now = broken.clone();
    let pair = Pair::built([Fault::status(503)], |builder| {
        builder.retry(RetryPolicy::default().max_attempts(1)).prepare(move |_, _| {
            let broken = now.load(std::sync::atomic::Ordering::SeqCst);
            Box::pin(async move { if broken { panic!("the hook is broken") } else { Ok(()) } })
        })
    })
    .await;
    let _ = pair.order().operation("order-42").send().await;
    broken.store(true, std::sync::atomic::Ordering::SeqCst);
    pair.client.resume().next().await;
}

/// `put(…).key(…)` sent no key, and nobody was told.
#[tokio::test]
async fn a_key_or_a_name_where_the_contract_has_no_place_for_it_is_an_error() {
    let pair = Pair::with([]).await;
    let url = pair.server.url("/orders/1");
    let key = IdempotencyKey::parse("a-key-of-mine").unwrap();
    for request in [pair.client.put(&url).key(key.clone()), pair.client.get(&url).operation("order-42")] {
        assert_eq!(request.send().await.unwrap_err().kind(), ErrorKind::Configuration);
    }
    assert_eq!(pair.attempts_seen(), 0);
    let contract = Contract::default().methods([Method::POST, Method::PUT]);
    let _ = pair.client.put(&url).contract(contract).key(key).body("{}").send().await;
    assert_eq!(pair.server.requests()[0].headers()["idempotency-key"], "a-key-of-mine");
}

/// Contracts that no request can work under were found out request by request.
#[tokio::test]
async fn settings_that_make_no_sense_are_refused_when_the_client_is_built() {
    for contract in [
        Contract::default().window(Duration::ZERO),
        Contract::default().header("Content-Length"),
        Contract::default().header("authorization"),
        Contract::default().key_bytes(0),
    ] {
        let error = IdempotentClient::builder().in_memory().contract(contract).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
    let error = IdempotentClient::builder().in_memory().refresh_on_401().build().unwrap_err();
    assert!(error.to_string().contains("prepare"), "{error}");
    assert!(IdempotentClient::builder().build().unwrap_err().to_string().contains("in_memory"));
}

/// `"abc";v=1` of the caller's went out as another string.
#[tokio::test]
async fn a_quoted_key_that_cannot_be_sent_unchanged_is_refused() {
    use reqwest_idempotency::Serialisation;
    let pair = Pair::with([]).await;
    for value in [r#""abc";v=1"#, r#""a"b""#, r#""abc"#, "abc", r#""a\b""#] {
        let contract = Contract::named("strict").serialisation(Serialisation::StructuredField);
        let error = pair.order().contract(contract).header("Idempotency-Key", value).send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{value}");
    }
    assert_eq!(pair.attempts_seen(), 0);
}

/// A header of the caller's changed how the body is framed.
#[tokio::test]
async fn the_framing_is_ours_whatever_the_callers_headers_say() {
    let pair = Pair::with([]).await;
    let request = pair.order().header("transfer-encoding", "chunked");
    request.send().await.unwrap();
    let headers = pair.server.requests()[0].headers().clone();
    assert!(!headers.contains_key("transfer-encoding"));
    assert_eq!(headers["content-length"], "17");
}

/// A person settled it, and the report said that the server had answered.
#[tokio::test]
async fn a_report_says_what_was_settled() {
    let pair = Pair::with([Fault::status(500).header("Idempotent-Replayed", "true")]).await;
    let _ = pair.order().operation("order-42").send().await;
    pair.client.resolve("order-42", Resolution::NotExecuted).await.unwrap();
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert!(error.report().to_string().contains("it was refused, and not executed"), "{}", error.report());
}

/// A reply with a length and chunks at once was taken as lost each time, though RFC 9112 section 6.3 says how to read it.
#[tokio::test]
async fn a_chunked_reply_that_also_has_a_length_is_whole() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let _ = socket.read(&mut request).await.unwrap();
        let reply =
            "HTTP/1.1 201 Created\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        socket.write_all(reply.as_bytes()).await.unwrap();
    });
    let client = support::client(&ManualClock::new(), |builder| builder);
    let response = client.post(url).body("{}").send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "{}");
    serving.await.unwrap();
}

/// A decision that could not be written was reported as if it had taken effect.
#[tokio::test]
async fn a_decision_that_is_not_written_is_not_told() {
    let journal = Faulty::new(false);
    let pair = Pair::built([Fault::status(503)], |builder| {
        builder.shared_journal(journal.clone()).retry(RetryPolicy::default().max_attempts(1))
    })
    .await;
    assert!(pair.order().operation("order-42").send().await.unwrap_err().is_pending());
    journal.fail_saves();
    let error = pair.client.resolve("order-42", Resolution::NotExecuted).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Journal, Delivery::Unknown));
    assert!(error.is_pending());
    // And whoever looks next need not wait for a lease.
    assert_eq!(pair.client.abandon("order-42").await.unwrap_err().kind(), ErrorKind::Journal);
}
