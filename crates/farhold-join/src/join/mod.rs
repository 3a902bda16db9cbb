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
mod level;
mod partitions;
mod probe;
mod read_back;
mod resident;
mod share;

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;

use self::build::BuildSide;
use self::level::{Level, Next, SpilledPair};
use self::read_back::{Queue, ReadBack, Said};
use self::resident::{ONE_BLOCK_BYTES_MAX, Resident, working_bytes};
use self::share::Peers;
use crate::algorithm::Cursor;
use crate::bits::Bits;
use crate::blocks::{batch_bytes, batch_of, slices};
use crate::keys::{Encoder, encoders};
use crate::memory::{BUDGET_BYTES_MIN, Reservation, SHARE_BYTES_MIN};
use crate::model::{Choice, Machine, Width, no_gpu_wanted};
use crate::run::panicked;
use crate::spec::Origin;
use crate::spill::{FlagReader, FlagWriter, Reader, Readers, read_all};
use crate::{Above, CancelToken, Devices, JoinError, JoinOptions, JoinSpec, MemoryPool, Progress, Run};
use farhold_planted::Defect;

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

/// The passes over a pair whose build side comes in blocks.
struct Passes {
    pair: SpilledPair,
    build: Reader,
    /// A batch for which the last block had no room.
    carry: Option<RecordBatch>,
    probe: Readers,
    known: Option<FlagReader>,
    learned: Option<FlagWriter>,
    has_begun: bool,
    is_last: bool,
}

/// The part of a join that does not change while it runs.
pub(crate) struct Context {
    pub spec: JoinSpec,
    pub options: JoinOptions,
    pub schema: SchemaRef,
    pub outputs: Outputs,
    pub build_keys: Encoder,
    pub probe_keys: Encoder,
    pub sizes: Sizes,
    pub machine: Machine,
    pub probe_width: Width,
    /// The run of a probe: one thread for a share among others, all threads for the only one.
    pub probe_run: Run,
}

/// The wanted columns of each side, and where in the output they go.
pub(crate) struct Outputs {
    build: Vec<usize>,
    probe: Vec<usize>,
    /// For each column of the output, its position among the build side's columns, the probe side's and the mark.
    order: Vec<usize>,
}

impl Outputs {
    fn new(spec: &JoinSpec) -> Self {
        let (mut build, mut probe) = (Vec::new(), Vec::new());
        let origins = spec.output_columns();
        for origin in &origins {
            match *origin {
                Origin::Build(column) => build.push(column),
                Origin::Probe(column) => probe.push(column),
                Origin::Mark => {}
            }
        }
        let (mut next_build, mut next_probe) = (0..build.len(), build.len()..build.len() + probe.len());
        let mark = build.len() + probe.len();
        let order = origins.iter().map(|origin| match origin {
            Origin::Build(_) => next_build.next(),
            Origin::Probe(_) => next_probe.next(),
            Origin::Mark => None,
        });
        let order = order.map(|place| place.unwrap_or(mark)).collect();
        Self { build, probe, order }
    }

    pub fn build(&self) -> impl Iterator<Item = usize> + '_ {
        self.build.iter().copied()
    }

    pub fn probe(&self) -> impl Iterator<Item = usize> + '_ {
        self.probe.iter().copied()
    }
}

/// Sizes in proportion to the budget, or, where each thread has its own, to the thread's part.
pub(crate) struct Sizes {
    /// Incoming batches are cut into slices of about this size.
    pub slice_bytes: u64,
    /// The size of a write to a file.
    pub chunk_bytes: u64,
    /// The size of batches in which the table's rows are kept.
    pub block_bytes: u64,
    pub fan_out_bits: u32,
    pub bloom_bytes: u64,
    /// The most bytes of build rows that are distributed together, and also of their copies.
    pub group_bytes: u64,
    /// The most bytes of probe rows that each thread distributes together.
    pub gather_bytes: u64,
    pub probe_room_bytes: u64,
    /// Slices, copies of them, batches read ahead, and file buffers. They are not reserved one by one.
    pub in_flight_bytes: u64,
}

