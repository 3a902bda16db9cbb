//! The build rows in memory and their table.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::kernels::cmp::{eq, not_distinct};

use super::Context;
use crate::algorithm::{self, Algorithm, Columns, Cursor, Matches, Pairs, Table};
use crate::bits::{Bits, SharedBits};
use crate::blocks::{Blocks, merge, one_block, row_id};
use crate::keys::{Codes, Encoder, Packing};
use crate::memory::Reservation;
use crate::model::{self, Choice, ProbeSide};
use crate::pages::Pages;
use crate::spec::Keep;
use crate::{JoinError, JoinSpec, Run};
use farhold_planted::Defect;

/// Build rows, ready to be probed.
pub struct Resident {
    pub blocks: Blocks,
    pub table: Box<dyn Table>,
    pub choice: Choice,
    /// Build rows that have had a match, if the kind of join needs to know.
    pub matched: Option<SharedBits>,
    pub matches: Matches,
    /// Makes codes of the keys, where the encoders would have to hash them.
    packing: Option<Packing>,
    /// Bytes of the reservation that this holds.
    reserved: u64,
}

/// Bytes beside the rows themselves that a table of them needs while it is built and probed, with the choice of the
/// algorithm. `probers`: joins that will probe it at once.
pub fn working_bytes(rows: usize, probers: usize, cx: &Context) -> (u64, Choice) {
    let choice = cx.options.algorithm.map_or_else(
        || {
            let expected = cx.options.probe_rows_expected.unwrap_or(rows as u64);
            let probe = ProbeSide { rows: expected, width: cx.probe_width, probers };
            model::choose_for_batches(rows, &probe, cx.options.run.threads, &cx.machine)
        },
        Choice::given,
    );
    (bytes_with(choice.algorithm, rows, probers, cx), choice)
}

/// Takes [`working_bytes`] and `beside` more. If the cheapest algorithm has no room, one that needs less memory may
/// have: any of them costs less than files do.
pub fn take_working_bytes(
    rows: usize,
    probers: usize,
    beside: u64,
    cx: &Context,
    memory: &mut Reservation,
) -> Option<(u64, Choice)> {
    let (bytes, choice) = working_bytes(rows, probers, cx);
    if memory.try_grow(bytes + beside) {
        return Some((bytes, choice));
    }
    let smaller = algorithm::scalable();
    let smaller = smaller.min_by_key(|algorithm| bytes_with(*algorithm, rows, probers, cx))?;
    let smaller_bytes = bytes_with(smaller, rows, probers, cx);
    let is_free = cx.options.algorithm.is_none() && smaller_bytes < bytes;
    (is_free && memory.try_grow(smaller_bytes + beside)).then(|| {
        let reason = format!(
            "{} would cost less, but needs {} MiB where {} needs {}",
            choice.algorithm.name(),
            bytes >> 20,
            smaller.name(),
            smaller_bytes >> 20
        );
        let device = if choice.device.starts_with("cpu") { choice.device } else { format!("cpu ({reason})") };
        (smaller_bytes, Choice { algorithm: smaller, reason, device, ..choice })
    })
}

/// Bytes of codes and ids for each row, until the table has its own copy.
const COLUMNS_ROW_BYTES: u64 = 16;

fn bytes_with(algorithm: &dyn Algorithm, rows: usize, probers: usize, cx: &Context) -> u64 {
    let flags = if cx.spec.kind.keep_build() == Keep::Nothing { 0 } else { Bits::bytes(rows) };
    let table = algorithm::memory_bytes_of_all(algorithm, rows, cx.options.run.threads, probers);
    table + COLUMNS_ROW_BYTES * rows as u64 + flags
}

