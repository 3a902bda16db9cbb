//! A key-value store over the database's own rows: remote gets without work at the home node, puts by message or by transaction.
//!
//! ```text
//!   reader ──(location cache knows: one object read; else: bucket, then object)──▶ rows of node 1
//!   writer ──(message: the home's worker writes)──────────────────────────────────▶
//!          ──(transaction: lock, validate, write, unlock from afar)───────────────▶
//! ```
//!
//! Gets are batched: a batch's reads of all its keys are posted together, round by round. A value repeats one stamp. Of every
//! value, the two ends are compared, and of one in [`CHECK_EVERY`] all of it, so a run also shows that no mix of two puts was
//! read. (Redis's values are not checked.)

mod home;
pub mod reader;
pub mod redis;
mod zipf;

pub use zipf::{Spread, Zipf};

use crate::measure::Counter;
use crate::random::Random;
use farhold_fabric::ephemeral::Ephemeral;
use farhold_fabric::latencies::{Latencies, LatencyRecorder};
use farhold_fabric::{Executor, Fabric, FabricError, Handle, NodeId, processor};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{HomeAgent, Node, NodeConfig, Placement, Retry, Table, TableDef, TxnError};
use reader::Reader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

/// How a value is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The writer sends the key and the value to the home node, and a worker there writes them.
    Message,
    /// A transaction of the writer's own node writes them.
    Transaction,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows.
    pub keys: u64,
    /// Bytes of each value, a multiple of 8.
    pub value_bytes: usize,
    /// Threads that get.
    pub readers: u16,
    /// Clients of each reader, as tasks; each has one batch of gets under way at a time.
    pub clients: u16,
    /// Threads that put.
    pub writers: u16,
    /// Gets in one batch.
    pub batch: usize,
    /// Which keys.
    pub spread: Spread,
    /// How values are put.
    pub put: Put,
    /// How long.
    pub span_ns: u64,
    /// Of the choice of keys.
    pub seed: u64,
    /// How the readers' node reaches the rows' node: see [`Fabric::join`].
    pub provider: String,
    /// Each thread has a processor of its own: the rows' node the last but one, readers the others.
    pub bound: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds measured.
    pub seconds: f64,
    /// Values got.
    pub gets: u64,
    /// Values put.
    pub puts: u64,
    /// Object reads that met a writer and were repeated.
    pub torn: u64,
    /// Reads of the index, for keys that the location cache did not have.
    pub index_reads: u64,
    /// Batches of gets.
    pub batch_latency: Latencies,
}

impl Outcome {
    /// Gets a second.
    #[must_use]
    pub fn gets_per_second(&self) -> f64 {
        self.gets as f64 / self.seconds
    }

