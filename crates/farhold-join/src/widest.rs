//! Hot loops compiled for the widest vectors that this processor has.

/// Runs `work(has_avx512)`, whose code is compiled once for plain x86-64 and once with AVX-512, BMI2 and what goes with them; the
/// processor decides which runs. `work` and what it calls must be inlined (`#[inline(always)]`) to have any of it.
#[inline(always)]
pub fn widest<R>(work: impl FnOnce(bool) -> R) -> R {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
    {
        // SAFETY: the processor has what the function is compiled with.
        return unsafe { with_avx512(work) };
    }
    work(false)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,bmi2,lzcnt,popcnt")]
fn with_avx512<R>(work: impl FnOnce(bool) -> R) -> R {
    work(true)
}
