//! The scenarios: how a seed determines a setup, for each flag of the program.

use super::plan::{
    Blow, Columns, Cut, Delays, Failover, Load, Power, Random, Starts, Way, blows, clocks_set, one_clock_each,
};
use crate::workload::Workload;
use farhold_bench::workload::smallbank::Scale;
use farhold_store::durable::power::Medium;
use farhold_txn::CopyConfig;

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The program's flag for it; empty for the default scenario.
    pub flag: &'static str,
    /// Its setup.
    pub of_seed: fn(u64) -> Failover,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Self; 20] = [
        Self { flag: "", of_seed: Failover::of_seed },
        Self { flag: "--bad-disks", of_seed: Failover::with_bad_disks },
        Self { flag: "--changing-tables", of_seed: Failover::with_changing_tables },
        Self { flag: "--columns", of_seed: Failover::with_columns },
        Self { flag: "--late-instructions", of_seed: Failover::with_late_instructions },
        Self { flag: "--lonely-host", of_seed: Failover::with_lonely_host },
        Self { flag: "--long-rows", of_seed: Failover::with_long_rows },
        Self { flag: "--lost-host", of_seed: Failover::with_lost_host },
        Self { flag: "--moving-rows", of_seed: Failover::with_moving_rows },
        Self { flag: "--odd-reads", of_seed: Failover::with_odd_reads },
        Self { flag: "--odd-starts", of_seed: Failover::with_odd_starts },
        Self { flag: "--old-records", of_seed: Failover::with_old_records },
        Self { flag: "--one-copy", of_seed: Failover::with_one_copy },
        Self { flag: "--other-sizes", of_seed: Failover::with_other_sizes },
        Self { flag: "--power-cuts", of_seed: Failover::with_power_cuts },
        Self { flag: "--slow-disks", of_seed: Failover::with_slow_disks },
        Self { flag: "--slow-founding", of_seed: Failover::with_slow_founding },
        Self { flag: "--slow-register", of_seed: Failover::with_slow_register },
        Self { flag: "--stopped-clocks", of_seed: Failover::with_stopped_clocks },
        Self { flag: "--zombie-keeper", of_seed: Failover::with_zombie_keeper },
    ];

    /// The one with this flag.
    #[must_use]
    pub fn named(flag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.flag == flag)
    }

    /// The command that replays a seed.
    #[must_use]
    pub fn command(&self, seed: u64) -> String {
        format!("cargo run -p farhold-sim -- --seed {seed} {}", self.flag).trim_end().to_owned()
    }
}

/// Points and some ranges on a few rows of short values: the subject of a scenario then occurs often.
fn few_rows(rows: u32, [reads, updates, ranges]: [u32; 3]) -> Workload {
    let of_points = Workload { reads, updates, inserts: 0, deletes: 0, ranges, ..Workload::of_seed(3) };
    Workload { keys: rows, rows, snapshots: 0, padding: 40, ..of_points }
}

impl Failover {
    /// A scenario with such a load, with exact clocks and room in the rings.
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

