//! A bad network in front of a good server.

use reqwest_idempotency::IdempotentClient;
use reqwest_idempotency::testing::{FlakyProxy, ManualClock, ProxyFault, TestServer};
use tokio::net::TcpStream;

use super::*;

async fn behind(fault: ProxyFault) -> (TestServer, FlakyProxy) {
    let server = TestServer::start().await.unwrap();
    let proxy = FlakyProxy::in_front_of(server.addr()).faults([fault]).start().await.unwrap();
    (server, proxy)
}

/// The reply to a raw order through the proxy, and how the connection ended.
async fn through(proxy: &FlakyProxy) -> (String, Result<(), ErrorKind>) {
    let mut socket = TcpStream::connect(proxy.addr()).await.unwrap();
    let order = raw_order("Idempotency-Key: k\r\nConnection: close\r\n");
    let _ = socket.write_all(order.as_bytes()).await;
    read_to_end(&mut socket).await
}

#[tokio::test]
async fn a_good_connection_passes_everything() {
    let (server, proxy) = behind(ProxyFault::none()).await;
    let (reply, end) = through(&proxy).await;
    assert!(reply.starts_with("HTTP/1.1 201 Created\r\n") && reply.ends_with("\"teapot\"}}"), "{reply}");
    assert_eq!((end, proxy.connections(), proxy.struck()), (Ok(()), 1, vec![]));
    server.assert_executed_once("k");
}

#[tokio::test]
async fn a_connection_breaks_to_the_byte_and_the_next_one_works() {
    for (fault, expected, executed) in [
        (ProxyFault::refuse(), ("", Err(ErrorKind::ConnectionReset)), false),
        (ProxyFault::reset_after_sent(30), ("", Err(ErrorKind::ConnectionReset)), false),
        (ProxyFault::close_after_sent(30), ("", Ok(())), false),
        (ProxyFault::close_after_received(0), ("", Ok(())), true),
        (ProxyFault::close_after_received(12), ("HTTP/1.1 201", Ok(())), true),
    ] {
        let (server, proxy) = behind(fault.clone()).await;
        let (reply, end) = through(&proxy).await;
        assert_eq!((reply.as_str(), end), expected, "{fault:?}");
        assert_eq!(proxy.struck(), [(1, fault.clone())]);
        let again = through(&proxy).await.0;
        assert!(again.starts_with("HTTP/1.1 201 Created\r\n"), "{fault:?}: {again}");
        assert_eq!(again.contains("idempotent-replayed: true"), executed, "{fault:?}");
        server.assert_executed_once("k");
    }
}

#[tokio::test]
async fn a_reset_within_the_reply_leaves_the_operation_executed() {
    let (server, proxy) = behind(ProxyFault::reset_after_received(12)).await;
    assert_eq!(through(&proxy).await.1, Err(ErrorKind::ConnectionReset));
    assert!(through(&proxy).await.0.contains("idempotent-replayed: true"));
    server.assert_replayed("k");
}

#[tokio::test]
async fn a_stall_lasts_until_the_proxy_cuts_it() {
    for (fault, executed) in [(ProxyFault::stall_after_sent(30), 0), (ProxyFault::stall_after_received(12), 1)] {
        let (server, proxy) = behind(fault.clone()).await;
        let stalled = tokio::spawn(async move {
            let reply = through(&proxy).await;
            (reply.1, proxy)
        });
        while server.executions_of("k") < executed {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!stalled.is_finished(), "{fault:?}");
        assert_eq!(server.executions_of("k"), executed);
        stalled.abort();
    }
}

#[tokio::test]
async fn a_cut_resets_what_is_open_and_nothing_later() {
    let (server, proxy) = behind(ProxyFault::stall_after_sent(30)).await;
    let proxy = Arc::new(proxy);
    let cut = Arc::clone(&proxy);
    let stalled = tokio::spawn(async move { through(&cut).await.1 });
    while proxy.struck().is_empty() {
        tokio::task::yield_now().await;
    }
    proxy.cut();
    assert_eq!(stalled.await.unwrap(), Err(ErrorKind::ConnectionReset));
    assert!(through(&proxy).await.0.starts_with("HTTP/1.1 201 Created\r\n"));
    server.assert_executed_once("k");
}

#[tokio::test]
async fn latency_and_bandwidth_go_by_the_clock() {
    let clock = ManualClock::new();
    let server = TestServer::start().await.unwrap();
    let size = raw_order("Idempotency-Key: k\r\nConnection: close\r\n").len();
    let faults = [ProxyFault::latency(HOUR), ProxyFault::bandwidth(size)];
    let proxy = FlakyProxy::in_front_of(server.addr()).clock(clock.clone()).faults(faults).start().await.unwrap();
    let proxy = Arc::new(proxy);
    for _ in 0..2 {
        let slow = Arc::clone(&proxy);
        let mut late = tokio::spawn(async move { through(&slow).await.0 });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!late.is_finished());
        // As many times as it takes: ten pieces of the request, and those of the reply.
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut late => break reply.unwrap(),
                () = tokio::task::yield_now() => clock.advance(HOUR),
            }
        };
        assert!(reply.starts_with("HTTP/1.1 201 Created\r\n"), "{reply}");
    }
    server.assert_attempts("k", 2);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_reset() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = FlakyProxy::in_front_of(nobody).start().await.unwrap();
    assert_eq!(through(&proxy).await.1, Err(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn our_client_gets_through_chaos_with_one_execution_for_each_operation() {
    let clock = ManualClock::new();
    let server = TestServer::builder().clock(clock.clone()).start().await.unwrap();
    let proxy = FlakyProxy::in_front_of(server.addr()).chaos(0.5, 11).start().await.unwrap();
    let attempts = reqwest_idempotency::retry::RetryPolicy::default().max_attempts(40);
    // A connection for each attempt, so that there are enough of them to be struck.
    let http = client_builder().pool_max_idle_per_host(0);
    let client = IdempotentClient::builder().in_memory().http(http).clock(clock.clone()).retry(attempts);
    let client = client.build().unwrap();
    for n in 0..20 {
        let response = client.post(proxy.url("/orders")).body(format!("{n}")).send().await.unwrap();
        assert_eq!(response.status(), 201);
    }
    assert!(!proxy.struck().is_empty());
    assert_eq!(server.executions(), 20);
}
