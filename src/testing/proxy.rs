//! A TCP proxy that is a bad network, in front of any upstream.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::proxy_fault::{Breaks, Direction, ProxyFault};
use super::tasks::Tasks;
use crate::clock::{Clock, SystemClock};

/// A bad network in front of any server that speaks TCP, the user's own included. It knows no HTTP: its faults are counted
/// in connections and bytes. Dropping it closes all connections.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use reqwest_idempotency::testing::{FlakyProxy, ProxyFault, TestServer};
///
/// let server = TestServer::start().await?;
/// // The first connection is reset when the first byte of the reply has come through.
/// let proxy = FlakyProxy::in_front_of(server.addr()).faults([ProxyFault::reset_after_received(1)]).start().await?;
///
/// let http = reqwest_idempotency::reqwest::Client::new();
/// let attempt = || http.post(proxy.url("/orders")).header("Idempotency-Key", "order-42").body("{}").send();
/// assert!(attempt().await.is_err());
/// assert_eq!(attempt().await?.status(), 201);
/// server.assert_replayed("order-42");
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "dropping the proxy closes its connections"]
pub struct FlakyProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// Sets up a [`FlakyProxy`].
#[must_use = "no proxy runs until it is started"]
pub struct FlakyProxyBuilder {
    upstream: SocketAddr,
    clock: Arc<dyn Clock>,
    faults: Vec<ProxyFault>,
    chaos: Option<(f64, u64)>,
}

struct Shared {
    upstream: SocketAddr,
    clock: Arc<dyn Clock>,
    faults: Vec<ProxyFault>,
    chaos: Option<(f64, u64)>,
    connections: AtomicUsize,
    struck: Mutex<Vec<(usize, ProxyFault)>>,
    cut: watch::Sender<()>,
    tasks: Tasks,
}

impl FlakyProxy {
    /// Sets up a proxy that passes on to this address.
    pub fn in_front_of(upstream: SocketAddr) -> FlakyProxyBuilder {
        FlakyProxyBuilder { upstream, clock: Arc::new(SystemClock), faults: Vec::new(), chaos: None }
    }

    /// The URL of a path at the upstream, through this proxy.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{}", self.addr, path.trim_start_matches('/'))
    }

    /// The address that it listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The faults that have struck, each with the number of its connection, counted from 1. One that only slows a
    /// connection down has struck when the connection was accepted.
    #[must_use]
    pub fn struck(&self) -> Vec<(usize, ProxyFault)> {
        self.shared.struck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resets all connections that are open now.
    pub fn cut(&self) {
        self.shared.cut.send_replace(());
    }
}

impl FlakyProxyBuilder {
    /// Reads the time from this clock, for latency and bandwidth.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The first connection meets the first of these faults, the second the second, and so on.
    pub fn faults(mut self, faults: impl IntoIterator<Item = ProxyFault>) -> Self {
        self.faults.extend(faults);
        self
    }

    /// Faults by chance for this share of the connections that no script is for: 0 for none, 1 for all. What a connection
    /// meets depends on the seed and its number alone. No fault of it stalls or slows down.
    pub fn chaos(mut self, rate: f64, seed: u64) -> Self {
        self.chaos = Some((rate, seed));
        self
    }

    /// Starts the proxy on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// No socket could be bound.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future starts nothing.
    pub async fn start(self) -> io::Result<FlakyProxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let Self { upstream, clock, faults, chaos } = self;
        let shared = Arc::new(Shared {
            upstream,
            clock,
            faults,
            chaos,
            connections: AtomicUsize::new(0),
            struck: Mutex::default(),
            cut: watch::Sender::new(()),
            tasks: Tasks::new(),
        });
        shared.tasks.spawn(Arc::clone(&shared).accept(listener));
        Ok(FlakyProxy { addr, shared })
    }
}

