//! The second pass and the join. Two pairs of partitions are in flight on streams of their own, so that the transfer of
//! one runs beside the kernels of the other (paper, section 5.2).
//!
//! ```text
//!   spilled pages ── copy engine ──▶ staging ─┐
//!   cached pages ─────────────────────────────┴▶ histogram ▶ places ▶ partition ▶ schedule ▶ join ▶ sums, rows
//! ```
//!
//! A pair that is larger than the workspace is cut, and the cuts of both sides are joined crosswise, so that any skew
//! ends. A piece whose rows do not fit is halved and repeated.

use std::collections::VecDeque;
use std::ops::Range;

use super::GpuAnswer;
use super::context::{COPY, Context};
use super::device::{Buffer, GpuError, Grid, Place, Stream};
use super::kernels::{JoinAggregate, JoinArguments, PartitionArguments, Rows, ScheduleArguments, Source, TASK_BYTES};
use super::options::Scheme;
use super::plan::PAIRS_IN_FLIGHT;
use super::relation::{Partitioned, Places, count_on_device};
use crate::columns::Sum;

/// Cuts of a pair of partitions, as positions of both sides.
struct Piece {
    build: Range<u64>,
    probe: Range<u64>,
}

/// Joins all pairs.
pub fn join(
    cx: &Context<'_>,
    build: &Partitioned,
    probe: &Partitioned,
    answer: &mut GpuAnswer,
) -> Result<(), GpuError> {
    let mut pieces: VecDeque<Piece> = VecDeque::new();
    for partition in 0..build.counts.len() {
        for build in cut(build.positions(partition), cx.plan.piece_tuples) {
            for probe in cut(probe.positions(partition), cx.plan.piece_tuples) {
                pieces.push_back(Piece { build: build.clone(), probe });
            }
        }
    }
    let mut workspaces =
        (0..PAIRS_IN_FLIGHT).map(|n| Workspace::new(cx, Stream(2 + n as u8))).collect::<Result<Vec<_>, _>>()?;
    let mut next = 0;
    while !pieces.is_empty() || workspaces.iter().any(|workspace| workspace.piece.is_some()) {
        let workspace = &mut workspaces[next];
        next = (next + 1) % PAIRS_IN_FLIGHT as usize;
        if let Some(piece) = workspace.finish(cx, answer)? {
            halve(piece, &mut pieces);
        }
        if let Some(piece) = pieces.pop_front() {
            workspace.start(cx, build, probe, piece)?;
        }
    }
    Ok(())
}

/// Pieces of at most `most` positions; an empty range gives none.
fn cut(positions: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let end = positions.end;
    positions.step_by(most as usize).map(move |begin| begin..(begin + most).min(end))
}

/// Halves a piece whose rows had no room. Room is at least the piece's largest build side, so cutting the probe side
/// ends.
fn halve(piece: Piece, pieces: &mut VecDeque<Piece>) {
    let (begin, end) = (piece.probe.start, piece.probe.end);
    assert!(end - begin > 1, "one probe tuple has at most as many rows as the build side has tuples");
    let middle = begin + (end - begin) / 2;
    pieces.push_front(Piece { build: piece.build.clone(), probe: middle..end });
    pieces.push_front(Piece { build: piece.build, probe: begin..middle });
}

/// One side of the pair in flight.
struct Side {
    staging: Buffer,
    directory: Buffer,
    directory_host: Buffer,
    places: Places,
    out: Buffer,
}

impl Side {
    fn new(cx: &Context<'_>) -> Result<Self, GpuError> {
        let plan = &cx.plan;
        let page_bytes = plan.tuple_bytes << cx.options.tuning.page_shift;
        let pages = plan.piece_tuples.div_ceil(1 << cx.options.tuning.page_shift) + 1;
        let out_tuples = plan.piece_tuples + (plan.align_tuples() << plan.second_bits);
        Ok(Self {
            staging: Buffer::new(cx.device, Place::Device, pages * page_bytes)?,
            directory: Buffer::new(cx.device, Place::Device, pages * 8)?,
            directory_host: Buffer::new(cx.device, Place::Host, pages * 8)?,
            places: Places::new(cx, plan.second_bits)?,
            out: Buffer::new(cx.device, Place::Device, out_tuples * plan.tuple_bytes)?,
        })
    }