    /// A register that is slow from early on, and many transactions that only a lease protects, because they read rows of
    /// their own node.
    #[must_use]
    pub fn with_slow_register(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x510e);
        let workload = Workload { on_copies: 95, read_only: 40, operations: 2, ..few_rows(6, [40, 55, 5]) };
        // One node is silent just long enough that it comes back while it is being expelled.
        let (at_ns, node) = (100_000 + random.below(500_000), random.below(3) as u8);
        let silent = Blow::NoRegister(node, 1_200_000 + random.below(400_000));
        let slow = Blow::SlowRegister(1_000_000 + random.below(1_000_000), 6_000_000);
        Self::scenario(seed, 4, workload, vec![(at_ns, silent), (at_ns, slow)])
    }

    /// Machines are stopped with their clocks, one after the other, for longer than their leases last; most transactions are
    /// protected by a lease alone. Times of day are set meanwhile.
    #[must_use]
    pub fn with_stopped_clocks(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x570b);
        let workload = Workload { on_copies: 95, read_only: 40, operations: 2, ..few_rows(6, [40, 55, 5]) };
        let node = random.below(3) as u8;
        let at_ns = 100_000 + random.below(1_500_000);
        // Long enough that the others have gone on without it, that they are just doing so, or a little less.
        let for_ns = [900_000, 1_500_000, 4_000_000][random.below(3) as usize] + random.below(1_000_000);
        let mut blows = clocks_set(seed);
        blows.push((at_ns, Blow::Stop(node, for_ns)));
        Self::scenario(seed, 4, workload, one_clock_each(blows))
    }

    /// A few rows that all clients read and write, on a node whose records take long and out of order, so that most of
    /// what is read there is odd; then the node dies with these records in flight.
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

    /// Rows that grow and shrink, so that most writes replace a row by another object; then a node dies with such writes under way.
    #[must_use]
    pub fn with_moving_rows(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x30f5);
        let workload = Workload { on_copies: 0, read_only: 10, operations: 1, ..few_rows(18, [5, 90, 5]) };
        let workload = Workload { padding: 900, hash: true, ..workload };
        let (node, at_ns) = (random.below(3) as u8, 200_000 + random.below(2_000_000));
        let dies = if random.below(2) == 0 { Blow::Kill(node) } else { Blow::Crash(node) };
        Self::scenario(seed, 4, workload, vec![(at_ns, dies)])
    }

    /// A few transactions whose rows are up to the limit, wherever rows occur: in records and in those that dead nodes leave, in copies to new mirrors and to
    /// nodes that come back, and in answers. One node dies, and in half of the seeds another one dies when the first is back.
    #[must_use]
    pub fn with_long_rows(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x1096);
        // All lengths; lengths of which no two fit into one message; lengths that just fit into a message.
        let padding_min = [0, 33_000, Workload::PADDING_MAX - 100][random.below(3) as usize];
        let lengths = Workload { padding: Workload::PADDING_MAX, padding_min, ..Workload::of_seed(seed) };
        let workload = Workload { operations: 2, ..lengths };
        let dies = |node: u8, random: &mut Random| {
            if random.below(2) == 0 { Blow::Kill(node) } else { Blow::Crash(node) }
        };
        let (first, at_ns) = (random.below(3) as u8, 50_000 + random.below(2_000_000));
        let mut blows = vec![(at_ns, dies(first, &mut random))];
        if random.below(2) == 0 {
            let second = (first + 1 + random.below(2) as u8) % 3;
            blows.push((at_ns + 8_000_000 + random.below(4_000_000), dies(second, &mut random)));
        }
        // A record has what a transaction writes, three times if it is in the replicated table, and is half a ring at most.
        let (ring_bytes, region_bytes) = (1 << 20, 24 << 20);
        let of_scenario = Self::scenario(seed, 2, workload, blows);
        Self { transactions: 12, with_returns: true, ring_bytes, region_bytes, ..of_scenario }
    }

    /// The same with a few transactions of rows up to the limit, in rings, regions and journals that have room for their
    /// records, if the load has rows of all lengths.
    fn with_long_lengths(self, seed: u64) -> Self {
        let Load::Mixed(workload) = &self.load else { return self };
        let padding_min = [0, 33_000, Workload::PADDING_MAX - 100][(seed / 8 % 3) as usize];
        let workload = Workload { operations: 2, padding: Workload::PADDING_MAX, padding_min, ..workload.clone() };
        // A record has what a transaction writes, once for each node if it is in the replicated table, and is half a ring at most.
        let (ring_bytes, region_bytes) = (2 << 20, 24 << 20);
        let power = self.power.map(|power| Power { segment_bytes: 4 << 20, ..power });
        Self { load: Load::Mixed(workload), transactions: 12, ring_bytes, region_bytes, power, ..self }
    }

    /// Links are cut for less than a lease, again and again. The instructions that they lose are still executed, some of them after their
    /// node has given them up and gone on.
    #[must_use]
    pub fn with_late_instructions(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x1a7e);
        let rows = 4 + random.below(8) as u32;
        let workload = Workload { on_copies: 10, read_only: 10, operations: 3, ..few_rows(rows, [20, 70, 10]) };
        let mut blows = vec![(0, Blow::Late(20 + random.below(81)))];
        for _ in 0..8 {
            let from = random.below(3) as u8;
            let to = (from + 1 + random.below(2) as u8) % 3;
            let (both, for_ns) = (random.below(2) == 0, 5_000 + random.below(300_000));
            blows.push((random.below(4_000_000), Blow::Cut(from, to, both, for_ns)));
        }
        Self::scenario(seed, 3, workload, blows)
    }

    /// Tables and indexes come and go, numbers are taken, snapshots are open and regions run full, while nodes die.
    #[must_use]
    pub fn with_changing_tables(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x7ab1);
        // What the clients have beside the tables that fill regions is less than a megabyte, on a node that serves two partitions too.
        let region_bytes = [3 << 19, 2 << 20, 3 << 20][random.below(3) as usize];
        let (load, transactions, with_returns) = (Load::Tables, 30, random.below(2) == 0);
        // In half of the seeds nodes have journals, and the power of all goes, twice.
        let of_seed = if random.below(2) == 0 { Self::with_power_cuts(seed) } else { Self::of_seed(seed) };
        // A row that takes a page has a copy on each node, and a record is half a ring at most, and a quarter of a segment.
        let power = of_seed.power.map(|power| Power { segment_bytes: 512 << 10, ..power });
        Self { load, transactions, with_returns, region_bytes, ring_bytes: 128 << 10, power, ..of_seed }
    }

    /// The default scenario, but some nodes learn of the founding much later than those that write the first rows.
    #[must_use]
    pub fn with_slow_founding(seed: u64) -> Self {
        Self { founding_slow_ns: 200_000, ..Self::of_seed(seed) }
    }

    /// A node dies whose clients have done nothing for long. Its last records are still in the logs of others. These
    /// records are about rows that have been changed and deleted since, on nodes that have died and come back since.
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

    /// The host of a node is cut off with records of its commits in flight. It never learns the outcome of these
    /// commits or its own expulsion. Its sessions must still get an answer.
    #[must_use]
    pub fn with_lost_host(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x1057);
        let shares = if random.below(2) == 0 { [50, 50, 0] } else { [40, 50, 10] };
        let rows = 3 + random.below(10) as u32;
        let workload = Workload { on_copies: 10, read_only: 40, operations: 3, ..few_rows(rows, shares) };
        let workload = Workload { snapshots: random.below(2) as u32 * 5, ..workload };
        let (node, at_ns) = (random.below(3) as u8, 100_000 + random.below(1_000_000));
        let way = [Way::Both, Way::Out, Way::In][random.below(3) as usize];
        // When that ends the links are cut, with what was sent before still in flight.
        let slow = |to| (0, Blow::Slow(node, to, 20_000, at_ns - 5_000));
        // Fencing it may take longer than a lease, as the end of a large process does.
        let slow_fence = (0, Blow::SlowFence(random.below(2) * random.below(3_000_000)));
        let blows = vec![slow((node + 1) % 3), slow((node + 2) % 3), slow_fence, (at_ns, Blow::Lose(node, way))];
        Self::scenario(seed, 4, workload, blows)
    }
}

