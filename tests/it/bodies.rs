//! Bodies: frozen once, the same bytes on every attempt, refused where that cannot be.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest_idempotency::testing::{Fault, TestServer};
use reqwest_idempotency::{ErrorKind, IdempotentClient};

use crate::support::Pair;

#[tokio::test]
async fn b01_b02_b03_every_attempt_carries_the_same_bytes_and_length() {
    for method in ["POST", "PATCH"] {
        let pair = Pair::with([Fault::status(409).retry_after("1"), Fault::status(500)]).await;
        let body = "x".repeat(1024);
        let url = pair.server.url(if method == "POST" { "/orders" } else { "/orders/order-1" });
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let _ = pair.client.request(method, url).body(body.clone()).send().await;
        let requests = pair.server.requests();
        assert_eq!(requests.len(), 3);
        for request in requests {
            assert_eq!(request.body(), body.as_bytes());
            assert_eq!(request.headers()["content-length"], "1024");
        }
    }
}

#[tokio::test]
async fn b04_a_body_that_can_be_sent_once_is_refused_before_anything_is_begun() {
    let pair = Pair::with([]).await;
    let stream = || reqwest::Body::wrap_stream(futures_stream(vec!["a", "b"]));
    let form = || reqwest::multipart::Form::new().text("a", "b");
    let http = pair.client.http();
    let url = pair.server.url("/orders");
    for result in [
        pair.client.post(&url).body(stream()).operation("order-42").send().await,
        pair.client.send(http.post(&url).body(stream())).await,
        pair.client.send_as("order-43", http.post(&url).multipart(form())).await,
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BodyNotReplayable);
        assert!(error.to_string().contains("body_with"), "the remedy is named: {error}");
        assert!(!error.is_pending() && error.operation().is_none());
    }
    assert_eq!(pair.attempts_seen(), 0);
    assert!(pair.client.operation("order-42").await.unwrap().is_none());
}

#[tokio::test]
async fn b04_a_body_factory_is_read_once_and_repeated_byte_for_byte() {
    static READ: AtomicU32 = AtomicU32::new(0);
    let pair = Pair::with([Fault::reply_lost(), Fault::status(503)]).await;
    let response = pair
        .client
        .post(pair.server.url("/orders"))
        .body_with(|| {
            READ.fetch_add(1, Ordering::Relaxed);
            reqwest::Body::wrap_stream(futures_stream(vec!["[1,", "2]"]))
        })
        .send()
        .await
        .unwrap();
    assert!(response.replayed());
    assert_eq!(READ.load(Ordering::Relaxed), 1);
    assert!(pair.server.requests().iter().all(|request| request.body() == "[1,2]"));
}

#[tokio::test]
async fn b08_a_multipart_form_keeps_its_boundary_over_all_attempts() {
    let pair = Pair::with([Fault::reply_lost()]).await;
    let form = reqwest::multipart::Form::new().text("title", "invoice");
    let content_type = format!("multipart/form-data; boundary={}", form.boundary());
    let response = pair
        .client
        .post(pair.server.url("/orders"))
        .header("content-type", content_type.clone())
        .body_with(move || reqwest::Body::wrap_stream(form.into_stream()))
        .send()
        .await
        .unwrap();
    assert!(response.replayed());
    let requests = pair.server.requests();
    assert_eq!(requests[0].body(), requests[1].body());
    assert!(requests.iter().all(|request| request.headers()["content-type"] == content_type.as_str()));
}

#[tokio::test]
async fn b05_a_value_is_serialised_once() {
    struct Counted(Cell<u32>);
    impl serde::Serialize for Counted {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.set(self.0.get() + 1);
            serializer.serialize_u32(self.0.get())
        }
    }
    let pair = Pair::with([Fault::reply_lost(), Fault::status(500)]).await;
    let value = Counted(Cell::new(0));
    pair.client.post(pair.server.url("/orders")).json(&value).send().await.unwrap();
    assert_eq!(value.0.get(), 1);
    assert!(pair.server.requests().iter().all(|request| request.body() == "1"));
}

#[tokio::test]
async fn json_form_and_raw_bodies_say_what_they_are() {
    let pair = Pair::with([]).await;
    let url = pair.server.url("/orders");
    pair.client.post(&url).json(&[1, 2]).send().await.unwrap();
    pair.client.post(&url).form(&[("a", "b c")]).send().await.unwrap();
    pair.client.post(&url).header("content-type", "application/x-thing").body(vec![0, 159, 146]).send().await.unwrap();
    pair.client.post(&url).send().await.unwrap();
    let seen: Vec<(Option<String>, Vec<u8>)> = pair
        .server
        .requests()
        .iter()
        .map(|request| {
            let content_type = request.headers().get("content-type");
            (content_type.map(|value| value.to_str().unwrap().to_owned()), request.body().to_vec())
        })
        .collect();
    assert_eq!(seen[0], (Some("application/json".to_owned()), b"[1,2]".to_vec()));
    assert_eq!(seen[1], (Some("application/x-www-form-urlencoded".to_owned()), b"a=b+c".to_vec()));
    assert_eq!(seen[2], (Some("application/x-thing".to_owned()), vec![0, 159, 146]));
    assert_eq!(seen[3], (None, Vec::new()));
}

#[tokio::test]
async fn b09_a_body_that_the_server_refuses_early_ends_in_a_bounded_number_of_attempts() {
    let server = TestServer::builder().body_limit(1024).start().await.unwrap();
    let clock = reqwest_idempotency::testing::ManualClock::new();
    let client = crate::support::client(&clock, |builder| builder);
    let body = vec![b'x'; 16 * 1024 * 1024];
    match client.post(server.url("/orders")).body(body).send().await {
        Ok(response) => assert_eq!(response.status(), 413),
        Err(error) => assert!(error.attempts().len() <= 5, "{}", error.report()),
    }
    assert_eq!(server.executions(), 0);
}

#[tokio::test]
async fn a_reply_over_the_limit_is_handed_on_as_a_stream() {
    let body = "y".repeat(100_000);
    let big = body.clone();
    let server = TestServer::builder()
        .route(http::Method::POST, "/big", move |_| {
            let big = big.clone();
            async move { http::Response::new(big.into()) }
        })
        .start()
        .await
        .unwrap();
    let client = IdempotentClient::builder().in_memory().reply_limit(1000).build().unwrap();
    let response = client.post(server.url("/big")).send().await.unwrap();
    assert!(!response.is_complete());
    assert_eq!(response.text().await.unwrap(), body);

    let response = client.post(server.url("/big")).send().await.unwrap();
    assert_eq!(response.into_reqwest().text().await.unwrap(), body);
}

#[tokio::test]
async fn a_response_turns_into_a_plain_reqwest_response() {
    let pair = Pair::with([]).await;
    let response = pair.order().send().await.unwrap().into_reqwest();
    assert_eq!(response.status(), 201);
    assert_eq!(response.url().path(), "/orders");
    assert!(response.text().await.unwrap().contains("teapot"));
}

/// A stream of chunks, without a crate for it.
fn futures_stream(
    chunks: Vec<&'static str>,
) -> impl futures_core::Stream<Item = Result<&'static str, std::io::Error>> + Send + 'static {
    struct Chunks(std::vec::IntoIter<&'static str>);
    impl futures_core::Stream for Chunks {
        type Item = Result<&'static str, std::io::Error>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(self.0.next().map(Ok))
        }
    }
    Chunks(chunks.into_iter())
}