impl Resident {
    /// Makes the table. The batches' bytes and [`working_bytes`] must have been taken for it; what the table does not
    /// need goes back.
    pub fn build(
        batches: Vec<RecordBatch>,
        batch_bytes: u64,
        working_bytes: u64,
        choice: Choice,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<Self, JoinError> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let run = run_for(rows, &cx.options.run);
        let blocks = blocks_of(batches, batch_bytes, cx, &run, memory)?;
        let packing = Packing::of(&cx.build_keys, blocks.batches());
        let encode = |batch: &RecordBatch| encode(batch, packing.as_ref(), &cx.build_keys);
        let (codes, ids, keyed) = codes_of(&blocks, encode, &run)?;
        let started = crate::stopwatch::Stopwatch::start();
        let table = choice.algorithm.build(Columns::new(&codes[..keyed], &ids[..keyed])?, &run)?;
        let choice = Choice { actual_build_ns: started.ns(), ..choice };
        drop((codes, ids));
        let matched = (cx.spec.kind.keep_build() != Keep::Nothing).then(|| SharedBits::new(blocks.rows()));
        // An algorithm that rearranges the probe side needs room at every probe. The others need no more than the
        // table.
        let needed = match choice.algorithm.probe_rows_wanted(blocks.rows()) {
            0 => table.memory_bytes() + if matched.is_some() { Bits::bytes(blocks.rows()) } else { 0 },
            _ => working_bytes.saturating_sub(COLUMNS_ROW_BYTES * rows as u64),
        };
        let kept = batch_bytes + needed.min(working_bytes);
        memory.shrink(batch_bytes + working_bytes - kept);
        let mut resident = Self { blocks, table, choice, matched, matches: Matches::All, packing, reserved: kept };
        if !cx.spec.kind.emits_pairs() && cx.spec.residual.is_none() && resident.has_one_key_a_code(cx)? {
            resident.matches = Matches::First;
        }
        Ok(resident)
    }

    /// Probe rows that should be gathered before they go through the table.
    pub fn probe_rows_wanted(&self) -> usize {
        self.choice.algorithm.probe_rows_wanted(self.blocks.rows())
    }

    /// The codes of probe rows in this table's encoding.
    pub fn probe_codes(&self, batch: &RecordBatch, cx: &Context) -> Result<Codes, JoinError> {
        encode(batch, self.packing.as_ref(), &cx.probe_keys)
    }

    /// Whether equal codes mean equal keys.
    pub fn is_exact(&self, cx: &Context) -> bool {
        self.packing.is_some() || cx.build_keys.is_exact()
    }

    /// The run of a probe.
    pub fn probe_run<'a>(&self, cx: &'a Context) -> &'a Run {
        if self.table.takes_turns() { &cx.options.run } else { &cx.probe_run }
    }

    /// Gives the memory back to the reservation from which it came. The table must not be used any more.
    pub fn release(&self, memory: &mut Reservation) {
        memory.shrink(self.reserved);
    }

    /// Whether build rows of one code have one key, so that the first match of a code says everything about it.
    fn has_one_key_a_code(&self, cx: &Context) -> Result<bool, JoinError> {
        if self.is_exact(cx) {
            return Ok(true);
        }
        let mut is_one = true;
        self.with_representatives(cx, |pairs| {
            let same = keys_equal((&self.blocks, &pairs.build), (&self.blocks, &pairs.probe), cx, &cx.build_keys)?;
            is_one &= same.iter().all(|&same| same);
            Ok(())
        })?;
        Ok(is_one)
    }

    /// Pairs each build row with the one that [`Matches::First`] returns for its key: (that row, this row).
    fn with_representatives(
        &self,
        cx: &Context,
        mut each: impl FnMut(&Pairs) -> Result<(), JoinError>,
    ) -> Result<(), JoinError> {
        // A block may be as long as the budget. Its codes are made a part at a time, for which nothing is reserved.
        let part_rows = CODES_ROWS.max(self.probe_rows_wanted());
        let mut pairs = Pairs::with_limit(cx.batch_rows(self.blocks.row_bytes_max()));
        let blocks = self.blocks.batches().iter().enumerate();
        let parts = blocks.flat_map(|(number, batch)| {
            (0..batch.num_rows()).step_by(part_rows).map(move |start| (number, batch, start))
        });
        for (number, batch, start) in parts {
            cx.options.run.cancel.check()?;
            let part = batch.slice(start, part_rows.min(batch.num_rows() - start));
            let encode = |part: &RecordBatch| encode(part, self.packing.as_ref(), &cx.build_keys);
            let (codes, ids) = codes_of_batch(&part, row_id(number, start), encode)?;
            let mut cursor = Cursor::default();
            while !cursor.is_done {
                pairs.clear();
                self.table.pairs(
                    Columns::new(&codes, &ids)?,
                    Matches::First,
                    &mut cursor,
                    &mut pairs,
                    &cx.options.run,
                )?;
                if !pairs.is_empty() {
                    each(&pairs)?;
                }
            }
        }
        Ok(())
    }

    /// Whether [`Resident::spread_matches`] goes through more than a few rows.
    #[cfg(feature = "datafusion")]
    pub fn spreads_many_matches(&self) -> bool {
        self.matches == Matches::First && self.matched.is_some() && self.blocks.rows() > CODES_ROWS
    }

    /// Spreads the match of a representative to all rows with its key. Call once, after the last probe.
    pub fn spread_matches(&self, cx: &Context) -> Result<(), JoinError> {
        if self.matches != Matches::First || farhold_planted::is(Defect::MatchesNotSpread) {
            return Ok(());
        }
        let Some(matched) = &self.matched else { return Ok(()) };
        self.with_representatives(cx, |pairs| {
            for (&first, &row) in pairs.build.iter().zip(&pairs.probe) {
                if matched.get(self.blocks.number(first)) {
                    matched.set(self.blocks.number(row));
                }
            }
            Ok(())
        })
    }
}

