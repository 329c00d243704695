//! File locks beside the journal: the queue of its writers, and the owners that are alive.
//!
//! SQLite's own locks let a waiting process starve: whoever has just committed is the first to ask again, while the others
//! sleep. So writers queue here first, at a turnstile of two locks. Who waits for the `turn` holds the `queue`, so when the
//! turn is given back it can go to nobody else.
//!
//! Every open handle is an owner: it keeps a lock on a file of its own for its life. The operating system drops that
//! lock with the process, however it ends. So a lease whose owner's file is there and unlocked belongs to the dead.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs4::{FileExt, TryLockError};
use rand::TryRng as _;
use rand::rngs::SysRng;

use super::trouble::Subject;
use crate::journal::{JournalError, JournalErrorKind};

/// The locks of one open handle.
#[derive(Debug)]
pub(super) struct Locks {
    folder: PathBuf,
    queue: File,
    turn: File,
    owner: String,
    /// Locked until it is dropped.
    _owner_file: File,
}

/// The right to write now. Dropping it lets the next process write.
pub(super) struct Turn<'a>(&'a File);

/// What is known of the owner of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Its process holds its lock.
    Alive,
    /// Its process is gone.
    Dead,
    /// Its file is not there: perhaps the journal was copied without its locks. Only the lease's end tells.
    Unknown,
}

/// How long a writer sleeps between two looks at a lock that another process has. Waiting in the system call itself
/// could not end at the busy timeout.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

impl Locks {
    /// Takes a lock of its own in the folder beside the journal, which it makes if need be.
    pub(super) fn open(subject: &Subject) -> Result<Self, JournalError> {
        let mut folder = subject.path.as_os_str().to_owned();
        folder.push("-locks");
        let folder = PathBuf::from(folder);
        make_folder(&folder).map_err(|error| subject.io("make the folder", &folder, error))?;
        let open = |name: &str| {
            let path = folder.join(name);
            open_file(&path).map_err(|error| subject.io("open", &path, error))
        };
        let (queue, turn) = (open("queue")?, open("turn")?);
        // The name is random, so only a sweeper in passing can be in the way; it is gone at the next try.
        for _ in 0..100 {
            let mut id = [0_u8; 8];
            SysRng.try_fill_bytes(&mut id).map_err(|error| {
                let message = format!("no randomness for the journal's owner id: {error}; nothing was opened");
                JournalError::new(JournalErrorKind::Unavailable, message)
            })?;
            let owner = format!("{:016x}", u64::from_be_bytes(id));
            let path = folder.join(&owner);
            let file = open_file(&path).map_err(|error| subject.io("open", &path, error))?;
            // Named in full: since Rust 1.89 a file has a method of that name itself.
            match FileExt::try_lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(subject.io("lock", &path, error)),
            }
            // A sweeper may have removed the name before the lock was taken; nobody would find the lock then.
            if is_still(&file, &path) {
                return Ok(Self { folder, queue, turn, owner, _owner_file: file });
            }
        }
        let message =
            format!("no lock of its own could be had in {}; is something else locking there?", folder.display());
        Err(JournalError::new(JournalErrorKind::Unavailable, message))
    }

    /// The name under which this handle takes leases.
    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// Queues for the right to write; `None` if that takes longer than `limit`.
    pub(super) fn turn(&self, limit: Duration) -> io::Result<Option<Turn<'_>>> {
        let mut waited = Duration::ZERO;
        if !wait_for(&self.queue, &mut waited, limit)? {
            return Ok(None);
        }
        let got = wait_for(&self.turn, &mut waited, limit);
        FileExt::unlock(&self.queue)?;
        Ok(got?.then_some(Turn(&self.turn)))
    }

    /// Whether the owner of a lease is alive.
    pub(super) fn state(&self, owner: &str) -> Owner {
        if owner == self.owner {
            return Owner::Alive;
        }
        // The name comes out of the file, so it may be anything; only a name of ours is looked up.
        if !is_owner(owner) {
            return Owner::Unknown;
        }
        let Ok(file) = File::open(self.folder.join(owner)) else { return Owner::Unknown };
        // Shared, so that two who look at the same time do not take each other for the owner.
        match FileExt::try_lock_shared(&file) {
            Ok(()) => Owner::Dead,
            Err(TryLockError::WouldBlock) => Owner::Alive,
            Err(TryLockError::Error(_)) => Owner::Unknown,
        }
    }

    /// Removes the files of dead owners to whom, by `owns`, no lease refers any more.
    pub(super) fn sweep<E>(&self, mut owns: impl FnMut(&str) -> Result<bool, E>) -> Result<(), E> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| is_owner(name) && **name != *self.owner) else { continue };
            let Ok(file) = File::open(entry.path()) else { continue };
            // The lock is held while the name is removed, so that no new owner can take the file in between.
            if FileExt::try_lock(&file).is_ok() && !owns(name)? {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // It cannot fail on a file that is open and locked; if it did, the lock would end with the process.
        let _ = FileExt::unlock(self.0);
    }
}

fn is_owner(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[expect(clippy::disallowed_methods, reason = "the writer's own thread waits for another process")]
fn wait_for(file: &File, waited: &mut Duration, limit: Duration) -> io::Result<bool> {
    loop {
        match FileExt::try_lock(file) {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if *waited >= limit => return Ok(false),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(LOOK_AGAIN);
                *waited = waited.saturating_add(LOOK_AGAIN);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Elsewhere an open file's name cannot be removed.
#[cfg(not(unix))]
fn is_still(_: &File, path: &Path) -> bool {
    path.exists()
}
