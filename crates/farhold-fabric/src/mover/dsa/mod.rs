//! Intel's Data Streaming Accelerator as a copy engine: a device on the processor's die copies, and the mover's thread sleeps.
//!
//! ```text
//!   copy ── descriptor ──> portal of a work queue ──> device ──> target
//!    └────── waits ──── completion record <─────────────┘
//!   the queue is full, a status is an error, too many pages are missing: the processor copies the rest of the step
//! ```
//! - A step is one descriptor at a time, so a thread has one in flight. Steps are longer than the processor's, so that the time between two descriptors is
//!   negligible (`STEP_BYTES_MAX`).
//! - **The device writes by itself, so `copy` must not return while a descriptor is in flight**: its buffer, the region and the record are borrowed until then.
//!   It waits for the record. A device that is silent for [`PATIENCE`] may still write later. The wait then closes the queue. Closing returns only when the
//!   device has ended all work of this process and will never see a descriptor of it again ([`Queue`]). Between the hand-over and the end of the wait no code
//!   can panic. Closing has no deadline: a device that hangs may keep the thread for ever, which is safe.
//! - Source and target never overlap: the target is a buffer of this process, borrowed exclusively.
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification (341204), and its User Guide (353216). This has not run on a machine with such a device
//! yet: the tests use a device in software (`emulated`), and a queue is used only after a self-check.

mod descriptor;
mod instructions;
mod queue;

#[cfg(test)]
pub(super) mod emulated;
#[cfg(test)]
mod tests;

use self::descriptor::{BLOCK_ON_FAULT, Descriptor, Outcome, Record};
use self::instructions::Instructions;
use self::queue::{Found, WorkQueue};
use super::CopyEngine;
use crate::bytes::Bytes;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::{FarPtr, NodeId, RegionId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The most bytes of a step: some 10 µs at the 30 GB/s that are reported for a device.
const STEP_BYTES_MAX: usize = 256 << 10;
/// The processor copies shorter steps. A synchronous descriptor is reported to gain from 4 KiB on (Kuper et al., ASPLOS 2024).
const SHORT_BYTES: usize = 4 << 10;
/// Offers of a descriptor to a full queue: some 30 µs, in which the processor could have copied a step.
const OFFERS_MAX: u32 = 32;
/// The most missing pages of a step. If there are more, the processor copies the rest, which brings the pages in.
const FAULTS_MAX: u32 = 8;
/// Looks at a record before the thread sleeps: some 2 µs, in which a short step ends. The `PAUSE` between two of them takes some 140 cycles on Intel's server
/// processors since Skylake-SP.
const SPINS: u32 = 30;
/// A device that is silent for this time is abandoned. If it may wait for missing pages, these may come from a disk.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for the self-check, whose pages are present.
const PATIENCE_OF_CHECK: Duration = Duration::from_millis(100);
/// Bytes of the smallest page.
const PAGE_BYTES: usize = 4096;

/// A queue's answer to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Submitted {
    /// The device will execute it.
    Taken,
    /// The queue has no room.
    Full,
    /// The queue has been closed.
    Closed,
}

/// A queue for descriptors.
///
/// # Safety
/// When [`Queue::close`] has returned, the device accesses no memory for any descriptor that it has taken, and takes none.
unsafe trait Queue: Send + Sync {
    /// Hands a descriptor over. A caller hands over no more at a time than the queue has entries.
    ///
    /// # Safety
    /// If it is taken: until the record is written or [`Queue::close`] has returned, the source is mapped, and target and record are not
    /// freed and not used otherwise.
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submitted;

    /// Accepts no more descriptors, and waits until those in flight have ended, however long that takes. It may be called again.
    fn close(&self);
}

/// Counts of the copies so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Steps that the device copied, except for missing pages.
    by_device: u64,
    /// Steps that the processor completed, because the device did not.
    taken_over: u64,
    /// Pages that the device missed.
    faults: u64,
    /// The last status that was an error; 0: none.
    last_status: u64,
}

