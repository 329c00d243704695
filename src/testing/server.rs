//! Accepts connections and serves them: the IO around the ledger's decisions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::connection::{Connection, Control, ReplyBody};
use super::exchange::{Arrived, Exchange, Lost, RequestBody};
use super::fault::Fault;
use super::ledger::Ledger;
use super::observed::{ExchangeId, InjectedFault, Observed};
use super::routes::Routes;
use super::script::StepId;
use super::tasks::Tasks;
use crate::clock::{Clock, Timestamp};
use crate::contract::Contract;

/// Names the caller of a request by its headers; `None` refuses the request as unauthenticated.
pub(super) type Principal = Arc<dyn Fn(&HeaderMap) -> Option<String> + Send + Sync>;

/// Whether an operation may come without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPolicy {
    Required,
    Optional,
}

/// What all connections of one server share.
pub(super) struct Shared {
    pub(super) contract: Contract,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) principal: Principal,
    pub(super) key_policy: KeyPolicy,
    pub(super) body_limit: usize,
    pub(super) routes: Routes,
    pub(super) tasks: Tasks,
    ledger: Mutex<Ledger>,
    observed: Mutex<Observed>,
    fault_struck: Notify,
}

/// What a server is made of.
pub(super) struct Parts {
    pub(super) contract: Contract,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) principal: Principal,
    pub(super) key_policy: KeyPolicy,
    pub(super) body_limit: usize,
    pub(super) routes: Routes,
    pub(super) ledger: Ledger,
    pub(super) observed: Observed,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { contract, clock, principal, key_policy, body_limit, routes, ledger, observed } = parts;
        Arc::new(Self {
            contract,
            clock,
            principal,
            key_policy,
            body_limit,
            routes,
            tasks: Tasks::new(),
            ledger: Mutex::new(ledger),
            observed: Mutex::new(observed),
            fault_struck: Notify::new(),
        })
    }

    /// The ledger, locked. Taken before [`observed`](Self::observed), where both are.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now().wall
    }

    pub(super) fn inject(&self, exchange: ExchangeId, step: Option<StepId>, fault: &Fault) {
        self.observed().inject(exchange, step, fault);
        // One permit is kept for a test that asks later.
        self.fault_struck.notify_one();
    }

    pub(super) async fn next_injected(&self) -> InjectedFault {
        loop {
            if let Some(injected) = self.observed().report() {
                return injected;
            }
            self.fault_struck.notified().await;
        }
    }

    /// Accepts connections until the task is aborted.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let connection = serve(Arc::clone(&self), socket);
                    self.tasks.spawn(connection);
                }
                // The connection was gone before it was accepted, or there are no descriptors left for now.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
}

async fn serve(shared: Arc<Shared>, socket: TcpStream) {
    let control = Control::new();
    let connection = Connection::new(socket, Arc::clone(&control));
    let server = auto::Builder::new(shared.tasks.clone());
    let service = service_fn(|request| answer(Arc::clone(&shared), Arc::clone(&control), request));
    // A client that leaves or talks no HTTP is nothing to report: what it sent whole is recorded.
    let _ = server.serve_connection(TokioIo::new(connection), service).await;
}

async fn answer(
    shared: Arc<Shared>,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Lost> {
    let (head, body) = request.into_parts();
    let body = read(body, shared.body_limit).await?;
    Exchange::begin(shared, control, Arrived { head, body }).answer().await
}

/// Reads a request's body. A client that leaves before its end has claimed nothing. What is over the limit is read, too,
/// and dropped: closing on a client that is still sending could cost it the answer.
async fn read(mut body: Incoming, limit: usize) -> Result<RequestBody, Lost> {
    use http_body::Body as _;

    let mut kept = Vec::new();
    let mut fits = true;
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|_| Lost)?.into_data() else { continue };
        let room = limit - kept.len();
        fits &= data.len() <= room;
        kept.extend_from_slice(data.get(..room).unwrap_or(&data));
    }
    let kept = Bytes::from(kept);
    Ok(if fits { RequestBody::Whole(kept) } else { RequestBody::TooLong(kept) })
}
