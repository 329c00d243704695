//! The test server on its own, for curl and for clients in other languages.
//!
//! `cargo run --example contract_server -- --port 0`
//!
//! The first line that it prints is its base URL; the access log goes to stderr; Ctrl-C stops it. It serves
//!
//! - `POST /orders`: any JSON body, answered with 201 and the order's id;
//! - `GET`, `PUT`, `PATCH` and `DELETE` on `/orders/{id}`, and `GET /orders`;
//! - `POST /slow?ms=N`: takes N milliseconds, so that a second attempt meets the first one in progress;
//! - `GET /openapi.json` and `GET /ledger`.
//!
//! The bearer token names the caller, and a request without one is an anonymous caller's.
//!
//! Options: `--port N` (0: a free one), `--window SECONDS`, `--optional-key`, `--chaos RATE` (0 to 1) with `--seed N`.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};
use reqwest_idempotency::testing::{SeenRequest, TestServer, TestServerBuilder};
use reqwest_idempotency::{Clock as _, SystemClock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let addr = SocketAddr::from(([127, 0, 0, 1], options.port));
    let server = options.server().start_on(addr).await?;
    println!("{}", server.url("/").trim_end_matches('/'));
    tokio::signal::ctrl_c().await?;
    Ok(())
}

#[derive(Default)]
struct Options {
    port: u16,
    window: Option<Duration>,
    optional_key: bool,
    chaos: Option<f64>,
    seed: u64,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self::default();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
            match name.as_str() {
                "--port" => options.port = value()?.parse()?,
                "--window" => options.window = Some(Duration::from_secs(value()?.parse()?)),
                "--optional-key" => options.optional_key = true,
                "--chaos" => options.chaos = Some(value()?.parse()?),
                "--seed" => options.seed = value()?.parse()?,
                _ => return Err(format!("{name} is no option; see the head of examples/contract_server.rs").into()),
            }
        }
        Ok(options)
    }

    fn server(&self) -> TestServerBuilder {
        let mut builder =
            TestServer::builder().orders().route(Method::POST, "/slow", slow).log(|line| eprintln!("{line}"));
        if let Some(window) = self.window {
            builder = builder.window(window);
        }
        if self.optional_key {
            builder = builder.optional_key();
        }
        if let Some(rate) = self.chaos {
            builder = builder.chaos(rate, self.seed);
        }
        builder
    }
}

async fn slow(request: SeenRequest) -> Response<Bytes> {
    let parameters = request.query().unwrap_or_default().split('&');
    let ms = parameters.filter_map(|parameter| parameter.strip_prefix("ms=")).find_map(|ms| ms.parse().ok());
    let duration = Duration::from_millis(ms.unwrap_or_default());
    SystemClock.sleep(duration).await;
    let body = format!("{{\"slept_ms\":{}}}", duration.as_millis());
    let response = Response::builder().header("content-type", "application/json");
    response.body(Bytes::from(body)).unwrap_or_default()
}