/// The number of rows below which other threads cost more than they help: starting a thread takes as long as building a
/// table of thousands.
const ROWS_FOR_THREADS: usize = 1 << 17;

fn run_for(rows: usize, run: &Run) -> Run {
    Run { threads: if rows < ROWS_FOR_THREADS { 1 } else { run.threads }, ..run.clone() }
}

/// The rows as one batch, if there is memory for both while it is made: rows of one batch are gathered faster than rows
/// of many. Otherwise as batches that are small beside the budget.
fn blocks_of(
    batches: Vec<RecordBatch>,
    bytes: u64,
    cx: &Context,
    run: &Run,
    memory: &mut Reservation,
) -> Result<Blocks, JoinError> {
    let is_one = (cx.sizes.block_bytes..ONE_BLOCK_BYTES_MAX).contains(&bytes) && memory.try_grow(bytes);
    let merged = if is_one {
        let one = one_block(&batches, run);
        drop(batches);
        memory.shrink(bytes);
        vec![one?]
    } else {
        // Each thread holds a block beside the batches of which it is made. A single thread takes it from what is in
        // flight.
        let mut threads = run.threads;
        while threads > 1 && !memory.try_grow(threads as u64 * cx.sizes.block_bytes) {
            threads /= 2;
        }
        let run = Run { threads, ..run.clone() };
        let merged = merge(batches, cx.sizes.block_bytes, cx.options.pool.gives_back(), &run);
        memory.shrink(if threads > 1 { threads as u64 * cx.sizes.block_bytes } else { 0 });
        merged?
    };
    let mut blocks = Blocks::default();
    for block in merged {
        blocks.push(block);
    }
    Ok(blocks)
}

/// The size of a block up to which 32-bit offsets suffice in any column.
pub const ONE_BLOCK_BYTES_MAX: u64 = 1 << 30;

fn encode(batch: &RecordBatch, packing: Option<&Packing>, encoder: &Encoder) -> Result<Codes, JoinError> {
    packing.map_or_else(|| encoder.encode(batch), |packing| Ok(packing.encode(encoder, batch)))
}

