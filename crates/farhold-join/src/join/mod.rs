//! A join of Arrow batches inside a memory budget.
//!
//! ```text
//!   push_build* ─▶ finish_build ─▶ ( push_probe ─▶ next_output until None )* ─▶ finish_probe ─▶ next_output until None
//! ```
//!
//! The caller feeds round 0. Build rows are held until the budget is full, then partitioned. Partitions that do not fit
//! go to files, the others become a table, and probe rows follow their build rows. Each pair of files is later a round
//! of its own, with another hash. A pair whose keys have one code cannot be split. Its build side is read in blocks
//! that fit, and its probe side is read once for each block. With several threads, each joins pairs of its own.

mod build;
mod context;
mod level;
mod partitions;
mod probe;
mod read_back;
mod resident;
mod share;
mod steps;

use std::collections::VecDeque;
use std::panic;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use self::build::BuildSide;
use self::level::{Level, Next, SpilledPair};
use self::read_back::{Queue, ReadBack};
use self::share::Peers;
use crate::algorithm::Cursor;
use crate::blocks::slices;
use crate::memory::{Reservation, SHARE_BYTES_MIN};
use crate::model::Choice;
use crate::run::panicked;
use crate::spill::Readers;
use crate::{JoinError, JoinOptions, JoinSpec, Progress};
use context::Context;
use steps::{Passes, of_side, out_of_order};

/// The figures of a join, for EXPLAIN.
#[derive(Debug, Clone, Default)]
pub struct JoinReport {
    /// The algorithm of the first table, the reason, and the predicted and the measured time.
    pub choice: Option<Choice>,
    /// How that table finds keys.
    pub scheme: Option<&'static str>,
    /// Why a table continued elsewhere than its algorithm says (the first such table): a GPU that was busy, too small,
    /// or failed.
    pub fallback: Option<String>,
    /// Tables that were built: 1 if everything fitted.
    pub tables: u64,
    /// Pairs of partitions that went to files.
    pub spilled_partitions: u64,
    /// Bytes written to files.
    pub spilled_bytes: u64,
    /// The deepest round: 0 if everything fitted, 1 if spilled partitions were joined as they were read back, and one
    /// more for each time that one of them had to be partitioned again.
    pub rounds: u32,
    /// Passes over a probe partition whose build side could not be split.
    pub block_passes: u64,
}

impl JoinReport {
    /// Adds the figures of another thread that worked on this join.
    fn add(&mut self, other: Self) {
        self.fallback = self.fallback.take().or(other.fallback);
        self.tables += other.tables;
        self.spilled_partitions += other.spilled_partitions;
        self.spilled_bytes += other.spilled_bytes;
        self.rounds = self.rounds.max(other.rounds);
        self.block_passes += other.block_passes;
    }
}

/// A running join. After an error it has given everything back, and every call returns [`JoinError::Invalid`].
pub struct Join {
    cx: Arc<Context>,
    memory: Reservation,
    /// Floors for the joins that it may be split into, held until it is known that they need none.
    for_shares: Vec<Reservation>,
    state: State,
    /// Parts of the caller's probe batch that have not been taken yet.
    probe_slices: VecDeque<RecordBatch>,
    pending: Vec<SpilledPair>,
    /// The source of pairs, if it is one of several joins that read them back.
    queue: Option<Arc<Queue>>,
    progress: Progress,
    report: JoinReport,
}

enum State {
    Build(BuildSide),
    Probe(Box<Level>, Feed),
    /// The first pair of the queue comes next.
    Pairs,
    /// Other threads join the spilled pairs.
    ReadBack(ReadBack),
    Done,
    Failed,
}

/// The source of a level's probe batches.
enum Feed {
    Caller,
    File(Readers),
    Blocks(Box<Passes>),
}

/// The result of [`Join::step`].
#[derive(Debug)]
pub enum Step {
    /// Rows.
    Output(RecordBatch),
    /// No result yet: call again.
    Working,
    /// It wants probe rows, or the call that ends them.
    Hungry,
    /// Everything has been handed out.
    Done,
}

