//! HTTP/1.1: what goes out, what comes back, and how the connection ends.

use super::raw::{Connection, Server};
use super::*;

const CREATED: &str = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";

// What goes out.

#[tokio::test]
async fn a_body_arrives_byte_for_byte_under_its_exact_length_b03() {
    let server = Server::bind().await;
    // 1 MiB in which no two neighbours repeat a short pattern: 251 is prime.
    let body: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut outgoing = order(server.url());
    outgoing.body = Bytes::from(body.clone());
    // A length from before the body was frozen.
    outgoing.headers.insert(CONTENT_LENGTH, HeaderValue::from(7));
    let script = async {
        let mut connection = server.accept().await;
        let request = connection.request().await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
        connection.send(head).await;
        connection.send(&request.body).await;
        request
    };
    let (outcome, request) = against(&outgoing, script).await;
    assert!(request.head.starts_with("POST /orders HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("content-length"), Some("1048576"));
    assert_eq!(request.header("transfer-encoding"), None);
    assert!(request.body == body);
    let reply = answered(outcome);
    assert!(reply.is_complete() && reply.body() == &body && !reply.redirected);
}

#[tokio::test]
async fn an_empty_body_is_declared_where_a_body_is_usual() {
    for (method, declared) in
        [(Method::POST, Some("0")), (Method::PUT, Some("0")), (Method::PATCH, Some("0")), (Method::GET, None)]
    {
        let server = Server::bind().await;
        let outgoing = Outgoing { method: method.clone(), ..order(server.url()).empty() };
        let (outcome, request) = against(&outgoing, server.answer(CREATED)).await;
        assert_eq!(request.header("content-length"), declared, "{method}");
        assert_eq!(answered(outcome).status, StatusCode::CREATED);
    }
}

#[tokio::test]
async fn user_info_and_fragment_stay_at_home() {
    let server = Server::bind().await;
    // To a proxy the whole URL is sent.
    let proxy = reqwest::Proxy::http(server.url()).unwrap();
    let client = builder().proxy(proxy).build().unwrap();
    let outgoing = order(Url::parse("http://me:hunter2@a.example/orders#top").unwrap()).through(client);
    let (outcome, request) = against(&outgoing, server.answer(CREATED)).await;
    assert!(request.head.starts_with("POST http://a.example/orders HTTP/1.1\r\n"), "{}", request.head);
    assert!(request.header("authorization").is_none(), "{}", request.head);
    assert!(!answered(outcome).redirected);
}

#[tokio::test]
async fn headers_and_version_go_out_as_the_caller_set_them() {
    let server = Server::bind().await;
    let mut outgoing = Outgoing { version: Some(Version::HTTP_10), ..order(server.url()) };
    outgoing.headers.insert("idempotency-key", HeaderValue::from_static("6fd2"));
    outgoing.headers.append("x-tag", HeaderValue::from_static("a"));
    let (_, request) = against(&outgoing, server.answer(CREATED)).await;
    assert!(request.head.starts_with("POST /orders HTTP/1.0\r\n"), "{}", request.head);
    assert_eq!((request.header("idempotency-key"), request.header("x-tag")), (Some("6fd2"), Some("a")));
}

// What comes back.

#[tokio::test]
async fn a_reply_over_the_limit_is_handed_on_while_it_still_streams() {
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let length = 5 * LIMIT / 4;
    let script = async {
        let mut connection = server.accept().await;
        connection.request().await;
        connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).await;
        connection.send(vec![b'x'; length - 1]).await;
        connection
    };
    let client = async {
        let (reply, rest) = exchange(&outgoing).await.unwrap();
        let (mut read, mut rest) = (reply.body().len(), rest.unwrap());
        assert!(matches!(reply.body, ReplyBody::TooLong(_)) && read > LIMIT && read < length - 1, "{reply:?}");
        while read < length - 1 {
            read += rest.chunk().await.unwrap().unwrap().len();
        }
        rest
    };
    // The last byte goes out when all others have been read.
    let (mut rest, mut connection) = tokio::join!(client, script);
    connection.send("y").await;
    assert_eq!(rest.chunk().await.unwrap().as_deref(), Some(&b"y"[..]));
    assert_eq!(rest.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn a_reply_of_exactly_the_limit_is_whole() {
    for (length, whole) in [(10, true), (11, false)] {
        let server = Server::bind().await;
        let outgoing = order(server.url());
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length));
        let (outcome, _) = tokio::join!(async { Exchange::new(&outgoing).run(10).await }, server.answer(&answer));
        assert_eq!(outcome.unwrap().0.is_complete(), whole, "{length}");
    }
}

#[tokio::test]
async fn a_reply_without_a_body_may_declare_a_length() {
    for (method, status) in [(Method::HEAD, "200 OK"), (Method::GET, "304 Not Modified")] {
        let server = Server::bind().await;
        let outgoing = Outgoing { method, ..order(server.url()).empty() };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 1000\r\n\r\n");
        let (outcome, _) = against(&outgoing, server.answer(&answer)).await;
        assert!(answered(outcome).is_complete(), "{status}");
    }
}

#[tokio::test]
async fn the_declared_length_of_a_chunked_reply_does_not_count() {
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let reply = answered(against(&outgoing, server.answer(answer)).await.0);
    assert!(reply.is_complete(), "{reply:?}");
}

#[cfg(feature = "gzip")]
#[tokio::test]
async fn the_declared_length_is_not_that_of_a_decoded_reply() {
    // gzip of eight times "hello ".
    let packed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xcb\x48\xcd\xc9\xc9\x57\xc8\x20\x9a\x04\x00\x75\x6b\xb2\x44\x30\x00\x00\x00";
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let script = async {
        let mut connection = server.accept().await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", packed.len());
        connection.answer(&head).await;
        connection.send(packed).await;
    };
    let reply = answered(against(&outgoing, script).await.0);
    assert!(reply.is_complete(), "{reply:?}");
    assert_eq!(reply.body(), &"hello ".repeat(8));
}

#[tokio::test]
async fn a_reply_cut_after_its_head_is_a_lost_reply_t02() {
    let cuts = [
        "Content-Length: 1000\r\n\r\n0123456789",
        "Transfer-Encoding: chunked\r\n\r\n14\r\n0123456789",
        "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n",
    ];
    for cut in cuts {
        for reset in [true, false] {
            let server = Server::bind().await;
            let outgoing = order(server.url());
            let script = async {
                let mut connection = server.accept().await;
                connection.request().await;
                connection.send(format!("HTTP/1.1 200 OK\r\n{cut}")).await;
                if reset {
                    connection.reset();
                } else {
                    connection.finish().await;
                }
            };
            let outcome = against(&outgoing, script).await.0;
            // Elsewhere a reset may overtake what was sent before it.
            if reset && outcome.is_err() && !cfg!(target_os = "linux") {
                assert_eq!(failed(outcome), (FailureKind::Connection, Sent::Perhaps), "{cut}");
                continue;
            }
            let (bytes, failure) = broke_off(outcome);
            assert!(b"0123456789".starts_with(&bytes) && (reset || bytes.len() == 10), "{cut}");
            assert_eq!((failure.kind, failure.sent), (FailureKind::ReplyLost, Sent::Perhaps), "{cut}");
        }
    }
}

#[tokio::test]
async fn a_reply_with_broken_framing_is_a_lost_reply() {
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n";
    let (bytes, failure) = broke_off(against(&outgoing, server.answer(answer)).await.0);
    assert_eq!(bytes, "abc");
    assert_eq!((failure.kind, failure.sent), (FailureKind::ReplyLost, Sent::Perhaps));
}

#[tokio::test]
async fn when_our_timer_fires_in_the_body_the_head_is_known() {
    // More than the sockets between us can hold: when it is written, the head has been seen on the other side.
    const WRITTEN: usize = 32 << 20;
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let mut exchange = Exchange::new(&outgoing);
    let script = async {
        let mut connection = server.accept().await;
        connection.request().await;
        let head = format!("HTTP/1.1 409 Conflict\r\nRetry-After: 2\r\nContent-Length: {}\r\n\r\n", WRITTEN + 1);
        connection.send(head).await;
        connection.send(vec![b'x'; WRITTEN]).await;
        connection
    };
    let _connection = tokio::select! {
        _ = exchange.run(usize::MAX) => panic!("the last byte is missing"),
        connection = script => connection,
    };
    let reply = exchange.timed_out().unwrap();
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_eq!(reply.headers["retry-after"], "2");
    let ReplyBody::Incomplete(bytes, failure) = reply.body else { panic!("{:?}", reply.body) };
    assert!(!bytes.is_empty() && bytes.len() <= WRITTEN);
    assert_eq!((failure.kind, failure.sent), (FailureKind::Timeout, Sent::Perhaps));
}

#[tokio::test]
async fn when_the_callers_timeout_fires_in_the_body_the_head_is_known() {
    // How long is long enough to see the head is the machine's business: the time is doubled until it is.
    for doubled in 4..14 {
        let server = Server::bind().await;
        let outgoing = order(server.url()).with_timeout(Duration::from_millis(1 << doubled));
        let mut connections = Vec::new();
        let script = async {
            let mut connection = server.accept().await;
            connection.request().await;
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789").await;
            connections.push(connection);
        };
        let (outcome, ()) = tokio::join!(exchange(&outgoing), script);
        match outcome {
            Err(failure) => assert_eq!((failure.kind, failure.sent), (FailureKind::Timeout, Sent::Perhaps)),
            Ok(_) => {
                let (_, failure) = broke_off(outcome);
                assert_eq!((failure.kind, failure.sent), (FailureKind::Timeout, Sent::Perhaps));
                return;
            }
        }
    }
    panic!("the head was never seen");
}

// No reply.

#[tokio::test]
async fn a_connection_that_ends_after_the_request_was_read_is_unknown() {
    // Of an empty body the witness would say that it was never asked for.
    for (body, reset) in [(ORDER, true), (ORDER, false), (b"", true), (b"", false)] {
        let server = Server::bind().await;
        let outgoing = Outgoing { body: Bytes::from_static(body), ..order(server.url()) };
        let script = async {
            let mut connection = server.accept().await;
            assert_eq!(connection.request().await.body, body);
            if reset {
                connection.reset();
            } else {
                connection.finish().await;
            }
        };
        let outcome = against(&outgoing, script).await.0;
        assert_eq!(failed(outcome), (FailureKind::Connection, Sent::Perhaps), "{body:?}, reset: {reset}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_with_the_request_unread_is_unknown() {
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let script = async {
        let connection = server.accept().await;
        connection.readable().await;
        connection.finish().await
    };
    let (outcome, lost) = against(&outgoing, script).await;
    assert_ne!(lost, 0);
    assert_eq!(failed(outcome), (FailureKind::Connection, Sent::Perhaps));
}

#[tokio::test]
async fn a_connection_that_ends_when_it_is_accepted_is_not_sent_only_if_the_request_was_handed_back_unwritten() {
    let mut handed_back = false;
    for delay in 0..5 {
        let server = Server::bind().await;
        let outgoing = order(server.url());
        let script = async {
            let connection = server.accept().await;
            for _ in 0..delay {
                tokio::task::yield_now().await;
            }
            connection.finish().await
        };
        let (outcome, came) = against(&outgoing, script).await;
        // It depends on what hyper comes across first, the end or the request.
        match failed(outcome) {
            (FailureKind::Canceled, Sent::No) => {
                assert_eq!(came, 0, "bytes came");
                handed_back = true;
            }
            other => assert_eq!(other, (FailureKind::Connection, Sent::Perhaps)),
        }
    }
    assert!(handed_back, "the end came first when there was no delay");
}

#[tokio::test]
async fn our_timer_after_the_request_was_read_is_unknown() {
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let mut exchange = Exchange::new(&outgoing);
    let script = async {
        let mut connection = server.accept().await;
        connection.request().await;
        connection
    };
    let _connection = tokio::select! {
        _ = exchange.run(LIMIT) => panic!("there is no reply"),
        connection = script => connection,
    };
    let failure = exchange.timed_out().unwrap_err();
    assert_eq!((failure.kind, failure.sent), (FailureKind::Timeout, Sent::Perhaps));
}

#[tokio::test]
async fn what_is_not_http_is_unknown() {
    for garbage in
        ["SSH-2.0-OpenSSH_9.9\r\n", "HTTP/1.1 2OO OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
    {
        let server = Server::bind().await;
        let outgoing = order(server.url());
        let outcome = against(&outgoing, server.answer(garbage)).await.0;
        assert_eq!(failed(outcome), (FailureKind::Connection, Sent::Perhaps), "{garbage}");
    }
}

#[tokio::test]
async fn a_reused_connection_that_closes_with_the_request_unread_is_unknown_t01() {
    for client in [order, |url| order(url).foreign()] {
        let server = Server::bind().await;
        let outgoing = client(server.url());
        let (outcome, connection) = against(&outgoing, keep_alive(&server)).await;
        assert!(answered(outcome).is_complete());
        let script = async {
            connection.readable().await;
            // Closed with bytes unread, the kernel answers with RST.
            drop(connection);
        };
        let outcome = against(&outgoing, script).await.0;
        assert_eq!(failed(outcome), (FailureKind::Connection, Sent::Perhaps));
    }
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_while_idle_is_replaced_and_the_request_goes_out_once() {
    let server = Server::bind().await;
    let outgoing = order(server.url());
    let (outcome, connection) = against(&outgoing, keep_alive(&server)).await;
    assert!(answered(outcome).is_complete());
    assert_eq!(connection.finish().await, 0);
    let (outcome, request) = against(&outgoing, server.answer(CREATED)).await;
    assert_eq!(request.body, ORDER);
    assert_eq!(answered(outcome).status, StatusCode::CREATED);
}

async fn keep_alive(server: &Server) -> Connection {
    let mut connection = server.accept().await;
    connection.answer(CREATED).await;
    connection
}
