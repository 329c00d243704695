//! One TCP connection that can be cut where a fault wants it, to the byte.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How a connection ends, or fails to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Rst,
    /// It stays open, and nothing more is sent.
    Stall,
}

/// Called when a cut is made.
type OnCut = Box<dyn FnOnce() + Send>;

/// The socket, as hyper sees it.
pub(super) struct Connection {
    socket: TcpStream,
    control: Arc<Control>,
}

/// Cuts a connection from outside of hyper.
pub(super) struct Control(Mutex<State>);

struct State {
    /// Bytes handed to the socket so far.
    written: u64,
    cut: Option<Cut>,
    /// Set once the cut is made.
    ended: Option<Ending>,
    /// The connection's task, which is to notice that the connection has ended.
    task: Option<Waker>,
}

struct Cut {
    /// The cut is made when this many bytes are written.
    position: u64,
    edge: Edge,
    ending: Ending,
    on_cut: OnCut,
}

/// What happens to bytes that are handed over beyond the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// They are not written.
    Exact,
    /// They are: the position is a lower bound, and the cut comes with the next flush.
    Flush,
}

impl Control {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { written: 0, cut: None, ended: None, task: None })))
    }

    /// Ends the connection at once.
    pub(super) fn end(&self, ending: Ending) {
        let mut state = self.state();
        state.ended.get_or_insert(ending);
        state.wake();
    }

    /// Ends the connection when so many bytes more are written, and not a byte later.
    pub(super) fn cut_after(&self, bytes: usize, ending: Ending, on_cut: OnCut) {
        let mut state = self.state();
        let position = state.written.saturating_add(bytes as u64);
        state.cut = Some(Cut { position, edge: Edge::Exact, ending, on_cut });
    }

    /// Ends the connection with the first flush that finds `position` reached.
    fn cut_when_flushed(&self, position: u64, ending: Ending, on_cut: OnCut) {
        let mut state = self.state();
        state.cut = Some(Cut { position, edge: Edge::Flush, ending, on_cut });
        state.wake();
    }

    /// Takes back a cut that was not made: the reply was shorter.
    pub(super) fn disarm(&self) {
        self.state().cut = None;
    }

    fn written(&self) -> u64 {
        self.state().written
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    fn make_cut(&mut self) {
        if let Some(cut) = self.cut.take() {
            self.ended = Some(cut.ending);
            (cut.on_cut)();
        }
    }
}

impl Connection {
    pub(super) fn new(socket: TcpStream, control: Arc<Control>) -> Self {
        // Small writes must not wait for an acknowledgement; where it cannot be set they are only slower.
        let _ = socket.set_nodelay(true);
        Self { socket, control }
    }
}

/// What a connection that has ended tells hyper, so that hyper drops it.
fn ended_by_fault() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "ended by a fault")
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.control.state().ended == Some(Ending::Rst) {
            // A socket that does not linger is closed with RST. Should that fail it is FIN, which is a fault as well.
            let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        {
            let mut state = this.control.state();
            if let Some(Ending::Fin | Ending::Rst) = state.ended {
                return Poll::Ready(Err(ended_by_fault()));
            }
            state.task = Some(cx.waker().clone());
        }
        Pin::new(&mut this.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut state = this.control.state();
        let mut allowed = bytes.len();
        if let Some(Cut { position, edge: Edge::Exact, .. }) = &state.cut {
            let left = position.saturating_sub(state.written);
            allowed = allowed.min(usize::try_from(left).unwrap_or(usize::MAX));
            if allowed == 0 {
                state.make_cut();
            }
        }
        match state.ended {
            Some(Ending::Stall) => return Poll::Pending,
            Some(Ending::Fin | Ending::Rst) => return Poll::Ready(Err(ended_by_fault())),
            None => {}
        }
        let written = Pin::new(&mut this.socket).poll_write(cx, bytes.get(..allowed).unwrap_or(bytes));
        if let Poll::Ready(Ok(count)) = &written {
            state.written += *count as u64;
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = this.control.state();
        // An exact cut at what was just written is made here: there may be no further write.
        if state.cut.as_ref().is_some_and(|cut| state.written >= cut.position) {
            state.make_cut();
        }
        match state.ended {
            Some(Ending::Stall) | None => Pin::new(&mut this.socket).poll_flush(cx),
            Some(Ending::Fin | Ending::Rst) => Poll::Ready(Err(ended_by_fault())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.control.state().ended == Some(Ending::Rst) {
            // A FIN must not run ahead of the RST that dropping the socket sends.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

/// The body of a reply, whole or with a cut to come.
pub(super) struct ReplyBody {
    left: Bytes,
    cut: Option<BodyCut>,
}

struct BodyCut {
    after: usize,
    ending: Ending,
    control: Arc<Control>,
    /// What must be on the wire: known when the part before the cut is handed over.
    position: Option<u64>,
    /// Gone when the cut is armed.
    on_cut: Option<OnCut>,
}

impl ReplyBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { left: bytes, cut: None }
    }

    /// A body that announces all of its bytes, of which only the first `after` are sent. There must be more.
    pub(super) fn cut(bytes: Bytes, after: usize, ending: Ending, control: Arc<Control>, on_cut: OnCut) -> Self {
        Self { left: bytes, cut: Some(BodyCut { after, ending, control, position: None, on_cut: Some(on_cut) }) }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Some(cut) = &mut this.cut else {
            let all = std::mem::take(&mut this.left);
            return Poll::Ready((!all.is_empty()).then(|| Ok(Frame::data(all))));
        };
        let position = *cut.position.get_or_insert_with(|| cut.control.written().saturating_add(cut.after as u64));
        if cut.after > 0 {
            let part = this.left.split_to(cut.after.min(this.left.len()));
            cut.after = 0;
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        // Only now: hyper asks again once it has buffered the part, so that the flush to come has it on board.
        if let Some(on_cut) = cut.on_cut.take() {
            cut.control.cut_when_flushed(position, cut.ending, on_cut);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
