//! The only loop: performs one step after the other, and tells the machine how it went.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tracing::{Instrument as _, debug, debug_span, field, warn};
use url::Url;

use crate::attempt::{Attempts, Event, Step, ToSend};
use crate::clock::{BoxFuture, Clock};
use crate::error::Error;
use crate::journal::{Journal, JournalError, JournalErrorKind, Lease};
use crate::operation::{AfterSave, Durability, OperationId, Record};
use crate::response::Response;
use crate::transport::{Exchange, Outgoing};

/// What a hook may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The caller's hook before each attempt; it may change headers, for instance to refresh credentials.
///
/// A closure works, too: `|view, headers| Box::pin(async move { … })`.
pub trait Prepare: Send + Sync + 'static {
    /// Runs before each attempt, within the attempt's time limit. It cannot change method, target, body or key: those
    /// are put back after it.
    ///
    /// # Errors
    ///
    /// Any error keeps the attempt from being made, and ends the call with
    /// [`ErrorKind::Prepare`](crate::ErrorKind::Prepare).
    ///
    /// # Cancel safety
    ///
    /// The future is dropped together with the call.
    fn prepare<'a>(
        &'a self,
        attempt: AttemptView<'a>,
        headers: &'a mut HeaderMap,
    ) -> BoxFuture<'a, Result<(), BoxError>>;
}

impl<F> Prepare for F
where
    F: for<'a> Fn(AttemptView<'a>, &'a mut HeaderMap) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
{
    fn prepare<'a>(
        &'a self,
        attempt: AttemptView<'a>,
        headers: &'a mut HeaderMap,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        self(attempt, headers)
    }
}

/// What a hook is told about the attempt to come.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AttemptView<'a> {
    /// Counted from 1.
    pub number: u32,
    /// The method.
    pub method: &'a Method,
    /// The target.
    pub url: &'a Url,
    /// The operation's id, if it carries a key.
    pub operation: Option<&'a OperationId>,
    /// Whether the last attempt was answered 401, so that cached credentials are stale.
    pub unauthorized: bool,
}

/// How long a journal may take to save a record.
const SAVE_LIMIT: Duration = Duration::from_secs(30);

/// What the loop works with.
pub(crate) struct Driver {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) outgoing: Outgoing,
    /// The header that carries the key, and its value.
    pub(crate) key: Option<(HeaderName, HeaderValue)>,
    pub(crate) custody: Option<Custody>,
    pub(crate) prepare: Option<Arc<dyn Prepare>>,
    pub(crate) reply_limit: usize,
}

/// The lease on the record. If the future is dropped, it is given back, so that whoever asks next need not wait for its
/// end.
pub(crate) struct Custody {
    journal: Arc<dyn Journal>,
    lease: Option<Lease>,
    operation: OperationId,
}

impl Custody {
    pub(crate) fn new(journal: Arc<dyn Journal>, lease: Lease) -> Self {
        Self { journal, operation: lease.operation.clone(), lease: Some(lease) }
    }

    /// Saves within a time limit: a journal that hangs must not hold the caller for ever.
    async fn save(
        &mut self,
        record: Record,
        then: AfterSave,
        durability: Durability,
        timer: BoxFuture<'static, ()>,
    ) -> Event {
        let Some(lease) = self.lease.clone() else { return Event::LeaseLost };
        let saved = tokio::select! {
            biased;
            saved = self.journal.save(record, lease, then, durability) => saved,
            () = timer => Err(JournalError::new(JournalErrorKind::Unavailable, "the journal did not answer in time")
                .unconfirmed()),
        };
        match saved {
            Ok(()) => {
                if then == AfterSave::ReleaseLease {
                    self.lease = None;
                }
                Event::Saved
            }
            Err(error) if error.kind() == JournalErrorKind::LeaseLost => {
                self.lease = None;
                Event::LeaseLost
            }
            Err(error) => {
                warn!(operation = %self.operation, error = %error, "the journal could not be written");
                Event::SaveFailed { may_be_saved: error.may_be_saved(), source: Arc::new(error) }
            }
        }
    }
}

impl Drop for Custody {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.journal.relinquish(lease);
        }
    }
}

