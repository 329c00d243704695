//! What must not be seen in errors, debug output and logs: keys, bodies, query strings, credentials.

use std::io::Write;
use std::sync::{Arc, Mutex};

use reqwest_idempotency::ErrorKind;
use reqwest_idempotency::testing::Fault;

use crate::support::Pair;

const SECRETS: [&str; 5] = ["key-5f3a9c0d-secret", "card=4242", "Basic", "hunter2", "Bearer"];

/// Everything that the error and what lies below it print.
fn everything(error: &reqwest_idempotency::Error) -> String {
    let mut all = format!("{error}\n{error:?}\n{error:#?}\n{}\n", error.report());
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        all += &format!("{error}\n{error:?}\n");
        source = error.source();
    }
    all
}

fn assert_no_secret(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret:?} is in:\n{text}");
    }
}

#[tokio::test]
async fn l02_l04_errors_and_debug_output_show_no_key_body_query_or_credential() {
    let faults = [Fault::status(503), Fault::reply_lost(), Fault::reply_cut(3), Fault::status(401)];
    let pair = Pair::with(faults).await;
    let request = || {
        let url = pair.server.url("/orders?token=hunter2").replace("http://", "http://me:hunter2@");
        pair.client
            .post(url)
            .basic_auth("me", Some("hunter2"))
            .header("Idempotency-Key", SECRETS[0])
            .body("card=4242")
            .operation("order-42")
    };
    assert_no_secret(&format!("{:?} {:#?}", request(), pair.client));
    let error = request().send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RejectedAfterUnknown);
    assert_no_secret(&everything(&error));
    let record = pair.client.operation("order-42").await.unwrap().unwrap();
    assert!(!record.request.as_ref().unwrap().headers.contains_key("authorization"), "credentials are never stored");
    let response = request().send().await.unwrap();
    assert_no_secret(&format!("{response:?} {}", response.report()));

    let nowhere = pair.client.post("http://me:hunter2@127.0.0.1:1/orders?card=4242").body("card=4242").send().await;
    assert_no_secret(&everything(&nowhere.unwrap_err()));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    /// One line at a time; those of this test's operation are kept.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if text.contains("operation=order-l01") && text.contains("reqwest_idempotency") {
            self.0.lock().unwrap().extend_from_slice(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn l01_no_log_line_at_any_level_has_a_whole_key_or_a_credential() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // For the whole process: with a subscriber of one thread alone, another test's thread that comes to a callsite first
    // would turn it off for everybody.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let pair = Pair::with([Fault::status(503), Fault::reply_lost()]).await;
    pair.client
        .post(pair.server.url("/orders?token=hunter2"))
        .bearer_auth("hunter2")
        .header("Idempotency-Key", SECRETS[0])
        .body("card=4242")
        .operation("order-l01")
        .send()
        .await
        .unwrap();
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_no_secret(&log);
    // OpenTelemetry's names, one span an attempt.
    for name in ["http.request.method=POST", "http.response.status_code=503", "http.request.resend_count=2"] {
        assert!(log.contains(name), "{name} is not in:\n{log}");
    }
}
