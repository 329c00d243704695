//! What a network does besides losing replies, on the wire and in the ledger.

use bytes::Bytes;
use http::Method;
use reqwest_idempotency::testing::{At, Fault, How, ManualClock, TestServer};
use tokio::net::TcpStream;

use super::*;

const REPLY: &str = r#"{"id":"order-1","order":{"item":"teapot"}}"#;

fn h2_client() -> reqwest::Client {
    client_builder().http2_prior_knowledge().build().unwrap()
}

async fn with(fault: Fault) -> TestServer {
    TestServer::builder().faults([fault]).fail_on_unused_faults().start().await.unwrap()
}

async fn with_connection(fault: Fault) -> TestServer {
    TestServer::builder().connection_faults([fault]).fail_on_unused_faults().start().await.unwrap()
}

#[tokio::test]
async fn a_connection_can_end_before_a_byte_of_it_is_read() {
    for (fault, expected) in [
        (Fault::close(At::Connect), ("", Ok(()))),
        (Fault::reset(At::Connect), ("", Err(ErrorKind::ConnectionReset))),
        (Fault::new(At::Connect, How::Garbage(Bytes::from_static(b"\x15\x03"))), ("\x15\x03", Ok(()))),
    ] {
        let server = with_connection(fault.clone()).await;
        let mut socket = TcpStream::connect(server.addr()).await.unwrap();
        let (read, end) = read_to_end(&mut socket).await;
        assert_eq!((read.as_str(), end), expected, "{fault}");
        let injected = server.fault_injected().await;
        assert_eq!((injected.key, injected.attempt, injected.fault), (None, 1, fault));
        assert!(server.requests().is_empty());
        assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
        assert!(server.history().starts_with("  connection 1: fault: "), "{}", server.history());
    }
}

