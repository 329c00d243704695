//! Keys: one per operation, as the caller brings them or as the system makes them.

use std::collections::HashSet;

use http::Method;
use reqwest_idempotency::testing::{Fault, ManualClock, TestServer};
use reqwest_idempotency::{
    BoxError, Contract, ErrorKind, IdempotencyKey, IdempotentClient, KeyRule, MemoryJournal, Serialisation,
};

use crate::support::{self, Pair};

#[tokio::test]
async fn k01_every_attempt_carries_the_key_of_the_record() {
    let lost = [Fault::refused_before_claim(), Fault::refused_before_claim(), Fault::refused_before_claim()];
    let pair = Pair::with(lost).await;
    let response = pair.order().operation("order-42").send().await.unwrap();
    let record = pair.client.operation("order-42").await.unwrap().unwrap();
    assert_eq!(record.key, *response.key().unwrap());
    assert_eq!(record.attempts, 4);
    let seen: HashSet<String> = pair.keys_seen().into_iter().collect();
    assert_eq!(seen, HashSet::from([record.key.as_str().to_owned()]));
}

#[tokio::test]
async fn k03_the_callers_own_key_is_sent_unchanged_and_once() {
    let pair = Pair::with([Fault::status(503)]).await;
    let by_header = pair.order().header("Idempotency-Key", "mykey123").operation("a").send().await.unwrap();
    assert_eq!(by_header.key().unwrap().as_str(), "mykey123");
    assert_eq!(pair.client.operation("a").await.unwrap().unwrap().key.as_str(), "mykey123");
    for request in pair.server.requests() {
        let values: Vec<_> = request.headers().get_all("idempotency-key").iter().collect();
        assert_eq!(values, ["mykey123"]);
    }
    let by_setter = pair.order().key(IdempotencyKey::parse("other-key").unwrap()).send().await.unwrap();
    assert_eq!(by_setter.key().unwrap().as_str(), "other-key");
}

#[tokio::test]
async fn k03_two_keys_in_one_request_are_an_error() {
    let pair = Pair::with([]).await;
    let error =
        pair.order().header("Idempotency-Key", "one").header("Idempotency-Key", "two").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    let key = IdempotencyKey::parse("three").unwrap();
    let error = pair.order().header("Idempotency-Key", "one").key(key).send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    assert_eq!(pair.attempts_seen(), 0);
}

#[tokio::test]
async fn k09_without_a_key_nothing_is_sent() {
    let pair = Pair::built([], |builder| builder.key_source(|| Err(BoxError::from("the key service is down")))).await;
    let error = pair.order().send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    assert!(error.to_string().contains("the key service is down"), "{error}");
    assert_eq!(pair.attempts_seen(), 0);
}

#[tokio::test]
async fn k10_a_post_that_the_contract_gives_no_key_is_sent_once() {
    let contract = Contract::named("patch-only").methods([Method::PATCH]);
    let server = TestServer::builder().optional_key().faults([Fault::status(503)]).start().await.unwrap();
    let client = support::client(&ManualClock::new(), |builder| builder.contract(contract));
    let error = client.post(server.url("/orders")).body("{}").send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AttemptsExhausted);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn k12_an_error_carries_what_it_takes_to_find_the_operation_again() {
    let pair = Pair::with(vec![Fault::status(504); 9]).await;
    let error = pair.order().send().await.unwrap_err();
    assert_eq!(error.key().unwrap().as_str(), pair.keys_seen()[0]);
    assert_eq!(error.attempts().len(), 5);
    assert!(error.first_sent_at().is_some());
    let id = error.operation().unwrap().as_str().to_owned();
    // The generated id is as good as a name: the operation can be asked for again by it.
    let record = pair.client.operation(&id).await.unwrap().unwrap();
    assert_eq!(record.key, *error.key().unwrap());
}

#[tokio::test]
async fn k17_two_clients_never_make_the_same_key() {
    let server = TestServer::start().await.unwrap();
    for _ in 0..20 {
        let client = support::client(&ManualClock::new(), |builder| builder);
        client.clone().post(server.url("/orders")).body("{}").send().await.unwrap();
        client.post(server.url("/orders")).body("{}").send().await.unwrap();
    }
    let keys: HashSet<String> = server.requests().iter().map(|request| request.key().unwrap().to_owned()).collect();
    assert_eq!(keys.len(), 40);
}

#[tokio::test]
async fn v01_a_key_longer_than_the_contract_takes_is_refused_with_the_limit() {
    let pair = Pair::with([]).await;
    for limit in [40, 64, 108, 200, 255] {
        let request = |bytes: usize| {
            pair.order().contract(Contract::default().key_bytes(limit)).header("Idempotency-Key", "k".repeat(bytes))
        };
        assert_eq!(request(limit).send().await.unwrap().status(), 201);
        let error = request(limit + 1).send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
    }
    assert_eq!(pair.attempts_seen(), 5);
}

