//! Kills a process again and again while it sends operations through a bad network, lets the next one finish what it left,
//! and then compares three things: what the server executed, what the journal says, and what callers were told.
//!
//! `cargo run --release --example crash_loop -- --rounds 200 --seed 1`
//!
//! The last line is one JSON object. `executed_twice`, `lost` and `told_wrong` must be 0; `killed_in_flight` and `replayed`
//! must not, or nothing was put to the test.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest_idempotency::retry::{Backoff, RetryBudget, RetryPolicy};
use reqwest_idempotency::testing::{At, Fault, SeenRequest, TestServer};
use reqwest_idempotency::{
    Clock as _, Delivery, Error, IdempotentClient, Response, ResumedItem, SqliteJournal, SystemClock,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};

type Failure = Box<dyn std::error::Error>;

/// New operations in each round.
const OPERATIONS: u64 = 12;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse()?;
    match &arguments.child {
        Some(child) => child.run(&arguments).await,
        None => Parent::new(arguments)?.run().await,
    }
}

struct Arguments {
    rounds: u64,
    seed: u64,
    child: Option<Child>,
}

impl Arguments {
    fn parse() -> Result<Self, Failure> {
        let mut given: HashMap<String, String> = HashMap::new();
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(format!("{name} needs a value"))?;
            given.insert(name, value);
        }
        let mut number = |name: &str, default: u64| match given.remove(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} takes a whole number, not {text:?}")),
            None => Ok(default),
        };
        let (rounds, seed, round) = (number("--rounds", 20)?, number("--seed", 1)?, number("--round", 0)?);
        let child = match (given.remove("--child-of"), given.remove("--journal-at")) {
            (Some(url), Some(journal)) => Some(Child { url, journal: journal.into(), round }),
            _ => None,
        };
        match given.keys().next() {
            Some(unknown) => Err(format!("unknown argument {unknown}; there are --rounds N and --seed N").into()),
            None => Ok(Self { rounds, seed, child }),
        }
    }
}

/// The process that is killed. It tells on its standard output what it tells its callers, one line each.
struct Child {
    url: String,
    journal: PathBuf,
    /// 0 for the last one, which only finishes what is left.
    round: u64,
}

impl Child {
    async fn run(&self, arguments: &Arguments) -> Result<(), Failure> {
        let client = client(&self.journal).await?;
        let resuming = tokio::spawn(finish(client.clone()));
        if self.round > 0 {
            let mut orders = tokio::task::JoinSet::new();
            for number in 0..OPERATIONS {
                let operation = format!("r{}-{number}", self.round);
                let fate = Fate::of(arguments.seed, &operation);
                let url = if fate == Fate::Nowhere { "http://127.0.0.1:1/orders".to_owned() } else { self.url.clone() };
                let client = client.clone();
                orders.spawn(async move {
                    println!("began {operation}");
                    let body = serde_json::json!({ "operation": operation });
                    let result = client.post(url).json(&body).operation(&operation).send().await;
                    tell(&operation, result);
                });
            }
            orders.join_all().await;
        }
        resuming.await?;
        if self.round == 0 {
            finish_all(&client, arguments.seed).await?;
        }
        println!("finished all");
        // Those before it wait to be killed.
        if self.round > 0 {
            SystemClock.sleep(Duration::from_secs(60)).await;
        }
        Ok(())
    }
}

/// The last process stays until nothing is pending but what no server will ever answer for: found as sending after a crash,
/// that may have been sent for all the journal knows, and is for a person to give up.
async fn finish_all(client: &IdempotentClient, seed: u64) -> Result<(), Failure> {
    loop {
        let pending = client.pending().await?;
        let (nowhere, open): (Vec<_>, Vec<_>) =
            pending.iter().partition(|id| Fate::of(seed, id.as_str()) == Fate::Nowhere);
        if open.is_empty() {
            for operation in nowhere {
                client.abandon(operation.as_str()).await?;
            }
            return Ok(());
        }
        SystemClock.sleep(Duration::from_millis(20)).await;
        finish(client.clone()).await;
    }
}

