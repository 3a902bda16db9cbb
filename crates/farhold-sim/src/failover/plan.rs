//! What is to be run, by a seed.

use crate::workload::Workload;
use farhold_bench::workload::smallbank::Scale;
use farhold_store::durable::power::Medium;

/// One thing that happens to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The node's process dies; it comes back when the others have gone on without it.
    Kill(u8),
    /// As a kill, and of what it has posted some is lost, also in the middle of a row, and some lands much later.
    Crash(u8),
    /// The node stands still for so long.
    Pause(u8, u64),
    /// The node's machine is stopped for so long, and with it the clock that leases go by; its time of day goes on.
    Stop(u8, u64),
    /// The time of day of the node's machine is set, by so much.
    SetDay(u8, i64),
    /// Two nodes cannot reach each other, in one direction or in both, for so long.
    Cut(u8, u8, bool, u64),
    /// Everything from one node to another takes so much longer, for so long.
    Slow(u8, u8, u64, u64),
    /// All times are stretched by up to so many hundredths, each by itself: completions overtake each other. For so long.
    Disorder(u64, u64),
    /// The node cannot reach the register for so long.
    NoRegister(u8, u64),
    /// Calls of the register take up to so much longer, each by itself, for so long.
    SlowRegister(u64, u64),
    /// To shut a node out takes so long from now on.
    SlowFence(u64),
    /// The node's host is cut off from the register and, this way, from the others, for as long as its process lives.
    Lose(u8, Way),
    /// As that, but it reaches the register, and renews its lease there.
    Isolate(u8, Way),
    /// The next write or sync of the node's journal, or of a checkpoint, fails.
    FailDisk(u8),
    /// No file grows for so long.
    FillDisks(u64),
}

/// What does not get through between a host and the others.
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
    /// How long it lasts by itself.
    #[must_use]
    pub fn lasts_ns(&self) -> u64 {
        match *self {
            Self::Kill(_)
            | Self::Crash(_)
            | Self::SetDay(..)
            | Self::SlowFence(_)
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
            // What was begun at its end arrives later.
            Self::SlowRegister(slow_ns_max, for_ns) => for_ns + slow_ns_max,
        }
    }
}

/// What the clients do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// Random transactions whose history is checked.
    Mixed(Workload),
    /// `SmallBank`: the accounts are checked at the end.
    Bank(Scale),
    /// Numbers are taken from counters in rows.
    Numbers,
    /// TPC-C, as small as it can be: its consistency conditions are checked at the end.
    Shop,
}

/// One transaction runs alone, and a node dies at a step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillAt {
    /// Who runs the transaction.
    pub coordinator: u8,
    /// Who dies; nobody, to count the steps.
    pub victim: Option<u8>,
    /// After so many events of the simulation since the transaction's beginning.
    pub step: u64,
    /// What has been posted by the dead is partly lost or late.
    pub crash: bool,
}

/// The power of all nodes is cut, and everybody starts again from the journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// When, after the clients have begun.
    pub at_ns: u64,
    /// Not then, but so long after the next change of the configuration, if there is one soon.
    pub after_change_ns: Option<u64>,
    /// In the middle of what is being written: before the operation on files after so many others from then on.
    pub operations: Option<u64>,
    /// Whether nodes that have ended, or hear that they have been expelled, come back when the others have gone on without them.
    pub with_returns: bool,
    /// What happens before, after the clients have begun.
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
    /// A node whose process ends so long after its start, and is started again at once.
    pub twice: Option<(u8, u64)>,
}

/// Nodes have journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    /// What the journals are on.
    pub medium: Medium,
    /// Shortest time between two steps of a journal.
    pub step_ns: u64,
    /// The ends of all lives of the cluster but the last.
    pub cuts: Vec<Cut>,
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Failover {
    /// Decides every time, every order and every choice.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u8,
    /// Copies of each row.
    pub replicas: u8,
    /// Whether rows are visible before they are replicated.
    pub optimistic: bool,
    /// Clients of each node.
    pub clients: usize,
    /// Transactions that each client tries.
    pub transactions: usize,
    /// A node whose clients try fewer, and how many: what they have left in the logs is still there when the others have gone on for long.
    pub idle: Option<(u8, usize)>,
    /// What they do.
    pub load: Load,
    /// Calls of the register take up to so much longer while the cluster is founded: some nodes hear of it late.
    pub founding_slow_ns: u64,
    /// What happens when, after the clients have begun.
    pub blows: Vec<(u64, Blow)>,
    /// Whether nodes that have ended come back between the blows, when the others have gone on without them; if not, after them.
    pub with_returns: bool,
    /// A death at a step, instead of clients.
    pub kill_at: Option<KillAt>,
    /// Journals, and cuts of the power of all nodes, instead of `blows`.
    pub power: Option<Power>,
    /// How much faster each node's clock runs than true time, in millionths.
    pub drift_ppm: Vec<i32>,
    /// Bytes of a ring of the log.
    pub ring_bytes: u64,
}

