//! Failures before there is a connection.

use reqwest::dns::{Name, Resolve, Resolving};

use super::raw::Refusing;
use super::*;

#[tokio::test]
async fn a_refused_connection_is_not_sent_t16() {
    let dead = Refusing::bind();
    let outgoing = order(dead.url());
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Connect, Sent::No));
    assert_eq!(failed(exchange(&outgoing.foreign()).await), (FailureKind::Connect, Sent::No));
}

#[tokio::test]
async fn an_empty_body_to_a_refused_connection_is_not_sent_only_through_our_own_client() {
    let dead = Refusing::bind();
    let outgoing = order(dead.url()).empty();
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Connect, Sent::No));
    assert_eq!(failed(exchange(&outgoing.foreign()).await), (FailureKind::Connect, Sent::Perhaps));
}

#[tokio::test]
async fn a_name_that_is_not_resolved_is_not_sent_t16() {
    let client = guarded(builder().dns_resolver(Unresolved));
    let outgoing = order(Url::parse("http://name.invalid/orders").unwrap()).through(client);
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Dns, Sent::No));
}

#[tokio::test]
async fn a_connect_timeout_is_not_sent_t06() {
    let client = builder().dns_resolver(Hanging).connect_timeout(Duration::from_millis(1));
    let outgoing = order(Url::parse("http://name.invalid/orders").unwrap()).through(guarded(client));
    let failure = exchange(&outgoing).await.unwrap_err();
    assert_eq!((failure.kind, failure.sent), (FailureKind::Connect, Sent::No));
    let error = failure.source.as_ref().unwrap().downcast_ref::<reqwest::Error>().unwrap();
    assert!(error.is_connect() && error.is_timeout(), "it is both, so the order of the tests decides");
}

#[tokio::test]
async fn the_callers_own_timeout_is_unknown_even_while_connecting() {
    let url = Url::parse("http://name.invalid/orders").unwrap();
    let brief = Duration::from_millis(1);

    let of_the_client = guarded(builder().dns_resolver(Hanging).timeout(brief));
    let outgoing = order(url.clone()).through(of_the_client);
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Timeout, Sent::Perhaps));

    let client = guarded(builder().dns_resolver(Hanging));
    let outgoing = order(url).through(client).with_timeout(brief);
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Timeout, Sent::Perhaps));
}

#[tokio::test]
async fn our_own_timer_is_unknown_even_while_connecting() {
    let client = guarded(builder().dns_resolver(Hanging));
    let outgoing = order(Url::parse("http://name.invalid/orders").unwrap()).through(client);
    let mut exchange = Exchange::new(&outgoing);
    tokio::select! {
        biased;
        _ = exchange.run(LIMIT) => panic!("nothing resolves the name"),
        () = tokio::task::yield_now() => {}
    }
    let failure = exchange.timed_out().unwrap_err();
    assert_eq!((failure.kind, failure.sent), (FailureKind::Timeout, Sent::Perhaps));
}

#[tokio::test]
async fn a_request_that_cannot_be_built_is_not_sent() {
    for url in ["ftp://a.example/orders", "https://{{host}}/orders", "data:text/plain,order"] {
        let outgoing = order(Url::parse(url).unwrap());
        assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Request, Sent::No), "{url}");
    }
}

#[cfg(not(any(feature = "default-tls", feature = "rustls", feature = "rustls-no-provider")))]
#[tokio::test]
async fn https_in_a_build_without_tls_cannot_be_built() {
    let outgoing = order(Url::parse("https://127.0.0.1/orders").unwrap());
    assert_eq!(failed(exchange(&outgoing).await), (FailureKind::Request, Sent::No));
}

#[cfg(any(feature = "default-tls", feature = "rustls"))]
#[tokio::test]
async fn a_proxy_that_refuses_the_tunnel_is_not_sent() {
    let server = raw::Server::bind().await;
    let proxy = reqwest::Proxy::all(server.url()).unwrap();
    let client = builder().proxy(proxy).redirect(reqwest::redirect::Policy::none());
    let outgoing = order(Url::parse("https://name.invalid/orders").unwrap()).through(client.build().unwrap());
    let script = async {
        let mut connection = server.accept().await;
        assert!(connection.request().await.head.starts_with("CONNECT name.invalid:443 "));
        connection.send("HTTP/1.1 403 Forbidden\r\n\r\n").await;
        connection.finish().await
    };
    assert_eq!(failed(against(&outgoing, script).await.0), (FailureKind::Connect, Sent::No));
}

#[tokio::test]
async fn no_error_says_what_the_url_says_l02() {
    let dead = Refusing::bind();
    let with_user_info = dead.url().as_str().replace("http://", "http://me:hunter2@");
    for url in [&with_user_info, &format!("{}?token=hunter2", dead.url()), "ftp://a.example/?token=hunter2"] {
        let outgoing = order(Url::parse(url).unwrap());
        assert!(!told(&exchange(&outgoing).await.unwrap_err()).contains("hunter2"));
    }
}

struct Unresolved;

impl Resolve for Unresolved {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(async { Err("no such name".into()) })
    }
}

struct Hanging;

impl Resolve for Hanging {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(std::future::pending())
    }
}