    /// Puts a second.
    #[must_use]
    pub fn puts_per_second(&self) -> f64 {
        self.puts as f64 / self.seconds
    }
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// A transaction, or the set-up.
    #[error(transparent)]
    Txn(#[from] TxnError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The rival server.
    #[error("Redis: {0}")]
    Redis(std::io::Error),
    /// A key that was loaded is not there.
    #[error("key {0} was loaded and is not there")]
    Missing(u64),
    /// A value was a mix of two puts.
    #[error("the value of key {0} was a mix of two puts")]
    Mixed(u64),
}

impl From<std::io::Error> for KvError {
    fn from(error: std::io::Error) -> Self {
        Self::Redis(error)
    }
}

/// The home node of the rows; readers and writers are on node 0.
const HOME: NodeId = NodeId(1);
const TABLE: &str = "kv";

/// Key `number` as its row has it. All are even, which `ByInteger` places on node 1.
fn key_of(number: u64) -> [u8; 8] {
    ((2 * number + 2) ^ 1 << 63).to_be_bytes()
}

/// Where the value's bytes begin in an encoded row: behind the end of the one variable column.
const VALUE_AT: usize = 2;

/// The processor of the rows' node, where threads are [bound](Plan::bound).
fn home_processor() -> usize {
    let usable = processor::usable();
    usable[usable.len().saturating_sub(2)]
}

/// The processor of a reader there: not the home node's, if there is another.
fn reader_processor(number: u16) -> usize {
    let (usable, home) = (processor::usable(), home_processor());
    let others: Vec<usize> = usable.iter().copied().filter(|it| *it != home).collect();
    if others.is_empty() { home } else { others[usize::from(number) % others.len()] }
}

/// All keys are loaded before the first put.
fn no_row() -> TxnError {
    TxnError::NotFound { what: "the row of a key that was loaded".into() }
}

fn fill(value: &mut [u8], stamp: u64) {
    for word in value.chunks_exact_mut(8) {
        word.copy_from_slice(&stamp.to_le_bytes());
    }
}

/// One in this many values is checked in full.
pub const CHECK_EVERY: usize = 16;

/// Whether both ends of a value have one stamp. A writer that is met in the middle leaves another at one end.
fn has_equal_ends(value: &[u8]) -> bool {
    value.len() >= 8 && value[..8] == value[value.len() - 8..]
}

/// Is this one put's value?
fn is_whole(value: &[u8]) -> bool {
    // The value against itself, one word on.
    value.len() >= 8 && value[8..] == value[..value.len() - 8]
}

/// The cluster of a run, in a directory of its own: two nodes in this process.
struct Cluster {
    // Fields are dropped in this order.
    _agents: Vec<HomeAgent>,
    far: Fabric,
    home: Fabric,
    nodes: [Arc<Node>; 2],
    _directory: Ephemeral,
}

impl Cluster {
    fn start(plan: &Plan) -> Result<Self, KvError> {
        let directory = Ephemeral::new()?;
        let row_bytes = plan.value_bytes as u64 + 200;
        let open = |node: u8| {
            if plan.bound && NodeId(node) == HOME {
                processor::bind_this_thread(home_processor());
            }
            // The readers' node receives no requests, so its agent needs no processor.
            let provider = if NodeId(node) == HOME {
                plan.provider.clone()
            } else {
                plan.provider.replace("agent=spins", "agent=sleeps")
            };
            let fabric = Fabric::join(directory.path(), NodeId(node), &provider)?;
            let region_bytes = if NodeId(node) == HOME { 2 * plan.keys * row_bytes + (64 << 20) } else { 64 << 20 };
            let config = NodeConfig { nodes: 2, region_bytes, ..NodeConfig::default() };
            Ok::<_, KvError>((fabric.clone(), Node::open(fabric, config)?))
        };
        let (far, zero) = open(0)?;
        // On a thread of its own: the home agent inherits that thread's processor.
        let (home, one) = std::thread::scope(|scope| scope.spawn(|| open(1)).join().expect("the rows' node"))?;
        let agents = vec![HomeAgent::start(&zero)?, HomeAgent::start(&one)?];
        Ok(Self { _agents: agents, far, home, nodes: [zero, one], _directory: directory })
    }

    /// Creates the table and its rows.
    fn load(&self, plan: &Plan) -> Result<(), KvError> {
        let executor = Executor::real(plan.seed);
        let worker = self.nodes[usize::from(HOME.0)].worker(&executor.handle())?;
        executor.run(async {
            let columns = vec![Column::new("id", ColumnType::BigInt), Column::new("value", ColumnType::Bytea)];
            let schema = Schema::new(columns, vec![0]).map_err(TxnError::Row)?;
            let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new(TABLE, schema) };
            let table = worker.create_table(definition).await?;
            let mut value = Vec::new();
            let row = [Datum::BigInt(0), Datum::Bytea(vec![0; plan.value_bytes])];
            table.schema().encode_value(&row, &mut value).map_err(TxnError::Row)?;
            for from in (0..plan.keys).step_by(500) {
                let mut txn = worker.begin();
                for number in from..(from + 500).min(plan.keys) {
                    txn.insert(&table, &key_of(number), &value).await?;
                }
                txn.commit().await?;
            }
            Ok(())
        })
    }

