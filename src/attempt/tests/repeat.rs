//! Asked again under a known id: every phase, under the same terms and under others.

use std::time::Duration;

use http::{Method, StatusCode};
use url::Url;

use super::super::repeat::{Again, Asked, again, delivery_of, refusal};
use super::{
    BODY, Contract, Delivery, ErrorKind, Fingerprint, IdempotencyKey, KEY, Phase, Record, SAFE_WINDOW, START, URL,
    Wire, ms, record, rejected_in_front, secs,
};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::operation::StoredReply;

/// What is asked, owned, so that each difference is one changed field.
struct Ask {
    wire: Wire,
    url: Url,
    scope: Option<&'static str>,
    fingerprint: Option<Fingerprint>,
    key: Option<IdempotencyKey>,
    now: Timestamp,
}

fn fingerprint(url: &str, body: &str) -> Option<Fingerprint> {
    Some(Fingerprint::of(b"salt", &Method::POST, &Url::parse(url).unwrap(), body.as_bytes()))
}

/// The same request, an hour later.
fn same() -> Ask {
    let (wire, url) = (Wire::from(&Contract::default()), Url::parse(URL).unwrap());
    Ask { wire, url, scope: None, fingerprint: fingerprint(URL, BODY), key: None, now: START.wall.plus(secs(3_600)) }
}

impl Ask {
    fn of(&self, record: &Record) -> Again {
        again(
            record,
            &Asked {
                wire: &self.wire,
                url: &self.url,
                credential_scope: self.scope,
                fingerprint: self.fingerprint.as_ref(),
                key: self.key.as_ref(),
                now: Some(self.now),
                safe_window: SAFE_WINDOW,
            },
        )
    }

    fn after(age: Duration) -> Self {
        Self { now: START.wall.plus(age), ..same() }
    }
}

fn kept(mut record: Box<Record>) -> Box<Record> {
    let reply = StoredReply { headers: http::HeaderMap::new(), body: bytes::Bytes::from_static(b"done") };
    record.closing.as_mut().unwrap().reply = Some(reply);
    record
}

fn rejected() -> Box<Record> {
    let mut record = record(Phase::Rejected);
    record.closing.as_mut().unwrap().status = Some(StatusCode::PAYMENT_REQUIRED);
    record
}

/// A record that a person has decided upon.
fn found_out(phase: Phase) -> Box<Record> {
    let mut record = record(phase);
    record.closing.as_mut().unwrap().resolved = true;
    record
}

/// Every record that there can be, with its name.
fn every_record() -> Vec<(&'static str, Box<Record>)> {
    vec![
        ("prepared", record(Phase::Prepared)),
        ("sending", record(Phase::Sending)),
        ("completed", record(Phase::Completed)),
        ("completed, reply kept", kept(record(Phase::Completed))),
        ("rejected", rejected()),
        ("rejected, reply kept", kept(rejected())),
        ("rejected in front", rejected_in_front()),
        ("not sent", record(Phase::NotSent)),
        ("failed", record(Phase::Failed)),
        ("expired", record(Phase::Expired)),
        ("abandoned", record(Phase::Abandoned)),
        ("found to be executed", found_out(Phase::Completed)),
        ("found not to be executed", found_out(Phase::Rejected)),
        ("abandoned by hand", found_out(Phase::Abandoned)),
    ]
}

fn in_words(again: &Again) -> String {
    match again {
        Again::Drive { after_unknown: false } => "drive".to_owned(),
        Again::Drive { after_unknown: true } => "drive after unknown".to_owned(),
        Again::Recall => "recall".to_owned(),
        Again::Refuse(error) => format!("{:?}", error.kind()),
    }
}

#[test]
fn r25_r26_t16_k07_the_same_request_inside_and_past_the_window() {
    let table = [
        ("prepared", "drive", "drive"),
        // Past the window it is for the machine to close it, under the lease.
        ("sending", "drive after unknown", "drive after unknown"),
        ("completed", "drive after unknown", "Closed"),
        ("completed, reply kept", "recall", "recall"),
        ("rejected", "recall", "recall"),
        ("rejected, reply kept", "recall", "recall"),
        ("rejected in front", "drive", "drive"),
        ("not sent", "drive", "drive"),
        ("failed", "Closed", "Closed"),
        ("expired", "Closed", "Closed"),
        ("abandoned", "Closed", "Closed"),
        ("found to be executed", "Closed", "Closed"),
        ("found not to be executed", "Closed", "Closed"),
        ("abandoned by hand", "Closed", "Closed"),
    ];
    assert_eq!(every_record().len(), table.len());
    for ((name, record), (row, inside, past)) in every_record().into_iter().zip(table) {
        assert_eq!(name, row);
        assert_eq!(in_words(&same().of(&record)), inside, "{name}, inside");
        assert_eq!(in_words(&Ask::after(SAFE_WINDOW - ms(1)).of(&record)), inside, "{name}, just inside");
        assert_eq!(in_words(&Ask::after(SAFE_WINDOW).of(&record)), past, "{name}, at its end");
        assert_eq!(in_words(&Ask::after(secs(10 * 365 * 86_400)).of(&record)), past, "{name}, long after");
    }
}

