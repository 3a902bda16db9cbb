//! Probe rows on their way through the table of the resident build rows, and the rows that are handed out for them.

use std::mem;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema};

use super::Context;
use super::resident::{Resident, keys_equal};
use crate::JoinError;
use crate::algorithm::{Columns, Cursor, Pairs};
use crate::bits::Bits;
use crate::blocks::{Blocks, batch_bytes, batch_of, row_id};
use crate::keys::Codes;
use crate::memory::Reservation;
use crate::spec::Keep;
use farhold_planted::Defect;

/// Probe batches that go through the table together.
#[derive(Default)]
pub struct ProbeWork {
    pub blocks: Blocks,
    codes: Vec<u64>,
    ids: Vec<u64>,
    /// Rows that went to a file, by number; empty if none did.
    elsewhere: Vec<bool>,
    /// Bytes of the reservation held for batches that wait.
    reserved: u64,
    /// Rows that have had a match, once the work has begun, if the kind of join needs to know.
    matched: Option<Bits>,
    cursor: Cursor,
    tail: usize,
}

impl ProbeWork {
    /// Adds a batch. Rows for which `is_elsewhere` holds went to a file.
    pub fn push(&mut self, batch: RecordBatch, codes: Codes, is_elsewhere: Option<&dyn Fn(usize) -> bool>) {
        let number = self.blocks.batches().len();
        let Some(is_elsewhere) = is_elsewhere else {
            self.push_all(batch, codes, number);
            return;
        };
        for row in 0..batch.num_rows() {
            let elsewhere = is_elsewhere(row);
            self.elsewhere.push(elsewhere);
            if !elsewhere && codes.is_valid(row) {
                self.codes.push(codes.codes[row]);
                self.ids.push(row_id(number, row));
            }
        }
        self.blocks.push(batch);
    }

    fn push_all(&mut self, batch: RecordBatch, codes: Codes, number: usize) {
        let rows = batch.num_rows();
        let first = row_id(number, 0);
        match &codes.valid {
            None => self.ids.extend(first..first + rows as u64),
            Some(valid) => self.ids.extend(valid.valid_indices().map(|row| first + row as u64)),
        }
        match &codes.valid {
            Some(valid) => self
                .codes
                .extend(codes.codes.iter().zip(valid).filter_map(|(&code, is_valid)| is_valid.then_some(code))),
            None if self.codes.is_empty() => self.codes = codes.codes,
            None => self.codes.extend(codes.codes),
        }
        self.blocks.push(batch);
    }

    /// Takes memory for a batch that waits for others; false if there is none.
    pub fn reserve(&mut self, batch: &RecordBatch, memory: &mut Reservation) -> bool {
        let bytes = batch_bytes(batch) + 17 * batch.num_rows() as u64;
        let has_room = memory.try_grow(bytes);
        self.reserved += if has_room { bytes } else { 0 };
        has_room
    }

    pub fn release(&mut self, memory: &mut Reservation) {
        memory.shrink(mem::take(&mut self.reserved));
    }

    /// Starts, with the matches known from earlier passes.
    pub fn begin(&mut self, known: Option<Bits>, cx: &Context) {
        if cx.spec.kind.keep_probe() != Keep::Nothing {
            self.matched = Some(known.unwrap_or_else(|| Bits::new(self.blocks.rows())));
        }
    }

    /// The rows that have had a match, after the last pair.
    pub fn matched(&self) -> Option<&Bits> {
        self.matched.as_ref()
    }

    /// Whether all pairs have been enumerated.
    pub fn is_enumerated(&self) -> bool {
        self.cursor.is_done
    }

    /// The next batch of pairs, unless none is left. Kinds that do not hand out pairs enumerate them all the same.
    pub fn next_pairs(
        &mut self,
        resident: &Resident,
        cx: &Context,
        pairs: &mut Pairs,
    ) -> Result<Option<RecordBatch>, JoinError> {
        pairs.clear();
        let columns = Columns::new(&self.codes, &self.ids)?;
        resident.table.pairs(columns, resident.matches, &mut self.cursor, pairs, resident.probe_run(cx))?;
        if !resident.is_exact(cx) && !pairs.is_empty() && !farhold_planted::is(Defect::CodesTrusted) {
            let equal = keys_equal((&resident.blocks, &pairs.build), (&self.blocks, &pairs.probe), cx, &cx.probe_keys)?;
            keep_only(pairs, |pair| equal[pair]);
        }
        if let Some(matched) = self.matched.as_mut().filter(|_| farhold_planted::is(Defect::EarlyMatch)) {
            pairs.probe.iter().for_each(|&id| matched.set(self.blocks.number(id)));
        }
        self.apply_residual(resident, cx, pairs)?;
        if let Some(matched) = &resident.matched {
            pairs.build.iter().for_each(|&id| matched.set(resident.blocks.number(id)));
        }
        if let Some(matched) = &mut self.matched {
            pairs.probe.iter().for_each(|&id| matched.set(self.blocks.number(id)));
        }
        if cx.spec.kind.emits_pairs() && !pairs.is_empty() {
            let columns = resident.blocks.gather(&pairs.build, cx.outputs.build())?;
            let more = self.blocks.gather(&pairs.probe, cx.outputs.probe())?;
            return cx.output_of(columns.into_iter().chain(more), pairs.len()).map(Some);
        }
        Ok(None)
    }