impl Shared {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    self.tasks.spawn(Arc::clone(&self).relay(client, number));
                }
                // The connection was gone before it was accepted, or there are no descriptors left for now.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    fn fault_of(&self, number: usize) -> ProxyFault {
        let by_chance =
            || self.chaos.map_or_else(ProxyFault::none, |(rate, seed)| ProxyFault::drawn(rate, seed, number));
        self.faults.get(number - 1).cloned().unwrap_or_else(by_chance)
    }

    async fn relay(self: Arc<Self>, mut client: TcpStream, number: usize) {
        let fault = self.fault_of(number);
        let mut cut = self.cut.subscribe();
        if fault.strikes_at_once() {
            self.strike(number, &fault);
        }
        if fault.refuses() {
            return reset(&client);
        }
        let Ok(mut upstream) = TcpStream::connect(self.upstream).await else { return reset(&client) };
        let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
        let end = {
            let ((client_reads, client_writes), (upstream_reads, upstream_writes)) = (client.split(), upstream.split());
            let sent = self.pump(client_reads, upstream_writes, fault.limit(Direction::Sent), &fault);
            let received = self.pump(upstream_reads, client_writes, fault.limit(Direction::Received), &fault);
            tokio::select! {
                ended = async { tokio::try_join!(sent, received) } => ended.err(),
                _ = cut.changed() => Some(Broken::Lost),
            }
        };
        match end {
            None => {}
            Some(Broken::Lost) => {
                reset(&client);
                reset(&upstream);
            }
            Some(Broken::ByFault(breaks)) => {
                self.strike(number, &fault);
                match breaks {
                    Breaks::Reset => {
                        reset(&client);
                        reset(&upstream);
                    }
                    Breaks::Close => close(&mut client, &mut upstream).await,
                    // Both stay open until the proxy is dropped, or cuts them.
                    Breaks::Stall => {
                        let _ = cut.changed().await;
                    }
                }
            }
        }
    }

    /// Passes bytes on in one direction, up to the limit.
    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        limit: Option<(usize, Breaks)>,
        fault: &ProxyFault,
    ) -> Result<(), Broken> {
        let mut passed = 0;
        let mut space = vec![0; fault.piece()];
        loop {
            let left = limit.map_or(usize::MAX, |(limit, _)| limit.saturating_sub(passed));
            // At a limit of zero it breaks when there is a byte to pass on, and not before.
            let room = space.len().min(left).max(1);
            let read = from.read(space.get_mut(..room).unwrap_or_default()).await.map_err(|_| Broken::Lost)?;
            if read == 0 {
                // One direction has ended, the other goes on.
                let _ = to.shutdown().await;
                return Ok(());
            }
            let pause = fault.pause(read);
            if !pause.is_zero() {
                self.clock.timer(pause).await;
            }
            let allowed = space.get(..read.min(left)).unwrap_or_default();
            to.write_all(allowed).await.map_err(|_| Broken::Lost)?;
            passed += read;
            if let Some((limit, breaks)) = limit
                && passed >= limit
            {
                return Err(Broken::ByFault(breaks));
            }
        }
    }

    fn strike(&self, number: usize, fault: &ProxyFault) {
        self.struck.lock().unwrap_or_else(PoisonError::into_inner).push((number, fault.clone()));
    }
}

/// Why bytes are no longer passed on.
enum Broken {
    ByFault(Breaks),
    /// One end is gone, without a word.
    Lost,
}

/// Makes a reset of the drop that follows.
fn reset(socket: &TcpStream) {
    // A socket that does not linger is closed with RST. Should that fail it is FIN, which is a fault as well.
    let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Closes both in good order, and reads what still comes: on unread bytes it would be a reset.
async fn close(client: &mut TcpStream, upstream: &mut TcpStream) {
    let _ = (client.shutdown().await, upstream.shutdown().await);
    let (mut nowhere, mut nobody) = (tokio::io::sink(), tokio::io::sink());
    let _ = tokio::join!(tokio::io::copy(client, &mut nowhere), tokio::io::copy(upstream, &mut nobody));
}

impl Drop for FlakyProxy {
    fn drop(&mut self) {
        self.shared.tasks.abort();
    }
}

impl fmt::Debug for FlakyProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlakyProxy")
            .field("addr", &self.addr)
            .field("upstream", &self.shared.upstream)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FlakyProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlakyProxyBuilder")
            .field("upstream", &self.upstream)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}
