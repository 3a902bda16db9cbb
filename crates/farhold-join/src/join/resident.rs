//! The build rows in memory and their table.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::kernels::cmp::{eq, not_distinct};

use super::{Context, probe_rows_at_once};
use crate::algorithm::{Columns, Cursor, Matches, Pairs, Shape, Table};
use crate::bits::Bits;
use crate::blocks::{Blocks, coalesce, row_id};
use crate::keys::Encoder;
use crate::memory::Reservation;
use crate::model::{self, Choice};
use crate::options::Keep;
use crate::planted::{self, Defect};
use crate::{JoinError, JoinSpec};

/// Build rows, ready to be probed.
pub struct Resident {
    pub blocks: Blocks,
    pub table: Box<dyn Table>,
    pub choice: Choice,
    /// Build rows that have had a match, if the kind wants to know.
    pub matched: Option<Bits>,
    pub matches: Matches,
    /// Bytes of the reservation that this holds.
    reserved: u64,
}

/// Bytes beside the rows themselves that a table of them needs while it is built, with the choice of the algorithm.
pub fn working_bytes(rows: usize, cx: &Context) -> (u64, Choice) {
    let shape = Shape { build_rows: rows, probe_rows: probe_rows_at_once(rows), threads: cx.options.run.threads };
    let choice = match cx.options.algorithm {
        Some(algorithm) => Choice::given(algorithm),
        None => model::choose(shape, cx.options.probe_rows_expected.unwrap_or(rows as u64), false, &cx.machine),
    };
    let flags = if cx.spec.kind.keep_build() == Keep::Nothing { 0 } else { Bits::bytes(rows) };
    // 16 bytes a row of codes and ids, until the table has its own copy.
    (choice.algorithm.memory_bytes(shape) + 16 * rows as u64 + flags, choice)
}

impl Resident {
    /// Makes the table. `reserved` bytes have been taken for it: the batches' and [`working_bytes`]; what the table turns out
    /// not to need goes back.
    pub fn build(
        batches: Vec<RecordBatch>,
        batch_bytes: u64,
        working_bytes: u64,
        choice: Choice,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<Self, JoinError> {
        let mut blocks = Blocks::default();
        coalesce(batches.into_iter(), cx.sizes.block_bytes, |batch| {
            cx.options.run.cancel.check()?;
            blocks.push(batch);
            Ok(())
        })?;
        let (codes, ids) = codes_of(&blocks, &cx.build_keys)?;
        let started = model::Stopwatch::start();
        let table = choice.algorithm.build(Columns::new(&codes, &ids)?, &cx.options.run)?;
        let choice = Choice { actual_build_ns: started.ns(), ..choice };
        drop((codes, ids));
        let matched = (cx.spec.kind.keep_build() != Keep::Nothing).then(|| Bits::new(blocks.rows()));
        let needed = table.memory_bytes() + if matched.is_some() { Bits::bytes(blocks.rows()) } else { 0 };
        let kept = batch_bytes + needed.min(working_bytes);
        memory.shrink(batch_bytes + working_bytes - kept);
        let mut resident = Self { blocks, table, choice, matched, matches: Matches::All, reserved: kept };
        if !cx.spec.kind.emits_pairs() && cx.spec.residual.is_none() && resident.has_one_key_a_code(cx)? {
            resident.matches = Matches::First;
        }
        Ok(resident)
    }

    /// Probe rows that are to be gathered before they go through the table.
    pub fn probe_rows_wanted(&self) -> usize {
        if self.choice.algorithm.wants_many_probe_rows() { probe_rows_at_once(self.blocks.rows()) } else { 0 }
    }

    /// Gives the memory back.
    pub fn release(self, memory: &mut Reservation) {
        memory.shrink(self.reserved);
    }

    /// Whether build rows of one code have one key, so that the first match of a code says everything about it.
    fn has_one_key_a_code(&self, cx: &Context) -> Result<bool, JoinError> {
        if cx.build_keys.is_exact() {
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

    /// The build row that [`Matches::First`] answers for every build row: (that one, this one).
    fn with_representatives(
        &self,
        cx: &Context,
        mut each: impl FnMut(&Pairs) -> Result<(), JoinError>,
    ) -> Result<(), JoinError> {
        let mut pairs = Pairs::with_limit(cx.options.batch_rows_max);
        for (number, batch) in self.blocks.batches().iter().enumerate() {
            let (codes, ids) = codes_of_batch(batch, number, &cx.build_keys)?;
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

    /// What is known of a representative becomes known of all rows with its key. Call once, after the last probe.
    pub fn spread_matches(&mut self, cx: &Context) -> Result<(), JoinError> {
        if self.matches != Matches::First || planted::is(Defect::MatchesNotSpread) {
            return Ok(());
        }
        let Some(mut matched) = self.matched.take() else { return Ok(()) };
        self.with_representatives(cx, |pairs| {
            for (&first, &row) in pairs.build.iter().zip(&pairs.probe) {
                if matched.get(self.blocks.number(first)) {
                    matched.set(self.blocks.number(row));
                }
            }
            Ok(())
        })?;
        self.matched = Some(matched);
        Ok(())
    }
}

/// Codes and ids of all rows with a valid key.
fn codes_of(blocks: &Blocks, encoder: &Encoder) -> Result<(Vec<u64>, Vec<u64>), JoinError> {
    let (mut codes, mut ids) = (Vec::with_capacity(blocks.rows()), Vec::with_capacity(blocks.rows()));
    for (number, batch) in blocks.batches().iter().enumerate() {
        let (more_codes, more_ids) = codes_of_batch(batch, number, encoder)?;
        codes.extend(more_codes);
        ids.extend(more_ids);
    }
    Ok((codes, ids))
}

pub fn codes_of_batch(
    batch: &RecordBatch,
    number: usize,
    encoder: &Encoder,
) -> Result<(Vec<u64>, Vec<u64>), JoinError> {
    let encoded = encoder.encode(batch)?;
    let ids = (0..batch.num_rows()).filter(|&row| encoded.is_valid(row)).map(|row| row_id(number, row)).collect();
    let codes = match &encoded.valid {
        Some(valid) => {
            encoded.codes.into_iter().zip(valid).filter_map(|(code, is_valid)| is_valid.then_some(code)).collect()
        }
        None => encoded.codes,
    };
    Ok((codes, ids))
}

/// For candidate pairs, whether their keys are equal.
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
