//! What a client that the caller brings may do by itself: follow redirects, and repeat.

use super::raw::{self, Refusing, Server};
use super::*;

async fn redirecting(server: &Server, status: &str, target: &Url) -> raw::Request {
    server.answer(&format!("HTTP/1.1 {status}\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n")).await
}

#[tokio::test]
async fn a_dead_target_after_an_executed_post_is_never_not_sent() {
    let dead = Refusing::bind();
    for (status, body) in [("303 See Other", ORDER), ("303 See Other", b""), ("307 Temporary Redirect", b"")] {
        let server = Server::bind().await;
        let outgoing = Outgoing { body: Bytes::from_static(body), ..order(server.url()).foreign() };
        let (outcome, request) = against(&outgoing, redirecting(&server, status, &dead.url())).await;
        assert_eq!(request.body, body);
        let failure = outcome.unwrap_err();
        let error = failure.source.unwrap();
        assert!(error.downcast_ref::<reqwest::Error>().unwrap().is_connect(), "so it looks like one that never left");
        assert_eq!((failure.kind, failure.sent), (FailureKind::Connect, Sent::Perhaps), "{status} {body:?}");
    }
}

#[tokio::test]
async fn a_307_is_not_followed_with_a_witnessed_body() {
    let dead = Refusing::bind();
    let server = Server::bind().await;
    let outgoing = order(server.url()).foreign();
    let (outcome, _) = against(&outgoing, redirecting(&server, "307 Temporary Redirect", &dead.url())).await;
    let reply = answered(outcome);
    assert_eq!((reply.status, reply.redirected), (StatusCode::TEMPORARY_REDIRECT, false));
}

#[tokio::test]
async fn our_own_client_hands_a_redirect_back_d02() {
    let dead = Refusing::bind();
    for status in
        ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let server = Server::bind().await;
        let outgoing = order(server.url());
        let (outcome, _) = against(&outgoing, redirecting(&server, status, &dead.url())).await;
        let reply = answered(outcome);
        assert_eq!((reply.status.as_str(), reply.redirected), (&status[..3], false));
    }
}

#[tokio::test]
async fn a_redirect_that_was_followed_shows_d02() {
    let server = Server::bind().await;
    let target = server.url().join("/elsewhere").unwrap();
    let outgoing = order(server.url()).foreign();
    let script = async {
        redirecting(&server, "303 See Other", &target).await;
        server.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await
    };
    let (outcome, request) = against(&outgoing, script).await;
    assert!(request.head.starts_with("GET /elsewhere "), "{}", request.head);
    let reply = answered(outcome);
    assert_eq!((reply.status, reply.redirected), (StatusCode::OK, true));
    assert_eq!(reply.url, target);
}

#[tokio::test]
async fn an_unusual_url_is_no_redirect() {
    let server = Server::bind().await;
    for odd in ["?", "/?", "/a|b", "/a/../b", "/%7Ea/%2F", "/\"a\"^`", "/ü?ü=ü", "/?q='x'&r={y}", "/a#b"] {
        let outgoing = order(server.url().join(odd).unwrap());
        let (outcome, _) = against(&outgoing, server.answer("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")).await;
        assert!(!answered(outcome).redirected, "{odd}");
    }
}

#[tokio::test]
async fn a_redirect_that_fails_by_itself_is_unknown() {
    let limited = builder().redirect(reqwest::redirect::Policy::limited(0)).build().unwrap();
    let following = builder().build().unwrap();
    let target = Url::parse("ftp://a.example/").unwrap();
    for (client, body) in [(&limited, ORDER), (&limited, b""), (&following, ORDER), (&following, b"")] {
        let server = Server::bind().await;
        let outgoing =
            Outgoing { body: Bytes::from_static(body), ..order(server.url()).foreign().through(client.clone()) };
        let outcome = against(&outgoing, redirecting(&server, "303 See Other", &target)).await.0;
        let (kind, sent) = failed(outcome);
        assert_eq!(sent, Sent::Perhaps);
        // The other client follows as far as a scheme that it does not know.
        assert_eq!(kind == FailureKind::Redirected, std::ptr::eq(client, &limited));
    }
}

#[tokio::test]
async fn a_redirect_that_fails_does_not_say_where_it_led_l02() {
    let secret = Url::parse("http://a.example/?token=hunter2").unwrap();
    let within = secret.clone();
    let policy = reqwest::redirect::Policy::custom(move |attempt| {
        let error = reqwest::Client::new().get("no url").build().unwrap_err();
        attempt.error(error.with_url(within.clone()))
    });
    let client = builder().redirect(policy).build().unwrap();
    let server = Server::bind().await;
    let outgoing = order(server.url()).foreign().through(client);
    let outcome = against(&outgoing, redirecting(&server, "303 See Other", &secret)).await.0;
    assert!(!told(&outcome.unwrap_err()).contains("hunter2"));
}

#[tokio::test]
async fn a_callers_own_retry_policy_repeats_no_witnessed_body() {
    let policy = reqwest::retry::for_host("127.0.0.1").classify_fn(|attempt| match attempt.status() {
        Some(StatusCode::SERVICE_UNAVAILABLE) => attempt.retryable(),
        _ => attempt.success(),
    });
    let client = builder().retry(policy).build().unwrap();
    for body in [ORDER, b""] {
        let server = Server::bind().await;
        let outgoing =
            Outgoing { body: Bytes::from_static(body), ..order(server.url()).foreign().through(client.clone()) };
        let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        // With the listener gone, a repetition would fail to connect.
        let script = async {
            let server = server;
            server.answer(busy).await
        };
        assert_eq!(answered(against(&outgoing, script).await.0).status, StatusCode::SERVICE_UNAVAILABLE);
    }
}
