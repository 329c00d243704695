//! What comes of each kind of answer, over real sockets.

use std::time::Duration;

use http::StatusCode;
use reqwest_idempotency::retry::RetryPolicy;
use reqwest_idempotency::testing::{At, Fault, TestServer};
use reqwest_idempotency::{Delivery, ErrorKind, FailureKind, Meaning, Outcome, Phase};

use crate::support::{Pair, nobody};

#[tokio::test]
async fn r01_a_lost_reply_then_in_progress_then_the_replay_is_one_success() {
    let pair = Pair::with([Fault::reply_lost(), Fault::in_progress("1")]).await;
    let response = pair.order().operation("order-42").send().await.unwrap();

    assert_eq!(response.status(), StatusCode::CREATED);
    assert!(response.replayed());
    assert!(response.after_unknown());
    assert_eq!(response.attempts().len(), 3);
    // The 409 asked for one second, and gets no less.
    assert_eq!(pair.clock.slept()[1], Duration::from_secs(1));
    let key = response.key().unwrap().as_str().to_owned();
    assert_eq!(pair.keys_seen(), [key.clone(), key.clone(), key.clone()]);
    pair.server.assert_executed_once(&key);
}

#[tokio::test]
async fn t01_a_connection_that_closes_without_an_answer_is_unknown_and_tried_again() {
    for fault in [
        Fault::refused_before_claim(),
        Fault::reset(At::BeforeClaim),
        Fault::close(At::AfterEffect),
        Fault::reset(At::AfterCommit),
    ] {
        let pair = Pair::with([fault.clone()]).await;
        let response = pair.order().send().await.unwrap();
        assert_eq!(response.status(), 201, "{fault}");
        assert_eq!(response.attempts()[0].outcome, Outcome::Failure(FailureKind::Connection), "{fault}");
        assert_eq!(response.attempts()[0].delivery, Delivery::Unknown, "{fault}");
        assert_eq!(pair.server.executions(), 1, "{fault}");
    }
}

#[tokio::test]
async fn t02_a_reply_cut_off_after_its_head_is_tried_again_and_the_replay_returned() {
    for fault in [Fault::reply_cut(10), Fault::reset(At::BodyBytes(10)), Fault::reply_cut(0)] {
        let pair = Pair::with([fault.clone()]).await;
        let response = pair.order().send().await.unwrap();
        assert!(response.replayed(), "{fault}");
        assert_eq!(response.attempts().len(), 2, "{fault}");
        assert_eq!(response.attempts()[0].delivery, Delivery::Unknown, "{fault}");
        let body = response.text().await.unwrap();
        assert!(body.contains("teapot"), "{fault}: {body}");
        assert_eq!(pair.server.executions(), 1, "{fault}");
    }
}

#[tokio::test]
async fn t02_a_reply_cut_in_its_head_is_tried_again() {
    let pair = Pair::with([Fault::close(At::HeadBytes(12))]).await;
    let response = pair.order().send().await.unwrap();
    assert!(response.replayed());
    assert_eq!(pair.server.executions(), 1);
}

#[tokio::test]
async fn r04_a_refusal_after_an_unknown_attempt_says_so() {
    let conflict = Fault::status(409).body("application/json", r#"{"code":"NAME_TAKEN"}"#);
    let pair = Pair::with([Fault::reply_lost(), conflict.clone()]).await;
    let response = pair.order().send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert!(response.after_unknown());

    let pair = Pair::with([conflict]).await;
    assert!(!pair.order().send().await.unwrap().after_unknown());
}

#[tokio::test]
async fn r08_a_replayed_failure_stops_and_is_for_a_person() {
    let stored = Fault::status(500).header("Idempotent-Replayed", "true");
    let pair = Pair::with([Fault::status(500), stored]).await;
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoredFailure);
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert_eq!(error.phase(), Some(Phase::Failed));
    assert_eq!(error.attempts().len(), 2);
    // Asked again, it is not sent again: the server could only repeat itself.
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(pair.attempts_seen(), 2);
}

#[tokio::test]
async fn r09_html_never_hides_a_status() {
    let html = |status| Fault::status(status).body("text/html", "<h1>no</h1>");
    let pair = Pair::with([html(400)]).await;
    assert_eq!(pair.order().send().await.unwrap().status(), 400);
    assert_eq!(pair.attempts_seen(), 1);

    let pair = Pair::with([html(502), html(503)]).await;
    assert_eq!(pair.order().send().await.unwrap().status(), 201);
    assert_eq!(pair.attempts_seen(), 3);
}