#[derive(Debug, Default)]
struct Counters {
    by_device: AtomicU64,
    taken_over: AtomicU64,
    faults: AtomicU64,
    last_status: AtomicU64,
}

/// A work queue as a copy engine.
#[derive(Debug)]
struct Dsa<Q> {
    queue: Q,
    entries: usize,
    transfer_bytes_max: usize,
    flags: u32,
    patience: Duration,
    /// Descriptors under way: a dedicated queue silently drops one for which it has no room.
    under_way: AtomicUsize,
    counters: Counters,
}

impl<Q: Queue> Dsa<Q> {
    fn new(queue: Q, found: &Found, patience: Duration) -> Self {
        Self {
            queue,
            entries: found.entries,
            transfer_bytes_max: found.transfer_bytes_max,
            flags: if found.blocks_on_fault { BLOCK_ON_FAULT } else { 0 },
            patience,
            under_way: AtomicUsize::new(0),
            counters: Counters::default(),
        }
    }

    fn counts(&self) -> Counts {
        let Counters { by_device, taken_over, faults, last_status } = &self.counters;
        let [by_device, taken_over, faults, last_status] =
            [by_device, taken_over, faults, last_status].map(|count| count.load(Ordering::Relaxed));
        Counts { by_device, taken_over, faults, last_status }
    }