impl Join {
    /// Begins a join.
    ///
    /// # Errors
    /// [`JoinError::BudgetTooSmall`] if the pool has less than [`BUDGET_BYTES_MIN`](crate::BUDGET_BYTES_MIN) left;
    /// [`JoinError::Invalid`] for a specification that makes no sense.
    pub fn new(spec: JoinSpec, options: JoinOptions) -> Result<Self, JoinError> {
        spec.check()?;
        if let Some(algorithm) = options.algorithm {
            algorithm.check_available()?;
        }
        let shares = if options.shares > 1 { options.shares } else { 0 };
        let cx = Context::new(spec, options)?;
        let memory = cx.reserve()?;
        let for_shares = (0..shares).map(|_| Reservation::new(&cx.options.pool, SHARE_BYTES_MIN));
        let for_shares = for_shares.collect::<Result<_, _>>()?;
        Ok(Self { for_shares, ..Self::with(Arc::new(cx), memory, State::Build(BuildSide::new(0))) })
    }

    fn with(cx: Arc<Context>, memory: Reservation, state: State) -> Self {
        let (for_shares, pending, queue) = (Vec::new(), Vec::new(), None);
        Self {
            cx,
            memory,
            for_shares,
            state,
            probe_slices: VecDeque::new(),
            pending,
            queue,
            progress: Progress::default(),
            report: JoinReport::default(),
        }
    }

    /// A join of the queue's pairs, until the queue is empty.
    fn of_pairs(cx: Context, memory: Reservation, queue: Arc<Queue>) -> Self {
        Self { queue: Some(queue), ..Self::with(Arc::new(cx), memory, State::Pairs) }
    }

    /// The columns of the output.
    pub fn schema(&self) -> SchemaRef {
        self.cx.schema.clone()
    }

    /// The figures so far.
    pub fn report(&self) -> JoinReport {
        let mut report = self.report.clone();
        if let State::Probe(level, _) = &self.state {
            report.fallback = report.fallback.or_else(|| level.resident.table.fallback().map(Into::into));
        }
        report
    }

    /// The progress so far.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether everything has been handed out.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes build rows.
    ///
    /// # Errors
    /// Too little memory, no room for what is spilled, or a cancelled run. The join is over then.
    pub fn push_build(&mut self, batch: &RecordBatch) -> Result<(), JoinError> {
        self.guarded(|join| {
            join.cx.options.run.cancel.check()?;
            let batch = of_side(batch, &join.cx.spec.build, "build")?;
            let State::Build(build) = &mut join.state else {
                return Err(out_of_order("the build side has been finished"));
            };
            build.push(&batch, &join.cx, &mut join.memory)?;
            join.progress.build_rows += batch.num_rows() as u64;
            join.tell();
            Ok(())
        })
    }

    /// Ends the build side.
    ///
    /// # Errors
    /// As for [`Join::push_build`].
    pub fn finish_build(&mut self) -> Result<(), JoinError> {
        self.guarded(|join| {
            if !matches!(join.state, State::Build(_)) {
                return Err(out_of_order("the build side has been finished"));
            }
            if let State::Build(build) = std::mem::replace(&mut join.state, State::Failed) {
                let level = join.level_of(build)?;
                if !level.is_spilled() {
                    join.for_shares.clear();
                }
                join.state = State::Probe(Box::new(level), Feed::Caller);
            }
            Ok(())
        })
    }

