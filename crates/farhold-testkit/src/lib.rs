//! What tests of several crates need from the machine, and how they say that it is not there.
//!
//! A test whose precondition is missing passes, because cargo has no third outcome. So that it does not pass silently,
//! [`skipped`] adds a line to the file that `FARHOLD_SKIPPED` names. `scripts/run-checks` prints these lines at its end.
//! A program that `scripts/install-deps test` installs must be there under CI ([`has_program`]).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

pub use tempfile::TempDir;

/// The environment variable with the file of what was skipped.
const LIST: &str = "FARHOLD_SKIPPED";

/// Notes that the calling test, or a part of it, does not run here, and why.
pub fn skipped(why: &str) {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    // The harness runs a test on a thread of its name.
    let thread = std::thread::current();
    let line = format!("{package}: {}: {why}\n", thread.name().unwrap_or_default());
    eprint!("SKIPPED: {line}");
    if let Some(list) = std::env::var_os(LIST) {
        // One write, so that the lines of several tests do not mix.
        let written = OpenOptions::new().create(true).append(true).open(list);
        let written = written.and_then(|mut list| list.write_all(line.as_bytes()));
        written.expect("the file of what was skipped can be written");
    }
}

/// Whether a program is installed that `scripts/install-deps test` installs. Without it the test is skipped, except under
/// CI, where it must be there.
pub fn has_program(name: &str) -> bool {
    let asked = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_found = asked.is_ok();
    assert!(is_found || std::env::var_os("CI").is_none(), "no {name} here: scripts/install-deps test");
    if !is_found {
        skipped(&format!("no {name} on this machine; scripts/install-deps test installs it"));
    }
    is_found
}

/// A directory in shared memory, where a cluster has its regions; below the system's temporary directory if there is no
/// `/dev/shm`. Removed when dropped.
pub fn memory_directory() -> TempDir {
    let shm = Path::new("/dev/shm");
    let root = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("farhold-").tempdir_in(root).expect("a directory")
}

/// A mounted tmpfs, which a test may fill; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts one with these options of `mount`, for example `size=8m`. `None`, noted as skipped, if mounting is not
    /// permitted: it takes root, and containers mostly forbid it.
    pub fn mount(options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", options, "farhold-test"]).arg(directory.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(directory));
        }
        skipped("mounting a small tmpfs is not permitted here (it takes root)");
        None
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The directory below which it is mounted, for helpers that take one.
    pub fn directory(&self) -> &TempDir {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).output();
    }
}