#[tokio::test]
async fn a_connection_can_stall_or_be_late_before_a_byte_of_it_is_read() {
    let clock = ManualClock::new();
    let faults = [Fault::stall(At::Connect), Fault::delay(At::Connect, HOUR)];
    let server = TestServer::builder().clock(clock.clone()).connection_faults(faults).start().await.unwrap();
    let stalled = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    server.fault_injected().await;
    let late = tokio::spawn(send(order(&server, "k")));
    server.fault_injected().await;
    assert!(server.requests().is_empty());
    clock.advance(HOUR);
    assert_eq!(late.await.unwrap().unwrap().status, 201);
    assert_eq!(stalled.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.assert_attempts("k", 1);
}

#[tokio::test]
async fn c53_a_connection_that_ends_within_the_request_has_claimed_nothing() {
    let whole = raw_order("Idempotency-Key: k\r\n");
    // 17 bytes of it are the body.
    for bytes in [0, 1, 20, whole.len() - 17, whole.len() - 1] {
        for (fault, expected) in [
            (Fault::close(At::RequestBytes(bytes)), Ok(())),
            (Fault::reset(At::RequestBytes(bytes)), Err(ErrorKind::ConnectionReset)),
        ] {
            let server = with_connection(fault.clone()).await;
            let mut socket = raw(&server, &whole).await;
            assert_eq!(read_to_end(&mut socket).await, (String::new(), expected), "{fault}");
            assert!(server.requests().is_empty(), "{fault}");
            assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
            server.assert_executed_once("k");
        }
    }
}

#[tokio::test]
async fn a_stall_within_the_request_reads_no_more_and_stays_open() {
    let server = with_connection(Fault::stall(At::RequestBytes(20))).await;
    let stalled = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    server.fault_injected().await;
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
    assert_eq!(stalled.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.assert_attempts("k", 1);
}

#[tokio::test]
async fn t01_a_connection_ends_behind_a_whole_reply() {
    for (fault, expected) in [
        (Fault::close(At::AfterResponse), Ok(())),
        (Fault::new(At::AfterResponse, How::Garbage(Bytes::from_static(b"HTTP/0.9 huh"))), Ok(())),
    ] {
        let server = with(fault.clone()).await;
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        let (reply, end) = read_to_end(&mut socket).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        // Nothing in the head tells.
        assert!(head.starts_with("HTTP/1.1 201 Created\r\n") && !head.contains("connection"), "{head}");
        let garbage = if fault.how() == Some(&How::Fin) { "" } else { "HTTP/0.9 huh" };
        assert_eq!((body, end), (format!("{REPLY}{garbage}").as_str(), expected));
        assert!(send(order(&server, "k")).await.unwrap().is_replay());
    }
    for answer in [201, 204] {
        let builder = TestServer::builder().route(Method::POST, "/orders", move |_| async move { status(answer) });
        let server = builder.faults([Fault::close(At::AfterResponse)]).start().await.unwrap();
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        assert!(read_to_end(&mut socket).await.0.starts_with(&format!("HTTP/1.1 {answer} ")));
    }
}

#[tokio::test]
async fn over_http_2_a_connection_ends_behind_a_whole_reply() {
    let server = with(Fault::close(At::AfterResponse)).await;
    let client = h2_client();
    assert_eq!(send(order_by(&client, &server, "k")).await.unwrap().body, REPLY);
    server.fault_injected().await;
    assert!(send(order_by(&client, &server, "k")).await.unwrap().is_replay());
}

#[tokio::test]
async fn a_delay_ends_when_its_time_has_passed_by_the_servers_clock() {
    for (at, executed) in
        [(At::BeforeClaim, 0), (At::AfterClaim, 0), (At::AfterEffect, 1), (At::AfterCommit, 1), (At::BodyBytes(3), 1)]
    {
        let clock = ManualClock::new();
        let builder = TestServer::builder().clock(clock.clone()).faults([Fault::delay(at, HOUR)]);
        let server = builder.start().await.unwrap();
        let delayed = tokio::spawn(send(order(&server, "k")));
        server.fault_injected().await;
        clock.advance(HOUR - MILLISECOND);
        assert_eq!((server.executions_of("k"), delayed.is_finished()), (executed, false), "{at}");
        clock.advance(MILLISECOND);
        let got = delayed.await.unwrap().unwrap();
        assert_eq!((got.status, &got.body[..]), (201, REPLY.as_bytes()), "{at}");
        server.assert_executed_once("k");
    }
}

#[tokio::test]
async fn a_status_after_the_claim_says_that_nothing_happened_and_releases_the_key() {
    // C-42, before the effect: the handler's set-up fails.
    let server = with(Fault::status(500).moved_to(At::AfterClaim)).await;
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 500);
    server.assert_never_executed("k");
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
}

#[tokio::test]
async fn garbage_takes_the_place_of_the_reply() {
    for (at, executed) in
        [(At::BeforeClaim, false), (At::AfterClaim, true), (At::AfterEffect, true), (At::AfterCommit, true)]
    {
        let server = with(Fault::new(at, How::Garbage(Bytes::from_static(b"\0\x01 no http")))).await;
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
        assert_eq!(read_to_end(&mut socket).await, ("\0\x01 no http".to_owned(), Ok(())), "{at}");
        assert_eq!(settled(&client(), &server, "k").await.is_replay(), executed, "{at}");
        server.assert_executed_once("k");
    }
    let server = with(Fault::new(At::BodyBytes(3), How::Garbage(Bytes::from_static(b"!!")))).await;
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    assert_eq!(read_to_end(&mut socket).await.0.split_once("\r\n\r\n").unwrap().1, "{\"i!!");
}

#[tokio::test]
async fn a_dribble_comes_piece_by_piece_and_is_whole() {
    let clock = ManualClock::new();
    let dribble = Fault::new(At::BodyBytes(2), How::Dribble { bytes: 20, pause: HOUR });
    let server = TestServer::builder().clock(clock.clone()).faults([dribble]).start().await.unwrap();
    let mut response = order(&server, "k").send().await.unwrap();
    assert_eq!(response.headers()["content-length"], "42");
    let mut pieces = vec![response.chunk().await.unwrap().unwrap().len()];
    server.fault_injected().await;
    for _ in 0..2 {
        assert!(tokio::select! { biased; _ = response.chunk() => false, () = tokio::task::yield_now() => true });
        clock.advance(HOUR);
        pieces.push(response.chunk().await.unwrap().unwrap().len());
    }
    assert_eq!((pieces, response.chunk().await.unwrap()), (vec![2, 20, 20], None));
}

#[tokio::test]
async fn a_truncated_body_is_well_framed_and_only_its_content_tells() {
    for client in [client(), h2_client()] {
        let server = with(Fault::new(At::BodyBytes(10), How::Truncate)).await;
        let got = send(order_by(&client, &server, "k")).await.unwrap();
        assert_eq!((got.status, got.header("content-length"), &got.body[..]), (201, Some("10"), &b"{\"id\":\"ord"[..]));
        assert_eq!(send(order_by(&client, &server, "k")).await.unwrap().body, REPLY);
    }
}

#[tokio::test]
async fn a_content_length_that_announces_too_much_breaks_off_and_one_that_announces_too_little_is_obeyed() {
    for (announced, body, is_error) in [(50, REPLY, true), (43, REPLY, true), (10, &REPLY[..10], false), (0, "", false)]
    {
        let server = with(Fault::new(At::AfterCommit, How::BadContentLength(announced))).await;
        let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\nConnection: close\r\n")).await;
        let (reply, _) = read_to_end(&mut socket).await;
        let (head, got) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {announced}")), "{head}");
        assert_eq!(got, body);

        let server = with(Fault::new(At::AfterCommit, How::BadContentLength(announced))).await;
        assert_eq!(send(order(&server, "k")).await.is_err(), is_error, "{announced}");
        assert_eq!(send(order(&server, "k")).await.unwrap().body, REPLY);
    }
}

#[tokio::test]
async fn over_http_2_a_content_length_may_disagree_with_the_body() {
    let server = with(Fault::new(At::AfterCommit, How::BadContentLength(50))).await;
    let response = order_by(&h2_client(), &server, "k").send().await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["content-length"]), (201, &"50".parse().unwrap()));
}