    /// Splits the join into [`JoinOptions::shares`] joins that share the build side, for as many threads. Call once the
    /// build side is finished and before the first probe row. Each share takes probe rows of its own and hands out what
    /// follows from them. The last to end hands out the rest: build rows beyond pairs, and what was spilled. If a share
    /// is dropped or fails before its end, no share is the last one. The first share continues the report and the
    /// progress; the others count only their own work.
    ///
    /// # Errors
    /// Called before the build side is finished; too little memory for as many shares.
    pub fn split(mut self) -> Result<Vec<Self>, JoinError> {
        let State::Probe(level, Feed::Caller) = std::mem::replace(&mut self.state, State::Failed) else {
            return Err(out_of_order("only a join whose build side is finished can be split"));
        };
        let count = self.cx.options.shares.max(1);
        let (resident, spilled) = level.build_side();
        drop(level);
        let mut memories = std::mem::take(&mut self.for_shares).into_iter();
        let peers = Arc::new(Peers::new(count, self.memory.take()));
        let joins = (0..count).map(|share| {
            let peers = Some(Arc::clone(&peers));
            let level = Level::new(Arc::clone(&resident), spilled.clone(), peers, &self.cx)?;
            let state = State::Probe(Box::new(level), Feed::Caller);
            let memory = memories.next().unwrap_or_else(|| Reservation::empty(&self.cx.options.pool));
            let join = Self::with(Arc::clone(&self.cx), memory, state);
            let is_first = share == 0;
            Ok(if is_first { Self { progress: self.progress, report: self.report.clone(), ..join } } else { join })
        });
        joins.collect()
    }

    /// Whether some build rows are in files.
    pub fn is_spilled(&self) -> bool {
        match &self.state {
            State::Probe(level, Feed::Caller) => level.is_spilled(),
            State::Probe(..) | State::ReadBack(_) => true,
            _ => false,
        }
    }

    /// The build rows, once they are finished and if none of them is in a file.
    #[cfg(feature = "datafusion")]
    pub(crate) fn build_batches(&self) -> Option<&[RecordBatch]> {
        match &self.state {
            State::Probe(level, Feed::Caller) if !level.is_spilled() => Some(level.resident.blocks.batches()),
            _ => None,
        }
    }

    /// Whether the caller's probe rows have ended and it reads partitions back from files.
    pub fn is_reading_back(&self) -> bool {
        matches!(self.state, State::Probe(_, Feed::File(_) | Feed::Blocks(_)) | State::ReadBack(_))
    }

    /// Whether the next step may be long and wait for the disk.
    #[cfg(feature = "datafusion")]
    pub(crate) fn next_is_long(&self) -> bool {
        match &self.state {
            State::Probe(level, Feed::Caller) => level.next_is_long(),
            _ => self.is_reading_back(),
        }
    }

    /// Takes probe rows. Before the next call, call [`Join::next_output`] until it returns `None`.
    ///
    /// # Errors
    /// As for [`Join::push_build`].
    pub fn push_probe(&mut self, batch: &RecordBatch) -> Result<(), JoinError> {
        self.guarded(|join| {
            let batch = of_side(batch, &join.cx.spec.probe, "probe")?;
            let State::Probe(level, Feed::Caller) = &mut join.state else {
                return Err(out_of_order("the join does not take probe rows now"));
            };
            let is_hungry = join.probe_slices.is_empty();
            if !is_hungry || !matches!(level.next(true, &join.cx, &mut join.memory)?, Next::Hungry) {
                return Err(out_of_order("there is output to be taken before the next probe rows"));
            }
            if level.is_spilled() {
                // Rows of spilled partitions are copied, so the batch is cut into slices.
                join.probe_slices.extend(slices(&batch, join.cx.sizes.slice_bytes));
            } else {
                level.push(&batch, None, &join.cx, &mut join.memory)?;
            }
            join.progress.probe_rows += batch.num_rows() as u64;
            join.tell();
            Ok(())
        })
    }

    /// Ends the probe side.
    ///
    /// # Errors
    /// As for [`Join::push_build`].
    pub fn finish_probe(&mut self) -> Result<(), JoinError> {
        self.guarded(|join| {
            let State::Probe(level, Feed::Caller) = &mut join.state else {
                return Err(out_of_order("the join does not take probe rows now"));
            };
            if !join.probe_slices.is_empty() {
                return Err(out_of_order("there is output to be taken before the end of the probe rows"));
            }
            level.finish(&join.cx);
            Ok(())
        })
    }

    /// The next batch of the output; `None` when the join wants probe rows, or [`Join::is_done`].
    ///
    /// # Errors
    /// As for [`Join::push_build`].
    pub fn next_output(&mut self) -> Result<Option<RecordBatch>, JoinError> {
        loop {
            match self.step()? {
                Step::Output(batch) => return Ok(Some(batch)),
                Step::Working => {}
                Step::Hungry | Step::Done => return Ok(None),
            }
        }
    }