async fn client(journal: &Path) -> Result<IdempotentClient, Failure> {
    let policy = RetryPolicy::default()
        .deadline(Duration::from_secs(2))
        .attempt_timeout(Duration::from_millis(250))
        .in_progress_min(Duration::from_millis(5))
        .backoff(Backoff::default().base(Duration::from_millis(5)).cap(Duration::from_millis(40)));
    let journal = SqliteJournal::open(journal).await?;
    let http = reqwest::Client::builder().no_proxy();
    let builder = IdempotentClient::builder().journal(journal).http(http).retry(policy);
    Ok(builder.budget(RetryBudget::unlimited()).build()?)
}

async fn finish(client: IdempotentClient) {
    let mut resumed = client.resume();
    while let Some(item) = resumed.next().await {
        match item {
            ResumedItem::Done(operation, result) => tell(operation.as_str(), result),
            other => println!("problem {other:?}"),
        }
    }
}

/// What the caller hears, as a line: the outcome, the operation, and what it says about the execution.
fn tell(operation: &str, result: Result<Response, Error>) {
    match result {
        Ok(response) if response.status().is_success() => {
            let body = String::from_utf8_lossy(response.body()).into_owned();
            let replayed = if response.replayed() { "replayed" } else { "first" };
            println!("success {operation} {replayed} {body}");
        }
        Ok(response) => println!("rejected {operation} {}", response.status().as_u16()),
        Err(error) if error.delivery() == Delivery::NotSent => println!("notsent {operation} {:?}", error.kind()),
        Err(error) => println!("unknown {operation} {:?} pending={}", error.kind(), error.is_pending()),
    }
}

/// What a seed holds for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The server does its work, on a bad network.
    Served,
    /// The server refuses it every time.
    Refused,
    /// There is no server.
    Nowhere,
}

impl Fate {
    fn of(seed: u64, operation: &str) -> Self {
        match hash(seed, operation, 0) % 20 {
            0 => Self::Refused,
            1 => Self::Nowhere,
            _ => Self::Served,
        }
    }
}

/// The fault that an attempt meets: a matter of seed, operation and attempt alone, so that the order of arrival changes
/// nothing.
fn fault(seed: u64, request: &SeenRequest) -> Fault {
    let operation = operation_of(request);
    if Fate::of(seed, &operation) == Fate::Refused {
        return Fault::status(402);
    }
    let attempt = request.attempt() as u64;
    // From the eighth attempt on the network is well again.
    match hash(seed, &operation, attempt) % if attempt < 8 { 16 } else { 1 } {
        1 => Fault::status(503),
        2 | 3 => Fault::reply_lost(),
        4 => Fault::reply_cut(3),
        5 => Fault::refused_before_claim(),
        6 => Fault::reset(At::AfterEffect),
        7 => Fault::stall_after_commit(),
        8 => Fault::in_progress("0"),
        9 => Fault::close(At::AfterClaim),
        10 => Fault::stall_before_claim(),
        _ => Fault::none(),
    }
}

