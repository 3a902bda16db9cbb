//! How nodes find each other: each publishes one record.
//!
//! ```text
//!   farhold 1
//!   node 3
//!   incarnation 17
//!   pid 4711
//!   provider tcp;ofi_rxm
//!   name 0200b3a57f000001...            the home agent's libfabric address
//! ```
//!
//! - [`Rendezvous::Directory`]: in the file `node-003.address` of the cluster's directory. For one host.
//! - [`Rendezvous::Hosts`]: a client that connects to the node's bootstrap port receives the record, and the connection ends.
//!
//! A record is public: the agent that it leads to requires the [secret](super::Secret).

use super::Clock;
use super::frame::VERSION;
use crate::address::NodeId;
use crate::error::FabricError;
use crate::private;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const RECORD_BYTES_MAX: usize = 4096;
/// How long an answer of a bootstrap port may take.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How long the port pauses after it could not accept a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// How nodes find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// By files in the cluster's directory, which all nodes share: one host.
    Directory,
    /// By a port that each node listens on.
    Hosts {
        /// `host:port` that this node listens on; the host is also the local address of its libfabric endpoints.
        listen: String,
        /// Where the others listen.
        peers: Vec<(NodeId, String)>,
    },
}

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub version: u16,
    pub node: NodeId,
    pub incarnation: u64,
    pub pid: u32,
    pub provider: String,
    pub name: Vec<u8>,
}

impl Record {
    fn to_text(&self) -> String {
        let mut text = format!(
            "farhold {}\nnode {}\nincarnation {}\npid {}\nprovider {}\nname ",
            self.version, self.node.0, self.incarnation, self.pid, self.provider
        );
        for byte in &self.name {
            write!(text, "{byte:02x}").expect("a string");
        }
        text.push('\n');
        text
    }

    fn from_text(text: &str) -> Option<Self> {
        // A record that ends early is none.
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let version = lines.next()?.strip_prefix("farhold ")?.parse().ok()?;
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ');
        let record = Self {
            version,
            node: NodeId(value("node")?.parse().ok()?),
            incarnation: value("incarnation")?.parse().ok()?,
            pid: value("pid")?.parse().ok()?,
            provider: value("provider")?.to_owned(),
            name: bytes_of(value("name")?)?,
        };
        Some(record)
    }
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    let pairs = digits.chunks_exact(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    if digits.len().is_multiple_of(2) { pairs.collect() } else { None }
}

fn record_path(cluster: &Path, node: NodeId) -> PathBuf {
    cluster.join(format!("node-{:03}.address", node.0))
}

/// Publishes this node's record until dropped.
pub(super) struct Publication(Option<Published>);

enum Published {
    File(PathBuf),
    Port { stop: Arc<AtomicBool>, listener: Arc<TcpListener>, thread: Option<JoinHandle<()>> },
}

impl Publication {
    pub fn new(cluster: &Path, rendezvous: &Rendezvous, record: &Record) -> Result<Self, FabricError> {
        let published = match rendezvous {
            Rendezvous::Directory => {
                let path = record_path(cluster, record.node);
                let draft = path.with_extension(format!("draft-{}", record.pid));
                private::write(&draft, record.to_text().as_bytes())
                    .and_then(|()| std::fs::rename(&draft, &path))
                    .map_err(|error| FabricError::io("publish the node's address in", &path, &error))?;
                Published::File(path)
            }
            Rendezvous::Hosts { listen, .. } => {
                let failed = |error| FabricError::io("listen on", listen, &error);
                let listener = Arc::new(TcpListener::bind(listen).map_err(failed)?);
                let stop = Arc::new(AtomicBool::new(false));
                let (stopped, asked, text) = (stop.clone(), listener.clone(), record.to_text());
                let answer = move || {
                    answer(asked.incoming(), &stopped, &text, || std::thread::park_timeout(ACCEPT_PAUSE));
                };
                let thread = std::thread::Builder::new().name("farhold-bootstrap".into()).spawn(answer);
                Published::Port { stop, listener, thread: Some(thread.map_err(failed)?) }
            }
        };
        Ok(Self(Some(published)))
    }
}

/// Sends the text to each client, until told to stop. It calls `pause` when it could not accept a client.
fn answer(
    callers: impl Iterator<Item = std::io::Result<TcpStream>>,
    stop: &AtomicBool,
    text: &str,
    mut pause: impl FnMut(),
) {
    for caller in callers {
        if stop.load(Ordering::Acquire) {
            return;
        }
        match caller {
            // A client that does not take 200 bytes is not waited for.
            Ok(mut caller) => {
                let _ = caller.set_write_timeout(Some(ANSWER_MAX)).and_then(|()| caller.write_all(text.as_bytes()));
            }
            // Without a free descriptor, the next try fails as quickly.
            Err(_) => pause(),
        }
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Published::File(path)) => drop(std::fs::remove_file(path)),
            Some(Published::Port { stop, listener, mut thread }) => {
                stop.store(true, Ordering::Release);
                // Wakes it from its accept, also where the network is gone. SAFETY: an open socket; no memory is touched.
                unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
                drop(thread.take().map(JoinHandle::join));
            }
            None => {}
        }
    }
}

