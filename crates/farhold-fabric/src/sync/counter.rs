//! Numbers that are never given out twice: time stamps, sequences, identifiers.
//!
//! | form | numbers are | a number costs |
//! |---|---|---|
//! | [`Form::Single`] | dense and in the order of asking | an instruction on the one word |
//! | [`Form::Batched`] | in blocks: dense within a thread's block, lost with the thread that dies | a share of an instruction |
//! | [`Form::Striped`] | unique only; stripes advance unevenly | an instruction on a word that few share |
//!
//! A counter takes [`Counter::bytes`] of zeroed memory and starts at 0. Numbers wrap after 2^64 (striped: sooner by as much as
//! there are stripes).

use super::{LINE, WordOp, Words};
use crate::{FabricError, FarPtr};

/// How numbers are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One word, one number at a time.
    Single,
    /// One word; a thread takes this many numbers at a time.
    Batched(u32),
    /// This many words, each on a cache line of its own; a thread uses one of them.
    Striped(u32),
}

/// A counter in a region.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    at: FarPtr,
    form: Form,
}

/// One thread's access to a counter's numbers.
#[derive(Debug)]
pub struct Numbers {
    counter: Counter,
    stripe: u64,
    /// What is left of the thread's block.
    block: std::ops::Range<u64>,
}

impl Counter {
    /// The counter at `at`, a multiple of 8 (for stripes better of 64).
    ///
    /// # Panics
    /// If there are no stripes, or nothing in a block.
    #[must_use]
    pub const fn new(at: FarPtr, form: Form) -> Self {
        assert!(!matches!(form, Form::Batched(0) | Form::Striped(0)), "at least one");
        Self { at, form }
    }

    /// Bytes of a counter of this form.
    #[must_use]
    pub const fn bytes(form: Form) -> u64 {
        match form {
            Form::Single | Form::Batched(_) => 8,
            Form::Striped(stripes) => stripes as u64 * LINE,
        }
    }

    /// A thread's access to it. Threads with different numbers use different stripes, while there are enough stripes.
    #[must_use]
    pub fn numbers(self, thread: u32) -> Numbers {
        let stripes = if let Form::Striped(stripes) = self.form { stripes } else { 1 };
        Numbers { counter: self, stripe: u64::from(thread % stripes), block: 0..0 }
    }

    /// A block of numbers in one instruction: the first of `count`, each `step` more than the one before. For a counter of one
    /// word, which moves by the whole block.
    ///
    /// # Errors
    /// What prevented the change of the word. After a time-out a block may be lost.
    ///
    /// # Panics
    /// If it is striped.
    #[inline]
    pub async fn take(&self, words: &impl Words, count: u32, step: i64) -> Result<u64, FabricError> {
        assert!(!matches!(self.form, Form::Striped(_)), "a block comes from one word");
        words.execute(self.at, WordOp::Add(i64::from(count).wrapping_mul(step).cast_unsigned())).await
    }

    /// The count of numbers given out; blocks count as a whole. For stripes it is a sum that other threads change meanwhile.
    ///
    /// # Errors
    /// What prevented the read of a word.
    pub async fn given(&self, words: &impl Words) -> Result<u64, FabricError> {
        let stripes = if let Form::Striped(stripes) = self.form { u64::from(stripes) } else { 1 };
        let mut sum = 0_u64;
        for stripe in 0..stripes {
            sum = sum.wrapping_add(words.execute(self.at.add(stripe * LINE), WordOp::Load).await?);
        }
        Ok(sum)
    }
}

impl Numbers {
    /// The next number.
    ///
    /// # Errors
    /// What prevented the change of the word. After a time-out a number, or a block, may be lost.
    #[inline]
    pub async fn next(&mut self, words: &impl Words) -> Result<u64, FabricError> {
        let at = self.counter.at;
        match self.counter.form {
            Form::Single => words.execute(at, WordOp::Add(1)).await,
            Form::Batched(size) => {
                if self.block.is_empty() {
                    let start = self.counter.take(words, size, 1).await?;
                    self.block = start..start.wrapping_add(size.into());
                }
                let number = self.block.start;
                self.block.start = number.wrapping_add(1);
                Ok(number)
            }
            Form::Striped(stripes) => {
                let nth = words.execute(at.add(self.stripe * LINE), WordOp::Add(1)).await?;
                Ok(nth.wrapping_mul(stripes.into()).wrapping_add(self.stripe))
            }
        }
    }
}