impl Failover {
    /// As with a lost host, but the host reaches the register: its lease goes on, so the others must detect the loss themselves.
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

    /// Three nodes with journals: some die, and then the power of all nodes fails, twice.
    #[must_use]
    pub fn with_power_cuts(seed: u64) -> Self {
        let mut random = Random(seed ^ 0xd15c);
        let of_seed = Self::of_seed(seed);
        // Recovery takes some milliseconds: the power fails in the middle of it, or later.
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
        let power = Power { medium, step_ns, segment_bytes: Power::SEGMENT_BYTES, delays: None, cuts };
        let this = Self { power: Some(power), blows: Vec::new(), ring_bytes, ..of_seed };
        if seed % 8 == 7 { this.with_long_lengths(seed) } else { this }
    }
}

impl Failover {
    /// As with power failures, but a node stays away for a life of the others and is the first to start in the next, and processes end while the cluster is
    /// being founded again.
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
    /// The epoch keeper is paused with records of its commits on their way, which take long. When it goes on it has
    /// been expelled, and writes into its journal. Then the power fails.
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
        let (medium, segment_bytes) = (Medium::Disk, Power::SEGMENT_BYTES);
        let power = Power { medium, step_ns: 30_000, segment_bytes, delays: None, cuts: vec![cut] };
        // Enough accounts that a row which wrongly comes back is not overwritten.
        let load = Load::Bank(Scale { nodes: 3, accounts: 400, hot: 300 });
        Self { power: Some(power), load, clients: 6, transactions: 400, drift_ppm: vec![0; 3], ..of_seed }
    }
}

