//! What the fabric's providers are on this machine, which instructions the hardware executes, which a program emulates, and what
//! each costs: the measures behind `farhold fabric info`.

use farhold_fabric::batch::OpKind;
use farhold_fabric::ephemeral::Ephemeral;
use farhold_fabric::latencies::LatencyRecorder;
use farhold_fabric::provider::{self, Doer, Kind};
use farhold_fabric::{
    Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, Meta, NodeId, RegionId, Slot, Version, object,
};

/// Memory instructions by name, as the table of providers shows them. Two operations are missing because no other component
/// executes them: messages are every provider's own, and `Batch::cancel` takes an instruction back before it is submitted.
pub const INSTRUCTIONS: &[(&str, OpKind)] = &[
    ("read", OpKind::Read),
    ("write", OpKind::Write),
    ("read_object", OpKind::ReadObject),
    ("fetch_add", OpKind::FetchAdd),
    ("compare_swap", OpKind::CompareSwap),
    ("swap", OpKind::Swap),
    ("and", OpKind::And),
    ("or", OpKind::Or),
    ("xor", OpKind::Xor),
    ("clear", OpKind::Clear),
    ("flush", OpKind::Flush),
];

/// Transfers that are measured, in bytes.
pub const SIZES: &[usize] = &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Short instructions between two looks at the clock.
pub const GROUP: u64 = 16;

/// One measured instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its name.
    pub instruction: &'static str,
    /// Bytes that it moves.
    pub bytes: usize,
    /// How often it was done.
    pub count: u64,
    /// The median time from the call of `submit` until the result was there, one instruction at a time. Up to 4 KiB it is the
    /// mean of [`GROUP`] instructions one after the other, because reading the clock takes as long as one of them.
    pub p50_ns: u64,
    /// The 99th percentile of the same time.
    pub p99_ns: u64,
    /// Megabytes (10^6 bytes) a second, one at a time.
    pub megabytes_per_second: f64,
}

/// A provider on this machine.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its name; with the way to reach it, if there are several.
    pub name: String,
    /// What it is.
    pub about: String,
    /// The component that executes each of [`INSTRUCTIONS`].
    pub does: Vec<Doer>,
    /// The costs, or why they could not be measured.
    pub figures: Result<Vec<Figure>, String>,
}

/// The description of a doer.
#[must_use]
pub fn describe(doer: Doer) -> &'static str {
    match doer {
        Doer::Cpu => "native: this thread's processor",
        Doer::Nic => "native: the network card",
        Doer::HomeAgent => "emulated: an agent at the memory's home",
        Doer::Library => "long ones by libfabric's provider, else emulated: an agent at the memory's home",
        Doer::Simulation => "simulated",
    }
}

/// All providers. Those that are available here are measured, for about `span_ns` in total.
#[must_use]
pub fn providers(span_ns: u64) -> Vec<Info> {
    provider::ALL.iter().flat_map(|kind| of_kind(kind, span_ns)).collect()
}

fn of_kind(kind: &Kind, span_ns: u64) -> Vec<Info> {
    let does = || INSTRUCTIONS.iter().map(|(_, op)| (kind.does)(*op)).collect();
    let here = (kind.here)();
    if here.is_empty() {
        let figures = Err("there is none of it on this machine".to_owned());
        return vec![Info { name: kind.name.to_owned(), about: kind.about.to_owned(), does: does(), figures }];
    }
    let of = |here: provider::Here| Info {
        figures: figures(&here.name, span_ns),
        about: format!("{}; {}", kind.about, here.about),
        name: here.name,
        does: does(),
    };
    here.into_iter().map(of).collect()
}

/// Of two nodes of this machine.
fn figures(name: &str, span_ns: u64) -> Result<Vec<Figure>, String> {
    let directory = Ephemeral::new().map_err(|error| error.to_string())?;
    let join = |node| Fabric::join(directory.path(), NodeId(node), name).map_err(|error| error.to_string());
    measure(&join(0)?, &join(1)?, span_ns).map_err(|error| error.to_string())
}

const REGION: RegionId = RegionId(0);
/// The measurements: reads and writes of each size, an object of each of three sizes, and an addition.
const PARTS: u64 = 2 * SIZES.len() as u64 + OBJECTS.len() as u64 + 1;
const OBJECTS: &[usize] = &[128, 1 << 10, 8 << 10];

