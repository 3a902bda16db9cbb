//! A channel: one libfabric domain, endpoint and completion queue, and the frames that go through it.
//!
//! ```text
//!   arena   | rx frame 0 | rx frame 1 | ... | tx frame 0 | tx frame 1 | ...
//!   slot      0            1                  rx           rx + 1            ; rx + tx and up: bulk transfers
//! ```
//!
//! A slot is the provider's from posting to completion, and the channel's otherwise. Everything here stays on one thread except
//! [`Registration`]s, which any thread may make and drop (the domain is opened thread-safe).

mod bell;
mod bulk;
mod kept;
mod open;
mod peers;
mod providers;
mod raw;
mod registration;
mod shim;

pub(super) use bell::Bell;
pub(super) use bulk::BulkTarget;
pub(super) use peers::Peer;
pub(super) use providers::{Found, found};
pub(super) use registration::{Registrar, Registration};

use kept::NOBODY;
use raw::Raw;
use shim::{COMPLETIONS_MAX, Completion, farhold_poll, farhold_recv, farhold_send};

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;

/// Bytes of a frame: what `ofi_rxm` still copies eagerly (its buffers have 16 KiB), with its own header; an object of 8 KiB
/// and eight large ones' headers fit.
pub(super) const FRAME_BYTES: usize = (16 << 10) - 512;
const AGAIN: i64 = -(libc::EAGAIN as i64);

/// How many frames a channel has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub rx: u32,
    pub tx: u32,
    /// Bulk transfers at a time.
    pub bulk: u32,
}

/// The capabilities of the provider, as found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "what a provider can do: each by itself")]
pub(super) struct Traits {
    /// Its full name.
    pub provider: String,
    /// It does remote reads and writes by itself.
    pub has_rma: bool,
    /// After a registration has ended, no write that it admitted changes memory any more: a NIC's promise. `tcp` checks a key
    /// once, when a transfer begins, and puts all of its bytes into memory as they come, whenever that is. So does `efa` if the
    /// device of one side cannot write remotely: libfabric's code at the target copies what comes (`LONGCTS_RTW`), and within a
    /// host it takes its `shm`. libfabric's `shm` by itself checks no key; there fencing ends the process.
    pub stops_writes: bool,
    /// Whether a thread can sleep until there is something to poll for.
    pub has_wait: bool,
    /// Whether local memory must be registered for remote reads and writes.
    pub wants_local_registration: bool,
    /// Most bytes of one transfer.
    pub transfer_bytes_max: u64,
}

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// All frames are under way, or the provider's queue is full: poll, then again.
    Again,
    /// The peer cannot be reached.
    Broken,
}

/// What polling brought.
pub(super) enum Event<'a> {
    /// A frame came.
    Received(&'a [u8]),
    /// A frame with this tag could not be delivered.
    Lost(u64),
    /// A bulk transfer is over.
    Bulk {
        /// The one that [`Channel::bulk`] returned.
        slot: u32,
        /// Its bytes are where they belong.
        is_done: bool,
    },
}

/// See the module.
pub(super) struct Channel {
    open: Open,
    _not_sync: PhantomData<*const ()>,
}

// SAFETY: a channel may move to the thread that will use it; it holds no thread's own things.
unsafe impl Send for Channel {}

/// An open channel without its use.
struct Open {
    raw: Arc<Raw>,
    size: Size,
    traits: Traits,
    free_tx: RefCell<Vec<u32>>,
    free_bulk: RefCell<Vec<u32>>,
    /// Frames handed to the provider and not yet completed.
    sending: Cell<u32>,
    /// What the frame in each tx slot belongs to, while that is with the provider.
    tags: RefCell<Vec<Option<u64>>>,
    /// Receive slots that the provider did not take back at once.
    unposted: RefCell<Vec<u32>>,
    /// For a provider that is never closed: all peers, by name, and those that may be removed, the oldest first.
    peers: RefCell<HashMap<Vec<u8>, Peer>>,
    forgotten: RefCell<VecDeque<Vec<u8>>>,
}

#[cfg(test)]
thread_local! {
    /// Frames that this thread has sent, for tests that check what travels together.
    pub(super) static FRAMES_SENT: Cell<u64> = const { Cell::new(0) };
}

