//! From one state of a join to the next: output, spilled pairs, passes over a pair.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use farhold_planted::Defect;

use super::build::BuildSide;
use super::level::{Level, Next, SpilledPair};
use super::read_back::{ReadBack, Said};
use super::resident::{Resident, working_bytes};
use super::{Feed, Join, State, Step};
use crate::JoinError;
use crate::bits::Bits;
use crate::blocks::{batch_bytes, batch_of};
use crate::spill::{FlagReader, FlagWriter, Reader, Readers, read_all};

impl Join {
    pub(super) fn level_of(&mut self, build: BuildSide) -> Result<Level, JoinError> {
        let (resident, spilled) = build.finish(&self.cx, &mut self.memory)?;
        self.note_table(&resident);
        if let Some(spilled) = &spilled {
            self.report.spilled_bytes += spilled.files.iter().flatten().map(|part| part.file.bytes).sum::<u64>();
        }
        Level::new(Arc::new(resident), spilled.map(Arc::new), None, &self.cx)
    }

    pub(super) fn note_table(&mut self, resident: &Resident) {
        self.report.tables += 1;
        if self.report.choice.is_none() {
            self.report.choice = Some(resident.choice.clone());
            self.report.scheme = Some(resident.table.scheme());
        }
    }

    pub(super) fn advance(&mut self) -> Result<Step, JoinError> {
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
    pub(super) fn next_level(&mut self) -> Result<(), JoinError> {
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
    pub(super) fn read_back(&mut self) -> Result<State, JoinError> {
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
    pub(super) fn hear(&mut self) -> Result<Step, JoinError> {
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

    pub(super) fn next_pair(&mut self) -> Result<State, JoinError> {
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

    pub(super) fn open(&mut self, pair: SpilledPair) -> Result<State, JoinError> {
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
    pub(super) fn next_block(&mut self, mut passes: Passes) -> Result<State, JoinError> {
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

/// The passes over a pair whose build side comes in blocks.
pub(super) struct Passes {
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

impl Passes {
    fn learn(&mut self, flags: &Bits) -> Result<(), JoinError> {
        self.learned.as_mut().map_or(Ok(()), |learned| learned.push(flags))
    }
}

/// The batch with the schema of its side, which may allow nulls where the batch's schema does not: it is combined with
/// other batches.
pub(super) fn of_side(batch: &RecordBatch, schema: &SchemaRef, side: &str) -> Result<RecordBatch, JoinError> {
    let expected = schema.fields().iter().map(|field| field.data_type());
    if batch.columns().iter().map(|column| column.data_type()).eq(expected) {
        return batch_of(schema, batch.columns().to_vec(), batch.num_rows());
    }
    Err(JoinError::Invalid(format!("a {side} batch has other columns than the {side} side: {}", batch.schema())))
}

pub(super) fn out_of_order(why: &str) -> JoinError {
    JoinError::Invalid(why.into())
}
