//! A [`Scenario`] plays a script against the machine in virtual time, and keeps what the machine did.

mod delivery;
mod ending;
mod opening;
mod order;
mod playing;
mod repeat;
mod sending;
mod table;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use url::Url;

use super::{Attempts, Carrying, Event, Plan, Step, ToSend};
use crate::clock::{Now, Timestamp};
use crate::contract::{Contract, Meaning};
use crate::error::{Error, ErrorKind};
use crate::fingerprint::Fingerprint;
use crate::history::Delivery;
use crate::key::IdempotencyKey;
use crate::operation::{AfterSave, Closing, Durability, Keep, OperationId, Phase, Record, StoredRequest, Wire};
use crate::reply::{Failure, FailureKind, Reply, ReplyBody, Sent};
use crate::response::Response;
use crate::retry::{Backoff, Jitter, RetryBudget, RetryPolicy};

/// Thu, 27 Aug 2026 11:10:53 GMT.
const START: Now = Now { monotonic: Duration::from_secs(1_000), wall: Timestamp::from_millis(1_787_829_053_000) };
const KEY: &str = "11111111-key-secret-4111-8111-000000004242";
const URL: &str = "https://api.example.com/orders?token=query-secret";
const BODY: &str = r#"{"card":"body-secret"}"#;
/// 24 hours less 5 minutes: how long the default contract lets an operation be sent.
const SAFE_WINDOW: Duration = Duration::from_secs(24 * 60 * 60 - 5 * 60);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// An answer of the server, to be embellished.
#[derive(Clone, Debug)]
struct Answer(Reply);

fn answer(status: u16) -> Answer {
    Answer(Reply {
        status: StatusCode::from_u16(status).unwrap(),
        version: Version::HTTP_11,
        headers: HeaderMap::new(),
        url: Url::parse(URL).unwrap(),
        body: ReplyBody::Whole(Bytes::new()),
        redirected: false,
    })
}

impl Answer {
    fn header(mut self, name: &'static str, value: &str) -> Self {
        self.0.headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        self
    }

    fn retry_after(self, value: &str) -> Self {
        self.header("retry-after", value)
    }

    fn replayed(self) -> Self {
        self.header("idempotent-replayed", "true")
    }

    fn body(mut self, body: &str) -> Self {
        self.0.body = ReplyBody::Whole(Bytes::copy_from_slice(body.as_bytes()));
        self
    }