#[tokio::test]
async fn t05_a_stream_is_reset_and_its_code_may_lie() {
    for (at, executed) in
        [(At::BeforeClaim, false), (At::AfterClaim, true), (At::AfterEffect, true), (At::AfterCommit, true)]
    {
        // 8 is CANCEL. hyper would repeat a request by itself that was refused.
        let server = with(Fault::new(at, How::H2Reset(8))).await;
        let client = h2_client();
        send(order_by(&client, &server, "other")).await.unwrap_err();
        // The connection lives on, and so do its other streams.
        server.faults_for("other", []);
        assert_eq!(settled(&client, &server, "other").await.is_replay(), executed, "{at}");
        server.assert_executed_once("other");
    }
    let server = with(Fault::new(At::BodyBytes(10), How::H2Reset(8))).await;
    let mut response = order_by(&h2_client(), &server, "k").send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap().len(), 10);
    assert!(response.chunk().await.is_err());
    let server = with(Fault::new(At::AfterCommit, How::H2Reset(7))).await;
    let error = send(order_by(&h2_client(), &server, "k")).await.unwrap_err();
    assert!(format!("{error:?}").contains("REFUSED_STREAM"), "{error:?}");
    // Over HTTP/1.1 there is no stream to reset.
    let server = with(Fault::new(At::AfterCommit, How::H2Reset(7))).await;
    let mut socket = raw(&server, raw_order("Idempotency-Key: k\r\n")).await;
    assert_eq!(read_to_end(&mut socket).await.1, Err(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn t04_a_goaway_says_that_nothing_was_processed() {
    for (at, executed) in [(At::BeforeClaim, false), (At::AfterCommit, true)] {
        let server = with(Fault::new(at, How::H2GoAway)).await;
        let error = send(order_by(&h2_client(), &server, "k")).await.unwrap_err();
        assert!(format!("{error:?}").contains("GoAway"), "{error:?}");
        assert_eq!(send(order(&server, "k")).await.unwrap().is_replay(), executed);
    }
}

#[tokio::test]
async fn c51_a_store_that_is_down_at_the_claim_executes_nothing() {
    let server = with(Fault::store_down()).await;
    send(order(&server, "k")).await.unwrap().assert_problem(503, "store-unavailable");
    server.assert_never_executed("k");
    assert_eq!(send(order(&server, "k")).await.unwrap().status, 201);
}

#[tokio::test]
async fn a_request_that_is_delivered_twice_executes_once() {
    for at in [At::BeforeClaim, At::AfterCommit] {
        let server = with(Fault::delivered_twice().moved_to(at)).await;
        let got = send(order(&server, "k")).await.unwrap();
        assert_eq!((got.status, got.is_replay()), (201, false), "{at}");
        while !server.history().contains("second delivery, re") {
            tokio::task::yield_now().await;
        }
        // It is no attempt of the client's.
        server.assert_attempts("k", 1);
        server.assert_executed_once("k");
    }
}

#[tokio::test]
async fn c60_a_late_original_is_replayed_though_its_client_is_gone() {
    let server = with(Fault::late_original()).await;
    let held = tokio::spawn(send(order(&server, "k")));
    server.fault_injected().await;
    held.abort();
    assert!(held.await.unwrap_err().is_cancelled());
    let second = send(order(&server, "k")).await.unwrap();
    assert_eq!((second.status, second.is_replay()), (201, false));
    while !server
        .history()
        .contains("attempt 1: fault: held back behind a later attempt before the claim, replayed 201")
    {
        tokio::task::yield_now().await;
    }
    server.assert_executed_once("k");
}

#[tokio::test]
async fn c61_a_late_original_after_the_window_executes_again_and_the_check_says_so() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).window(HOUR).start().await.unwrap();
    let server = Arc::new(server);
    let hold = server.hold_for("k", At::BeforeClaim);
    let late = tokio::spawn(send(order(&server, "k")));
    hold.reached().await;
    let second = tokio::spawn(send(order(&server, "k")));
    hold.reached().await;
    // Whichever goes first, the other one comes when the window has ended.
    hold.let_one();
    while server.executions_of("k") == 0 {
        tokio::task::yield_now().await;
    }
    while server.ledger()[0].state.name() != "stored" {
        tokio::task::yield_now().await;
    }
    clock.advance(HOUR);
    hold.open();
    for attempt in [late, second] {
        let got = attempt.await.unwrap().unwrap();
        assert_eq!((got.status, got.is_replay()), (201, false));
    }
    let flagged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.assert_executed_once("k")));
    assert!(flagged.unwrap_err().downcast::<String>().unwrap().starts_with("key \"k\" was executed 2 times"));
}

