//! One round of a join: a resident table, the files beside it, and the probe side that passes both.
//!
//! ```text
//!   probe batch ──▶ no build row has the key (Bloom filter), or its partition is in memory ──▶ table ──▶ output
//!              └──▶ its partition is in a file ──▶ the probe side's file of that partition ──▶ a later round
//! ```

use std::mem;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::Context;
use super::build::SpilledBuild;
use super::partitions::{Partitions, Routes, SpilledPart};
use super::probe::{ProbeWork, next_kept_build};
use super::resident::Resident;
use super::share::{Peers, ProbeFiles};
use crate::JoinError;
use crate::algorithm::Pairs;
use crate::bits::Bits;
use crate::blocks::copies_alone;
use crate::memory::Reservation;
use crate::spec::Keep;
use crate::spill::SpillFile;
use farhold_planted::Defect;

/// A partition of both sides, in files.
pub struct SpilledPair {
    pub build: SpilledPart,
    /// One for each join that shared the build side.
    pub probe: Vec<SpillFile>,
    /// The round that wrote it, from 0.
    pub round: u32,
}

/// Rounds of partitioning before a pair is joined block by block, whatever its keys. A round has at least 8 partitions,
/// so a side may be up to 8^12 times the budget.
const ROUNDS_MAX: u32 = 12;

impl SpilledPair {
    /// Whether a further hash may split it into smaller pairs.
    pub fn can_be_split(&self) -> bool {
        !self.build.is_one_code && self.round < ROUNDS_MAX
    }
}

/// See the module.
pub struct Level {
    pub resident: Arc<Resident>,
    spilled: Option<(Arc<SpilledBuild>, Partitions)>,
    gathered: Gathered,
    peers: Option<Arc<Peers>>,
    /// Batches that gather until they are enough for the algorithm.
    waiting: ProbeWork,
    work: Option<ProbeWork>,
    pairs: Pairs,
    /// Whether the probe side has ended.
    is_fed: bool,
    end: End,
}

/// Probe rows on their way to partitions. They gather until they are enough to be worth copying to each of them.
#[derive(Default)]
struct Gathered {
    routes: Vec<Routes>,
    /// Reserved for them.
    bytes: u64,
}

impl Gathered {
    fn push(
        &mut self,
        routes: Routes,
        partitions: &mut Partitions,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        if cx.options.pool.gives_back() || !copies_alone(&cx.spec.probe) {
            return partitions.scatter(&[routes], None, cx, memory);
        }
        let routes = routes.by_partition()?;
        let bytes = routes.bytes();
        let has_room = memory.try_grow(bytes);
        self.bytes += if has_room { bytes } else { 0 };
        self.routes.push(routes);
        if !has_room || self.bytes >= cx.sizes.gather_bytes { self.scatter(partitions, cx, memory) } else { Ok(()) }
    }

    fn scatter(
        &mut self,
        partitions: &mut Partitions,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        let Self { routes, bytes } = mem::take(self);
        partitions.scatter(&routes, None, cx, memory)?;
        memory.shrink(bytes);
        Ok(())
    }
}

/// The rest of a level after its probe rows.
enum End {
    /// The probe rows have not ended.
    Ahead,
    /// Another join of the same build side hands the rest out.
    Elsewhere,
    /// Build rows beginning with this number, and pairs of these files.
    Here { tail: usize, probe_files: ProbeFiles },
}

/// The result of a step of a level.
pub enum Next {
    Batch(RecordBatch),
    /// Nothing yet.
    Working,
    /// Work is done, with these flags of its probe rows.
    WorkDone(Option<Bits>),
    /// It wants a probe batch.
    Hungry,
    /// Everything has been handed out.
    Done,
}

impl Level {
    pub fn new(
        resident: Arc<Resident>,
        spilled: Option<Arc<SpilledBuild>>,
        peers: Option<Arc<Peers>>,
        cx: &Context,
    ) -> Result<Self, JoinError> {
        let spilled = match spilled {
            Some(build) => {
                // Each of several joins writes files of its own.
                let mut partitions = Partitions::new(cx, &cx.spec.probe, build.round, 1);
                for part in (0..partitions.count()).filter(|&part| build.files[part].is_some()) {
                    partitions.open(part)?;
                }
                Some((build, partitions))
            }
            None => None,
        };
        let pairs = Pairs::with_limit(cx.options.batch_rows_max);
        Ok(Self {
            resident,
            spilled,
            gathered: Gathered::default(),
            peers,
            waiting: ProbeWork::default(),
            work: None,
            pairs,
            is_fed: false,
            end: End::Ahead,
        })
    }

    /// The shared parts of levels over the same build side.
    pub fn build_side(&self) -> (Arc<Resident>, Option<Arc<SpilledBuild>>) {
        (Arc::clone(&self.resident), self.spilled.as_ref().map(|(build, _)| Arc::clone(build)))
    }

    /// Whether some of its build rows are in files.
    pub fn is_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Whether the next step may be long: rows are on a device, or the probe side has ended and its last rows are
    /// written, files are read, or matches are spread.
    #[cfg(feature = "datafusion")]
    pub fn next_is_long(&self) -> bool {
        let spreads = matches!(self.end, End::Ahead) && self.resident.spreads_many_matches();
        let is_ahead = self.is_fed && matches!(self.end, End::Ahead);
        let on_device = self.resident.table.takes_turns() && (self.work.is_some() || is_ahead);
        on_device || self.is_fed && (self.is_spilled() || spreads)
    }

