//! A server on a node of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_sql::engine::{Engine, EngineConfig};
use farhold_sql::server::{Server, ServerConfig, ServerHandle};
use farhold_txn::{Node, NodeConfig};
use tempfile::TempDir;

/// A running server; its directory is removed after it.
pub struct Running {
    handle: ServerHandle,
    _folder: TempDir,
}

/// A server with default settings, on a free port.
pub fn server() -> Running {
    server_with(|_| {})
}

/// A server with changed settings.
pub fn server_with(change: impl FnOnce(&mut ServerConfig)) -> Running {
    server_of(EngineConfig::default(), change)
}

/// A server with changed settings of the server and of the engine.
pub fn server_of(engine: EngineConfig, change: impl FnOnce(&mut ServerConfig)) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let fabric = Fabric::join_shm(&folder, NodeId(0)).unwrap();
    let node = Node::open(fabric, NodeConfig { region_bytes: 64 << 20, ..NodeConfig::default() }).unwrap();
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).unwrap();
    let engine = executor.run(Engine::open(Arc::clone(&node), engine, &worker)).unwrap();
    drop(worker);
    let mut config =
        ServerConfig { listen: SocketAddr::from(([127, 0, 0, 1], 0)), front_end_threads: 2, ..ServerConfig::default() };
    change(&mut config);
    Running { handle: Server::start(engine, &node, config).unwrap(), _folder: folder }
}

impl Running {
    /// The address on which it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    /// Shuts it down.
    pub fn shutdown(self) {
        self.handle.shutdown();
    }
}
