//! Terminals: each runs one transaction after the other, as drawn from its deck, until it is told to stop.
//!
//! A closed loop without keying and thinking times. A terminal serves all warehouses of its worker, drawing one for each
//! transaction. A transaction that conflicts with another one is run again, with a random and growing wait; its latency counts
//! from its first start.

use super::input::{Deck, Inputs, Kind, Shares};
use super::procedure::{self, Scratch};
use super::tables::Tables;
use super::{DISTRICTS, Scale};
use crate::measure::Counter;
use crate::random::Random;
use farhold_fabric::Handle;
use farhold_fabric::latencies::{Latencies, LatencyRecorder};
use farhold_txn::{Txn, TxnError, Worker};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A worker's part of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The database's size.
    pub scale: Scale,
    /// Shares of remote access.
    pub shares: Shares,
    /// The seed that the database was populated with.
    pub load_seed: u64,
    /// The run's seed. With one transaction in flight on one worker, it determines every input and their order.
    pub seed: u64,
    /// This worker's number among all workers of all nodes, from 0; below 1024.
    pub worker: u32,
    /// The warehouses whose terminals this worker runs.
    pub warehouses: Vec<i32>,
    /// Terminals, each with one transaction in flight.
    pub in_flight: u16,
    /// Microseconds since 1970 at which the executor's clock was zero.
    pub clock_start_us: i64,
    /// Go on when another node does not answer: the transaction counts as [unavailable](Totals::unavailable).
    pub survives: bool,
}

/// What terminals do between attempts.
const ATTEMPTS_MAX: u32 = 1000;
const BACKOFF_NS: u64 = 1_000;
const BACKOFF_NS_MAX: u64 = 256_000;
/// The longest wait of a terminal while a node is being replaced, before it goes on with another transaction.
const UNAVAILABLE_NS_MAX: u64 = 100_000;

/// Counters of one transaction type on one worker.
#[derive(Debug, Default)]
pub struct KindCounters {
    commits: Counter,
    conflicts: Counter,
    rollbacks: Counter,
    given_up: Counter,
    latency: LatencyRecorder,
}

/// Counters of one worker, shared with the threads that show them.
#[derive(Debug, Default)]
pub struct Counters {
    kinds: [KindCounters; 5],
    districts_skipped: Counter,
    unavailable: LatencyRecorder,
}

/// Counts of one transaction type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindTotals {
    /// Committed.
    pub commits: u64,
    /// Attempts that conflicted with another transaction.
    pub conflicts: u64,
    /// Rolled back as the specification asks, one new-order in a hundred.
    pub rollbacks: u64,
    /// Transactions abandoned after a thousand conflicts.
    pub given_up: u64,
    /// Latencies of commits and rollbacks, conflicts and waits included.
    pub latency: Latencies,
}

/// Counts of a span of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// By type, in the order of [`Kind::ALL`].
    pub kinds: [KindTotals; 5],
    /// Districts that a delivery found without an undelivered order (clause 2.7.4.2).
    pub districts_skipped: u64,
    /// Latencies of transactions that ended because a node did not answer, or was being replaced.
    pub unavailable: Latencies,
}

impl Counters {
    /// What was counted so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let kind = |k: &KindCounters| KindTotals {
            commits: k.commits.get(),
            conflicts: k.conflicts.get(),
            rollbacks: k.rollbacks.get(),
            given_up: k.given_up.get(),
            latency: k.latency.latencies(),
        };
        Totals {
            kinds: self.kinds.each_ref().map(kind),
            districts_skipped: self.districts_skipped.get(),
            unavailable: self.unavailable.latencies(),
        }
    }
}

impl Totals {
    /// Counts of several workers, summed.
    pub fn of<'a>(counters: impl IntoIterator<Item = &'a Counters>) -> Self {
        let mut sum = Self::default();
        counters.into_iter().for_each(|c| sum.add(&c.totals()));
        sum
    }

    /// Adds.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.kinds.iter_mut().zip(&other.kinds) {
            a.commits += b.commits;
            a.conflicts += b.conflicts;
            a.rollbacks += b.rollbacks;
            a.given_up += b.given_up;
            a.latency.add(&b.latency);
        }
        self.districts_skipped += other.districts_skipped;
        self.unavailable.add(&other.unavailable);
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut kinds = self.kinds.clone();
        for (a, b) in kinds.iter_mut().zip(&earlier.kinds) {
            a.commits -= b.commits;
            a.conflicts -= b.conflicts;
            a.rollbacks -= b.rollbacks;
            a.given_up -= b.given_up;
            a.latency = a.latency.since(&b.latency);
        }
        let districts_skipped = self.districts_skipped - earlier.districts_skipped;
        Self { kinds, districts_skipped, unavailable: self.unavailable.since(&earlier.unavailable) }
    }

    /// Committed transactions of all types.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.kinds.iter().map(|k| k.commits).sum()
    }

    /// Committed new-orders. Per minute this would be tpmC, if the terminals had thinking and keying times.
    #[must_use]
    pub fn new_orders(&self) -> u64 {
        self.kinds[Kind::NewOrder as usize].commits
    }

    /// Attempts of all types that conflicted with another transaction.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.kinds.iter().map(|k| k.conflicts).sum()
    }

    /// New-orders rolled back as specified.
    #[must_use]
    pub fn rollbacks(&self) -> u64 {
        self.kinds.iter().map(|k| k.rollbacks).sum()
    }

    /// Conflicts per attempt.
    #[must_use]
    pub fn abort_rate(&self) -> f64 {
        let attempts = self.commits() + self.rollbacks() + self.conflicts();
        self.conflicts() as f64 / attempts.max(1) as f64
    }

    /// Latencies of all types.
    #[must_use]
    pub fn latency(&self) -> Latencies {
        let mut sum = Latencies::default();
        self.kinds.iter().for_each(|k| sum.add(&k.latency));
        sum
    }
}

