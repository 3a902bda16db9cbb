//! `farhold node`: a node process of a demo or a bench. Its parent commands it by lines of JSON (see [`super::event`]).

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use farhold_bench::allocator;
use farhold_bench::measure::Counter;
use farhold_bench::workload::ch;
use farhold_bench::workload::tpcc::driver::{self, Counters, Plan, Totals};
use farhold_bench::workload::tpcc::input::{Kind, Shares};
use farhold_bench::workload::tpcc::load::{Loader, warehouses_of};
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::{Scale, tables::Tables};
use farhold_fabric::{Executor, ephemeral, processor};
use farhold_sql::arrow_copy::ArrowCopy;
use farhold_sql::engine::EngineConfig;
use farhold_sql::server::{ServerConfig, ServerHandle};

use super::args::NodeArgs;
use super::clock::{Stopwatch, unix_us};
use super::event::{Columns, Command, Event, Interval, Memory, TypeTotals};
use super::{serve, signal};
use crate::{Config, Database, TxnError};

/// Between two progress lines of a load.
const LOAD_TICK: Duration = Duration::from_millis(200);

/// Runs the command. The parent prints the error.
pub fn run(args: &NodeArgs) -> Result<(), String> {
    signal::leave_to_parent();
    if let Some(first) = args.pin_from {
        // A worker that is bound has its processor to itself, as far as there are others: this thread starts all other threads.
        let of_workers = first..first + usize::from(args.workers);
        let others: Vec<usize> =
            processor::usable().into_iter().filter(|number| !of_workers.contains(number)).collect();
        processor::bind_this_thread_to(&others);
    }
    let outcome = NodeProcess::open(args).and_then(|mut node| node.serve_parent());
    if let Err(message) = &outcome {
        say(&Event::Failed { message: message.clone() });
    }
    // The parent prints the failure. A second copy on standard error would reach the same reader.
    outcome.or(Ok(()))
}

struct NodeProcess<'a> {
    args: &'a NodeArgs,
    database: Arc<Database>,
    server: Option<ServerHandle>,
    arrow: Option<ArrowCopy>,
    commands: Receiver<Command>,
}

impl<'a> NodeProcess<'a> {
    fn open(args: &'a NodeArgs) -> Result<Self, String> {
        let commands = listen_to_parent();
        let config = Config::at(&args.dir).memory_bytes(args.memory).populate_bytes(args.populate);
        let config = config.column_bytes(args.column_memory).node(args.node, args.nodes).provider(&args.provider);
        let mut config = serve::replicated(config, &args.replicas).durability(serve::durability(&args.durability));
        if let Some(url) = &args.register {
            config = config.register(url);
        }
        // Before this node is ready, its parent sends no command except quit: any command, or the end of the pipe, ends the wait.
        let is_over = || !matches!(commands.try_recv(), Err(TryRecvError::Empty));
        let database = Database::open_unless(&config, is_over).map_err(|error| error.to_string())?;
        let database = Arc::new(database);
        let mut node = Self { args, database, server: None, arrow: None, commands };
        if let Some(listen) = args.listen {
            let config = ServerConfig { listen, ..ServerConfig::default() };
            let mut engine = EngineConfig { without_rules: args.without.clone(), ..EngineConfig::default() };
            if args.query_threads > 0 {
                engine.query_threads = args.query_threads;
            }
            node.server = Some(serve::start(&node.database, engine, config)?);
        }
        let listen = node.server.as_ref().map(|s| s.local_addr().to_string());
        say(&Event::Ready { listen });
        Ok(node)
    }

