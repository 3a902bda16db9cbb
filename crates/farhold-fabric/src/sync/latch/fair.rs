//! Waiters in a ring of places, served in the order of their tickets.
//!
//! ```text
//!  +0 head: the ticket that holds │ +64 tail: the next ticket │ +128 places, one a line
//!
//!  place of ticket t = t modulo the number of places:
//!     free for turn n ──(compare_swap)──▶ taken in turn n, with its holder ──(compare_swap)──▶ free for turn n + 1
//!  where the turn of ticket t is t divided by the number of places
//! ```
//!
//! A ticket is taken by taking its place, not by moving `tail`. So each ticket has an owner from the first moment, and no holder
//! can die between the two. `tail` and `head` only follow: `tail` may go past a ticket whose place is taken, and `head` past a
//! ticket whose place is in a later turn. Each thread that sees this moves them. A dead waiter's place is put into its next turn,
//! and `head` passes over it when it gets there.
//!
//! Turns have 22 bits and come back after four million times all places. An instruction that was posted before and arrives after
//! that would be taken for valid. A thread waits for its instructions, so this needs a node that runs on after it was declared
//! dead, which fencing excludes.

use super::super::{WordOp, Words, swapped};
use super::{Held, Holder, LINE, LatchError};
use crate::{FabricError, FarPtr};

/// The words of a fair latch.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub at: FarPtr,
    pub count: u64,
}

const TURN_BITS: u32 = 22;
const TURN_MASK: u64 = (1 << TURN_BITS) - 1;
const TAKEN: u64 = 1;

/// A place: `turn:22 | holder:40 | unused:1 | taken:1`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

impl Place {
    fn free(turn: u64) -> Self {
        Self((turn & TURN_MASK) << (64 - TURN_BITS))
    }

    fn taken(turn: u64, by: Holder) -> Self {
        Self(Self::free(turn).0 | by.bits() << (64 - TURN_BITS - Holder::BITS) | TAKEN)
    }

    fn holder(self) -> Option<Holder> {
        (self.0 & TAKEN != 0).then(|| Holder::of_bits(self.0 >> (64 - TURN_BITS - Holder::BITS)))
    }

    fn turn(self) -> u64 {
        self.0 >> (64 - TURN_BITS)
    }

    /// How many turns it is ahead of `turn`: negative if behind.
    fn ahead_of(self, turn: u64) -> i64 {
        let difference = self.turn().wrapping_sub(turn) & TURN_MASK;
        // Sign-extended from 22 bits.
        ((difference << (64 - TURN_BITS)).cast_signed()) >> (64 - TURN_BITS)
    }
}

impl Places {
    fn head(&self) -> FarPtr {
        self.at
    }

    fn tail(&self) -> FarPtr {
        self.at.add(LINE)
    }

    fn place(&self, ticket: u64) -> FarPtr {
        self.at.add((2 + ticket % self.count) * LINE)
    }

    fn turn(&self, ticket: u64) -> u64 {
        ticket / self.count
    }

    pub async fn acquire(&self, words: &impl Words, me: Holder, attempts_max: u64) -> Result<Held, LatchError> {
        let mut attempts = 1;
        let ticket = loop {
            let ticket = words.execute(self.tail(), WordOp::Load).await?;
            let turn = self.turn(ticket);
            let (free, mine) = (Place::free(turn).0, Place::taken(turn, me).0);
            let found =
                Place(words.execute(self.place(ticket), WordOp::CompareSwap { expected: free, new: mine }).await?);
            let past = found.0 == free || found.ahead_of(turn) > 0 || (found.turn() == turn & TURN_MASK);
            if past {
                // Taken, by this thread or by one that has not moved the tail yet.
                swapped(words, self.tail(), ticket, ticket.wrapping_add(1)).await?;
            }
            if found.0 == free {
                break ticket;
            }
            if !past {
                // All places are taken.
                if attempts >= attempts_max {
                    return Err(LatchError::Busy { attempts });
                }
                attempts += 1;
                words.pause().await;
            }
        };
        let mine = Place::taken(self.turn(ticket), me).0;
        loop {
            let head = words.execute(self.head(), WordOp::Load).await?;
            if head.wrapping_sub(ticket).cast_signed() >= 0 {
                // Our turn, if the place still is ours.
                let is_mine = words.execute(self.place(ticket), WordOp::Load).await? == mine;
                return if is_mine { Ok(Held { me, ticket, attempts }) } else { Err(LatchError::Lost) };
            }
            self.pass_over(words, head).await?;
            if attempts >= attempts_max {
                if !swapped(words, self.place(ticket), mine, Place::free(self.turn(ticket) + 1).0).await? {
                    return Err(LatchError::Lost);
                }
                return Err(LatchError::Busy { attempts });
            }
            attempts += 1;
            words.pause().await;
        }
    }

    pub async fn release(&self, words: &impl Words, held: &Held) -> Result<(), LatchError> {
        let turn = self.turn(held.ticket);
        let (mine, next) = (Place::taken(turn, held.me).0, Place::free(turn + 1).0);
        if !swapped(words, self.place(held.ticket), mine, next).await? {
            return Err(LatchError::Lost);
        }
        swapped(words, self.head(), held.ticket, held.ticket.wrapping_add(1)).await?;
        Ok(())
    }

    /// Moves `head` on if its ticket is over: given back, given up, or a dead holder's. True if it was.
    async fn pass_over(&self, words: &impl Words, head: u64) -> Result<bool, FabricError> {
        let place = Place(words.execute(self.place(head), WordOp::Load).await?);
        let over = place.ahead_of(self.turn(head)) > 0;
        if over {
            swapped(words, self.head(), head, head.wrapping_add(1)).await?;
        }
        Ok(over)
    }

    pub async fn holder(&self, words: &impl Words) -> Result<Option<Holder>, FabricError> {
        loop {
            let head = words.execute(self.head(), WordOp::Load).await?;
            let place = Place(words.execute(self.place(head), WordOp::Load).await?);
            if place.ahead_of(self.turn(head)) <= 0 {
                return Ok(place.holder().filter(|_| place.ahead_of(self.turn(head)) == 0));
            }
            self.pass_over(words, head).await?;
        }
    }

    pub async fn free_dead(&self, words: &impl Words, is_dead: impl Fn(Holder) -> bool) -> Result<u32, FabricError> {
        let mut freed = 0;
        for number in 0..self.count {
            let found = Place(words.execute(self.place(number), WordOp::Load).await?);
            if found.holder().is_some_and(&is_dead) {
                freed += u32::from(swapped(words, self.place(number), found.0, Place::free(found.turn() + 1).0).await?);
            }
        }
        loop {
            let head = words.execute(self.head(), WordOp::Load).await?;
            if !self.pass_over(words, head).await? {
                return Ok(freed);
            }
        }
    }
}
