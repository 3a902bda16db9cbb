//! Hot loops compiled for the widest vectors that this processor has.

/// The vectors that the code of a hot loop may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vectors {
    /// The least of the architecture.
    Plain,
    /// AVX2, BMI2 and the features that come with them.
    Avx2,
    /// AVX-512 (F, DQ, VL) and all of the above.
    Avx512,
}

/// Evaluates `|vectors| work` with the vectors that this processor has. The code is compiled once for each kind.
/// Functions that it calls must be inlined (`#[inline(always)]`) to benefit. So must `work` itself, which is why this
/// is a macro: the compiler would leave a long closure a function of its own, for any processor.
macro_rules! widest {
    (|$vectors:pat_param| $work:expr) => {
        $crate::widest::on_widest(
            #[inline(always)]
            |$vectors| $work,
        )
    };
}
pub(crate) use widest;

/// See [`widest`].
#[inline(always)]
pub fn on_widest<R>(work: impl FnOnce(Vectors) -> R) -> R {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
    {
        let has_avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        // SAFETY: the processor has the features with which either function is compiled.
        return unsafe { if has_avx512 { with_avx512(work) } else { with_avx2(work) } };
    }
    work(Vectors::Plain)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx512<R>(work: impl FnOnce(Vectors) -> R) -> R {
    work(Vectors::Avx512)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx2<R>(work: impl FnOnce(Vectors) -> R) -> R {
    work(Vectors::Avx2)
}
