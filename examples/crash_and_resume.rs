//! A process is killed between the send and the reply. Another one finishes its operation, with the key from the journal:
//! the server has executed the order already, and replays its answer.
//!
//! `cargo run --example crash_and_resume`

use std::path::Path;

use reqwest_idempotency::testing::{Fault, TestServer};
use reqwest_idempotency::{IdempotentClient, ResumedItem};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [url, journal] => order(url, Path::new(journal)).await,
        _ => crash_and_resume().await,
    }
}

/// The process that dies.
async fn order(url: &str, journal: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let client = IdempotentClient::open(journal).await?;
    let order = serde_json::json!({ "item": "teapot" });
    let response = client.post(url).json(&order).operation("order-42").send().await?;
    println!("never printed: {}", response.status());
    Ok(())
}

async fn crash_and_resume() -> Result<(), Box<dyn std::error::Error>> {
    let server = TestServer::builder().faults([Fault::stall_after_commit()]).start().await?;
    let folder = std::env::temp_dir().join(format!("crash_and_resume-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let journal = folder.join("orders.journal");

    let mut child =
        std::process::Command::new(std::env::current_exe()?).arg(server.url("/orders")).arg(&journal).spawn()?;
    server.fault_injected().await;
    child.kill()?;
    child.wait()?;
    println!("killed, after the server executed the order and before it replied");

    let client = IdempotentClient::open(&journal).await?;
    let mut resumed = client.resume();
    while let Some(item) = resumed.next().await {
        match item {
            ResumedItem::Done(operation, Ok(response)) => {
                println!("{operation}: {}, replayed: {}", response.status(), response.replayed());
            }
            ResumedItem::Done(_, Err(error)) => println!("{}", error.report()),
            other => println!("{other:?}"),
        }
    }
    println!("executed by the server: {} time(s)", server.executions());
    drop((resumed, client));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
