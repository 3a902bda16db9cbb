//! Counters and latches under contention, by each actor: the experiments of Dreseler et al. (ADMS 2017, figures 8 to 10).
//!
//! A thread takes a number (or a latch), then does other work, again and again: nothing (high contention), 10 pauses of its
//! processor (medium: a third of a microsecond on a Zen) or 100 (low). The home agent is one more thread, on the processor after
//! those of the others. `mixed` is that of figure 9: the first thread of each socket uses its processor, the others the agent.

use super::placement::{Order, Processor, machine};
use farhold_fabric::ephemeral::Ephemeral;
use farhold_fabric::processor::bind_this_thread;
use farhold_fabric::sync::actor::{Agent, Cpu, Posted, WordAgent};
use farhold_fabric::sync::{Counter, Holder, Latch, WordOp, Words, counter, latch};
use farhold_fabric::{Address, Endpoint, Executor, Fabric, FabricError, FarPtr, NodeId, RegionId};
use farhold_report::Report;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

/// What is measured and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nanoseconds of each measurement.
    pub span_ns: u64,
    /// Numbers of threads to measure.
    pub threads: Vec<usize>,
    /// Onto which processors.
    pub orders: Vec<Order>,
}

impl Plan {
    /// Up to all processors, in all three orders. On one socket `interleaved` is `natural` over again, which shows how far two
    /// runs of the same thing differ. Without a custom order the last processors come first.
    #[must_use]
    pub fn of_this_machine(span_ns: u64, custom: Option<Vec<usize>>) -> Self {
        let machine = machine();
        let backwards = || Order::Natural.processors(&machine).into_iter().rev().collect();
        let orders = vec![Order::Natural, Order::Interleaved, Order::Custom(custom.unwrap_or_else(backwards))];
        Self { span_ns, threads: (1..=machine.len()).collect(), orders }
    }
}

/// The actor that executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The home agent.
    Agent,
    /// The thread's processor.
    Cpu,
    /// The first thread of a socket its processor, the others the agent.
    Mixed,
    /// No actor and no region: a number behind a mutex of the standard library, as a yardstick.
    Mutex,
    /// The provider.
    Posted,
}

/// All of them, by name.
pub const ALL: [Who; 5] = [Who::Agent, Who::Cpu, Who::Mixed, Who::Mutex, Who::Posted];

impl Who {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Cpu => "cpu",
            Self::Mixed => "mixed",
            Self::Mutex => "mutex",
            Self::Posted => "posted",
        }
    }
}

/// How long a thread does other work between two instructions, in pauses of the processor.
const CONTENTION: [(&str, u32); 3] = [("high", 0), ("medium", 10), ("low", 100)];
const REGION: RegionId = RegionId(1);
const AGENT_PORT: u16 = 9;
/// Numbers of one block.
const BLOCK: u32 = 64;

/// What came of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Numbers taken, or latches held and given back, in millions a second, by all threads.
    pub millions: f64,
    /// Attempts that succeeded, in percent.
    pub success_percent: f64,
}

/// Measures all combinations and reports them, with the number of threads from which the agent is faster than the processor.
///
/// # Errors
/// What the fabric refuses.
pub fn run(plan: &Plan, report: &mut Report) -> Result<(), FabricError> {
    let machine = machine();
    for order in &plan.orders {
        let processors = order.processors(&machine);
        counters(plan, order, &machine, &processors, report)?;
        latches(plan, order, &processors, report)?;
    }
    Ok(())
}

fn counters(
    plan: &Plan,
    order: &Order,
    machine: &[Processor],
    processors: &[usize],
    report: &mut Report,
) -> Result<(), FabricError> {
    for (contention, pauses) in CONTENTION {
        report.table(&format!("Counter, {contention} contention, {} order: million numbers a second", order.name()));
        let mut crossover = None;
        for &threads in &plan.threads {
            let mut figures = Vec::new();
            for who in ALL {
                let bed = Bed { processors, machine, threads, pauses, span_ns: plan.span_ns };
                figures.push((who.name(), bed.counter(who, counter::Form::Single)?.millions));
            }
            let of = |name: &str| figures.iter().find(|figure| figure.0 == name).map_or(0.0, |figure| figure.1);
            if crossover.is_none() && of("agent") >= of("cpu") {
                crossover = Some(threads);
            }
            let bed = Bed { processors, machine, threads, pauses, span_ns: plan.span_ns };
            for (name, form) in
                [("cpu batched", counter::Form::Batched(BLOCK)), ("cpu striped", counter::Form::Striped(8))]
            {
                figures.push((name, bed.counter(Who::Cpu, form)?.millions));
            }
            report.row("counter", &format!("{}, {contention}, {threads} threads", order.name()), &figures);
        }
        say_crossover("the agent is ahead of the processor", crossover);
        report.row(
            "crossover",
            &format!("counter, {}, {contention}", order.name()),
            &[("threads", crossover.map_or(0.0, |threads| threads as f64))],
        );
    }
    Ok(())
}

