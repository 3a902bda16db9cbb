//! A database of one node in a directory of its own, and clients that each run on a thread, as connections do.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use farhold_fabric::{Drive, Fabric, Handle};
use farhold_sql::{
    CancelHandle, ColumnType, CommandTag, Datum, Engine, EngineConfig, Output, Rows, STACK_BYTES, Session, SqlError,
    TransactionState, format_datum,
};
use farhold_store::durable::power::Volatile;
use farhold_testkit::memory_directory;
use farhold_txn::{
    ColumnThreads, CopyConfig, Generation, HomeAgent, JournalConfig, JournalThreads, KeptColumns, Node, NodeConfig,
    NodeId, ReplicationConfig,
};
use tempfile::TempDir;

/// A running database. The directory is removed last.
pub struct Db {
    pub engine: Arc<Engine>,
    pub node: Arc<Node>,
    dir: Arc<TempDir>,
    /// Handles the requests of the other nodes of a cluster.
    agent: Option<HomeAgent>,
    /// Write the journal.
    threads: Option<JournalThreads>,
    /// Keep the columns, where there is no journal.
    columns: Option<ColumnThreads>,
}

/// Waits until something has happened that other threads do.
#[track_caller]
pub fn wait_until(what: &str, mut has_happened: impl FnMut() -> bool) {
    const PATIENCE_NS: u64 = 60_000_000_000;
    let clock = Handle::standalone(1);
    let end_ns = clock.now_ns() + PATIENCE_NS;
    while !has_happened() {
        assert!(clock.now_ns() < end_ns, "not within a minute: {what}");
        std::thread::yield_now();
    }
}

/// Waits until all that was committed is in column segments, where tables are kept as columns.
pub fn wait_for_columns(node: &Node) {
    if node.config().journal.is_some() || node.columns().tables > 0 {
        wait_until("columns are merged", || node.columns().is_merged);
    }
}

/// A node with a journal on an in-memory disk.
fn journaled(dir: &TempDir, segment_bytes: u64, config: NodeConfig) -> Arc<Node> {
    journaled_on("shm", &Volatile::default(), dir, (NodeId(0), segment_bytes), config)
}

/// A node with a journal on a disk that others may share.
fn journaled_on(
    provider: &str,
    disk: &Volatile,
    dir: &TempDir,
    (id, segment_bytes): (NodeId, u64),
    config: NodeConfig,
) -> Arc<Node> {
    let journal = JournalConfig { segment_bytes, ..JournalConfig::new(Arc::new(disk.clone())) };
    let nodes = config.nodes;
    let generation = Generation::begin(&journal, id, nodes, &ReplicationConfig::default()).expect("a generation");
    let fabric = Fabric::join(dir, id, provider).expect("the fabric");
    Node::open_durable(fabric, NodeConfig { journal: Some(journal), ..config }, generation).expect("a node")
}

/// The result of a statement.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub columns: Vec<(String, ColumnType)>,
    pub rows: Vec<Vec<Option<String>>>,
    pub tag: String,
    pub direct: bool,
    pub notices: Vec<String>,
}

impl Answer {
    /// The rows as text, with columns separated by `|` and NULL as `NULL`.
    pub fn lines(&self) -> Vec<String> {
        self.rows
            .iter()
            .map(|row| row.iter().map(|v| v.as_deref().unwrap_or("NULL")).collect::<Vec<_>>().join("|"))
            .collect()
    }
}

type Reply<T> = mpsc::Sender<T>;

type Job = Box<dyn FnOnce(&mut Session, &tokio::runtime::Runtime) + Send>;

enum Request {
    Run(String, Vec<Datum>, Reply<Result<Answer, SqlError>>),
    Copy(String, Vec<Vec<u8>>, Option<String>, Reply<Result<String, SqlError>>),
    Batch(String, Reply<Result<Vec<Answer>, SqlError>>),
    State(Reply<TransactionState>),
    /// Runs a job in the thread of the session.
    With(Job, Reply<()>),
}

