//! The key-value workload without the binary: `cargo bench -p farhold-bench --bench kv -- [--redis-port PORT] [--seconds 2]
//! [--quick] [--network [TEXT]] [--json FILE]`
//!
//! Values of 128 B to 8 KiB; uniform and Zipf; single gets and batches of eight; without puts, and with a writer by message and
//! by transaction. With a port, also the same gets against the Redis there, turn by turn: as many clients, as many gets in
//! flight, rows that caches hold and rows that they do not. Built with `--features libfabric` it also runs over TCP, with a home
//! agent that sleeps while it has no requests and with one that spins, beside Redis and beside an exchange of as many bytes by
//! libfabric alone. `--network` runs only that part, and only rows with that text in their names.

use farhold_bench::workload::kv::{self, Outcome, Plan, Put, Spread};
use farhold_fabric::provider;
use farhold_report::Report;

/// Pairs of runs beside Redis, whose median ratio is reported.
const PAIRS: usize = 3;
/// The loads over a network: (threads, clients of each, gets in flight of each client). Fifty clients that get one by one are the
/// default of `redis-benchmark`.
const LOADS: [(u16, u16, usize); 7] =
    [(1, 1, 1), (1, 8, 1), (1, 50, 1), (1, 1, 32), (2, 1, 32), (1, 8, 32), (1, 50, 32)];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let quick = args.iter().any(|arg| arg == "--quick" || arg == "--test");
    let seconds: u64 = value("--seconds").map_or(2, |text| text.parse().expect("seconds"));
    let port: Option<u16> = value("--redis-port").map(|text| text.parse().expect("a port"));
    let mut report = Report::new(quick);
    let (keys, span_ns) = if quick { (200, 20_000_000) } else { (20_000, seconds * 1_000_000_000) };
    let plan = Plan {
        keys,
        value_bytes: 128,
        readers: 1,
        clients: 1,
        writers: 0,
        batch: 1,
        spread: Spread::Uniform,
        put: Put::Message,
        span_ns,
        seed: 42,
        provider: "shm".into(),
        bound: false,
    };
    let network = args.iter().position(|arg| arg == "--network");
    let wanted =
        network.and_then(|at| args.get(at + 1)).filter(|text| !text.starts_with("--")).map_or("", String::as_str);
    if network.is_none() {
        over_shm(&mut report, &plan, port);
    }
    if let Some(provider) = over_tcp() {
        report.table(&format!("Over {provider}: uniform, no puts, {keys} keys; thousand gets/s, both asked alike"));
        for (readers, clients, batch) in LOADS {
            for value_bytes in [128, 1024] {
                let plan = Plan { readers, clients, batch, value_bytes, span_ns: span_ns / 2, ..plan.clone() };
                let plan = Plan { provider: provider.clone(), bound: true, ..plan };
                let all = readers * clients;
                let asked = if batch == 1 { "one by one".to_owned() } else { format!("{batch} in flight each") };
                let name = format!("{value_bytes} B, {all} clients on {readers} threads, {asked}");
                if name.contains(wanted) {
                    report.row("tcp", &name, &over_network(&plan, port));
                }
            }
        }
    }
    if let Some(path) = value("--json") {
        report.write(path.as_ref()).expect("write the figures");
    }
}

