//! One request from its arrival to its answer, in the contract's order of checks.
//!
//! Nothing before the claim is ever stored.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::oneshot;

use super::answer::Answer;
use super::connection::Control;
use super::defect::Defect;
use super::execution::Permit;
use super::fault::{At, How};
use super::key_header::{Malformed, read_key};
use super::ledger::{Claim, Scope};
use super::line::Line;
use super::policy::{KeyPolicy, WhileRunning};
use super::reply_body::ReplyBody;
use super::routes::{Destination, Handler};
use super::seen::SeenRequest;
use super::server::Shared;

pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// By a fault or by the client's doing.
    #[error("the connection is lost")]
    Connection,
    /// hyper reads the code for RST_STREAM from the source.
    #[error("the stream is reset")]
    Stream(#[source] h2::Error),
}

impl Lost {
    pub(super) fn stream(code: u32) -> Self {
        Self::Stream(h2::Reason::from(code).into())
    }
}

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
    principal: Option<String>,
    body_fits: bool,
    destination: Destination,
}

/// A request that has passed all checks before the claim.
#[derive(Clone)]
struct Passed {
    request: SeenRequest,
    handler: Handler,
    key: Option<(Scope, String)>,
}

/// A request that has not, and why, for the history.
struct Refused {
    answer: Answer,
    why: String,
}

/// Whether a server with [`Defect::GetThenSet`] found the key free when it looked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    Free,
    No,
}

impl Exchange {
    /// Records the request, before anything is decided about it.
    pub(super) fn begin(shared: Arc<Shared>, control: Arc<Control>, arrived: Arrived) -> Self {
        let parts = &shared.parts;
        // HTTP/1.1 has one exchange at a time; a cut that an earlier, shorter reply did not come to is void.
        if arrived.head.version < http::Version::HTTP_2 {
            control.disarm();
        }
        let Arrived { head, body } = arrived;
        let (body, body_fits) = match body {
            RequestBody::Whole(bytes) => (bytes, true),
            RequestBody::TooLong(bytes) => (bytes, false),
        };
        let ignores_key = head.method.is_safe() || !parts.contract.carries_key(&head.method);
        let key = if ignores_key { Ok(None) } else { read_key(&head.headers, &parts.contract) };
        let principal = (parts.principal)(&head.headers);
        let target = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        let destination = parts.routes.find(&head.method, head.uri.path());
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
        if let (Some(key), Some(principal)) = (&request.key, &principal) {
            shared.ledger().attempted(parts.policies.scope(principal, &request), key);
        }
        let (id, encounter) = shared.observed().arrive(&mut request);
        let line = Line::new(shared, control, id, encounter, &request);
        Self { line, request, key, principal, body_fits, destination }
    }

    pub(super) async fn answer(self) -> Result<Response<ReplyBody>, Lost> {
        let line = self.line.clone();
        let decided = if matches!(line.strikes(At::BeforeClaim), Some(How::HoldAndReorder)) {
            // What the network holds back arrives, whether or not its client is still there.
            let (done, answer) = oneshot::channel();
            line.shared.tasks.spawn(async move {
                let _ = done.send(self.decide().await);
            });
            answer.await.unwrap_or(Err(Lost::Connection))
        } else {
            self.decide().await
        };
        match decided {
            Ok(answer) => Ok(line.respond(answer)),
            Err(lost) => {
                line.log();
                Err(lost)
            }
        }
    }

    async fn decide(self) -> Result<Answer, Lost> {
        let line = self.line.clone();
        let passed = match self.check() {
            Ok(passed) => passed,
            Err(refused) => return Ok(line.refuse(refused.answer, &refused.why)),
        };
        let looked = passed.look(&line);
        line.hold(At::BeforeClaim).await;
        match line.strikes(At::BeforeClaim) {
            Some(How::Delay(duration)) => line.delay(*duration).await,
            Some(How::HoldAndReorder) => line.until_overtaken().await,
            Some(How::StoreDown) => {
                line.strike();
                return Ok(line.refuse(Answer::store_unavailable(), "the store is down"));
            }
            Some(How::DuplicateDelivery) => {
                line.strike();
                let (copy, passed) = (line.second_delivery(&passed.request), passed.clone());
                line.shared.tasks.spawn(async move {
                    let _ = passed.claim(&copy, Looked::No).await;
                });
            }
            Some(fault) => return line.suffer(fault).await,
            None => {}
        }
        let copy = passed.clone();
        let answer = passed.claim(&line, looked).await;
        if let Some(How::DuplicateDelivery) = line.strikes(At::AfterCommit) {
            line.strike();
            let line = line.second_delivery(&copy.request);
            line.shared.clone().tasks.spawn(async move {
                let _ = copy.claim(&line, Looked::No).await;
            });
        }
        answer
    }

