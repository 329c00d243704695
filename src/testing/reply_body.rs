//! The body of a reply, as hyper asks for it: whole, cut, slowed down or broken off.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

use super::connection::{Control, Ending, OnCut};
use super::exchange::Lost;
use crate::clock::{BoxFuture, Clock};

/// A body and what happens on its way.
pub(super) struct ReplyBody {
    left: Bytes,
    course: Course,
    /// What the head announces, if it is not what is left.
    announced: Option<u64>,
}

enum Course {
    Whole,
    Cut(Cut),
    Paced(Paced),
    Reset(Reset),
    /// The connection ends behind this reply.
    Last(Option<Last>),
}

/// The connection ends within the body.
struct Cut {
    after: usize,
    ending: Ending,
    control: Arc<Control>,
    /// What must be on the wire: known when the part before the cut is handed over.
    position: Option<u64>,
    /// Gone when the cut is armed.
    on_cut: Option<OnCut>,
}

/// The body comes in pieces.
struct Paced {
    /// What comes before the first pause.
    first: usize,
    piece: usize,
    pause: Duration,
    clock: Arc<dyn Clock>,
    timer: Option<BoxFuture<'static, ()>>,
    on_pause: Option<OnCut>,
}

/// The HTTP/2 stream is reset within the body.
struct Reset {
    after: usize,
    code: u32,
    control: Arc<Control>,
    position: Option<u64>,
    on_cut: Option<OnCut>,
    flushed: Option<oneshot::Receiver<()>>,
}

struct Last {
    bytes: u64,
    ending: Ending,
    control: Arc<Control>,
    on_cut: OnCut,
}

impl ReplyBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { left: bytes, course: Course::Whole, announced: None }
    }

    /// A body that announces all of its bytes, of which only the first `after` are sent.
    pub(super) fn cut(bytes: Bytes, after: usize, ending: Ending, control: Arc<Control>, on_cut: OnCut) -> Self {
        let course = Course::Cut(Cut { after, ending, control, position: None, on_cut: Some(on_cut) });
        Self { left: bytes, course, announced: None }
    }

    /// A body of which `first` bytes come at once and the rest in pieces, each after a pause.
    pub(super) fn paced(
        bytes: Bytes,
        first: usize,
        (piece, pause): (usize, Duration),
        clock: Arc<dyn Clock>,
        on_pause: OnCut,
    ) -> Self {
        let paced = Paced { first, piece, pause, clock, timer: None, on_pause: Some(on_pause) };
        Self { left: bytes, course: Course::Paced(paced), announced: None }
    }

    /// A body whose stream is reset when its first `after` bytes are sent.
    pub(super) fn reset(bytes: Bytes, after: usize, code: u32, control: Arc<Control>, on_cut: OnCut) -> Self {
        let course = Course::Reset(Reset { after, code, control, position: None, on_cut: Some(on_cut), flushed: None });
        Self { left: bytes, course, announced: None }
    }

    /// A body behind which the connection ends.
    pub(super) fn last(bytes: Bytes, ending: Ending, control: Arc<Control>, on_cut: OnCut) -> Self {
        let last = Last { bytes: bytes.len() as u64, ending, control, on_cut };
        Self { left: bytes, course: Course::Last(Some(last)), announced: None }
    }

    /// The same under another length.
    pub(super) fn announcing(mut self, bytes: u64) -> Self {
        self.announced = Some(bytes);
        self
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Lost;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Lost>>> {
        let Self { left, course, .. } = self.get_mut();
        match course {
            Course::Whole | Course::Last(_) => {
                let all = std::mem::take(left);
                Poll::Ready((!all.is_empty()).then(|| Ok(Frame::data(all))))
            }
            Course::Cut(cut) => {
                let Cut { after, control, position, .. } = cut;
                let position = *position.get_or_insert_with(|| control.written().saturating_add(*after as u64));
                if let Some(part) = take_first(left, after) {
                    return Poll::Ready(Some(Ok(part)));
                }
                // Only now: hyper asks again once it has buffered the part, so that the flush to come has it on board.
                if let Some(on_cut) = cut.on_cut.take() {
                    control.cut_when_flushed(position, Some(cut.ending.clone()), on_cut);
                }
                Poll::Pending
            }
            Course::Reset(reset) => {
                let Reset { after, control, position, flushed, .. } = reset;
                let position = *position.get_or_insert_with(|| control.written().saturating_add(*after as u64));
                if let Some(part) = take_first(left, after) {
                    return Poll::Ready(Some(Ok(part)));
                }
                // A reset drops what its stream has not sent yet, so it waits for the flush.
                if let Some(on_cut) = reset.on_cut.take() {
                    let (done, receiver) = oneshot::channel();
                    *flushed = Some(receiver);
                    let tell = move || {
                        on_cut();
                        let _ = done.send(());
                    };
                    control.cut_when_flushed(position, None, Box::new(tell));
                }
                if let Some(flushed) = flushed {
                    let _ = ready!(Pin::new(flushed).poll(cx));
                }
                Poll::Ready(Some(Err(Lost::stream(reset.code))))
            }
            Course::Paced(paced) => {
                if let Some(part) = take_first(left, &mut paced.first) {
                    return Poll::Ready(Some(Ok(part)));
                }
                if left.is_empty() {
                    return Poll::Ready(None);
                }
                if let Some(on_pause) = paced.on_pause.take() {
                    on_pause();
                }
                let timer = paced.timer.get_or_insert_with(|| paced.clock.timer(paced.pause));
                ready!(timer.as_mut().poll(cx));
                paced.timer = None;
                let part = left.split_to(paced.piece.min(left.len()));
                Poll::Ready(Some(Ok(Frame::data(part))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.announced.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.announced.unwrap_or(self.left.len() as u64))
    }
}

impl Drop for ReplyBody {
    /// hyper lets go of a body when it has buffered all of it: the next flush has it on board.
    fn drop(&mut self) {
        if let Course::Last(last) = &mut self.course
            && let Some(Last { bytes, ending, control, on_cut }) = last.take()
            && self.left.is_empty()
        {
            let position = control.written().saturating_add(bytes);
            control.cut_when_flushed(position, Some(ending), on_cut);
        }
    }
}

/// The part that comes before the fault, once.
fn take_first(left: &mut Bytes, first: &mut usize) -> Option<Frame<Bytes>> {
    let part = left.split_to(std::mem::take(first).min(left.len()));
    (!part.is_empty()).then(|| Frame::data(part))
}