/// A connection.
pub struct Client {
    /// `None` only during drop.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<std::thread::JoinHandle<()>>,
    pub cancel: CancelHandle,
}

impl Drop for Client {
    /// Returns after the session and its worker have been dropped.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Db {
    pub fn new() -> Self {
        Self::with(EngineConfig { query_threads: 2, ..EngineConfig::default() })
    }

    pub fn with(config: EngineConfig) -> Self {
        Self::open(memory_directory(), config, 256 << 20)
    }

    /// Several nodes in one directory.
    pub fn cluster(nodes: u8) -> Vec<Self> {
        let dir = Arc::new(memory_directory());
        let opened: Vec<_> = (0..nodes)
            .map(|id| {
                let fabric = Fabric::join_shm(&*dir, NodeId(id)).expect("the fabric");
                let config = NodeConfig {
                    nodes,
                    region_bytes: 64 << 20,
                    // These tests do not depend on time, and the machines that run them may be busy.
                    request_timeout_ns: 60_000_000_000,
                    ..NodeConfig::default()
                };
                let node = Node::open(fabric, config).expect("a node");
                let agent = HomeAgent::start(&node).expect("an agent");
                (node, agent)
            })
            .collect();
        let config = EngineConfig { query_threads: 1, ..EngineConfig::default() };
        opened
            .into_iter()
            .map(|(node, agent)| Self::over(node, Some(agent), Arc::clone(&dir), config.clone()))
            .collect()
    }

    /// Several nodes whose tables are kept as columns too.
    pub fn cluster_with_columns(provider: &str, nodes: u8, columns: CopyConfig) -> Vec<Self> {
        let (dir, disk) = (Arc::new(memory_directory()), Volatile::default());
        let opened: Vec<_> = (0..nodes)
            .map(|id| {
                let config = NodeConfig {
                    nodes,
                    region_bytes: 64 << 20,
                    columns,
                    request_timeout_ns: 60_000_000_000,
                    ..NodeConfig::default()
                };
                let node = journaled_on(provider, &disk, &dir, (NodeId(id), 1 << 20), config);
                let agent = HomeAgent::start(&node).expect("an agent");
                let threads = JournalThreads::start(&node).expect("threads");
                (node, agent, threads)
            })
            .collect();
        let config = EngineConfig { query_threads: 2, columns: KeptColumns::All, ..EngineConfig::default() };
        let over = |(node, agent, threads)| Self {
            threads,
            ..Self::over(node, Some(agent), Arc::clone(&dir), config.clone())
        };
        opened.into_iter().map(over).collect()
    }

    /// From now on only the workers of this node handle the requests of other nodes.
    pub fn stop_serving(&mut self) {
        self.agent = None;
    }

    /// Handles the requests of other nodes.
    pub fn serve(&mut self) {
        self.agent = Some(HomeAgent::start(&self.node).expect("an agent"));
    }

    pub fn open(dir: impl Into<Arc<TempDir>>, config: EngineConfig, region_bytes: u64) -> Self {
        let dir = dir.into();
        let fabric = Fabric::join_shm(&*dir, NodeId(0)).expect("the fabric");
        let node = Node::open(fabric, NodeConfig { region_bytes, ..NodeConfig::default() }).expect("a node");
        Self::over(node, None, dir, config)
    }

    /// A database whose tables are kept as columns too.
    pub fn with_columns(columns: CopyConfig) -> Self {
        let dir = Arc::new(memory_directory());
        let config = EngineConfig { query_threads: 2, columns: KeptColumns::All, ..EngineConfig::default() };
        let of_node = NodeConfig { region_bytes: 256 << 20, columns, ..NodeConfig::default() };
        let mut db = Self::over(journaled(&dir, 16 << 20, of_node), None, dir, config);
        db.threads = JournalThreads::start(&db.node).expect("threads");
        db
    }

