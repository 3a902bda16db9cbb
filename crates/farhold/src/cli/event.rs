//! The protocol between a node process and its parent: one JSON object a line, commands down, events up.
//!
//! The parent's end of the pipe also serves as a lifeline: a node that reads the end of its standard input shuts down, so a
//! killed parent leaves no process behind.

use serde::{Deserialize, Serialize};

/// From the parent to a node, on the node's standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Create the tables (node 0).
    Create,
    /// Load this node's warehouses.
    Load,
    /// Run the mix.
    Run {
        /// The duration.
        seconds: u32,
        /// Milliseconds between two ticks.
        tick_ms: u64,
    },
    /// Answer a query with DataFusion over a copy of the rows in Arrow memory, made at the first such command.
    ArrowQuery {
        /// The query.
        sql: String,
    },
    /// Tell the state of the column copies, and the waits for them.
    Columns,
    /// End the mix early.
    Stop,
    /// Leave.
    Quit,
}

/// From a node to its parent, on the node's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The node is a member; it answers SQL at `listen` if asked to.
    Ready {
        /// Address of the PostgreSQL protocol.
        listen: Option<String>,
    },
    /// The tables are there.
    Created,
    /// Rows loaded so far, of all of them.
    Loading {
        /// So far.
        rows: u64,
        /// Of.
        rows_total: u64,
    },
    /// This node's warehouses are loaded.
    Loaded {
        /// Rows.
        rows: u64,
        /// Memory in use.
        memory: Memory,
    },
    /// What the workers did since the last tick.
    Tick(Interval),
    /// The mix ended; everything since its start.
    Finished {
        /// Totals, by transaction type.
        transactions: Vec<TypeTotals>,
        /// The whole run as one interval.
        total: Interval,
        /// Memory in use.
        memory: Memory,
    },
    /// The answer to an [`Command::ArrowQuery`] is complete.
    ArrowAnswer {
        /// The time that it took.
        microseconds: u64,
    },
    /// The column copies of the node.
    Columns(Columns),
    /// The node cannot go on.
    Failed {
        /// Why, for a person.
        message: String,
    },
}

/// Counters of a span of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Microseconds of the span.
    pub elapsed_us: u64,
    /// Committed transactions.
    pub commits: u64,
    /// Committed new-orders.
    pub new_orders: u64,
    /// Committed payments.
    #[serde(default)]
    pub payments: u64,
    /// Attempts that ended in a conflict and were tried again.
    pub aborts: u64,
    /// New-orders that the specification rolls back.
    pub rollbacks: u64,
    /// Transactions given up because another node did not answer, or was being replaced.
    #[serde(default)]
    pub unavailable: u64,
    /// The longest of them, in microseconds.
    #[serde(default)]
    pub unavailable_us_max: u64,
    /// Latency: (upper bound of a bucket in microseconds, transactions in it).
    pub latency_us: Vec<(u64, u64)>,
}

/// The state of a node's column copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Tables that have a copy.
    pub tables: usize,
    /// Tables whose copy is being built.
    pub building: usize,
    /// Tables whose copy has no room.
    pub without_room: usize,
    /// Changes that are in no segment yet.
    pub delta_rows: u64,
    /// Waits from a snapshot to a view of a table's columns, since the node's start: (upper bound of a bucket in nanoseconds, views).
    pub waits_ns: Vec<(u64, u64)>,
}

/// Totals of one transaction type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TypeTotals {
    /// The type.
    pub name: String,
    /// Committed.
    pub commits: u64,
    /// Conflicts that were tried again.
    pub aborts: u64,
    /// Rolled back as the specification says.
    pub rollbacks: u64,
    /// Latency buckets as in [`Interval`].
    pub latency_us: Vec<(u64, u64)>,
}

/// Bytes of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes of the rows, packed, and of the keys of every index.
    pub data: u64,
    /// Bytes taken for them: pages, indexes, headers.
    pub used: u64,
}

impl Interval {
    /// Adds another node's counters of the same span.
    pub fn add(&mut self, other: &Interval) {
        self.elapsed_us = self.elapsed_us.max(other.elapsed_us);
        self.commits += other.commits;
        self.new_orders += other.new_orders;
        self.payments += other.payments;
        self.aborts += other.aborts;
        self.rollbacks += other.rollbacks;
        self.unavailable += other.unavailable;
        self.unavailable_us_max = self.unavailable_us_max.max(other.unavailable_us_max);
        merge_buckets(&mut self.latency_us, &other.latency_us);
    }

    /// Events a second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 * 1e6 / (self.elapsed_us.max(1)) as f64
    }

    /// The latency that `fraction` of the transactions did not exceed, in microseconds.
    pub fn quantile_us(&self, fraction: f64) -> u64 {
        quantile(&self.latency_us, fraction)
    }

    /// Conflicts per attempt, in percent.
    pub fn abort_percent(&self) -> f64 {
        100.0 * self.aborts as f64 / ((self.aborts + self.commits + self.rollbacks).max(1)) as f64
    }
}

/// Adds buckets to buckets; both stay sorted by bound.
pub fn merge_buckets(into: &mut Vec<(u64, u64)>, from: &[(u64, u64)]) {
    for &(bound, count) in from {
        match into.binary_search_by_key(&bound, |b| b.0) {
            Ok(at) => into[at].1 += count,
            Err(at) => into.insert(at, (bound, count)),
        }
    }
}

/// The bound of the bucket in which `fraction` of all is reached.
pub fn quantile(buckets: &[(u64, u64)], fraction: f64) -> u64 {
    let total: u64 = buckets.iter().map(|b| b.1).sum();
    let wanted = (fraction * total as f64).ceil() as u64;
    let mut seen = 0;
    for &(bound, count) in buckets {
        seen += count;
        if seen >= wanted {
            return bound;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_over_merged_nodes() {
        let mut all = Interval {
            latency_us: vec![(10, 50), (100, 1)],
            commits: 51,
            elapsed_us: 1_000_000,
            ..Interval::default()
        };
        all.add(&Interval {
            latency_us: vec![(10, 40), (20, 9)],
            commits: 49,
            elapsed_us: 900_000,
            ..Interval::default()
        });
        assert_eq!(all.latency_us, [(10, 90), (20, 9), (100, 1)]);
        assert_eq!((all.quantile_us(0.5), all.quantile_us(0.99), all.quantile_us(1.0)), (10, 20, 100));
        assert!((all.rate(all.commits) - 100.0).abs() < 1e-9);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn events_survive_the_pipe() {
        let event = Event::Tick(Interval { commits: 3, latency_us: vec![(1, 3)], ..Interval::default() });
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        let command = serde_json::to_string(&Command::Run { seconds: 5, tick_ms: 1000 }).unwrap();
        assert_eq!(command, r#"{"command":"run","seconds":5,"tick_ms":1000}"#);
    }
}
