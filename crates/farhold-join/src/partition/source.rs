//! Where tuples come from, and which partition each goes to.

use std::fmt::Debug;
use std::ops::Range;

use super::tuples::Tuple;
use crate::columns::Columns;
use crate::hash::{hash, top};

/// A source of tuples.
pub(super) trait Source: Copy + Send + Sync {
    fn len(&self) -> usize;

    /// The codes of the rows `rows`, into a slice of the same length.
    fn codes(&self, rows: Range<usize>, codes: &mut [u64]);

    /// The rows `rows` as tuples, into a slice of the same length. Returns the bits of all payloads, combined by OR.
    fn tuples<T: Tuple>(&self, rows: Range<usize>, tuples: &mut [T]) -> u64;
}

/// Columns whose keys are turned into codes as they are read.
#[derive(Clone, Copy)]
pub(super) struct Coded<'a, B> {
    pub(super) columns: Columns<'a>,
    pub(super) by: B,
}

impl<B: Partitioner> Source for Coded<'_, B> {
    fn len(&self) -> usize {
        self.columns.len()
    }

    #[inline(always)]
    fn codes(&self, rows: Range<usize>, codes: &mut [u64]) {
        codes.iter_mut().zip(&self.columns.keys()[rows]).for_each(|(code, &key)| *code = self.by.code(key));
    }

    #[inline(always)]
    fn tuples<T: Tuple>(&self, rows: Range<usize>, tuples: &mut [T]) -> u64 {
        let (keys, payloads) = (&self.columns.keys()[rows.clone()], &self.columns.payloads()[rows]);
        let mut payload_bits = 0;
        for ((tuple, &key), &payload) in tuples.iter_mut().zip(keys).zip(payloads) {
            payload_bits |= payload;
            *tuple = T::new(self.by.code(key), payload);
        }
        payload_bits
    }
}

impl<U: Tuple> Source for &[U] {
    fn len(&self) -> usize {
        <[U]>::len(self)
    }

    #[inline(always)]
    fn codes(&self, rows: Range<usize>, codes: &mut [u64]) {
        codes.iter_mut().zip(&self[rows]).for_each(|(code, tuple)| *code = tuple.code());
    }

    #[inline(always)]
    fn tuples<T: Tuple>(&self, rows: Range<usize>, tuples: &mut [T]) -> u64 {
        let mut payload_bits = 0;
        for (to, from) in tuples.iter_mut().zip(&self[rows]) {
            payload_bits |= from.payload().into();
            *to = T::new(from.code(), from.payload().into());
        }
        payload_bits
    }
}

/// The mapping of keys to partitions. The partitions of `bits` bits refine those of fewer bits.
pub trait Partitioner: Copy + Send + Sync {
    /// The code that stands for the key in a tuple. Different keys of a build side have different codes, and no other
    /// key has one of these.
    fn code(&self, key: u64) -> u64;
    /// The number of the partition, among `1 << bits`, of the key with this code.
    fn partition(&self, code: u64, bits: u32) -> usize;
}

/// Partitions by the top bits of the key's hash, which is its code.
#[derive(Debug, Clone, Copy)]
pub struct ByHash(pub u64);

impl Partitioner for ByHash {
    #[inline(always)]
    fn code(&self, key: u64) -> u64 {
        hash(key, self.0)
    }

    #[inline(always)]
    fn partition(&self, code: u64, bits: u32) -> usize {
        top(code, bits)
    }
}
