//! What the durable journal costs: begin-to-finish of an operation against a bare append and fdatasync of as many bytes, in
//! one run on one disk; and how a journal of a million records opens and lists what is pending.
//!
//! `cargo bench --bench journal` (the folder for the files is the temporary one, or the first argument)

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use reqwest_idempotency::journal::rusqlite::Connection;
use reqwest_idempotency::journal::{Begun, Journal as _};
use reqwest_idempotency::{AfterSave, Durability, OperationId, Phase, Record, SqliteJournal};

type Failure = Box<dyn std::error::Error>;

/// A record of this release, with a request of a few hundred bytes.
const RECORD: &[u8] = include_bytes!("../tests/fixtures/record-v1-sending.bin");

/// Operations of each measurement.
const OPERATIONS: [(usize, usize); 3] = [(1, 1_000), (16, 8_000), (64, 16_000)];

const ROUNDS: usize = 3;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let within = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let within = within.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = within.join(format!("bench-journal-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = measure(&folder).await;
    std::fs::remove_dir_all(&folder)?;
    println!("{}", result?);
    Ok(())
}

async fn measure(folder: &Path) -> Result<serde_json::Value, Failure> {
    let mut figures = serde_json::Map::new();
    println!("tasks | bare: op/s, p50, p99 | journal: op/s, begin p50, p99, flushes/op | rate ratio, begin p50 ratio");
    for (tasks, operations) in OPERATIONS {
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        // Interleaved, so that a noisy minute strikes both.
        for round in 0..ROUNDS {
            bare.push(bare_append(&folder.join(format!("bare-{tasks}-{round}")), tasks, operations).await?);
            let journal = SqliteJournal::open(folder.join(format!("journal-{tasks}-{round}"))).await?;
            ours.push(begin_and_finish(&journal, tasks, operations, "order").await?);
        }
        let (bare, ours) = (median(bare), median(ours));
        let (rate, begin) = (ours.rate / bare.rate, ours.p50.as_secs_f64() / bare.p50.as_secs_f64());
        println!(
            "{tasks:5} | {:.0}, {:.0?}, {:.0?} | {:.0}, {:.0?}, {:.0?}, {:.3} | {rate:.2}, {begin:.2}",
            bare.rate, bare.p50, bare.p99, ours.rate, ours.p50, ours.p99, ours.flushes
        );
        figures.insert(format!("rate_ratio_{tasks}"), rate.into());
        figures.insert(format!("begin_p50_ratio_{tasks}"), begin.into());
        figures.insert(format!("flushes_per_op_{tasks}"), ours.flushes.into());
        figures.insert(format!("begin_p99_ms_{tasks}"), (ours.p99.as_secs_f64() * 1e3).into());
    }
    million(&folder.join("million"), &mut figures).await?;
    Ok(figures.into())
}

struct Figures {
    rate: f64,
    p50: Duration,
    p99: Duration,
    flushes: f64,
}

fn median(mut rounds: Vec<Figures>) -> Figures {
    rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    rounds.swap_remove(ROUNDS / 2)
}

fn figures(started: Instant, mut waits: Vec<Duration>, flushes: u64) -> Figures {
    let rate = waits.len() as f64 / started.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |share: usize| waits.get(waits.len() * share / 100).copied().unwrap_or_default();
    Figures { rate, p50: at(50), p99: at(99), flushes: flushes as f64 / waits.len() as f64 }
}

/// The limit: one thread that appends what is queued and calls fdatasync, once for all that came meanwhile.
async fn bare_append(path: &Path, tasks: usize, operations: usize) -> Result<Figures, Failure> {
    let mut file = std::fs::File::options().append(true).create_new(true).open(path)?;
    let (queue, waiting) = mpsc::channel::<tokio::sync::oneshot::Sender<()>>();
    let writer = std::thread::spawn(move || -> std::io::Result<u64> {
        let mut flushes = 0;
        while let Ok(first) = waiting.recv() {
            let group: Vec<_> = std::iter::once(first).chain(waiting.try_iter()).collect();
            for _ in &group {
                file.write_all(RECORD)?;
            }
            file.sync_data()?;
            flushes += 1;
            for answer in group {
                let _ = answer.send(());
            }
        }
        Ok(flushes)
    });
    let started = now();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let queue = queue.clone();
        running.spawn(async move {
            let mut waits = Vec::with_capacity(operations / tasks);
            for _ in 0..operations / tasks {
                let begun = now();
                let (answer, answered) = tokio::sync::oneshot::channel();
                if queue.send(answer).is_err() || answered.await.is_err() {
                    return Err("the writer has ended");
                }
                waits.push(begun.elapsed());
            }
            Ok(waits)
        });
    }
    drop(queue);
    let waits: Vec<Vec<Duration>> = running.join_all().await.into_iter().collect::<Result<_, _>>()?;
    let flushes = writer.join().map_err(|_| "the writer panicked")??;
    Ok(figures(started, waits.concat(), flushes))
}

