//! Races, clients that leave anywhere, bytes that are anything, and what never leaves the server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use reqwest_idempotency::Contract;
use reqwest_idempotency::testing::{At, Fault, TestServer};
use tokio::task::JoinSet;

use super::*;

/// C-27: 200 attempts at once, 100 times over, each racer on a socket of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_a_race_of_200_on_one_key_executes_once_each_of_100_times() {
    let server = TestServer::start().await.unwrap();
    let mut sockets = Vec::new();
    for _ in 0..200 {
        sockets.push(raw(&server, []).await);
    }
    for round in 0..100 {
        let order: Arc<str> = Arc::from(raw_order(&format!("Idempotency-Key: key-{round}\r\n")));
        let mut racers = JoinSet::new();
        for socket in sockets.drain(..) {
            racers.spawn(race(socket, Arc::clone(&order)));
        }
        let mut first = 0;
        for (head, socket) in racers.join_all().await {
            let created = head.starts_with("HTTP/1.1 201 ");
            assert!(created || head.starts_with("HTTP/1.1 409 "), "{head}");
            first += usize::from(created && !head.contains("idempotent-replayed: true"));
            sockets.push(socket);
        }
        assert_eq!((first, server.executions()), (1, round + 1), "round {round}");
    }
}

/// Sends the order and reads its reply. Hands the socket back, for the next race.
async fn race(mut socket: TcpStream, order: Arc<str>) -> (String, TcpStream) {
    socket.write_all(order.as_bytes()).await.unwrap();
    let (mut read, mut space) = (String::new(), [0; 1024]);
    loop {
        let count = socket.read(&mut space).await.unwrap();
        assert!(count > 0, "closed after {read:?}");
        read += str::from_utf8(&space[..count]).unwrap();
        let Some((head, body)) = read.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return (head.to_owned(), socket);
        }
    }
}

#[tokio::test]
async fn c10_keys_that_differ_in_case_are_two() {
    let server = TestServer::start().await.unwrap();
    for key in ["key", "KEY"] {
        assert!(!send(order(&server, key)).await.unwrap().is_replay());
    }
    server.assert_keys_seen(&["key", "KEY"]);
}

#[tokio::test]
async fn c13_put_carries_a_key_where_the_contract_says_so() {
    let contract = Contract::default().methods([Method::POST, Method::PUT]);
    let server = TestServer::builder().contract(contract).start().await.unwrap();
    let put = || send(client().put(server.url("/orders/1")).header("Idempotency-Key", "k").body(TEAPOT));
    assert!(!put().await.unwrap().is_replay());
    assert!(put().await.unwrap().is_replay());
}

#[tokio::test]
async fn c66_a_caller_who_was_revoked_gets_no_replay() {
    let revoked = Arc::new(Mutex::new(false));
    let is_revoked = Arc::clone(&revoked);
    let name = move |_: &http::HeaderMap| (!*is_revoked.lock().unwrap()).then(|| "ann".to_owned());
    let server = TestServer::builder().principal(name).start().await.unwrap();
    send(order(&server, "k")).await.unwrap();
    *revoked.lock().unwrap() = true;
    send(order(&server, "k")).await.unwrap().assert_problem(401, "unauthenticated");
    *revoked.lock().unwrap() = false;
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
}

#[tokio::test]
async fn c68_no_answer_of_the_layer_and_no_line_of_the_log_has_the_key() {
    const KEY: &str = "secret-key-of-mine";
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let builder = TestServer::builder().log(move |line| log.lock().unwrap().push(line.to_owned()));
    let server = Arc::new(builder.max_replay_bytes(10).max_keys(1).start().await.unwrap());
    let hold = server.hold(At::AfterClaim);
    let first = tokio::spawn(send(order(&server, KEY).query(&[("token", KEY)])));
    hold.reached().await;
    let again = || order(&server, KEY).query(&[("token", KEY)]);
    let in_progress = send(again()).await.unwrap();
    let reused = send(again().body("{}")).await.unwrap();
    hold.open();
    first.await.unwrap().unwrap();
    let gone = send(again()).await.unwrap();
    let full = send(order(&server, "secret-key-of-mine-2")).await.unwrap();
    let malformed = send(order(&server, "secret-key-of-mine,")).await.unwrap();
    for got in [in_progress, reused, gone, full, malformed] {
        let text = format!("{:?} {:?}", got.headers, got.body);
        assert!(got.status >= 400 && !text.contains(KEY), "{text}");
    }
    let lines = lines.lock().unwrap().clone();
    let expected = [
        "POST /orders 409 attempt 2: refused with 409: in progress",
        "POST /orders 422 attempt 3: refused with 422: key reused for another payload",
        "POST /orders 201 attempt 1: executed, 201, too large to keep, a tombstone is left",
        "POST /orders 409 attempt 4: refused with 409: only a tombstone is left",
        "POST /orders 503 attempt 1: refused with 503: the ledger is full",
    ];
    assert_eq!(lines[..5], expected);
    assert!(lines[5].starts_with("POST /orders 400 attempt 1: refused with 400: "), "{}", lines[5]);
    assert!(lines.iter().all(|line| !line.contains(KEY)));
}

