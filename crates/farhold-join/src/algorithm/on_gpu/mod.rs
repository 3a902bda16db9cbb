//! The joins of a device (`gpu/`) as algorithms: `triton`, `gpu_no_partition`, `cpu_partitioned`.
//!
//! ```text
//!   build ──▶ copy on the host ──▶ build side on the device ── probe ──▶ sum, pairs
//!                    │                     │ any error but a cancelled run
//!                     └─────────────────────┴──▶ radix join on the CPU from then on; Table::fallback says why
//! ```
//!
//! The copy makes every failure harmless: a failed probe has handed out nothing, and is repeated on the CPU. Pairs come
//! in chunks of the probe side. A chunk is handed out only when the device has delivered all of its rows. It is made
//! smaller when they do not fit in the reserved room, and the chunks after it grow again.
//!
//! **Representatives** ([`Matches::First`]) must not change when the CPU takes over. So both devices join with a build
//! side that holds each key once. The table holds one form of its build side on the device at a time.
//!
//! **Several threads** may probe a table, as the shares of a join do. On the device they probe one after the other, and
//! so each may use all threads of the run. Once the CPU has taken over they probe at once.

#[cfg(all(test, feature = "emulation"))]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{
    Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table, memory_bytes_of_all, no_partition::NoPartition,
    radix::Radix,
};
use crate::cost::Expected;
use crate::gpu::{Built, Driver, Gpu, GpuError, Relation, Wanted, Work, predict, tuned};
use crate::{JoinError, Run};

/// A driver on a device.
pub struct OnGpu {
    driver: Driver,
    /// None: this machine's GPU.
    gpu: Option<Arc<Gpu>>,
}

/// The Triton join on this machine's GPU.
pub static TRITON: OnGpu = OnGpu { driver: Driver::Triton, gpu: None };
/// The join without partitioning on this machine's GPU.
pub static NO_PARTITION: OnGpu = OnGpu { driver: Driver::NoPartition, gpu: None };
/// The CPU-partitioned join on this machine's GPU.
pub static CPU_PARTITIONED: OnGpu = OnGpu { driver: Driver::CpuPartitioned, gpu: None };

/// Rows of a chunk for which there is always room.
const ROWS_MIN: usize = 1 << 12;

impl OnGpu {
    /// The driver on a device that is not this machine's own, for tests.
    pub fn new(driver: Driver, gpu: Arc<Gpu>) -> Self {
        Self { driver, gpu: Some(gpu) }
    }

    fn gpu(&self) -> Result<Arc<Gpu>, JoinError> {
        let machine = || Gpu::of_this_machine().map_err(|error| JoinError::Unavailable(error.to_string()));
        self.gpu.as_ref().map_or_else(machine, |gpu| Ok(Arc::clone(gpu)))
    }
}

impl Algorithm for OnGpu {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn check_available(&self) -> Result<(), JoinError> {
        self.gpu()?.describe().map(drop).map_err(|error| JoinError::Unavailable(error.to_string()))
    }

    fn memory_bytes(&self, shape: Shape) -> u64 {
        let (build, probe) = (shape.build_rows as u64, shape.probe_rows as u64);
        let tuning = tuned_sizes(build.max(probe));
        let partitions = 2 * (build.max(probe) / 32 + 64).min(2048);
        // Pages in host memory, partly filled ones too; the pinned buffers of the ring and of two pairs in flight; rows
        // of a chunk.
        let pages = 16 * (build + probe + 2 * (8 * partitions + (1 << tuning.page_shift)));
        let pinned = 16 * (3 * (tuning.chunk_tuples + 16) + 2 * tuning.rows_host_max) + 32 * partitions + (4 << 10);
        let counts = 8 * partitions * (2 * shape.threads as u64 + 4);
        let rows = 16 * probe.max(ROWS_MIN as u64);
        let on_device = pages + pinned + counts + rows;
        // The build side twice: all of it, and each key once, which a table on the CPU finds.
        let representatives = NoPartition.memory_bytes(shape) + 8 * build;
        32 * build + on_device.max(Radix.memory_bytes(shape)) + representatives
    }