impl Failover {
    /// As with power failures, each in the middle of a write to a file; and disks report errors, or are full for a while.
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
    /// As with power cuts, or with bad disks, but on slow disks, now and then slower than a lease. The power fails
    /// between a write and its sync, or in the middle of one; and nodes join, leave and are expelled while their
    /// journals wait.
    #[must_use]
    pub fn with_slow_disks(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x510d);
        let mut this = if random.below(2) == 0 { Self::with_power_cuts(seed) } else { Self::with_bad_disks(seed) };
        let delays = Delays {
            write_ns_max: 2_000 + random.below(20_000),
            sync_ns_max: 10_000 + random.below(200_000),
            slow_one_in: 20 + random.below(200),
            slow_ns_max: 500_000 + random.below(4_000_000),
        };
        if let Some(power) = &mut this.power {
            power.delays = Some(delays);
        }
        this
    }

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
        let this = Self { nodes, replicas, load, blows, ring_bytes, drift_ppm: vec![0; usize::from(nodes)], ..of_seed };
        if seed % 8 == 7 { this.with_long_lengths(seed) } else { this }
    }
}

impl Failover {
    /// One to five nodes with one copy of each row. Nodes are paused for longer than a request may take and are cut off
    /// from each other. In a quarter of the seeds they die and start again. In another quarter they have journals, and
    /// the power of all fails.
    #[must_use]
    pub fn with_one_copy(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x01c0);
        let of_seed = Self::of_seed(seed / 4);
        let nodes = 1 + random.below(5) as u8;
        let (has_kills, has_journals) = (seed % 4 == 2, seed % 4 == 3);
        let load = if random.below(4) == 0 && !has_kills {
            Load::Bank(Scale { nodes, accounts: 60, hot: 2 })
        } else {
            let workload = Workload::of_seed(seed / 4);
            // A death may leave a row of a replicated table unchanged on one node and changed on another.
            let on_copies = if has_kills { 0 } else { workload.on_copies };
            Load::Mixed(Workload { on_copies, ..workload })
        };
        let transactions = if matches!(load, Load::Bank(_)) { 200 } else { 100 };
        let mut blows = troubles(nodes, &mut random);
        for _ in 0..if has_kills { 1 + random.below(3) } else { 0 } {
            blows.push((random.below(6_000_000), death(random.below(u64::from(nodes)) as u8, &mut random)));
        }
        let power = has_journals.then(|| {
            let lives = random.below(3);
            let cuts = (0..lives).map(|_| {
                let mut blows = troubles(nodes, &mut random);
                if random.below(2) == 0 {
                    let node = random.below(u64::from(nodes)) as u8;
                    let dies = if random.below(2) == 0 { Blow::FailDisk(node) } else { death(node, &mut random) };
                    blows.push((random.below(3_000_000), dies));
                }
                let span_ns = [2_000_000, 10_000_000][random.below(2) as usize];
                let at_ns = 300_000 + random.below(span_ns);
                let operations = (random.below(2) == 0).then(|| random.below(60));
                let starts = Starts { first: random.below(u64::from(nodes)) as u8, ..Starts::default() };
                Cut { at_ns, after_change_ns: None, operations, with_returns: false, blows, starts }
            });
            let cuts = cuts.collect();
            let span_ns = [30_000, 300_000][random.below(2) as usize];
            let step_ns = 20_000 + random.below(span_ns);
            let medium = [Medium::Disk, Medium::Nvm][random.below(2) as usize];
            Power { medium, step_ns, segment_bytes: Power::SEGMENT_BYTES, delays: None, cuts }
        });
        let drift_ppm = vec![0; usize::from(nodes)];
        Self { nodes, replicas: 1, load, transactions, blows, power, drift_ppm, ..of_seed }
    }
}