/// What a seed becomes.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// How the program is told to run it; empty: unless told otherwise.
    pub flag: &'static str,
    /// Its setup.
    pub of_seed: fn(u64) -> Failover,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Self; 14] = [
        Self { flag: "", of_seed: Failover::of_seed },
        Self { flag: "--bad-disks", of_seed: Failover::with_bad_disks },
        Self { flag: "--lonely-host", of_seed: Failover::with_lonely_host },
        Self { flag: "--lost-host", of_seed: Failover::with_lost_host },
        Self { flag: "--moving-rows", of_seed: Failover::with_moving_rows },
        Self { flag: "--odd-reads", of_seed: Failover::with_odd_reads },
        Self { flag: "--odd-starts", of_seed: Failover::with_odd_starts },
        Self { flag: "--old-records", of_seed: Failover::with_old_records },
        Self { flag: "--other-sizes", of_seed: Failover::with_other_sizes },
        Self { flag: "--power-cuts", of_seed: Failover::with_power_cuts },
        Self { flag: "--slow-founding", of_seed: Failover::with_slow_founding },
        Self { flag: "--slow-register", of_seed: Failover::with_slow_register },
        Self { flag: "--stopped-clocks", of_seed: Failover::with_stopped_clocks },
        Self { flag: "--zombie-keeper", of_seed: Failover::with_zombie_keeper },
    ];

    /// What replays a seed.
    #[must_use]
    pub fn command(&self, seed: u64) -> String {
        format!("cargo run -p farhold-sim -- --seed {seed} {}", self.flag).trim_end().to_owned()
    }
}

/// How far two clocks of the simulated nodes are apart at most: the bound that the nodes are told (a tenth of a lease) allows
/// for some more.
const DRIFT_PPM_MAX: u64 = 40_000;

impl Failover {
    /// Three nodes and some blows, by the seed.
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
            drift_ppm,
            // A shop is loaded in large transactions.
            ring_bytes: if is_shop { 512 << 10 } else { [96 << 10, 8 << 10, 24 << 10, 32 << 10][(seed % 4) as usize] },
        }
    }
}

/// Points and some ranges on a few rows of short values: what a scenario is about then happens often.
fn few_rows(rows: u32, [reads, updates, ranges]: [u32; 3]) -> Workload {
    let of_points = Workload { reads, updates, inserts: 0, deletes: 0, ranges, ..Workload::of_seed(3) };
    Workload { keys: rows, rows, snapshots: 0, padding: 40, ..of_points }
}

impl Failover {
    /// A scenario with such a load, by exact clocks and with room in the rings.
    fn scenario(seed: u64, clients: usize, workload: Workload, blows: Vec<(u64, Blow)>) -> Self {
        Self {
            load: Load::Mixed(workload),
            clients,
            transactions: 300,
            blows,
            drift_ppm: vec![0; 3],
            ring_bytes: 96 << 10,
            ..Self::of_seed(seed)
        }
    }