#[tokio::test]
async fn r10_one_attempt_is_exactly_one_exchange() {
    let once = RetryPolicy::default().max_attempts(1);
    for fault in [Fault::reset(At::BeforeClaim), Fault::refused_before_claim(), Fault::status(503)] {
        let pair = Pair::built([fault.clone()], |builder| builder.retry(once.clone())).await;
        let error = pair.order().send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AttemptsExhausted, "{fault}");
        assert!(error.is_pending(), "{fault}");
        assert_eq!(pair.attempts_seen(), 1, "{fault}");
    }
    // Waiting for the first request to finish is not an attempt of its own.
    let pair = Pair::built([Fault::in_progress("1")], |builder| builder.retry(once)).await;
    assert_eq!(pair.order().send().await.unwrap().status(), 201);
    assert_eq!(pair.attempts_seen(), 2);
}

#[tokio::test]
async fn r11_no_attempts_at_all_is_a_configuration_error() {
    let pair = Pair::with([]).await;
    let error = pair.order().retry(RetryPolicy::default().max_attempts(0)).send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains('0'), "{error}");
    assert_eq!(pair.attempts_seen(), 0);
}

#[tokio::test]
async fn r05_endless_in_progress_ends_at_the_deadline_and_stays_pending() {
    let pair = Pair::with(vec![Fault::in_progress("1"); 100]).await;
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert!(error.is_pending());
    // One a second for the 60 seconds of the deadline: far beyond the five attempts of the policy.
    assert!((55..=61).contains(&pair.attempts_seen()), "{}", pair.attempts_seen());
    assert_eq!(pair.client.pending().await.unwrap().len(), 1);
    // Its key is kept: asked again, it is the same operation.
    let before = error.key().unwrap().clone();
    let error = pair.order().operation("order-42").deadline(Duration::from_secs(2)).send().await.unwrap_err();
    assert_eq!(error.key(), Some(&before));
}

#[tokio::test]
async fn r14_a_gateway_timeout_while_the_server_works_on_ends_in_one_execution() {
    let pair = Pair::with([Fault::status(504).after_commit(), Fault::in_progress("2")]).await;
    let response = pair.order().send().await.unwrap();
    assert!(response.replayed());
    assert_eq!(pair.server.executions(), 1);
}

#[tokio::test]
async fn r17_too_early_is_tried_again_once_behind_the_switch() {
    let switched_on = RetryPolicy::default().retry_rejections();
    let pair = Pair::with([Fault::status(425)]).await;
    assert_eq!(pair.order().send().await.unwrap().status(), 425);
    assert_eq!(pair.attempts_seen(), 1);

    let pair = Pair::with([Fault::status(425)]).await;
    assert_eq!(pair.order().retry(switched_on.clone()).send().await.unwrap().status(), 201);
    assert_eq!(pair.attempts_seen(), 2);

    let pair = Pair::with([Fault::status(425), Fault::status(425)]).await;
    assert_eq!(pair.order().retry(switched_on).send().await.unwrap().status(), 425);
    assert_eq!(pair.attempts_seen(), 2);
}

#[tokio::test]
async fn r19_too_many_requests_stops_unless_it_is_switched_on() {
    let busy = Fault::status(429).retry_after("2");
    let pair = Pair::with([busy.clone()]).await;
    let response = pair.order().operation("order-42").send().await.unwrap();
    assert_eq!(response.status(), 429);
    // It was refused in front of the operation, so the same operation may be asked for again, with the same key.
    let again = pair.order().operation("order-42").send().await.unwrap();
    assert_eq!(again.status(), 201);
    assert_eq!(again.key(), response.key());

    let pair = Pair::with([busy]).await;
    let response = pair.order().retry(RetryPolicy::default().retry_rejections()).send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert!(!response.after_unknown());
    assert!(pair.clock.slept()[0] >= Duration::from_secs(2));
}

#[tokio::test]
async fn r20_a_get_is_tried_again_without_a_key() {
    let pair = Pair::with([Fault::status(503), Fault::status(409).retry_after("1")]).await;
    let response = pair.client.get(pair.server.url("/orders/1")).send().await.unwrap();
    assert!(response.key().is_none());
    // There is no such order, and nothing unknown about that: a GET executes nothing.
    assert_eq!(response.status(), 404);
    assert_eq!(pair.attempts_seen(), 3);
    assert!(pair.server.requests().iter().all(|request| !request.headers().contains_key("idempotency-key")));
}