impl Sizes {
    fn new(pool: &MemoryPool, threads: usize) -> Self {
        let budget = pool.limit();
        let fan_out_bits = if budget >= 64 << 20 {
            5
        } else if budget >= 8 << 20 {
            4
        } else {
            3
        };
        // Pairs that several threads read back should each fit in a part of the memory.
        let fan_out_bits = fan_out_bits + u32::from(threads > 1 && !pool.gives_back());
        let part = budget / threads as u64;
        let slice_bytes = (part / 64).clamp(16 << 10, 4 << 20);
        let chunk_bytes = (part / 64).clamp(16 << 10, 1 << 20);
        Self {
            slice_bytes,
            chunk_bytes,
            block_bytes: (budget / 32).clamp(16 << 10, 16 << 20),
            fan_out_bits,
            bloom_bytes: (budget / 32).max(8 << fan_out_bits),
            // A single thread often runs one of several joins of a pool.
            group_bytes: (budget / if threads > 1 { 16 } else { 64 }).min(ONE_BLOCK_BYTES_MAX),
            gather_bytes: (part / 16).min(ONE_BLOCK_BYTES_MAX),
            probe_room_bytes: budget / 8,
            in_flight_bytes: 3 * slice_bytes + 2 * chunk_bytes + (8 << 10 << fan_out_bits),
        }
    }

    /// The part of the bytes in flight for which the floor has room.
    fn in_flight_reserved(&self) -> u64 {
        self.in_flight_bytes.min(BUDGET_BYTES_MIN / 2)
    }
}

impl Context {
    fn new(spec: JoinSpec, options: JoinOptions) -> Result<Self, JoinError> {
        let [build_keys, probe_keys] = encoders(&spec, options.run.seed)?;
        let machine = Machine { budget_bytes: options.pool.limit(), ..Machine::detect() };
        let machine = match options.devices {
            Devices::Cpu => Machine { gpu: no_gpu_wanted, ..machine },
            Devices::Any => machine,
        };
        let probe_run =
            Run { threads: if options.shares > 1 { 1 } else { options.run.threads }, ..options.run.clone() };
        Ok(Self {
            probe_width: Width::of(spec.probe_columns_of_pairs()),
            probe_run,
            schema: spec.output_schema(),
            outputs: Outputs::new(&spec),
            sizes: Sizes::new(&options.pool, options.run.threads),
            spec,
            options,
            build_keys,
            probe_keys,
            machine,
        })
    }

    /// The same join on one thread, within one of `parts` parts of the memory, which it takes from `above`.
    fn part(&self, parts: u64, above: Box<dyn Above>, cancel: CancelToken) -> Result<Self, JoinError> {
        let options = JoinOptions {
            run: Run { threads: 1, cancel, ..self.options.run.clone() },
            pool: MemoryPool::below(above, self.options.pool.limit() / parts),
            on_progress: None,
            shares: 1,
            ..self.options.clone()
        };
        Self::new(self.spec.clone(), options)
    }

    /// Reserves the floor, and takes from it what is in flight.
    fn reserve(&self) -> Result<Reservation, JoinError> {
        let mut memory = Reservation::new(&self.options.pool, BUDGET_BYTES_MIN)?;
        if !memory.try_grow(self.sizes.in_flight_reserved()) {
            return Err(JoinError::OutOfMemory { wanted_bytes: self.sizes.in_flight_bytes });
        }
        Ok(memory)
    }

    /// A batch of the output. `columns` are the build side's wanted ones, the probe side's, and the mark.
    pub fn output_of(&self, columns: impl Iterator<Item = ArrayRef>, rows: usize) -> Result<RecordBatch, JoinError> {
        let columns: Vec<ArrayRef> = columns.collect();
        let ordered = self.outputs.order.iter().map(|&place| columns[place].clone()).collect();
        batch_of(&self.schema, ordered, rows)
    }

    /// The number of rows of an output batch whose rows have at most this many bytes.
    pub fn batch_rows(&self, row_bytes: usize) -> usize {
        let bytes = self.options.batch_bytes_max.min(i32::MAX as usize);
        self.options.batch_rows_max.min(bytes / row_bytes.max(1)).max(1)
    }
}