    /// A register that is slow from early on, and many transactions that only a lease protects: they read what each node has
    /// itself.
    #[must_use]
    pub fn with_slow_register(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x510e);
        let workload = Workload { on_copies: 95, read_only: 40, operations: 2, ..few_rows(6, [40, 55, 5]) };
        // One node is silent for just so long that it comes back while it is being expelled.
        let (at_ns, node) = (100_000 + random.below(500_000), random.below(3) as u8);
        let silent = Blow::NoRegister(node, 1_200_000 + random.below(400_000));
        let slow = Blow::SlowRegister(1_000_000 + random.below(1_000_000), 6_000_000);
        Self::scenario(seed, 4, workload, vec![(at_ns, silent), (at_ns, slow)])
    }

    /// Machines are stopped with their clocks, one after the other, for longer than their leases last; most transactions are protected by a lease
    /// alone. Times of day are set meanwhile.
    #[must_use]
    pub fn with_stopped_clocks(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x570b);
        let workload = Workload { on_copies: 95, read_only: 40, operations: 2, ..few_rows(6, [40, 55, 5]) };
        let node = random.below(3) as u8;
        let at_ns = 100_000 + random.below(1_500_000);
        // So long that the others have gone on without it, in the middle of that, or just not.
        let for_ns = [900_000, 1_500_000, 4_000_000][random.below(3) as usize] + random.below(1_000_000);
        let mut blows = clocks_set(seed);
        blows.push((at_ns, Blow::Stop(node, for_ns)));
        Self::scenario(seed, 4, workload, one_clock_each(blows))
    }

    /// A few rows that everybody reads and writes, on a node whose records take long and out of order, so that most of what is read
    /// there is odd; then it dies with them under way.
    #[must_use]
    pub fn with_odd_reads(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x0dd5);
        let workload = Workload { on_copies: 0, read_only: 60, operations: 1, ..few_rows(3, [50, 50, 0]) };
        let (node, at_ns) = (random.below(3) as u8, 200_000 + random.below(2_000_000));
        let slow = |to| (0, Blow::Slow(node, to, 60_000, at_ns));
        let dies = if random.below(2) == 0 { Blow::Kill(node) } else { Blow::Crash(node) };
        let disorder = Blow::Disorder(100 + random.below(2_000), at_ns);
        let blows = vec![slow((node + 1) % 3), slow((node + 2) % 3), (0, disorder), (at_ns, dies)];
        Self { optimistic: true, ..Self::scenario(seed, 6, workload, blows) }
    }

    /// Rows that grow and shrink, so that most writes put another row in the place of one; then a node dies with such writes under way.
    #[must_use]
    pub fn with_moving_rows(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x30f5);
        let workload = Workload { on_copies: 0, read_only: 10, operations: 1, ..few_rows(18, [5, 90, 5]) };
        let workload = Workload { padding: 900, hash: true, ..workload };
        let (node, at_ns) = (random.below(3) as u8, 200_000 + random.below(2_000_000));
        let dies = if random.below(2) == 0 { Blow::Kill(node) } else { Blow::Crash(node) };
        Self::scenario(seed, 4, workload, vec![(at_ns, dies)])
    }

    /// As of the seed, but some nodes hear of the founding much later than those who write the first rows.
    #[must_use]
    pub fn with_slow_founding(seed: u64) -> Self {
        Self { founding_slow_ns: 200_000, ..Self::of_seed(seed) }
    }

    /// A node dies whose clients have done nothing for long. Its last records are in the logs of others still, and of rows that have been
    /// changed and deleted since, on nodes that have died and come back since.
    #[must_use]
    pub fn with_old_records(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x01d5);
        let idle = random.below(3) as u8;
        let gone = (idle + 1 + random.below(2) as u8) % 3;
        let on_copies = [10, 90][random.below(2) as usize];
        let workload = Workload {
            rows: 20,
            inserts: 25,
            deletes: 25,
            on_copies,
            read_only: 5,
            operations: 2,
            padding: 900,
            ..few_rows(40, [0, 50, 0])
        };
        let dies_ns = 200_000 + random.below(1_000_000);
        let back_ns = dies_ns + 8_000_000 + random.below(4_000_000);
        let blows = vec![(dies_ns, Blow::Kill(gone)), (back_ns, Blow::Kill(idle))];
        let transactions = 20 + random.below(300) as usize;
        let idle = Some((idle, 1 + random.below(4) as usize));
        Self { idle, transactions, with_returns: true, ..Self::scenario(seed, 2, workload, blows) }
    }

    /// The host of a node is cut off with records of its commits on their way, and nobody ever tells it what has become of them or
    /// of it. Its sessions have to hear something all the same.
    #[must_use]
    pub fn with_lost_host(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x1057);
        let shares = if random.below(2) == 0 { [50, 50, 0] } else { [40, 50, 10] };
        let rows = 3 + random.below(10) as u32;
        let workload = Workload { on_copies: 10, read_only: 40, operations: 3, ..few_rows(rows, shares) };
        let workload = Workload { snapshots: random.below(2) as u32 * 5, ..workload };
        let (node, at_ns) = (random.below(3) as u8, 100_000 + random.below(1_000_000));
        let way = [Way::Both, Way::Out, Way::In][random.below(3) as usize];
        // As that ends the ways are cut, with what was sent before under way.
        let slow = |to| (0, Blow::Slow(node, to, 20_000, at_ns - 5_000));
        // To shut it out may take longer than a lease, as the end of a large process does.
        let slow_fence = (0, Blow::SlowFence(random.below(2) * random.below(3_000_000)));
        let blows = vec![slow((node + 1) % 3), slow((node + 2) % 3), slow_fence, (at_ns, Blow::Lose(node, way))];
        Self::scenario(seed, 4, workload, blows)
    }
}

