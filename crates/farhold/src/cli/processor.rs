//! Whether this processor has the instructions that the program was compiled for.
//!
//! `make release` compiles for x86-64-v3 (AVX2, FMA, BMI: every x86 server of the last ten years). On a processor without them
//! the first such instruction would end the program without a message.

/// The missing parts of x86-64-v3; `None`: nothing is missing, or the program was compiled for less.
pub fn missing() -> Option<&'static str> {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    return lacks_v3(leaf(1, 0).ecx, leaf(7, 0).ebx, leaf(0x8000_0001, 0).ecx);
    #[cfg(not(all(target_arch = "x86_64", target_feature = "avx2")))]
    None
}

/// Not `is_x86_feature_detected`, because that trusts the compiler's setting.
#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
#[expect(clippy::disallowed_methods, reason = "at the start of the process")]
fn leaf(number: u32, part: u32) -> core::arch::x86_64::CpuidResult {
    if core::arch::x86_64::__cpuid(number & 0x8000_0000).eax < number {
        return core::arch::x86_64::CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    core::arch::x86_64::__cpuid_count(number, part)
}

/// By the answers to CPUID leaf 1 (ECX), 7 (EBX) and 0x80000001 (ECX). OSXSAVE says that the system saves the wide registers.
#[cfg_attr(not(all(target_arch = "x86_64", target_feature = "avx2")), cfg(test))]
fn lacks_v3(basic: u32, extended: u32, amd: u32) -> Option<&'static str> {
    let needed = [
        ("FMA", basic, 12),
        ("MOVBE", basic, 22),
        ("POPCNT", basic, 23),
        ("OSXSAVE", basic, 27),
        ("AVX", basic, 28),
        ("F16C", basic, 29),
        ("BMI1", extended, 3),
        ("AVX2", extended, 5),
        ("BMI2", extended, 8),
        ("LZCNT", amd, 5),
    ];
    needed.into_iter().find(|(_, flags, bit)| flags >> bit & 1 == 0).map(|(name, ..)| name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_not_there_is_named() {
        assert_eq!(super::lacks_v3(u32::MAX, u32::MAX, u32::MAX), None);
        assert_eq!(super::lacks_v3(u32::MAX, !(1 << 5), u32::MAX), Some("AVX2"));
        assert_eq!(super::lacks_v3(0, 0, 0), Some("FMA"));
        assert_eq!(super::missing(), None, "the tests run");
    }
}
