//! What cannot be opened or written says why, what to do, and whether it may be on the disk all the same.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{Player, say};
use super::{Begun, Folder, LEASE, SqliteJournal, begin, beside, closed, id, is_taken, phase_of, record};
use crate::journal::{Journal as _, JournalError, JournalErrorKind};
use crate::operation::{AfterSave, Durability, Phase};

async fn refused(path: &Path) -> JournalError {
    SqliteJournal::open(path).await.unwrap_err()
}

#[track_caller]
fn says(error: &JournalError, kind: JournalErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn j07_a_folder_that_does_not_exist_is_named() {
    let folder = Folder::new();
    let path = folder.path("no/such/orders.journal");
    says(&refused(&path).await, JournalErrorKind::Unavailable, &["no/such/orders.journal", "create it"]);
    assert!(!folder.path("no").exists());
}

#[tokio::test]
async fn a_folder_is_no_journal() {
    let folder = Folder::new();
    says(&refused(&folder.0).await, JournalErrorKind::Unavailable, &["is a folder", "name a file"]);
    let below = folder.path("file");
    std::fs::write(&below, "text").unwrap();
    says(&refused(&below.join("orders.journal")).await, JournalErrorKind::Unavailable, &["is no folder"]);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_left_as_it_is() {
    let folder = Folder::new();
    let text = "Dear diary, this is no database, but it is longer than the head of one. ".repeat(100);
    std::fs::write(folder.journal(), &text).unwrap();
    says(&refused(&folder.journal()).await, JournalErrorKind::Corrupt, &["orders.journal", "no SQLite file"]);
    assert_eq!(std::fs::read_to_string(folder.journal()).unwrap(), text);
}

#[tokio::test]
async fn an_empty_file_becomes_a_journal() {
    let folder = Folder::new();
    std::fs::write(folder.journal(), "").unwrap();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    begin(&journal, "order-42").await;
}

fn database(path: &Path, sql: &str) {
    rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[tokio::test]
async fn another_applications_database_is_left_as_it_is() {
    for sql in [
        "CREATE TABLE notes (text)",
        "PRAGMA application_id = 252006674; CREATE TABLE notes (text)",
        "PRAGMA application_id = 1",
    ] {
        let folder = Folder::new();
        database(&folder.journal(), sql);
        let before = std::fs::read(folder.journal()).unwrap();
        says(
            &refused(&folder.journal()).await,
            JournalErrorKind::Corrupt,
            &["another application's SQLite file", "in_application_database"],
        );
        assert_eq!(std::fs::read(folder.journal()).unwrap(), before);
    }
}

#[tokio::test]
async fn a_later_version_is_named_and_left_as_it_is() {
    for sql in ["PRAGMA user_version = 2", "UPDATE idempotency_journal SET version = 2"] {
        let folder = Folder::new();
        drop(SqliteJournal::open(folder.journal()).await.unwrap());
        database(&folder.journal(), sql);
        says(
            &refused(&folder.journal()).await,
            JournalErrorKind::Corrupt,
            &["version 2", "up to version 1", "release"],
        );
    }
}

#[tokio::test]
async fn a_journal_that_lost_its_salt_is_refused() {
    let folder = Folder::new();
    drop(SqliteJournal::open(folder.journal()).await.unwrap());
    database(&folder.journal(), "DELETE FROM idempotency_journal");
    says(&refused(&folder.journal()).await, JournalErrorKind::Corrupt, &["salt", "backup"]);
}

#[tokio::test]
async fn a_database_locked_for_longer_than_the_timeout_is_an_error_and_the_journal_goes_on_after_it() {
    let folder = Folder::new();
    let builder = SqliteJournal::builder().busy_timeout(Duration::from_millis(20));
    let journal = builder.clone().open(folder.journal()).await.unwrap();
    let (_, lease) = begin(&journal, "order-41").await;

    let shell = rusqlite::Connection::open(folder.journal()).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = journal.begin(record("order-42"), LEASE).await.unwrap_err();
    says(&error, JournalErrorKind::Unavailable, &["orders.journal", "another process", "20ms", "raise the timeout"]);
    assert!(!error.may_be_saved(), "it never had the right to write");
    assert!(error.is_absent(), "that it was never begun can be read all the same");
    let error = journal.begin(record("order-41"), LEASE).await.unwrap_err();
    assert!(!error.is_absent(), "this one was begun, and sent, before");
    // Reading does not need it.
    assert_eq!(phase_of(&journal, "order-41").await, Some(Phase::Sending));
    let error = journal.acquire(lease.operation, LEASE).await.unwrap_err();
    says(&error, JournalErrorKind::Unavailable, &["another process"]);
    shell.execute_batch("ROLLBACK").unwrap();

    assert_eq!(phase_of(&journal, "order-42").await, None);
    begin(&journal, "order-42").await;
}

#[tokio::test]
async fn a_queue_that_another_process_does_not_leave_is_an_error() {
    let folder = Folder::new();
    let builder = SqliteJournal::builder().busy_timeout(Duration::from_millis(20));
    let journal = builder.clone().open(folder.journal()).await.unwrap();
    let turn = std::fs::File::open(beside(&folder.journal(), "-locks").join("turn")).unwrap();
    fs4::FileExt::lock(&turn).unwrap();
    let error = journal.begin(record("order-42"), LEASE).await.unwrap_err();
    says(&error, JournalErrorKind::Unavailable, &["another process"]);
    let error = builder.open(folder.journal()).await.unwrap_err();
    says(&error, JournalErrorKind::Unavailable, &["another process"]);
    fs4::FileExt::unlock(&turn).unwrap();
    begin(&journal, "order-42").await;
}

/// Who runs as root may write anywhere, so the child becomes someone else.
#[cfg(unix)]
fn as_nobody(file: &Path) -> Option<Player> {
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    let exe = std::env::current_exe().unwrap();
    let list = Command::new(&exe).arg("--list").uid(NOBODY).gid(NOBODY).output();
    if !list.is_ok_and(|list| list.status.success()) {
        println!("skipped: this user cannot become another one who may run {}", exe.display());
        return None;
    }
    Some(Player::start_with("may not write", file, |command| {
        command.uid(NOBODY).gid(NOBODY);
    }))
}

/// The child's part.
pub(super) async fn may_not_write(file: &Path) {
    match SqliteJournal::open(file).await {
        Ok(_) => say("answer", "opened"),
        Err(error) => say("answer", &format!("{:?} {error}", error.kind())),
    }
}

#[cfg(unix)]
#[tokio::test]
async fn j07_without_the_right_to_write_nothing_is_opened() {
    use std::os::unix::fs::PermissionsExt;
    // A folder that others may enter, but not write to, and in it a file that they may read.
    let folder = Folder::new();
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
    let Some(mut other) = as_nobody(&folder.journal()) else { return };
    let answer = other.hears("answer");
    assert!(answer.starts_with("Unavailable") && answer.contains("write access"), "{answer}");

    drop(SqliteJournal::open(folder.journal()).await.unwrap());
    std::fs::set_permissions(folder.journal(), PermissionsExt::from_mode(0o444)).unwrap();
    let Some(mut other) = as_nobody(&folder.journal()) else { return };
    let answer = other.hears("answer");
    assert!(answer.starts_with("Unavailable") && answer.contains("write access"), "{answer}");

    // The folder of locks is open to them, and only the file itself is not.
    let locks = beside(&folder.journal(), "-locks");
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&locks, PermissionsExt::from_mode(0o777)).unwrap();
    for file in std::fs::read_dir(&locks).unwrap() {
        std::fs::set_permissions(file.unwrap().path(), PermissionsExt::from_mode(0o666)).unwrap();
    }
    let Some(mut other) = as_nobody(&folder.journal()) else { return };
    let answer = other.hears("answer");
    assert!(answer.starts_with("Unavailable") && answer.contains("write access"), "{answer}");
}

/// The library that makes the disk fail, compiled with the compiler that SQLite was compiled with.
fn failing_disk(folder: &Folder) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/failing_disk.c");
    let library = folder.path("failing_disk.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]).status();
    assert!(compiled.unwrap().success());
    library
}

fn with_failing_disk(part: &str, folder: &Folder) -> Player {
    let library = failing_disk(folder);
    Player::start_with(part, &folder.journal(), |command| {
        command.env("LD_PRELOAD", library).env("FAILING_DISK", &folder.0);
    })
}

/// Faults, by the names that the library knows.
struct Faults(PathBuf);

impl Faults {
    fn begin(&self, fault: &str) {
        std::fs::write(self.0.join(fault), "").unwrap();
    }

    fn end(&self, fault: &str) {
        std::fs::remove_file(self.0.join(fault)).unwrap();
    }
}

/// The child's part: a disk that fails once, and then works again.
pub(super) async fn disk_fails(file: &Path) {
    let faults = Faults(file.parent().unwrap().to_owned());
    let journal = SqliteJournal::open(file).await.unwrap();
    for (fault, words) in
        [("flush-once", "the disk failed"), ("write-once", "the disk failed"), ("full-once", "make room")]
    {
        faults.begin(fault);
        let error = journal.begin(record(fault), LEASE).await.unwrap_err();
        says(&error, JournalErrorKind::Unavailable, &["orders.journal", words]);
        assert!(!error.may_be_saved(), "{fault}: it was looked for, and a later commit has written over it");
        assert!(error.is_absent(), "{fault}");
        assert_eq!(phase_of(&journal, fault).await, None, "{fault}");
        begin(&journal, &format!("after {fault}")).await;
    }

    // The flush fails, and so does the one with which SQLite would leave its log behind as it gives the file up. What was
    // read anew then has the operation, which nobody could know before.
    faults.begin("flush-twice");
    let error = journal.begin(record("flush-twice"), LEASE).await.unwrap_err();
    assert!(error.may_be_saved(), "it is there");
    assert_eq!(phase_of(&journal, "flush-twice").await, Some(Phase::Sending));
    let acquired = journal.acquire(id("flush-twice"), LEASE).await;
    assert!(is_taken(&acquired), "its caller was told an error, so nobody drives it: {acquired:?}");

    // One flush for many: each of them is told, and none is there.
    faults.begin("flush-once");
    let mut all = tokio::task::JoinSet::new();
    for number in 0..32 {
        let journal = journal.clone();
        all.spawn(async move { journal.begin(record(&format!("one of many {number}")), LEASE).await });
    }
    let mut told = 0;
    while let Some(begun) = all.join_next().await {
        if let Err(error) = begun.unwrap() {
            assert!(!error.may_be_saved());
            told += 1;
        }
    }
    let there = journal.pending(None, 100).await.unwrap().iter().filter(|id| id.as_str().starts_with("one")).count();
    assert!(told > 0);
    assert_eq!(there, 32 - told);

    // A closing that fails leaves the operation as it was; a late one does not even say so.
    let (begun, lease) = begin(&journal, "closing").await;
    faults.begin("flush-once");
    let rejected = closed(&begun, Phase::Rejected);
    let saved = journal.save(rejected.clone(), lease.clone(), AfterSave::ReleaseLease, Durability::Now).await;
    assert!(!saved.unwrap_err().may_be_saved());
    assert_eq!(phase_of(&journal, "closing").await, Some(Phase::Sending));
    faults.begin("write-once");
    journal.save(rejected.clone(), lease.clone(), AfterSave::ReleaseLease, Durability::Late).await.unwrap();
    assert_eq!(phase_of(&journal, "closing").await, Some(Phase::Sending));
    journal.save(rejected, lease, AfterSave::ReleaseLease, Durability::Now).await.unwrap();
    assert_eq!(phase_of(&journal, "closing").await, Some(Phase::Rejected));

    // Killed now: what was never there must not come to light when the log is read anew.
    faults.begin("flush-once");
    journal.begin(record("last"), LEASE).await.unwrap_err();
    say("done", "");
    super::child::wait_for_the_end();
}

#[tokio::test]
async fn j07_a_write_that_fails_once_is_told_and_is_not_there_even_after_a_kill() {
    let folder = Folder::new();
    let mut other = with_failing_disk("fails", &folder);
    other.hears("done");
    other.kill();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    for fault in ["flush-once", "write-once", "full-once", "last"] {
        assert_eq!(phase_of(&journal, fault).await, None, "{fault}");
    }
    assert_eq!(phase_of(&journal, "after flush-once").await, Some(Phase::Sending));
    assert_eq!(phase_of(&journal, "closing").await, Some(Phase::Rejected));
    begin(&journal, "last").await;
}

/// The child's part: a disk that goes on failing.
pub(super) async fn disk_fails_for_good(file: &Path) {
    let faults = Faults(file.parent().unwrap().to_owned());
    let journal = SqliteJournal::open(file).await.unwrap();
    let (begun, lease) = begin(&journal, "before").await;

    faults.begin("full");
    let error = journal.begin(record("full"), LEASE).await.unwrap_err();
    says(&error, JournalErrorKind::Unavailable, &["make room"]);
    assert!(!error.may_be_saved(), "the log lacks the last page of it");
    faults.end("full");
    assert_eq!(phase_of(&journal, "full").await, None);

    faults.begin("flush");
    for attempt in ["first", "second"] {
        let error = journal.begin(record(attempt), LEASE).await.unwrap_err();
        says(&error, JournalErrorKind::Unavailable, &["the disk failed"]);
        assert!(error.may_be_saved(), "{attempt}: no commit could show that it is not there");
    }
    let saved = journal
        .save(closed(&begun, Phase::NotSent), lease.clone(), AfterSave::ReleaseLease, Durability::Now)
        .await
        .unwrap_err();
    assert!(saved.may_be_saved());
    faults.end("flush");

    // It works again by itself.
    begin(&journal, "after").await;
    journal.save(closed(&begun, Phase::NotSent), lease, AfterSave::ReleaseLease, Durability::Now).await.unwrap();
    for attempt in ["first", "second"] {
        // There or not, it can be driven at once: nobody has it.
        match journal.begin(record(attempt), LEASE).await.unwrap() {
            Begun::New { .. } => {}
            Begun::Known(_) => assert!(is_taken(&journal.acquire(id(attempt), LEASE).await), "{attempt}"),
        }
    }
    say("done", "");
    super::child::wait_for_the_end();
}

#[tokio::test]
async fn j07_a_disk_that_goes_on_failing_leaves_what_was_written_unconfirmed_and_recovers() {
    let folder = Folder::new();
    let mut other = with_failing_disk("fails for good", &folder);
    other.hears("done");
    other.kill();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    for (operation, phase) in [("before", Phase::NotSent), ("after", Phase::Sending), ("first", Phase::Sending)] {
        assert_eq!(phase_of(&journal, operation).await, Some(phase), "{operation}");
    }
}

#[tokio::test]
async fn one_that_sqlite_refuses_does_not_take_its_group_with_it() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    database(
        &folder.journal(),
        "CREATE TRIGGER poison BEFORE INSERT ON idempotency_operation WHEN new.operation = 'poison'
         BEGIN SELECT RAISE(ROLLBACK, 'refused'); END",
    );
    let mut all = tokio::task::JoinSet::new();
    for number in 0..16 {
        let journal = journal.clone();
        let operation = if number == 8 { "poison".to_owned() } else { format!("order-{number}") };
        all.spawn(async move { (operation.clone(), journal.begin(record(&operation), LEASE).await) });
    }
    while let Some(begun) = all.join_next().await {
        let (operation, begun) = begun.unwrap();
        match begun {
            Ok(Begun::New { .. }) => assert_ne!(operation, "poison"),
            Ok(Begun::Known(_)) => panic!("{operation} is known"),
            Err(error) => {
                assert_eq!(operation, "poison", "{error}");
                assert!(!error.may_be_saved());
            }
        }
    }
    assert_eq!(journal.pending(None, 100).await.unwrap().len(), 15);
}

#[tokio::test]
async fn no_error_contains_the_key_or_the_salt() {
    let folder = Folder::new();
    let journal = SqliteJournal::open(folder.journal()).await.unwrap();
    database(&folder.journal(), "DROP TABLE idempotency_operation");
    let begun = record("order-42");
    let key = begun.key.as_str().to_owned();
    let error = journal.begin(begun, LEASE).await.unwrap_err();
    let mut chain = vec![format!("{error} {error:?}")];
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        chain.push(format!("{error} {error:?}"));
        source = error.source();
    }
    for text in chain {
        assert!(!text.contains(&key), "{text}");
    }
}
