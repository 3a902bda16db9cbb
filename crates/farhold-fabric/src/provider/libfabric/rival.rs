//! libfabric's own remote read and its own messages with nothing around them: the yardstick of the benches. It has no other use.

use super::channel::{BulkTarget, Channel, Event, FRAME_BYTES, Peer, Registration, Size};
use super::secret::random_u64;
use crate::address::FarPtr;
use crate::error::FabricError;
use crate::memory::RegionMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const SIZE: Size = Size { rx: 32, tx: 32, bulk: 16 };

/// Two endpoints of this process: one polls on a thread of its own and answers messages, the other reads from it and sends it
/// messages.
pub struct Rival {
    channel: Channel,
    peer: Peer,
    key: u64,
    base: u64,
    local: Vec<u8>,
    registration: Option<Registration>,
    orders: Arc<Orders>,
    target: Option<JoinHandle<()>>,
}

/// To the polling thread.
#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    /// Poll; otherwise sleep, so that the core is free for the thread that is measured now.
    poll: AtomicBool,
}

impl Rival {
    /// Opens both sides over a provider; `bytes` can be read. `can_wait`: the target could sleep until the provider wakes it, as
    /// home agents do. It does not sleep here, but the ability costs time.
    ///
    /// # Errors
    /// What the provider refuses.
    pub fn open(provider: &str, bytes: u64, can_wait: bool) -> Result<Self, FabricError> {
        let local_address = (provider != "shm").then_some("127.0.0.1");
        let open = |can_wait| Channel::open(provider, local_address, SIZE, can_wait);
        let (target, channel) = (open(can_wait)?, open(false)?);
        let memory = Arc::new(RegionMemory::anonymous(FarPtr::default(), bytes)?);
        let opened = target.registrar().open_to_peers(&memory, random_u64(), true)?;
        let (peer, asker) = (channel.meet(&target.name()?)?, target.meet(&channel.name()?)?);
        let orders = Arc::new(Orders::default());
        let ordered = orders.clone();
        let mut local = vec![0; bytes as usize];
        // SAFETY: the vector is never resized and is dropped after the registration (field order).
        let registration = unsafe { channel.register_local(local.as_mut_ptr(), bytes)? };
        let (key, base) = (opened.key, opened.base);
        let poll = move || {
            let _registered = opened;
            let zeros = [0; FRAME_BYTES];
            while !ordered.stop.load(Ordering::Relaxed) {
                if !ordered.poll.load(Ordering::Relaxed) {
                    std::thread::park();
                } else if !answer(&target, asker, &zeros) {
                    std::thread::yield_now();
                }
            }
        };
        let target = Some(std::thread::spawn(poll));
        Ok(Self { channel, peer, key, base, local, registration, orders, target })
    }

    /// Has the other side poll, or sleep.
    pub fn set_polling(&self, polls: bool) {
        self.orders.poll.store(polls, Ordering::Relaxed);
        if let Some(target) = &self.target {
            target.thread().unpark();
        }
    }

    /// Reads `len` bytes at `offset` and waits for them; true if they came. The other side must be polling.
    pub fn read(&mut self, offset: u64, len: usize) -> bool {
        assert!(offset as usize + len <= self.local.len());
        let target = BulkTarget { remote: self.base + offset, key: self.key };
        let local = self.local.as_mut_ptr();
        let registration = self.registration.as_ref();
        // SAFETY: the vector is as long as asserted, stays where it is, and is not touched before the event.
        while unsafe { self.channel.bulk(false, local, len as u64, registration, self.peer, target) }.is_err() {
            self.channel.poll(|_| {});
        }
        let mut outcome = None;
        while outcome.is_none() {
            self.channel.poll(|event| {
                if let Event::Bulk { is_done, .. } = event {
                    outcome = Some(is_done);
                }
            });
        }
        outcome == Some(true)
    }

    /// Sends a message of `len` bytes (at least 8) and waits for `answer_len` bytes, in frames as long as ours. The other side must be
    /// polling.
    pub fn exchange(&mut self, len: usize, answer_len: usize) {
        assert!((8..=FRAME_BYTES).contains(&len) && answer_len > 0);
        self.local[..8].copy_from_slice(&(answer_len as u64).to_le_bytes());
        while self.channel.send(self.peer, 0, &self.local[..len]).is_err() {
            self.channel.poll(|_| {});
        }
        let mut left = answer_len;
        while left > 0 {
            self.channel.poll(|event| {
                if let Event::Received(frame) = event {
                    left -= frame.len();
                }
            });
        }
    }
}

/// Answers whatever messages have come with as many bytes as they ask for. True: something happened.
fn answer(target: &Channel, asker: Peer, zeros: &[u8]) -> bool {
    let mut wanted = 0;
    let worked = target.poll(|event| {
        if let Event::Received(frame) = event {
            wanted = frame[..8].try_into().map_or(0, u64::from_le_bytes) as usize;
        }
    });
    if wanted > 0 {
        send_zeros(target, asker, zeros, wanted);
    }
    worked
}

fn send_zeros(target: &Channel, asker: Peer, zeros: &[u8], mut wanted: usize) {
    while wanted > 0 {
        let len = wanted.min(zeros.len());
        match target.send(asker, 0, &zeros[..len]) {
            Ok(()) => wanted -= len,
            Err(_) => drop(target.poll(|_| {})),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.orders.stop.store(true, Ordering::Relaxed);
        self.set_polling(false);
        drop(self.target.take().map(JoinHandle::join));
        self.registration = None;
    }
}