impl Failover {
    /// Three nodes with journals keep their tables as columns, in short segments that are rebuilt after a few changes. Clients compare columns with rows while
    /// nodes are paused, die and come back. In half of the seeds the power of all nodes fails; in a quarter rows have one copy, and no node dies alone.
    #[must_use]
    pub fn with_columns(seed: u64) -> Self {
        let mut random = Random(seed ^ 0xc017);
        let of_seed = Self::of_seed(seed);
        let is_alone = seed % 4 == 3;
        let replicas = if is_alone { 1 } else { of_seed.replicas };
        let faults = |seed: u64, random: &mut Random| {
            if is_alone { troubles(3, random) } else { blows(seed, (3, replicas), random) }
        };
        let padding = [20, 300, 1_000][random.below(3) as usize];
        let comes_and_goes =
            Workload { inserts: 15, deletes: 15, on_copies: 25, read_only: 10, padding, ..few_rows(40, [15, 40, 10]) };
        let load = Load::Mixed(Workload { keys: 60, ..comes_and_goes });
        let cuts = (0..random.below(2)).map(|life| Cut {
            at_ns: 1_000_000 + random.below(8_000_000),
            after_change_ns: (random.below(2) == 0).then(|| random.below(400_000)),
            operations: None,
            with_returns: !is_alone,
            starts: Starts::default(),
            blows: faults(seed.wrapping_mul(3) + life, &mut random),
        });
        let cuts = cuts.collect();
        let (medium, step_ns) = (Medium::Disk, 20_000 + random.below(100_000));
        let power = Power { medium, step_ns, segment_bytes: Power::SEGMENT_BYTES, delays: None, cuts };
        let mut blows = faults(seed, &mut random);
        // Clients run in the last life too, if nothing else happens.
        blows.push((0, Blow::Disorder(100, 100_000)));
        let copy = CopyConfig { segment_rows: 8, changes_min: 1 + random.below(4) as usize, changed_part: 8 };
        let span_ns = [30_000, 300_000][random.below(2) as usize];
        let columns = Columns { copy, apply_ns_max: span_ns, merge_ns_max: span_ns };
        Self {
            replicas,
            load,
            transactions: 60,
            blows,
            with_returns: !is_alone && random.below(2) == 0,
            power: Some(power),
            columns: Some(columns),
            drift_ppm: if is_alone { vec![0; 3] } else { of_seed.drift_ppm },
            ring_bytes: of_seed.ring_bytes.max(24 << 10),
            ..of_seed
        }
    }
}

/// Nodes are paused, most of them for longer than a request may take; links are cut and slow.
fn troubles(nodes: u8, random: &mut Random) -> Vec<(u64, Blow)> {
    let mut blows = Vec::new();
    for _ in 0..=random.below(3) {
        let (from, to) = (random.below(u64::from(nodes)) as u8, random.below(u64::from(nodes)) as u8);
        let span_ns = [500_000, 8_000_000][random.below(2) as usize];
        let (at_ns, for_ns) = (random.below(3_000_000), random.below(span_ns));
        let blow = match random.below(7) {
            0..=2 => Blow::Pause(from, for_ns),
            3 => Blow::Cut(from, to, false, for_ns),
            4 => Blow::Cut(from, to, true, for_ns),
            5 => Blow::Slow(from, to, random.below(60_000), for_ns),
            _ => Blow::Disorder(100 + random.below(2_000), for_ns),
        };
        if from != to || !matches!(blow, Blow::Cut(..) | Blow::Slow(..)) {
            blows.push((at_ns, blow));
        }
    }
    blows
}

fn death(node: u8, random: &mut Random) -> Blow {
    if random.below(2) == 0 { Blow::Kill(node) } else { Blow::Crash(node) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_described() {
        let described = include_str!("../../../../docs/internals/simulation.md");
        for scenario in Scenario::ALL.iter().filter(|scenario| !scenario.flag.is_empty()) {
            assert!(described.contains(&format!("-- --seed 0 {} ", scenario.flag)), "{}", scenario.flag);
        }
    }
}
