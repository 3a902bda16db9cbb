//! The plan of a run, as a seed determines it.

use crate::hiccups::Hiccups;
use crate::workload::Workload;
use farhold_bench::workload::smallbank::Scale;
use farhold_store::durable::power::Medium;
use farhold_txn::CopyConfig;

/// A fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The node's process dies; it comes back when the others have gone on without it.
    Kill(u8),
    /// As a kill; in addition, some of its posted instructions are lost, also in the middle of a row, and some arrive
    /// much later.
    Crash(u8),
    /// The node is paused for this long.
    Pause(u8, u64),
    /// The node's machine is stopped for this long, and with it the clock that leases go by; its time of day goes on.
    Stop(u8, u64),
    /// The time of day of the node's machine is changed by this much.
    SetDay(u8, i64),
    /// Two nodes cannot reach each other, in one direction or in both, for this long.
    Cut(u8, u8, bool, u64),
    /// Everything from one node to another takes this much longer (first number), for this long (second).
    Slow(u8, u8, u64, u64),
    /// Each latency is stretched independently by up to this many hundredths (first number), for this long (second):
    /// completions overtake each other.
    Disorder(u64, u64),
    /// The node cannot reach the register for this long.
    NoRegister(u8, u64),
    /// Calls of the register each take up to this much longer (first number), for this long (second).
    SlowRegister(u64, u64),
    /// Fencing a node takes this long from now on.
    SlowFence(u64),
    /// Of the instructions that cut links lose from now on, this percentage is still executed, after their initiators have
    /// given them up.
    Late(u64),
    /// The node's host is cut off from the register and, in this direction, from the others, for as long as its process
    /// lives.
    Lose(u8, Way),
    /// As [`Blow::Lose`], but the host reaches the register, and renews its lease there.
    Isolate(u8, Way),
    /// The next write or sync of the node's journal, or of a checkpoint, fails.
    FailDisk(u8),
    /// No file can grow for this long.
    FillDisks(u64),
}

/// The messages that are lost between a host and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing.
    Both,
    /// What it sends.
    Out,
    /// What is sent to it.
    In,
}

impl Blow {
    /// Whether it lasts until it is ended.
    pub(super) fn is_lasting(&self) -> bool {
        self.ends_ns().is_some() || matches!(self, Self::Lose(..) | Self::Isolate(..))
    }

    /// When it must be ended, if it lasts.
    pub(super) fn ends_ns(&self) -> Option<u64> {
        match *self {
            Self::Cut(_, _, _, for_ns)
            | Self::Slow(_, _, _, for_ns)
            | Self::Disorder(_, for_ns)
            | Self::SlowRegister(_, for_ns)
            | Self::NoRegister(_, for_ns)
            | Self::FillDisks(for_ns) => Some(for_ns),
            _ => None,
        }
    }

    /// How long it lasts by itself.
    #[must_use]
    pub fn lasts_ns(&self) -> u64 {
        match *self {
            Self::Kill(_)
            | Self::Crash(_)
            | Self::SetDay(..)
            | Self::SlowFence(_)
            | Self::Late(_)
            | Self::Lose(..)
            | Self::Isolate(..)
            | Self::FailDisk(_) => 0,
            Self::Pause(_, for_ns)
            | Self::Stop(_, for_ns)
            | Self::Cut(_, _, _, for_ns)
            | Self::Slow(_, _, _, for_ns)
            | Self::Disorder(_, for_ns)
            | Self::FillDisks(for_ns)
            | Self::NoRegister(_, for_ns) => for_ns,
            // A call that began at its end arrives later.
            Self::SlowRegister(slow_ns_max, for_ns) => for_ns + slow_ns_max,
        }
    }
}

/// The clients' workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// Random transactions whose history is checked.
    Mixed(Workload),
    /// `SmallBank`: the accounts are checked at the end.
    Bank(Scale),
    /// Numbers are taken from counters in rows.
    Numbers,
    /// Tables and indexes are created and dropped, and regions run full.
    Tables,
    /// TPC-C, as small as it can be: its consistency conditions are checked at the end.
    Shop,
}

/// One transaction runs alone, and a node dies at a step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillAt {
    /// The node that runs the transaction.
    pub coordinator: u8,
    /// The node that dies; none, to count the steps.
    pub victim: Option<u8>,
    /// The number of events of the simulation, counted from the transaction's beginning, after which it dies.
    pub step: u64,
    /// Whether the dead node's posted instructions are partly lost or late.
    pub crash: bool,
}