/// Gets of rows that are mapped.
fn over_shm(report: &mut Report, plan: &Plan, port: Option<u16>) {
    let keys = plan.keys;
    for batch in [1, 8] {
        report.table(&format!("1 reader, {batch} gets a batch, {keys} keys"));
        for value_bytes in [128, 1024, 8192] {
            for (spread, spread_name) in [(Spread::Uniform, "uniform"), (Spread::Zipf(0.99), "zipf")] {
                for (writers, put, writer) in [
                    (0, Put::Message, "no puts"),
                    (1, Put::Message, "puts by message"),
                    (1, Put::Transaction, "puts by transaction"),
                ] {
                    let plan = Plan { value_bytes, writers, batch, spread, put, ..plan.clone() };
                    let name = format!("{value_bytes} B x {batch}, {spread_name}, {writer}");
                    report.row("kv", &name, &beside(&plan, port.filter(|_| writers == 0)));
                }
            }
        }
    }
    if let Some(port) = port {
        report.table("More clients, and rows that no cache holds: uniform, no puts");
        for (keys, readers, batch) in [(keys, 2, 1), (keys, 4, 1), (keys, 4, 8), (10 * keys, 1, 1), (10 * keys, 1, 8)] {
            for value_bytes in [128, 1024] {
                let plan = Plan { keys, readers, batch, value_bytes, ..plan.clone() };
                let name = format!("{value_bytes} B x {batch}, {readers} clients, {keys} keys");
                report.row("clients", &name, &beside(&plan, Some(port)));
            }
        }
    }
}