async fn begin_and_finish(
    journal: &SqliteJournal,
    tasks: usize,
    operations: usize,
    prefix: &'static str,
) -> Result<Figures, Failure> {
    let before = journal.flushes();
    let journal = Arc::new(journal.clone());
    let started = now();
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let journal = Arc::clone(&journal);
        running.spawn(async move {
            let mut waits = Vec::with_capacity(operations / tasks);
            for number in 0..operations / tasks {
                let record = record(&format!("{prefix}-{task}-{number}"))?;
                let begun = now();
                let Begun::New { record, lease, .. } = journal.begin(record, Duration::from_secs(90)).await? else {
                    return Err("it was known already".into());
                };
                waits.push(begun.elapsed());
                let mut record = *record;
                record.phase = Phase::Completed;
                record.request = None;
                journal.save(record, lease, AfterSave::ReleaseLease, Durability::Late).await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(waits)
        });
    }
    let waits: Vec<Vec<Duration>> =
        running.join_all().await.into_iter().collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(figures(started, waits.concat(), journal.flushes() - before))
}

fn record(id: &str) -> Result<Record, Box<dyn std::error::Error + Send + Sync>> {
    let mut record = Record::from_bytes(RECORD)?;
    record.operation = OperationId::parse(id)?;
    Ok(record)
}

/// A million finished and ten thousand pending records: made by SQL, then opened and listed.
async fn million(path: &Path, figures: &mut serde_json::Map<String, serde_json::Value>) -> Result<(), Failure> {
    let journal = SqliteJournal::open(path).await?;
    begin_and_finish(&journal, 64, 1_024, "empty").await?;
    let empty = begin_and_finish(&journal, 64, 16_000, "empty-again").await?;
    let mut pending = tokio::task::JoinSet::new();
    for number in 0..10_000 {
        let journal = journal.clone();
        let record = record(&format!("pending-{number}")).map_err(|error| error.to_string())?;
        pending.spawn(async move { journal.begin(record, Duration::ZERO).await.map(drop) });
    }
    pending.join_all().await.into_iter().collect::<Result<Vec<()>, _>>()?;
    drop(journal);
    fill(path)?;
    let bytes = std::fs::metadata(path)?.len();

    let started = now();
    let journal = SqliteJournal::open(path).await?;
    let opened = started.elapsed();
    let started = now();
    let (mut listed, mut after) = (0, None);
    loop {
        let page = journal.pending(after, 1_000).await?;
        listed += page.len();
        match page.last() {
            Some(last) => after = Some(last.clone()),
            None => break,
        }
    }
    let listing = started.elapsed();
    let big = begin_and_finish(&journal, 64, 16_000, "big").await?;
    println!(
        "a million finished, {listed} pending ({} MiB): opened in {opened:.1?}, listed in {listing:.1?}; 64 tasks: {:.0} op/s, \
         begin p99 {:.1?}; in a small file {:.0} op/s, {:.1?}",
        bytes / 1024 / 1024,
        big.rate,
        big.p99,
        empty.rate,
        empty.p99
    );
    figures.insert("open_and_list_ms".to_owned(), ((opened + listing).as_secs_f64() * 1e3).into());
    figures.insert("big_rate_ratio_64".to_owned(), (big.rate / empty.rate).into());
    figures.insert("big_file_mib".to_owned(), (bytes / 1024 / 1024).into());
    Ok(())
}

/// Copies one finished record a million times, under ids and keys of their own.
fn fill(path: &Path) -> Result<(), Failure> {
    let database = Connection::open(path)?;
    let mut columns = database.prepare("SELECT name FROM pragma_table_info('idempotency_finished')")?;
    let columns: Vec<String> = columns.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let columns: Vec<&str> = columns.iter().map(String::as_str).filter(|name| *name != "id").collect();
    let values: Vec<&str> = columns
        .iter()
        .map(|name| match *name {
            "operation" => "'order-' || n",
            "idempotency_key" => "lower(hex(randomblob(16)))",
            // Changed by hand, a record has no checksum.
            "checksum" => "NULL",
            "keep_until" => "begun_at + 604800000",
            other => other,
        })
        .collect();
    let source = "(SELECT * FROM idempotency_operation WHERE phase = 'completed' LIMIT 1)";
    let (columns, values) = (columns.join(", "), values.join(", "));
    let from_hot = format!(
        "INSERT INTO idempotency_finished ({columns}) WITH RECURSIVE count(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count \
         WHERE n < 1000000) SELECT {values} FROM count, {source}"
    );
    if database.execute(&from_hot, [])? == 0 {
        let from_finished = from_hot.replace("idempotency_operation WHERE phase = 'completed'", "idempotency_finished");
        database.execute(&from_finished, [])?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}