impl Driver {
    /// Drives the operation to its result.
    pub(crate) async fn run(mut self, mut attempts: Attempts, mut step: Step) -> Result<Response, Error> {
        let mut rest = None;
        let base = self.prepare.is_some().then(|| self.outgoing.headers.clone());
        loop {
            let event = match step {
                Step::Save(record, then, durability) => match &mut self.custody {
                    Some(custody) => {
                        let timer = self.clock.timer(SAVE_LIMIT);
                        custody.save(*record, then, durability, timer).await
                    }
                    None => Event::Saved,
                },
                Step::Send(to_send) => {
                    let span = self.span(to_send);
                    let (event, tail) = self.attempt(to_send, base.as_ref()).instrument(span.clone()).await;
                    record_outcome(&span, &event);
                    rest = tail;
                    event
                }
                Step::Sleep(duration) => {
                    debug!(wait_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), "waiting to try again");
                    self.clock.sleep(duration).await;
                    Event::Awake
                }
                Step::Done(result) => return result.map(|response| response.with_rest(rest)),
            };
            step = attempts.on(event, self.clock.now());
        }
    }

    async fn attempt(&mut self, to_send: ToSend, base: Option<&HeaderMap>) -> (Event, Option<reqwest::Response>) {
        let mut timer = pin!(self.clock.timer(to_send.limit));
        if let (Some(prepare), Some(base)) = (&self.prepare, base) {
            let view = AttemptView {
                number: to_send.number,
                method: &self.outgoing.method,
                url: &self.outgoing.url,
                operation: self.custody.as_ref().map(|custody| &custody.operation),
                unauthorized: to_send.unauthorized,
            };
            self.outgoing.headers.clone_from(base);
            let prepared = tokio::select! {
                biased;
                prepared = prepare.prepare(view, &mut self.outgoing.headers) => prepared,
                () = &mut timer => Err(format!("not finished within the attempt's {:?}", to_send.limit).into()),
            };
            if let Err(error) = prepared {
                return (Event::PrepareFailed(Arc::from(error)), None);
            }
            restore(&mut self.outgoing.headers, base, &HOST);
        }
        if let Some((name, value)) = &self.key {
            self.outgoing.headers.insert(name, value.clone());
        }
        let mut exchange = Exchange::new(&self.outgoing);
        let result = {
            let mut run = pin!(exchange.run(self.reply_limit));
            tokio::select! {
                biased;
                result = &mut run => Some(result),
                () = &mut timer => None,
            }
        };
        match result {
            Some(Ok((reply, rest))) => (Event::Answered(reply), rest),
            Some(Err(failure)) => (Event::Failed(failure), None),
            None => match exchange.timed_out() {
                Ok(reply) => (Event::Answered(reply), None),
                Err(failure) => (Event::Failed(failure), None),
            },
        }
    }

    /// One span an attempt, with OpenTelemetry's names. Neither query nor key is in it.
    fn span(&self, to_send: ToSend) -> tracing::Span {
        let url = &self.outgoing.url;
        debug_span!(
            "attempt",
            otel.kind = "client",
            http.request.method = %self.outgoing.method,
            http.request.resend_count = to_send.number.saturating_sub(1),
            server.address = url.host_str(),
            server.port = url.port_or_known_default(),
            url.path = url.path(),
            operation = self.custody.as_ref().map(|custody| field::display(&custody.operation)),
            http.response.status_code = field::Empty,
            error.type = field::Empty,
        )
    }
}

fn record_outcome(span: &tracing::Span, event: &Event) {
    match event {
        Event::Answered(reply) => {
            span.record("http.response.status_code", reply.status.as_u16());
            span.in_scope(|| debug!(status = reply.status.as_u16(), complete = reply.is_complete(), "answered"));
        }
        Event::Failed(failure) => {
            span.record("error.type", field::debug(failure.kind));
            span.in_scope(|| debug!(failure = %failure, "no answer"));
        }
        Event::PrepareFailed(error) => span.in_scope(|| warn!(error = %error, "the prepare hook failed")),
        _ => {}
    }
}

fn restore(headers: &mut HeaderMap, base: &HeaderMap, name: &HeaderName) {
    headers.remove(name);
    for value in base.get_all(name) {
        headers.append(name, value.clone());
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("method", &self.outgoing.method).finish_non_exhaustive()
    }
}
