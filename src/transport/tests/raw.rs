//! A server made of bytes: each test is the script of its connections.

use std::net::SocketAddr;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use url::Url;

/// A listener on a free port of the loopback.
pub(super) struct Server(TcpListener);

impl Server {
    pub(super) async fn bind() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub(super) fn url(&self) -> Url {
        orders(self.address())
    }

    pub(super) async fn accept(&self) -> Connection {
        Connection { stream: self.0.accept().await.unwrap().0, buffer: BytesMut::new() }
    }

    /// Answers one request on a connection of its own.
    pub(super) async fn answer(&self, answer: &str) -> Request {
        self.accept().await.answer(answer).await
    }
}

/// A port where nobody listens, and nobody else can for as long as this lives.
pub(super) struct Refusing(TcpSocket);

impl Refusing {
    pub(super) fn bind() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self(socket)
    }

    pub(super) fn url(&self) -> Url {
        orders(self.0.local_addr().unwrap())
    }
}

fn orders(address: SocketAddr) -> Url {
    Url::parse(&format!("http://{address}/orders")).unwrap()
}

pub(super) struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Connection {
    /// The next request, with a body of the length that it declares.
    pub(super) async fn request(&mut self) -> Request {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            assert_ne!(self.read().await, 0, "closed within a head");
        };
        let head = String::from_utf8(self.buffer.split_to(end).to_vec()).unwrap();
        let mut request = Request { head, body: Vec::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        request.body = self.exactly(length).await;
        request
    }

    pub(super) async fn answer(&mut self, answer: &str) -> Request {
        let request = self.request().await;
        self.send(answer).await;
        request
    }

    pub(super) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Exactly so many bytes.
    pub(super) async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert_ne!(self.read().await, 0, "closed too early");
        }
        self.buffer.split_to(length).to_vec()
    }

    /// Waits until something has come, and leaves it unread.
    pub(super) async fn readable(&self) {
        assert_ne!(self.stream.peek(&mut [0]).await.unwrap(), 0, "closed");
    }

    /// Closes with FIN, and waits until the client has closed as well. What it still sends is lost.
    pub(super) async fn finish(mut self) -> usize {
        self.stream.shutdown().await.unwrap();
        let mut lost = self.buffer.remaining();
        while let Ok(1..) = self.stream.read_buf(&mut self.buffer).await {
            lost = self.buffer.remaining();
        }
        lost
    }

    /// Closes with RST.
    pub(super) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    async fn read(&mut self) -> usize {
        self.stream.read_buf(&mut self.buffer).await.unwrap()
    }
}

pub(super) struct Request {
    /// Request line and headers.
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let value = values.next();
        assert_eq!(values.next(), None, "{name} twice");
        value
    }
}

/// HTTP/2 in frames (RFC 9113 section 4.1), spoken without a preceding upgrade.
pub(super) struct Http2(Connection);

/// Frame types (RFC 9113 section 6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub(super) const GOAWAY: u8 = 7;

/// Flags of DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// Error codes (RFC 9113 section 7).
pub(super) const NO_ERROR: u32 = 0;
pub(super) const REFUSED_STREAM: u32 = 7;

/// `:status: 200`, as the static table of HPACK has it (RFC 7541 appendix A, index 8).
pub(super) const STATUS_200: &[u8] = &[0x88];

impl Http2 {
    /// Takes the client's preface and sends settings that change nothing.
    pub(super) async fn accept(server: &Server) -> Self {
        let mut connection = server.accept().await;
        assert_eq!(connection.exactly(24).await, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut this = Self(connection);
        this.send(SETTINGS, 0, 0, b"").await;
        this
    }

    pub(super) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.send([&head, payload].concat()).await;
    }

    /// Reads up to the next frame of this type; its stream and payload.
    pub(super) async fn next(&mut self, wanted: u8) -> (u32, Vec<u8>) {
        loop {
            let head = self.0.exactly(9).await;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let payload = self.0.exactly(length).await;
            if head[3] == wanted {
                return (u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload);
            }
        }
    }

    pub(super) async fn reset(&mut self, stream: u32, error: u32) {
        self.send(RST_STREAM, 0, stream, &error.to_be_bytes()).await;
    }

    /// The head of a reply, with status 200 and this length declared.
    pub(super) async fn head(&mut self, stream: u32, content_length: &str) {
        // A literal that is not indexed; its name is number 28 of the static table.
        let length = u8::try_from(content_length.len()).unwrap();
        let block = [STATUS_200, &[0x0f, 0x0d, length], content_length.as_bytes()].concat();
        self.send(HEADERS, END_HEADERS, stream, &block).await;
    }
}