/// Every way to ask for something else, with a word that the refusal has to have.
fn every_difference() -> Vec<(&'static str, Ask)> {
    let other_origin = "https://api.example.org/orders?token=query-secret";
    let contract = |contract: Contract| Wire::from(&contract);
    vec![
        ("body", Ask { fingerprint: fingerprint(URL, "{}"), ..same() }),
        (
            "https://api.example.org",
            Ask { url: Url::parse(other_origin).unwrap(), fingerprint: fingerprint(other_origin, BODY), ..same() },
        ),
        // The scheme and the port are part of the origin, and a port that is the scheme's own is none.
        ("http://api.example.com", Ask { url: Url::parse("http://api.example.com/").unwrap(), ..same() }),
        (":8443", Ask { url: Url::parse("https://api.example.com:8443/").unwrap(), ..same() }),
        ("\"acme\"", Ask { wire: contract(Contract::named("acme")), ..same() }),
        ("contract", Ask { wire: contract(Contract::default().header("x-request-id")), ..same() }),
        ("contract", Ask { wire: contract(Contract::default().window(secs(60))), ..same() }),
        (
            "contract",
            Ask {
                wire: contract(Contract::default().serialisation(crate::key::Serialisation::StructuredField)),
                ..same()
            },
        ),
        ("credential scope", Ask { scope: Some("tenant-7"), ..same() }),
        ("key", Ask { key: Some(IdempotencyKey::parse("another-secret-key-0001").unwrap()), ..same() }),
    ]
}

fn refused(again: Again, what: &str) -> Error {
    match again {
        Again::Refuse(error) => *error,
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn k05_k08_k15_j11_j12_anything_else_is_refused_in_every_phase_and_nothing_is_sent() {
    for (name, record) in every_record() {
        for (word, ask) in every_difference() {
            let error = refused(ask.of(&record), name);
            assert_eq!(error.kind(), ErrorKind::PayloadMismatch, "{name}: {word}");
            assert!(error.to_string().contains(word) && error.to_string().contains("order-42"), "{error}");
            // A local refusal reports the record and not itself.
            assert_eq!((error.phase(), error.delivery()), (Some(record.phase), delivery_of(&record)), "{name}");
            assert_eq!(error.key().unwrap(), &record.key);
            assert_eq!(error.first_sent_at(), record.first_sent_at);
            let shown = format!("{error} {error:?} {}", error.report());
            assert!(!shown.contains("secret"), "{shown}");
        }
    }
}

#[test]
fn j11_a_scope_that_was_named_has_to_be_named_again() {
    let mut scoped = record(Phase::Sending);
    scoped.credential_scope = Some("tenant-7".to_owned());
    assert!(matches!(same().of(&scoped), Again::Refuse(_)));
    assert!(matches!(Ask { scope: Some("tenant-8"), ..same() }.of(&scoped), Again::Refuse(_)));
    assert!(matches!(Ask { scope: Some("tenant-7"), ..same() }.of(&scoped), Again::Drive { .. }));
}

#[test]
fn k03_the_caller_s_own_key_is_taken_if_it_is_the_recorded_one() {
    let ask = Ask { key: Some(IdempotencyKey::parse(KEY).unwrap()), ..same() };
    assert!(matches!(ask.of(&record(Phase::Sending)), Again::Drive { .. }));
}

#[test]
fn a_record_without_a_fingerprint_takes_the_request_at_its_word_within_its_origin() {
    let mut bare = record(Phase::Sending);
    bare.fingerprint = None;
    assert!(matches!(Ask { fingerprint: fingerprint(URL, "{}"), ..same() }.of(&bare), Again::Drive { .. }));
    let elsewhere = Ask { url: Url::parse("https://api.example.org/").unwrap(), ..same() };
    assert!(matches!(elsewhere.of(&bare), Again::Refuse(_)));
}

#[test]
fn what_is_known_from_the_record_alone() {
    use Delivery::{Answered, NotSent, Unknown};
    let known: Vec<Delivery> = every_record().iter().map(|(_, record)| delivery_of(record)).collect();
    assert_eq!(
        known,
        [
            NotSent, Unknown, Answered, Answered, Answered, Answered, Answered, NotSent, Unknown, Unknown, Unknown,
            Answered, Answered, Unknown
        ]
    );
    let mut never_sent = record(Phase::Abandoned);
    never_sent.first_sent_at = None;
    assert_eq!(delivery_of(&never_sent), NotSent);
}

#[test]
fn a_lock_reports_the_record_s_delivery_and_next_time() {
    let mut waiting = record(Phase::Sending);
    waiting.next_attempt_at = Some(START.wall.plus(secs(90)));
    let error = refusal(&waiting, ErrorKind::Locked, "driven elsewhere".to_owned());
    assert_eq!((error.delivery(), error.is_pending()), (Delivery::Unknown, true));
    assert_eq!(error.next_attempt_at(), waiting.next_attempt_at);
    let error = refusal(&record(Phase::Prepared), ErrorKind::Locked, "driven elsewhere".to_owned());
    assert_eq!((error.delivery(), error.is_pending()), (Delivery::NotSent, true));
}

#[test]
fn a_closed_operation_says_what_to_do() {
    for (phase, remedy) in [
        (Phase::Failed, "find out at the server"),
        (Phase::Expired, "find out at the server"),
        (Phase::Abandoned, "never sent"),
    ] {
        let error = refused(same().of(&record(phase)), "closed");
        assert!(error.to_string().contains(remedy), "{error}");
        assert!(!error.is_pending());
    }
    let error = refused(Ask::after(SAFE_WINDOW).of(&record(Phase::Completed)), "completed");
    assert!(error.to_string().contains("completed at Thu, 27 Aug 2026 11:10:53 GMT"), "{error}");
    assert_eq!(error.delivery(), Delivery::Answered);
}