#[tokio::test]
async fn r21_not_implemented_is_tried_once() {
    for status in [501, 505] {
        let pair = Pair::with([Fault::status(status)]).await;
        let error = pair.order().send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnsupportedStatus);
        assert_eq!(error.phase(), Some(Phase::Failed));
        assert_eq!(pair.attempts_seen(), 1);
    }
}

#[tokio::test]
async fn r23_an_outage_never_drops_the_key() {
    let pair = Pair::with(vec![Fault::status(503).problem("store-unavailable"); 10]).await;
    let error = pair.order().send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AttemptsExhausted);
    let keys = pair.keys_seen();
    assert_eq!(keys.len(), 5);
    assert!(keys.iter().all(|key| *key == keys[0] && key != "none"));
}

#[tokio::test]
async fn r25_a_definite_refusal_is_returned_again_without_the_network() {
    let pair = Pair::with([Fault::status(402).body("application/json", r#"{"code":"card_declined"}"#)]).await;
    let refused = pair.order().operation("order-42").send().await.unwrap();
    assert_eq!(refused.status(), 402);
    let again = pair.order().operation("order-42").send().await.unwrap();
    assert_eq!(again.status(), 402);
    assert_eq!(pair.attempts_seen(), 1);
    // A new operation has a new key, and goes to the server.
    let other = pair.order().operation("order-42-b").send().await.unwrap();
    assert_ne!(other.key(), refused.key());
    assert_eq!(pair.attempts_seen(), 2);
}

#[tokio::test]
async fn r26_unauthorized_may_be_asked_again_with_the_same_key_once_credentials_are_right() {
    let pair = Pair::with([Fault::status(401)]).await;
    let refused = pair.order().operation("order-42").send().await.unwrap();
    assert_eq!(refused.status(), 401);
    let accepted = pair.order().operation("order-42").bearer_auth("right").send().await.unwrap();
    assert_eq!(accepted.status(), 201);
    assert_eq!(accepted.key(), refused.key());
}

#[tokio::test]
async fn an_unauthorized_after_an_unknown_attempt_settles_nothing() {
    let pair = Pair::with([Fault::reply_lost(), Fault::status(401)]).await;
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RejectedAfterUnknown);
    assert_eq!(error.delivery(), Delivery::Unknown);
    assert!(error.is_pending());
    assert_eq!(error.last_response().unwrap().status(), 401);
    let response = pair.order().operation("order-42").send().await.unwrap();
    assert!(response.replayed());
    assert_eq!(pair.server.executions(), 1);
}

#[tokio::test]
async fn a_payment_refusal_after_an_outage_is_final_and_says_what_came_before() {
    let pair = Pair::with([Fault::status(503), Fault::status(402)]).await;
    let response = pair.order().send().await.unwrap();
    assert_eq!(response.status(), 402);
    assert!(response.after_unknown());
}

#[tokio::test]
async fn d01_d02_a_redirect_is_never_a_success_and_never_followed() {
    for status in [301, 302, 303, 307, 308] {
        let pair = Pair::with([Fault::status(status).header("Location", "/orders/1")]).await;
        let error = pair.order().send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redirected, "{status}");
        assert_eq!(error.delivery(), Delivery::Unknown, "{status}");
        assert_eq!(error.last_response().unwrap().headers()["location"], "/orders/1", "{status}");
        assert_eq!(pair.attempts_seen(), 1, "{status}");
    }
}

#[tokio::test]
async fn d02_a_redirect_that_a_foreign_client_followed_is_noticed() {
    for status in [301, 302, 303] {
        let pair = Pair::with([Fault::status(status).header("Location", "/orders/1")]).await;
        // reqwest's default client follows redirects, and makes a GET of the POST.
        let foreign = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = foreign.post(pair.server.url("/orders")).body("{}");
        let error = pair.client.send(request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redirected, "{status}");
        assert_eq!(error.delivery(), Delivery::Unknown, "{status}");
    }
}

#[tokio::test]
async fn a_fragment_or_user_info_in_the_url_is_no_redirect() {
    let pair = Pair::with([]).await;
    let url = pair.server.url("/orders").replace("http://", "http://me:secret@") + "#top";
    let foreign = reqwest::Client::builder().no_proxy().build().unwrap();
    assert_eq!(pair.client.send(foreign.post(url).body("{}")).await.unwrap().status(), 201);
}

#[tokio::test]
async fn t16_an_operation_whose_every_attempt_was_refused_is_not_sent() {
    let pair = Pair::with([]).await;
    let error = pair.client.post(nobody()).body("{}").operation("order-42").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AttemptsExhausted);
    assert_eq!(error.delivery(), Delivery::NotSent);
    assert_eq!(error.phase(), Some(Phase::NotSent));
    assert!(!error.is_pending());
    assert_eq!(error.attempts().len(), 5);
    assert!(error.attempts().iter().all(|attempt| attempt.outcome == Outcome::Failure(FailureKind::Connect)));
}

