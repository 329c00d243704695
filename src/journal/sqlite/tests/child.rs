//! Processes of their own: this test binary, started again to play one part.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Begun, LEASE, SqliteJournal, begin, closed, durability, errors, id, processes, record};
use crate::journal::Journal as _;
use crate::operation::{AfterSave, Durability, Phase};

const PART: &str = "REQWEST_IDEMPOTENCY_TEST_PART";
const FILE: &str = "REQWEST_IDEMPOTENCY_TEST_FILE";

/// A child that plays its part on a journal's file. It is killed at the end of the test at the latest.
pub(super) struct Player {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Player {
    pub(super) fn start(part: &str, file: &Path) -> Self {
        Self::start_with(part, file, |_| {})
    }

    pub(super) fn start_with(part: &str, file: &Path, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "journal::sqlite::tests::child::plays_its_part", "--nocapture"]);
        command.env(PART, part).env(FILE, file).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Waits for the child to say something that begins so, and returns the rest of the line.
    pub(super) fn hears(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            // The test runner prints the test's name first, on the same line.
            if let Some((_, rest)) = line.trim_end().split_once(&format!("<{beginning}>")) {
                return rest.to_owned();
            }
            line.clear();
        }
        panic!("the child ended ({:?}) without saying {beginning:?}", self.child.wait());
    }

    /// The rest of all lines that begin with `beginning`, until one begins with `last`, and the rest of that.
    pub(super) fn hears_until(&mut self, beginning: &str, last: &str) -> (Vec<String>, String) {
        let mut said = Vec::new();
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.trim_end().split_once(&format!("<{beginning}>")) {
                said.push(rest.to_owned());
            } else if let Some((_, rest)) = line.trim_end().split_once(&format!("<{last}>")) {
                return (said, rest.to_owned());
            }
            line.clear();
        }
        panic!("the child ended ({:?}) without saying {last:?}", self.child.wait());
    }

    pub(super) fn stdin(&mut self) -> &mut ChildStdin {
        self.child.stdin.as_mut().unwrap()
    }

    /// SIGKILL: nothing of the child runs after that.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn ends_well(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn say(beginning: &str, rest: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "<{beginning}>{rest}").unwrap();
    out.flush().unwrap();
}

/// Until the parent kills us, or is gone itself.
pub(super) fn wait_for_the_end() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn plays_its_part() {
    let (Ok(part), Ok(file)) = (std::env::var(PART), std::env::var(FILE)) else { return };
    let file = Path::new(&file);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        match part.as_str() {
            "opens" => {
                let _journal = SqliteJournal::open(file).await.unwrap();
                say("opened", "");
                wait_for_the_end();
            }
            "begins" => {
                let journal = SqliteJournal::open(file).await.unwrap();
                let (record, _) = begin(&journal, "order-42").await;
                say("begun", record.key.as_str());
                wait_for_the_end();
            }
            "begins three" => {
                let journal = SqliteJournal::open(file).await.unwrap();
                for number in 1..=3 {
                    begin(&journal, &format!("order-{number}")).await;
                }
                say("begun", "");
                wait_for_the_end();
            }
            "rejects" => {
                let journal = SqliteJournal::open(file).await.unwrap();
                let (record, lease) = begin(&journal, "order-42").await;
                super::close(&journal, &record, lease, Phase::Rejected).await;
                say("rejected", "");
                wait_for_the_end();
            }
            "completes late" => {
                let journal = SqliteJournal::open(file).await.unwrap();
                let (record, lease) = begin(&journal, "order-42").await;
                let completed = closed(&record, Phase::Completed);
                journal.save(completed, lease, AfterSave::ReleaseLease, Durability::Late).await.unwrap();
                say("completed", "");
                wait_for_the_end();
            }
            "begins without end" => durability::begin_without_end(file).await,
            "fails" => errors::disk_fails(file).await,
            "fails for good" => errors::disk_fails_for_good(file).await,
            "may not write" => errors::may_not_write(file).await,
            "takes part" => processes::take_part(file).await,
            _ => panic!("no such part: {part}"),
        }
    });
}

/// Begins an operation that others may begin at the same time; whether this was the first.
pub(super) async fn begins_first(journal: &SqliteJournal, operation: &str) -> bool {
    let begun = journal.begin(record(operation), LEASE).await.unwrap();
    if let Begun::Known(known) = &begun {
        assert_eq!(known.operation, id(operation));
    }
    matches!(begun, Begun::New { .. })
}
