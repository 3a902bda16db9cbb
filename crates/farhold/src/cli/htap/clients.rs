//! The clients of `farhold bench htap`: those that run CH-benCHmark's queries, and those whose numbers the queries must see.
//!
//! **Freshness.** Each TPC-C worker has a *freshness client*: it increments its own row of the table [`TABLE`], one transaction
//! after the other, and notes each number when its commit is acknowledged. Before each query, a query client notes all these numbers
//! and then reads the table by a planned query, from its columns if the node keeps them. Each row must have at least the noted
//! number. A smaller one is *missed*, and ends the bench with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use farhold_bench::workload::ch::QUERIES;
use tokio::task::JoinHandle;

use super::super::args::Mix;
use super::super::client::{self, Connection};
use super::super::clock::Stopwatch;

/// The table of the freshness clients' numbers.
const TABLE: &str = "htap_freshness";
/// The pause between two transactions of a freshness client: short enough that most queries find a new number, and long enough that it costs only some
/// hundredths of a core.
const PAUSE: Duration = Duration::from_millis(5);

/// The connected clients of a measurement.
pub struct Clients {
    queries: Vec<Arc<Connection>>,
    writers: Vec<Arc<Connection>>,
    /// For each freshness client, the last number whose commit was acknowledged.
    acknowledged: Arc<[AtomicU64]>,
}

/// The results of query clients.
#[derive(Debug, Default)]
pub struct Answered {
    /// The time of each query from its text to its last row, in microseconds, if it was complete within the measurement.
    pub times_us: [Vec<u64>; QUERIES.len()],
    /// The same for the reads of the freshness table.
    pub check_us: Vec<u64>,
    /// Descriptions of what reads of that table missed.
    pub missed: Vec<String>,
    /// Numbers that were acknowledged.
    pub acknowledged: u64,
}

impl Answered {
    /// Queries.
    pub fn queries(&self) -> usize {
        self.times_us.iter().map(Vec::len).sum()
    }

    fn add(&mut self, other: Self) {
        for (all, more) in self.times_us.iter_mut().zip(other.times_us) {
            all.extend(more);
        }
        self.check_us.extend(other.check_us);
        self.missed.extend(other.missed);
        self.acknowledged += other.acknowledged;
    }
}

/// Clients that run until their time is over.
pub struct Running {
    window: Arc<Window>,
    tasks: Vec<JoinHandle<Result<Answered, String>>>,
}

/// The time of a run.
struct Window {
    clock: Stopwatch,
    seconds: f64,
    has_ended: AtomicBool,
}

impl Window {
    fn is_over(&self) -> bool {
        self.has_ended.load(SeqCst) || self.clock.seconds() >= self.seconds
    }
}

