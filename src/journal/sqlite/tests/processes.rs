//! Several processes on one file, each with its own operations and all with the same.

use std::path::Path;
use std::sync::Arc;

use super::child::{Player, begins_first, say};
use super::{Folder, SqliteJournal};
use crate::clock::{Clock as _, SystemClock};
use crate::journal::Journal as _;

/// Operations that each process has to itself, and operations that all begin at about the same time.
const OWN: usize = 100;
const SHARED: usize = 100;
const TASKS: usize = 4;

/// The child's part.
pub(super) async fn take_part(file: &Path) {
    let journal = Arc::new(SqliteJournal::open(file).await.unwrap());
    say("ready", "");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let journal = Arc::clone(&journal);
        tasks.spawn(async move {
            let (mut first, mut slowest) = (Vec::new(), 0);
            for number in (task..OWN.max(SHARED)).step_by(TASKS) {
                let own = format!("own-{}-{number}", std::process::id());
                for operation in [own, format!("shared-{number}")] {
                    let before = SystemClock.now().monotonic;
                    if begins_first(&journal, &operation).await {
                        first.push(operation);
                    }
                    slowest = slowest.max((SystemClock.now().monotonic - before).as_millis());
                }
            }
            (first, slowest)
        });
    }
    let mut slowest = 0;
    while let Some(done) = tasks.join_next().await {
        let (first, took) = done.unwrap();
        for operation in first {
            say("first", &operation);
        }
        slowest = slowest.max(took);
    }
    say("slowest", &slowest.to_string());
}

fn race(processes: usize) {
    use std::io::Write as _;
    let folder = Folder::new();
    let mut players: Vec<Player> = (0..processes).map(|_| Player::start("takes part", &folder.journal())).collect();
    for player in &mut players {
        player.hears("ready");
    }
    for player in &mut players {
        writeln!(player.stdin(), "go").unwrap();
    }
    let mut firsts = Vec::new();
    for player in &mut players {
        let (said, slowest) = player.hears_until("first", "slowest");
        println!("of {processes} processes, one began {} first; its slowest begin took {slowest} ms", said.len());
        // The queue is fair: nobody waits for longer than a few turns of the others. A turn is one flush, and this
        // leaves room for a disk that others keep busy. Without the queue, SQLite alone let one wait for its whole
        // timeout of five seconds.
        assert!(slowest.parse::<u64>().unwrap() < 2_500, "a begin waited for {slowest} ms");
        firsts.extend(said);
    }
    let all = firsts.len();
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), all, "an operation was begun twice");
    assert_eq!(all, processes * OWN + SHARED);
}

#[test]
fn j05_two_processes_begin_each_operation_once() {
    race(2);
}

#[test]
fn j05_four_processes_begin_each_operation_once() {
    race(4);
}

#[tokio::test]
async fn processes_that_open_a_new_file_at_the_same_time_share_one_journal() {
    let folder = Folder::new();
    let mut players: Vec<Player> = (0..4).map(|_| Player::start("opens", &folder.journal())).collect();
    for player in &mut players {
        player.hears("opened");
    }
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    assert_eq!(journal.salt().len(), 16);
    for player in players {
        player.ends_well();
    }
}
