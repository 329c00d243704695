//! One order, on a bad day: the reply is lost after the server has executed the order, then the server is still busy with
//! it, then it replays its answer. The order is executed once.
//!
//! `cargo run --example quickstart`

use reqwest_idempotency::IdempotentClient;
use reqwest_idempotency::testing::{Fault, TestServer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = TestServer::builder()
        .faults([
            Fault::reply_lost(),     // executed and stored, and then the connection dies
            Fault::in_progress("1"), // 409 in-progress, Retry-After: 1
        ])
        .start()
        .await?;

    let client = IdempotentClient::in_memory()?;
    let response = client
        .post(server.url("/orders"))
        .json(&serde_json::json!({ "item": "teapot", "total": "99.95" }))
        .operation("order-42")
        .send()
        .await?;

    println!("{}", response.report());
    println!("replayed: {}", response.replayed());
    println!("order: {}", response.text().await?);
    println!("executed by the server: {} time(s)", server.executions());
    Ok(())
}