impl Failover {
    /// As with a lost host, but of one that reaches the register: its lease goes on, so that the others have to find out by themselves.
    #[must_use]
    pub fn with_lonely_host(seed: u64) -> Self {
        let mut setup = Self::with_lost_host(seed);
        for (_, blow) in &mut setup.blows {
            if let Blow::Lose(node, way) = *blow {
                *blow = Blow::Isolate(node, way);
            }
        }
        setup
    }

    /// The node whose host is cut off for ever, if there is one.
    pub(super) fn lost_host(&self) -> Option<u8> {
        let of = |blow: &Blow| match *blow {
            Blow::Lose(node, _) | Blow::Isolate(node, _) => Some(node),
            _ => None,
        };
        self.blows.iter().find_map(|(_, blow)| of(blow))
    }

    /// Three nodes with journals: some die, and then the power of all is cut, twice.
    #[must_use]
    pub fn with_power_cuts(seed: u64) -> Self {
        let mut random = Random(seed ^ 0xd15c);
        let of_seed = Self::of_seed(seed);
        // Recovery takes some milliseconds: the power goes in the middle of it, or later.
        let spans_ns = [2_000_000, 5_000_000, 20_000_000];
        let cuts = (0..2).map(|life| {
            let span_ns = spans_ns[random.below(3) as usize];
            let at_ns = 300_000 + random.below(span_ns);
            let after_change_ns = (random.below(2) == 0).then(|| random.below(400_000));
            Cut {
                at_ns,
                after_change_ns,
                operations: None,
                with_returns: true,
                starts: Starts::default(),
                blows: blows(seed.wrapping_mul(3) + life, (3, of_seed.replicas), &mut random),
            }
        });
        let cuts = cuts.collect();
        let step_ns = 20_000 + random.below([30_000, 300_000][(seed % 2) as usize]);
        let ring_bytes = of_seed.ring_bytes.max(24 << 10);
        let medium = [Medium::Disk, Medium::Nvm][random.below(2) as usize];
        Self { power: Some(Power { medium, step_ns, cuts }), blows: Vec::new(), ring_bytes, ..of_seed }
    }
}

impl Failover {
    /// As with cuts of the power, but a node stays away for a life of the others and is the first to start in the next, and processes end while the
    /// cluster is being founded again.
    #[must_use]
    pub fn with_odd_starts(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x57a7);
        let of_seed = Self::with_power_cuts(seed);
        let away = random.below(3) as u8;
        let twice = |random: &mut Random| {
            (random.below(2) == 0).then(|| (random.below(3) as u8, random.below(2) * random.below(200_000)))
        };
        let leaves = vec![(100_000 + random.below(500_000), Blow::Kill(away))];
        let cuts = [(leaves, Some(away)), (Vec::new(), None)].map(|(blows, away_next)| Cut {
            at_ns: 4_000_000 + random.below(3_000_000),
            after_change_ns: None,
            operations: None,
            with_returns: false,
            blows,
            starts: Starts {
                first: if away_next.is_some() { 0 } else { away },
                away: away_next,
                twice: twice(&mut random),
            },
        });
        let power = of_seed.power.map(|power| Power { cuts: cuts.into(), ..power });
        Self { power, ..of_seed }
    }
}

