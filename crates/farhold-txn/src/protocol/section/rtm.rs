//! The section as one hardware transaction (Intel RTM), by stable inline assembly: the intrinsics are not stable.
//!
//! ```text
//!   xbegin ─► every row to write: unlocked and at its version? ─► validate ─► write ─► xend
//!      ▲          │ no: xabort                                                 │ any conflict, or a page fault, ...
//!      └──────────┴───────────────── up to ATTEMPTS_MAX times ◄────────────────┘ then: latch
//! ```
//!
//! Whoever locks a row that the transaction has looked at aborts it, because the lock word is then in its read set; so it
//! needs no locks of its own. It must not call the system or allocate, so it does only plain commits: no snapshot is open, no
//! index is being made, and no index entry is swung inside of it.
//!
//! Most CPUs of today have no RTM, or a microcode that makes it abort always, and the CPU on which this was written has
//! none: the assembly has been assembled, its fallback and its body tested, but it has never committed a transaction. AMD
//! never had it; of Intel's, look for Xeons from Haswell-EX to Sapphire Rapids with TSX enabled.

use super::latch::Latch;
use super::{Near, Refused, Section, validate, write};

/// DrTM's limit for its fallback; beyond it an abort has a reason that will not go away (capacity, a page not present).
#[cfg(target_arch = "x86_64")]
const ATTEMPTS_MAX: u32 = 8;

/// The section as a hardware transaction, with [`Latch`] behind it.
pub(crate) enum Rtm {}

/// Does this CPU have hardware transactions that can commit? CPUID leaf 7: EBX bit 11 is RTM, EDX bit 11 is
/// `RTM_ALWAYS_ABORT`.
#[must_use]
pub(crate) fn available() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        if __cpuid(0).eax < 7 {
            return false;
        }
        let leaf = __cpuid_count(7, 0);
        leaf.ebx & 1 << 11 != 0 && leaf.edx & 1 << 11 == 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        false
    }
}

impl Section for Rtm {
    const NAME: &'static str = "rtm";

    fn commit(
        near: &Near<'_>,
        epoch: impl Fn() -> u32,
        is_plain: impl Fn() -> bool,
        before_write: impl FnMut(u32) -> Result<(), Refused>,
    ) -> Result<u32, Refused> {
        if planted!(SoftRtm) {
            // The body alone, where one thread is the whole world.
            match body(near, &epoch, &is_plain) {
                Err(Stop::NotPlain) => {}
                Err(Stop::Refused(refused)) => return Err(refused),
                Ok(epoch) => return Ok(epoch),
            }
        }
        #[cfg(target_arch = "x86_64")]
        if available() {
            for _ in 0..ATTEMPTS_MAX {
                match attempt(near, &epoch, &is_plain) {
                    Attempt::Committed(epoch) => return Ok(epoch),
                    Attempt::Refused(refused) => return Err(refused),
                    Attempt::Again => std::hint::spin_loop(),
                    Attempt::Never => break,
                }
            }
        }
        Latch::commit(near, epoch, is_plain, before_write)
    }
}

/// Why the body has changed nothing.
enum Stop {
    Refused(Refused),
    /// There is more to do than this form can.
    NotPlain,
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Are the rows to write as they were read, and locked by nobody? What the locks do for the other form.
#[inline]
fn all_free(near: &Near<'_>) -> Result<(), Refused> {
    for &position in near.order {
        let row = &near.state.rows[position as usize];
        let object = near.object(row);
        if object.lock_word() != 0 {
            return Err(Refused::Locked);
        }
        if object.version() != row.version {
            return Err(Refused::Changed);
        }
    }
    Ok(())
}

/// What runs inside of the hardware transaction; without one it is a section for a single thread, which is how it is
/// tested.
#[inline]
fn body(near: &Near<'_>, epoch: &impl Fn() -> u32, is_plain: &impl Fn() -> bool) -> Result<u32, Stop> {
    all_free(near)?;
    if !is_plain() {
        return Err(Stop::NotPlain);
    }
    let epoch = epoch();
    validate(near)?;
    write(near, epoch);
    Ok(epoch)
}

#[cfg(target_arch = "x86_64")]
enum Attempt {
    Committed(u32),
    Refused(Refused),
    /// Aborted by a conflict.
    Again,
    /// Aborted for a reason that stays.
    Never,
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn attempt(near: &Near<'_>, epoch: &impl Fn() -> u32, is_plain: &impl Fn() -> bool) -> Attempt {
    /// What `xbegin` leaves in EAX when the transaction has begun.
    const STARTED: u32 = !0;
    /// Bits of the abort status: may succeed on a retry; by `xabort`, with its operand in bits 24 to 31.
    const RETRY: u32 = 1 << 1;
    const EXPLICIT: u32 = 1;
    const LOCKED: u32 = 1;
    const CHANGED: u32 = 2;

    let status: u32;
    // SAFETY: the caller has asked `available`, so the instruction exists. An abort takes memory and registers back to
    // this place, where only EAX differs; the compiler sees an assembly block that returns twice with different results,
    // which is sound because every store in between is undone and nothing in between outlives an abort in a register.
    unsafe {
        std::arch::asm!("mov eax, -1", "xbegin 2f", "2:", out("eax") status, options(nostack));
    }
    if status != STARTED {
        return match status {
            s if s & EXPLICIT != 0 && s >> 24 == LOCKED => Attempt::Refused(Refused::Locked),
            s if s & EXPLICIT != 0 && s >> 24 == CHANGED => Attempt::Refused(Refused::Changed),
            s if s & RETRY != 0 => Attempt::Again,
            _ => Attempt::Never,
        };
    }
    match body(near, epoch, is_plain) {
        Ok(epoch) => {
            // SAFETY: inside of the transaction begun above.
            unsafe { std::arch::asm!("xend", options(nostack)) };
            Attempt::Committed(epoch)
        }
        Err(Stop::Refused(Refused::Locked)) => {
            // SAFETY: inside of the transaction begun above; control goes back to `xbegin`.
            unsafe { std::arch::asm!("xabort 1", options(nostack)) };
            Attempt::Refused(Refused::Locked)
        }
        Err(Stop::Refused(refused)) => {
            // SAFETY: as above.
            unsafe { std::arch::asm!("xabort 2", options(nostack)) };
            Attempt::Refused(refused)
        }
        Err(Stop::NotPlain) => {
            // SAFETY: as above.
            unsafe { std::arch::asm!("xabort 3", options(nostack)) };
            Attempt::Never
        }
    }
}