    fn table(&self, node: usize) -> Result<Table, KvError> {
        Ok(self.nodes[node].table(TABLE).ok_or(TxnError::SchemaChanged)?)
    }
}

/// What the threads of a run share.
struct Load {
    plan: Plan,
    zipf: Zipf,
    stop: AtomicBool,
    /// Each thread's.
    counts: Vec<Counts>,
}

/// What a thread counts.
#[derive(Debug, Default)]
struct Counts {
    done: Counter,
    torn: Counter,
    index_reads: Counter,
    latency: LatencyRecorder,
}

/// Loads the rows, lets each reader get every key once, runs, and checks every value.
///
/// # Errors
/// See [`KvError`].
///
/// # Panics
/// If the values' length is no multiple of 8, a batch is empty, or a thread has no client.
pub fn run(plan: &Plan) -> Result<Outcome, KvError> {
    assert!(plan.value_bytes.is_multiple_of(8) && plan.value_bytes >= 8, "{plan:?}");
    assert!(plan.batch > 0 && plan.clients > 0, "{plan:?}");
    let cluster = Cluster::start(plan)?;
    cluster.load(plan)?;
    let load = Arc::new(Load {
        plan: plan.clone(),
        zipf: Zipf::new(plan.spread, plan.keys),
        stop: AtomicBool::new(false),
        counts: (0..plan.readers + plan.writers).map(|_| Counts::default()).collect(),
    });
    let stop = &load.stop;
    let serves = plan.writers > 0 && plan.put == Put::Message;
    let start = Barrier::new(usize::from(plan.readers + plan.writers) + usize::from(serves) + 1);
    let server_stop = AtomicBool::new(false);
    let elapsed_ns = std::thread::scope(|scope| {
        let server = serves.then(|| {
            scope.spawn(|| {
                let server = home::Server::new(&cluster);
                start.wait();
                server?.run(&server_stop)
            })
        });
        let threads: Vec<_> = (0..plan.readers + plan.writers)
            .map(|number| {
                let (cluster, start, load) = (&cluster, &start, &load);
                let random = Random::part(plan.seed, &[number.into()]);
                scope.spawn(move || {
                    if load.plan.bound {
                        processor::bind_this_thread(reader_processor(number));
                    }
                    let act = if number < plan.readers { get_until } else { put_until };
                    let result = act(start, cluster, load, number, random);
                    if result.is_err() {
                        load.stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        start.wait();
        let clock = Executor::real(0).handle();
        let began_ns = clock.now_ns();
        let end_ns = began_ns + plan.span_ns;
        while clock.now_ns() < end_ns && !stop.load(Ordering::Relaxed) {
            let left_ns = end_ns.saturating_sub(clock.now_ns()).min(10_000_000);
            std::thread::park_timeout(std::time::Duration::from_nanos(left_ns));
        }
        stop.store(true, Ordering::Relaxed);
        let elapsed_ns = clock.now_ns() - began_ns;
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("a thread of the run")).collect();
        server_stop.store(true, Ordering::Relaxed);
        let served = server.map_or(Ok(()), |server| server.join().expect("the server's thread"));
        results.into_iter().collect::<Result<(), KvError>>()?;
        served?;
        Ok::<u64, KvError>(elapsed_ns)
    })?;
    let (readers, writers) = load.counts.split_at(plan.readers.into());
    let sum = |of: &[Counts], which: fn(&Counts) -> &Counter| of.iter().map(|counts| which(counts).get()).sum();
    let mut batch_latency = Latencies::default();
    for counts in readers {
        batch_latency.add(&counts.latency.latencies());
    }
    Ok(Outcome {
        seconds: elapsed_ns as f64 / 1e9,
        gets: sum(readers, |counts| &counts.done),
        puts: sum(writers, |counts| &counts.done),
        torn: sum(readers, |counts| &counts.torn),
        index_reads: sum(readers, |counts| &counts.index_reads),
        batch_latency,
    })
}

fn get_until(
    start: &Barrier,
    cluster: &Cluster,
    load: &Arc<Load>,
    number: u16,
    mut random: Random,
) -> Result<(), KvError> {
    let executor = Executor::real(random.next_u64());
    let handle = executor.handle();
    let plan = &load.plan;
    let set_up = (|| {
        let (endpoint, table) = (cluster.far.endpoint(&handle)?, cluster.table(0)?);
        let mut reader = Reader::new(endpoint, HOME, table.id(), plan.keys as usize, plan.value_bytes);
        let index_reads = executor.run(learn_places(&mut reader, plan))?;
        load.counts[usize::from(number)].index_reads.add(index_reads);
        Ok::<_, KvError>(reader)
    })();
    start.wait();
    let reader = set_up?;
    executor.run(async {
        let clients: Vec<_> = (0..plan.clients)
            .map(|_| {
                let random = Random::part(random.next_u64(), &[]);
                handle.spawn(get_as_client(handle.clone(), reader.beside(), load.clone(), number, random))
            })
            .collect();
        let mut result = Ok(());
        for client in clients {
            let ended = client.await;
            load.stop.store(true, Ordering::Relaxed);
            result = result.and(ended);
        }
        result
    })
}

/// Gets each key once, so that the measurement does not include how a thread learns the places of the rows. Returns how often it
/// read the index.
async fn learn_places(reader: &mut Reader, plan: &Plan) -> Result<u64, KvError> {
    const TOGETHER: usize = 64;
    let mut index_reads = 0;
    for from in (0..plan.keys).step_by(TOGETHER) {
        let keys: Vec<_> = (from..(from + TOGETHER as u64).min(plan.keys)).map(key_of).collect();
        index_reads += reader.get_many(&keys, |_, _| ()).await?.index_reads;
    }
    Ok(index_reads)
}

/// A client: one batch of gets after the other, until the run is over.
async fn get_as_client(
    handle: Handle,
    mut reader: Reader,
    load: Arc<Load>,
    number: u16,
    mut random: Random,
) -> Result<(), KvError> {
    let (plan, counts) = (&load.plan, &load.counts[usize::from(number)]);
    let mut numbers = Vec::new();
    let mut keys = Vec::new();
    let mut got_so_far = 0;
    // At least once: a thread may get its processor late.
    loop {
        numbers.clear();
        numbers.extend((0..plan.batch).map(|_| load.zipf.draw(&mut random)));
        keys.clear();
        keys.extend(numbers.iter().map(|number| key_of(*number)));
        let before_ns = handle.now_ns();
        let mut mixed = None;
        let got = reader
            .get_many(&keys, |nth, value| {
                let value = &value[VALUE_AT..];
                got_so_far += 1;
                let check = if got_so_far % CHECK_EVERY == 0 { is_whole } else { has_equal_ends };
                if !check(value) {
                    mixed = Some(numbers[nth]);
                }
            })
            .await?;
        counts.latency.record(handle.now_ns() - before_ns);
        if let Some(number) = mixed {
            return Err(KvError::Mixed(number));
        }
        if let Some(nth) = got.missing {
            return Err(KvError::Missing(numbers[nth]));
        }
        counts.done.add(plan.batch as u64);
        counts.torn.add(got.torn);
        counts.index_reads.add(got.index_reads);
        if load.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn put_until(
    start: &Barrier,
    cluster: &Cluster,
    load: &Arc<Load>,
    number: u16,
    mut random: Random,
) -> Result<(), KvError> {
    let executor = Executor::real(random.next_u64());
    let handle = executor.handle();
    let set_up = (|| {
        let worker = cluster.nodes[0].worker(&handle)?;
        Ok::<_, KvError>((worker, cluster.far.endpoint(&handle)?, cluster.table(0)?))
    })();
    start.wait();
    let (worker, endpoint, table) = set_up?;
    let (plan, counts) = (&load.plan, &load.counts[usize::from(number)]);
    executor.run(async {
        let client = home::Client::new(&endpoint);
        loop {
            let (key, stamp) = (load.zipf.draw(&mut random), random.next_u64());
            match plan.put {
                Put::Message => client.put(key, stamp, plan.value_bytes).await?,
                Put::Transaction => {
                    worker
                        .run(Retry::default(), async |txn| {
                            let row = txn.get(&table, &key_of(key)).await?.ok_or_else(no_row)?;
                            fill(&mut txn.value_mut(row)[VALUE_AT..], stamp);
                            Ok(())
                        })
                        .await?;
                }
            }
            counts.done.increment();
            if load.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::provider;

    fn plan() -> Plan {
        Plan {
            keys: 500,
            value_bytes: 256,
            readers: 1,
            clients: 1,
            writers: 1,
            batch: 8,
            spread: Spread::Zipf(0.99),
            put: Put::Message,
            span_ns: 60_000_000,
            seed: 7,
            provider: "shm".into(),
            bound: false,
        }
    }

    #[test]
    fn gets_and_puts_by_message_and_by_transaction() {
        for provider in provider::ALL.iter().flat_map(|kind| (kind.here)()).map(|here| here.name) {
            for put in [Put::Message, Put::Transaction] {
                let outcome = run(&Plan { put, provider: provider.clone(), ..plan() }).unwrap();
                assert!(outcome.gets > 0 && outcome.puts > 0, "{provider}, {put:?}: {outcome:?}");
                assert!(outcome.index_reads > 0, "the location cache begins empty");
                assert!(outcome.gets_per_second() > 0.0 && outcome.batch_latency.count() == outcome.gets / 8);
            }
        }
    }

    /// Clients of one thread share their knowledge of rows' places, and each gets rows.
    #[test]
    fn clients_share_a_thread() {
        let plan = Plan { readers: 2, clients: 20, writers: 0, keys: 50, batch: 1, ..plan() };
        for provider in provider::ALL.iter().flat_map(|kind| (kind.here)()).map(|here| here.name) {
            let outcome = run(&Plan { provider: provider.clone(), ..plan.clone() }).unwrap();
            assert!(outcome.gets >= 40 && outcome.batch_latency.count() == outcome.gets, "{provider}: {outcome:?}");
        }
    }

    #[test]
    fn a_provider_that_is_none_is_an_error() {
        let error = run(&Plan { provider: "pigeon".into(), ..plan() }).unwrap_err();
        assert!(matches!(error, KvError::Fabric(FabricError::ProviderUnfit(_))), "{error}");
    }

    /// If a row's place is known, its next get is one object read: far fewer index reads than gets.
    #[test]
    fn the_location_cache_spares_the_index() {
        let of_span =
            |span_ns| run(&Plan { writers: 0, keys: 50, spread: Spread::Uniform, span_ns, ..plan() }).unwrap();
        // Longer on a machine with much else to do.
        let outcome = (24..34).map(|bits| of_span(1 << bits)).find(|outcome| outcome.gets > 2_000).expect("many gets");
        // Two keys may share a place of the cache; a chunk is looked up once.
        assert!(outcome.index_reads < outcome.gets / 4, "{outcome:?}");
        assert_eq!((outcome.torn, outcome.puts), (0, 0));
    }

    #[test]
    fn a_mixed_value_is_noticed() {
        let mut value = vec![0; 64];
        fill(&mut value, 0x0102_0304_0506_0708);
        assert!(is_whole(&value) && has_equal_ends(&value));
        value[40] ^= 1;
        assert!(!is_whole(&value) && has_equal_ends(&value));
        fill(&mut value[32..], 9);
        assert!(!is_whole(&value) && !has_equal_ends(&value));
    }
}