    /// Copies the first bytes, as many as the device does, and returns how many they are.
    fn copy_first(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<usize, FabricError> {
        let (mut at, mut faults) = (0, 0);
        while at < to.len() {
            let bytes = (to.len() - at).min(self.transfer_bytes_max);
            let source = from.checked_ptr(offset + at as u64, bytes as u64)?;
            match self.transfer(source, &mut to[at..at + bytes]) {
                Some(Outcome::Done) => at += bytes,
                Some(Outcome::Faulted(moved)) if moved as usize <= bytes && faults < FAULTS_MAX => {
                    faults += 1;
                    self.counters.faults.fetch_add(1, Ordering::Relaxed);
                    at += moved as usize;
                    // To the end of the source's page: loads and stores bring in whichever page is missing.
                    let page = PAGE_BYTES - (source.addr() + moved as usize) % PAGE_BYTES;
                    let page = page.min(to.len() - at);
                    from.copy_out(offset + at as u64, &mut to[at..at + page])?;
                    at += page;
                }
                Some(Outcome::Failed(status)) => {
                    self.counters.last_status.store(u64::from(status), Ordering::Relaxed);
                    break;
                }
                Some(Outcome::Faulted(_)) | None => break,
            }
        }
        Ok(at)
    }

    /// One descriptor. `None`: the queue did not take it, or the device was silent; no byte counts, and none is written any more.
    fn transfer(&self, source: *const u8, target: &mut [u8]) -> Option<Outcome> {
        let record = Record::default();
        let bytes = u32::try_from(target.len()).expect("a step is short");
        let descriptor = Descriptor::memory_move(source, target.as_mut_ptr(), bytes, &record, self.flags);
        for _ in 0..OFFERS_MAX {
            let is_room = self.under_way.fetch_add(1, Ordering::Relaxed) < self.entries;
            // SAFETY: the caller keeps the region mapped, as `copy` borrows it; the target is borrowed exclusively, and the record is this
            // function's. All of them stay so until the end of `wait`, which the next lines reach without a way to return or to panic.
            let submitted = if is_room { unsafe { self.queue.submit(&descriptor) } } else { Submitted::Full };
            let outcome = if submitted == Submitted::Taken { self.wait(&record) } else { None };
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            if submitted != Submitted::Full {
                return outcome;
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Waits until the device has ended a descriptor, or can no longer execute it. It never returns before.
    fn wait(&self, record: &Record) -> Option<Outcome> {
        for _ in 0..SPINS {
            if let Some(outcome) = record.outcome() {
                return Some(outcome);
            }
            std::hint::spin_loop();
        }
        #[expect(clippy::disallowed_methods, reason = "a device is silent in real time")]
        let since = Instant::now();
        while since.elapsed() < self.patience {
            if let Some(outcome) = record.outcome() {
                return Some(outcome);
            }
            instructions::rest(record);
        }
        // The thread may not have run since its last look. A device that has answered meanwhile stays in use.
        if let Some(outcome) = record.outcome() {
            return Some(outcome);
        }
        self.queue.close();
        // The data that the device has written meanwhile is complete.
        record.outcome()
    }

    /// An engine whose device has copied a pattern without a mistake, and was silent for no longer than `patience_of_check`.
    ///
    /// # Errors
    /// A description of the error.
    fn checked(queue: Q, found: &Found, patience_of_check: Duration) -> Result<Self, String> {
        let mut dsa = Self::new(queue, found, patience_of_check);
        dsa.check()?;
        dsa.patience = PATIENCE;
        Ok(dsa)
    }

    fn check(&self) -> Result<(), String> {
        let origin = FarPtr::new(NodeId(0), RegionId(0), 0);
        let memory = RegionMemory::anonymous(origin, STEP_BYTES_MAX as u64).map_err(|error| error.to_string())?;
        // The whole, then from and to odd addresses; the patterns differ, so that the first copy cannot pass for the second.
        for (seed, begin) in [(31_usize, 0), (57, 5)] {
            let pattern: Vec<u8> = (0..STEP_BYTES_MAX).map(|at| (at * seed % 251) as u8).collect();
            memory.copy_in(0, &pattern).map_err(|error| error.to_string())?;
            let mut to = Bytes::zeroed(STEP_BYTES_MAX);
            // Memory that is only zero may have no pages yet, and the device would miss them.
            to.fill(0xee);
            self.copy(&memory, begin as u64, &mut to[begin..]).map_err(|error| error.to_string())?;
            if to[begin..] != pattern[begin..] {
                return Err("in the self-check, the device copied wrong bytes".to_owned());
            }
        }
        match self.counts() {
            Counts { by_device: 2, taken_over: 0, .. } => Ok(()),
            Counts { last_status: 0, .. } => {
                Err("in the self-check, the device took no descriptor or did not answer".to_owned())
            }
            Counts { last_status, .. } => {
                Err(format!("in the self-check, the device answered with status {last_status:#04x}"))
            }
        }
    }
}

impl<Q: Queue> CopyEngine for Dsa<Q> {
    fn step_bytes(&self) -> usize {
        STEP_BYTES_MAX.min(self.transfer_bytes_max)
    }

    fn copy(&self, from: &RegionMemory, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        from.check(offset, to.len() as u64)?;
        if to.len() < SHORT_BYTES {
            return from.copy_out(offset, to);
        }
        let copied = self.copy_first(from, offset, to)?;
        let is_whole = copied == to.len();
        let counter = if is_whole { &self.counters.by_device } else { &self.counters.taken_over };
        counter.fetch_add(1, Ordering::Relaxed);
        from.copy_out(offset + copied as u64, &mut to[copied..])
    }
}

/// Opens the first queue that works.
///
/// # Errors
/// A description of why there is none.
pub(super) fn open() -> Result<(Box<dyn CopyEngine>, String), String> {
    let (devices, files) = (Path::new("/sys/bus/dsa/devices"), Path::new("/dev/dsa"));
    let (dsa, name) = open_in(devices, files, Instructions::of_this_processor())?;
    Ok((Box::new(dsa), name))
}

fn open_in(devices: &Path, files: &Path, has: Instructions) -> Result<(Dsa<WorkQueue>, String), String> {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, found) in queue::find(devices, has)? {
        let works = found.and_then(|found| {
            let queue = WorkQueue::open(files, &found)?;
            Ok((Dsa::checked(queue, &found, PATIENCE_OF_CHECK)?, found.to_string()))
        });
        match works {
            Ok(works) => return Ok(works),
            Err(reason) => reasons.entry(reason).or_default().push(name),
        }
    }
    let reasons: Vec<_> = reasons.iter().map(|(reason, names)| format!("{}: {reason}", names.join(", "))).collect();
    Err(reasons.join("; "))
}
