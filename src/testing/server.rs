//! Accepts connections and serves them: the IO around the ledger's decisions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::about;
use super::connection::{Connection, Control, Ending};
use super::exchange::{Arrived, Exchange, Lost, RequestBody};
use super::fault::{At, Fault, How};
use super::hold::Gate;
use super::ledger::Ledger;
use super::observed::{ExchangeId, InjectedFault, Observed};
use super::policies::Policies;
use super::reply_body::ReplyBody;
use super::routes::Routes;
use super::script::{Encounter, StepId};
use super::tasks::Tasks;
use crate::clock::{Clock, Timestamp};
use crate::contract::Contract;

/// Names the caller of a request by its headers; `None` refuses the request as unauthenticated.
pub(super) type Principal = Arc<dyn Fn(&HeaderMap) -> Option<String> + Send + Sync>;

/// Told one line for each exchange that is over.
pub(super) type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// What a server is made of.
pub(super) struct Parts {
    pub(super) contract: Contract,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) principal: Principal,
    pub(super) policies: Policies,
    pub(super) body_limit: usize,
    pub(super) replay_headers: Vec<HeaderName>,
    pub(super) routes: Routes,
    pub(super) log: Option<Log>,
}

/// What all connections of one server share.
pub(super) struct Shared {
    pub(super) parts: Parts,
    pub(super) tasks: Tasks,
    /// Some claim was completed, released or failed, or some exchange answered.
    pub(super) settled: Notify,
    ledger: Mutex<Ledger>,
    observed: Mutex<Observed>,
    holds: Mutex<Vec<Arc<Gate>>>,
    fault_struck: Notify,
}

impl Shared {
    pub(super) fn new(mut parts: Parts, ledger: Ledger, observed: Observed) -> Arc<Self> {
        Arc::new_cyclic(|shared| {
            parts.routes.extend(about::routes(shared));
            Self::with(parts, ledger, observed)
        })
    }

    fn with(parts: Parts, ledger: Ledger, observed: Observed) -> Self {
        Self {
            parts,
            tasks: Tasks::new(),
            settled: Notify::new(),
            ledger: Mutex::new(ledger),
            observed: Mutex::new(observed),
            holds: Mutex::default(),
            fault_struck: Notify::new(),
        }
    }

    /// The ledger, locked. Taken before [`observed`](Self::observed), where both are.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn holds(&self) -> MutexGuard<'_, Vec<Arc<Gate>>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.parts.clock.now().wall
    }

    pub(super) fn inject(&self, exchange: ExchangeId, step: Option<StepId>, fault: &Fault) {
        self.observed().inject(exchange, step, fault);
        // One permit is kept for a test that asks later.
        self.fault_struck.notify_one();
    }

    fn inject_on_connection(&self, encounter: &Encounter) {
        self.observed().inject_on_connection(encounter);
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
                    let encounter = self.observed().script.connect();
                    let connection = serve(Arc::clone(&self), socket, encounter);
                    self.tasks.spawn(connection);
                }
                // The connection was gone before it was accepted, or there are no descriptors left for now.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
}

async fn serve(shared: Arc<Shared>, socket: TcpStream, encounter: Encounter) {
    let control = Control::new();
    match (encounter.fault.at(), encounter.fault.how().cloned()) {
        (Some(At::Connect), Some(how)) => {
            shared.inject_on_connection(&encounter);
            match how {
                How::Delay(duration) => shared.parts.clock.timer(duration).await,
                How::Stall => {
                    let _open = socket;
                    return std::future::pending().await;
                }
                How::Fin => return close(socket).await,
                How::Garbage(bytes) => return control.finish(socket, Ending::Garbage(bytes)),
                _ => return control.finish(socket, Ending::Rst),
            }
        }
        (Some(At::RequestBytes(bytes)), Some(how)) => {
            let ending = match how {
                How::Stall => Ending::Stall,
                How::Fin => Ending::Fin,
                _ => Ending::Rst,
            };
            let shared = Arc::clone(&shared);
            control.cut_reading_after(bytes, ending, Box::new(move || shared.inject_on_connection(&encounter)));
        }
        _ => {}
    }
    let connection = Connection::new(socket, Arc::clone(&control));
    let server = auto::Builder::new(shared.tasks.clone());
    let service = service_fn(|request| answer(Arc::clone(&shared), Arc::clone(&control), request));
    // A client that leaves or talks no HTTP is nothing to report: what it sent whole is recorded.
    let _ = server.serve_connection(TokioIo::new(connection), service).await;
}

/// Closes in good order, and only then: on unread bytes it would be a reset.
async fn close(mut socket: TcpStream) {
    let _ = socket.shutdown().await;
    let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
}

async fn answer(
    shared: Arc<Shared>,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Lost> {
    let (head, body) = request.into_parts();
    let body = read(body, shared.parts.body_limit).await?;
    Exchange::begin(shared, control, Arrived { head, body }).answer().await
}

/// Reads a request's body. A client that leaves before its end has claimed nothing. What is over the limit is read, too,
/// and dropped: closing on a client that is still sending could cost it the answer.
async fn read(mut body: Incoming, limit: usize) -> Result<RequestBody, Lost> {
    use http_body::Body as _;

    let mut kept = Vec::new();
    let mut fits = true;
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|_| Lost::Connection)?.into_data() else { continue };
        let room = limit - kept.len();
        fits &= data.len() <= room;
        kept.extend_from_slice(data.get(..room).unwrap_or(&data));
    }
    let kept = Bytes::from(kept);
    Ok(if fits { RequestBody::Whole(kept) } else { RequestBody::TooLong(kept) })
}