/// The power of all nodes fails, and all nodes start again from the journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// When, after the clients have begun.
    pub at_ns: u64,
    /// Instead, this long after the next change of the configuration, if there is one soon.
    pub after_change_ns: Option<u64>,
    /// In the middle of writes: from that time on, before the file operation that follows this many others.
    pub operations: Option<u64>,
    /// Whether nodes that have ended, or hear that they have been expelled, come back when the others have gone on without them.
    pub with_returns: bool,
    /// The faults before the cut, by the time since the clients have begun.
    pub blows: Vec<(u64, Blow)>,
    /// How the nodes start again.
    pub starts: Starts,
}

/// How the nodes start after a cut of the power: node 0 first, and all of them, unless this says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// Which node takes the turn first.
    pub first: u8,
    /// A node that stays away for the next life, if the others get on without it.
    pub away: Option<u8>,
    /// A node whose process ends this long after its start, and is started again at once.
    pub twice: Option<(u8, u64)>,
}

/// How long a disk takes for operations that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// For a write, or a change of names, at most.
    pub write_ns_max: u64,
    /// For a sync, at most.
    pub sync_ns_max: u64,
    /// One operation in this many takes longer.
    pub slow_one_in: u64,
    /// At most this long.
    pub slow_ns_max: u64,
}

impl Power {
    /// Segments are short, so that they are full often. A quarter of a segment holds the largest transaction of a shop.
    pub const SEGMENT_BYTES: u64 = 128 << 10;
}

/// Nodes have journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    /// What the journals are on.
    pub medium: Medium,
    /// Shortest time between two steps of a journal.
    pub step_ns: u64,
    /// Bytes of a segment of a journal. A transaction writes at most a quarter of it.
    pub segment_bytes: u64,
    /// How long the disks take; none: everything is at once.
    pub delays: Option<Delays>,
    /// The ends of all lives of the cluster but the last.
    pub cuts: Vec<Cut>,
}

/// Nodes keep columns of the tables, and clients compare them with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// When segments are rebuilt, and their size.
    pub copy: CopyConfig,
    /// Between two turns that apply records, at most; greater than 0.
    pub apply_ns_max: u64,
    /// Between two turns that build and merge, at most; greater than 0.
    pub merge_ns_max: u64,
}

/// The definition of a run.
#[derive(Clone, Debug)]
pub struct Failover {
    /// Determines every time, every order and every choice.
    pub seed: u64,
    /// The number of nodes.
    pub nodes: u8,
    /// Copies of each row.
    pub replicas: u8,
    /// Whether rows are visible before they are replicated.
    pub optimistic: bool,
    /// Clients of each node.
    pub clients: usize,
    /// Transactions that each client tries.
    pub transactions: usize,
    /// A node whose clients try fewer transactions, and how many. Their last records are still in the logs when the others have gone on
    /// for long.
    pub idle: Option<(u8, usize)>,
    /// What they do.
    pub load: Load,
    /// Calls of the register take up to this much longer while the cluster is founded, so that some nodes learn of the
    /// founding late.
    pub founding_slow_ns: u64,
    /// The faults, by the time since the clients have begun.
    pub blows: Vec<(u64, Blow)>,
    /// Whether nodes that have ended come back between the faults, when the others have gone on without them; if not,
    /// after the faults.
    pub with_returns: bool,
    /// A death at a step, instead of clients.
    pub kill_at: Option<KillAt>,
    /// Journals, and cuts of the power of all nodes, instead of `blows`.
    pub power: Option<Power>,
    /// Columns of the tables of a mixed load, on nodes with journals.
    pub columns: Option<Columns>,
    /// The steps that take longer at random.
    pub hiccups: Option<Hiccups>,
    /// How much faster each node's clock runs than true time, in millionths.
    pub drift_ppm: Vec<i32>,
    /// Bytes of a ring of the log.
    pub ring_bytes: u64,
    /// Bytes of a node's region.
    pub region_bytes: u64,
}

/// How much faster or slower than true time a simulated node's clock runs at most. The configured bound on the skew (a tenth
/// of a lease) allows somewhat more.
const DRIFT_PPM_MAX: u64 = 40_000;

