//! Latches in regions: at most one holder in the cluster. The word names the holder, so that a latch can be freed if its holder
//! is dead.
//!
//! | form | order | acquire, uncontended | bytes |
//! |---|---|---|---|
//! | [`Form::Plain`] | none: an attempt at the right moment succeeds | 1 instruction | 8 |
//! | [`Form::Fair`] | first come, first served | 5 instructions | 64 a place, and 128 |
//!
//! A holder is a thread of a node in one configuration of the cluster. The caller of [`Latch::free_dead`] must know that a holder
//! is dead, and that none of its instructions can still arrive (fencing is the membership's task). The latch then is free. If the
//! holder still lives, its release returns [`LatchError::Lost`].

mod fair;
mod plain;

use super::{LINE, Words};
use crate::{FabricError, FarPtr, NodeId};

/// A holder of a latch, or a waiter: `configuration:16 | node:8 | thread:16` in the latch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The configuration of the cluster that it belongs to.
    pub configuration: u16,
    /// Its node.
    pub node: NodeId,
    /// Which of the node's threads.
    pub thread: u16,
}

impl Holder {
    const BITS: u32 = 40;

    pub(super) fn bits(self) -> u64 {
        u64::from(self.configuration) << 24 | u64::from(self.node.0) << 16 | u64::from(self.thread)
    }

    pub(super) fn of_bits(bits: u64) -> Self {
        Self { configuration: (bits >> 24) as u16, node: NodeId((bits >> 16) as u8), thread: bits as u16 }
    }
}

/// The order in which waiters get a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// None: each tries until it succeeds.
    Plain,
    /// The order of arrival, for as many waiters as there are places. Further waiters wait for a place first, in no order.
    Fair(u32),
}

/// A latch in a region: [`Latch::bytes`] of zeroed memory.
#[derive(Clone, Copy, Debug)]
pub struct Latch {
    at: FarPtr,
    form: Form,
}

/// A held latch. Only [`Latch::release`] gives it back, because that is an instruction that takes time and may fail.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it stays held until it is released"]
pub struct Held {
    me: Holder,
    ticket: u64,
    /// Attempts that it took, the successful one included.
    pub attempts: u64,
}

/// Why a latch was not acquired or not released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LatchError {
    /// Another holder kept it during all attempts allowed.
    #[error("another holder has the latch after {attempts} attempts; try again")]
    Busy {
        /// How many these were.
        attempts: u64,
    },
    /// It was freed meanwhile, because a caller declared its holder dead: what it protects may have another holder.
    #[error("the latch was freed meanwhile: its holder was declared dead")]
    Lost,
    /// The fabric failed. The latch may be held: see [`super::Words::execute`].
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl Latch {
    /// The latch at `at`, a multiple of 8 (fair: better of 64).
    ///
    /// # Panics
    /// If it has no places.
    #[must_use]
    pub const fn new(at: FarPtr, form: Form) -> Self {
        assert!(!matches!(form, Form::Fair(0)), "at least one place");
        Self { at, form }
    }

    /// Bytes of a latch of this form.
    #[must_use]
    pub const fn bytes(form: Form) -> u64 {
        match form {
            Form::Plain => 8,
            Form::Fair(places) => (2 + places as u64) * LINE,
        }
    }

    /// Takes the latch for `me`, with at most `attempts_max` attempts; between two it pauses. A future that is dropped before it is done,
    /// or that fails with [`LatchError::Fabric`], may have taken the latch or a waiter's place: until `me` is declared dead, no other
    /// waiter gets past it.
    ///
    /// # Errors
    /// [`LatchError::Busy`]: not acquired. [`LatchError::Lost`]: a caller declared `me` dead meanwhile. [`LatchError::Fabric`].
    pub async fn acquire(&self, words: &impl Words, me: Holder, attempts_max: u64) -> Result<Held, LatchError> {
        match self.form {
            Form::Plain => plain::acquire(words, self.at, me, attempts_max).await,
            Form::Fair(places) => self.places(places).acquire(words, me, attempts_max).await,
        }
    }

    /// Gives the latch back.
    ///
    /// # Errors
    /// [`LatchError::Lost`], [`LatchError::Fabric`].
    pub async fn release(&self, words: &impl Words, held: Held) -> Result<(), LatchError> {
        match self.form {
            Form::Plain => plain::release(words, self.at, held.me).await,
            Form::Fair(places) => self.places(places).release(words, &held).await,
        }
    }

    /// The present holder.
    ///
    /// # Errors
    /// What prevented the read.
    pub async fn holder(&self, words: &impl Words) -> Result<Option<Holder>, FabricError> {
        match self.form {
            Form::Plain => plain::holder(words, self.at).await,
            Form::Fair(places) => self.places(places).holder(words).await,
        }
    }

    /// Frees the latch from dead holders and waiters. Returns how many there were. The caller guarantees that a holder that
    /// `is_dead` accepts never acts again.
    ///
    /// # Errors
    /// What prevented the read or the change.
    pub async fn free_dead(&self, words: &impl Words, is_dead: impl Fn(Holder) -> bool) -> Result<u32, FabricError> {
        match self.form {
            Form::Plain => plain::free_dead(words, self.at, is_dead).await,
            Form::Fair(places) => self.places(places).free_dead(words, is_dead).await,
        }
    }

    fn places(&self, places: u32) -> fair::Places {
        fair::Places { at: self.at, count: places.into() }
    }
}