impl Join {
    /// Begins a join.
    ///
    /// # Errors
    /// [`JoinError::BudgetTooSmall`] if the pool has less than [`BUDGET_BYTES_MIN`] left; [`JoinError::Invalid`] for a
    /// specification that makes no sense.
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
    pub fn report(&self) -> &JoinReport {
        &self.report
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

    fn level_of(&mut self, build: BuildSide) -> Result<Level, JoinError> {
        let (resident, spilled) = build.finish(&self.cx, &mut self.memory)?;
        self.note_table(&resident);
        if let Some(spilled) = &spilled {
            self.report.spilled_bytes += spilled.files.iter().flatten().map(|part| part.file.bytes).sum::<u64>();
        }
        Level::new(Arc::new(resident), spilled.map(Arc::new), None, &self.cx)
    }

    fn note_table(&mut self, resident: &Resident) {
        self.report.tables += 1;
        if self.report.choice.is_none() {
            self.report.choice = Some(resident.choice.clone());
            self.report.scheme = Some(resident.table.scheme());
        }
    }

    fn advance(&mut self) -> Result<Step, JoinError> {
        let (cx, memory) = (&*self.cx, &mut self.memory);
        let (level, feed) = match &mut self.state {
            State::Probe(level, feed) => (level, feed),
            State::Pairs => {
                self.state = self.next_pair()?;
                return Ok(Step::Working);
            }
            State::ReadBack(_) => return self.hear(),
            State::Done => return Ok(Step::Done),
            State::Build(_) | State::Failed => return Err(out_of_order("the build side is not finished")),
        };
        let keeps_probe = !matches!(feed, Feed::Blocks(passes) if !passes.is_last);
        match level.next(keeps_probe, cx, memory)? {
            Next::Batch(batch) => return Ok(Step::Output(batch)),
            Next::Working => {}
            Next::WorkDone(flags) => {
                if let (Feed::Blocks(passes), Some(flags)) = (feed, flags) {
                    passes.learn(&flags)?;
                }
            }
            Next::Hungry => match feed {
                Feed::Caller => match self.probe_slices.pop_front() {
                    Some(slice) => level.push(&slice, None, cx, memory)?,
                    None => return Ok(Step::Hungry),
                },
                Feed::File(reader) => match reader.next().transpose()? {
                    Some(batch) => level.push(&batch, None, cx, memory)?,
                    None => level.finish(cx),
                },
                Feed::Blocks(passes) => match passes.probe.next().transpose()? {
                    Some(batch) => {
                        let known = passes.known.as_mut().map(|known| known.next(batch.num_rows())).transpose()?;
                        let known = known.filter(|_| !farhold_planted::is(Defect::ForgottenFlags));
                        let known = known.unwrap_or_else(|| Bits::new(batch.num_rows()));
                        level.push(&batch, Some(known), cx, memory)?;
                    }
                    None => level.finish(cx),
                },
            },
            Next::Done => self.next_level()?,
        }
        Ok(Step::Working)
    }

    /// The active level has handed out everything. Continues with the next block, the next pair, or the end.
    fn next_level(&mut self) -> Result<(), JoinError> {
        let State::Probe(level, feed) = std::mem::replace(&mut self.state, State::Failed) else { return Ok(()) };
        if self.report.fallback.is_none() {
            self.report.fallback = level.resident.table.fallback().map(Into::into);
        }
        let pairs = level.close(&self.cx, &mut self.memory);
        self.report.spilled_partitions += pairs.len() as u64;
        self.report.spilled_bytes += pairs.iter().flat_map(|pair| &pair.probe).map(|file| file.bytes).sum::<u64>();
        self.pending.extend(pairs);
        self.state = match feed {
            Feed::Blocks(passes) if !passes.is_last => self.next_block(*passes)?,
            Feed::Caller => self.read_back()?,
            _ => self.next_pair()?,
        };
        Ok(())
    }

    /// The caller's rows have ended. The pairs of files come next, on several threads if there are any.
    fn read_back(&mut self) -> Result<State, JoinError> {
        if self.pending.is_empty() {
            return self.next_pair();
        }
        let in_flight = self.cx.sizes.in_flight_reserved();
        self.memory.shrink(in_flight);
        if let Some(back) = ReadBack::start(&self.cx, &mut self.memory, &mut self.pending)? {
            return Ok(State::ReadBack(back));
        }
        self.memory.try_grow(in_flight);
        self.next_pair()
    }

    /// The next message of the threads that read back.
    fn hear(&mut self) -> Result<Step, JoinError> {
        let State::ReadBack(back) = &mut self.state else { return Ok(Step::Working) };
        if let Some(Said { batch, report }) = back.next()? {
            self.report.add(report);
            return Ok(batch.map_or(Step::Working, Step::Output));
        }
        self.cx.options.run.cancel.check()?;
        if let State::ReadBack(back) = std::mem::replace(&mut self.state, State::Failed) {
            (self.memory, self.pending) = back.end()?;
            self.memory.try_grow(self.cx.sizes.in_flight_reserved());
            self.state = self.next_pair()?;
        }
        Ok(Step::Working)
    }

    fn next_pair(&mut self) -> Result<State, JoinError> {
        loop {
            let of_queue = || self.queue.as_ref()?.next();
            let Some(pair) = self.pending.pop().or_else(of_queue) else {
                self.memory.release();
                return Ok(State::Done);
            };
            match &self.queue {
                Some(queue) if !pair.can_be_split() => queue.leave(pair),
                _ => return self.open(pair),
            }
        }
    }

    fn open(&mut self, pair: SpilledPair) -> Result<State, JoinError> {
        self.report.rounds = self.report.rounds.max(pair.round + 1);
        let mut reader = pair.build.file.read()?;
        if !pair.can_be_split() {
            let passes = Passes {
                probe: read_all(pair.probe.clone()),
                build: reader,
                pair,
                carry: None,
                known: None,
                learned: None,
                has_begun: false,
                is_last: true,
            };
            return self.next_block(passes);
        }
        let mut build = BuildSide::new(pair.round + 1);
        for batch in &mut reader {
            build.push(&batch?, &self.cx, &mut self.memory)?;
        }
        let level = self.level_of(build)?;
        Ok(State::Probe(Box::new(level), Feed::File(read_all(pair.probe))))
    }

    /// Reads as many build rows as fit, at least one batch, and begins another pass over the probe rows.
    fn next_block(&mut self, mut passes: Passes) -> Result<State, JoinError> {
        let (cx, memory) = (&*self.cx, &mut self.memory);
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        let (mut working, mut choice) = working_bytes(0, 1, cx);
        let mut reserved = 0;
        passes.is_last = true;
        while let Some(batch) = passes.carry.take().map(Ok).or_else(|| passes.build.next()).transpose()? {
            let (more_rows, more_bytes) = (rows + batch.num_rows(), bytes + batch_bytes(&batch));
            let (more_working, more_choice) = working_bytes(more_rows, 1, cx);
            let has_room =
                more_bytes + more_working <= reserved || memory.try_grow(more_bytes + more_working - reserved);
            if !has_room && !batches.is_empty() {
                passes.carry = Some(batch).filter(|_| !farhold_planted::is(Defect::LostCarry));
                passes.is_last = false;
                break;
            }
            if has_room {
                reserved = reserved.max(more_bytes + more_working);
            }
            (rows, bytes, working, choice) = (more_rows, more_bytes, more_working, more_choice);
            batches.push(batch);
        }
        // A first batch that has no room uses the slack of what is in flight; nothing is reserved for it.
        let (bytes, working) = if reserved < bytes + working { (0, 0) } else { (bytes, reserved - bytes) };
        let resident = Resident::build(batches, bytes, working, choice, cx, memory)?;
        self.report.block_passes += 1;
        if passes.has_begun {
            passes.probe = read_all(passes.pair.probe.clone());
        }
        passes.has_begun = true;
        passes.known = passes.learned.take().map(FlagWriter::finish).transpose()?;
        if !passes.is_last && cx.spec.kind.keep_probe() != crate::spec::Keep::Nothing {
            passes.learned = Some(FlagWriter::create(&cx.options.spill_directory)?);
        }
        self.note_table(&resident);
        let level = Level::new(Arc::new(resident), None, None, &self.cx)?;
        Ok(State::Probe(Box::new(level), Feed::Blocks(Box::new(passes))))
    }
}

impl Passes {
    fn learn(&mut self, flags: &Bits) -> Result<(), JoinError> {
        self.learned.as_mut().map_or(Ok(()), |learned| learned.push(flags))
    }
}

/// The batch with the schema of its side, which may allow nulls where the batch's schema does not: it is combined with
/// other batches.
fn of_side(batch: &RecordBatch, schema: &SchemaRef, side: &str) -> Result<RecordBatch, JoinError> {
    let expected = schema.fields().iter().map(|field| field.data_type());
    if batch.columns().iter().map(|column| column.data_type()).eq(expected) {
        return batch_of(schema, batch.columns().to_vec(), batch.num_rows());
    }
    Err(JoinError::Invalid(format!("a {side} batch has other columns than the {side} side: {}", batch.schema())))
}

fn out_of_order(why: &str) -> JoinError {
    JoinError::Invalid(why.into())
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Join>();
    is_send::<Cursor>();
};

#[cfg(all(test, feature = "datafusion"))]
mod tests {
    use super::*;
    use crate::JoinKind;
    use arrow::array::Int64Array;

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
