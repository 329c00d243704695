//! The journal's file: how it is made, and on which file systems it is not.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::trouble::Subject;
use crate::journal::{JournalError, JournalErrorKind};

/// SQLite takes a file of fewer bytes for an empty one, and writes over it.
const SMALLEST: u64 = 512;

/// The absolute path, with links followed, of a file whose folder exists.
pub(super) fn resolve(path: &Path) -> io::Result<Arc<Path>> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.canonicalize()?,
                _ => PathBuf::from(".").canonicalize()?,
            };
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            Ok(folder.join(name).into())
        }
        resolved => resolved.map(Arc::from),
    }
}

/// Makes an empty file that only this user can read, if there is none. SQLite gives the files beside it the same mode.
///
/// A file that exists is never opened here: to close it would take SQLite's locks on it away, from every connection of
/// this process.
pub(super) fn make(subject: &Subject) -> Result<(), JournalError> {
    refuse_remains(subject)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(&subject.path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if subject.path.is_dir() {
                let message = format!("{} is a folder; name a file for the journal", subject.path.display());
                return Err(JournalError::new(JournalErrorKind::Unavailable, message));
            }
            match std::fs::metadata(&subject.path).map(|file| file.len()) {
                Ok(bytes @ 1..SMALLEST) => Err(JournalError::new(
                    JournalErrorKind::Corrupt,
                    format!(
                        "{} has {bytes} bytes, too few for an SQLite file, and was left as it is; name another file, or \
                         restore it from a backup",
                        subject.path.display()
                    ),
                )),
                _ => Ok(()),
            }
        }
        Err(error) => Err(subject.io("make the file", &subject.path, error)),
    }
}

/// A log with something in it, beside a file that is empty or gone, is what is left of a journal: begun anew, its pending
/// operations would get new keys.
fn refuse_remains(subject: &Subject) -> Result<(), JournalError> {
    let log = PathBuf::from([subject.path.as_os_str(), "-wal".as_ref()].join("".as_ref()));
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    if bytes(&subject.path) > 0 || bytes(&log) == 0 {
        return Ok(());
    }
    Err(JournalError::new(
        JournalErrorKind::Corrupt,
        format!(
            "{} is empty or gone, and its log {} is not: a journal has lost its file; restore it, or remove the log if \
             nothing in it is worth anything",
            subject.path.display(),
            log.display()
        ),
    ))
}

/// Refuses a file system that is shared over a network: the log's index is memory that all writers share, which there
/// can only be those of one host, and locks do not always reach the others.
pub(super) fn refuse_network(subject: &Subject) -> Result<(), JournalError> {
    let Some(name) = network_file_system(subject.path.parent().unwrap_or(&subject.path)) else { return Ok(()) };
    Err(JournalError::new(
        JournalErrorKind::Unavailable,
        format!(
            "{} is on a network file system ({name}), where SQLite's log and locks are not safe; name a file on a local \
             disk, use a journal for many machines, or say `allow_network_file_system` if only one host ever opens it",
            subject.path.display()
        ),
    ))
}

#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<&'static str> {
    // The magic is 32 bits; the field's width and sign differ from machine to machine.
    let [a, b, c, d, ..] = rustix::fs::statfs(folder).ok()?.f_type.to_le_bytes();
    name_of(u32::from_le_bytes([a, b, c, d]))
}

/// Elsewhere nothing is looked up.
#[cfg(not(target_os = "linux"))]
fn network_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// From statfs(2). FUSE is not among them: it carries local file systems, too.
#[cfg(any(target_os = "linux", test))]
fn name_of(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x0102_1997 => "9P",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "Ceph",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x1983_0326 => "BeeGFS",
        0x0000_564c => "NCP",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_magic_and_local_ones_are_not() {
        assert_eq!(name_of(0x6969), Some("NFS"));
        assert_eq!(name_of(0xfe53_4d42), Some("SMB2"));
        // ext4, XFS, btrfs, tmpfs, overlayfs, ZFS, FUSE.
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0x6573_5546] {
            assert_eq!(name_of(local), None, "{local:#x}");
        }
    }

    #[test]
    fn a_path_without_a_folder_is_in_the_current_one() {
        let resolved = resolve(Path::new("no-such-file.journal")).unwrap();
        assert!(resolved.is_absolute());
        assert!(resolved.ends_with("no-such-file.journal"));
    }
}