    /// A database without a journal, whose tables are kept as columns too: as this says, where a table does not.
    pub fn with_columns_in_memory(columns: CopyConfig, kept: KeptColumns) -> Self {
        let dir = Arc::new(memory_directory());
        let fabric = Fabric::join_shm(&*dir, NodeId(0)).expect("the fabric");
        let of_node = NodeConfig { region_bytes: 256 << 20, columns, ..NodeConfig::default() };
        let node = Node::open(fabric, of_node).expect("a node");
        let config = EngineConfig { query_threads: 2, columns: kept, ..EngineConfig::default() };
        let mut db = Self::over(node, None, dir, config);
        db.columns = ColumnThreads::start(&db.node).expect("threads");
        db
    }

    /// A database with a journal on an in-memory disk. Only [`Self::step_until`] writes the journal.
    pub fn with_journal() -> Self {
        let dir = Arc::new(memory_directory());
        let node = journaled(&dir, 64 << 10, NodeConfig { region_bytes: 64 << 20, ..NodeConfig::default() });
        Self::over(node, None, dir, EngineConfig { query_threads: 1, ..EngineConfig::default() })
    }

    /// A database with a journal on this disk, which has what an earlier one has left there.
    pub fn on_disk(disk: &Volatile) -> Self {
        let dir = Arc::new(memory_directory());
        let config = NodeConfig { region_bytes: 64 << 20, ..NodeConfig::default() };
        let node = journaled_on("shm", disk, &dir, (NodeId(0), 64 << 10), config);
        let mut db = Self::over(node, None, dir, EngineConfig { query_threads: 1, ..EngineConfig::default() });
        db.threads = JournalThreads::start(&db.node).expect("threads");
        db
    }

    /// Writes the journal until the answer has arrived.
    pub fn step_until<T>(&self, answer: &mpsc::Receiver<T>) -> T {
        loop {
            self.node.step_journal().expect("a sound disk");
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(mpsc::TryRecvError::Empty) => std::thread::yield_now(),
                Err(mpsc::TryRecvError::Disconnected) => panic!("the client has ended"),
            }
        }
    }

    fn over(node: Arc<Node>, agent: Option<HomeAgent>, dir: Arc<TempDir>, config: EngineConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let worker = node.worker(&Handle::standalone(1)).expect("a worker");
        let engine = runtime.block_on(Engine::open(Arc::clone(&node), config, &worker)).expect("an engine");
        Self { engine, node, dir, agent, threads: None, columns: None }
    }

    /// Another engine of the same node, as after a restart.
    pub fn another_engine(&self) -> Self {
        Self::over(Arc::clone(&self.node), None, Arc::clone(&self.dir), self.engine.config().clone())
    }

    /// Closes the database and opens it again in the same directory.
    pub fn reopen(self) -> Self {
        let Self { engine, node, dir, agent, threads, columns } = self;
        let config = engine.config().clone();
        drop((engine, agent, threads, columns));
        node.close();
        drop(node);
        Self::open(dir, config, 256 << 20)
    }

    pub fn client(&self) -> Client {
        static SEED: AtomicU64 = AtomicU64::new(100);
        let (engine, node) = (Arc::clone(&self.engine), Arc::clone(&self.node));
        let (requests, inbox) = mpsc::channel::<Request>();
        let (told, cancel) = mpsc::channel();
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let handle = Handle::standalone(SEED.fetch_add(1, Ordering::Relaxed));
            let mut beside = Box::pin(handle.drive());
            let worker = Rc::new(node.worker(&handle).expect("a worker"));
            let mut session = engine.session(worker, "tester");
            told.send(session.cancel_handle()).expect("the test listens");
            for request in inbox {
                serve(request, &mut session, &runtime, &mut beside);
            }
        });
        let thread = thread.expect("a thread");
        Client { requests: Some(requests), thread: Some(thread), cancel: cancel.recv().expect("the client starts") }
    }
}

