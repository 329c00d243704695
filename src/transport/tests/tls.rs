//! TLS: certificates are told apart from other failures to connect.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};

use super::raw::Server;
use super::*;

/// For `localhost`, signed by itself, valid from 2000 to 9999.
const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.der");
const KEY: &[u8] = include_bytes!("tls/key.der");

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_not_sent_t14() {
    let (address, server) = serve_once();
    let outgoing = order(url("localhost", address)).through(client(address, false));
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Certificate, Sent::No));
    assert_eq!(server.join().unwrap(), b"");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_not_sent_t14() {
    let (address, server) = serve_once();
    let outgoing = order(url("other.example", address)).through(client(address, true));
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Certificate, Sent::No));
    assert_eq!(server.join().unwrap(), b"");
}

#[tokio::test]
async fn a_certificate_that_fits_lets_the_order_through() {
    let (address, server) = serve_once();
    let outgoing = order(url("localhost", address)).through(client(address, true));
    assert!(answered(exchange(&outgoing).await).is_complete());
    assert!(server.join().unwrap().ends_with(ORDER));
}

#[tokio::test]
async fn a_server_without_tls_is_a_failed_connection_and_not_sent() {
    let server = Server::bind().await;
    let outgoing = order(url("localhost", server.address())).through(client(server.address(), true));
    let script = async {
        let mut connection = server.accept().await;
        connection.readable().await;
        connection.send("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        connection.finish().await
    };
    assert_eq!(failed(against(&outgoing, script).await.0), (FailureKind::Connect, Sent::No));
}

fn url(host: &str, address: SocketAddr) -> Url {
    Url::parse(&format!("https://{host}:{}/orders", address.port())).unwrap()
}

/// With the system's certificates, and ours if it is to be trusted.
fn client(address: SocketAddr, trusting: bool) -> reqwest::Client {
    let builder = reqwest::Client::builder().no_proxy().http1_only();
    let builder = builder.resolve("localhost", address).resolve("other.example", address);
    let ours = reqwest::Certificate::from_der(CERTIFICATE).unwrap();
    guarded(builder.tls_certs_merge(trusting.then_some(ours)))
}

/// Takes one connection, and one request on it if the client goes that far; what came of it.
fn serve_once() -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let key = PrivateKeyDer::try_from(KEY).unwrap();
    let chain = vec![CertificateDer::from(CERTIFICATE)];
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let mut tcp = listener.accept().unwrap().0;
        let mut stream = Stream::new(&mut tls, &mut tcp);
        let mut came = Vec::new();
        while !came.ends_with(ORDER) {
            let mut chunk = [0; 1024];
            match stream.read(&mut chunk) {
                Ok(length @ 1..) => came.extend_from_slice(&chunk[..length]),
                _ => return came,
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        came
    });
    (address, thread)
}
