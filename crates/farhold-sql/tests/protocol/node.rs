//! A server over a node of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_sql::engine::{Engine, EngineConfig};
use farhold_sql::server::{Server, ServerConfig, ServerHandle};
use farhold_txn::{Node, NodeConfig};

/// A running server; its files go with it.
pub struct Running {
    handle: Option<ServerHandle>,
    folder: PathBuf,
}

/// A server as it comes, on a free port.
pub fn server() -> Running {
    server_with(|_| {})
}

/// A server with other settings.
pub fn server_with(change: impl FnOnce(&mut ServerConfig)) -> Running {
    server_of(EngineConfig::default(), change)
}

/// A server with other settings, and an engine with others.
pub fn server_of(engine: EngineConfig, change: impl FnOnce(&mut ServerConfig)) -> Running {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("farhold-protocol-{}-{number}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let fabric = Fabric::join_shm(&folder, NodeId(0)).unwrap();
    let node = Node::open(fabric, NodeConfig { region_bytes: 64 << 20, ..NodeConfig::default() }).unwrap();
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).unwrap();
    let engine = executor.run(Engine::open(Arc::clone(&node), engine, &worker)).unwrap();
    drop(worker);
    let mut config =
        ServerConfig { listen: SocketAddr::from(([127, 0, 0, 1], 0)), front_end_threads: 2, ..ServerConfig::default() };
    change(&mut config);
    Running { handle: Some(Server::start(engine, &node, config).unwrap()), folder }
}

impl Running {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.as_ref().unwrap().local_addr()
    }

    /// Shuts it down.
    pub fn shutdown(mut self) {
        self.handle.take().unwrap().shutdown();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.handle.take());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
