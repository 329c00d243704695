//! Clients that leave, and bytes that are no request.

use reqwest_idempotency::testing::TestServer;
use tokio::io::AsyncWriteExt as _;

use super::*;

#[tokio::test]
async fn c54_a_client_that_leaves_does_not_stop_the_execution_and_its_repeat_is_replayed() {
    let gate = Gate::new();
    let server = gate.guard(TestServer::builder()).start().await.unwrap();
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    gate.entered().await;
    socket.shutdown().await.unwrap();
    // The server closes its side: by now it has noticed, and dropped the exchange.
    assert_eq!(read_to_end(&mut socket).await.0, "");

    send(order(&server, "k")).await.unwrap().assert_problem(409, "in-progress");
    gate.open();
    let replay = settled(&client(), &server, "k").await;
    assert_eq!((replay.status, replay.is_replay(), &replay.body[..]), (201, true, &b"made"[..]));
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c53_a_client_that_leaves_while_it_uploads_has_claimed_nothing() {
    let server = TestServer::start().await.unwrap();
    let head = "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 17\r\n\r\n";
    let mut socket = raw(&server, format!("{head}{{\"item\"")).await;
    socket.shutdown().await.unwrap();
    let _ = read_to_end(&mut socket).await;
    assert!(server.requests().is_empty());
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
}

#[tokio::test]
async fn bytes_that_are_no_http_end_their_connection_and_nothing_else() {
    let server = TestServer::start().await.unwrap();
    for garbage in [&b"\0\xff\x16\x03\x01"[..], b"GET\r\n\r\n", b"POST /orders HTTP/1.1\r\nContent-Length: -1\r\n\r\n"]
    {
        let mut socket = raw(&server, garbage).await;
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
    }
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
}