impl Failover {
    /// Three nodes and some faults, by the seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let replicas = 2 + (seed % 2) as u8;
        let (is_shop, is_bank) = (seed % 13 == 6, seed / 4 % 3 == 2);
        let mut drift_ppm = vec![0; 3];
        if random.below(2) == 0 {
            drift_ppm = (0..3).map(|_| random.below(2 * DRIFT_PPM_MAX) as i32 - DRIFT_PPM_MAX as i32).collect();
        }
        Self {
            seed,
            nodes: 3,
            replicas,
            optimistic: !seed.is_multiple_of(5),
            clients: 2,
            transactions: if is_bank && !is_shop { 400 } else { 180 },
            load: if is_shop {
                Load::Shop
            } else if is_bank {
                Load::Bank(Scale { nodes: 3, accounts: 60, hot: 2 })
            } else {
                Load::Mixed(Workload::of_seed(seed))
            },
            idle: None,
            blows: blows(seed, (3, replicas), &mut random),
            with_returns: false,
            founding_slow_ns: 0,
            kill_at: None,
            power: None,
            columns: None,
            hiccups: Hiccups::of_seed(seed),
            drift_ppm,
            // A shop is loaded in large transactions.
            ring_bytes: if is_shop { 512 << 10 } else { [96 << 10, 8 << 10, 24 << 10, 32 << 10][(seed % 4) as usize] },
            region_bytes: 12 << 20,
        }
    }
}

/// As many deaths, at most, as there are copies to lose (a pause or a cut from the register may turn into a death; a
/// slow register may turn into any number of them, but into none that would lose rows), and up to two lesser faults.
pub(super) fn blows(seed: u64, (nodes, replicas): (u8, u8), random: &mut Random) -> Vec<(u64, Blow)> {
    let mut blows = clocks_set(seed);
    let of_all = u64::from(nodes);
    let first = random.below(of_all) as u8;
    let at_ns = 20_000 + random.below(2_500_000);
    let fatal = |node: u8, random: &mut Random| match random.below(6) {
        0 | 1 => Blow::Kill(node),
        2 | 3 => Blow::Crash(node),
        4 if seed.is_multiple_of(2) => Blow::Stop(node, 500_000 + random.below(6_000_000)),
        4 => Blow::Pause(node, 500_000 + random.below(6_000_000)),
        _ => Blow::NoRegister(node, 500_000 + random.below(20_000_000)),
    };
    match seed % 16 {
        0 => {}
        5 | 8 => blows.push((at_ns, Blow::SlowRegister(500_000 + random.below(2_500_000), random.below(8_000_000)))),
        _ => {
            blows.push((at_ns, fatal(first, random)));
            if replicas == 3 && seed.is_multiple_of(3) {
                let second = (first + 1 + random.below(of_all - 1) as u8) % nodes;
                blows.push((at_ns + random.below(8_000_000), fatal(second, random)));
            }
        }
    }
    for _ in 0..random.below(3) {
        let (from, to) = (random.below(of_all) as u8, random.below(of_all) as u8);
        let (at_ns, for_ns) = (random.below(3_500_000), random.below(2_000_000));
        let nuisance = match random.below(5) {
            0 => Blow::Cut(from, to, false, for_ns),
            1 => Blow::Cut(from, to, true, for_ns),
            2 | 3 => Blow::Slow(from, to, random.below(60_000), for_ns),
            _ => Blow::Disorder(100 + random.below(2_000), for_ns),
        };
        if from != to {
            blows.push((at_ns, nuisance));
        }
    }
    one_clock_each(blows)
}

/// The time of day of a machine whose other clock stands still is left unchanged: if both clocks were wrong, no node
/// could detect it.
pub(super) fn one_clock_each(mut blows: Vec<(u64, Blow)>) -> Vec<(u64, Blow)> {
    let stops = |blow: &Blow| if let Blow::Stop(node, _) = *blow { Some(node) } else { None };
    let stopped: Vec<u8> = blows.iter().filter_map(|(_, blow)| stops(blow)).collect();
    blows.retain(|(_, blow)| !matches!(blow, Blow::SetDay(node, _) if stopped.contains(node)));
    blows
}

/// The times of day of some machines are changed: by less than the bound on the skew, by some leases, by hours.
pub(super) fn clocks_set(seed: u64) -> Vec<(u64, Blow)> {
    let mut random = Random(seed ^ 0xc10c);
    let spans_ns = [100_000, 5_000_000, 3_600_000_000_000];
    let set = (0..random.below(4)).map(|_| {
        let (at_ns, node) = (random.below(8_000_000), random.below(3) as u8);
        let span_ns = spans_ns[random.below(3) as usize];
        (at_ns, Blow::SetDay(node, random.below(2 * span_ns).cast_signed() - span_ns.cast_signed()))
    });
    set.collect()
}

/// splitmix64. It decides the plan, and is independent of the run's randomness.
pub(super) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}