impl Failover {
    /// The keeper of the epoch stands still with records of its commits on their way, which take long; when it goes on it has been expelled,
    /// and writes into its journal. Then the power goes.
    #[must_use]
    pub fn with_zombie_keeper(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x20b1);
        let of_seed = Self::with_power_cuts(seed);
        let slow = |to| (0, Blow::Slow(0, to, 80_000, 20_000_000));
        let at_ns = 200_000 + random.below(2_000_000);
        let pause = (at_ns, Blow::Pause(0, 1_500_000 + random.below(1_000_000)));
        let at_ns = at_ns + 4_000_000 + random.below(2_000_000);
        let blows = vec![slow(1), slow(2), pause];
        let cut = Cut {
            at_ns,
            after_change_ns: None,
            operations: None,
            with_returns: false,
            blows,
            starts: Starts::default(),
        };
        let power = Power { medium: Medium::Disk, step_ns: 30_000, cuts: vec![cut] };
        // So many accounts that what comes back is not overwritten.
        let load = Load::Bank(Scale { nodes: 3, accounts: 400, hot: 300 });
        Self { power: Some(power), load, clients: 6, transactions: 400, drift_ppm: vec![0; 3], ..of_seed }
    }
}

impl Failover {
    /// As with cuts of the power, each in the middle of a write to a file; and disks report errors, or are full for a while.
    #[must_use]
    pub fn with_bad_disks(seed: u64) -> Self {
        let mut random = Random(seed ^ 0xbadd);
        let mut this = Self::with_power_cuts(seed);
        for cut in this.power.iter_mut().flat_map(|power| &mut power.cuts) {
            // A step of a journal is two operations, a new segment half a dozen, a checkpoint as many.
            let operations_max = [6, 60][random.below(2) as usize];
            cut.operations = Some(random.below(operations_max));
            for (_, blow) in &mut cut.blows {
                if let Blow::Kill(node) | Blow::Crash(node) = *blow
                    && random.below(2) == 0
                {
                    *blow = Blow::FailDisk(node);
                }
            }
            if random.below(2) == 0 {
                cut.blows.push((random.below(3_000_000), Blow::FillDisks(random.below(3_000_000))));
            }
        }
        this
    }
}

impl Failover {
    /// Two, four or five nodes.
    #[must_use]
    pub fn with_other_sizes(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x512e);
        let of_seed = Self::of_seed(seed);
        let nodes = [2, 4, 5][random.below(3) as usize];
        let replicas = of_seed.replicas.min(nodes);
        let load = match of_seed.load {
            Load::Bank(scale) => Load::Bank(Scale { nodes, ..scale }),
            load => load,
        };
        let blows = blows(seed, (nodes, replicas), &mut random);
        // The accounts of five nodes are loaded in larger transactions than a ring of 8 KiB takes.
        let ring_bytes = of_seed.ring_bytes.max(24 << 10);
        Self { nodes, replicas, load, blows, ring_bytes, drift_ppm: vec![0; usize::from(nodes)], ..of_seed }
    }
}

/// As many deaths, at most, as there are copies to lose (a pause, or no register, may turn into one; a slow register may
/// turn into any number, but into none that would lose rows), and up to two nuisances.
fn blows(seed: u64, (nodes, replicas): (u8, u8), random: &mut Random) -> Vec<(u64, Blow)> {
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

/// The time of day of a machine whose other clock stands is left as it is: of two clocks that are both wrong nobody could tell.
fn one_clock_each(mut blows: Vec<(u64, Blow)>) -> Vec<(u64, Blow)> {
    let stops = |blow: &Blow| if let Blow::Stop(node, _) = *blow { Some(node) } else { None };
    let stopped: Vec<u8> = blows.iter().filter_map(|(_, blow)| stops(blow)).collect();
    blows.retain(|(_, blow)| !matches!(blow, Blow::SetDay(node, _) if stopped.contains(node)));
    blows
}

/// The times of day of some machines are set: by less than the bound on the skew, by some leases, by hours.
fn clocks_set(seed: u64) -> Vec<(u64, Blow)> {
    let mut random = Random(seed ^ 0xc10c);
    let spans_ns = [100_000, 5_000_000, 3_600_000_000_000];
    let set = (0..random.below(4)).map(|_| {
        let (at_ns, node) = (random.below(8_000_000), random.below(3) as u8);
        let span_ns = spans_ns[random.below(3) as usize];
        (at_ns, Blow::SetDay(node, random.below(2 * span_ns).cast_signed() - span_ns.cast_signed()))
    });
    set.collect()
}

/// splitmix64: what decides the plan, apart from the run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}
