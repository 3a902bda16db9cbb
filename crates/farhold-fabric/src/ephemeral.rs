//! Directories for clusters that end with their process.
//!
//! A process makes one in shared memory and removes it at its end. A process that is killed leaves its directory, with all the
//! memory of its files. So a directory holds a file that its process keeps locked: the kernel releases the lock, whatever ended
//! the process, and shows this across PID namespaces. The next process of the same user that makes a directory beside it removes
//! those that are not locked.
//!
//! Never removed are: a directory of another user, or one that another user may write to, a link, a name that is not a process's,
//! and a directory without the file.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::FabricError;
use crate::private;

/// The environment variable with the directory below which they are made; the default is shared memory.
const DIRECTORY_VARIABLE: &str = "FARHOLD_SHM_DIR";

/// The file that is locked.
const OWNER: &str = "owner";
/// The prefix of their names; the process and a number follow.
const PREFIX: &str = "farhold-";
/// Directories of one process.
const ATTEMPTS_MAX: u32 = 1000;

/// A directory of this process's own, removed when dropped.
#[derive(Debug)]
pub struct Ephemeral {
    path: PathBuf,
    /// Locked as long as it is open.
    _owner: File,
}

impl Ephemeral {
    /// A new one below the directory that the environment names. The default is shared memory, or the temporary folder if there
    /// is none.
    ///
    /// # Errors
    /// [`FabricError::Io`].
    pub fn new() -> Result<Self, FabricError> {
        let shm = Path::new("/dev/shm");
        match std::env::var_os(DIRECTORY_VARIABLE) {
            Some(root) => Self::below(Path::new(&root)),
            None if shm.is_dir() => Self::below(shm),
            None => Self::below(&std::env::temp_dir()),
        }
    }

    fn below(root: &Path) -> Result<Self, FabricError> {
        remove_abandoned(root);
        let mut number = 0;
        loop {
            let path = root.join(format!("{PREFIX}{}-{number}", std::process::id()));
            let failed = |error| FabricError::io("make", &path, &error);
            match make(&path).map_err(failed)? {
                Some(owner) => return Ok(Self { path, _owner: owner }),
                None if number < ATTEMPTS_MAX => number += 1,
                None => return Err(failed(ErrorKind::AlreadyExists.into())),
            }
        }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the content of the directory. The directory stays this process's.
    ///
    /// # Errors
    /// The file system's.
    pub fn clear(&self) -> io::Result<()> {
        clear(&self.path)
    }
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        let _ = remove(&self.path); // nothing is lost: no other process knows the name
    }
}

/// Removes the directory of an ended process that this process had started.
///
/// # Errors
/// The file system's; it may be gone already.
pub fn remove(path: &Path) -> io::Result<()> {
    // The file that is locked goes last: without it the rest would stay for ever.
    clear(path)?;
    std::fs::remove_dir_all(path)
}

/// Makes a directory and locks its file; `None` if it exists already, or if another process meanwhile treated it as
/// abandoned.
fn make(path: &Path) -> io::Result<Option<File>> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    }
    let owner = match private::open(&path.join(OWNER), OpenOptions::new().write(true).create_new(true)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match owner.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
        // It may have been removed between its opening and the lock.
        Ok(()) => Ok((owner.metadata()?.nlink() > 0).then_some(owner)),
    }
}

/// Removes the directories below `root` that processes of this user have left.
fn remove_abandoned(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_name) {
            let _ = remove_if_abandoned(&entry.path()); // an abandoned directory harms no other
        }
    }
}

/// `farhold-PROCESS-NUMBER`.
fn is_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(PREFIX).and_then(|numbers| numbers.split_once('-'));
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

fn remove_if_abandoned(path: &Path) -> io::Result<()> {
    private::check_directory(path)?;
    // A directory without the file is about to get it, or was not made here.
    let owner = private::open(&path.join(OWNER), OpenOptions::new().write(true))?;
    if owner.try_lock().is_ok() { remove(path) } else { Ok(()) }
}

/// Removes all of a directory but the file that is locked.
fn clear(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == OWNER {
            continue;
        }
        let is_directory = entry.file_type()?.is_dir();
        let entry = entry.path();
        let removed = if is_directory { std::fs::remove_dir_all(entry) } else { std::fs::remove_file(entry) };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => {} // another process of the cluster does the same
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn what_a_dead_process_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let left = |name: &str, owner: bool| {
            let path = root.join(name);
            private::directory(&path.join("generation-1")).unwrap();
            private::write(&path.join("node-000"), b"rows").unwrap();
            if owner {
                private::write(&path.join(OWNER), b"").unwrap();
            }
            path
        };
        let living = Ephemeral::below(root).unwrap();
        private::write(&living.path().join("node-000"), b"rows").unwrap();
        let dead = left("farhold-1-0", true);
        let kept = [left("farhold-1-1", false), left("farhold-mine-0", true), left("farhold-1", true)];
        let link = root.join("farhold-2-0");
        std::os::unix::fs::symlink(&kept[1], &link).unwrap();
        let next = Ephemeral::below(root).unwrap();
        assert!(!dead.exists(), "its lock is free");
        assert!(kept.iter().chain([&link]).all(|path| path.join("node-000").exists()));
        assert!(living.path().join("node-000").exists(), "its lock is held");
        living.clear().unwrap();
        assert_eq!(std::fs::read_dir(living.path()).unwrap().count(), 1, "the file that is locked");
        let paths = [living.path().to_owned(), next.path().to_owned()];
        assert_ne!(paths[0], paths[1]);
        drop((living, next));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