/// Codes and ids of all rows with a valid key, and the number of these rows. The arrays are as long as there are rows.
/// Each worker makes a part at a time, and writes it where it would lie if all keys were valid. The gaps that other
/// rows leave are closed at the end. So nothing exists twice except the parts that are being made.
fn codes_of(
    blocks: &Blocks,
    encode: impl Fn(&RecordBatch) -> Result<Codes, JoinError> + Sync,
    run: &Run,
) -> Result<(Pages<u64>, Pages<u64>, usize), JoinError> {
    let (mut parts, mut all) = (Vec::new(), 0);
    for (number, batch) in blocks.batches().iter().enumerate() {
        parts.extend((0..batch.num_rows()).step_by(CODES_ROWS).map(|start| (number, start, all + start)));
        all += batch.num_rows();
    }
    let (mut codes, mut ids) = (Pages::<u64>::stale(all, &run.pages)?, Pages::<u64>::stale(all, &run.pages)?);
    let (to_codes, to_ids) = (codes.shared(), ids.shared());
    let lengths = run.on_tasks(parts.len(), |part| {
        run.cancel.check()?;
        let (number, start, place) = parts[part];
        let batch = &blocks.batches()[number];
        let slice = batch.slice(start, CODES_ROWS.min(batch.num_rows() - start));
        let Codes { codes, valid } = encode(&slice)?;
        let range = place..place + codes.len();
        // SAFETY: the places of the slices' rows are disjoint and lie in the arrays.
        let (to_codes, to_ids) = unsafe { (to_codes.slice(range.clone()), to_ids.slice(range)) };
        let first_id = row_id(number, start);
        let Some(valid) = valid else {
            to_codes.copy_from_slice(&codes);
            to_ids.iter_mut().zip(first_id..).for_each(|(to, id)| *to = id);
            return Ok(codes.len());
        };
        let mut length = 0;
        for row in valid.valid_indices() {
            (to_codes[length], to_ids[length]) = (codes[row], first_id + row as u64);
            length += 1;
        }
        Ok(length)
    })?;
    let mut rows = 0;
    for (&(.., place), length) in parts.iter().zip(lengths) {
        if place != rows {
            codes.copy_within(place..place + length, rows);
            ids.copy_within(place..place + length, rows);
        }
        rows += length;
    }
    Ok((codes, ids, rows))
}

/// Rows whose codes a worker makes at a time: they stay in the cache until they are in their place.
const CODES_ROWS: usize = 1 << 13;

/// `first_id`: the id of the first row.
fn codes_of_batch(
    batch: &RecordBatch,
    first_id: u64,
    encode: impl Fn(&RecordBatch) -> Result<Codes, JoinError>,
) -> Result<(Vec<u64>, Vec<u64>), JoinError> {
    let encoded = encode(batch)?;
    let ids = (0..batch.num_rows()).filter(|&row| encoded.is_valid(row)).map(|row| first_id + row as u64).collect();
    let codes = match &encoded.valid {
        Some(valid) => {
            encoded.codes.into_iter().zip(valid).filter_map(|(code, is_valid)| is_valid.then_some(code)).collect()
        }
        None => encoded.codes,
    };
    Ok((codes, ids))
}

/// Whether the keys of each candidate pair are equal.
pub fn keys_equal(
    build: (&Blocks, &[u64]),
    probe: (&Blocks, &[u64]),
    cx: &Context,
    probe_keys: &Encoder,
) -> Result<Vec<bool>, JoinError> {
    let build = build.0.gather(build.1, cx.build_keys.columns().iter().copied())?;
    let probe = probe.0.gather(probe.1, probe_keys.columns().iter().copied())?;
    let mut equal = vec![true; build.first().map_or(0, Array::len)];
    for (build, probe) in build.iter().zip(&probe) {
        let column = column_equal(build, probe, &cx.spec)?;
        for (row, equal) in equal.iter_mut().enumerate() {
            *equal &= column.value(row) && column.is_valid(row);
        }
    }
    Ok(equal)
}