    /// As [`Join::next_output`], but returns between two batches of its inputs, for a caller that serves other work
    /// too.
    ///
    /// # Errors
    /// As for [`Join::push_build`].
    pub fn step(&mut self) -> Result<Step, JoinError> {
        self.guarded(|join| {
            let was_done = join.is_done();
            let step = join.advance()?;
            if let Step::Output(batch) = &step {
                join.progress.output_rows += batch.num_rows() as u64;
                join.tell();
            }
            if join.is_done() && !was_done {
                join.tell();
            }
            Ok(step)
        })
    }

    /// Runs one step. Any failure in it, including a panic, ends the join and frees what it holds.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, JoinError>) -> Result<T, JoinError> {
        if matches!(self.state, State::Failed) {
            return Err(out_of_order("the join has failed"));
        }
        let answer = panic::catch_unwind(AssertUnwindSafe(|| step(self)));
        let answer = answer.unwrap_or_else(|panic| Err(panicked(&*panic)));
        if answer.is_err() {
            self.state = State::Failed;
            self.probe_slices.clear();
            self.pending.clear();
            self.for_shares.clear();
            self.memory.release();
        }
        answer
    }

    fn tell(&mut self) {
        self.progress.spilled_bytes = self.report.spilled_bytes;
        let with_others = if let State::ReadBack(back) = &self.state { back.pending() } else { 0 };
        self.progress.pending_partitions = (self.pending.len() + with_others) as u64;
        if let Some(on_progress) = &self.cx.options.on_progress {
            on_progress(self.progress);
        }
    }
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Join>();
    is_send::<Cursor>();
};

#[cfg(all(test, feature = "datafusion"))]
mod tests {
    use super::context::Sizes;
    use super::*;
    use crate::{JoinKind, MemoryPool, Run};
    use arrow::array::{ArrayRef, Int64Array};

    /// A join of this many rows with themselves, whose probe rows have ended.
    fn fed(rows: i64, budget: u64, kind: JoinKind) -> Join {
        let batch = |start: i64| {
            let keys = Int64Array::from_iter_values((start..start + 5000).map(|row| row * 77_777));
            RecordBatch::try_from_iter([("key", Arc::new(keys) as ArrayRef)]).unwrap()
        };
        let spec = JoinSpec::new(batch(0).schema(), batch(0).schema(), vec![(0, 0)], kind);
        let run = Run { seed: 1, ..Run::default() };
        let mut join = Join::new(spec, JoinOptions { run, ..JoinOptions::new(MemoryPool::new(budget)) }).unwrap();
        let starts = || (0..rows).step_by(5000);
        starts().for_each(|start| join.push_build(&batch(start)).unwrap());
        join.finish_build().unwrap();
        for start in starts() {
            join.push_probe(&batch(start)).unwrap();
            while join.next_output().unwrap().is_some() {}
        }
        assert!(!join.next_is_long());
        join.finish_probe().unwrap();
        join
    }

    #[test]
    fn what_opens_a_pair_of_files_is_announced() {
        let mut join = fed(200_000, 1 << 20, JoinKind::Inner);
        loop {
            let (is_long, tables) = (join.next_is_long(), join.report().tables);
            if matches!(join.step().unwrap(), Step::Done) {
                break;
            }
            assert!(is_long || join.report().tables == tables, "{:?}", join.report());
        }
        assert!(join.report().tables > 1);
    }

    #[test]
    fn offsets_of_rows_that_are_copied_together_hold() {
        let sizes = Sizes::new(&MemoryPool::new(1 << 40), 4);
        assert!(sizes.group_bytes + sizes.slice_bytes < 1 << 31 && sizes.gather_bytes + sizes.slice_bytes < 1 << 31);
    }

    #[test]
    fn what_spreads_many_matches_is_announced() {
        assert!(fed(20_000, 64 << 20, JoinKind::LeftSemi).next_is_long());
        assert!(!fed(5000, 64 << 20, JoinKind::LeftSemi).next_is_long());
        assert!(!fed(20_000, 64 << 20, JoinKind::Inner).next_is_long());
    }
}