    /// Everything before the claim, in the contract's order.
    fn check(self) -> Result<Passed, Box<Refused>> {
        let Self { line, request, key, principal, body_fits, destination } = self;
        let parts = &line.shared.parts;
        let header = parts.contract.key_header();

        let handler = match destination {
            Destination::Handler(handler, _) => handler,
            Destination::OtherMethods(methods) => {
                let refused = Refused::new(405, "method-not-allowed", "See Allow.", "no handler for the method");
                return Err(refused.with(ALLOW, list(&methods)));
            }
            Destination::Nowhere => {
                return Err(Refused::new(
                    404,
                    "not-found",
                    "Nothing is served at this path.",
                    "no handler for the path",
                ));
            }
        };
        let Some(principal) = principal else {
            let detail = "The request names no caller that is known here.";
            let refused = Refused::new(401, "unauthenticated", detail, "unauthenticated");
            return Err(refused.with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        };
        let key = key.map_err(|malformed| {
            let (detail, why) = (format!("{header}: {malformed}."), malformed.to_string());
            Refused::new(400, "idempotency-key-malformed", &detail, &why)
        })?;
        let required = || parts.policies.key_policy(&request.method, request.path()) == KeyPolicy::Required;
        if line.is_operation && key.is_none() && required() {
            let detail = format!("{} requests need the header {header}.", request.method);
            return Err(Refused::new(422, "idempotency-key-missing", &detail, "no key"));
        }
        if !body_fits {
            let detail = format!("The body has more than {} bytes.", parts.body_limit);
            return Err(Refused::new(413, "content-too-large", &detail, "body over the limit"));
        }
        let key = key.map(|key| (parts.policies.scope(&principal, &request), key));
        Ok(Passed { request, handler, key })
    }
}

impl Refused {
    fn new(status: u16, name: &str, detail: &str, why: &str) -> Box<Self> {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
        Box::new(Self { answer: Answer::problem(status, name, detail), why: why.to_owned() })
    }

    fn with(mut self: Box<Self>, name: HeaderName, value: HeaderValue) -> Box<Self> {
        self.answer.headers.insert(name, value);
        self
    }
}

impl Passed {
    /// Only a server with [`Defect::GetThenSet`] looks first.
    fn look(&self, line: &Line) -> Looked {
        match &self.key {
            Some((scope, key)) if line.shared.parts.policies.has(Defect::GetThenSet) => {
                let is_free = line.shared.ledger().looks_free(scope.clone(), key, line.shared.now());
                if is_free { Looked::Free } else { Looked::No }
            }
            _ => Looked::No,
        }
    }

    /// From the claim to the answer.
    async fn claim(self, line: &Line, looked: Looked) -> Result<Answer, Lost> {
        let Self { request, handler, key } = self;
        let Some((scope, key)) = key else {
            let permit = if line.is_operation { Permit::Keyless } else { Permit::Uncounted };
            return line.execute(permit, handler, request).await;
        };
        let shared = &line.shared;
        let policies = &shared.parts.policies;
        let fingerprint = policies.fingerprint(&request);
        let mut has_waited = false;
        loop {
            // Before the claim, so that no outcome falls between the two.
            let mut settled = std::pin::pin!(shared.settled.notified());
            settled.as_mut().enable();
            let claim = {
                let mut ledger = shared.ledger();
                let now = shared.now();
                if has_waited
                    && policies.has(Defect::ProceedWhenRecordVanished)
                    && ledger.looks_free(scope.clone(), &key, now)
                {
                    Claim::Acquired(ledger.trespass(scope.clone(), &key))
                } else if looked == Looked::Free {
                    ledger.seize(scope.clone(), &key, fingerprint, now)
                } else {
                    ledger.claim(scope.clone(), &key, fingerprint, now)
                }
            };
            return match claim {
                Claim::Acquired(token) => line.execute(Permit::Claimed(token), handler, request).await,
                Claim::Replay(answer) => line.replay(answer).await,
                Claim::InProgress { lease_left, .. }
                    if policies.while_running == WhileRunning::Wait && !lease_left.is_zero() =>
                {
                    has_waited = true;
                    tokio::select! {
                        () = settled => {}
                        () = shared.parts.clock.timer(lease_left) => {}
                    }
                    continue;
                }
                Claim::InProgress { retry_after, .. } => {
                    if policies.has(Defect::DeleteByNonOwner) {
                        shared.ledger().delete(scope, &key);
                    }
                    let answer = Answer::in_progress(HeaderValue::from(retry_after.as_secs()));
                    Ok(line.refuse(answer, "in progress"))
                }
                Claim::Mismatch => Ok(line.refuse(Answer::key_reused(), "key reused for another payload")),
                Claim::Tombstone => Ok(line.refuse(Answer::not_replayable(), "only a tombstone is left")),
                Claim::Full => Ok(line.refuse(Answer::store_unavailable(), "the ledger is full")),
            };
        }
    }
}

fn list(methods: &[http::Method]) -> HeaderValue {
    let names: Vec<&str> = methods.iter().map(http::Method::as_str).collect();
    HeaderValue::from_str(&names.join(", ")).unwrap_or_else(|_| HeaderValue::from_static(""))
}
