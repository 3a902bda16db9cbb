//! The server's configuration, and the errors of its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Tls, TlsError, Users, UsersError};

/// The server's configuration, fixed when it starts.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The address to listen on; port 0 picks a free port.
    pub listen: SocketAddr,
    /// The directory for a Unix socket, `.s.PGSQL.<port>`, for clients on this machine: `psql -h <folder>`.
    pub unix_socket_dir: Option<PathBuf>,
    /// Certificate and key, if TLS is offered.
    pub tls: Option<Tls>,
    /// How clients authenticate.
    pub authentication: Authentication,
    /// Threads that serve connections; point statements run on them. With more threads than cores, fewer connections
    /// share a thread, and the kernel places each thread near its client.
    pub front_end_threads: usize,
    /// Whether each of these threads is pinned to a processor, round robin. This saves wake-ups across processors, on a
    /// machine that only the server uses.
    pub pin_front_ends: bool,
    /// Limits for clients.
    pub limits: Limits,
}

/// How clients authenticate.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Any client may connect as any user. Allowed only on loopback.
    Trust,
    /// Only these users, each with a password (SCRAM-SHA-256).
    Passwords(Users),
}

/// Limits for each client and for all together.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Concurrent connections; any further one is refused with 53300.
    pub connections_max: usize,
    /// The size of one message in bytes.
    pub message_bytes_max: usize,
    /// Prepared statements per connection, and also portals per connection.
    pub statements_max: usize,
    /// TCP connections whose client has not authenticated yet; any further one waits. They also count as connections.
    pub opening_max: usize,
    /// The time after which such a connection may be displaced if others wait.
    pub opening_patience: Duration,
    /// The time limit for opening a session.
    pub startup_timeout: Duration,
    /// The time that a client may be idle outside of a transaction; `None` means no limit.
    pub idle_timeout: Option<Duration>,
    /// The time that a shutdown waits for running statements before it cancels them.
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

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Any client could connect from other machines.
    #[error(
        "refusing to listen on {0} without passwords: every client that reaches that address could read and \
         change all rows; set a password file, or listen on 127.0.0.1"
    )]
    NoPassword(SocketAddr),
    /// The server cannot listen on the address.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// A thread or its runtime cannot be started.
    #[error("cannot start a front-end thread: {0}")]
    Thread(std::io::Error),
    /// A thread cannot open the node.
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
    /// Checks that it is safe to listen as configured.
    pub(super) fn check(&self) -> Result<(), ServerError> {
        match self.authentication {
            Authentication::Trust if !self.listen.ip().is_loopback() => Err(ServerError::NoPassword(self.listen)),
            _ => Ok(()),
        }
    }
}
