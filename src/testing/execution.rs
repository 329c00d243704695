//! The execution of one operation, and what the ledger learns of it.
//!
//! It is detached from the connection: it runs as its own task, and a client that leaves does not stop it.

use http::StatusCode;
use tokio::sync::oneshot;

use super::answer::{Answer, Disposition};
use super::defect::Defect;
use super::exchange::Lost;
use super::fault::{At, How};
use super::ledger::{Kept, Stale, Token};
use super::line::Line;
use super::routes::Handler;
use super::seen::SeenRequest;

/// Under what right a handler runs, which says how its execution is counted and stored.
pub(super) enum Permit {
    Claimed(Token),
    /// An operation without a key.
    Keyless,
    /// A request that is repeatable by its method.
    Uncounted,
}

/// What came of an execution.
enum Done {
    Answered(Answer),
    /// Its owner died before the commit.
    Crashed,
}

impl Line {
    /// Runs the handler as a task of its own and waits for its answer, unless a fault takes the connection away.
    pub(super) async fn execute(&self, permit: Permit, handler: Handler, request: SeenRequest) -> Result<Answer, Lost> {
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
        let run = self.clone().run(permit, handler, request, done);
        if self.shared.parts.policies.has(Defect::ExecutionInConnection) {
            run.await;
        } else {
            self.shared.tasks.spawn(run);
        }
        match at_claim {
            Some(How::Delay(_)) | None => {}
            Some(fault) => return self.suffer(fault).await,
        }
        match answer.await {
            Ok(Done::Answered(answer)) => match self.strikes(At::AfterEffect) {
                Some(How::Delay(_) | How::StoreDown) | None => self.at_commit(answer).await,
                Some(fault) => self.carry_out(fault).await,
            },
            Ok(Done::Crashed) => Err(Lost::Connection),
            Err(_) => {
                self.note("the handler panicked, and a claim is left to its lease");
                Ok(Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, "handler-panicked", "The handler panicked."))
            }
        }
    }

    /// The execution itself. It holds no part of the connection.
    async fn run(self, permit: Permit, handler: Handler, request: SeenRequest, done: oneshot::Sender<Done>) {
        self.hold(At::AfterClaim).await;
        if let Some(How::Delay(duration)) = self.strikes(At::AfterClaim) {
            self.delay(*duration).await;
        }
        match &permit {
            Permit::Claimed(token) => self.shared.ledger().begin(token),
            Permit::Keyless => self.shared.ledger().begin_keyless(),
            Permit::Uncounted => {}
        }
        let answer = handler(request).await;
        self.note(format!("executed, {}", answer.status.as_u16()));
        self.hold(At::AfterEffect).await;
        let mut store_is_down = false;
        match self.strikes(At::AfterEffect) {
            None => {}
            Some(How::Delay(duration)) => self.delay(*duration).await,
            // Told here and now: the exchange may not live to tell it when its connection has ended.
            Some(fault) => {
                self.strike();
                match fault {
                    How::CrashOwner => {
                        self.control.end(self.ending(fault));
                        let _ = done.send(Done::Crashed);
                        return;
                    }
                    How::StoreDown => store_is_down = true,
                    How::Stall | How::Status(_) | How::H2Reset(_) => {}
                    fault => self.control.end(self.ending(fault)),
                }
            }
        }
        if store_is_down {
            self.fail_to_commit(&permit);
        } else {
            self.commit(&permit, &answer);
        }
        self.shared.settled.notify_waiters();
        // The client may have left: then nobody waits for the answer.
        let _ = done.send(Done::Answered(answer));
    }

    fn commit(&self, permit: &Permit, answer: &Answer) {
        let shared = &self.shared;
        match (permit, answer.disposition(shared.parts.policies.server_errors)) {
            (Permit::Claimed(token), Disposition::Release) => self.release(token),
            (Permit::Claimed(token), Disposition::ReExecute) => {
                let failed = shared.ledger().fail(token, shared.now());
                self.note_outcome(failed, "failed, and executes again", "not noted as failed");
            }
            (Permit::Claimed(token), Disposition::Store) => {
                let kept =
                    shared.ledger().complete(token, answer.for_replay(&shared.parts.replay_headers), shared.now());
                match kept {
                    Ok(Kept::Answer) => {}
                    Ok(Kept::Tombstone) => self.note("too large to keep, a tombstone is left"),
                    Err(stale) => self.note(format!("not stored: {stale}")),
                }
            }
            (Permit::Keyless, Disposition::Release) => shared.ledger().void_keyless(),
            (Permit::Keyless | Permit::Uncounted, _) => {}
        }
    }

    /// The outcome is known and cannot be stored: the key stays in progress, because deleting it would execute again.
    fn fail_to_commit(&self, permit: &Permit) {
        self.note("the outcome could not be stored, and the claim is left to its lease");
        if let Permit::Claimed(token) = permit
            && self.shared.parts.policies.has(Defect::DeleteWhenCompleteFails)
        {
            self.shared.ledger().delete_claim(token);
        }
    }

    fn release(&self, token: &Token) {
        let released = self.shared.ledger().release(token, self.shared.now());
        self.note_outcome(released, "key released", "not released");
    }

    fn note_outcome(&self, outcome: Result<(), Stale>, done: &str, not_done: &str) {
        match outcome {
            Ok(()) => self.note(done),
            Err(stale) => self.note(format!("{not_done}: {stale}")),
        }
    }
}
