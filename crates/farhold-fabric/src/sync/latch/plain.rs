//! One word: 0, or the holder. Acquired and released by compare-and-swap.
//!
//! The GRU's latch is released by a clear. A swap that names the holder costs the same. It cannot take the latch from a thread
//! that got it after this holder had been declared dead.

use super::super::{WordOp, Words, swapped};
use super::{Held, Holder, LatchError};
use crate::{FabricError, FarPtr};

/// The word of a held latch; never 0.
fn held_by(holder: Holder) -> u64 {
    holder.bits() << 1 | 1
}

fn holder_of(word: u64) -> Option<Holder> {
    (word != 0).then(|| Holder::of_bits(word >> 1))
}

pub(super) async fn acquire(words: &impl Words, at: FarPtr, me: Holder, attempts_max: u64) -> Result<Held, LatchError> {
    for attempts in 1..=attempts_max {
        if swapped(words, at, 0, held_by(me)).await? {
            return Ok(Held { me, ticket: 0, attempts });
        }
        if attempts < attempts_max {
            words.pause().await;
        }
    }
    Err(LatchError::Busy { attempts: attempts_max })
}

pub(super) async fn release(words: &impl Words, at: FarPtr, me: Holder) -> Result<(), LatchError> {
    if swapped(words, at, held_by(me), 0).await? { Ok(()) } else { Err(LatchError::Lost) }
}

pub(super) async fn holder(words: &impl Words, at: FarPtr) -> Result<Option<Holder>, FabricError> {
    Ok(holder_of(words.execute(at, WordOp::Load).await?))
}

pub(super) async fn free_dead(
    words: &impl Words,
    at: FarPtr,
    is_dead: impl Fn(Holder) -> bool,
) -> Result<u32, FabricError> {
    let found = words.execute(at, WordOp::Load).await?;
    match holder_of(found) {
        Some(holder) if is_dead(holder) => Ok(u32::from(swapped(words, at, found, 0).await?)),
        _ => Ok(0),
    }
}