    fn problem(self, type_: &str) -> Self {
        self.header("content-type", "application/problem+json").body(&format!(r#"{{"type":"{type_}"}}"#))
    }

    /// The body breaks off after what was given so far.
    fn cut(mut self) -> Self {
        self.0.body = ReplyBody::Incomplete(self.0.body().clone(), failure(FailureKind::ReplyLost, Sent::Perhaps));
        self
    }

    fn too_long(mut self) -> Self {
        self.0.body = ReplyBody::TooLong(self.0.body().clone());
        self
    }

    fn redirected(mut self) -> Self {
        self.0.redirected = true;
        self
    }
}

impl From<u16> for Answer {
    fn from(status: u16) -> Self {
        answer(status)
    }
}

fn failure(kind: FailureKind, sent: Sent) -> Failure {
    Failure { kind, sent, source: None }
}

fn broken(what: &str) -> Arc<io::Error> {
    Arc::new(io::Error::other(what.to_owned()))
}

/// A record as a journal would hold it in this phase, begun at [`START`].
fn record(phase: Phase) -> Box<Record> {
    let url = Url::parse(URL).unwrap();
    let closing = Closing { status: None, in_front: false, after_unknown: false, resolved: false, reply: None };
    Box::new(Record {
        operation: OperationId::parse("order-42").unwrap(),
        named: true,
        key: IdempotencyKey::parse(KEY).unwrap(),
        phase,
        wire: Wire::from(&Contract::default()),
        method: Method::POST,
        fingerprint: Some(Fingerprint::of(b"salt", &Method::POST, &url, BODY.as_bytes())),
        url,
        credential_scope: None,
        request: phase.is_pending().then(|| StoredRequest {
            headers: HeaderMap::new(),
            body: Bytes::from_static(BODY.as_bytes()),
            needs_headers: false,
        }),
        begun_at: START.wall,
        first_sent_at: (phase != Phase::Prepared).then_some(START.wall),
        updated_at: START.wall,
        next_attempt_at: None,
        attempts: 0,
        closing: (!phase.is_pending()).then_some(closing),
    })
}

/// A record that was refused in front of the idempotency layer.
fn rejected_in_front() -> Box<Record> {
    let mut record = record(Phase::Rejected);
    let closing = record.closing.as_mut().unwrap();
    (closing.in_front, closing.status) = (true, Some(StatusCode::UNAUTHORIZED));
    record
}

/// One exchange of the script.
#[derive(Clone)]
struct Beat {
    ends: Ends,
    takes: Duration,
    /// How far the wall clock is set meanwhile, in milliseconds.
    wall_jump: i64,
}

#[derive(Clone)]
enum Ends {
    Answered(Box<Answer>),
    Failed(FailureKind, Sent),
    /// No answer until the attempt's limit.
    Hangs,
    PrepareFails,
    LeaseLost,
}

#[derive(Clone, Copy)]
enum SaveEnds {
    Failed { may_be_saved: bool },
    LeaseLost,
}

/// What happens to one operation; without a word, all saves succeed at once and each exchange takes 10 ms.
struct Scenario {
    plan: Plan,
    record: Option<Box<Record>>,
    after_unknown: bool,
    journal_now: Timestamp,
    seed: u64,
    beats: VecDeque<Beat>,
    for_ever: bool,
    saves: HashMap<usize, SaveEnds>,
    save_takes: Duration,
    lease_lost_at_wait: Option<usize>,
    oversleeps: Duration,
    wall_jumps_asleep: i64,
}

impl Scenario {
    /// An operation that was just begun: its record is on disk as sending.
    fn new() -> Self {
        Self::of(record(Phase::Sending))
    }

    /// An operation as the journal holds it.
    fn of(record: Box<Record>) -> Self {
        Self {
            plan: Plan {
                contract: Contract::default(),
                policy: RetryPolicy::default(),
                carrying: Carrying::Key,
                classifier: None,
                budget: RetryBudget::default(),
                refresh_on_401: false,
                keep: Keep::Request,
            },
            record: Some(record),
            after_unknown: false,
            journal_now: START.wall,
            seed: 7,
            beats: VecDeque::new(),
            for_ever: false,
            saves: HashMap::new(),
            save_takes: Duration::ZERO,
            lease_lost_at_wait: None,
            oversleeps: Duration::ZERO,
            wall_jumps_asleep: 0,
        }
    }

    /// An operation found as sending after a crash.
    fn resumed() -> Self {
        Self::new().after_unknown()
    }

    fn keyless(carrying: Carrying) -> Self {
        let mut scenario = Self::new();
        scenario.record = None;
        scenario.plan.carrying = carrying;
        scenario
    }

    fn after_unknown(mut self) -> Self {
        self.after_unknown = true;
        self
    }

    /// The call begins this long after [`START`], by the journal's clock.
    fn aged(mut self, age: Duration) -> Self {
        self.journal_now = START.wall.plus(age);
        self
    }

    fn plan(mut self, change: impl FnOnce(&mut Plan)) -> Self {
        change(&mut self.plan);
        self
    }

    fn policy(mut self, change: impl FnOnce(RetryPolicy) -> RetryPolicy) -> Self {
        self.plan.policy = change(self.plan.policy);
        self
    }

    fn contract(self, change: impl FnOnce(Contract) -> Contract) -> Self {
        self.plan(|plan| plan.contract = change(plan.contract.clone()))
    }

    fn reads(self, classifier: impl Fn(&Reply) -> Option<Meaning> + Send + Sync + 'static) -> Self {
        self.plan(|plan| plan.classifier = Some(Arc::new(classifier)))
    }

    fn budget(self, budget: &RetryBudget) -> Self {
        self.plan(|plan| plan.budget = budget.clone())
    }

    /// Without jitter: 200 ms, 400 ms, 800 ms, 1.6 s …
    fn steady(self) -> Self {
        self.policy(|policy| policy.backoff(Backoff::default().jitter(Jitter::None)))
    }

    fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn answered(self, with: impl Into<Answer>) -> Self {
        self.then(Ends::Answered(Box::new(with.into())))
    }

    fn failed(self, kind: FailureKind, sent: Sent) -> Self {
        self.then(Ends::Failed(kind, sent))
    }

    /// The connection ended without an answer: it may have been executed.
    fn dropped(self) -> Self {
        self.failed(FailureKind::Connection, Sent::Perhaps)
    }

    /// Nothing listens there: it was certainly not executed.
    fn unsent(self) -> Self {
        self.failed(FailureKind::Connect, Sent::No)
    }

    fn hanging(self) -> Self {
        self.then(Ends::Hangs)
    }

    fn prepare_fails(self) -> Self {
        self.then(Ends::PrepareFails)
    }

    fn lease_lost(self) -> Self {
        self.then(Ends::LeaseLost)
    }

    fn then(mut self, ends: Ends) -> Self {
        self.beats.push_back(Beat { ends, takes: ms(10), wall_jump: 0 });
        self
    }

    /// The last exchange goes on happening.
    fn for_ever(mut self) -> Self {
        self.for_ever = true;
        self
    }

    fn taking(mut self, time: Duration) -> Self {
        self.beats.back_mut().unwrap().takes = time;
        self
    }

    fn wall_jumps(mut self, millis: i64) -> Self {
        self.beats.back_mut().unwrap().wall_jump = millis;
        self
    }

    /// The save with this number, counted from 1, certainly fails.
    fn save_fails(mut self, number: usize) -> Self {
        self.saves.insert(number, SaveEnds::Failed { may_be_saved: false });
        self
    }

    /// It fails, and may be on disk all the same.
    fn save_unconfirmed(mut self, number: usize) -> Self {
        self.saves.insert(number, SaveEnds::Failed { may_be_saved: true });
        self
    }

    fn lease_lost_at_save(mut self, number: usize) -> Self {
        self.saves.insert(number, SaveEnds::LeaseLost);
        self
    }

    fn saves_take(mut self, time: Duration) -> Self {
        self.save_takes = time;
        self
    }

    fn lease_lost_at_wait(mut self, number: usize) -> Self {
        self.lease_lost_at_wait = Some(number);
        self
    }

    /// Each wait lasts longer than asked for.
    fn oversleeping(mut self, by: Duration) -> Self {
        self.oversleeps = by;
        self
    }

    fn wall_jumps_asleep(mut self, millis: i64) -> Self {
        self.wall_jumps_asleep = millis;
        self
    }
}