fn latches(plan: &Plan, order: &Order, processors: &[usize], report: &mut Report) -> Result<(), FabricError> {
    for (contention, pauses) in CONTENTION {
        report.table(&format!(
            "Latch, {contention} contention, {} order: million entries a second, attempts that succeeded in percent",
            order.name()
        ));
        let mut crossover = None;
        for &threads in &plan.threads {
            let mut figures = Vec::new();
            for (name, who, form) in [
                ("agent", Who::Agent, latch::Form::Plain),
                ("agent %", Who::Agent, latch::Form::Plain),
                ("cpu", Who::Cpu, latch::Form::Plain),
                ("cpu %", Who::Cpu, latch::Form::Plain),
                ("cpu fair", Who::Cpu, latch::Form::Fair(64)),
                ("cpu fair %", Who::Cpu, latch::Form::Fair(64)),
            ] {
                let value = if let Some(before) = name.strip_suffix(" %") {
                    figures
                        .iter()
                        .find(|figure: &&(&str, Outcome)| figure.0 == before)
                        .map_or_else(Outcome::default, |f| f.1)
                } else {
                    let bed = Bed { processors, machine: &[], threads, pauses, span_ns: plan.span_ns };
                    bed.latch(who, form)?
                };
                figures.push((name, value));
            }
            let of =
                |name: &str| figures.iter().find(|figure| figure.0 == name).map_or(0.0, |figure| figure.1.millions);
            if crossover.is_none() && of("agent") >= of("cpu") {
                crossover = Some(threads);
            }
            let figures: Vec<(&str, f64)> = figures
                .iter()
                .map(|(name, outcome)| {
                    (*name, if name.ends_with('%') { outcome.success_percent } else { outcome.millions })
                })
                .collect();
            report.row("latch", &format!("{}, {contention}, {threads} threads", order.name()), &figures);
        }
        say_crossover("the agent is ahead of the processor", crossover);
        report.row(
            "crossover",
            &format!("latch, {}, {contention}", order.name()),
            &[("threads", crossover.map_or(0.0, |threads| threads as f64))],
        );
    }
    Ok(())
}

fn say_crossover(what: &str, crossover: Option<usize>) {
    match crossover {
        Some(threads) => println!("  {what} from {threads} threads on"),
        None => println!("  {what} with no number of threads of this machine: the default is the processor"),
    }
}

/// Any actor.
enum Any {
    Agent(Agent),
    Cpu(Cpu),
    Posted(Posted),
}

impl Words for Any {
    #[inline]
    async fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        match self {
            Self::Agent(words) => words.execute(at, op).await,
            Self::Cpu(words) => words.execute(at, op).await,
            Self::Posted(words) => words.execute(at, op).await,
        }
    }
    async fn pause(&self) {
        match self {
            Self::Agent(words) => words.pause().await,
            Self::Cpu(words) => words.pause().await,
            Self::Posted(words) => words.pause().await,
        }
    }
}

/// One measurement.
struct Bed<'a> {
    processors: &'a [usize],
    machine: &'a [Processor],
    threads: usize,
    pauses: u32,
    span_ns: u64,
}

fn at(offset: u64) -> FarPtr {
    FarPtr::new(NodeId(0), REGION, offset)
}

