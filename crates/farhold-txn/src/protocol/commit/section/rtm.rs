//! The section as one hardware transaction (Intel RTM), by stable inline assembly: the intrinsics are not stable.
//!
//! ```text
//!   touch inserts ─► xbegin ─► every row to write: unlocked and at its version? ─► validate ─► write ─► xend
//!        ▲              │ abort
//!        │              ├─ a row or leaf has changed: refused
//!        │              ├─ a conflict, or a row is locked: again, ATTEMPTS_MAX times in all
//!        └── touch all ─┼─ no cause given (status 0, such as a page that is not present): again, TOUCHES_MAX times
//!                       ├─ no room in the cache: latches, and for most that write as many rows at once
//!                       └─ more to do than this form can: latches
//! ```
//!
//! A thread that locks a row which the transaction has looked at aborts it, because the lock word is then in its read set; so
//! it needs no locks of its own. Invariants of the body:
//! - It makes no system call, allocates nothing, waits for nothing, and executes no CPUID: each aborts it.
//! - It copies by [`Object::write_narrow`](farhold_store::Object::write_narrow) alone: mixed YMM and XMM accesses abort it.
//! - It does only plain commits: no snapshot is open, no index is being made, no index entry is swung.
//!
//! The control flow is over [`Instructions`], so that tests run it with a script of aborts, and the simulator without any.
//! Measurements and the rule for the default are in `docs/design/0015-hardware-transactions.md`.

use crate::base::processor::Processor;
use crate::base::slots::{Counter, OwnSlot};
use crate::protocol::commit::section::{Near, Refused, validate, write_narrow};
use crate::protocol::core::Core;
use std::cell::Cell;

/// DrTM's limit for its fallback.
const ATTEMPTS_MAX: u32 = 8;
/// How often an abort without a cause is answered by touching every row. The first makes pages present and marks them as
/// written; the second is for an interrupt that came between.
const TOUCHES_MAX: u32 = 2;

/// The name of this form in statistics.
pub(crate) const NAME: &str = "rtm";

/// What `xbegin` leaves in EAX when the transaction has begun.
const STARTED: u32 = !0;

/// The operands of `xabort`.
const LOCKED: u8 = 1;
const CHANGED: u8 = 2;
const NOT_PLAIN: u8 = 3;