#[tokio::test]
async fn a_log_line_tells_of_an_exchange_that_got_no_answer() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let builder = TestServer::builder().log(move |line| log.lock().unwrap().push(line.to_owned()));
    let server = builder.faults([Fault::reply_lost()]).start().await.unwrap();
    assert!(send(order(&server, "k")).await.is_err());
    let expected = "POST /orders --- attempt 1: executed, 201, fault: connection closed after the commit";
    assert_eq!(*lines.lock().unwrap(), [expected]);
}

/// Wherever a client leaves, the operation was executed not at all or once, and its repeat executes or is replayed.
#[tokio::test]
async fn a_client_that_leaves_at_any_point_leaves_the_ledger_right() {
    let server = Arc::new(TestServer::start().await.unwrap());
    let whole = raw_order("Idempotency-Key: key-000\r\n");
    for sent in 0..=whole.len() {
        let key = format!("key-{sent:03}");
        let mut socket = raw(&server, &raw_order(&format!("Idempotency-Key: {key}\r\n")).as_bytes()[..sent]).await;
        match sent % 3 {
            // Gone with everything that was sent, gone in good order, and gone in one direction first.
            0 => socket.set_zero_linger().unwrap(),
            1 => {}
            _ => {
                socket.shutdown().await.unwrap();
                let _ = read_to_end(&mut socket).await;
            }
        }
        drop(socket);
        let got = settled(&client(), &server, &key).await;
        assert_eq!(got.status, 201, "{sent}");
        // Only one who stayed to the end can have executed.
        assert!(!got.is_replay() || sent == whole.len(), "{sent}");
        server.assert_executed_once(&key);
    }
    for at in [At::BeforeClaim, At::AfterClaim, At::AfterEffect, At::AfterCommit] {
        let key = format!("{at:?}");
        let hold = server.hold_for(&key, at);
        let leaving = tokio::spawn(send(order(&server, &key)));
        hold.reached().await;
        leaving.abort();
        assert!(leaving.await.unwrap_err().is_cancelled());
        hold.open();
        assert_eq!(settled(&client(), &server, &key).await.status, 201, "{at}");
        server.assert_executed_once(&key);
    }
}

/// A small generator of numbers (xorshift), so that a failure can be repeated by its seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

#[tokio::test]
async fn no_bytes_from_a_socket_make_the_server_panic_or_hang() {
    // The server's tasks run on this thread, and a panic in one of them would be its end and not the test's.
    let panicked = Arc::new(AtomicBool::new(false));
    let (here, flag, others) = (std::thread::current().id(), Arc::clone(&panicked), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        flag.fetch_or(std::thread::current().id() == here, Ordering::Relaxed);
        others(info);
    }));
    let server = TestServer::builder().body_limit(1000).start().await.unwrap();
    let mut numbers = Numbers(4711);
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for round in 0..600 {
        let mut bytes = match round % 4 {
            0 => raw_order("Idempotency-Key: k\r\n").into_bytes(),
            1 => "POST /orders?%%% HTTP/1.1\r\nHost: x\r\nIdempotency-Key: \"a\"; b=?2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".into(),
            2 => preface.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        for _ in 0..numbers.below(8) {
            match numbers.below(4) {
                0 if !bytes.is_empty() => {
                    let at = numbers.below(bytes.len());
                    bytes[at] = numbers.byte();
                }
                1 if !bytes.is_empty() => bytes.truncate(numbers.below(bytes.len())),
                2 => {
                    let at = numbers.below(bytes.len() + 1);
                    bytes.insert(at, numbers.byte());
                }
                _ => bytes.extend((0..numbers.below(64)).map(|_| numbers.byte())),
            }
        }
        let mut socket = raw(&server, &[]).await;
        // The server may have closed already, which is an answer.
        let _ = socket.write_all(&bytes).await;
        let _ = socket.shutdown().await;
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
    }
    assert_eq!(send(order(&server, "after")).await.unwrap().status, 201);
    assert!(!panicked.load(Ordering::Relaxed));
}
