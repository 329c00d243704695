//! The edges of the contract that a defect breaks, each as a check that any server can be put to: a sound one passes, and
//! for every [`Defect`] at least one check goes red.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use reqwest_idempotency::testing::{
    At, Defect, Fault, How, ManualClock, SeenRequest, TestServer, TestServerBuilder, WhileRunning,
};
use tokio::task::JoinSet;

use super::*;

type Check = fn(Make) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes the server under test.
#[derive(Clone, Copy)]
struct Make(Option<Defect>);

impl Make {
    fn builder(self) -> TestServerBuilder {
        match self.0 {
            Some(defect) => TestServer::builder().defect(defect),
            None => TestServer::builder(),
        }
    }

    async fn server(self) -> Arc<TestServer> {
        Arc::new(self.builder().start().await.unwrap())
    }
}

macro_rules! checks {
    ($($name:ident kills $($defect:ident)|+;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                checks::$name(Make(None)).await;
            }
        )*

        const KILLS: &[(Defect, &str, Check)] =
            &[$($((Defect::$defect, stringify!($name), |make| Box::pin(checks::$name(make))),)+)*];
    };
}

checks! {
    c27_while_one_runs_another_waits kills NoLock;
    c27_two_that_arrive_together_execute_once kills GetThenSet;
    c19_a_refused_payload_leaves_the_record_alone kills OverwriteOnClaim | FingerprintLostAtComplete;
    c29_a_record_that_vanished_is_claimed_by_one_of_those_who_waited kills ProceedWhenRecordVanished;
    c52_a_store_that_is_down_at_the_commit_leaves_the_key_in_progress kills DeleteWhenCompleteFails;
    c31_an_answer_of_the_layer_itself_does_not_free_the_key kills DeleteByNonOwner;
    c47_a_slow_owner_that_was_taken_over_changes_nothing kills NoFencing;
    c56_an_answer_too_large_to_keep_is_not_executed_again kills LargeResponsesNotStored;
    c15_a_key_belongs_to_its_caller kills UnscopedKey;
    c17_a_key_belongs_to_its_endpoint kills PathNotInScope;
    c18_the_query_is_part_of_the_payload kills QueryNotInFingerprint;
    c54_a_client_that_leaves_stops_nothing kills ExecutionInConnection;
    c46_a_lease_of_zero_locks_until_the_window_ends kills LeaseZeroReadAsNone;
    c64_a_full_ledger_evicts_nothing_that_is_alive kills EvictionOfLiveKeys;
}

/// A check that passes on the defect it is for tests nothing.
#[tokio::test]
async fn every_defect_turns_the_checks_red_that_are_for_it() {
    for defect in Defect::ALL {
        let checks: Vec<_> = KILLS.iter().filter(|(kills, _, _)| *kills == defect).collect();
        assert!(!checks.is_empty(), "nothing is for {defect:?}");
        for (_, name, check) in checks {
            let outcome = tokio::spawn(check(Make(Some(defect)))).await;
            assert!(outcome.is_err_and(|error| error.is_panic()), "{name} passes on {defect:?}");
        }
    }
}

/// The first order stops at the gate and has this outcome, the others are made at once.
fn slow_first(builder: TestServerBuilder, gate: &Gate, outcome: fn() -> http::Response<Bytes>) -> TestServerBuilder {
    let calls = Arc::new(AtomicUsize::new(0));
    let gate = gate.clone();
    builder.route(Method::POST, "/orders", move |_| {
        let (gate, is_first) = (gate.clone(), calls.fetch_add(1, Ordering::Relaxed) == 0);
        async move {
            if !is_first {
                return created("made");
            }
            gate.entered.add_permits(1);
            gate.open.acquire().await.unwrap().forget();
            outcome()
        }
    })
}

mod checks {
    use super::*;

    pub(super) async fn c27_while_one_runs_another_waits(make: Make) {
        let server = make.server().await;
        let hold = server.hold(At::AfterClaim);
        let first = tokio::spawn(send(order(&server, "k")));
        hold.reached().await;
        let second = tokio::select! {
            second = send(order(&server, "k")) => second.unwrap(),
            () = hold.reached() => panic!("a second one executes"),
        };
        second.assert_problem(409, "in-progress");
        hold.open();
        assert_eq!(first.await.unwrap().unwrap().status, 201);
        server.assert_executed_once("k");
    }

    pub(super) async fn c27_two_that_arrive_together_execute_once(make: Make) {
        let server = make.server().await;
        let hold = server.hold(At::BeforeClaim);
        let mut both = JoinSet::new();
        for _ in 0..2 {
            both.spawn(send(order(&server, "k")));
            hold.reached().await;
        }
        hold.open();
        both.join_all().await;
        server.assert_executed_once("k");
    }

    pub(super) async fn c19_a_refused_payload_leaves_the_record_alone(make: Make) {
        let server = make.server().await;
        assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
        send(order(&server, "k").body("{}")).await.unwrap().assert_problem(422, "idempotency-key-reuse");
        assert!(send(order(&server, "k")).await.unwrap().is_replay());
        server.assert_executed_once("k");
    }

    pub(super) async fn c29_a_record_that_vanished_is_claimed_by_one_of_those_who_waited(make: Make) {
        let gate = Gate::new();
        let builder = slow_first(make.builder().while_running(WhileRunning::Wait), &gate, || status(500));
        let server = Arc::new(builder.start().await.unwrap());
        let mut attempts = JoinSet::new();
        attempts.spawn(send(order(&server, "k")));
        gate.entered().await;
        for _ in 0..3 {
            attempts.spawn(send(order(&server, "k")));
        }
        while server.attempts_of("k") < 4 {
            tokio::task::yield_now().await;
        }
        // The first one fails and releases the key, and its record is gone.
        gate.open();
        attempts.join_all().await;
        server.assert_executed_once("k");
    }

