//! After a restart: what is unfinished, and how it is finished.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use http::HeaderMap;
use tokio::task::JoinSet;

use super::IdempotentClient;
use super::freeze::Frozen;
use super::job::Job;
use super::settings::Settings;
use super::settle::{PAGE, unreadable};
use crate::attempt::refusal;
use crate::clock::BoxFuture;
use crate::error::{Error, ErrorKind};
use crate::history::Delivery;
use crate::journal::JournalError;
use crate::operation::{OperationId, Record};
use crate::response::Response;

/// One unfinished operation, as [`IdempotentClient::resume`] left it.
#[derive(Debug)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "nearly every item is the large one")]
pub enum ResumedItem {
    /// It was driven, and this came of it. An error that says [`is_pending`](Error::is_pending) comes up again next time.
    Done(OperationId, Result<Response, Error>),
    /// It cannot be sent from the journal alone.
    NeedsRequest(Box<NeedsRequest>),
    /// The journal could not be read further.
    JournalFailed(Error),
}

/// An unfinished operation whose request the journal does not have in full: its body was not kept, or it had headers that
/// are never stored, such as credentials, or it went through a client of the caller's.
///
/// Either ask for it again under its id with the same request, or [`send`](Self::send) what is stored with what is missing.
#[derive(Debug)]
pub struct NeedsRequest {
    client: IdempotentClient,
    record: Record,
}

impl NeedsRequest {
    /// The operation's id.
    #[must_use]
    pub fn operation(&self) -> &OperationId {
        &self.record.operation
    }

    /// What the journal has of it.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Sends the stored request through a client, with the headers that were not stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Request`] if the body was not kept, and of the kinds that [`RequestBuilder::send`](crate::RequestBuilder::send) lists.
    ///
    /// # Cancel safety
    ///
    /// As [`RequestBuilder::send`](crate::RequestBuilder::send).
    pub async fn send(self, http: &reqwest::Client, headers: HeaderMap) -> Result<Response, Error> {
        let Self { client, record } = self;
        let Some(stored) = &record.request else {
            return Err(refusal(
                &record,
                ErrorKind::Request,
                "its body was not kept; ask for it again under its id, with the same request".to_owned(),
            ));
        };
        let request = http
            .request(record.method.clone(), record.url.clone())
            .headers(stored.headers.clone())
            .headers(headers)
            .body(stored.body.clone());
        client.wrap(request).operation(record.operation.as_str()).send().await
    }
}

impl IdempotentClient {
    /// Drives what is unfinished in the journal: after a restart, or from time to time. At most 8 operations at once; see
    /// [`Resume::concurrency`]. It does so under the client's own settings: those of the request that began an operation are
    /// not stored, and one that was begun under another contract or credential scope is refused.
    ///
    /// ```
    /// # async fn example(client: reqwest_idempotency::IdempotentClient) {
    /// use reqwest_idempotency::ResumedItem;
    ///
    /// let mut resumed = client.resume();
    /// while let Some(item) = resumed.next().await {
    ///     match item {
    ///         ResumedItem::Done(operation, Ok(response)) => println!("{operation}: {}", response.status()),
    ///         ResumedItem::Done(_, Err(error)) => eprintln!("{}", error.report()),
    ///         ResumedItem::NeedsRequest(needs) => println!("{}: ask for it again", needs.operation()),
    ///         other => eprintln!("{other:?}"),
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use = "nothing is resumed until the stream is polled"]
    pub fn resume(&self) -> Resume {
        Resume {
            client: self.clone(),
            concurrency: 8,
            listed: VecDeque::new(),
            listing: Listing::From(None),
            flying: JoinSet::new(),
        }
    }

    /// Drives one unfinished operation; `None` if it is finished by now.
    async fn resume_one(self, operation: OperationId) -> Option<ResumedItem> {
        let record = match self.0.journal.get(operation.clone()).await {
            Ok(record) => record.filter(|record| record.phase.is_pending())?,
            Err(error) => {
                let unread = unreadable(error).delivered(Delivery::Unknown).pending_as(operation.clone());
                return Some(ResumedItem::Done(operation, Err(unread)));
            }
        };
        let terms = match Settings::default().over(&self.0.settings) {
            Ok(terms) => terms,
            Err(error) => {
                let pending = error.delivered(Delivery::Unknown).pending_as(operation.clone());
                return Some(ResumedItem::Done(operation, Err(pending)));
            }
        };
        let stored = match &record.request {
            Some(stored) if !stored.needs_headers || terms.prepare.is_some() => stored,
            _ => return Some(ResumedItem::NeedsRequest(Box::new(NeedsRequest { client: self, record }))),
        };
        let request = Frozen::restored(&record, stored);
        let began = self.0.clock.now().monotonic;
        let job = Job { client: &self.0, http: self.0.http.clone(), guarded: true, terms, began };
        // The same key with other bytes would be a lie to the server, wherever the stored request went wrong.
        if record.fingerprint.is_some_and(|fingerprint| fingerprint != job.fingerprint(&request)) {
            let client = self.clone();
            return Some(ResumedItem::NeedsRequest(Box::new(NeedsRequest { client, record })));
        }
        let result = match record.fingerprint {
            Some(_) => job.keyed_known(request, record).await,
            // An operation without a name: nobody else can ask for it.
            None => {
                let way = job.take_up(&request, &record, None, None).await;
                job.go(request, way).await
            }
        };
        Some(ResumedItem::Done(operation, result))
    }
}

