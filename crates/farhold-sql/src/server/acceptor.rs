//! Starts and stops the server: opens the listening sockets, and assigns each connection to a front-end thread.
//!
//! One thread accepts all connections and passes each socket to the front end with the fewest connections. Sharing a
//! port between the threads (`SO_REUSEPORT`) would avoid the hand-over, but the kernel distributes by hash: eight
//! clients on four threads may be spread as 4-2-2-0, and the fullest thread determines the latency.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::Node;
use tokio::sync::{mpsc, watch};

use super::auth::random;
use super::cancel::CancelRegistry;
use super::config::{ServerConfig, ServerError};
use super::front_end;
use super::openings::{Opening, Openings};
use crate::engine::Engine;

/// The pause after a failed accept: out of file descriptors, or a connection lost before it was accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// The state shared by the threads of a server.
pub struct Shared {
    /// Opens sessions.
    pub engine: Arc<Engine>,
    /// The server's configuration.
    pub config: ServerConfig,
    /// The sessions that can be cancelled.
    pub cancel: Arc<CancelRegistry>,
    /// The number of connections of all threads.
    pub connections: AtomicUsize,
    /// The TCP connections whose client has not authenticated yet.
    pub openings: Arc<Openings>,
    /// The key of the salts that are sent to unknown users.
    pub secret: [u8; 32],
}

/// An accepted connection that is passed to a front end.
pub struct Arrival {
    /// Its socket.
    pub socket: Accepted,
    /// Held until the connection ends.
    pub place: Place,
    /// Held until its client has authenticated. `None` for a Unix socket, whose directory controls access.
    pub opening: Option<Opening>,
}

/// A socket.
pub enum Accepted {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixStream),
}

/// A connection counted for its thread and for the server; dropping it uncounts the connection.
pub struct Place {
    thread: Arc<AtomicUsize>,
    shared: Arc<Shared>,
}

impl Place {
    /// Whether the server has more connections than allowed.
    pub fn is_above_limit(&self) -> bool {
        self.shared.connections.load(Ordering::Relaxed) > self.shared.config.limits.connections_max
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.thread.fetch_sub(1, Ordering::Relaxed);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A server for PostgreSQL clients.
#[derive(Debug)]
pub struct Server;

/// A running server. Dropping it shuts the server down and waits for it.
pub struct ServerHandle {
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    unix_socket: Option<PathBuf>,
}

struct FrontEnd {
    arrivals: mpsc::UnboundedSender<Arrival>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Listens and serves on its own threads, until the handle is shut down or dropped.
    ///
    /// # Errors
    /// The address is in use, or reachable from other machines without passwords; a thread cannot be started.
    pub fn start(engine: Arc<Engine>, node: &Arc<Node>, config: ServerConfig) -> Result<ServerHandle, ServerError> {
        config.check()?;
        let listen_error = |error| ServerError::Listen(config.listen.to_string(), error);
        let tcp = TcpListener::bind(config.listen).map_err(listen_error)?;
        tcp.set_nonblocking(true).map_err(listen_error)?;
        let local_addr = tcp.local_addr().map_err(listen_error)?;
        let unix_socket =
            config.unix_socket_dir.as_ref().map(|folder| folder.join(format!(".s.PGSQL.{}", local_addr.port())));
        let unix = unix_socket.as_ref().map(listen_unix).transpose()?;

        let limits = &config.limits;
        let openings = Arc::new(Openings::new(limits.opening_max, limits.opening_patience));
        let shared = Arc::new(Shared {
            engine,
            cancel: Arc::new(CancelRegistry::default()),
            connections: AtomicUsize::new(0),
            openings,
            secret: random(),
            config,
        });
        let (stop, stopped) = watch::channel(false);
        let mut handle = ServerHandle { local_addr, stop, threads: Vec::new(), unix_socket };
        let mut front_ends = Vec::new();
        for index in 0..shared.config.front_end_threads.clamp(1, node.writers_max()) {
            let (arrivals, incoming) = mpsc::unbounded_channel();
            handle.threads.push(front_end::start(index, &shared, node, incoming, stopped.clone())?);
            front_ends.push(FrontEnd { arrivals, connections: Arc::new(AtomicUsize::new(0)) });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(ServerError::Thread)?;
        let acceptor = std::thread::Builder::new()
            .name("farhold-accept".to_owned())
            .spawn(move || runtime.block_on(accept(tcp, unix, &front_ends, &shared, stopped)))
            .map_err(ServerError::Thread)?;
        handle.threads.push(acceptor);
        Ok(handle)
    }
}

fn listen_unix(path: &PathBuf) -> Result<UnixListener, ServerError> {
    let error = |error| ServerError::Listen(path.display().to_string(), error);
    // A socket file without a listener would block a restart and is removed; one with a listener belongs to another
    // server.
    if std::os::unix::net::UnixStream::connect(path).is_err() && path.exists() {
        std::fs::remove_file(path).map_err(error)?;
    }
    let listener = UnixListener::bind(path).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    Ok(listener)
}

/// Accepts connections until the server stops.
async fn accept(
    tcp: TcpListener,
    unix: Option<UnixListener>,
    front_ends: &[FrontEnd],
    shared: &Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    tokio::select! {
        _ = stopped.wait_for(|stopped| *stopped) => {}
        () = accept_tcp(tcp, front_ends, shared) => {}
        () = accept_unix(unix, front_ends, shared) => {}
    }
}

async fn accept_tcp(listener: TcpListener, front_ends: &[FrontEnd], shared: &Arc<Shared>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking");
    loop {
        let accepted = listener.accept().await.and_then(|(socket, _)| {
            socket.set_nodelay(true)?;
            socket.into_std().map(Accepted::Tcp)
        });
        match accepted {
            Ok(socket) => hand_over(socket, Some(shared.openings.begin().await), front_ends, shared),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn accept_unix(listener: Option<UnixListener>, front_ends: &[FrontEnd], shared: &Arc<Shared>) {
    let Some(listener) = listener else { return std::future::pending().await };
    let listener = tokio::net::UnixListener::from_std(listener).expect("the listener is non-blocking");
    loop {
        let accepted = listener.accept().await.and_then(|(socket, _)| socket.into_std().map(Accepted::Unix));
        match accepted {
            Ok(socket) => hand_over(socket, None, front_ends, shared),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn hand_over(socket: Accepted, opening: Option<Opening>, front_ends: &[FrontEnd], shared: &Arc<Shared>) {
    let fewest = front_ends.iter().min_by_key(|front_end| front_end.connections.load(Ordering::Relaxed));
    let front_end = fewest.expect("at least one front end");
    front_end.connections.fetch_add(1, Ordering::Relaxed);
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let place = Place { thread: Arc::clone(&front_end.connections), shared: Arc::clone(shared) };
    // A front end that has stopped drops the socket, and the client sees the connection closed.
    let _ = front_end.arrivals.send(Arrival { socket, place, opening });
}

impl ServerHandle {
    /// The address on which the server listens, with its actual port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops the server: refuses new connections, lets running statements finish within the grace period, notifies
    /// every client (57P01), and returns when the last connection is closed.
    pub fn shutdown(mut self) {
        self.stop_and_wait();
    }

    fn stop_and_wait(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic of a front end has already been printed.
            let _ = thread.join();
        }
        if let Some(path) = self.unix_socket.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop_and_wait();
    }
}