    /// Queues the copies of the spilled pages. Returns the source that reads them and the cached ones. The side must be
    /// idle.
    fn stage(&mut self, cx: &Context<'_>, relation: &Partitioned, positions: &Range<u64>) -> Result<Source, GpuError> {
        let shift = cx.options.tuning.page_shift;
        let (page_tuples, tuple_bytes) = (1u64 << shift, cx.plan.tuple_bytes);
        let pages = positions.start >> shift..((positions.end - 1) >> shift) + 1;
        let count = (pages.end - pages.start) as usize;
        for (n, i) in pages.clone().enumerate() {
            let page = relation.pages[i as usize];
            let begin = positions.start.max(i * page_tuples) - i * page_tuples;
            let end = positions.end.min((i + 1) * page_tuples) - i * page_tuples;
            let address = match page.place {
                Place::Device => page.address,
                Place::Host => {
                    let staged = self.staging.at(n as u64 * page_tuples * tuple_bytes, page_tuples * tuple_bytes);
                    cx.copy(
                        COPY,
                        staged + begin * tuple_bytes,
                        page.address + begin * tuple_bytes,
                        (end - begin) * tuple_bytes,
                    )?;
                    staged
                }
            };
            // SAFETY: the side is idle, so the last copy out of this memory has ended.
            let word = unsafe { self.directory_host.words_mut(n as u64 * 8, 1) };
            word[0] = address;
        }
        cx.copy(COPY, self.directory.address(), self.directory_host.at(0, count as u64 * 8), count as u64 * 8)?;
        let rows = Rows { base: 0, pages: self.directory.address(), page_shift: shift, reserved: 0 };
        let first = positions.start - pages.start * page_tuples;
        Ok(Source { rows, first, count: positions.end - positions.start, ..Source::default() })
    }

    /// Queues the second pass.
    fn partition(&self, cx: &Context<'_>, stream: Stream, source: Source) -> Result<(), GpuError> {
        let plan = &cx.plan;
        let radix = cx.radix(plan.first_bits, plan.second_bits);
        cx.fill(stream, self.places.counts(), 0, self.places.partitions * 8)?;
        count_on_device(cx, stream, "histogram_rows", source, radix, self.places.counts())?;
        self.places.place(cx, stream)?;
        let arguments = PartitionArguments {
            source,
            radix,
            out: self.rows(),
            fronts: self.places.fronts(),
            backs: self.places.backs(),
            buffer_tuples: plan.second_buffer_tuples,
            ..PartitionArguments::default()
        };
        let shared_bytes = self.places.partitions * (u64::from(plan.second_buffer_tuples) * plan.tuple_bytes + 8);
        cx.launch_wide(stream, "partition_shared_rows", cx.grid(shared_bytes), &arguments)
    }

    fn rows(&self) -> Rows {
        Rows { base: self.out.address(), ..Rows::default() }
    }
}

/// Device memory for one pair in flight.
struct Workspace {
    stream: Stream,
    piece: Option<Piece>,
    build: Side,
    probe: Side,
    tasks: Buffer,
    task_capacity: u64,
    /// Aggregate (4 words), row cursor, task count and next task (one word).
    outcome: Buffer,
    outcome_host: Buffer,
    rows: Buffer,
    rows_host: Option<Buffer>,
}

const OUTCOME_WORDS: u64 = 6;

impl Workspace {
    fn new(cx: &Context<'_>, stream: Stream) -> Result<Self, GpuError> {
        let plan = &cx.plan;
        let task_capacity =
            (1 << plan.second_bits) + plan.piece_tuples / u64::from(cx.options.tuning.probe_tuples_max) + 1;
        let row_bytes = 16 * u64::from(plan.words);
        let rows_host = if cx.options.materialize {
            Some(Buffer::new(
                cx.device,
                Place::Host,
                plan.result_rows.min(cx.options.tuning.rows_host_max) * row_bytes,
            )?)
        } else {
            None
        };
        Ok(Self {
            stream,
            piece: None,
            build: Side::new(cx)?,
            probe: Side::new(cx)?,
            tasks: Buffer::new(cx.device, Place::Device, task_capacity * TASK_BYTES)?,
            task_capacity,
            outcome: Buffer::new(cx.device, Place::Device, OUTCOME_WORDS * 8)?,
            outcome_host: Buffer::new(cx.device, Place::Host, OUTCOME_WORDS * 8)?,
            rows: Buffer::new(
                cx.device,
                Place::Device,
                rows_host.as_ref().map_or(0, |_| plan.result_rows * row_bytes),
            )?,
            rows_host,
        })
    }

    /// Queues a piece. The workspace must be idle.
    fn start(
        &mut self,
        cx: &Context<'_>,
        build: &Partitioned,
        probe: &Partitioned,
        piece: Piece,
    ) -> Result<(), GpuError> {
        let build_source = self.build.stage(cx, build, &piece.build)?;
        let probe_source = self.probe.stage(cx, probe, &piece.probe)?;
        let staged = cx.device.record(COPY)?;
        cx.device.wait(self.stream, staged)?;
        self.build.partition(cx, self.stream, build_source)?;
        self.probe.partition(cx, self.stream, probe_source)?;
        self.join(cx)?;
        self.piece = Some(piece);
        Ok(())
    }