fn column_equal(build: &ArrayRef, probe: &ArrayRef, spec: &JoinSpec) -> Result<arrow::array::BooleanArray, JoinError> {
    Ok(if spec.null_equals_null { not_distinct(build, probe)? } else { eq(build, probe)? })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use arrow::array::Int64Array;

    use super::*;
    use crate::algorithm::Sum;
    use crate::algorithm::no_partition::NoPartition;
    use crate::{JoinKind, JoinOptions, MemoryPool};

    /// Rows with the keys `0..rows / 2`, each of which occurs twice, far apart.
    fn batch(rows: i64) -> RecordBatch {
        let keys = Int64Array::from_iter_values((0..rows).map(|row| row % (rows / 2)));
        RecordBatch::try_from_iter([("key", Arc::new(keys) as ArrayRef)]).unwrap()
    }

    fn context(budget: u64, threads: usize) -> (Context, Reservation) {
        let schema = batch(2).schema();
        let spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::LeftSemi);
        let run = Run { threads, seed: 1, ..Run::default() };
        let cx = Context::new(spec, JoinOptions { run, ..JoinOptions::new(MemoryPool::new(budget)) }).unwrap();
        let memory = Reservation::empty(&cx.options.pool);
        (cx, memory)
    }

    /// Records the most tuples for which it was asked at once.
    struct Watched {
        table: Box<dyn Table>,
        rows_max: Arc<AtomicUsize>,
    }

    impl Table for Watched {
        fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
            self.table.sum(probe, run)
        }

        fn pairs(
            &self,
            probe: Columns<'_>,
            matches: Matches,
            cursor: &mut Cursor,
            pairs: &mut Pairs,
            run: &Run,
        ) -> Result<(), JoinError> {
            self.rows_max.fetch_max(probe.len(), Relaxed);
            self.table.pairs(probe, matches, cursor, pairs, run)
        }

        fn scheme(&self) -> &'static str {
            self.table.scheme()
        }

        fn memory_bytes(&self) -> u64 {
            self.table.memory_bytes()
        }
    }

    #[test]
    fn matches_are_spread_a_part_of_a_block_at_a_time() {
        let rows = 5 * CODES_ROWS + 2;
        let (cx, mut memory) = context(64 << 20, 1);
        let choice = Choice::given(&NoPartition);
        let mut resident = Resident::build(vec![batch(rows as i64)], 0, 0, choice, &cx, &mut memory).unwrap();
        assert!(resident.matches == Matches::First && resident.blocks.batches().len() == 1);
        let rows_max = Arc::<AtomicUsize>::default();
        resident.table = Box::new(Watched { table: resident.table, rows_max: Arc::clone(&rows_max) });
        let mut pairs = Pairs::with_limit(rows);
        // Every third key is probed.
        let codes: Vec<u64> = resident.probe_codes(&batch(rows as i64), &cx).unwrap().codes;
        let codes: Vec<u64> = codes[..rows / 2].iter().copied().step_by(3).collect();
        let columns = Columns::new(&codes, &codes).unwrap();
        resident.table.pairs(columns, Matches::First, &mut Cursor::default(), &mut pairs, &cx.options.run).unwrap();
        let matched = resident.matched.as_ref().unwrap();
        pairs.build.iter().for_each(|&id| matched.set(resident.blocks.number(id)));
        rows_max.store(0, Relaxed);
        resident.spread_matches(&cx).unwrap();
        assert_eq!(rows_max.load(Relaxed), CODES_ROWS);
        assert!((0..rows).all(|row| matched.get(row) == (row % (rows / 2)).is_multiple_of(3)));
    }

    #[test]
    fn threads_that_merge_have_room_for_it() {
        // 10 MiB of rows, for whose copy as one batch there is no room; blocks of half a MiB.
        let batches: Vec<RecordBatch> = (0..160).map(|_| batch(8192)).collect();
        let bytes = 10 << 20;
        for (free, merged_beside) in [(4 << 20, 2 << 20), (3 << 19, 1 << 20), (3 << 18, 0)] {
            let (cx, mut memory) = context(16 << 20, 4);
            assert!(memory.try_grow((16 << 20) - free));
            let before = cx.options.pool.peak();
            let blocks = blocks_of(batches.clone(), bytes, &cx, &cx.options.run, &mut memory).unwrap();
            assert_eq!((blocks.rows(), cx.options.pool.peak() - before), (160 * 8192, merged_beside));
            assert_eq!(cx.options.pool.used(), before, "it is back");
        }
    }
}