#[tokio::test]
async fn a_hold_stops_attempts_of_its_key_where_it_is_set_and_lets_all_go_when_it_is_dropped() {
    let server = Arc::new(TestServer::start().await.unwrap());
    for (at, state) in [
        (At::BeforeClaim, "absent"),
        (At::AfterClaim, "running"),
        (At::AfterEffect, "running"),
        (At::AfterCommit, "stored"),
    ] {
        let key = format!("{at:?}");
        let hold = server.hold_for(&key, at);
        let held = tokio::spawn(send(order(&server, &key)));
        hold.reached().await;
        assert_eq!(send(order(&server, "other")).await.unwrap().status, 201);
        let entry = server.ledger().into_iter().find(|entry| entry.key == key).unwrap();
        assert_eq!((entry.state.name(), held.is_finished()), (state, false), "{at}");
        drop(hold);
        assert_eq!(held.await.unwrap().unwrap().status, 201);
    }
}

#[tokio::test]
#[should_panic(expected = "attempts can be held before the claim")]
async fn a_hold_where_nothing_can_be_held_is_refused() {
    let server = TestServer::start().await.unwrap();
    let _ = server.hold(At::BodyBytes(1));
}

#[tokio::test]
#[should_panic(expected = "scripted faults have struck nobody: connection closed after the commit")]
async fn a_script_that_was_not_used_up_fails_its_test() {
    let server = TestServer::builder().faults([Fault::reply_lost()]).fail_on_unused_faults().start().await.unwrap();
    drop(server);
}

#[tokio::test]
#[should_panic(expected = "faults has a fault at a position that belongs into connection_faults")]
async fn a_fault_in_the_wrong_script_is_refused() {
    let _ = TestServer::builder().faults([Fault::close(At::Connect)]).start().await;
}

/// Sends each order until it is through, in the given order of operations.
async fn through_chaos(server: &TestServer, orders: impl IntoIterator<Item = usize>) {
    let client = client();
    for n in orders {
        let (key, body) = (format!("key-{n}"), format!("{{\"n\":{n}}}"));
        for _ in 0..100 {
            if send(order_by(&client, server, &key).body(body.clone())).await.is_ok_and(|got| got.status == 201) {
                break;
            }
        }
        server.assert_executed_once(&key);
    }
}

fn script_lines(server: &TestServer) -> Vec<String> {
    let mut lines: Vec<String> = server.repro().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn chaos_of_one_seed_strikes_the_same_attempts_whatever_the_order_of_arrival() {
    let chaotic = |seed| TestServer::builder().chaos(0.5, seed).start();
    let (one, other, another_seed) = (chaotic(7).await.unwrap(), chaotic(7).await.unwrap(), chaotic(8).await.unwrap());
    through_chaos(&one, 0..30).await;
    through_chaos(&other, (0..30).rev()).await;
    through_chaos(&another_seed, 0..30).await;
    assert_eq!(script_lines(&one), script_lines(&other));
    assert_ne!(script_lines(&one)[1..], script_lines(&another_seed)[1..]);
    assert_eq!(one.repro().lines().next(), Some("// TestServer::builder().chaos(0.5, 7), or attempt by attempt:"));
}

#[tokio::test]
async fn repro_prints_what_struck_as_scripts() {
    let server = TestServer::builder().connection_faults([Fault::reset(At::Connect)]).start().await.unwrap();
    server.faults_for("a", [Fault::reply_lost(), Fault::none(), Fault::status(503)]);
    assert!(send(order(&server, "a")).await.is_err());
    for key in ["a", "b", "a", "a"] {
        let _ = send(order(&server, key)).await;
    }
    assert_eq!(
        server.repro(),
        ".connection_faults([Fault::new(At::Connect, How::Rst)])\n\
         server.faults_for(\"a\", [Fault::new(At::AfterCommit, How::Fin), Fault::none(), Fault::status(503)]);\n"
    );
}
