//! Terminals: each runs one transaction after the other until it is told to stop.

use super::Tables;
use super::input::{Inputs, Kind};
use super::procedure;
use crate::measure::Counter;
use crate::random::Random;
use farhold_fabric::latencies::{Latencies, LatencyRecorder};
use farhold_txn::{Retry, TxnError, Worker};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// Transactions between two that are timed: reading the clock twice costs a tenth of one.
const TIMED_EVERY: u32 = 16;
/// The waits between the attempts at one transaction.
const RETRY: Retry = Retry { attempts_max: 10_000, backoff_ns: 500, backoff_ns_max: 64_000 };

/// Counters of one worker, shared with the threads that show them.
#[derive(Debug, Default)]
pub struct Counters {
    commits: [Counter; 6],
    refused: Counter,
    conflicts: Counter,
    /// Cents that committed transactions have brought into the bank.
    added: AtomicI64,
    latency: LatencyRecorder,
}

/// Counts of workers, summed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Committed, in the order of [`Kind::ALL`].
    pub commits: [u64; 6],
    /// Refused because of too little money: they have read and written nothing.
    pub refused: u64,
    /// Attempts that conflicted with another transaction.
    pub conflicts: u64,
    /// Cents that committed transactions have brought into the bank.
    pub added: i64,
    /// Latencies of one in sixteen transactions, conflicts and waits included.
    pub latency: Latencies,
}

impl Totals {
    /// Sums up.
    pub fn of<'a>(counters: impl IntoIterator<Item = &'a Counters>) -> Self {
        let mut sum = Self::default();
        for one in counters {
            sum.commits.iter_mut().zip(&one.commits).for_each(|(sum, count)| *sum += count.get());
            sum.refused += one.refused.get();
            sum.conflicts += one.conflicts.get();
            sum.added += one.added.load(Relaxed);
            sum.latency.add(&one.latency.latencies());
        }
        sum
    }

    /// All that committed.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.commits.iter().sum()
    }
}

/// Runs one terminal until `stop` is set, and serves the node's inbox meanwhile.
///
/// # Errors
/// The first error that is not a conflict.
pub async fn run(
    worker: &Worker,
    tables: &Tables,
    inputs: &Inputs,
    mut random: Random,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<(), TxnError> {
    let handle = worker.handle().clone();
    let mut count = 0_u32;
    while !stop.load(Relaxed) {
        let input = inputs.draw(&mut random);
        let began_ns = if count.is_multiple_of(TIMED_EVERY) { handle.now_ns() } else { 0 };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut txn = if input.kind == Kind::Balance { worker.begin_read_only() } else { worker.begin() };
            let done = match procedure::run(&mut txn, tables, &input).await {
                Ok(effect) if effect.refused => {
                    txn.abort();
                    counters.refused.increment();
                    break;
                }
                Ok(effect) => txn.commit().await.map(|_| effect),
                // The error of the commit, if the commit refuses what was read.
                Err(error) if error == procedure::MISSING => txn.commit().await.and(Err(error)),
                Err(error) => Err(error),
            };
            match done {
                Ok(effect) => {
                    counters.commits[input.kind as usize].increment();
                    counters.added.store(counters.added.load(Relaxed) + effect.added(), Relaxed);
                    break;
                }
                Err(error) if error.is_retryable() && attempt < RETRY.attempts_max => {
                    counters.conflicts.increment();
                    worker.poll();
                    worker.back_off(RETRY, attempt).await;
                }
                Err(error) => return Err(error),
            }
        }
        if began_ns != 0 {
            counters.latency.record(handle.now_ns() - began_ns);
        }
        count = count.wrapping_add(1);
        worker.poll();
        handle.yield_now().await;
    }
    Ok(())
}