#[tokio::test]
async fn v03_a_key_with_a_control_character_is_refused_and_nothing_is_sent() {
    let pair = Pair::with([]).await;
    // CR, LF and NUL are refused by the header itself; a tab and a byte beyond ASCII are ours to refuse.
    for value in [&b"a\tb"[..], b"a\xffb", b"a\r\nX-Evil: 1"] {
        let error = pair.order().header("Idempotency-Key", value).send().await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidKey | ErrorKind::Request), "{error:?}");
    }
    assert_eq!(pair.attempts_seen(), 0);
}

#[tokio::test]
async fn v04_a_structured_field_key_is_quoted_on_the_wire_and_understood() {
    let contract = Contract::named("strict").serialisation(Serialisation::StructuredField);
    let server = TestServer::builder().contract(contract.clone()).start().await.unwrap();
    let client = support::client(&ManualClock::new(), |builder| builder.contract(contract));
    let key = IdempotencyKey::parse(r#"a"b\c"#).unwrap();
    let response = client.post(server.url("/orders")).body("{}").key(key).send().await.unwrap();
    assert_eq!(response.status(), 201);
    let request = &server.requests()[0];
    assert_eq!(request.headers()["idempotency-key"], r#""a\"b\\c""#);
    assert_eq!(request.key(), Some(r#"a"b\c"#));
    // One that the caller has quoted already goes out as it is.
    let quoted = client.post(server.url("/orders")).body("{}").header("Idempotency-Key", r#""x\"y""#);
    assert_eq!(quoted.send().await.unwrap().key().unwrap().as_str(), r#"x"y"#);
    assert_eq!(server.requests()[1].headers()["idempotency-key"], r#""x\"y""#);
}

#[tokio::test]
async fn v05_a_contract_may_take_tokens_only() {
    let pair = Pair::with([]).await;
    let contract = Contract::default().key_rule(KeyRule::Token(40));
    let error = pair.order().contract(contract).header("Idempotency-Key", r#"a"b\c"#).send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    assert_eq!(pair.attempts_seen(), 0);
}

#[tokio::test]
async fn v06_an_empty_key_is_an_error_and_not_no_key() {
    let pair = Pair::with([]).await;
    for blank in ["", "   "] {
        let error = pair.order().header("Idempotency-Key", blank).send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{blank:?}");
    }
    assert_eq!(pair.attempts_seen(), 0);
}

#[tokio::test]
async fn v09_a_key_need_not_be_a_uuid_unless_the_contract_says_so() {
    let pair = Pair::with([]).await;
    let request = || pair.order().header("Idempotency-Key", "order-42");
    assert_eq!(request().send().await.unwrap().status(), 201);
    let uuid_only = Contract::default().key_rule(KeyRule::Uuid);
    assert_eq!(request().contract(uuid_only.clone()).send().await.unwrap_err().kind(), ErrorKind::InvalidKey);
    assert!(pair.order().contract(uuid_only).send().await.is_ok());
}

#[tokio::test]
async fn a_derived_key_is_the_same_in_every_process_and_a_known_uuid() {
    let key = IdempotencyKey::derive("shop.example/live", "order-42");
    let uuid = uuid::Uuid::parse_str(key.as_str()).unwrap();
    assert_eq!(uuid.get_version_num(), 5);
    // RFC 9562 section 5.5: SHA-1 of the namespace and the name; this value was made with Python's uuid module.
    assert_eq!(key.as_str(), "7047e78d-f816-5f6c-88e1-7eb241c44418");
}

#[tokio::test]
async fn a_thousand_operations_at_once_each_keep_to_the_key_of_their_record() {
    let clock = ManualClock::new();
    let server = TestServer::builder()
        .clock(clock.clone())
        .faults([Fault::reply_lost(), Fault::status(503)])
        .start()
        .await
        .unwrap();
    let client = IdempotentClient::builder()
        .journal(MemoryJournal::new())
        .http(reqwest::Client::builder().no_proxy())
        .clock(clock)
        .budget(reqwest_idempotency::retry::RetryBudget::unlimited())
        .build()
        .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let (client, url) = (client.clone(), server.url("/orders"));
        tasks.spawn(async move {
            let body = format!("{{\"number\":{number}}}");
            let sent = client.post(url).body(body).operation(format!("order-{number}")).send().await;
            (number, sent)
        });
    }
    while let Some(done) = tasks.join_next().await {
        let (number, sent) = done.unwrap();
        assert!(sent.unwrap().replayed(), "order-{number}");
    }
    let mut keys = HashSet::new();
    for request in server.requests() {
        let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
        let record = client.operation(format!("order-{}", body["number"])).await.unwrap().unwrap();
        assert_eq!(request.key(), Some(record.key.as_str()));
        keys.insert(record.key.as_str().to_owned());
    }
    assert_eq!(keys.len(), 1000);
    assert_eq!(server.executions(), 1000);
}