    fn join(&self, cx: &Context<'_>) -> Result<(), GpuError> {
        let (plan, tuning) = (&cx.plan, &cx.options.tuning);
        cx.fill(self.stream, self.outcome.address(), 0, self.outcome.bytes())?;
        let word = |n: u64| self.outcome.at(n * 8, 8);
        let schedule = ScheduleArguments {
            build_begins: self.build.places.begins(),
            build_counts: self.build.places.counts(),
            probe_begins: self.probe.places.begins(),
            probe_counts: self.probe.places.counts(),
            tasks: self.tasks.address(),
            task_count: word(5),
            partitions: 1 << plan.second_bits,
            task_capacity: self.task_capacity as u32,
            table_tuples: tuning.table_tuples,
            probe_tuples_max: tuning.probe_tuples_max,
        };
        cx.launch(
            self.stream,
            "schedule",
            Grid { blocks: plan.blocks, threads: plan.threads, shared_bytes: 0 },
            &schedule,
        )?;

        let (table_slots, table_bytes) = table(cx);
        let arguments = JoinArguments {
            build: self.build.rows(),
            probe: self.probe.rows(),
            tasks: self.tasks.address(),
            task_count: word(5),
            next_task: word(5) + 4,
            aggregate: word(0),
            rows: self.rows.address(),
            rows_cursor: word(4),
            rows_capacity: plan.result_rows,
            radix: cx.radix(plan.first_bits, plan.second_bits),
            table_tuples: tuning.table_tuples,
            table_slots,
        };
        let result = if cx.options.materialize { "materialize" } else { "sum" };
        let blocks_each = (plan.shared_bytes / table_bytes).clamp(1, 2) as u32;
        let grid =
            Grid { blocks: plan.blocks * blocks_each, threads: plan.threads.min(512), shared_bytes: table_bytes };
        cx.launch_wide(self.stream, &format!("join_{}_{result}", cx.options.scheme.name()), grid, &arguments)?;
        cx.copy(self.stream, self.outcome_host.address(), self.outcome.address(), self.outcome.bytes())
    }

    /// Takes the outcome of the piece in flight, if there is one. Returns the piece if its rows had no room.
    fn finish(&mut self, cx: &Context<'_>, answer: &mut GpuAnswer) -> Result<Option<Piece>, GpuError> {
        let Some(piece) = self.piece.take() else { return Ok(None) };
        cx.device.synchronize(self.stream)?;
        // SAFETY: the stream is idle, and its last copy wrote all of these words.
        let words = unsafe { self.outcome_host.words(0, OUTCOME_WORDS as usize) };
        let aggregate =
            JoinAggregate { matches: words[0], build_sum: words[1], probe_sum: words[2], refused: words[3] };
        let (rows, tasks) = (words[4], words[5] as u32);
        assert!(u64::from(tasks) <= self.task_capacity, "{tasks} tasks, room for {}", self.task_capacity);
        if aggregate.refused > 0 {
            return Err(GpuError::NotPerfect);
        }
        if cx.options.materialize && rows > cx.plan.result_rows {
            answer.pieces_halved += 1;
            return Ok(Some(piece));
        }
        answer.count(Sum { pairs: aggregate.matches, build: aggregate.build_sum, probe: aggregate.probe_sum });
        if let Some(host) = &self.rows_host {
            take_rows(cx, self.stream, &self.rows, host, rows, answer)?;
        }
        Ok(None)
    }
}

/// Brings rows to the host, one part at a time.
pub fn take_rows(
    cx: &Context<'_>,
    stream: Stream,
    rows: &Buffer,
    host: &Buffer,
    count: u64,
    answer: &mut GpuAnswer,
) -> Result<(), GpuError> {
    let row_words = 2 * u64::from(cx.plan.words);
    if answer.rows.len() as u64 / row_words + count > cx.rows_max {
        return Err(GpuError::TooManyRows { rows_max: cx.rows_max });
    }
    if answer.rows.is_empty() && cx.rows_max < u64::MAX {
        // Exactly the caller's limit; growing would reserve more.
        answer.rows.reserve_exact((cx.rows_max * row_words) as usize);
    }
    let bytes = count * row_words * 8;
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(host.bytes());
        cx.copy(stream, host.address(), rows.at(done, part), part)?;
        cx.device.synchronize(stream)?;
        // SAFETY: the copy has ended and wrote all of these words.
        answer.rows.extend_from_slice(unsafe { host.words(0, part as usize / 8) });
        done += part;
    }
    Ok(())
}

/// Slots of the table in shared memory, and the block's shared memory in bytes (as `join/partitioned.cuh` states).
fn table(cx: &Context<'_>) -> (u32, u64) {
    let tuples = u64::from(cx.options.tuning.table_tuples);
    let tuple_bytes = tuples * cx.plan.tuple_bytes + 16;
    match cx.options.scheme {
        Scheme::Chaining => {
            let heads = tuples.next_power_of_two();
            (heads as u32, tuple_bytes + tuples * 4 + heads * 4)
        }
        Scheme::Linear => {
            let slots = (tuples * 2).next_power_of_two();
            (slots as u32, tuple_bytes + slots * 4)
        }
        Scheme::Perfect { key_min, key_max } => {
            let slots = (key_max.wrapping_sub(key_min) >> (cx.plan.first_bits + cx.plan.second_bits)) + 1;
            (slots.min(u64::from(u32::MAX)) as u32, tuple_bytes + tuples.div_ceil(32) * 4)
        }
    }
}
