//! How to test a function of your own on a flaky network.
//!
//! `cargo run --example flaky_network`

use reqwest_idempotency::IdempotentClient;
use reqwest_idempotency::testing::TestServer;

/// The function under test.
async fn place_order(client: &IdempotentClient, shop: &str) -> Result<String, reqwest_idempotency::Error> {
    client.post(format!("{shop}orders")).body(r#"{"item":"teapot"}"#).operation("order-42").send().await?.text().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for seed in 0..20 {
        let server = TestServer::builder().chaos(0.5, seed).start().await?;
        let order = place_order(&IdempotentClient::in_memory()?, &server.url("/")).await;
        println!("seed {seed}: {} attempts, {order:?}", server.requests().len());
        // Placed exactly once; or, where it gave up, never twice.
        assert!(server.executions() == 1 || order.is_err() && server.executions() == 0, "{}", server.repro());
    }
    Ok(())
}
