//! Copies between private memory and memory that other threads write at the same time.
//!
//! A plain `memcpy` that races with a store is undefined behaviour in Rust, whatever the reader does with the result. Two
//! versions are sound:
//! - [`portable`]: word by word with relaxed atomic loads and stores. Used under Miri and on other processors.
//! - `kernel` (x86-64): inline assembly, which to Rust is as if another agent of the machine copied the bytes.
//!
//! Either way the version of the object must tell whether a copy is one state; nothing here relies on more than bytes being
//! whole.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod kernel;
#[cfg_attr(all(target_arch = "x86_64", not(miri)), allow(dead_code, reason = "tested against the kernel"))]
mod portable;
#[cfg(test)]
mod tests;

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use kernel::{copy_from_shared, copy_lines_from_shared, copy_to_shared, copy_to_shared_narrow, sum_shared};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use portable::{
    copy_from_shared, copy_lines_from_shared, copy_to_shared, copy_to_shared as copy_to_shared_narrow, sum_shared,
};
