//! How one call becomes one operation: its key, its record, its flight, and whoever drives it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use tracing::{Instrument as _, debug_span};

use super::flight::Joined;
use super::freeze::Frozen;
use super::settings::Terms;
use super::{Call, IdempotentClient, Inner};
use crate::attempt::{Asked, AskedAgain, Attempts, Carrying, Plan, again, refusal};
use crate::clock::Timestamp;
use crate::contract::Contract;
use crate::driver::{Custody, Driver};
use crate::error::{Error, ErrorKind};
use crate::fingerprint::{Fingerprint, without_credentials};
use crate::history::Delivery;
use crate::journal::{Acquired, Begun, JournalError, JournalErrorKind, Lease};
use crate::key::{IdempotencyKey, KeyError, Serialisation};
use crate::operation::{Keep, OperationId, Phase, Record, StoredRequest, Wire};
use crate::response::Response;
use crate::transport::Outgoing;

/// One call under decided terms.
pub(super) struct Job<'a> {
    pub(super) client: &'a Inner,
    pub(super) http: reqwest::Client,
    pub(super) guarded: bool,
    pub(super) terms: Terms,
}

impl<'a> Job<'a> {
    /// The job of a call, under the terms that call and client set together.
    pub(super) fn of(client: &'a IdempotentClient, call: &Call) -> Result<Self, Error> {
        let terms = call.settings.clone().over(&client.0.settings)?;
        Ok(Self { client: &client.0, http: call.http.clone(), guarded: call.guarded, terms })
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
            return self.operate(request, operation, own_key, None).await;
        };
        let fingerprint = self.fingerprint(&request);
        self.fly(request, operation, fingerprint, Found::Nothing { own_key }).await
    }

    /// Takes up a record as it was found, in the operation's flight.
    pub(super) async fn keyed_known(
        self,
        request: Frozen,
        known: Record,
        fingerprint: Fingerprint,
    ) -> Result<Response, Error> {
        self.fly(request, known.operation.clone(), fingerprint, Found::Record(Box::new(known))).await
    }

    /// Leads the operation's flight, or shares in what comes of it.
    async fn fly(
        self,
        request: Frozen,
        operation: OperationId,
        fingerprint: Fingerprint,
        found: Found,
    ) -> Result<Response, Error> {
        match self.client.flights.join(&operation, fingerprint).await {
            Joined::Landed(result) => result,
            Joined::Leads(seat) => {
                let result = match found {
                    Found::Nothing { own_key } => self.operate(request, operation, own_key, Some(fingerprint)).await,
                    Found::Record(known) => self.take_up(request, &known, None, Some(fingerprint)).await,
                };
                seat.land(result)
            }
            Joined::OtherPayload => Err(Error::new(
                ErrorKind::PayloadMismatch,
                format!(
                    "operation {operation} is in flight with another method, URL or body; nothing was sent, and a \
                     corrected request needs a new id"
                ),
            )
            .delivered(Delivery::Unknown)),
        }
    }

    pub(super) fn fingerprint(&self, request: &Frozen) -> Fingerprint {
        Fingerprint::of(self.client.journal.salt(), &request.method, &request.url, &request.body)
    }

    /// The record of an operation that is begun in the caller's transaction and sent later.
    #[cfg(feature = "_sqlite")]
    pub(super) fn prepared(
        &self,
        request: &mut Frozen,
        operation: OperationId,
        key: Option<IdempotencyKey>,
    ) -> Result<Record, Error> {
        let configuration = |problem| Err(Error::new(ErrorKind::Configuration, problem));
        if self.carrying(&request.method) != Carrying::Key {
            return configuration("the contract gives this method no key, so it cannot be an operation");
        }
        if self.terms.keep == Keep::Key {
            return configuration("`Keep::Key` keeps no request, so nobody could send it later; keep the request");
        }
        let key = match self.own_key(request, key)? {
            Some(key) => key,
            None => self.new_key()?,
        };
        let wire = Wire::from(&self.terms.contract);
        let record = self.record(request, operation, key, wire, Some(self.fingerprint(request)));
        Ok(Record { phase: Phase::Prepared, ..record })
    }

    /// Whether a request may be made under a known operation's id at all.
    #[cfg(feature = "_sqlite")]
    pub(super) fn check_same(&self, request: &Frozen, known: &Record) -> Result<(), Error> {
        let (wire, fingerprint) = (Wire::from(&self.terms.contract), self.fingerprint(request));
        match again(known, &self.asked(&wire, request, Some(&fingerprint), None)) {
            AskedAgain::Refuse(error) if error.kind() == ErrorKind::PayloadMismatch => Err(*error),
            _ => Ok(()),
        }
    }

    fn asked<'b>(
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
            now: self.client.clock.now().wall,
            safe_window: self.terms.contract.safe_window(),
        }
    }

    /// The caller's own key: set, or taken out of the request's headers.
    fn own_key(&self, request: &mut Frozen, set: Option<IdempotencyKey>) -> Result<Option<IdempotencyKey>, Error> {
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

    fn new_key(&self) -> Result<IdempotencyKey, Error> {
        let contract = &self.terms.contract;
        let key = match &self.client.key_source {
            Some(source) => source().map_err(|error| KeyError::Source(error.to_string())),
            None => IdempotencyKey::generate(),
        };
        key.and_then(|key| contract.accepts(&key).map(|()| key)).map_err(|error| invalid_key(contract, &error))
    }

    /// Begins the operation, or takes it up where it stands, and drives it.
    async fn operate(
        self,
        request: Frozen,
        operation: OperationId,
        own_key: Option<IdempotencyKey>,
        fingerprint: Option<Fingerprint>,
    ) -> Result<Response, Error> {
        let key = match &own_key {
            Some(key) => key.clone(),
            None => self.new_key()?,
        };
        let wire = Wire::from(&self.terms.contract);
        let record = self.record(&request, operation.clone(), key, wire, fingerprint);
        let begun = self.client.journal.begin(record, self.lease()).await.map_err(|error| {
            let sent = if error.may_be_saved() { Delivery::Unknown } else { Delivery::NotSent };
            let message = format!("operation {operation} could not be begun in the journal, so nothing was sent");
            let may_be_saved = error.may_be_saved();
            let failed = Error::new(ErrorKind::Journal, message).caused_by(Arc::new(error)).delivered(sent);
            if may_be_saved { failed.pending_as(operation.clone()) } else { failed }
        })?;
        match begun {
            Begun::New { record, lease, now } => self.drive(request, record, lease, false, now).await,
            Begun::Known(known) => self.take_up(request, &known, own_key, fingerprint).await,
        }
    }

    /// Takes up an operation that the journal knows, as far as its phase allows.
    pub(super) async fn take_up(
        self,
        request: Frozen,
        known: &Record,
        own_key: Option<IdempotencyKey>,
        fingerprint: Option<Fingerprint>,
    ) -> Result<Response, Error> {
        let wire = Wire::from(&self.terms.contract);
        let asked = self.asked(&wire, &request, fingerprint.as_ref(), own_key.as_ref());
        match again(known, &asked) {
            AskedAgain::Refuse(error) => return Err(*error),
            AskedAgain::Recall => return recalled(known),
            AskedAgain::Drive { .. } => {}
        }
        let journal = &self.client.journal;
        let acquired = journal.acquire(known.operation.clone(), self.lease()).await;
        match acquired.map_err(|error| unread(known, error))? {
            // It may have changed between the two looks; this one holds, since nobody else may write now.
            Acquired::Taken { record, lease, now } => match again(&record, &Asked { now, ..asked }) {
                AskedAgain::Drive { after_unknown } => self.drive(request, record, lease, after_unknown, now).await,
                AskedAgain::Refuse(error) => {
                    journal.relinquish(lease);
                    Err(*error)
                }
                AskedAgain::Recall => {
                    journal.relinquish(lease);
                    recalled(&record)
                }
            },
            Acquired::Held { until } => Err(refusal(
                known,
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

    async fn drive(
        self,
        request: Frozen,
        mut record: Box<Record>,
        lease: Lease,
        after_unknown: bool,
        journal_now: Timestamp,
    ) -> Result<Response, Error> {
        // A closing dropped the stored request; opened again, the operation needs it for the next crash.
        if record.request.is_none() && record.phase != Phase::Completed {
            record.request = self.kept(&request);
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

    fn record(
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

/// What was known of an operation when it was asked for.
enum Found {
    Nothing { own_key: Option<IdempotencyKey> },
    Record(Box<Record>),
}

/// The answer that closed an operation, from its record.
fn recalled(record: &Record) -> Result<Response, Error> {
    Response::recalled(record).ok_or_else(|| {
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

fn invalid_key(contract: &Contract, error: &KeyError) -> Error {
    Error::new(ErrorKind::InvalidKey, format!("for the contract {:?}: {error}", contract.name()))
}

/// A key out of the caller's own header. It goes back as it came, so only a well-formed one is taken.
fn read_key(value: &HeaderValue, serialisation: Serialisation) -> Result<IdempotencyKey, KeyError> {
    let text = value.to_str().map_err(|_| {
        let position = value.as_bytes().iter().position(|byte| !matches!(byte, b' '..=b'~')).unwrap_or_default();
        KeyError::Character { character: char::REPLACEMENT_CHARACTER, position }
    })?;
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match (serialisation, quoted) {
        (Serialisation::StructuredField, Some(quoted)) => {
            let mut plain = String::with_capacity(quoted.len());
            let mut characters = quoted.chars();
            while let Some(character) = characters.next() {
                plain.push(if character == '\\' { characters.next().unwrap_or('\\') } else { character });
            }
            IdempotencyKey::parse(&plain)
        }
        _ => IdempotencyKey::parse(text),
    }
}
