//! The instructions that hand a descriptor over, and that wait for a write.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: `ENQCMD`, `MOVDIR64B`, `UMONITOR`, `UMWAIT`.

use super::descriptor::{Descriptor, Record};
use std::arch::asm;
use std::sync::LazyLock;

/// Which of them this processor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instructions {
    /// `MOVDIR64B`: for dedicated queues.
    pub movdir64b: bool,
    /// `ENQCMD`: for shared queues.
    pub enqcmd: bool,
    /// `UMONITOR` and `UMWAIT`.
    pub waitpkg: bool,
}

impl Instructions {
    pub(super) fn of_this_processor() -> Self {
        // A virtual machine traps the question, so it is asked once.
        static FOUND: LazyLock<Instructions> = LazyLock::new(|| {
            #[expect(clippy::disallowed_methods, reason = "once in a process")]
            let bits = {
                use std::arch::x86_64::{__cpuid, __cpuid_count};
                if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ecx }
            };
            let has = |bit: u32| bits >> bit & 1 == 1;
            Instructions { movdir64b: has(28), enqcmd: has(29), waitpkg: has(5) }
        });
        *FOUND
    }
}

/// Writes a descriptor to the portal of a dedicated queue. A full queue drops it silently.
///
/// # Safety
/// The processor has `MOVDIR64B`. `portal` is 64 writable bytes that begin at a multiple of 64. The caller is responsible for what the descriptor lets a device
/// do.
pub(super) unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
    // SAFETY: the caller's promise. The instruction is not ordered behind earlier stores: without the fence, the zeros of the completion
    // record could reach memory after what the device writes there, and hide it for ever.
    unsafe {
        asm!("sfence", "movdir64b {portal}, [{descriptor}]", portal = in(reg) portal,
            descriptor = in(reg) &raw const *descriptor, options(nostack, preserves_flags));
    }
}

/// Offers a descriptor to the portal of a shared queue. Returns whether it was accepted.
///
/// # Safety
/// As [`movdir64b`], with `ENQCMD`; the system has given this thread an address space number.
pub(super) unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
    let is_refused: u8;
    // SAFETY: the caller's promise; the fence is that of `movdir64b`. The zero flag says that the device wants it offered again.
    unsafe {
        asm!("sfence", "enqcmd {portal}, [{descriptor}]", "setz {is_refused}", portal = in(reg) portal,
            descriptor = in(reg) &raw const *descriptor, is_refused = out(reg_byte) is_refused, options(nostack));
    }
    is_refused == 0
}

/// Lets the processor sleep until the record is written, for some 20 µs at most; it may return at any time.
pub(super) fn rest(record: &Record) {
    if !Instructions::of_this_processor().waitpkg {
        std::thread::yield_now();
        return;
    }
    const REST_TICKS: u64 = 50_000;
    /// State C0.1: it wakes sooner than C0.2, and saves less.
    const STATE: u32 = 1;
    // SAFETY: the processor has the instructions. The first one reads the line of a record that is borrowed.
    unsafe { asm!("umonitor {record}", record = in(reg) record.address(), options(nostack, preserves_flags)) };
    // A write before the watch began wakes no processor.
    if record.outcome().is_some() {
        return;
    }
    // SAFETY: reading the time-stamp counter does nothing else.
    let until = unsafe { std::arch::x86_64::_rdtsc() } + REST_TICKS;
    // SAFETY: the processor has it; it changes the carry flag alone.
    unsafe {
        asm!("umwait {state:e}", state = in(reg) STATE, in("eax") until as u32, in("edx") (until >> 32) as u32,
            options(nostack));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only one of these instructions whose effect shows without a device.
    #[test]
    fn movdir64b_writes_the_descriptor() {
        if !Instructions::of_this_processor().movdir64b {
            farhold_testkit::skipped("this processor has no MOVDIR64B");
            return;
        }
        #[repr(align(64))]
        struct Line([u8; 64]);
        let (mut line, record, mut target) = (Line([0xee; 64]), Record::default(), [0_u8; 8]);
        let source = [1_u8; 8];
        let descriptor = Descriptor::memory_move(source.as_ptr(), target.as_mut_ptr(), 8, &record, 0);
        // SAFETY: the processor has it, and the line is ours; no device reads it.
        unsafe { movdir64b(line.0.as_mut_ptr(), &descriptor) };
        // SAFETY: a descriptor is 64 initialised bytes without padding.
        let wanted = unsafe { *(&raw const descriptor).cast::<[u8; 64]>() };
        assert_eq!(line.0, wanted);
    }
}
