//! How one call becomes one operation: its key, its record, its flight, and whoever drives it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use tracing::{Instrument as _, debug_span};

use super::caller_key::{invalid_key, read_key};
use super::flight::{Joined, Manifest};
use super::freeze::Frozen;
use super::settings::Terms;
use super::{Call, IdempotentClient, Inner};
use crate::attempt::{Asked, AskedAgain, Attempts, Carrying, Plan, again, refusal};
use crate::clock::Timestamp;
use crate::driver::{Custody, Driver};
use crate::error::{Error, ErrorKind};
use crate::fingerprint::{Fingerprint, without_credentials};
use crate::history::Delivery;
use crate::journal::{Acquired, Begun, JournalError, JournalErrorKind, Lease};
use crate::key::{IdempotencyKey, KeyError};
use crate::operation::{Keep, OperationId, Phase, Record, StoredRequest, Wire};
use crate::response::Response;
use crate::transport::Outgoing;

/// One call under decided terms.
pub(super) struct Job<'a> {
    pub(super) client: &'a Inner,
    pub(super) http: reqwest::Client,
    pub(super) guarded: bool,
    pub(super) terms: Terms,
    /// When the call began, on the monotonic clock.
    pub(super) began: Duration,
}

impl<'a> Job<'a> {
    /// The job of a call, under the terms that call and client set together.
    pub(super) fn of(client: &'a IdempotentClient, call: &Call) -> Result<Self, Error> {
        let terms = call.settings.clone().over(&client.0.settings)?;
        let began = client.0.clock.now().monotonic;
        Ok(Self { client: &client.0, http: call.http.clone(), guarded: call.guarded, terms, began })
    }

    /// What makes a request of this method repeatable.
    pub(super) fn carrying(&self, method: &Method) -> Carrying {
        if self.terms.contract.carries_key(method) {
            Carrying::Key
        } else if method.is_idempotent() {
            Carrying::Method
        } else {
            Carrying::Nothing
        }
    }

    pub(super) async fn keyless(self, request: Frozen, carrying: Carrying) -> Result<Response, Error> {
        let now = self.client.clock.now();
        let (attempts, step) =
            Attempts::start(self.plan(carrying), None, false, now.wall, now, self.client.next_seed());
        self.driver(request, None, None).run(attempts, step).await
    }