/// Runs a worker's terminals until `stop` is set, and serves the node's inbox meanwhile. A terminal finishes the
/// transaction that it is in.
///
/// # Errors
/// The first error of any terminal that is not a conflict; the others stop too.
pub async fn run(
    worker: &Worker,
    handle: &Handle,
    tables: &Tables,
    plan: &Plan,
    counters: &Arc<Counters>,
    stop: &Arc<AtomicBool>,
) -> Result<(), TxnError> {
    let shared = Rc::new(Shared {
        tables: tables.clone(),
        inputs: Inputs::new(plan.scale, plan.shares, plan.load_seed, plan.seed),
        plan: plan.clone(),
        counters: counters.clone(),
        // Unique in the database: the worker above, the microsecond at which the run began below, counted up from there.
        next_h_id: Cell::new(
            (i64::from(plan.worker + 1) << 52) + plan.clock_start_us + (handle.now_ns() / 1000) as i64,
        ),
    });
    let terminals: Vec<_> = (0..plan.in_flight.max(1))
        .map(|number| {
            let (worker, handle, stop) = (worker.clone(), handle.clone(), stop.clone());
            let terminal = Terminal::new(shared.clone(), worker, handle.clone(), number, stop.clone());
            handle.spawn(async move {
                let ended = terminal.run().await;
                if ended.is_err() {
                    stop.store(true, Relaxed);
                }
                ended
            })
        })
        .collect();
    let mut ended = Ok(());
    for terminal in terminals {
        ended = ended.and(terminal.await);
    }
    ended
}

struct Shared {
    tables: Tables,
    inputs: Inputs,
    plan: Plan,
    counters: Arc<Counters>,
    next_h_id: Cell<i64>,
}

struct Terminal {
    shared: Rc<Shared>,
    worker: Worker,
    handle: Handle,
    random: Random,
    deck: Deck,
    scratch: Scratch,
    d_id: i16,
    stop: Arc<AtomicBool>,
}

/// How an attempt ended.
enum Attempt {
    Committed,
    RolledBack,
    Conflict,
    /// A node that it needs is being replaced.
    Unavailable,
}

impl Terminal {
    fn new(shared: Rc<Shared>, worker: Worker, handle: Handle, number: u16, stop: Arc<AtomicBool>) -> Self {
        let random = Random::part(shared.plan.seed, &[6, u64::from(shared.plan.worker), u64::from(number)]);
        let d_id = 1 + number as i16 % DISTRICTS as i16;
        Self { shared, worker, handle, random, deck: Deck::default(), scratch: Scratch::default(), d_id, stop }
    }

    async fn run(mut self) -> Result<(), TxnError> {
        let mut start = self.handle.now_ns();
        while !self.stop.load(Relaxed) {
            let warehouses = &self.shared.plan.warehouses;
            let w_id = warehouses[self.random.below(warehouses.len() as u64) as usize];
            let kind = self.deck.draw(&mut self.random);
            let now_us = self.shared.plan.clock_start_us + (start / 1000) as i64;
            match kind {
                Kind::NewOrder => {
                    let input = self.shared.inputs.new_order(&mut self.random, w_id);
                    self.attempts(kind, start, async |shared, txn, scratch| {
                        Ok(procedure::new_order(txn, &shared.tables, &input, now_us, scratch).await?.is_some())
                    })
                    .await?;
                }
                Kind::Payment => {
                    let input = self.shared.inputs.payment(&mut self.random, w_id);
                    let h_id = self.shared.next_h_id.get();
                    self.shared.next_h_id.set(h_id + 1);
                    self.attempts(kind, start, async |shared, txn, scratch| {
                        procedure::payment(txn, &shared.tables, &input, now_us, h_id, scratch).await?;
                        Ok(true)
                    })
                    .await?;
                }
                Kind::OrderStatus => {
                    let input = self.shared.inputs.order_status(&mut self.random, w_id);
                    self.attempts(kind, start, async |shared, txn, scratch| {
                        procedure::order_status(txn, &shared.tables, &input, scratch).await?;
                        Ok(true)
                    })
                    .await?;
                }
                Kind::Delivery => {
                    let input = self.shared.inputs.delivery(&mut self.random, w_id);
                    let skipped = Cell::new(0);
                    self.attempts(kind, start, async |shared, txn, scratch| {
                        let delivered = procedure::delivery(txn, &shared.tables, &input, now_us, scratch).await?;
                        skipped.set(delivered.skipped);
                        Ok(true)
                    })
                    .await?;
                    self.shared.counters.districts_skipped.add(u64::from(skipped.get()));
                }
                Kind::StockLevel => {
                    let input = self.shared.inputs.stock_level(&mut self.random, w_id, self.d_id);
                    self.attempts(kind, start, async |shared, txn, scratch| {
                        procedure::stock_level(txn, &shared.tables, &input, scratch).await?;
                        Ok(true)
                    })
                    .await?;
                }
            }
            self.worker.poll();
            self.handle.yield_now().await;
            start = self.handle.now_ns();
        }
        Ok(())
    }

