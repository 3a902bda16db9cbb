//! Puts by message: a thread of the home node writes what others send it.
//!
//! ```text
//!  question  number │ key's number │ stamp │ length, then the value's bytes
//!  answer    number
//! ```

use super::{Cluster, HOME, KvError, VALUE_AT, fill, key_of, no_row};
use farhold_fabric::{Address, Endpoint, Executor, FabricError, Message};
use farhold_txn::{Retry, Table, Worker};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

const PORT: u16 = 4_000;
const HEADER: usize = 16;
/// How long an answer may take.
const TIMEOUT_NS: u64 = 5_000_000_000;
/// How long the server looks for the next message before it sleeps, and how long it sleeps before it checks whether to end.
const AWAKE_NS: u64 = 20_000;
const ASLEEP_NS: u64 = 2_000_000;

/// The side of the home node, with its worker and endpoint, on one thread.
pub(super) struct Server {
    executor: Executor,
    worker: Worker,
    endpoint: Endpoint,
    table: Table,
}

impl Server {
    pub fn new(cluster: &Cluster) -> Result<Self, KvError> {
        let executor = Executor::real(1);
        let node = &cluster.nodes[usize::from(HOME.0)];
        let worker = node.worker(&executor.handle())?;
        let endpoint = cluster.home.endpoint_at(&executor.handle(), PORT)?;
        Ok(Self { worker, endpoint, table: cluster.table(usize::from(HOME.0))?, executor })
    }

    /// Serves until it is told to stop.
    pub fn run(&self, stop: &AtomicBool) -> Result<(), KvError> {
        let mut message = Message::default();
        self.executor.run(async {
            while !stop.load(Ordering::Relaxed) {
                if !self.endpoint.try_recv_into(&mut message) {
                    // Awake while the work comes close together; then asleep until it comes again.
                    if !self.endpoint.arrival(AWAKE_NS).await {
                        let _ = self.endpoint.wait(ASLEEP_NS);
                    }
                    continue;
                }
                let word = |at: usize| u64::from_le_bytes(message.bytes[at..at + 8].try_into().expect("8 bytes"));
                let (number, key) = (word(0), key_of(word(8)));
                let value = &message.bytes[HEADER..];
                self.worker
                    .run(Retry::default(), async |txn| {
                        let row = txn.get(&self.table, &key).await?.ok_or_else(no_row)?;
                        txn.value_mut(row)[VALUE_AT..].copy_from_slice(value);
                        Ok(())
                    })
                    .await?;
                self.endpoint.send(message.from, &number.to_le_bytes())?;
            }
            Ok(())
        })
    }
}

/// The writer's side.
pub(super) struct Client<'e> {
    endpoint: &'e Endpoint,
    last: Cell<u64>,
}

impl<'e> Client<'e> {
    pub fn new(endpoint: &'e Endpoint) -> Self {
        Self { endpoint, last: Cell::new(0) }
    }

    /// Puts the value of this stamp; returns when it is written.
    pub async fn put(&self, key: u64, stamp: u64, value_bytes: usize) -> Result<(), KvError> {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut question = vec![0; HEADER + value_bytes];
        question[..8].copy_from_slice(&number.to_le_bytes());
        question[8..16].copy_from_slice(&key.to_le_bytes());
        fill(&mut question[HEADER..], stamp);
        let to = Address { node: HOME, port: PORT };
        while let Err(error) = self.endpoint.send(to, &question) {
            if !matches!(error, FabricError::QueueFull { .. }) {
                return Err(error.into());
            }
            self.endpoint.handle().yield_now().await;
        }
        loop {
            let answer = self.endpoint.recv_timeout(TIMEOUT_NS).await?;
            if answer.bytes == number.to_le_bytes() {
                return Ok(());
            }
        }
    }
}