impl Bed<'_> {
    /// Whether the thread uses its processor, where some threads do and some do not.
    fn is_first_of_its_socket(&self, thread: usize) -> bool {
        let socket = |thread: usize| {
            let number = self.processors[thread % self.processors.len()];
            self.machine.iter().find(|processor| processor.number == number).map_or(0, |processor| processor.socket)
        };
        (0..thread).all(|earlier| socket(earlier) != socket(thread))
    }

    fn actor(&self, who: Who, thread: usize, endpoint: &Rc<Endpoint>) -> Any {
        let cpu = || Any::Cpu(Cpu::on(endpoint, NodeId(0), REGION).expect("shm maps every region"));
        let agent = || Any::Agent(Agent::asked_at(endpoint, Address { node: NodeId(0), port: AGENT_PORT }));
        match who {
            Who::Mixed if self.is_first_of_its_socket(thread) => cpu(),
            Who::Agent | Who::Mixed => agent(),
            Who::Cpu | Who::Mutex => cpu(),
            Who::Posted => Any::Posted(Posted::by(endpoint)),
        }
    }

    fn counter(&self, who: Who, form: counter::Form) -> Result<Outcome, FabricError> {
        let behind_mutex = Mutex::new(0_u64);
        self.run(who, async |words: &Any, thread: usize, stop: &AtomicBool| {
            let mut numbers = Counter::new(at(0), form).numbers(thread as u32);
            let mut done = 0;
            // At least once: a thread may get its processor late.
            loop {
                if who == Who::Mutex {
                    *behind_mutex.lock().expect("no thread panics while it holds the lock") += 1;
                } else {
                    numbers.next(words).await?;
                }
                done += 1;
                self.something_else();
                if stop.load(Ordering::Relaxed) {
                    return Ok((done, done));
                }
            }
        })
    }

    fn latch(&self, who: Who, form: latch::Form) -> Result<Outcome, FabricError> {
        self.run(who, async |words: &Any, thread: usize, stop: &AtomicBool| {
            let latch = Latch::new(at(4096), form);
            let me = Holder { configuration: 1, node: NodeId(0), thread: thread as u16 };
            let (mut done, mut attempts) = (0, 0);
            loop {
                // The attempts are limited so that the end is seen.
                match latch.acquire(words, me, 1000).await {
                    Ok(held) => {
                        attempts += held.attempts;
                        done += 1;
                        latch.release(words, held).await.map_err(|_| FabricError::Timeout { waited_ns: 0 })?;
                        self.something_else();
                    }
                    Err(latch::LatchError::Busy { attempts: tried }) => attempts += tried,
                    Err(latch::LatchError::Fabric(error)) => return Err(error),
                    Err(latch::LatchError::Lost) => unreachable!("no holder is declared dead"),
                }
                if stop.load(Ordering::Relaxed) {
                    return Ok((done, attempts));
                }
            }
        })
    }

    fn something_else(&self) {
        for _ in 0..self.pauses {
            std::hint::spin_loop();
        }
    }

    /// Runs `body` on all threads for the span; it returns how often it succeeded and how often it tried.
    fn run(
        &self,
        who: Who,
        body: impl AsyncFn(&Any, usize, &AtomicBool) -> Result<(u64, u64), FabricError> + Sync,
    ) -> Result<Outcome, FabricError> {
        let directory = Ephemeral::new()?;
        let fabric = Fabric::join_shm(directory.path(), NodeId(0))?;
        fabric.create_region(REGION, 64 << 10)?;
        let (stop, agent_stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (done, tried) = (AtomicU64::new(0), AtomicU64::new(0));
        let needs_agent = matches!(who, Who::Agent | Who::Mixed);
        let start = Barrier::new(self.threads + 1 + usize::from(needs_agent));
        let processor = |thread: usize| self.processors[thread % self.processors.len()];
        let elapsed_ns = std::thread::scope(|scope| {
            if needs_agent {
                scope.spawn(|| {
                    bind_this_thread(processor(self.threads));
                    let executor = Executor::real(0);
                    let endpoint = Rc::new(fabric.endpoint_at(&executor.handle(), AGENT_PORT)?);
                    let agent = WordAgent::at(&endpoint);
                    start.wait();
                    let mut idle = 0_u32;
                    while !agent_stop.load(Ordering::Relaxed) {
                        idle = if agent.poll() > 0 { 0 } else { idle + 1 };
                        if idle % 256 == 255 {
                            std::thread::yield_now();
                        }
                    }
                    Ok::<(), FabricError>(())
                });
            }
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (start, stop, done, tried, fabric, body) = (&start, &stop, &done, &tried, &fabric, &body);
                    scope.spawn(move || {
                        bind_this_thread(processor(thread));
                        let executor = Executor::real(thread as u64);
                        let endpoint = fabric.endpoint(&executor.handle()).map(Rc::new);
                        start.wait();
                        let words = self.actor(who, thread, &endpoint?);
                        let (mine, attempts) = executor.run(body(&words, thread, stop))?;
                        done.fetch_add(mine, Ordering::Relaxed);
                        tried.fetch_add(attempts, Ordering::Relaxed);
                        Ok::<(), FabricError>(())
                    })
                })
                .collect();
            start.wait();
            let clock = Executor::real(0).handle();
            let began_ns = clock.now_ns();
            let end_ns = began_ns + self.span_ns;
            while clock.now_ns() < end_ns {
                std::thread::park_timeout(std::time::Duration::from_nanos(end_ns.saturating_sub(clock.now_ns())));
            }
            stop.store(true, Ordering::Relaxed);
            let elapsed_ns = clock.now_ns() - began_ns;
            let outcome =
                threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of the measurement"));
            agent_stop.store(true, Ordering::Relaxed);
            outcome.map(|()| elapsed_ns)
        })?;
        let (done, tried) = (done.into_inner() as f64, tried.into_inner() as f64);
        Ok(Outcome { millions: done * 1e3 / elapsed_ns as f64, success_percent: 100.0 * done / tried.max(1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every measurement runs and counts something.
    #[test]
    fn everything_is_measured() {
        let plan = Plan { span_ns: 2_000_000, threads: vec![1, 2], orders: vec![Order::Natural] };
        let mut report = Report::new(true);
        run(&plan, &mut report).unwrap();
        let json = report.json();
        assert_eq!(json.matches("\"table\": \"counter\"").count(), 3 * 2);
        assert_eq!(json.matches("\"table\": \"latch\"").count(), 3 * 2);
        assert_eq!(json.matches("\"table\": \"crossover\"").count(), 3 + 3);
        let bed = Bed { processors: &[0], machine: &[], threads: 1, pauses: 0, span_ns: 2_000_000 };
        for who in ALL {
            assert!(bed.counter(who, counter::Form::Single).unwrap().millions > 0.0, "{who:?}");
        }
        let alone = bed.latch(Who::Cpu, latch::Form::Plain).unwrap();
        assert!((alone.success_percent - 100.0).abs() < f64::EPSILON, "{alone:?}");
    }
}