    /// Runs one transaction until it commits, rolls back as specified, or has had too many conflicts.
    async fn attempts(
        &mut self,
        kind: Kind,
        start: u64,
        mut body: impl AsyncFnMut(&Shared, &mut Txn, &mut Scratch) -> Result<bool, TxnError>,
    ) -> Result<(), TxnError> {
        let counters = self.shared.counters.clone();
        let counters = &counters.kinds[kind as usize];
        let mut last = None;
        for attempt in 0..ATTEMPTS_MAX {
            let read_only = matches!(kind, Kind::OrderStatus | Kind::StockLevel);
            let mut txn = if read_only { self.worker.begin_read_only() } else { self.worker.begin() };
            let outcome = match body(&self.shared, &mut txn, &mut self.scratch).await {
                Ok(true) => txn.commit().await.map(|_| Attempt::Committed),
                Ok(false) => {
                    txn.abort();
                    Ok(Attempt::RolledBack)
                }
                Err(error) => Err(error),
            };
            let outcome = match outcome {
                // A commit whose outcome is unknown is not counted, and not tried again.
                Err(TxnError::NodeUnavailable { .. } | TxnError::OutcomeUnknown) if self.shared.plan.survives => {
                    Attempt::Unavailable
                }
                Err(error) => lost(error, &mut last)?,
                Ok(outcome) => outcome,
            };
            match outcome {
                Attempt::Committed => counters.commits.increment(),
                Attempt::RolledBack => counters.rollbacks.increment(),
                Attempt::Conflict => {
                    counters.conflicts.increment();
                    // What a dead node held stays locked: the end must not wait for it.
                    if self.shared.plan.survives && self.stop.load(Relaxed) {
                        break;
                    }
                    self.back_off(attempt).await;
                    continue;
                }
                Attempt::Unavailable => {
                    self.shared.counters.unavailable.record(self.handle.now_ns() - start);
                    self.worker.poll();
                    let wait_ns = self.random.below(UNAVAILABLE_NS_MAX);
                    self.handle.sleep_ns(wait_ns).await;
                    return Ok(());
                }
            }
            counters.latency.record(self.handle.now_ns() - start);
            return Ok(());
        }
        counters.given_up.increment();
        match last {
            Some(TxnError::Conflict) | None => Ok(()),
            Some(_) if self.shared.plan.survives && self.stop.load(Relaxed) => Ok(()),
            Some(persistent) => Err(persistent),
        }
    }

    /// Lets other tasks run. After the first conflicts it also waits, a random time below a bound that doubles.
    async fn back_off(&mut self, attempt: u32) {
        self.worker.poll();
        if attempt < 2 {
            self.handle.yield_now().await;
        } else {
            let most = (BACKOFF_NS << attempt.min(16)).min(BACKOFF_NS_MAX);
            let wait = self.random.below(most);
            self.handle.sleep_ns(wait).await;
        }
    }
}

/// Tells a conflict with another transaction from a failure. A transaction whose reads are out of date would fail at its commit.
/// Before that it may meet an order number that is taken meanwhile, or an order of which it does not see all rows yet. Such an
/// error is a conflict, unless the last attempt meets it as well.
fn lost(error: TxnError, last: &mut Option<TxnError>) -> Result<Attempt, TxnError> {
    match error {
        error
            if matches!(error, TxnError::Conflict | TxnError::DuplicateKey { .. }) || procedure::is_missing(&error) =>
        {
            *last = Some(error);
            Ok(Attempt::Conflict)
        }
        // Its terminal's next one may need other rows.
        TxnError::Recovering { .. } => Ok(Attempt::Unavailable),
        error => Err(error),
    }
}