    fn apply_residual(&self, resident: &Resident, cx: &Context, pairs: &mut Pairs) -> Result<(), JoinError> {
        let Some(residual) = cx.spec.residual.as_ref().filter(|_| !pairs.is_empty()) else { return Ok(()) };
        let build = residual.build_columns.iter().map(|&column| cx.spec.build.field(column));
        let probe = residual.probe_columns.iter().map(|&column| cx.spec.probe.field(column));
        let schema = Arc::new(Schema::new(build.chain(probe).cloned().collect::<Vec<Field>>()));
        let mut columns = resident.blocks.gather(&pairs.build, residual.build_columns.iter().copied())?;
        columns.extend(self.blocks.gather(&pairs.probe, residual.probe_columns.iter().copied())?);
        let keep = (residual.evaluate)(&batch_of(&schema, columns, pairs.len())?).map_err(JoinError::Residual)?;
        if keep.len() != pairs.len() {
            return Err(JoinError::Invalid(format!(
                "the residual condition answered {} of {} pairs",
                keep.len(),
                pairs.len()
            )));
        }
        keep_only(pairs, |pair| keep.is_valid(pair) && keep.value(pair));
        Ok(())
    }

    /// The next batch of probe rows that the kind hands out beyond pairs; `None` when there are no more.
    pub fn next_kept(&mut self, cx: &Context) -> Result<Option<RecordBatch>, JoinError> {
        let (keep, Some(matched)) = (cx.spec.kind.keep_probe(), &self.matched) else { return Ok(None) };
        let limit = cx.batch_rows(self.blocks.row_bytes_max());
        let elsewhere = &self.elsewhere;
        let wanted = |number: usize| {
            !elsewhere.get(number).is_some_and(|&elsewhere| elsewhere) && wants(keep, matched.get(number))
        };
        let Some(kept) = Kept::next(&self.blocks, &mut self.tail, limit, wanted) else { return Ok(None) };
        let mut columns: Vec<ArrayRef> = nulls(&cx.spec.build, cx.outputs.build(), kept.len()).collect();
        columns.extend(self.blocks.gather(&kept, cx.outputs.probe())?);
        columns.extend(marks(keep, &kept, |id| matched.get(self.blocks.number(id))));
        cx.output_of(columns.into_iter(), kept.len()).map(Some)
    }
}

/// The next batch of build rows that the kind hands out beyond pairs, beginning with row number `tail`; `None` when
/// there are no more. Call after the last probe.
pub fn next_kept_build(resident: &Resident, tail: &mut usize, cx: &Context) -> Result<Option<RecordBatch>, JoinError> {
    let (keep, Some(matched), blocks) = (cx.spec.kind.keep_build(), &resident.matched, &resident.blocks) else {
        return Ok(None);
    };
    let limit = cx.batch_rows(blocks.row_bytes_max());
    let Some(kept) = Kept::next(blocks, tail, limit, |number| wants(keep, matched.get(number))) else {
        return Ok(None);
    };
    let mut columns = blocks.gather(&kept, cx.outputs.build())?;
    columns.extend(nulls(&cx.spec.probe, cx.outputs.probe(), kept.len()));
    columns.extend(marks(keep, &kept, |id| matched.get(blocks.number(id))));
    cx.output_of(columns.into_iter(), kept.len()).map(Some)
}

struct Kept;

impl Kept {
    /// The ids of the next wanted rows, at most `limit`; `tail` advances past the last row that was examined.
    fn next(blocks: &Blocks, tail: &mut usize, limit: usize, wanted: impl Fn(usize) -> bool) -> Option<Vec<u64>> {
        let mut kept = Vec::new();
        for id in blocks.ids_from(*tail) {
            if wanted(*tail) {
                kept.push(id);
            }
            *tail += 1;
            if kept.len() == limit {
                break;
            }
        }
        (!kept.is_empty()).then_some(kept)
    }
}

fn wants(keep: Keep, is_matched: bool) -> bool {
    match keep {
        Keep::Nothing => false,
        Keep::Matched => is_matched,
        Keep::Unmatched => !is_matched,
        Keep::Marked => true,
    }
}

fn nulls(schema: &Schema, columns: impl Iterator<Item = usize>, rows: usize) -> impl Iterator<Item = ArrayRef> {
    columns.map(move |column| new_null_array(schema.field(column).data_type(), rows))
}

fn marks(keep: Keep, kept: &[u64], is_matched: impl Fn(u64) -> bool) -> Option<ArrayRef> {
    let marks = || kept.iter().map(|&id| Some(is_matched(id))).collect::<BooleanArray>();
    (keep == Keep::Marked).then(|| Arc::new(marks()) as ArrayRef)
}

fn keep_only(pairs: &mut Pairs, keep: impl Fn(usize) -> bool) {
    let (mut at, mut again) = (0..pairs.len(), 0..pairs.len());
    pairs.build.retain(|_| at.next().is_some_and(&keep));
    pairs.probe.retain(|_| again.next().is_some_and(&keep));
}