/// The record of a node.
///
/// # Errors
/// [`FabricError::NodeUnavailable`] if it has none now; [`FabricError::VersionMismatch`]; [`FabricError::BadFormat`].
pub(super) fn find(
    cluster: &Path,
    rendezvous: &Rendezvous,
    node: NodeId,
    timeout_ns: u64,
) -> Result<Record, FabricError> {
    let unavailable = FabricError::NodeUnavailable { node };
    let (text, place) = match rendezvous {
        Rendezvous::Directory => {
            let path = record_path(cluster, node);
            (std::fs::read_to_string(&path).map_err(|_| unavailable)?, path)
        }
        Rendezvous::Hosts { peers, .. } => {
            let at = peers.iter().find(|(peer, _)| *peer == node).map(|(_, at)| at).ok_or(unavailable.clone())?;
            (ask(at, Duration::from_nanos(timeout_ns).min(ANSWER_MAX)).ok_or(unavailable)?, PathBuf::from(at))
        }
    };
    let garbled = || FabricError::bad_format(&place, "it is no address of a node");
    // The first line stays as it is in every version.
    let first = text.lines().next().and_then(|line| line.strip_prefix("farhold ")).and_then(|it| it.parse().ok());
    let theirs = first.ok_or_else(garbled)?;
    if theirs != VERSION {
        return Err(FabricError::VersionMismatch { node, ours: VERSION, theirs });
    }
    Record::from_text(&text).filter(|record| record.node == node).ok_or_else(garbled)
}

/// The text of a bootstrap port, if all of it comes in that time.
fn ask(at: &str, timeout: Duration) -> Option<String> {
    let address = at.to_socket_addrs().ok()?.next()?;
    let clock = Clock::start();
    let mut stream = TcpStream::connect_timeout(&address, timeout).ok()?;
    let (mut text, mut part) = (Vec::new(), [0; 512]);
    while text.len() <= RECORD_BYTES_MAX {
        // A time-out of the stream is one of each read.
        let left = timeout.checked_sub(Duration::from_nanos(clock.now_ns())).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut part) {
            Ok(0) => return String::from_utf8(text).ok(),
            Ok(count) => text.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

/// Whether the process of a node on another host has ended, or not begun. Its host must say so: without an answer the node may
/// live. This assumes that the host itself refuses the connection, not a firewall in its place: the two cannot be told apart.
pub(super) fn has_ended(rendezvous: &Rendezvous, node: NodeId, timeout_ns: u64) -> bool {
    let Rendezvous::Hosts { peers, .. } = rendezvous else { return false };
    let at = peers.iter().find(|(peer, _)| *peer == node);
    let address = at.and_then(|(_, at)| at.to_socket_addrs().ok()?.next());
    let timeout = Duration::from_nanos(timeout_ns).min(ANSWER_MAX);
    address.is_some_and(|address| {
        TcpStream::connect_timeout(&address, timeout).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    })
}

/// The local address of libfabric endpoints.
pub(super) fn local_address(rendezvous: &Rendezvous) -> &str {
    match rendezvous {
        Rendezvous::Directory => "127.0.0.1",
        Rendezvous::Hosts { listen, .. } => {
            listen.rsplit_once(':').map_or(&**listen, |(host, _)| host.trim_matches(['[', ']']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_rubbish_does_not() {
        let record = Record {
            version: VERSION,
            node: NodeId(3),
            incarnation: 17,
            pid: 4711,
            provider: "tcp;ofi_rxm".into(),
            name: vec![2, 0, 0xb3, 0xff],
        };
        let text = record.to_text();
        assert_eq!(Record::from_text(&text), Some(record));
        for cut in 0..text.len() {
            assert_eq!(Record::from_text(&text[..cut]), None, "{cut}");
        }
        assert_eq!(bytes_of("0g"), None);
        assert_eq!(bytes_of("012"), None);
    }

    /// A port that sends a byte now and then blocks a caller no longer than a silent one.
    #[test]
    fn an_answer_has_one_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let slow = std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().unwrap();
            // 2 s in all, and no byte takes long.
            (0..100).try_for_each(|_| {
                std::thread::park_timeout(Duration::from_millis(20));
                caller.write_all(b"f")
            })
        });
        assert_eq!(ask(&at, Duration::from_millis(200)), None);
        drop(slow.join().unwrap());
    }

    /// A process without a free descriptor does not use a core on clients that it cannot accept.
    #[test]
    fn a_port_rests_when_it_can_take_nobody() {
        let failed = || Err(std::io::Error::from_raw_os_error(libc::EMFILE));
        let (stop, mut pauses) = (AtomicBool::new(false), 0);
        answer((0..5).map(|_| failed()), &stop, "", || pauses += 1);
        assert_eq!(pauses, 5);
    }
}