impl Channel {
    pub fn traits(&self) -> &Traits {
        &self.open.traits
    }

    /// Sends a frame. It is copied: `frame` is free when this returns.
    pub fn send(&self, peer: Peer, tag: u64, frame: &[u8]) -> Result<(), Refusal> {
        assert!(frame.len() <= FRAME_BYTES, "a frame has {FRAME_BYTES} bytes");
        let slot = self.open.free_tx.borrow_mut().pop().ok_or(Refusal::Again)?;
        // SAFETY: the slot is this call's, so no other code touches its FRAME_BYTES, and `frame` is not longer.
        unsafe {
            let to = self.open.raw.arena.base.as_ptr().add(slot as usize * FRAME_BYTES);
            std::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len());
        }
        // SAFETY: a tx slot that was free, with as many bytes in it, now the provider's until completion.
        let done = unsafe { farhold_send(self.open.raw.channel.as_ptr(), slot, frame.len() as u64, peer.0) };
        if done < 0 {
            self.open.free_tx.borrow_mut().push(slot);
            return Err(if done == AGAIN { Refusal::Again } else { Refusal::Broken });
        }
        self.open.tags.borrow_mut()[(slot - self.open.size.rx) as usize] = Some(tag);
        self.open.sending.set(self.open.sending.get() + 1);
        #[cfg(test)]
        FRAMES_SENT.set(FRAMES_SENT.get() + 1);
        Ok(())
    }

    /// Is a frame still with the provider?
    pub fn is_sending(&self) -> bool {
        self.open.sending.get() > 0
    }

    /// How many frames can be with the provider.
    pub fn frames(&self) -> usize {
        self.open.size.tx as usize
    }

    /// How many of the frames that are with the provider have such a tag.
    pub fn count_sending(&self, is_meant: impl Fn(u64) -> bool) -> usize {
        if !self.is_sending() {
            return 0;
        }
        self.open.tags.borrow().iter().flatten().filter(|tag| is_meant(**tag)).count()
    }

    /// Makes progress and hands out what happened. True: something did.
    pub fn poll(&self, mut take: impl FnMut(Event<'_>)) -> bool {
        let mut completions = [Completion::default(); COMPLETIONS_MAX];
        let (channel, most) = (self.open.raw.channel.as_ptr(), completions.len());
        // SAFETY: an open channel, and room for as many completions.
        let count = unsafe { farhold_poll(channel, completions.as_mut_ptr(), most) };
        for completion in &completions[..usize::try_from(count).unwrap_or(0)] {
            self.complete(*completion, &mut take);
        }
        if !self.open.unposted.borrow().is_empty() {
            self.post_receives();
        }
        count > 0
    }

    fn complete(&self, Completion { slot, error, len }: Completion, take: &mut impl FnMut(Event<'_>)) {
        let Size { rx, tx, bulk } = self.open.size;
        if slot < rx {
            if error == 0 {
                let len = (len as usize).min(FRAME_BYTES);
                // SAFETY: the receive is complete and not posted again before `take` is done, so these bytes are ours.
                let frame = unsafe {
                    let start = self.open.raw.arena.base.as_ptr().add(slot as usize * FRAME_BYTES);
                    std::slice::from_raw_parts(start, len)
                };
                take(Event::Received(frame));
            }
            self.open.unposted.borrow_mut().push(slot);
        } else if slot < rx + tx {
            self.open.free_tx.borrow_mut().push(slot);
            self.open.sending.set(self.open.sending.get() - 1);
            let tag = self.open.tags.borrow_mut()[(slot - rx) as usize].take();
            if let Some(tag) = tag.filter(|tag| error != 0 && *tag != NOBODY) {
                take(Event::Lost(tag));
            }
        } else if slot < rx + tx + bulk {
            self.open.free_bulk.borrow_mut().push(slot);
            take(Event::Bulk { slot, is_done: error == 0 });
        }
    }

    fn post_receives(&self) {
        self.open.unposted.borrow_mut().retain(|&slot| {
            // SAFETY: a receive slot that is not with the provider.
            unsafe { farhold_recv(self.open.raw.channel.as_ptr(), slot) < 0 }
        });
    }
}