    fn probe_rows_wanted(&self, build_rows: usize) -> usize {
        // Each probe partitions the build side's partitions again.
        build_rows.clamp(1 << 13, 1 << 26)
    }

    fn predicted_ns(&self, join: &Expected<'_>) -> Option<f64> {
        let gpu = join.gpu?;
        let &Expected { build_rows, probe_rows, threads, probers, .. } = join;
        if memory_bytes_of_all(self, build_rows, threads, probers) > join.machine.budget_bytes {
            return None;
        }
        let work = Work {
            build_rows: build_rows as u64,
            probe_rows,
            // Probers take turns, and each has rows of its own.
            probes: probe_rows.div_ceil(self.probe_rows_wanted(build_rows) as u64).max(probers as u64),
            words: 1,
            rows: probe_rows,
            is_pinned: false,
            threads,
        };
        let options = tuned(gpu, &work);
        Some(predict(self.driver, gpu, &work, &options).ok()?.seconds * 1e9)
    }

    fn reason(&self, join: &Expected<'_>) -> String {
        let mib = (16 * (join.build_rows as u64 + join.probe_rows)) >> 20;
        let link_gb_per_s = join.gpu.map_or(0.0, |gpu| gpu.to_device_bytes_per_s / 1e9);
        format!(
            "moving {mib} MiB over a link of {link_gb_per_s:.0} GB/s costs less than partitioning them on {} threads",
            join.threads
        )
    }

    fn is_on_gpu(&self) -> bool {
        true
    }

    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError> {
        run.cancel.check()?;
        let gpu = self.gpu()?;
        let all = Side { keys: build.keys().to_vec(), payloads: build.payloads().to_vec() };
        let table = OnGpuTable {
            driver: self.driver,
            gpu,
            all,
            firsts: OnceLock::new(),
            state: Mutex::default(),
            fallback: OnceLock::new(),
        };
        // The build side goes to the device now, or into the CPU's table.
        match table.on_device(Matches::All, run, |_| Ok(()))? {
            Outcome::Done(()) | Outcome::TooManyRows => {}
            Outcome::OnCpu => drop(table.on_cpu(Matches::All, run)?),
        }
        Ok(Box::new(table))
    }
}

fn tuned_sizes(rows: u64) -> crate::gpu::Tuning {
    crate::gpu::Tuning::for_rows(rows, false)
}

/// The build side, or one tuple of each key.
struct Side {
    keys: Vec<u64>,
    payloads: Vec<u64>,
}

impl Side {
    fn columns(&self) -> Result<Columns<'_>, JoinError> {
        Columns::new(&self.keys, &self.payloads)
    }
}

struct OnGpuTable {
    driver: Driver,
    gpu: Arc<Gpu>,
    all: Side,
    firsts: OnceLock<Side>,
    state: Mutex<State>,
    /// Why the CPU has taken over; set at most once.
    fallback: OnceLock<String>,
}

/// The form of the build side that is ready to be probed, one at a time.
#[derive(Default)]
struct State {
    on_device: Option<(Matches, Box<dyn Built>)>,
    on_cpu: Option<(Matches, Arc<dyn Table>)>,
    /// Probe rows of a chunk whose matches fitted.
    chunk_rows: Option<usize>,
}

enum Outcome<T> {
    Done(T),
    TooManyRows,
    /// The device is no longer used.
    OnCpu,
}

/// State of an enumeration between calls.
enum Kept {
    /// Rows of a chunk; those from `at` on are not handed out yet. The next chunk begins at probe row `next`.
    Rows { rows: Vec<u64>, at: usize, next: usize },
    /// The CPU enumerates the probe rows beginning with `from`.
    Cpu { from: usize, cursor: Cursor },
}

impl OnGpuTable {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The build side for these matches. Call with the state locked, so that only one thread computes the first of each
    /// key.
    fn side(&self, matches: Matches, run: &Run) -> Result<&Side, JoinError> {
        match (matches, self.firsts.get()) {
            (Matches::All, _) => Ok(&self.all),
            (Matches::First, Some(firsts)) => Ok(firsts),
            (Matches::First, None) => {
                let firsts = first_of_each_key(&self.all, run)?;
                Ok(self.firsts.get_or_init(|| firsts))
            }
        }
    }