/// Farhold with a home agent that sleeps and with one that spins, on processors of their own, and a Redis with the same gets,
/// turn by turn: by this program's client and by `redis-benchmark`, each on processors of their own and where the system puts
/// them, of which the best counts. Medians, and beside them the rate that the provider's own messages would permit.
fn over_network(plan: &Plan, port: Option<u16>) -> Vec<(&'static str, f64)> {
    const OURS: [&str; 2] = ["agent=sleeps", "agent=spins"];
    let mut ours = OURS.map(|_| Vec::new());
    let mut theirs = [const { Vec::new() }; 4];
    for _ in 0..PAIRS {
        for (agent, outcomes) in OURS.iter().zip(&mut ours) {
            let plan = Plan { provider: format!("{}?{agent}", plan.provider), ..plan.clone() };
            outcomes.push(kv::run(&plan).expect("a run"));
        }
        for (at, bound) in [false, true].into_iter().enumerate() {
            let Some(port) = port.filter(|port| kv::redis::bind(*port, bound).expect("the server")) else { continue };
            let plan = Plan { bound, ..plan.clone() };
            let asked = kv::redis::run(&plan, port).expect("a run");
            let gets = asked.gets_per_second() * plan.span_ns as f64 / 1e9;
            theirs[2 * at].push(asked.gets_per_second() / 1e3);
            let other = kv::redis::benchmark(&plan, port, gets as u64).expect("a run");
            theirs[2 * at + 1].extend(other.map(|rate| rate / 1e3));
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    };
    let mut rates = ours.each_ref().map(|of| of.iter().map(|it| it.gets_per_second() / 1e3).collect::<Vec<_>>());
    let (sleeps, spins) = (median(&mut rates[0]).expect("it ran"), median(&mut rates[1]).expect("it ran"));
    let p50 = |of: &[Outcome]| of[0].batch_latency.quantile_ns(0.5) as f64 / 1e3;
    let mut figures = vec![("sleeps", sleeps), ("p50 us", p50(&ours[0])), ("spins", spins), ("p50 us ", p50(&ours[1]))];
    figures.extend(exchange_rate(plan).map(|bound| ("an exchange alone", bound)));
    let names = ["redis, our client", "redis-benchmark", "bound, our client", "bound, redis-benchmark"];
    let theirs = theirs.each_mut().map(median);
    figures.extend(names.into_iter().zip(theirs).filter_map(|(name, rate)| Some((name, rate?))));
    if let Some(best) = theirs.into_iter().flatten().max_by(f64::total_cmp) {
        figures.push(("sleeps/redis", sleeps / best));
        figures.push(("least", rates[0][0] / best));
        figures.push(("spins/redis", spins / best));
    }
    figures
}

/// Thousand gets a second if a thread's clients, all together, cost one exchange of as many bytes by the provider's own messages and
/// nothing else, times the threads.
#[cfg(feature = "libfabric")]
fn exchange_rate(plan: &Plan) -> Option<f64> {
    /// Bytes of a get and its answer beside the value, and of each client's batch beside its gets.
    const GET: usize = 40;
    const ANSWER: usize = 72;
    const BATCH: usize = 48;
    let name = plan.provider.strip_prefix("libfabric:")?.split('?').next()?;
    let (clients, gets) = (usize::from(plan.clients), usize::from(plan.clients) * plan.batch);
    let (asked, answered) = (clients * BATCH + gets * GET, clients * BATCH + gets * (ANSWER + plan.value_bytes));
    // On a thread of its own, which may be bound.
    let ns =
        std::thread::scope(|scope| scope.spawn(|| exchange_ns(name, asked, answered)).join().expect("the exchange"))?;
    Some((gets * usize::from(plan.readers)) as f64 * 1e6 / ns as f64)
}

/// Nanoseconds of an exchange by the provider's own messages, with the answering side on another processor.
#[cfg(feature = "libfabric")]
fn exchange_ns(provider: &str, asked: usize, answered: usize) -> Option<u64> {
    use farhold_fabric::processor;
    use farhold_fabric::provider::libfabric::rival::Rival;
    const EXCHANGES: usize = 5_000;
    /// Of the request, no more than one frame counts.
    const ASKED_MAX: usize = 15 << 10;
    let usable = processor::usable();
    processor::bind_this_thread(usable[usable.len().saturating_sub(2)]);
    let mut rival = Rival::open(provider, 1 << 20, false).ok()?;
    processor::bind_this_thread(usable[0]);
    rival.set_polling(true);
    let clock = farhold_fabric::Executor::real(0).handle();
    let mut times: Vec<u64> = (0..EXCHANGES)
        .map(|_| {
            let before_ns = clock.now_ns();
            rival.exchange(asked.min(ASKED_MAX), answered);
            clock.now_ns() - before_ns
        })
        .collect();
    times.sort_unstable();
    Some(times[EXCHANGES / 2])
}

/// This build knows no network.
#[cfg(not(feature = "libfabric"))]
fn exchange_rate(_: &Plan) -> Option<f64> {
    None
}

/// The way over TCP of this build and machine.
fn over_tcp() -> Option<String> {
    let here = provider::ALL.iter().flat_map(|kind| (kind.here)());
    here.map(|here| here.name).find(|name| name.ends_with("tcp;ofi_rxm"))
}

/// A run, or pairs of runs beside the Redis at a port.
fn beside(plan: &Plan, port: Option<u16>) -> Vec<(&'static str, f64)> {
    let Some(port) = port else { return figures(&kv::run(plan).expect("a run")) };
    let plan = Plan { span_ns: plan.span_ns / 2, ..plan.clone() };
    let mut pairs: Vec<(Outcome, Outcome)> =
        (0..PAIRS).map(|_| (kv::run(&plan).expect("a run"), kv::redis::run(&plan, port).expect("a run"))).collect();
    let ratio = |(ours, theirs): &(Outcome, Outcome)| ours.gets_per_second() / theirs.gets_per_second().max(1.0);
    pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let median = &pairs[PAIRS / 2];
    let mut all = figures(&median.0);
    all.push(("redis million gets/s", median.1.gets_per_second() / 1e6));
    all.push(("redis p50 us", median.1.batch_latency.quantile_ns(0.5) as f64 / 1e3));
    all.push(("farhold/redis", ratio(median)));
    all.push(("least", ratio(&pairs[0])));
    all
}

fn figures(ours: &Outcome) -> Vec<(&'static str, f64)> {
    vec![
        ("million gets/s", ours.gets_per_second() / 1e6),
        ("thousand puts/s", ours.puts_per_second() / 1e3),
        ("p50 us", ours.batch_latency.quantile_ns(0.5) as f64 / 1e3),
        ("p99 us", ours.batch_latency.quantile_ns(0.99) as f64 / 1e3),
        ("torn %", 100.0 * ours.torn as f64 / (ours.gets + ours.torn).max(1) as f64),
    ]
}