fn operation_of(request: &SeenRequest) -> String {
    let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap_or_default();
    body.get("operation").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// FNV-1a, and a last mix: small, and the same on every machine.
fn hash(seed: u64, operation: &str, attempt: u64) -> u64 {
    let bytes = seed.to_be_bytes().into_iter().chain(operation.bytes()).chain(attempt.to_be_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// The process that kills, and counts.
struct Parent {
    arguments: Arguments,
    folder: PathBuf,
    executed: Arc<Mutex<BTreeMap<String, u64>>>,
    told: Vec<String>,
    killed_in_flight: u64,
}

impl Parent {
    fn new(arguments: Arguments) -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(format!("crash_loop-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self { arguments, folder, executed: Arc::default(), told: Vec::new(), killed_in_flight: 0 })
    }

    async fn run(mut self) -> Result<(), Failure> {
        let (seed, executed) = (self.arguments.seed, Arc::clone(&self.executed));
        let server = TestServer::builder()
            .fault_by(move |request| fault(seed, request))
            .route(http::Method::POST, "/orders", move |request| {
                let operation = operation_of(&request);
                let mut executed = executed.lock().unwrap_or_else(PoisonError::into_inner);
                let count = executed.entry(operation.clone()).or_default();
                *count += 1;
                let body = serde_json::json!({ "operation": operation, "execution": *count }).to_string();
                std::future::ready(http::Response::builder().status(201).body(body.into()).unwrap_or_default())
            })
            .start()
            .await?;
        for round in 1..=self.arguments.rounds {
            self.round(&server, round).await?;
        }
        self.round(&server, 0).await?;
        let verdict = self.verdict().await?;
        std::fs::remove_dir_all(&self.folder)?;
        println!("{verdict}");
        let wrong = ["executed_twice", "lost", "told_wrong"].iter().any(|fault| verdict.get(fault) != Some(&0.into()));
        if wrong { Err("the promise was broken".into()) } else { Ok(()) }
    }

    fn journal(&self) -> PathBuf {
        self.folder.join("orders.journal")
    }

    /// One life of a child: it is killed at a moment that the seed says, the last one is left to end by itself.
    async fn round(&mut self, server: &TestServer, round: u64) -> Result<(), Failure> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--seed", &self.arguments.seed.to_string(), "--round", &round.to_string()])
            .args(["--child-of", &server.url("/orders"), "--journal-at"])
            .arg(self.journal())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        // The life begins with its first operation, so that slow starts do not eat it up.
        let first = if round > 0 { lines.next_line().await? } else { None };
        // A third of the lives end in the first milliseconds, while operations are being begun.
        let longest = if round.is_multiple_of(3) { 4_000 } else { 120_000 };
        let life = Duration::from_micros(hash(self.arguments.seed, "life", round) % longest);
        let mut heard: Vec<String> = first.into_iter().collect();
        if round > 0 {
            let reading = async {
                while let Some(line) = lines.next_line().await? {
                    heard.push(line);
                }
                Ok::<(), std::io::Error>(())
            };
            tokio::select! {
                ended = reading => ended?,
                () = SystemClock.sleep(life) => {}
            }
            child.start_kill()?;
        }
        while let Some(line) = lines.next_line().await? {
            heard.push(line);
        }
        let status = child.wait().await?;
        if round == 0 && !status.success() {
            return Err(format!("the last child ended with {status}: {heard:?}").into());
        }
        let named = |word: &str| -> BTreeSet<&str> {
            let words = heard.iter().filter_map(|line| line.split_once(' '));
            words.filter(|(said, _)| (*said == "began") == (word == "began")).map(|(_, rest)| rest).map(id_in).collect()
        };
        if round > 0 && named("began").difference(&named("ended")).next().is_some() {
            self.killed_in_flight += 1;
        }
        self.told.extend(heard.iter().cloned());
        Ok(())
    }

    async fn verdict(&self) -> Result<serde_json::Value, Failure> {
        let executed = self.executed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let times = |operation: &str| executed.get(operation).copied().unwrap_or_default();
        let (mut told_wrong, mut replayed) = (0_u64, 0_u64);
        let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
        for line in &self.told {
            let Some((word, rest)) = line.split_once(' ') else { continue };
            let operation = id_in(rest);
            let wrong = match word {
                "success" => {
                    replayed += u64::from(rest.contains(" replayed "));
                    let own = rest.contains(&format!("\"operation\":\"{operation}\""));
                    times(operation) != 1 || !own
                }
                "notsent" | "rejected" => times(operation) > 0,
                _ => false,
            };
            if wrong {
                eprintln!("told wrong, executed {} time(s): {line}", times(operation));
                told_wrong += 1;
            }
            *outcomes.entry(word).or_default() += 1;
        }
        let client = client(&self.journal()).await?;
        let (mut lost, mut begun) = (0_u64, 0_u64);
        for round in 1..=self.arguments.rounds {
            for number in 0..OPERATIONS {
                let operation = format!("r{round}-{number}");
                // An operation that is not in the journal was not begun, so nothing of it may have been sent.
                match client.operation(&operation).await? {
                    Some(record) => {
                        begun += 1;
                        lost += u64::from(record.phase.is_pending() && times(&operation) == 0);
                    }
                    None => told_wrong += times(&operation),
                }
            }
        }
        Ok(serde_json::json!({
            "rounds": self.arguments.rounds,
            "seed": self.arguments.seed,
            "operations": begun,
            "executed": executed.len(),
            "executed_twice": executed.values().filter(|count| **count > 1).count(),
            "lost": lost,
            "told_wrong": told_wrong,
            "killed_in_flight": self.killed_in_flight,
            "replayed": replayed,
            "told": outcomes,
        }))
    }
}

fn id_in(rest: &str) -> &str {
    rest.split(' ').next().unwrap_or_default()
}