    pub(super) async fn keyed(
        self,
        mut request: Frozen,
        operation: Option<OperationId>,
        key: Option<IdempotencyKey>,
    ) -> Result<Response, Error> {
        let own_key = self.own_key(&mut request, key)?;
        let Some(operation) = operation else {
            if self.terms.keep == Keep::Key {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    "`Keep::Key` keeps no request, so only the caller can ask for it again; name it with `operation(…)`",
                ));
            }
            let operation =
                OperationId::generate().map_err(|error| Error::new(ErrorKind::InvalidKey, error.to_string()))?;
            let way = self.begin(&request, operation, own_key, None).await;
            return self.go(request, way).await;
        };
        self.fly(request, operation, own_key, None).await
    }

    /// Takes up a record as it was found, in the operation's flight.
    pub(super) async fn keyed_known(self, request: Frozen, known: Record) -> Result<Response, Error> {
        self.fly(request, known.operation.clone(), None, Some(&known)).await
    }

    /// Leads the operation's flight, or shares in what comes of it.
    async fn fly(
        self,
        request: Frozen,
        operation: OperationId,
        own_key: Option<IdempotencyKey>,
        known: Option<&Record>,
    ) -> Result<Response, Error> {
        let fingerprint = known.and_then(|known| known.fingerprint).unwrap_or_else(|| self.fingerprint(&request));
        let manifest = Manifest {
            fingerprint,
            wire: Wire::from(&self.terms.contract),
            credential_scope: self.terms.credential_scope.clone(),
            key: own_key.clone(),
        };
        let joined = self.within(self.client.flights.join(&operation, manifest)).await;
        match joined.ok_or_else(|| self.out_of_time(operation.clone()))? {
            Joined::Landed(result) => result,
            Joined::Leads(seat) => {
                let way = match known {
                    None => self.begin(&request, operation, own_key, Some(fingerprint)).await,
                    Some(known) => self.take_up(&request, known, own_key, Some(fingerprint)).await,
                };
                seat.land(self.go(request, way).await)
            }
            Joined::OtherManifest => Err(Error::new(
                ErrorKind::PayloadMismatch,
                "it is in flight with another method, URL, body, key, contract or credential scope; nothing was sent, and \
                 a corrected request needs a new id",
            )
            .delivered(Delivery::Unknown)
            .pending_as(operation)),
        }
    }

    /// Waits for something no longer than the call may take. A journal in memory answers at once, and costs no timer.
    pub(super) async fn within<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let at_once = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(output) = at_once.await {
            return Some(output);
        }
        tokio::select! {
            biased;
            output = &mut future => Some(output),
            () = self.client.clock.timer(self.time_left()) => None,
        }
    }

    fn time_left(&self) -> Duration {
        let spent = self.client.clock.now().monotonic.saturating_sub(self.began);
        self.terms.retry.deadline.saturating_sub(spent)
    }

    /// The deadline came while the journal, or another call for the operation, was being waited for.
    fn out_of_time(&self, operation: OperationId) -> Error {
        let deadline = self.terms.retry.deadline;
        let message = format!("the deadline of {deadline:?} came before this call could send anything");
        Error::new(ErrorKind::DeadlineExceeded, message).delivered(Delivery::Unknown).pending_as(operation)
    }

    pub(super) fn fingerprint(&self, request: &Frozen) -> Fingerprint {
        Fingerprint::of(self.client.journal.salt(), &request.method, &request.url, &request.body)
    }

    pub(super) fn asked<'b>(
        &'b self,
        wire: &'b Wire,
        request: &'b Frozen,
        fingerprint: Option<&'b Fingerprint>,
        key: Option<&'b IdempotencyKey>,
    ) -> Asked<'b> {
        Asked {
            wire,
            url: &request.url,
            credential_scope: self.terms.credential_scope.as_deref(),
            fingerprint,
            key,
            now: None,
            safe_window: self.terms.contract.safe_window(),
        }
    }

    /// The caller's own key: set, or taken out of the request's headers.
    pub(super) fn own_key(
        &self,
        request: &mut Frozen,
        set: Option<IdempotencyKey>,
    ) -> Result<Option<IdempotencyKey>, Error> {
        let contract = &self.terms.contract;
        let name = contract.key_header();
        let headers = request.headers.get_all(name).iter().count();
        let count = headers.saturating_add(usize::from(set.is_some()));
        if count > 1 {
            let problem =
                format!("the request has {count} keys in `{name}`; set one, or leave it out to have a key generated");
            return Err(Error::new(ErrorKind::InvalidKey, problem));
        }
        let key = match (set, request.headers.remove(name)) {
            (None, None) => return Ok(None),
            (Some(key), _) => Ok(key),
            (None, Some(value)) => read_key(&value, contract.key_serialisation()),
        };
        let key = key.and_then(|key| contract.accepts(&key).map(|()| key));
        key.map(Some).map_err(|error| invalid_key(contract, &error))
    }

    pub(super) fn new_key(&self) -> Result<IdempotencyKey, Error> {
        let contract = &self.terms.contract;
        let key = match &self.client.key_source {
            Some(source) => source().map_err(|error| KeyError::Source(error.to_string())),
            None => IdempotencyKey::generate(),
        };
        key.and_then(|key| contract.accepts(&key).map(|()| key)).map_err(|error| invalid_key(contract, &error))
    }

    /// Begins the operation, or takes it up where it stands.
    async fn begin(
        &self,
        request: &Frozen,
        operation: OperationId,
        own_key: Option<IdempotencyKey>,
        fingerprint: Option<Fingerprint>,
    ) -> Result<Way, Error> {
        let journal = &self.client.journal;
        let key = match own_key.clone().map_or_else(|| self.new_key(), Ok) {
            Ok(key) => key,
            // A known operation has its key already, and needs no new one.
            Err(failed) if fingerprint.is_some() => {
                let known = self.within(journal.get(operation.clone())).await;
                return match known.ok_or_else(|| self.out_of_time(operation.clone()))? {
                    Ok(Some(known)) => self.take_up(request, &known, own_key, fingerprint).await,
                    Ok(None) => Err(failed),
                    Err(_) => Err(failed.delivered(Delivery::Unknown).pending_as(operation)),
                };
            }
            Err(failed) => return Err(failed),
        };
        let wire = Wire::from(&self.terms.contract);
        let record = self.record(request, operation.clone(), key, wire, fingerprint);
        let begun = self.within(journal.begin(record, self.lease())).await;
        let begun = begun.ok_or_else(|| self.out_of_time(operation.clone()))?.map_err(|error| {
            // Nobody can have begun what got its name just now; what the caller named may have been begun long ago.
            let unheard_of = fingerprint.is_none() || error.is_absent();
            let may_be_pending = error.may_be_saved() || !unheard_of;
            let failed =
                Error::new(ErrorKind::Journal, "it could not be begun in the journal, so this call sent nothing")
                    .caused_by(Arc::new(error));
            if may_be_pending { failed.delivered(Delivery::Unknown).pending_as(operation) } else { failed }
        })?;
        match begun {
            Begun::New { record, lease, now } => Ok(Way::Drive { record, lease, after_unknown: false, now }),
            Begun::Known(known) => self.take_up(request, &known, own_key, fingerprint).await,
        }
    }

    /// Takes up an operation that the journal knows, as far as its phase allows.
    pub(super) async fn take_up(
        &self,
        request: &Frozen,
        known: &Record,
        own_key: Option<IdempotencyKey>,
        fingerprint: Option<Fingerprint>,
    ) -> Result<Way, Error> {
        let wire = Wire::from(&self.terms.contract);
        let asked = self.asked(&wire, request, fingerprint.as_ref(), own_key.as_ref());
        match again(known, &asked) {
            AskedAgain::Refuse(error) => return Err(*error),
            AskedAgain::Recall => return recalled(known),
            AskedAgain::Drive { .. } => {}
        }
        let journal = &self.client.journal;
        let acquired = self.within(journal.acquire(known.operation.clone(), self.lease())).await;
        match acquired
            .ok_or_else(|| self.out_of_time(known.operation.clone()))?
            .map_err(|error| unread(known, error))?
        {
            // It may have changed between the two looks; this one holds, since nobody else may write now.
            Acquired::Taken { record, lease, now } => match again(&record, &Asked { now: Some(now), ..asked }) {
                AskedAgain::Drive { after_unknown } => Ok(Way::Drive { record, lease, after_unknown, now }),
                AskedAgain::Refuse(error) => {
                    journal.relinquish(lease);
                    Err(*error)
                }
                AskedAgain::Recall => {
                    journal.relinquish(lease);
                    recalled(&record)
                }
            },
            // Whatever the record said a moment ago, whoever drives it may be sending by now.
            Acquired::Held { until } => Err(refusal(
                &Record { phase: Phase::Sending, ..known.clone() },
                ErrorKind::Locked,
                format!("it is being driven elsewhere, until {until} at the latest; ask again after that"),
            )),
            Acquired::Unknown => Err(refusal(
                known,
                ErrorKind::Journal,
                "its record vanished from the journal while it was asked for, so nothing was sent".to_owned(),
            )),
        }
    }

    /// How long a worker may drive a record: one call, and the attempt that it may have started at the end.
    fn lease(&self) -> Duration {
        self.terms.retry.deadline.saturating_add(self.terms.retry.attempt_timeout)
    }

    /// Goes the way that was found.
    pub(super) async fn go(mut self, request: Frozen, way: Result<Way, Error>) -> Result<Response, Error> {
        let (mut record, lease, after_unknown, journal_now) = match way? {
            Way::Recalled(response) => return Ok(*response),
            Way::Drive { record, lease, after_unknown, now } => (record, lease, after_unknown, now),
        };
        // What was waited for so far counts.
        self.terms.retry.deadline = self.time_left();
        // A closing dropped the stored request; opened again, the operation needs it for the next crash.
        if record.request.is_none() && record.phase != Phase::Completed {
            record.request = self.kept(&request);
            // Under `Keep::Key` the URL was stored without its query; a request that is kept is kept whole.
            if record.request.is_some() {
                record.url = without_credentials(&request.url);
            }
        }
        let key = (self.terms.contract.key_header().clone(), self.terms.contract.header_value(&record.key));
        let custody = Custody::new(Arc::clone(&self.client.journal), lease);
        let span = debug_span!("operation", operation = %record.operation, key.tail = record.key.tail());
        let (attempts, step) = Attempts::start(
            self.plan(Carrying::Key),
            Some(record),
            after_unknown,
            journal_now,
            self.client.clock.now(),
            self.client.next_seed(),
        );
        self.driver(request, Some(key), Some(custody)).run(attempts, step).instrument(span).await
    }

    pub(super) fn record(
        &self,
        request: &Frozen,
        operation: OperationId,
        key: IdempotencyKey,
        wire: Wire,
        fingerprint: Option<Fingerprint>,
    ) -> Record {
        let mut url = without_credentials(&request.url);
        if self.terms.keep == Keep::Key {
            url.set_query(None);
        }
        Record {
            operation,
            named: fingerprint.is_some(),
            key,
            phase: Phase::Sending,
            wire,
            method: request.method.clone(),
            url,
            credential_scope: self.terms.credential_scope.clone(),
            fingerprint,
            request: self.kept(request),
            // The journal stamps these with its own time.
            begun_at: Timestamp::default(),
            first_sent_at: None,
            updated_at: Timestamp::default(),
            next_attempt_at: None,
            attempts: 0,
            closing: None,
        }
    }

    /// What the journal keeps of the request.
    fn kept(&self, request: &Frozen) -> Option<StoredRequest> {
        let key_header = self.terms.contract.key_header();
        (self.terms.keep != Keep::Key).then(|| request.stored(key_header, self.guarded))
    }

    fn plan(&self, carrying: Carrying) -> Plan {
        Plan {
            contract: self.terms.contract.clone(),
            policy: self.terms.retry.clone(),
            carrying,
            classifier: self.terms.classifier.clone(),
            budget: self.client.budget.clone(),
            refresh_on_401: self.terms.refresh_on_401,
            keep: self.terms.keep,
        }
    }

    fn driver(self, request: Frozen, key: Option<(HeaderName, HeaderValue)>, custody: Option<Custody>) -> Driver {
        let Frozen { method, url, headers, body, version, timeout } = request;
        Driver {
            clock: Arc::clone(&self.client.clock),
            outgoing: Outgoing {
                client: self.http,
                guarded: self.guarded,
                method,
                url,
                headers,
                body,
                version,
                timeout,
            },
            key,
            custody,
            prepare: self.terms.prepare,
            reply_limit: self.terms.reply_limit,
        }
    }
}

/// What is to be done about an operation.
pub(super) enum Way {
    /// Its attempts, under this lease.
    Drive { record: Box<Record>, lease: Lease, after_unknown: bool, now: Timestamp },
    /// Nothing: the journal has its answer.
    Recalled(Box<Response>),
}

/// The answer that closed an operation, from its record.
fn recalled(record: &Record) -> Result<Way, Error> {
    Response::recalled(record).map(|response| Way::Recalled(Box::new(response))).ok_or_else(|| {
        let message = format!("it was {} at {}, and the answer was not kept", record.phase, record.updated_at);
        refusal(record, ErrorKind::Closed, message)
    })
}

fn unread(known: &Record, error: JournalError) -> Error {
    let (kind, message) = match error.kind() {
        JournalErrorKind::ClockBehind => (
            ErrorKind::WindowExpired,
            "the clock is behind the journal's newest time, so nobody can say whether the server still knows the key; \
             correct the clock and ask again",
        ),
        _ => (ErrorKind::Journal, "the journal could not be read, so nothing was sent"),
    };
    refusal(known, kind, message.to_owned()).caused_by(Arc::new(error))
}
