//! Clients in clusters whose nodes die: each transaction is retried for a long time, whatever happens to the cluster.

use super::is_of_a_death;
use crate::cluster::is_expected;
use farhold_txn::{TxnError, Worker};
use std::cell::Cell;
use std::rc::Rc;

/// Attempts at one transaction: with the waits some tens of milliseconds, far longer than any recovery.
const ATTEMPTS: u32 = 600;

/// How a client has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has run all its transactions.
    Done,
    /// Its node is dead, or has been expelled.
    Gone,
    /// One of them does not get through.
    Stuck(String),
}

/// A client that runs transactions.
pub(crate) trait Persistent {
    /// One of them, the same for all its attempts.
    type Asked;

    fn name(&self) -> &str;
    fn worker(&self) -> &Worker;
    fn draw(&mut self) -> Self::Asked;
    async fn attempt(&mut self, asked: &Self::Asked) -> Result<(), TxnError>;

    /// May another attempt get past it?
    fn may_come_right(&self, error: &TxnError) -> bool {
        is_expected(error) || is_of_a_death(error)
    }

    /// A random number below `limit`.
    fn below(&mut self, limit: u64) -> u64;

    /// Something is wrong.
    fn broken(&mut self, what: String);
}

/// When a client began its current attempt, by its machine's clock; `None` between two attempts.
pub(crate) type Attempting = Rc<Cell<Option<u64>>>;

/// Runs a number of transactions, each until it commits.
pub(crate) async fn run_through(
    mut client: impl Persistent,
    transactions: usize,
    alive: Rc<Cell<bool>>,
    attempting: Attempting,
) -> Ended {
    let (node, handle) = (client.worker().node().clone(), client.worker().handle().clone());
    for _ in 0..transactions {
        let asked = client.draw();
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            if !alive.get() || node.is_expelled() {
                return Ended::Gone;
            }
            attempting.set(Some(handle.now_ns()));
            let outcome = client.attempt(&asked).await;
            attempting.set(None);
            match outcome {
                Ok(()) => {
                    last = None;
                    break;
                }
                Err(error) if client.may_come_right(&error) => {
                    last = Some(error);
                    let wait_ns = client.below(2_000 << attempt.min(6));
                    handle.sleep_ns(wait_ns).await;
                }
                Err(error) => {
                    let what = format!("{} at {} µs: {error}", client.name(), handle.now_ns() / 1_000);
                    client.broken(what);
                    return Ended::Done;
                }
            }
        }
        if let Some(error) = last {
            return Ended::Stuck(format!("{}: {error}", client.name()));
        }
    }
    Ended::Done
}