/// Runs `future` concurrently with the background work of transactions.
fn drive<T>(runtime: &tokio::runtime::Runtime, beside: &mut Pin<Box<Drive>>, future: impl Future<Output = T>) -> T {
    runtime.block_on(async {
        tokio::select! {
            done = future => done,
            never = beside.as_mut() => match never {},
        }
    })
}

fn serve(request: Request, session: &mut Session, runtime: &tokio::runtime::Runtime, beside: &mut Pin<Box<Drive>>) {
    // The receiver of the reply is gone if the test has failed.
    match request {
        Request::Run(sql, parameters, reply) => {
            let _ = reply.send(drive(runtime, beside, run(session, &sql, &parameters)));
        }
        Request::Batch(sql, reply) => {
            let _ = reply.send(drive(runtime, beside, batch(session, &sql)));
        }
        Request::Copy(sql, chunks, abort, reply) => {
            let _ = reply.send(drive(runtime, beside, copy(session, &sql, chunks, abort)));
        }
        Request::State(reply) => {
            let _ = reply.send(session.transaction_state());
        }
        Request::With(body, reply) => {
            body(session, runtime);
            let _ = reply.send(());
        }
    }
}

/// Runs a statement in the session's thread; `between` is called whenever the statement yields.
pub fn run_with_waits(
    client: &Client,
    sql: &'static str,
    mut between: impl AsyncFnMut(&CancelHandle) + Send + 'static,
) -> Result<String, SqlError> {
    client.with(move |session, runtime| {
        let cancel = session.cancel_handle();
        runtime.block_on(async {
            let mut statement = pin!(run(session, sql, &[]));
            loop {
                tokio::select! {
                    biased;
                    done = statement.as_mut() => return done.map(|answer| answer.tag),
                    () = tokio::task::yield_now() => between(&cancel).await,
                }
            }
        })
    })
}

/// Prepares and runs one statement, and reads all of its rows.
pub async fn run(session: &mut Session, sql: &str, parameters: &[Datum]) -> Result<Answer, SqlError> {
    match answer(session, sql, parameters).await {
        Ok(answer) => Ok(answer),
        Err(error) => Err(session.report_error(error).await),
    }
}

async fn answer(session: &mut Session, sql: &str, parameters: &[Datum]) -> Result<Answer, SqlError> {
    let prepared = session.prepare(sql, &[]).await?;
    let columns = prepared.columns.iter().flatten().map(|c| (c.name.clone(), c.data_type)).collect();
    // Before a SET takes effect.
    let zone = session.zone();
    let text = |row: &Vec<Datum>| row.iter().map(|datum| format_datum(datum, zone)).collect::<Vec<_>>();
    let mut direct = prepared.is_direct();
    let (rows, tag) = match session.execute(&prepared, parameters).await? {
        Output::Command(tag) => (Vec::new(), tag),
        Output::Rows(Rows::Direct { rows, tag }) => (rows.iter().map(text).collect(), tag),
        Output::Rows(Rows::Batches(mut batches)) => {
            direct = false;
            let mut all = Vec::new();
            while let Some(rows) = batches.next_rows(zone).await {
                all.extend(rows?.iter().map(text));
            }
            (all, batches.tag())
        }
        Output::CopyOut(mut copy) => {
            let mut all = Vec::new();
            while let Some(chunk) = copy.next().await {
                all.extend(chunk?);
            }
            let text = String::from_utf8(all).expect("COPY gives text");
            (text.lines().map(|line| vec![Some(line.to_owned())]).collect(), copy.tag())
        }
        Output::CopyIn(copy) => return Err(copy.abort("a test that gives no data")),
    };
    let notices = session.notices().into_iter().map(|n| n.message).collect();
    Ok(Answer { columns, rows, tag: tag.to_string(), direct, notices })
}

/// Runs a simple-query string as the wire protocol does.
async fn batch(session: &mut Session, sql: &str) -> Result<Vec<Answer>, SqlError> {
    let statements = Session::split(sql)?;
    if statements.len() > 1 {
        session.begin_implicit();
    }
    let mut answers = Vec::new();
    for statement in &statements {
        match run(session, statement, &[]).await {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                session.end_implicit().await?;
                return Err(error);
            }
        }
    }
    session.end_implicit().await?;
    Ok(answers)
}

