//! One exchange as faults, gates and history see it, wherever it goes on.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderValue, Response, Version};

use super::answer::Answer;
use super::connection::{Control, Ending};
use super::exchange::{Lost, REPLAYED};
use super::fault::{At, CannedReply, Fault, How};
use super::observed::{Answered, ExchangeId};
use super::reply_body::ReplyBody;
use super::script::{Encounter, StepId};
use super::seen::SeenRequest;
use super::server::Shared;

#[derive(Clone)]
pub(super) struct Line {
    pub(super) shared: Arc<Shared>,
    pub(super) control: Arc<Control>,
    /// Whether requests of this method carry a key, so that executing one twice counts.
    pub(super) is_operation: bool,
    key: Option<String>,
    version: Version,
    id: ExchangeId,
    fault: Fault,
    step: Option<StepId>,
}

impl Line {
    pub(super) fn new(
        shared: Arc<Shared>,
        control: Arc<Control>,
        id: ExchangeId,
        encounter: Encounter,
        request: &SeenRequest,
    ) -> Self {
        let method = request.method();
        Self {
            is_operation: !method.is_safe() && shared.parts.contract.carries_key(method),
            key: request.key.clone(),
            version: request.version,
            shared,
            control,
            id,
            fault: encounter.fault,
            step: encounter.step,
        }
    }

    /// The same request once more. Nobody reads its answer.
    pub(super) fn second_delivery(&self, request: &SeenRequest) -> Self {
        let id = self.shared.observed().arrive_again(request);
        Self { control: Control::new(), id, fault: Fault::none(), step: None, ..self.clone() }
    }

    /// The fault's effect, if this attempt has one and it is at this position.
    pub(super) fn strikes(&self, here: At) -> Option<&How> {
        self.fault.how().filter(|_| self.fault.at() == Some(here))
    }

    pub(super) fn strike(&self) {
        self.shared.inject(self.id, self.step, &self.fault);
    }

    /// A fault strikes in the answer's place.
    pub(super) async fn suffer(&self, fault: &How) -> Result<Answer, Lost> {
        self.strike();
        self.carry_out(fault).await
    }

    pub(super) async fn carry_out(&self, fault: &How) -> Result<Answer, Lost> {
        match fault {
            How::Status(CannedReply(answer)) => return Ok(answer.clone()),
            How::Stall => std::future::pending().await,
            How::H2Reset(code) if self.is_http2() => return Err(Lost::stream(*code)),
            fault => self.control.end(self.ending(fault)),
        }
        Err(Lost::Connection)
    }

    /// How the connection ends by this fault.
    pub(super) fn ending(&self, fault: &How) -> Ending {
        match fault {
            How::Rst | How::H2Reset(_) => Ending::Rst,
            How::Stall => Ending::Stall,
            How::Garbage(bytes) => Ending::Garbage(bytes.clone()),
            How::H2GoAway if self.is_http2() => Ending::Garbage(GOAWAY_NOTHING_PROCESSED.into()),
            _ => Ending::Fin,
        }
    }

    /// Stops at the gates that the test has set here.
    pub(super) async fn hold(&self, here: At) {
        let gates: Vec<_> =
            self.shared.holds().iter().filter(|gate| gate.is_for(here, self.key.as_deref())).cloned().collect();
        for gate in gates {
            gate.pass().await;
        }
    }

    pub(super) async fn delay(&self, duration: Duration) {
        self.strike();
        self.shared.parts.clock.timer(duration).await;
    }

    /// Until a later attempt of the same operation was answered.
    pub(super) async fn until_overtaken(&self) {
        self.strike();
        loop {
            let mut settled = std::pin::pin!(self.shared.settled.notified());
            settled.as_mut().enable();
            if self.shared.observed().was_overtaken(self.id) {
                return;
            }
            settled.await;
        }
    }

    pub(super) async fn replay(&self, answer: Answer) -> Result<Answer, Lost> {
        self.note(format!("replayed {}", answer.status.as_u16()));
        self.at_commit(answer.with(REPLAYED, HeaderValue::from_static("true"))).await
    }

    /// The answer is stored, and goes out unless a fault keeps it.
    pub(super) async fn at_commit(&self, answer: Answer) -> Result<Answer, Lost> {
        self.hold(At::AfterCommit).await;
        match self.strikes(At::AfterCommit) {
            Some(How::Delay(duration)) => self.delay(*duration).await,
            // These leave the answer as it is, or change its way only.
            Some(How::DuplicateDelivery | How::BadContentLength(_)) | None => {}
            Some(fault) => return self.suffer(fault).await,
        }
        Ok(answer)
    }

    pub(super) fn refuse(&self, answer: Answer, why: &str) -> Answer {
        self.note(format!("refused with {}: {why}", answer.status.as_u16()));
        answer
    }

    /// Puts an answer on its way, with what the fault wants to happen to it there.
    pub(super) fn respond(&self, answer: Answer) -> Response<ReplyBody> {
        let Answer { status, mut headers, body } = answer;
        let answered = Answered { status, replayed: headers.contains_key(REPLAYED) };
        self.shared.observed().answered(self.id, answered);
        self.shared.settled.notify_waiters();
        self.log();

        let line = self.clone();
        let on_cut = Box::new(move || line.strike());
        let (control, clock) = (Arc::clone(&self.control), Arc::clone(&self.shared.parts.clock));
        let body = match (self.fault.at(), self.fault.how()) {
            (Some(At::HeadBytes(bytes)), Some(how)) => {
                control.cut_after(bytes, self.ending(how), on_cut);
                ReplyBody::whole(body)
            }
            (Some(At::BodyBytes(bytes)), Some(how)) if bytes < body.len() => match how {
                How::Delay(pause) => ReplyBody::paced(body, bytes, (usize::MAX, *pause), clock, on_cut),
                How::Dribble { bytes: piece, pause } => ReplyBody::paced(body, bytes, (*piece, *pause), clock, on_cut),
                How::Truncate => {
                    on_cut();
                    ReplyBody::whole(body.slice(..bytes))
                }
                How::H2Reset(code) if self.is_http2() => ReplyBody::reset(body, bytes, *code, control, on_cut),
                how => ReplyBody::cut(body, bytes, self.ending(how), control, on_cut),
            },
            (Some(At::AfterCommit), Some(How::BadContentLength(announced))) => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(*announced));
                let whole = body.len();
                let reply = if self.is_http2() || *announced <= whole {
                    on_cut();
                    ReplyBody::whole(body)
                } else {
                    ReplyBody::cut(body, whole, Ending::Fin, control, on_cut)
                };
                reply.announcing(*announced as u64)
            }
            (Some(At::AfterResponse), Some(how)) => ReplyBody::last(body, self.ending(how), control, on_cut),
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

    /// Tells the server's log how the exchange ended.
    pub(super) fn log(&self) {
        if let Some(log) = &self.shared.parts.log {
            let line = self.shared.observed().log_line(self.id);
            log(&line.unwrap_or_default());
        }
    }

    pub(super) fn note(&self, note: impl Into<String>) {
        self.shared.observed().note(self.id, note);
    }

    fn is_http2(&self) -> bool {
        self.version == Version::HTTP_2
    }
}

/// A frame (RFC 9113 section 6.8): 8 bytes of payload, type 7, no flags, stream 0; last stream 0, NO_ERROR.
const GOAWAY_NOTHING_PROCESSED: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
