//! What the processor can do.

/// This process's processor, if it has hardware transactions that can commit. Its holder may use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor(());

impl Processor {
    /// Asks the processor, once in a process: CPUID traps to the hypervisor on a virtual machine, which takes microseconds.
    /// Asking twice in each commit lowered TPC-C from 100 K to 39 K transactions/s.
    pub fn detect() -> Option<Self> {
        static FOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        FOUND.get_or_init(has_rtm).then_some(Self(()))
    }
}

/// How often this process has asked its processor.
#[cfg(test)]
pub(crate) static QUESTIONS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// CPUID leaf 7: EBX bit 11 is RTM, EDX bit 11 is `RTM_ALWAYS_ABORT`.
fn has_rtm() -> bool {
    #[cfg(test)]
    QUESTIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[expect(clippy::disallowed_methods, reason = "once in a process")]
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
