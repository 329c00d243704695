//! The same over HTTP/2, without TLS.

use http::Version;
use reqwest_idempotency::reqwest;
use reqwest_idempotency::testing::{At, Fault, SeenRequest, TestServer};

use super::*;

fn h2_client() -> reqwest::Client {
    client_builder().http2_prior_knowledge().build().unwrap()
}

#[tokio::test]
async fn http_2_is_served_on_the_same_port_and_the_ledger_is_the_same() {
    let server = TestServer::start().await.unwrap();
    let first = send(order_by(&h2_client(), &server, "k")).await.unwrap();
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert!(send(order(&server, "k")).await.unwrap().is_replay());
    let versions: Vec<Version> = server.requests().iter().map(SeenRequest::version).collect();
    assert_eq!(versions, [Version::HTTP_2, Version::HTTP_11]);
    server.assert_executed_once("k");
}

#[tokio::test]
async fn over_http_2_every_fault_of_the_connection_is_an_error_and_the_repeat_is_right() {
    for (fault, executed) in [
        (Fault::refused_before_claim(), false),
        (Fault::reply_lost(), true),
        (Fault::reset(At::AfterCommit), true),
        (Fault::close(At::AfterEffect), true),
        (Fault::close(At::HeadBytes(0)), true),
        (Fault::close(At::HeadBytes(9)), true),
        (Fault::reply_cut(0), true),
        (Fault::reply_cut(10), true),
        (Fault::reset(At::BodyBytes(10)), true),
    ] {
        let server = TestServer::builder().faults([fault.clone()]).start().await.unwrap();
        let client = h2_client();
        assert!(send(order_by(&client, &server, "k")).await.is_err(), "{fault}");
        assert_eq!(server.fault_injected().await.fault, fault);
        let got = settled(&client, &server, "k").await;
        assert_eq!((got.status, got.is_replay()), (201, executed), "{fault}");
        server.assert_executed_once("k");
    }
}

#[tokio::test]
async fn over_http_2_a_cut_body_arrives_up_to_the_cut() {
    for cut in [1, 10, 41] {
        let server = TestServer::builder().faults([Fault::reply_cut(cut)]).start().await.unwrap();
        let mut response = order_by(&h2_client(), &server, "k").send().await.unwrap();
        assert_eq!(response.headers()["content-length"], "42");
        let mut read = 0;
        let end = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => read += chunk.len(),
                other => break other,
            }
        };
        assert!(end.is_err(), "{end:?}");
        assert_eq!(read, cut);
    }
}

#[tokio::test]
async fn over_http_2_a_stall_of_one_exchange_leaves_the_others_alone() {
    let server = TestServer::start().await.unwrap();
    server.faults_for("stalled", [Fault::stall_after_commit()]);
    let client = h2_client();
    send(order_by(&client, &server, "first")).await.unwrap();
    let stalled = tokio::spawn(send(order_by(&client, &server, "stalled")));
    server.fault_injected().await;
    assert_eq!(send(order_by(&client, &server, "other")).await.unwrap().status, 201);
    assert!(!stalled.is_finished());
    server.assert_executed_once("stalled");
}