    fn serve_parent(&mut self) -> Result<(), String> {
        loop {
            let command = match self.commands.recv_timeout(serve::LOOK_AFTER) {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => {
                    self.check_membership()?;
                    allocator::give_back();
                    continue;
                }
                // The parent is gone.
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match command {
                Command::Create => self.create()?,
                Command::Load => self.load()?,
                Command::Run { seconds, tick_ms } => {
                    if !self.mix(seconds, Duration::from_millis(tick_ms))? {
                        break;
                    }
                }
                Command::ArrowQuery { sql } => self.arrow_query(&sql)?,
                Command::Columns => say(&Event::Columns(self.columns())),
                Command::Stop => {}
                Command::Quit => break,
            }
        }
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
        // The parent removes the directory. If the parent has ended without doing so, this process does it.
        let _ = ephemeral::remove(&self.args.dir);
        Ok(())
    }

    /// An error after the others have gone on without this node.
    fn check_membership(&self) -> Result<(), String> {
        if self.database.node().is_expelled() { Err(serve::EXPELLED.to_owned()) } else { Ok(()) }
    }

    fn create(&self) -> Result<(), String> {
        self.database
            .run(async |worker, _| {
                Tables::create(&worker).await?;
                if self.args.ch {
                    ch::create(&worker).await?;
                    for table in self.database.node().tables() {
                        worker.keep_columns(&table, serve::kept_columns(self.args.columns)).await?;
                    }
                    ch::load(&worker, self.database.node(), self.args.seed).await?;
                }
                Ok(())
            })
            .and_then(|outcome| outcome)
            .map_err(|error| told(&error))?;
        say(&Event::Created);
        Ok(())
    }

    /// Answers with DataFusion over a copy of the rows in Arrow memory.
    fn arrow_query(&mut self, sql: &str) -> Result<(), String> {
        if self.arrow.is_none() {
            let copy = self
                .database
                .run(async |worker, _| ArrowCopy::of(self.database.node(), &worker).await)
                .map_err(|error| error.to_string())?;
            self.arrow = Some(copy.map_err(|error| error.to_string())?);
        }
        let Some(copy) = &self.arrow else { return Ok(()) };
        let clock = Stopwatch::start();
        copy.query(sql).map_err(|error| error.to_string())?;
        say(&Event::ArrowAnswer { microseconds: clock.micros() });
        Ok(())
    }

    fn scale(&self) -> Scale {
        Scale::full(self.args.warehouses.cast_signed())
    }

    fn warehouses_of_node(&self) -> impl Iterator<Item = i32> {
        warehouses_of(self.args.node, self.args.nodes, self.args.warehouses.cast_signed())
    }

    /// The warehouses that worker `worker` of this node loads: each has one worker, some workers may have none.
    fn warehouses_to_load(&self, worker: u8) -> Vec<i32> {
        self.warehouses_of_node().skip(usize::from(worker)).step_by(usize::from(self.args.workers)).collect()
    }

    /// The warehouses whose terminals worker `worker` of this node runs: those it loads, or all if it loads none.
    fn warehouses_to_run(&self, worker: u8) -> Vec<i32> {
        let own = self.warehouses_to_load(worker);
        if own.is_empty() { self.warehouses_of_node().collect() } else { own }
    }

    fn load(&self) -> Result<(), String> {
        let scale = self.scale();
        let rows: Arc<Vec<Counter>> = Arc::new((0..self.args.workers).map(|_| Counter::default()).collect());
        let now_us = unix_us();
        let loaders: Vec<JoinHandle<Result<(), String>>> = (0..self.args.workers)
            .map(|number| {
                let (database, rows, seed) = (self.database.clone(), rows.clone(), self.args.seed);
                let warehouses = self.warehouses_to_load(number);
                let items = self.args.node == 0 && number == 0;
                std::thread::spawn(move || {
                    database
                        .run(async |worker, _| {
                            let tables = Tables::open(database.node())?;
                            let population = Population::new(scale, seed, now_us);
                            let counter = &rows[usize::from(number)];
                            let mut loader = Loader { worker: &worker, tables: &tables, population, rows: counter };
                            if items {
                                loader.items(scale).await?;
                            }
                            for w_id in warehouses {
                                loader.warehouse(scale, w_id).await?;
                            }
                            Ok(())
                        })
                        .and_then(|outcome: Result<(), TxnError>| outcome)
                        .map_err(|error| told(&error))
                })
            })
            .collect();
        let rows_total = self.warehouses_of_node().count() as u64 * scale.rows_per_warehouse()
            + if self.args.node == 0 { scale.items as u64 } else { 0 };
        let sum = || rows.iter().map(Counter::get).sum();
        while loaders.iter().any(|l| !l.is_finished()) {
            // A quit while loading: leave at once, and the files go too.
            match self.commands.recv_timeout(LOAD_TICK) {
                Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => {
                    let _ = ephemeral::remove(&self.args.dir);
                    std::process::exit(0);
                }
                _ => say(&Event::Loading { rows: sum(), rows_total }),
            }
        }
        for loader in loaders {
            loader.join().map_err(|_| "a loader panicked".to_owned())??;
        }
        say(&Event::Loaded { rows: sum(), memory: self.memory() });
        Ok(())
    }

    /// Runs the mix. False: the parent said quit meanwhile.
    fn mix(&self, seconds: u32, tick: Duration) -> Result<bool, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let counters: Vec<Arc<Counters>> = (0..self.args.workers).map(|_| Arc::default()).collect();
        let workers: Vec<JoinHandle<Result<(), String>>> = (0..self.args.workers)
            .map(|number| self.start_worker(number, &counters[usize::from(number)], &stop))
            .collect();
        let clock = Stopwatch::start();
        let (mut last, mut last_us) = (Totals::default(), 0);
        let mut quit = false;
        while clock.seconds() < f64::from(seconds) && !stop.load(Ordering::Relaxed) {
            if self.database.node().is_expelled() {
                break;
            }
            let left = f64::from(seconds) - clock.seconds();
            match self.commands.recv_timeout(tick.min(Duration::from_secs_f64(left.max(0.0)))) {
                Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => {
                    quit = true;
                    break;
                }
                Ok(Command::Stop) => break,
                Ok(_) => continue,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let (now, now_us) = (Totals::of(counters.iter().map(|c| &**c)), clock.micros());
            say(&Event::Tick(interval(&now.since(&last), now_us - last_us)));
            (last, last_us) = (now, now_us);
        }
        stop.store(true, Ordering::Relaxed);
        let elapsed_us = clock.micros();
        for worker in workers {
            let ended = worker.join().map_err(|_| "a worker panicked".to_owned())?;
            // The errors of an expelled node's workers follow from the expulsion.
            self.check_membership()?;
            ended?;
        }
        let totals = Totals::of(counters.iter().map(|c| &**c));
        let transactions = Kind::ALL
            .iter()
            .zip(&totals.kinds)
            .map(|(kind, of_kind)| TypeTotals {
                name: kind.name().to_owned(),
                commits: of_kind.commits,
                aborts: of_kind.conflicts,
                rollbacks: of_kind.rollbacks,
                latency_us: of_kind.latency.buckets_us(),
            })
            .collect();
        say(&Event::Finished { transactions, total: interval(&totals, elapsed_us), memory: self.memory() });
        Ok(!quit)
    }

    fn start_worker(
        &self,
        number: u8,
        counters: &Arc<Counters>,
        stop: &Arc<AtomicBool>,
    ) -> JoinHandle<Result<(), String>> {
        let worker_of_all = u32::from(self.args.node) * u32::from(self.args.workers) + u32::from(number);
        let plan = Plan {
            scale: self.scale(),
            shares: Shares {
                remote_item_percent: self.args.remote_item_percent.into(),
                remote_payment_percent: self.args.remote_payment_percent.into(),
            },
            load_seed: self.args.seed,
            seed: self.args.seed,
            worker: worker_of_all,
            warehouses: self.warehouses_to_run(number),
            in_flight: self.args.in_flight,
            clock_start_us: unix_us(),
            survives: self.args.survive,
        };
        let (database, counters, stop) = (self.database.clone(), counters.clone(), stop.clone());
        let processor = self.args.pin_from.map(|first| first + usize::from(number));
        std::thread::spawn(move || {
            if let Some(processor) = processor {
                processor::bind_this_thread(processor);
            }
            let executor = Executor::real(plan.seed ^ u64::from(worker_of_all));
            let handle = executor.handle();
            let outcome = (|| {
                let worker = database.node().worker(&handle)?;
                let tables = Tables::open(database.node())?;
                let ran = executor.run(driver::run(&worker, &handle, &tables, &plan, &counters, &stop));
                executor.run(worker.drain(database.node().config().request_timeout_ns));
                ran
            })();
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            outcome.map_err(|error| told(&error))
        })
    }

    fn columns(&self) -> Columns {
        let (node, of_node) = (self.database.node(), self.database.node().columns());
        Columns {
            tables: of_node.tables,
            building: of_node.building,
            without_room: of_node.without_room,
            delta_rows: of_node.size.delta_rows,
            waits_ns: node.column_waits(),
        }
    }

    fn memory(&self) -> Memory {
        let memory = self.database.node().memory();
        Memory { data: memory.data_bytes + memory.key_bytes, used: memory.used_bytes }
    }
}

fn interval(totals: &Totals, elapsed_us: u64) -> Interval {
    Interval {
        elapsed_us,
        commits: totals.commits(),
        new_orders: totals.new_orders(),
        payments: totals.kinds[Kind::Payment as usize].commits,
        aborts: totals.conflicts(),
        rollbacks: totals.rollbacks(),
        unavailable: totals.unavailable.count(),
        unavailable_us_max: totals.unavailable.quantile_ns(1.0) / 1000,
        latency_us: totals.latency().buckets_us(),
    }
}

fn listen_to_parent() -> Receiver<Command> {
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(command) = serde_json::from_str(&line) else { return };
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    commands
}

/// The error for a person, with the flag that helps where one does.
fn told(error: &TxnError) -> String {
    match error {
        TxnError::OutOfMemory { .. } => format!("{error}; --memory gives each node more"),
        _ => error.to_string(),
    }
}

/// Tells the parent. If the parent is gone, the closed standard input shows it.
fn say(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}