    /// Runs `work` with the build side on the device, and brings it there first if necessary. Any failure there, except
    /// a cancelled run or too many rows, ends the use of the device.
    fn on_device<T>(
        &self,
        matches: Matches,
        run: &Run,
        work: impl FnOnce(&dyn Built) -> Result<T, GpuError>,
    ) -> Result<Outcome<T>, JoinError> {
        let mut state = self.state();
        // Checked only now: the thread whose turn came before may have given the device up.
        if self.fallback.get().is_some() {
            return Ok(Outcome::OnCpu);
        }
        let side = self.side(matches, run)?;
        let answer = self.bring(&mut state, matches, side, run).and_then(|()| match &state.on_device {
            Some((_, built)) => work(&**built),
            None => Err(GpuError::Invalid("the build side is not on the device".into())),
        });
        match answer {
            Ok(done) => Ok(Outcome::Done(done)),
            Err(GpuError::Cancelled) => Err(JoinError::Cancelled),
            Err(GpuError::TooManyRows { .. }) => Ok(Outcome::TooManyRows),
            Err(error) => {
                state.on_device = None;
                self.gpu.note(&error);
                self.fallback.get_or_init(|| format!("joined on the CPU: {error}"));
                Ok(Outcome::OnCpu)
            }
        }
    }

    fn bring(&self, state: &mut State, matches: Matches, side: &Side, run: &Run) -> Result<(), GpuError> {
        if state.on_device.as_ref().is_none_or(|on_device| on_device.0 != matches) {
            state.on_device = None;
            let rows = side.keys.len() as u64;
            let work = Work {
                build_rows: rows,
                probe_rows: rows,
                probes: 1,
                words: 1,
                rows,
                is_pinned: false,
                threads: run.threads,
            };
            let options = tuned(&self.gpu.describe()?, &work);
            let relation = Relation { keys: &side.keys, payloads: &side.payloads, is_pinned: false };
            let built = self.driver.build(self.gpu.device(), relation, rows.max(1), options, run)?;
            state.on_device = Some((matches, built));
        }
        Ok(())
    }

    /// The CPU's table of the build side.
    fn on_cpu(&self, matches: Matches, run: &Run) -> Result<Arc<dyn Table>, JoinError> {
        let mut state = self.state();
        let side = self.side(matches, run)?;
        if let Some((of, table)) = &state.on_cpu
            && *of == matches
        {
            return Ok(Arc::clone(table));
        }
        state.on_cpu = None;
        let table: Arc<dyn Table> = Radix.build(side.columns()?, run)?.into();
        state.on_cpu = Some((matches, Arc::clone(&table)));
        Ok(table)
    }

    /// All rows of the next chunk of probe rows, which begins at `from`.
    fn next_chunk(&self, probe: Columns<'_>, from: usize, matches: Matches, run: &Run) -> Result<Kept, JoinError> {
        let rows_max = probe.len().max(ROWS_MIN) as u64;
        loop {
            run.cancel.check()?;
            let rows = self.state().chunk_rows.unwrap_or(usize::MAX).clamp(1, probe.len() - from);
            let chunk = relation(probe, from..from + rows);
            let outcome =
                self.on_device(matches, run, |built| built.probe(chunk, Wanted::Rows { max: rows_max }, run))?;
            match outcome {
                Outcome::Done(answer) => {
                    // Two words for each pair: twice the rows would have room as well.
                    let may_grow = answer.rows.len() as u64 <= rows_max;
                    if let Some(chunk_rows) = self.state().chunk_rows.as_mut().filter(|_| may_grow) {
                        *chunk_rows = rows.saturating_mul(2).max(*chunk_rows);
                    }
                    return Ok(Kept::Rows { rows: answer.rows, at: 0, next: from + rows });
                }
                Outcome::TooManyRows if rows > 1 => {
                    let chunk_rows = &mut self.state().chunk_rows;
                    *chunk_rows = Some(chunk_rows.map_or(rows / 2, |known| known.min(rows / 2)));
                }
                Outcome::TooManyRows => {
                    let mut state = self.state();
                    state.on_device = None;
                    self.fallback.get_or_init(|| {
                        format!("joined on the CPU: a key has more than {rows_max} matches, for which there is no room")
                    });
                }
                Outcome::OnCpu => return Ok(Kept::Cpu { from, cursor: Cursor::default() }),
            }
        }
    }
}

