//! What a server is told at its start, and why it may not start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Tls, TlsError, Users, UsersError};

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// A folder to make a Unix socket in, `.s.PGSQL.<port>`, for clients of this machine: `psql -h <folder>`.
    pub unix_socket_dir: Option<PathBuf>,
    /// Certificate and key, if TLS is offered.
    pub tls: Option<Tls>,
    /// Who may connect.
    pub authentication: Authentication,
    /// Threads that serve connections. A point statement runs on them. With more threads than cores fewer connections share
    /// one, and the kernel brings each together with its client.
    pub front_end_threads: usize,
    /// Whether each of these threads is bound to a processor, in turns: fewer wake-ups from one processor to another, on a
    /// machine that the server has to itself.
    pub pin_front_ends: bool,
    /// What one client may use up.
    pub limits: Limits,
}

/// Who may connect.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Everybody, as anybody. Only on loopback.
    Trust,
    /// These users, each with a password (SCRAM-SHA-256).
    Passwords(Users),
}

/// What one client, and all together, may use up.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at one time; one more is refused with 53300.
    pub connections_max: usize,
    /// Bytes of one message.
    pub message_bytes_max: usize,
    /// Prepared statements of one connection, and portals.
    pub statements_max: usize,
    /// TCP connections whose client has not said and shown who it is; one more waits for a place. They count as connections, too.
    pub opening_max: usize,
    /// How long such a connection keeps its place while others wait for one.
    pub opening_patience: Duration,
    /// How long a client may take until its session stands.
    pub startup_timeout: Duration,
    /// How long a client may be silent outside of a transaction; `None` = for ever.
    pub idle_timeout: Option<Duration>,
    /// How long a shutdown waits for running statements before it cancels them.
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 5432)),
            unix_socket_dir: None,
            tls: None,
            authentication: Authentication::Trust,
            front_end_threads: 2 * std::thread::available_parallelism().map_or(4, std::num::NonZero::get),
            pin_front_ends: false,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1000,
            message_bytes_max: 256 << 20,
            statements_max: 10_000,
            opening_max: 100,
            opening_patience: Duration::from_secs(1),
            // PostgreSQL's `authentication_timeout`.
            startup_timeout: Duration::from_mins(1),
            idle_timeout: None,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Everybody could connect from other machines.
    #[error(
        "refusing to listen on {0} without passwords: every client that reaches that address could read and \
         change all rows; set a password file, or listen on 127.0.0.1"
    )]
    NoPassword(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// A thread or its runtime cannot be made.
    #[error("cannot start a front-end thread: {0}")]
    Thread(std::io::Error),
    /// A thread gets no access to the node.
    #[error("cannot open the node for a front-end thread: {0}")]
    Worker(String),
    /// The certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The users file cannot be used.
    #[error(transparent)]
    Users(#[from] UsersError),
}

impl ServerConfig {
    /// Whether it is safe to listen as configured.
    pub(super) fn check(&self) -> Result<(), ServerError> {
        match self.authentication {
            Authentication::Trust if !self.listen.ip().is_loopback() => Err(ServerError::NoPassword(self.listen)),
            _ => Ok(()),
        }
    }
}