async fn copy(
    session: &mut Session,
    sql: &str,
    chunks: Vec<Vec<u8>>,
    abort: Option<String>,
) -> Result<String, SqlError> {
    let prepared = session.prepare(sql, &[]).await?;
    let Output::CopyIn(mut copy) = session.execute(&prepared, &[]).await? else { panic!("not a COPY FROM STDIN") };
    for chunk in chunks {
        copy.push(&chunk).await?;
    }
    match abort {
        Some(message) => Err(copy.abort(&message)),
        None => copy.finish().await.map(|tag: CommandTag| tag.to_string()),
    }
}

impl Client {
    fn send(&self, request: Request) {
        self.requests.as_ref().expect("the client lives").send(request).expect("the client lives");
    }

    fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> T {
        let (reply, answer) = mpsc::channel();
        self.send(request(reply));
        answer.recv().expect("the client answers")
    }

    pub fn run(&self, sql: &str) -> Result<Answer, SqlError> {
        self.run_with(sql, &[])
    }

    pub fn run_with(&self, sql: &str, parameters: &[Datum]) -> Result<Answer, SqlError> {
        self.ask(|reply| Request::Run(sql.to_owned(), parameters.to_vec(), reply))
    }

    /// Sends a statement without waiting for the answer.
    pub fn start(&self, sql: &str) -> mpsc::Receiver<Result<Answer, SqlError>> {
        let (reply, answer) = mpsc::channel();
        self.send(Request::Run(sql.to_owned(), Vec::new(), reply));
        answer
    }

    pub fn batch(&self, sql: &str) -> Result<Vec<Answer>, SqlError> {
        self.ask(|reply| Request::Batch(sql.to_owned(), reply))
    }

    /// Runs a statement that must succeed, and returns its tag.
    #[track_caller]
    pub fn ok(&self, sql: &str) -> String {
        match self.run(sql) {
            Ok(answer) => answer.tag,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    /// Runs a query that must succeed, and returns its rows as lines.
    #[track_caller]
    pub fn rows(&self, sql: &str) -> Vec<String> {
        match self.run(sql) {
            Ok(answer) => answer.lines(),
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    /// A query's rows, sorted.
    #[track_caller]
    pub fn sorted(&self, sql: &str) -> Vec<String> {
        let mut rows = self.rows(sql);
        rows.sort();
        rows
    }

    /// Runs a statement that must fail.
    #[track_caller]
    pub fn err(&self, sql: &str) -> SqlError {
        match self.run(sql) {
            Ok(answer) => panic!("{sql}: {answer:?}"),
            Err(error) => error,
        }
    }

    pub fn copy(&self, sql: &str, data: &str) -> Result<String, SqlError> {
        // In chunks that split lines.
        let chunks = data.as_bytes().chunks(7).map(<[u8]>::to_vec).collect();
        self.ask(|reply| Request::Copy(sql.to_owned(), chunks, None, reply))
    }

    pub fn copy_aborted(&self, sql: &str, data: &str) -> SqlError {
        let chunks = vec![data.as_bytes().to_vec()];
        self.ask(|reply| Request::Copy(sql.to_owned(), chunks, Some("enough".to_owned()), reply)).unwrap_err()
    }

    pub fn state(&self) -> TransactionState {
        self.ask(Request::State)
    }

    pub fn with<T: Send + 'static>(
        &self,
        body: impl FnOnce(&mut Session, &tokio::runtime::Runtime) -> T + Send + 'static,
    ) -> T {
        let (give, take) = mpsc::channel();
        let body = move |session: &mut Session, runtime: &tokio::runtime::Runtime| {
            give.send(body(session, runtime)).expect("the test listens");
        };
        self.ask(|reply| Request::With(Box::new(body), reply));
        take.recv().expect("the body ran")
    }
}