/// The unfinished operations, being driven. A `Stream`, and an iterator with [`next`](Self::next).
///
/// Dropping it stops what it drives; that stays pending.
pub struct Resume {
    client: IdempotentClient,
    concurrency: usize,
    listed: VecDeque<OperationId>,
    listing: Listing,
    flying: JoinSet<Option<ResumedItem>>,
}

/// How far the journal's list has been read.
enum Listing {
    /// Up to here.
    From(Option<OperationId>),
    /// The next page is on its way.
    Reading(BoxFuture<'static, Result<Vec<OperationId>, JournalError>>),
    AtEnd,
}

impl Resume {
    /// Sets how many operations are driven at once; at least one.
    #[must_use]
    pub fn concurrency(mut self, operations: usize) -> Self {
        self.concurrency = operations.max(1);
        self
    }

    /// The next operation that was finished or left alone, in no particular order; `None` when there are no more.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: dropping this future drops no operation, only [`Resume`] itself does.
    pub async fn next(&mut self) -> Option<ResumedItem> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    fn poll_listed(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<OperationId>, Error>> {
        loop {
            if let Some(operation) = self.listed.pop_front() {
                return Poll::Ready(Ok(Some(operation)));
            }
            match &mut self.listing {
                Listing::AtEnd => return Poll::Ready(Ok(None)),
                Listing::From(after) => {
                    let (journal, after) = (Arc::clone(&self.client.0.journal), after.take());
                    let page = async move { journal.pending(after, PAGE).await };
                    self.listing = Listing::Reading(Box::pin(page));
                }
                Listing::Reading(page) => match ready!(page.as_mut().poll(cx)) {
                    Ok(page) => {
                        self.listing = match page.last() {
                            Some(last) => Listing::From(Some(last.clone())),
                            None => Listing::AtEnd,
                        };
                        self.listed = page.into();
                    }
                    Err(error) => {
                        self.listing = Listing::AtEnd;
                        return Poll::Ready(Err(unreadable(error)));
                    }
                },
            }
        }
    }
}

impl Stream for Resume {
    type Item = ResumedItem;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ResumedItem>> {
        let this = self.get_mut();
        loop {
            while this.flying.len() < this.concurrency {
                match this.poll_listed(cx) {
                    Poll::Ready(Ok(Some(operation))) => {
                        this.flying.spawn(this.client.clone().resume_one(operation));
                    }
                    Poll::Ready(Ok(None)) => break,
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(ResumedItem::JournalFailed(error))),
                    Poll::Pending if this.flying.is_empty() => return Poll::Pending,
                    Poll::Pending => break,
                }
            }
            match ready!(this.flying.poll_join_next(cx)) {
                Some(Ok(Some(item))) => return Poll::Ready(Some(item)),
                // A hook of the caller's panicked: that is the caller's to hear of. The operation stays pending.
                Some(Err(stopped)) if stopped.is_panic() => std::panic::resume_unwind(stopped.into_panic()),
                // Finished in the meantime; or the runtime is shutting down and stopped it, and it stays pending.
                Some(Ok(None) | Err(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl fmt::Debug for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resume").field("concurrency", &self.concurrency).finish_non_exhaustive()
    }
}
