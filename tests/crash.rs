//! Kills real processes (SIGKILL) at known points of an operation's life, and looks at what the next process makes of it.
//!
//! Without the harness, because each test starts this very binary again as the process that dies.

#![expect(clippy::indexing_slicing, reason = "a panic is how a test fails")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest_idempotency::testing::{Fault, TestServer};
use reqwest_idempotency::{IdempotentClient, Keep, Phase, Response, ResumedItem, SqliteJournal};
use tokio::io::{AsyncBufReadExt as _, BufReader};

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Test = (&'static str, fn() -> Pin<Box<dyn Future<Output = Outcome>>>);

const TESTS: [Test; 5] = [
    ("j01_killed_before_the_record_is_written_nothing_is_known_and_nothing_sent", || Box::pin(before_the_record())),
    ("j02_killed_before_the_first_byte_it_is_sent_with_the_recorded_key", || Box::pin(before_the_first_byte())),
    ("j03_j15_k13_killed_after_the_servers_commit_the_replay_completes_it", || Box::pin(after_the_commit())),
    ("j04_killed_after_the_reply_is_stored_it_is_answered_without_the_network", || Box::pin(after_the_reply())),
    ("a_process_that_lives_keeps_its_operation_to_itself", || Box::pin(while_it_lives())),
];

#[tokio::main]
async fn main() -> ExitCode {
    if let (Ok(at), Ok(url), Ok(journal)) =
        (std::env::var("CRASH_AT"), std::env::var("CRASH_URL"), std::env::var("CRASH_JOURNAL"))
    {
        return match die(&at, &url, Path::new(&journal)).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let (mut wanted, mut skipped) = (String::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => skipped.extend(arguments.next()),
            other if !other.starts_with('-') => wanted = argument,
            _ => {}
        }
    }
    let is_chosen = |name: &str| name.contains(&wanted) && !skipped.iter().any(|skip| name.contains(skip));
    let chosen: Vec<&Test> = TESTS.iter().filter(|(name, _)| is_chosen(name)).collect();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        match test().await {
            Ok(()) => println!("test {name} ... ok"),
            Err(error) => {
                failed += 1;
                println!("test {name} ... FAILED\n  {error}");
            }
        }
    }
    let (word, passed) = (if failed == 0 { "ok" } else { "FAILED" }, chosen.len() - failed);
    let filtered = TESTS.len() - chosen.len();
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The process that dies: it says when it has come to the point, and waits for its end.
async fn die(at: &str, url: &str, journal: &Path) -> Outcome {
    let builder = IdempotentClient::builder()
        .journal(SqliteJournal::open(journal).await?)
        .http(reqwest::Client::builder().no_proxy())
        .keep(Keep::Exchange);
    let client = match at {
        "before the record" => builder
            .key_source(|| {
                println!("here");
                loop {
                    std::thread::park();
                }
            })
            .build()?,
        "before the first byte" => builder
            .prepare(|_, _| {
                println!("here");
                Box::pin(std::future::pending())
            })
            .build()?,
        _ => builder.build()?,
    };
    order(&client, url, "order-42").await?;
    // The journal writes in order: when the second operation is begun, the end of the first is on the disk.
    order(&client, url, "order-43").await?;
    println!("here");
    std::future::pending().await
}

async fn order(client: &IdempotentClient, url: &str, id: &str) -> Result<Response, reqwest_idempotency::Error> {
    client.post(url).body(r#"{"item":"teapot"}"#).operation(id).send().await
}

async fn before_the_record() -> Outcome {
    let (scene, client) = Scene::killed("before the record", []).await?;
    equal("record", client.operation("order-42").await?.is_none(), true)?;
    equal("requests", scene.server.requests().len(), 0)?;
    equal("status", order(&client, &scene.url(), "order-42").await?.status().as_u16(), 201)?;
    equal("executions", scene.server.executions(), 1)
}

async fn before_the_first_byte() -> Outcome {
    let (scene, client) = Scene::killed("before the first byte", []).await?;
    equal("requests", scene.server.requests().len(), 0)?;
    let record = client.operation("order-42").await?.ok_or("no record")?;
    equal("phase", record.phase, Phase::Sending)?;
    // What was never sent is unknown to whoever finds it: the record says that it may have left.
    let response = resumed(&client).await?;
    equal("after unknown", response.after_unknown(), true)?;
    equal("key", response.key(), Some(&record.key))?;
    equal("key on the wire", scene.server.requests()[0].key(), Some(record.key.as_str()))?;
    equal("executions", scene.server.executions(), 1)
}

async fn after_the_commit() -> Outcome {
    let (scene, client) = Scene::killed("after the commit", [Fault::stall_after_commit()]).await?;
    let response = resumed(&client).await?;
    equal("replayed", response.replayed(), true)?;
    let requests = scene.server.requests();
    equal("requests", requests.len(), 2)?;
    equal("key", requests[0].key(), requests[1].key())?;
    equal("body", requests[0].body(), requests[1].body())?;
    equal("executions", scene.server.executions(), 1)?;
    equal("phase", client.operation("order-42").await?.ok_or("no record")?.phase, Phase::Completed)
}

async fn after_the_reply() -> Outcome {
    let (scene, client) = Scene::killed("after the reply", []).await?;
    let sent = scene.server.requests().len();
    let response = order(&client, &scene.url(), "order-42").await?;
    equal("status", response.status().as_u16(), 201)?;
    equal("body", response.text().await?.contains("teapot"), true)?;
    equal("requests", scene.server.requests().len(), sent)
}

async fn while_it_lives() -> Outcome {
    let scene = Scene::with([Fault::stall_after_commit()]).await?;
    let mut child = scene.child("after the commit")?;
    scene.server.fault_injected().await;
    let client = scene.client().await?;
    let error =
        order(&client, &scene.url(), "order-42").await.err().ok_or("it was taken over from a living process")?;
    equal("kind", error.kind(), reqwest_idempotency::ErrorKind::Locked)?;
    equal("requests", scene.server.requests().len(), 1)?;
    kill(&mut child)?;
    // Dead, it holds nothing any more: no lease has to run out first.
    equal("replayed", resumed(&client).await?.replayed(), true)?;
    Ok(())
}

/// A server, and a folder with a journal that one process after the other uses.
struct Scene {
    server: TestServer,
    folder: PathBuf,
}

impl Scene {
    async fn with(faults: impl IntoIterator<Item = Fault>) -> Result<Self, std::io::Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("reqwest-idempotency-crash-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self { server: TestServer::builder().faults(faults).start().await?, folder })
    }

    /// A scene in which a process was killed at a point, and the client of the next process.
    async fn killed(
        at: &str,
        faults: impl IntoIterator<Item = Fault>,
    ) -> Result<(Self, IdempotentClient), Box<dyn std::error::Error>> {
        let scene = Self::with(faults).await?;
        let mut child = scene.child(at)?;
        if at == "after the commit" {
            scene.server.fault_injected().await;
        } else {
            let output = tokio::process::ChildStdout::from_std(child.stdout.take().ok_or("no output")?)?;
            let line = BufReader::new(output).lines().next_line().await?;
            equal("the child's line", line.as_deref(), Some("here"))?;
        }
        kill(&mut child)?;
        let client = scene.client().await?;
        Ok((scene, client))
    }

    fn child(&self, at: &str) -> Result<Child, std::io::Error> {
        Command::new(std::env::current_exe()?)
            .env("CRASH_AT", at)
            .env("CRASH_URL", self.url())
            .env("CRASH_JOURNAL", self.journal())
            .stdout(Stdio::piped())
            .spawn()
    }

    async fn client(&self) -> Result<IdempotentClient, Box<dyn std::error::Error>> {
        let journal = SqliteJournal::open(self.journal()).await?;
        let http = reqwest::Client::builder().no_proxy();
        Ok(IdempotentClient::builder().journal(journal).http(http).keep(Keep::Exchange).build()?)
    }

    fn url(&self) -> String {
        self.server.url("/orders")
    }

    fn journal(&self) -> PathBuf {
        self.folder.join("orders.journal")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn kill(child: &mut Child) -> Outcome {
    child.kill()?;
    child.wait()?;
    Ok(())
}

async fn resumed(client: &IdempotentClient) -> Result<Response, Box<dyn std::error::Error>> {
    let mut resume = client.resume();
    match resume.next().await {
        Some(ResumedItem::Done(_, result)) => Ok(result?),
        other => Err(format!("nothing was resumed: {other:?}").into()),
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, and should be {expected:?}").into()) }
}