    pub(super) async fn c52_a_store_that_is_down_at_the_commit_leaves_the_key_in_progress(make: Make) {
        let down = Fault::new(At::AfterEffect, How::StoreDown);
        let server = make.builder().faults([down]).start().await.unwrap();
        let first = send(order(&server, "k")).await.unwrap();
        assert_eq!((first.status, first.is_replay()), (201, false));
        for _ in 0..2 {
            send(order(&server, "k")).await.unwrap().assert_problem(409, "in-progress");
        }
        server.assert_executed_once("k");
        server.assert_no_unused_faults();
    }

    pub(super) async fn c31_an_answer_of_the_layer_itself_does_not_free_the_key(make: Make) {
        let server = make.server().await;
        let hold = server.hold(At::AfterEffect);
        let first = tokio::spawn(send(order(&server, "k")));
        hold.reached().await;
        for _ in 0..3 {
            let got = tokio::select! {
                got = send(order(&server, "k")) => got.unwrap(),
                () = hold.reached() => panic!("a second one executes"),
            };
            got.assert_problem(409, "in-progress");
        }
        hold.open();
        first.await.unwrap().unwrap();
        assert!(send(order(&server, "k")).await.unwrap().is_replay());
        server.assert_executed_once("k");
    }

    pub(super) async fn c47_a_slow_owner_that_was_taken_over_changes_nothing(make: Make) {
        let clock = ManualClock::new();
        let gate = Gate::new();
        let builder = make.builder().clock(clock.clone()).lease(MILLISECOND).take_over_expired_leases();
        let server = slow_first(builder, &gate, || created("slow")).start().await.unwrap();
        let slow = tokio::spawn(send(order(&server, "k")));
        gate.entered().await;
        clock.advance(MILLISECOND);
        assert_eq!(send(order(&server, "k")).await.unwrap().body, "made");
        gate.open();
        assert_eq!(slow.await.unwrap().unwrap().body, "slow");
        // The record is that of the owner which took over, and both effects count.
        let replay = send(order(&server, "k")).await.unwrap();
        assert_eq!((replay.is_replay(), &replay.body[..]), (true, &b"made"[..]));
        server.assert_executed("k", 2);
    }

    pub(super) async fn c56_an_answer_too_large_to_keep_is_not_executed_again(make: Make) {
        let server = make.builder().max_replay_bytes(10).start().await.unwrap();
        assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
        send(order(&server, "k")).await.unwrap().assert_problem(409, "response-not-replayable");
        server.assert_executed_once("k");
    }

    pub(super) async fn c15_a_key_belongs_to_its_caller(make: Make) {
        let server = make.server().await;
        for caller in ["ann", "bob"] {
            let got = send(order(&server, "k").bearer_auth(caller)).await.unwrap();
            assert_eq!((got.status, got.is_replay()), (201, false), "{caller}");
        }
        server.assert_executed("k", 2);
    }

    pub(super) async fn c17_a_key_belongs_to_its_endpoint(make: Make) {
        let server = make.server().await;
        send(order(&server, "k")).await.unwrap();
        let other = client().patch(server.url("/orders/1")).header("Idempotency-Key", "k").body(TEAPOT);
        let got = send(other).await.unwrap();
        assert_eq!((got.status, got.is_replay()), (200, false));
    }

    pub(super) async fn c18_the_query_is_part_of_the_payload(make: Make) {
        let server = make.server().await;
        let with = |a: &'static str| send(order(&server, "k").query(&[("a", a)]));
        assert_eq!(with("1").await.unwrap().status, 201);
        with("2").await.unwrap().assert_problem(422, "idempotency-key-reuse");
    }

    pub(super) async fn c54_a_client_that_leaves_stops_nothing(make: Make) {
        let gate = Gate::new();
        let server = gate.guard(make.builder()).start().await.unwrap();
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        gate.entered().await;
        tokio::io::AsyncWriteExt::shutdown(&mut socket).await.unwrap();
        // The server closes its side: by now it has noticed, and dropped the exchange.
        assert_eq!(read_to_end(&mut socket).await.0, "");
        gate.open();
        assert!(settled(&client(), &server, "k").await.is_replay());
        server.assert_executed_once("k");
    }

    pub(super) async fn c46_a_lease_of_zero_locks_until_the_window_ends(make: Make) {
        let clock = ManualClock::new();
        let builder = make.builder().clock(clock.clone()).lease(Duration::ZERO).window(HOUR);
        let server = builder.faults([Fault::crash_owner(At::AfterEffect)]).start().await.unwrap();
        assert!(send(order(&server, "k")).await.is_err());
        clock.advance(HOUR - MILLISECOND);
        send(order(&server, "k")).await.unwrap().assert_problem(409, "in-progress");
        clock.advance(MILLISECOND);
        assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
        server.assert_executed("k", 2);
    }

    pub(super) async fn c64_a_full_ledger_evicts_nothing_that_is_alive(make: Make) {
        let made = |_: SeenRequest| async { created("made") };
        let server = make.builder().max_keys(1).route(Method::POST, "/orders", made).start().await.unwrap();
        send(order(&server, "old")).await.unwrap();
        send(order(&server, "new")).await.unwrap().assert_problem(503, "store-unavailable");
        assert!(send(order(&server, "old")).await.unwrap().is_replay());
        server.assert_never_executed("new");
    }
}
