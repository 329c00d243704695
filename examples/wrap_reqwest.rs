//! An existing reqwest call, wrapped by one function.
//!
//! `cargo run --example wrap_reqwest`

use reqwest_idempotency::testing::{Fault, TestServer};
use reqwest_idempotency::{Delivery, IdempotentClient};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = TestServer::builder().faults([Fault::reply_lost()]).start().await?;
    let client = IdempotentClient::in_memory()?;

    // Before: `let response = http.post(url).json(&order).send().await?;`
    let http = client.http();
    let order = serde_json::json!({ "item": "teapot" });
    let response = client.send_as("order-42", http.post(server.url("/orders")).json(&order)).await?;
    println!("{} after {} attempts", response.status(), response.attempts().len());

    // The error of a call that got no answer says what is known.
    let nowhere = { std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()? };
    let request = client.request(reqwest::Method::POST, format!("http://{nowhere}/orders")).json(&order);
    match request.operation("order-43").deadline(std::time::Duration::from_secs(2)).send().await {
        Ok(response) => println!("unexpected: {}", response.status()),
        Err(error) => {
            println!("{}", error.report());
            assert_eq!(error.delivery(), Delivery::NotSent);
        }
    }
    Ok(())
}
