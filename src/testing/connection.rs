//! One TCP connection that can be cut where a fault wants it, to the byte.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How a connection ends, or fails to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Rst,
    /// It stays open, and nothing more is sent.
    Stall,
    /// These bytes go out, as far as the socket takes them at once, and then FIN.
    Garbage(Bytes),
}

/// Called when a cut is made.
pub(super) type OnCut = Box<dyn FnOnce() + Send>;

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
    /// Bytes that may still be read until the connection ends for its client.
    readable: Option<ReadLimit>,
    /// What is read is thrown away: FIN was sent, and closing on unread bytes would make a reset of it.
    draining: bool,
    /// Set once the cut is made.
    ended: Option<Ending>,
    /// The connection's task, which is to notice that the connection has ended.
    task: Option<Waker>,
}

struct Cut {
    /// The cut is made when this many bytes are written.
    position: u64,
    edge: Edge,
    /// `None`: only `on_cut` is called.
    ending: Option<Ending>,
    on_cut: OnCut,
}

struct ReadLimit {
    left: usize,
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
        let state = State { written: 0, cut: None, readable: None, draining: false, ended: None, task: None };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Ends a connection that was just accepted.
    pub(super) fn finish(self: Arc<Self>, socket: TcpStream, ending: Ending) {
        self.end(ending);
        drop(Connection::new(socket, self));
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
        state.cut = Some(Cut { position, edge: Edge::Exact, ending: Some(ending), on_cut });
    }

    /// Ends the connection when so many bytes are read from it; the last of them are thrown away.
    pub(super) fn cut_reading_after(&self, bytes: usize, ending: Ending, on_cut: OnCut) {
        self.state().readable = Some(ReadLimit { left: bytes, ending, on_cut });
    }

    /// Ends the connection with the first flush that finds `position` reached. Without an ending it only tells.
    pub(super) fn cut_when_flushed(&self, position: u64, ending: Option<Ending>, on_cut: OnCut) {
        let mut state = self.state();
        state.cut = Some(Cut { position, edge: Edge::Flush, ending, on_cut });
        state.wake();
    }

    /// Takes back a cut that was not made: the reply was shorter.
    pub(super) fn disarm(&self) {
        self.state().cut = None;
    }

    pub(super) fn written(&self) -> u64 {
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
            if cut.ending.is_some() {
                self.ended = cut.ending;
            }
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

impl Connection {
    /// Throws away what comes, up to the end.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [0; 1024];
        loop {
            let mut thrown_away = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut thrown_away))?;
            if thrown_away.filled().is_empty() {
                return Poll::Ready(Err(ended_by_fault()));
            }
        }
    }
}

/// What a connection that has ended tells hyper, so that hyper drops it.
fn ended_by_fault() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "ended by a fault")
}

impl Drop for Connection {
    fn drop(&mut self) {
        let ended = self.control.state().ended.take();
        if let Some(Ending::Garbage(bytes)) = &ended {
            let _ = self.socket.try_write(bytes);
        }
        if ended == Some(Ending::Rst) {
            // A socket that does not linger is closed with RST. Should that fail it is FIN, which is a fault as well.
            let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let control = Arc::clone(&this.control);
        let mut state = control.state();
        if state.draining {
            drop(state);
            return this.drain(cx);
        }
        if let Some(Ending::Fin | Ending::Rst | Ending::Garbage(_)) = state.ended {
            return Poll::Ready(Err(ended_by_fault()));
        }
        state.task = Some(cx.waker().clone());
        let Some(limit) = &mut state.readable else { return Pin::new(&mut this.socket).poll_read(cx, buffer) };
        if limit.left > 0 {
            let mut space = [0; 1024];
            let room = limit.left.min(buffer.remaining()).min(space.len());
            let mut part = ReadBuf::new(space.get_mut(..room).unwrap_or_default());
            ready!(Pin::new(&mut this.socket).poll_read(cx, &mut part))?;
            limit.left -= part.filled().len();
            // What completes the limit is withheld: it could complete the request.
            if limit.left > 0 || part.filled().is_empty() {
                buffer.put_slice(part.filled());
                return Poll::Ready(Ok(()));
            }
        }
        let Some(ReadLimit { ending, on_cut, .. }) = state.readable.take() else { return Poll::Pending };
        on_cut();
        match ending {
            Ending::Stall => {
                // The task is kept to be woken, and finds nothing to read ever after.
                state.readable = Some(ReadLimit { left: 0, ending: Ending::Stall, on_cut: Box::new(|| {}) });
                Poll::Pending
            }
            Ending::Fin => {
                state.draining = true;
                drop(state);
                let _ = Pin::new(&mut this.socket).poll_shutdown(cx);
                this.drain(cx)
            }
            ending => {
                state.ended = Some(ending);
                Poll::Ready(Err(ended_by_fault()))
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let control = Arc::clone(&this.control);
        let mut state = control.state();
        if state.draining {
            return Poll::Ready(Err(ended_by_fault()));
        }
        let mut allowed = bytes.len();
        if let Some(Cut { position, edge: Edge::Exact, .. }) = &state.cut {
            let left = position.saturating_sub(state.written);
            allowed = allowed.min(usize::try_from(left).unwrap_or(usize::MAX));
            if allowed == 0 {
                state.make_cut();
            }
        }
        match &state.ended {
            Some(Ending::Stall) => return Poll::Pending,
            Some(Ending::Fin | Ending::Rst | Ending::Garbage(_)) => return Poll::Ready(Err(ended_by_fault())),
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
        match &state.ended {
            Some(Ending::Stall) | None => Pin::new(&mut this.socket).poll_flush(cx),
            Some(Ending::Fin | Ending::Rst | Ending::Garbage(_)) => Poll::Ready(Err(ended_by_fault())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(Ending::Rst | Ending::Garbage(_)) = this.control.state().ended {
            // A FIN must not run ahead of what dropping the socket sends.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}