impl Clients {
    /// Connects the clients of a mix, and makes the freshness table, whose rows are kept as columns if `as_columns`.
    pub async fn connect(url: &str, mix: Mix, as_columns: bool) -> Result<Self, String> {
        let first = client::connect(url).await?;
        let option = if as_columns { "all" } else { "none" };
        let create = format!(
            "CREATE TABLE {TABLE} (client INT PRIMARY KEY, number BIGINT NOT NULL) WITH (columns = '{option}')"
        );
        run(&first, &create).await?;
        for client in 0..mix.workers {
            run(&first, &format!("INSERT INTO {TABLE} VALUES ({client}, 0)")).await?;
        }
        let connect = async |count: u8| -> Result<Vec<Arc<Connection>>, String> {
            let mut connections = Vec::new();
            for _ in 0..count {
                connections.push(Arc::new(client::connect(url).await?));
            }
            Ok(connections)
        };
        Ok(Self {
            queries: connect(mix.clients).await?,
            writers: connect(mix.workers).await?,
            acknowledged: (0..mix.workers).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Starts them all, for this number of seconds.
    pub fn start(&self, seconds: f64) -> Running {
        let window = Arc::new(Window { clock: Stopwatch::start(), seconds, has_ended: AtomicBool::new(false) });
        let mut tasks = Vec::new();
        for (number, connection) in self.queries.iter().enumerate() {
            // Each begins with another query.
            let first = number * QUERIES.len() / self.queries.len();
            let (connection, acknowledged) = (connection.clone(), self.acknowledged.clone());
            tasks.push(tokio::spawn(ask(connection, first, acknowledged, window.clone())));
        }
        for (number, connection) in self.writers.iter().enumerate() {
            let (connection, acknowledged) = (connection.clone(), self.acknowledged.clone());
            tasks.push(tokio::spawn(write(connection, number, acknowledged, window.clone())));
        }
        Running { window, tasks }
    }

    /// Reads the freshness table when nothing runs; returns what it misses.
    pub async fn check_at_rest(&self) -> Result<Vec<String>, String> {
        match self.queries.first().or(self.writers.first()) {
            Some(connection) => check(connection, &self.acknowledged).await,
            None => Ok(Vec::new()),
        }
    }
}

impl Running {
    /// Ends them, and waits for their last answers.
    pub async fn end(self) -> Result<Answered, String> {
        self.window.has_ended.store(true, SeqCst);
        let mut all = Answered::default();
        for task in self.tasks {
            all.add(task.await.map_err(|error| format!("a client has failed: {error}"))??);
        }
        Ok(all)
    }
}

/// A query client: check and query, one query after the other.
async fn ask(
    connection: Arc<Connection>,
    first: usize,
    acknowledged: Arc<[AtomicU64]>,
    window: Arc<Window>,
) -> Result<Answered, String> {
    let mut answered = Answered::default();
    let mut number = first;
    while !window.is_over() {
        if !acknowledged.is_empty() {
            let clock = Stopwatch::start();
            answered.missed.extend(check(&connection, &acknowledged).await?);
            answered.check_us.push(clock.micros());
        }
        let clock = Stopwatch::start();
        run(&connection, QUERIES[number]).await.map_err(|error| format!("query {}: {error}", number + 1))?;
        // A query that ends too late counts in no rate.
        if !window.is_over() {
            answered.times_us[number].push(clock.micros());
        }
        number = (number + 1) % QUERIES.len();
    }
    Ok(answered)
}

/// A freshness client: one number after the other.
async fn write(
    connection: Arc<Connection>,
    client: usize,
    acknowledged: Arc<[AtomicU64]>,
    window: Arc<Window>,
) -> Result<Answered, String> {
    let mut count = 0;
    while !window.is_over() {
        let number = acknowledged[client].load(SeqCst) + 1;
        let update = format!("UPDATE {TABLE} SET number = {number} WHERE client = {client}");
        let answers = client::query_patiently(&connection.client, &update).await;
        let answers = answers.map_err(|error| format!("{update}: {}", client::describe(&error)))?;
        if answers.first().is_none_or(|answer| answer.affected != 1) {
            return Err(format!("{update}: the row is missing"));
        }
        acknowledged[client].store(number, SeqCst);
        count += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Answered { acknowledged: count, ..Answered::default() })
}

/// Notes all acknowledged numbers, then reads the table; returns what it misses.
async fn check(connection: &Connection, acknowledged: &[AtomicU64]) -> Result<Vec<String>, String> {
    let noted: Vec<u64> = acknowledged.iter().map(|number| number.load(SeqCst)).collect();
    let select = format!("SELECT client, sum(number) FROM {TABLE} GROUP BY client ORDER BY client");
    Ok(missed(&noted, &run(connection, &select).await?))
}

/// Describes the noted numbers that are missing in rows of (client, number).
fn missed(noted: &[u64], rows: &[Vec<Option<String>>]) -> Vec<String> {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<u64>().ok());
    let seen = |client: usize| {
        let row = rows.iter().find(|row| row.first().and_then(number) == Some(client as u64));
        row.and_then(|row| row.get(1)).and_then(number)
    };
    let is_missed = |(client, noted): (usize, &u64)| match seen(client) {
        Some(seen) if seen >= *noted => None,
        seen => Some(format!("client {client} had committed {noted}, and a query saw {seen:?}")),
    };
    noted.iter().enumerate().filter_map(is_missed).collect()
}

/// The rows of one statement's answer.
async fn run(connection: &Connection, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let answers = client::query(&connection.client, sql).await.map_err(|error| client::describe(&error))?;
    Ok(answers.into_iter().flat_map(|answer| answer.rows).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_too_small_or_not_there_is_missed() {
        let row = |client: &str, number: &str| vec![Some(client.to_owned()), Some(number.to_owned())];
        assert_eq!(missed(&[3, 4], &[row("0", "3"), row("1", "9")]), Vec::<String>::new());
        let found = missed(&[3, 4, 0], &[row("0", "2"), row("1", "4")]);
        assert!(found.len() == 2 && found[0].contains("client 0") && found[1].contains("client 2"), "{found:?}");
        assert_eq!(missed(&[1], &[vec![Some("0".to_owned()), None]]).len(), 1);
    }
}
