//! One request from its arrival to its answer, in the contract's order of checks, with the faults at their positions.
//!
//! Nothing before the claim is ever stored. Execution is detached from the connection: it runs as its own task, and a
//! client that leaves does not stop it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, DATE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::answer::{Answer, Disposition};
use super::connection::{Control, Ending, ReplyBody};
use super::fault::{At, CannedReply, Fault, How};
use super::key_header::{Malformed, read_key};
use super::ledger::{Claim, Kept, Scope, Token};
use super::observed::{ExchangeId, SeenRequest};
use super::routes::{Destination, Handler};
use super::script::StepId;
use super::server::{KeyPolicy, Shared};
use crate::fingerprint::Fingerprint;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// There is no answer: the connection is lost, by a fault or by the client's doing.
#[derive(Debug, thiserror::Error)]
#[error("the connection is lost")]
pub(super) struct Lost;

/// A request as it was read.
pub(super) struct Arrived {
    pub(super) head: http::request::Parts,
    pub(super) body: RequestBody,
}

pub(super) enum RequestBody {
    Whole(Bytes),
    /// Over the limit: the part within it.
    TooLong(Bytes),
}

/// One exchange under way.
pub(super) struct Exchange {
    line: Line,
    request: SeenRequest,
    key: Result<Option<String>, Malformed>,
    body_fits: bool,
    destination: Destination,
}

/// What faults and history need of an exchange, wherever it goes on.
#[derive(Clone)]
struct Line {
    shared: Arc<Shared>,
    control: Arc<Control>,
    id: ExchangeId,
    fault: Fault,
    step: Option<StepId>,
}

impl Exchange {
    /// Records the request, before anything is decided about it.
    pub(super) fn begin(shared: Arc<Shared>, control: Arc<Control>, arrived: Arrived) -> Self {
        // HTTP/1.1 has one exchange at a time; a cut that an earlier, shorter reply did not come to is void.
        if arrived.head.version < http::Version::HTTP_2 {
            control.disarm();
        }
        let Arrived { head, body } = arrived;
        let (body, body_fits) = match body {
            RequestBody::Whole(bytes) => (bytes, true),
            RequestBody::TooLong(bytes) => (bytes, false),
        };
        let ignores_key = head.method.is_safe() || !shared.contract.carries_key(&head.method);
        let key = if ignores_key { Ok(None) } else { read_key(&head.headers, &shared.contract) };
        let target = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        let destination = shared.routes.find(&head.method, head.uri.path());
        let params = match &destination {
            Destination::Handler(_, params) => params.clone(),
            _ => Vec::new(),
        };
        let mut request = SeenRequest {
            method: head.method,
            target,
            headers: head.headers,
            body,
            key: key.clone().unwrap_or_default(),
            version: head.version,
            attempt: 0,
            params,
        };
        let (id, encounter) = shared.observed().arrive(&mut request);
        let line = Line { shared, control, id, fault: encounter.fault, step: encounter.step };
        Self { line, request, key, body_fits, destination }
    }

    pub(super) async fn answer(self) -> Result<Response<ReplyBody>, Lost> {
        let line = self.line.clone();
        let answer = self.decide().await?;
        Ok(line.respond(answer))
    }