fn relation(columns: Columns<'_>, rows: std::ops::Range<usize>) -> Relation<'_> {
    Relation { keys: &columns.keys()[rows.clone()], payloads: &columns.payloads()[rows], is_pinned: false }
}

/// The build tuples that represent their keys: those that the CPU's table returns when it is probed with its own rows.
fn first_of_each_key(all: &Side, run: &Run) -> Result<Side, JoinError> {
    let numbers: Vec<u64> = (0..all.keys.len() as u64).collect();
    let columns = Columns::new(&all.keys, &numbers)?;
    let table = NoPartition.build(columns, run)?;
    let (mut cursor, mut pairs) = (Cursor::default(), Pairs::with_limit(ROWS_MIN));
    let mut firsts = Side { keys: Vec::new(), payloads: Vec::new() };
    while !cursor.is_done {
        pairs.clear();
        table.pairs(columns, Matches::First, &mut cursor, &mut pairs, run)?;
        for (&first, _) in pairs.build.iter().zip(&pairs.probe).filter(|(first, row)| first == row) {
            firsts.keys.push(all.keys[first as usize]);
            firsts.payloads.push(all.payloads[first as usize]);
        }
    }
    Ok(firsts)
}

impl Table for OnGpuTable {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        run.cancel.check()?;
        if probe.is_empty() {
            return Ok(Sum::default());
        }
        let all = relation(probe, 0..probe.len());
        match self.on_device(Matches::All, run, |built| built.probe(all, Wanted::Sum, run))? {
            Outcome::Done(answer) => Ok(answer.sum),
            Outcome::TooManyRows | Outcome::OnCpu => self.on_cpu(Matches::All, run)?.sum(probe, run),
        }
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        run.cancel.check()?;
        let kept = cursor.kept.take().and_then(|kept| kept.downcast::<Kept>().ok());
        let mut kept = kept.map_or(Kept::Rows { rows: Vec::new(), at: 0, next: 0 }, |kept| *kept);
        loop {
            match &mut kept {
                Kept::Rows { rows, at, next } => {
                    while *at < rows.len() && !pairs.is_full() {
                        pairs.push(rows[*at], rows[*at + 1]);
                        *at += 2;
                    }
                    if *at < rows.len() {
                        break;
                    }
                    if *next == probe.len() {
                        cursor.is_done = true;
                        return Ok(());
                    }
                    if pairs.is_full() {
                        break;
                    }
                    let from = *next;
                    rows.clear();
                    rows.shrink_to_fit();
                    kept = self.next_chunk(probe, from, matches, run)?;
                }
                Kept::Cpu { from, cursor: of_cpu } => {
                    let rest = Columns::new(&probe.keys()[*from..], &probe.payloads()[*from..])?;
                    self.on_cpu(matches, run)?.pairs(rest, matches, of_cpu, pairs, run)?;
                    cursor.is_done = of_cpu.is_done;
                    break;
                }
            }
        }
        cursor.kept = Some(Box::new(kept));
        Ok(())
    }

    fn takes_turns(&self) -> bool {
        self.fallback.get().is_none()
    }

    fn scheme(&self) -> &'static str {
        match self.driver {
            _ if self.fallback.get().is_some() => "on the CPU",
            Driver::NoPartition => "open slots in device memory",
            Driver::Triton | Driver::CpuPartitioned => "chained in shared memory",
        }
    }

    fn memory_bytes(&self) -> u64 {
        let columns = 16 * self.all.keys.len() as u64 + self.firsts.get().map_or(0, |side| 16 * side.keys.len() as u64);
        let state = self.state();
        let pages = state.on_device.as_ref().map_or(0, |(_, built)| built.host_bytes());
        columns + pages + state.on_cpu.as_ref().map_or(0, |(_, table)| table.memory_bytes())
    }

    fn fallback(&self) -> Option<&str> {
        self.fallback.get().map(String::as_str)
    }
}
