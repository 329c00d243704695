//! An operation that commits or rolls back together with the caller's own data, and is sent after the commit.

use std::fmt;

use super::freeze::Frozen;
use super::job::Job;
use super::{Call, IdempotentClient, RequestBuilder};
use crate::attempt::{AskedAgain, Carrying, again};
use crate::error::{Error, ErrorKind};
use crate::history::Delivery;
use crate::journal::Journal as _;
use crate::journal::SqliteJournal;
use crate::journal::rusqlite::Transaction;
use crate::key::IdempotencyKey;
use crate::operation::{Keep, OperationId, Phase, Record, Wire};
use crate::response::Response;

/// An operation that was begun in a transaction and is still to be sent.
///
/// If the process dies before [`send`](Self::send), [`resume`](IdempotentClient::resume) sends it later, provided that the
/// transaction was committed.
#[must_use = "the operation is not sent before `send`, or by a later `resume`"]
pub struct Pending {
    client: IdempotentClient,
    call: Call,
    record: Record,
}

impl SqliteJournal {
    /// Begins an operation inside the caller's transaction on the journal's own database file: the caller's rows and the
    /// operation are committed together, or neither is. Send it after the commit.
    ///
    /// The request is one of a client with this journal. It is named, so that it can be asked for again, and its body is in
    /// memory.
    ///
    /// # Errors
    ///
    /// Nothing is sent, and the transaction can go on. [`ErrorKind::Configuration`] without an operation id, with
    /// [`Keep::Key`](crate::Keep::Key), or with a method that carries no key; [`ErrorKind::PayloadMismatch`] if the
    /// operation is known with another payload; [`ErrorKind::Journal`] if the transaction is on another database, or SQLite
    /// failed; and the kinds of a request that cannot be built.
    pub fn begin_in(&self, transaction: &Transaction<'_>, request: RequestBuilder) -> Result<Pending, Error> {
        let configuration = |problem: &'static str| Err(Error::new(ErrorKind::Configuration, problem));
        let (client, mut call, factory) = request.into_call()?;
        if factory.is_some() {
            return configuration("a body from `body_with` cannot be read inside a transaction; pass bytes");
        }
        if client.0.journal.salt() != self.salt() {
            return configuration("the request is of a client with another journal; build the client with this one");
        }
        let Some(operation) = call.operation.clone() else {
            return configuration("an operation in a transaction is sent later, so name it with `operation(…)`");
        };
        let job = Job::of(&client, &call)?;
        let own_key = job.own_key(&mut call.request, call.key.take())?;
        let record = job.prepared(&mut call.request, operation, own_key.clone())?;
        match self.insert_in(transaction, record.clone()) {
            Ok(None) => Ok(Pending { client, call, record }),
            Ok(Some(known)) => {
                job.check_same(&call.request, &known, own_key.as_ref())?;
                Ok(Pending { client, call, record: known })
            }
            Err(error) => Err(Error::new(ErrorKind::Journal, "the operation could not be begun in the transaction")
                .caused_by(std::sync::Arc::new(error))),
        }
    }
}

impl Pending {
    /// The operation's id.
    #[must_use]
    pub fn operation(&self) -> &OperationId {
        &self.record.operation
    }

    /// Sends the operation, after the transaction was committed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownOperation`] if the transaction was not committed, or the client has another journal; and of the
    /// kinds that [`RequestBuilder::send`] lists.
    ///
    /// # Cancel safety
    ///
    /// As [`RequestBuilder::send`].
    pub async fn send(self) -> Result<Response, Error> {
        let Self { client, call, record } = self;
        let known = client.operation(record.operation.as_str()).await?;
        let Some(known) = known else {
            let message = format!(
                "operation {} is not in the client's journal, so nothing was sent; commit the transaction first, and give \
                 the client the journal that it was begun in",
                record.operation
            );
            // It may be committed later, and is sent then.
            let error = Error::new(ErrorKind::UnknownOperation, message);
            return Err(error.delivered(Delivery::Unknown).pending_as(record.operation));
        };
        let job = Job::of(&client, &call)?;
        // What is sent now must be what was begun.
        job.check_same(&call.request, &known, None)?;
        job.keyed_known(call.request, known).await
    }
}

impl Job<'_> {
    /// The record of an operation that is begun in the caller's transaction and sent later.
    fn prepared(
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
    fn check_same(&self, request: &Frozen, known: &Record, key: Option<&IdempotencyKey>) -> Result<(), Error> {
        let (wire, fingerprint) = (Wire::from(&self.terms.contract), self.fingerprint(request));
        match again(known, &self.asked(&wire, request, Some(&fingerprint), key)) {
            AskedAgain::Refuse(error) if error.kind() == ErrorKind::PayloadMismatch => Err(*error),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("record", &self.record).finish_non_exhaustive()
    }
}
