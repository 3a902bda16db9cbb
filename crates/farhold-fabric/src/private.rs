//! Files and directories that belong to one user alone.
//!
//! Rows, journals and secrets lie in files. Another user of the host must not read them or lock them. Nor must that user redirect
//! a write of this process, by planting a link at one of its names.
//!
//! - A directory is made with mode 0700. An existing one must be a directory, not a link to one, and must belong to this
//!   process's user, and only that user may write to it. Its mode stays as it is, so that a path given by mistake is not changed;
//!   the files in it are closed to others by their own mode.
//! - A file is made with mode 0600 and opened without following a link at its name. It must be a regular file of this
//!   process's user. Rights of others, which earlier versions gave, are taken away.
//!
//! Not checked are the directories above. If another user may rename one of those, that user can make a path lead elsewhere.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Rights of other users than the owner, and their right to write.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// Makes a directory for this user alone, with missing directories above it, or checks the existing one.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if it is not this user's alone to change; the file system's.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    check_directory(path)
}

/// Checks that a directory is this user's alone to change.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if not; the file system's.
pub fn check_directory(path: &Path) -> io::Result<()> {
    // Without a trailing slash, because that would follow a link.
    let path: PathBuf = path.components().collect();
    let found = std::fs::symlink_metadata(&path)?;
    if !found.is_dir() {
        return Err(refused("it is a link or no directory; name the directory itself"));
    }
    check_owner(&found)?;
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(refused("other users may write to it; take that right away (chmod go-w) or use another directory"));
    }
    Ok(())
}

/// Opens a file of this user, or makes it with mode 0600 if `options` say so.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] for a link, a file that is not regular, or another user's file; the file system's errors.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // O_NONBLOCK: a planted pipe must be refused, not waited for. It has no effect on regular files.
    let opened = options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a link, which is not followed"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("it is no regular file"));
    }
    check_owner(&found)?;
    if found.mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Makes a file of these bytes, or replaces the content of an existing one.
///
/// # Errors
/// As [`open`].
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Emptied after the check, not by the opening.
    let mut file = open(path, OpenOptions::new().write(true).create(true).truncate(false))?;
    file.set_len(0)?;
    file.write_all(bytes)
}

/// Checks that a secret belongs to this user, and that other users can neither read nor change it.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if not.
pub fn check_secret(found: &Metadata) -> io::Result<()> {
    check_owner(found)?;
    if found.mode() & OTHERS == 0 { Ok(()) } else { Err(refused("other users may read or write it; chmod it to 600")) }
}

fn check_owner(found: &Metadata) -> io::Result<()> {
    // SAFETY: the call takes nothing and touches no memory.
    let user = unsafe { libc::geteuid() };
    if found.uid() == user {
        return Ok(());
    }
    Err(io::Error::new(
        ErrorKind::PermissionDenied,
        format!("it belongs to user {}, and this process to user {user}", found.uid()),
    ))
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    fn is_refused<T>(result: io::Result<T>, word: &str) {
        let error = result.err().expect("a refusal");
        assert!(error.kind() == ErrorKind::PermissionDenied && error.to_string().contains(word), "{error}");
    }

    /// A path that belongs to another user: root can give one away, others find root's.
    fn of_another(dir: &Path) -> PathBuf {
        let path = dir.join("theirs");
        std::fs::create_dir(&path).unwrap();
        if chown(&path, Some(65534), None).is_ok() { path } else { PathBuf::from("/usr") }
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_directory_is_ours_alone_or_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        directory(&dir.join("a/b")).unwrap();
        assert_eq!((mode(&dir.join("a")), mode(&dir.join("a/b"))), (0o700, 0o700));
        let link = dir.join("link");
        symlink(dir.join("a"), &link).unwrap();
        is_refused(directory(&link), "link");
        is_refused(directory(&dir.join("link/")), "link");
        is_refused(directory(&of_another(dir)), "belongs to user");
        for (mode_before, is_good) in [(0o755, true), (0o775, false), (0o1777, false), (0o702, false)] {
            std::fs::set_permissions(dir.join("a"), Permissions::from_mode(mode_before)).unwrap();
            let checked = directory(&dir.join("a"));
            assert_eq!(checked.is_ok(), is_good, "{mode_before:o}: {checked:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_file_is_ours_alone_and_no_link() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let path = dir.join("rows");
        write(&path, b"long content").unwrap();
        write(&path, b"short").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), mode(&path)), (b"short".to_vec(), 0o600));
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open(&path, OpenOptions::new().read(true)).unwrap();
        assert_eq!(mode(&path), 0o600, "as earlier versions left it");
        let link = dir.join("link");
        symlink(&path, &link).unwrap();
        is_refused(write(&link, b"overwritten"), "link");
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
        is_refused(open(dir, OpenOptions::new().read(true)), "no regular file");
        let theirs = of_another(dir).join("file");
        if std::fs::write(&theirs, b"bait").is_ok() {
            chown(&theirs, Some(65534), None).unwrap();
            is_refused(write(&theirs, b"secret"), "belongs to user");
            assert_eq!(std::fs::read(&theirs).unwrap(), b"bait");
        }
    }
}