    async fn decide(self) -> Result<Answer, Lost> {
        let Self { line, request, key, body_fits, destination } = self;
        let shared = Arc::clone(&line.shared);
        let refuse = |answer: Answer, why: &str| {
            line.note(format!("refused with {}: {why}", answer.status.as_u16()));
            Ok(answer)
        };

        let handler = match destination {
            Destination::Handler(handler, _) => handler,
            Destination::OtherMethods(methods) => {
                let answer = Answer::problem(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "See Allow.");
                return refuse(answer.with(ALLOW, list(&methods)), "no handler for the method");
            }
            Destination::Nowhere => {
                let answer = Answer::problem(StatusCode::NOT_FOUND, "not-found", "Nothing is served at this path.");
                return refuse(answer, "no handler for the path");
            }
        };
        let Some(principal) = (shared.principal)(&request.headers) else {
            let detail = "The request names no caller that is known here.";
            let answer = Answer::problem(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
            return refuse(answer.with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")), "unauthenticated");
        };
        let key = match key {
            Ok(key) => key,
            Err(malformed) => {
                let detail = format!("{}: {malformed}.", shared.contract.key_header());
                let answer = Answer::problem(StatusCode::BAD_REQUEST, "idempotency-key-malformed", &detail);
                return refuse(answer, &malformed.to_string());
            }
        };
        let is_operation = !request.method.is_safe() && shared.contract.carries_key(&request.method);
        if is_operation && key.is_none() && shared.key_policy == KeyPolicy::Required {
            let detail = format!("{} requests need the header {}.", request.method, shared.contract.key_header());
            let answer = Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-missing", &detail);
            return refuse(answer, "no key");
        }
        if !body_fits {
            let detail = format!("The body has more than {} bytes.", shared.body_limit);
            let answer = Answer::problem(StatusCode::PAYLOAD_TOO_LARGE, "content-too-large", &detail);
            return refuse(answer, "body over the limit");
        }
        if let Some(fault) = line.strikes(At::BeforeClaim) {
            return line.suffer(fault).await;
        }

        let Some(key) = key else {
            let permit = if is_operation { Permit::Keyless } else { Permit::Uncounted };
            return line.execute(permit, handler, request).await;
        };
        let scope = Scope { principal, endpoint: request.endpoint() };
        let fingerprint = fingerprint(&request);
        let claim = shared.ledger().claim(scope, &key, fingerprint, shared.now());
        match claim {
            Claim::Acquired(token) => line.execute(Permit::Claimed(token), handler, request).await,
            Claim::Replay(answer) => {
                line.note(format!("replayed {}", answer.status.as_u16()));
                if let Some(fault) = line.strikes(At::AfterCommit) {
                    return line.suffer(fault).await;
                }
                Ok(answer.with(REPLAYED, HeaderValue::from_static("true")))
            }
            Claim::InProgress { retry_after } => {
                refuse(Answer::in_progress(HeaderValue::from(retry_after.as_secs())), "in progress")
            }
            Claim::Mismatch => {
                let detail = "This key was used for another payload. A new operation needs a new key.";
                let answer = Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reuse", detail);
                refuse(answer, "key reused for another payload")
            }
            Claim::Tombstone => {
                let detail = "The operation was executed, and its response was not kept.";
                refuse(
                    Answer::problem(StatusCode::CONFLICT, "response-not-replayable", detail),
                    "only a tombstone is left",
                )
            }
            Claim::Full => {
                let detail = "No key can be taken at present. Nothing was executed.";
                refuse(
                    Answer::problem(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail),
                    "the ledger is full",
                )
            }
        }
    }
}

/// Under what right a handler runs, which says how its execution is counted and stored.
enum Permit {
    Claimed(Token),
    /// An operation without a key.
    Keyless,
    /// A request that is repeatable by its method.
    Uncounted,
}

impl Line {
    /// Runs the handler as a task of its own and waits for its answer, unless a fault takes the connection away.
    async fn execute(&self, permit: Permit, handler: Handler, request: SeenRequest) -> Result<Answer, Lost> {
        let at_claim = self.strikes(At::AfterClaim);
        match at_claim {
            Some(How::CrashOwner) => return self.suffer(&How::CrashOwner).await,
            Some(status @ How::Status(_)) => {
                // The handler's set-up failed, and it says so.
                if let Permit::Claimed(token) = &permit {
                    self.release(token);
                }
                return self.suffer(status).await;
            }
            _ => {}
        }
        let (done, answer) = oneshot::channel();
        self.shared.tasks.spawn(self.clone().run(permit, handler, request, done));
        if let Some(fault) = at_claim {
            return self.suffer(fault).await;
        }
        match answer.await {
            Ok(Done::Answered(answer)) => {
                if let Some(fault) = self.strikes(At::AfterEffect) {
                    return self.carry_out(fault).await;
                }
                match self.strikes(At::AfterCommit) {
                    Some(fault) => self.suffer(fault).await,
                    None => Ok(answer),
                }
            }
            Ok(Done::Crashed) => Err(Lost),
            Err(_) => {
                self.note("the handler panicked, and a claim is left to its lease");
                Ok(Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, "handler-panicked", "The handler panicked."))
            }
        }
    }

    /// The execution itself. It holds no part of the connection.
    async fn run(self, permit: Permit, handler: Handler, request: SeenRequest, done: oneshot::Sender<Done>) {
        match &permit {
            Permit::Claimed(token) => self.shared.ledger().begin(token),
            Permit::Keyless => self.shared.ledger().begin_keyless(),
            Permit::Uncounted => {}
        }
        let answer = handler(request).await;
        self.note(format!("executed, {}", answer.status.as_u16()));
        if let Some(fault) = self.strikes(At::AfterEffect) {
            // Told here and now: the exchange may not live to tell it when its connection has ended.
            self.strike();
            match fault {
                How::CrashOwner => {
                    self.control.end(Ending::Fin);
                    let _ = done.send(Done::Crashed);
                    return;
                }
                How::Fin => self.control.end(Ending::Fin),
                How::Rst => self.control.end(Ending::Rst),
                How::Stall | How::Status(_) => {}
            }
        }
        self.commit(&permit, &answer);
        // The client may have left: then nobody waits for the answer.
        let _ = done.send(Done::Answered(answer));
    }

    fn commit(&self, permit: &Permit, answer: &Answer) {
        match (permit, answer.disposition()) {
            (Permit::Claimed(token), Disposition::Release) => self.release(token),
            (Permit::Claimed(token), Disposition::Store) => {
                let kept = self.shared.ledger().complete(token, answer.for_replay(), self.shared.now());
                match kept {
                    Ok(Kept::Answer) => {}
                    Ok(Kept::Tombstone) => self.note("too large to keep, a tombstone is left"),
                    Err(stale) => self.note(format!("not stored: {stale}")),
                }
            }
            (Permit::Keyless, Disposition::Release) => self.shared.ledger().void_keyless(),
            (Permit::Keyless | Permit::Uncounted, _) => {}
        }
    }

    fn release(&self, token: &Token) {
        let released = self.shared.ledger().release(token, self.shared.now());
        match released {
            Ok(()) => self.note("key released"),
            Err(stale) => self.note(format!("not released: {stale}")),
        }
    }

    /// The fault's effect, if this attempt has one and it is at this position.
    fn strikes(&self, here: At) -> Option<&How> {
        self.fault.how().filter(|_| self.fault.at() == Some(here))
    }

    fn strike(&self) {
        self.shared.inject(self.id, self.step, &self.fault);
    }

    /// A fault strikes in the answer's place.
    async fn suffer(&self, fault: &How) -> Result<Answer, Lost> {
        self.strike();
        self.carry_out(fault).await
    }

    async fn carry_out(&self, fault: &How) -> Result<Answer, Lost> {
        match fault {
            How::Status(CannedReply(answer)) => return Ok(answer.clone()),
            How::Stall => std::future::pending().await,
            How::Rst => self.control.end(Ending::Rst),
            How::Fin | How::CrashOwner => self.control.end(Ending::Fin),
        }
        Err(Lost)
    }

    /// Puts an answer on its way, with a cut in it if the fault wants one.
    fn respond(&self, answer: Answer) -> Response<ReplyBody> {
        let Answer { status, headers, body } = answer;
        let ending = match self.fault.how() {
            Some(How::Fin | How::CrashOwner) => Some(Ending::Fin),
            Some(How::Rst) => Some(Ending::Rst),
            Some(How::Stall) => Some(Ending::Stall),
            Some(How::Status(_)) | None => None,
        };
        let line = self.clone();
        let on_cut = Box::new(move || line.strike());
        let body = match (self.fault.at(), ending) {
            (Some(At::HeadBytes(bytes)), Some(ending)) => {
                self.control.cut_after(bytes, ending, on_cut);
                ReplyBody::whole(body)
            }
            (Some(At::BodyBytes(bytes)), Some(ending)) if bytes < body.len() => {
                ReplyBody::cut(body, bytes, ending, Arc::clone(&self.control), on_cut)
            }
            _ => ReplyBody::whole(body),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        // By the server's own clock, so that an HTTP-date in Retry-After can be read against it.
        if let Ok(date) = self.shared.now().to_string().parse() {
            response.headers_mut().entry(DATE).or_insert(date);
        }
        response
    }

    fn note(&self, note: impl Into<String>) {
        self.shared.observed().note(self.id, note);
    }
}

/// What came of an execution.
enum Done {
    Answered(Answer),
    /// Its owner died before the commit.
    Crashed,
}

/// SHA-256 over the query, whatever the order of its parameters, and the bytes of the body. Method and path are part of
/// the key's scope.
fn fingerprint(request: &SeenRequest) -> Fingerprint {
    let mut parameters: Vec<&str> = request.query().unwrap_or_default().split('&').collect();
    parameters.sort_unstable();
    let query = parameters.join("&");
    let mut hash = Sha256::new();
    hash.update((query.len() as u64).to_be_bytes());
    hash.update(query);
    hash.update(&request.body);
    Fingerprint::from_bytes(hash.finalize().into())
}

fn list(methods: &[http::Method]) -> HeaderValue {
    let names: Vec<&str> = methods.iter().map(http::Method::as_str).collect();
    HeaderValue::from_str(&names.join(", ")).unwrap_or_else(|_| HeaderValue::from_static(""))
}