    /// Takes a probe batch; the level must want one. `known` are flags of earlier passes: a batch with flags does not
    /// wait for others.
    pub fn push(
        &mut self,
        batch: &RecordBatch,
        known: Option<Bits>,
        cx: &Context,
        memory: &mut Reservation,
    ) -> Result<(), JoinError> {
        let waits = known.is_none()
            && self.resident.probe_rows_wanted() > batch.num_rows()
            && self.waiting.reserve(batch, memory);
        match &mut self.spilled {
            None => self.waiting.push(batch.clone(), self.resident.probe_codes(batch, cx)?, None),
            Some((build, partitions)) => {
                let is_spilled: Vec<bool> = build.files.iter().map(Option::is_some).collect();
                let may_match = |code, part| build.bloom.as_ref().is_none_or(|bloom| bloom.may_contain(part, code));
                let goes = |code, part: usize| is_spilled[part] && may_match(code, part);
                let routes = partitions.routes(batch.clone(), cx.probe_keys.encode(batch)?, false, goes);
                let mut elsewhere = vec![false; batch.num_rows()];
                routes.rows().iter().for_each(|&row| elsewhere[row as usize] = true);
                self.gathered.push(routes, partitions, cx, memory)?;
                let here = self.resident.probe_codes(batch, cx)?;
                self.waiting.push(batch.clone(), here, Some(&|row| elsewhere[row]));
            }
        }
        if !waits || self.waiting.blocks.rows() >= self.resident.probe_rows_wanted() {
            self.begin(known, cx);
        }
        Ok(())
    }

    fn begin(&mut self, known: Option<Bits>, cx: &Context) {
        let mut work = mem::take(&mut self.waiting);
        work.begin(known, cx);
        let row_bytes = self.resident.blocks.row_bytes_max() + work.blocks.row_bytes_max();
        self.pairs = Pairs::with_limit(cx.batch_rows(row_bytes));
        self.work = Some(work);
    }

    /// Ends the probe side.
    pub fn finish(&mut self, cx: &Context) {
        if self.waiting.blocks.rows() > 0 {
            self.begin(None, cx);
        }
        self.is_fed = true;
    }

    /// `keeps_probe`: whether this is the last pass over these probe rows, after which those without a match are known.
    pub fn next(&mut self, keeps_probe: bool, cx: &Context, memory: &mut Reservation) -> Result<Next, JoinError> {
        cx.options.run.cancel.check()?;
        if let Some(work) = &mut self.work {
            if !work.is_enumerated() {
                let batch = work.next_pairs(&self.resident, cx, &mut self.pairs)?;
                return Ok(batch.map_or(Next::Working, Next::Batch));
            }
            if keeps_probe && let Some(batch) = work.next_kept(cx)? {
                return Ok(Next::Batch(batch));
            }
            let flags = work.matched().cloned();
            work.release(memory);
            self.work = None;
            return Ok(Next::WorkDone(flags));
        }
        if !self.is_fed {
            return Ok(Next::Hungry);
        }
        if matches!(self.end, End::Ahead) {
            self.end = self.arrive(cx, memory)?;
        }
        let End::Here { tail, .. } = &mut self.end else { return Ok(Next::Done) };
        Ok(next_kept_build(&self.resident, tail, cx)?.map_or(Next::Done, Next::Batch))
    }

    /// Called after the last probe row. Decides whether the rest is handed out here.
    fn arrive(&mut self, cx: &Context, memory: &mut Reservation) -> Result<End, JoinError> {
        let mut probe_files = match &mut self.spilled {
            Some((_, partitions)) => {
                if !farhold_planted::is(Defect::LostProbeRows) {
                    self.gathered.scatter(partitions, cx, memory)?;
                }
                let files = partitions.finish_spilled(cx, memory)?;
                files.into_iter().map(|part| part.map(|part| part.file).into_iter().collect()).collect()
            }
            None => ProbeFiles::new(),
        };
        if let Some(peers) = &self.peers {
            let Some((all_files, build_memory)) = peers.arrive(probe_files) else { return Ok(End::Elsewhere) };
            probe_files = all_files;
            *memory = build_memory;
        }
        self.resident.spread_matches(cx)?;
        Ok(End::Here { tail: 0, probe_files })
    }

    /// Gives the memory back, and returns the partitions that remain to be joined.
    pub fn close(self, cx: &Context, memory: &mut Reservation) -> Vec<SpilledPair> {
        let mut pairs = Vec::new();
        let End::Here { mut probe_files, .. } = self.end else { return pairs };
        if let Some((build, partitions)) = self.spilled {
            let keeps_build = matches!(cx.spec.kind.keep_build(), Keep::Unmatched | Keep::Marked)
                && !farhold_planted::is(Defect::DroppedPair);
            for part in partitions.by_file() {
                if let Some(build_part) = &build.files[part] {
                    let probe = mem::take(&mut probe_files[part]);
                    let is_needed = keeps_build || probe.iter().any(|file| file.rows > 0);
                    let pair = || SpilledPair { build: build_part.clone(), probe, round: build.round };
                    pairs.extend(is_needed.then(pair));
                }
            }
            if build.bloom.is_some() {
                memory.shrink(cx.sizes.bloom_bytes);
            }
        }
        self.resident.release(memory);
        pairs
    }
}