#[tokio::test]
async fn key_reuse_and_a_refused_key_stop_with_the_reason() {
    let pair = Pair::with([Fault::status(422).problem("idempotency-key-reuse")]).await;
    let error = pair.order().send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::KeyReused, Delivery::Unknown));
    assert_eq!(error.phase(), Some(Phase::Failed));

    for (status, problem) in [(400, "idempotency-key-malformed"), (422, "idempotency-key-missing")] {
        let pair = Pair::with([Fault::status(status).problem(problem)]).await;
        let error = pair.order().send().await.unwrap_err();
        assert_eq!((error.kind(), error.delivery()), (ErrorKind::KeyRefused, Delivery::NotSent));
        assert!(error.to_string().contains("idempotency-key"), "{error}");
        assert_eq!(pair.attempts_seen(), 1);
    }
}

#[tokio::test]
async fn an_executed_operation_whose_reply_is_gone_is_completed() {
    let pair = Pair::with([Fault::reply_lost(), Fault::status(409).problem("response-not-replayable")]).await;
    let error = pair.order().operation("order-42").send().await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::ReplyUnavailable, Delivery::Answered));
    assert_eq!(error.phase(), Some(Phase::Completed));
    assert_eq!(pair.client.operation("order-42").await.unwrap().unwrap().phase, Phase::Completed);
}

#[tokio::test]
async fn the_callers_reading_goes_before_the_contracts() {
    let odd = Fault::status(400).problem("deploying");
    let pair = Pair::with([odd.clone()]).await;
    assert_eq!(pair.order().send().await.unwrap().status(), 400);

    let pair = Pair::with([odd]).await;
    let response = pair
        .order()
        .classify(|reply| {
            let problem = reply.problem()?;
            (reply.status() == 400 && problem.type_? == "/problems/deploying").then_some(Meaning::Transient)
        })
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 201);
}

#[tokio::test]
async fn every_method_of_the_contract_works_and_only_post_and_patch_carry_a_key() {
    // k11: a key on GET or DELETE would be useless.
    let pair = Pair::with([]).await;
    let order = pair.order().send().await.unwrap();
    let id: serde_json::Value = order.json().await.unwrap();
    let url = pair.server.url(&format!("/orders/{}", id["id"].as_str().unwrap()));
    assert_eq!(pair.client.patch(&url).json(&serde_json::json!({ "item": "cup" })).send().await.unwrap().status(), 200);
    for request in
        [pair.client.get(&url), pair.client.head(&url), pair.client.put(&url).body("{}"), pair.client.delete(&url)]
    {
        let response = request.send().await.unwrap();
        assert!(response.status().is_success(), "{response:?}");
        assert!(response.key().is_none() && response.operation().is_none());
    }
    let options = pair.client.request(reqwest::Method::OPTIONS, &url).send().await.unwrap();
    assert!(options.key().is_none());
    let keyed: Vec<String> = pair
        .server
        .requests()
        .iter()
        .filter(|request| request.headers().contains_key("idempotency-key"))
        .map(|request| request.method().to_string())
        .collect();
    assert_eq!(keyed, ["POST", "PATCH"]);
}

#[tokio::test]
async fn k10_a_patch_carries_its_key_on_every_attempt() {
    let pair = Pair::with([Fault::status(503)]).await;
    let response = pair.client.patch(pair.server.url("/orders/order-1")).body("{}").send().await;
    let keys = pair.keys_seen();
    assert_eq!(keys.len(), 2, "{response:?}");
    assert!(keys[0] == keys[1] && keys[0] != "none");
}

#[tokio::test]
async fn it_works_over_http2() {
    let server = TestServer::builder().faults([Fault::reply_lost()]).start().await.unwrap();
    let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge();
    let client = reqwest_idempotency::IdempotentClient::builder().in_memory().http(http).build().unwrap();
    let response = client.post(server.url("/orders")).body("{}").send().await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_2);
    assert!(response.replayed());
    assert_eq!(server.executions(), 1);
}