/// The three instructions of a hardware transaction.
///
/// An implementer either takes memory and control back to `begin` on an abort, or never aborts once `begin` has returned
/// [`STARTED`]: then `abort` returns, and the caller, which has written nothing yet, goes on without.
pub(crate) trait Instructions {
    /// [`STARTED`], or the status of an abort.
    fn begin(&self) -> u32;
    /// Makes everything since `begin` visible at once.
    fn end(&self);
    /// Ends the transaction with nothing done.
    fn abort<const CODE: u8>(&self);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Instructions for Processor {
    #[inline(always)]
    fn begin(&self) -> u32 {
        let status: u32;
        // SAFETY: `detect` has found the instruction. An abort takes memory and registers back to this place, where only EAX
        // differs; the compiler sees an assembly block that returns twice with different results, which is sound because every
        // store in between is undone and nothing in between outlives an abort in a register.
        unsafe { std::arch::asm!("mov eax, -1", "xbegin 2f", "2:", out("eax") status, options(nostack)) };
        status
    }

    #[inline(always)]
    fn end(&self) {
        // SAFETY: inside of the transaction that the caller has begun.
        unsafe { std::arch::asm!("xend", options(nostack)) };
    }

    #[inline(always)]
    fn abort<const CODE: u8>(&self) {
        // SAFETY: inside of the transaction that the caller has begun; control goes back to `begin`.
        unsafe { std::arch::asm!("xabort {code}", code = const CODE, options(nostack)) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
impl Instructions for Processor {
    fn begin(&self) -> u32 {
        unreachable!("detected on no such processor")
    }

    fn end(&self) {}

    fn abort<const CODE: u8>(&self) {}
}

/// No instructions at all: the body alone, where there is only one thread.
pub(crate) struct Soft;

impl Instructions for Soft {
    fn begin(&self) -> u32 {
        STARTED
    }

    fn end(&self) {}

    fn abort<const CODE: u8>(&self) {}
}

impl Core {
    /// Is a section that writes `rows` rows to be tried as a hardware transaction?
    #[inline]
    pub fn tries_hardware(&self, rows: usize) -> bool {
        planted!(SoftRtm) || self.node.hardware.is_some() && self.trust.is_given(rows)
    }

    /// The near part of a commit as a hardware transaction, after [`Self::tries_hardware`]: see [`commit`].
    #[inline]
    pub fn commit_in_hardware(
        &self,
        near: &Near<'_>,
        epoch: impl Fn() -> u32,
        is_plain: impl Fn() -> bool,
    ) -> Option<Result<u32, Refused>> {
        if planted!(SoftRtm) {
            return commit(&Soft, near, &self.slot, &self.trust, epoch, is_plain);
        }
        commit(&self.node.hardware?, near, &self.slot, &self.trust, epoch, is_plain)
    }
}

/// Validates and writes in one hardware transaction; returns the epoch. `None`: it did not commit, nothing has
/// happened, and the caller takes the latches. `epoch` and `is_plain` are called inside of it.
pub(crate) fn commit(
    instructions: &impl Instructions,
    near: &Near<'_>,
    slot: &OwnSlot,
    trust: &Trust,
    epoch: impl Fn() -> u32,
    is_plain: impl Fn() -> bool,
) -> Option<Result<u32, Refused>> {
    let rows = near.order.len();
    near.touch_inserts();
    let mut touches = 0;
    for _ in 0..ATTEMPTS_MAX {
        let stopped = match attempt(instructions, near, &epoch, &is_plain) {
            Ok(epoch) => {
                slot.count(Counter::HardwareCommits);
                trust.committed(rows);
                return Some(Ok(epoch));
            }
            Err(stopped) => stopped,
        };
        slot.count(match stopped {
            Stopped::Changed => Counter::HardwareChanged,
            Stopped::Locked => Counter::HardwareLocked,
            Stopped::NotPlain => Counter::HardwareNotPlain,
            Stopped::Conflict => Counter::HardwareConflicts,
            Stopped::Capacity => Counter::HardwareCapacity,
            Stopped::Unexplained => Counter::HardwareUnexplained,
        });
        match stopped {
            Stopped::Changed => {
                // The hardware works; whether it has room for the rows is not known, because nothing was written.
                trust.note(true);
                return Some(Err(Refused::Changed));
            }
            Stopped::Locked | Stopped::Conflict => std::hint::spin_loop(),
            Stopped::Unexplained if touches < TOUCHES_MAX => {
                touches += 1;
                near.touch_all();
            }
            Stopped::Capacity if near.is_mostly_writes() => {
                trust.overflowed(rows);
                return None;
            }
            Stopped::NotPlain | Stopped::Capacity | Stopped::Unexplained => break,
        }
    }
    trust.note(false);
    None
}

/// Why an attempt has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// A row to write is locked by another.
    Locked,
    /// A row or a leaf is not as it was read.
    Changed,
    /// There is more to do than this form can.
    NotPlain,
    /// Another thread has used the same line; it may go better the next time.
    Conflict,
    /// The lines do not fit into the cache.
    Capacity,
    /// The processor names no cause that is known: a page that is not present or not yet marked as written, an interrupt, an
    /// instruction that a transaction may not contain.
    Unexplained,
}

impl Stopped {
    /// The meaning of an abort status: bit 0 is `xabort`, with its operand in bits 24 to 31; bit 1 says that a retry may succeed;
    /// bit 2 is a conflict, bit 3 an overflow.
    fn of(status: u32) -> Self {
        const EXPLICIT: u32 = 1;
        const RETRY: u32 = 1 << 1;
        const CONFLICT: u32 = 1 << 2;
        const CAPACITY: u32 = 1 << 3;
        if status & EXPLICIT != 0 {
            return match (status >> 24) as u8 {
                LOCKED => Self::Locked,
                CHANGED => Self::Changed,
                NOT_PLAIN => Self::NotPlain,
                _ => Self::Unexplained,
            };
        }
        match status {
            status if status & CAPACITY != 0 => Self::Capacity,
            status if status & (RETRY | CONFLICT) != 0 => Self::Conflict,
            _ => Self::Unexplained,
        }
    }
}

/// One hardware transaction. A function of its own: `begin` returns twice, to a frame that is still there.
#[inline(never)]
fn attempt(
    instructions: &impl Instructions,
    near: &Near<'_>,
    epoch: &impl Fn() -> u32,
    is_plain: &impl Fn() -> bool,
) -> Result<u32, Stopped> {
    let status = instructions.begin();
    if status != STARTED {
        return Err(Stopped::of(status));
    }
    let done = body(near, epoch, is_plain);
    match done {
        Ok(_) => instructions.end(),
        Err(Stopped::Locked) => instructions.abort::<LOCKED>(),
        Err(Stopped::Changed) => instructions.abort::<CHANGED>(),
        Err(_) => instructions.abort::<NOT_PLAIN>(),
    }
    done
}

/// The body of the hardware transaction.
#[inline]
fn body(near: &Near<'_>, epoch: &impl Fn() -> u32, is_plain: &impl Fn() -> bool) -> Result<u32, Stopped> {
    all_free(near)?;
    if !is_plain() {
        return Err(Stopped::NotPlain);
    }
    let epoch = epoch();
    validate(near).map_err(|_| Stopped::Changed)?;
    write_narrow(near, epoch);
    Ok(epoch)
}

/// Are the rows to write as they were read, and unlocked? The locks do this for the other form.
#[inline]
fn all_free(near: &Near<'_>) -> Result<(), Stopped> {
    for &position in near.order {
        let row = &near.state.rows[position as usize];
        let object = near.object(row);
        if object.lock_word() != 0 {
            return Err(Stopped::Locked);
        }
        if object.version() != row.version {
            return Err(Stopped::Changed);
        }
    }
    Ok(())
}

/// A worker's experience with hardware transactions, which decides whether it tries them:
///
/// - While at least half of a window's sections commit as hardware transactions, it tries them. Otherwise the next [`LATCHES`]
///   sections take the latches at once, and a new window begins. One window in this many sections costs at most 2 % of futile
///   attempts, and shows when they begin to succeed.
/// - Where the cache had no room for the rows that a section writes, it will have none the next time. Of the sections that
///   write at least as many rows, one in [`LARGE_PER_TRY`] is tried. Lines that are only read have more room: an overflow by
///   reads says nothing about writes.
#[derive(Debug)]
pub(crate) struct Trust {
    tried: Cell<u32>,
    committed: Cell<u32>,
    latches: Cell<u32>,
    /// The lowest number of rows for which there was no room.
    large: Cell<usize>,
    /// Sections that large since one was last tried.
    untried: Cell<u32>,
}

/// Sections after which a worker judges.
const WINDOW: u32 = 256;
/// Sections by latches after a window in which too few were hardware transactions.
const LATCHES: u32 = 16 << 10;
/// See [`Trust`].
const LARGE_PER_TRY: u32 = 64;

impl Default for Trust {
    fn default() -> Self {
        let none = || Cell::new(0);
        Self { tried: none(), committed: none(), latches: none(), large: Cell::new(usize::MAX), untried: none() }
    }
}

impl Trust {
    /// Is the next section, which writes `rows` rows, to be tried as a hardware transaction?
    #[inline]
    pub fn is_given(&self, rows: usize) -> bool {
        let latches = self.latches.get();
        self.latches.set(latches.saturating_sub(1));
        latches == 0 && (rows < self.large.get() || self.is_turn_of_large())
    }

    #[cold]
    fn is_turn_of_large(&self) -> bool {
        self.untried.set((self.untried.get() + 1) % LARGE_PER_TRY);
        self.untried.get() == 0
    }

    /// A section with `rows` rows has committed as a hardware transaction.
    #[inline]
    pub fn committed(&self, rows: usize) {
        if rows >= self.large.get() {
            self.large.set(rows + 1);
        }
        self.note(true);
    }

    /// Notes whether the hardware executed a section that was tried.
    #[inline]
    pub fn note(&self, worked: bool) {
        self.tried.set(self.tried.get() + 1);
        self.committed.set(self.committed.get() + u32::from(worked));
        if self.tried.get() == WINDOW {
            if self.committed.get() < WINDOW / 2 {
                self.latches.set(LATCHES);
            }
            self.tried.set(0);
            self.committed.set(0);
        }
    }

    /// There was no room for a section that was tried.
    #[cold]
    pub fn overflowed(&self, rows: usize) {
        self.large.set(self.large.get().min(rows));
        self.note(false);
    }
}

#[cfg(test)]
mod tests;