/// The costs of instructions of `away` on the memory of `home`. It takes about `span_ns`.
///
/// # Errors
/// What the fabric refuses.
pub fn measure(home: &Fabric, away: &Fabric, span_ns: u64) -> Result<Vec<Figure>, FabricError> {
    let largest = SIZES[SIZES.len() - 1] as u64;
    let memory = home.create_region(REGION, 2 * largest)?;
    memory.reserve(0, 2 * largest)?;
    let executor = Executor::real(1);
    let endpoint = away.endpoint(&executor.handle())?;
    let at = FarPtr::new(home.node(), REGION, 0);
    let part_ns = span_ns / PARTS;
    let mut figures = Vec::new();
    executor.run(async {
        for &bytes in SIZES {
            figures.push(one("read", bytes, &endpoint, part_ns, |batch| batch.read(at, bytes)).await?);
            let content = vec![1; bytes];
            figures.push(one("write", bytes, &endpoint, part_ns, |batch| batch.write(at, &content)).await?);
        }
        for &bytes in OBJECTS {
            memory.word(object::VERSION)?.store(Version::of_epoch(1).0, std::sync::atomic::Ordering::Release);
            let meta = Meta::new(1, Meta::ROW, 0, bytes);
            memory.word(object::META)?.store(meta.0, std::sync::atomic::Ordering::Release);
            figures.push(one("read_object", bytes, &endpoint, part_ns, |batch| batch.read_object(at, bytes)).await?);
        }
        figures.push(one("fetch_add", 8, &endpoint, part_ns, |batch| batch.fetch_add(at, 1)).await?);
        Ok(())
    })?;
    Ok(figures)
}

/// One instruction at a time, again and again.
async fn one(
    instruction: &'static str,
    bytes: usize,
    endpoint: &Endpoint,
    span_ns: u64,
    add: impl Fn(&mut Batch) -> Slot,
) -> Result<Figure, FabricError> {
    let latencies = LatencyRecorder::default();
    let handle = endpoint.handle();
    let group = if bytes <= 4 << 10 { GROUP } else { 1 };
    let mut batch = Batch::new();
    let start_ns = handle.now_ns();
    let (mut groups, mut spent_ns) = (0, 0);
    // At least some, and the first, which finds the region, does not count.
    while groups < 20 || handle.now_ns() - start_ns < span_ns {
        let before_ns = handle.now_ns();
        for _ in 0..group {
            batch.clear();
            let slot = add(&mut batch);
            batch = endpoint.submit(batch).await;
            batch.done(slot)?;
        }
        let ns = handle.now_ns() - before_ns;
        if groups > 0 {
            latencies.record(ns / group);
            spent_ns += ns;
        }
        groups += 1;
    }
    let count = (groups - 1) * group;
    let latencies = latencies.latencies();
    Ok(Figure {
        instruction,
        bytes,
        count,
        p50_ns: latencies.quantile_ns(0.5),
        p99_ns: latencies.quantile_ns(0.99),
        megabytes_per_second: count as f64 * bytes as f64 * 1e3 / spent_ns.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_is_described_and_shm_is_measured() {
        let infos = providers(20_000_000);
        for kind in provider::ALL {
            assert!(infos.iter().any(|info| info.name.split(':').next() == Some(kind.name)), "{}", kind.name);
        }
        for info in infos.iter().filter(|info| info.name.starts_with("libfabric:")) {
            let figures = info.figures.as_ref().expect("what is there can be measured");
            assert_eq!(figures.len() as u64, PARTS, "{}", info.name);
            assert!(!info.does.iter().any(|doer| doer.is_native()), "{}", info.name);
        }
        let shm = infos.iter().find(|info| info.name == "shm").expect("it is built in");
        assert!(shm.does.iter().all(|doer| doer.is_native()));
        let figures = shm.figures.as_ref().expect("this machine has shared memory");
        assert_eq!(figures.len() as u64, PARTS);
        for figure in figures {
            let plausible = figure.count >= 19 && figure.p50_ns <= figure.p99_ns && figure.megabytes_per_second > 0.0;
            assert!(plausible, "{figure:?}");
        }
        let p50_ns = |bytes| figures.iter().find(|f| f.instruction == "read" && f.bytes == bytes).unwrap().p50_ns;
        assert!(p50_ns(1 << 20) > p50_ns(64), "a megabyte takes longer than a line");
        let sim = infos.iter().find(|info| info.name == "sim").expect("it is built in");
        assert!(sim.figures.is_err() && sim.does.iter().all(|doer| !doer.is_native()));
    }
}
