//! **An emulation**: a device in software, for tests. It takes descriptors as bytes, at the places that the specification gives, and executes them on a thread
//! of its own. It shows what the engine does with each answer of a device, but says nothing about a real device.

use super::descriptor::Descriptor;
use super::instructions::Instructions;
use super::queue::{Found, Mode, WorkQueue};
use super::{Dsa, Queue, Submitted};
use crate::mover::CopyEngine;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the device does with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Moves the bytes.
    Move,
    /// Moves this number of bytes, and misses a page.
    Fault(u32),
    /// Misses a page, and says that it has moved more than it was told to.
    Boast,
    /// Misses a page, having begun at the end.
    FaultBackwards,
    /// Answers with this status.
    Fail(u8),
    /// Reports success, but has moved wrong bytes.
    Corrupt,
    /// The queue has no room.
    Full,
    /// Moves the bytes when the queue is closed.
    Late,
    /// Writes garbage when the queue is closed, and no record.
    Lost,
    /// Moves the bytes when [`Emulated::go`] says so.
    Held,
}

/// A descriptor, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub flags: u64,
    pub opcode: u64,
    pub record: u64,
    pub source: u64,
    pub target: u64,
    pub bytes: usize,
    /// Whether a field is set that must be zero.
    pub has_rest: bool,
}

impl Order {
    fn read(words: [u64; 8]) -> Self {
        let [first, record, source, target, fifth, rest @ ..] = words;
        Self {
            flags: first >> 32 & 0x00ff_ffff,
            opcode: first >> 56,
            record,
            source,
            target,
            bytes: fifth as u32 as usize,
            has_rest: first as u32 != 0 || fifth >> 32 != 0 || rest != [0; 3],
        }
    }

    /// The status with which a device refuses it; 0: it does not.
    fn refusal(&self, transfer_bytes_max: usize, may_block: bool) -> u8 {
        const BLOCK: u64 = 2;
        match self {
            Self { opcode, .. } if *opcode != 3 => 0x10,
            Self { flags, .. } if flags & BLOCK != 0 && !may_block || flags & !0x10e != 0 => 0x11,
            Self { has_rest: true, .. } => 0x12,
            Self { bytes, .. } if *bytes == 0 || *bytes > transfer_bytes_max => 0x13,
            Self { record, .. } if record % 32 != 0 => 0x1b,
            _ => 0,
        }
    }

    /// Moves the first bytes.
    ///
    /// # Safety
    /// Source and target are those that the caller of [`Queue::submit`] vouches for, and that caller still waits.
    unsafe fn move_bytes(&self, bytes: usize) {
        let source = std::ptr::with_exposed_provenance::<u8>(self.source as usize);
        let target = std::ptr::with_exposed_provenance_mut::<u8>(self.target as usize);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
    }

    /// Writes garbage.
    ///
    /// # Safety
    /// As [`Self::move_bytes`].
    unsafe fn spoil(&self) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(self.target as usize).write_bytes(0xdd, self.bytes) };
    }

    /// Writes the record, if its flags ask for one.
    ///
    /// # Safety
    /// As [`Self::move_bytes`]; afterwards the caller no longer waits.
    unsafe fn complete(&self, status: u8, result: u8, bytes: u32) {
        if self.flags & 0xc != 0xc {
            return;
        }
        // SAFETY: a word of a record that waits, by the caller's promise.
        let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(self.record as usize) };
        word.store(u64::from(status) | u64::from(result) << 8 | u64::from(bytes) << 32, Ordering::Release);
    }

    /// Does what `act` says, except for actions that wait until the queue is closed.
    ///
    /// # Safety
    /// As [`Self::complete`].
    unsafe fn execute(&self, act: Act) {
        let (bytes, all) = (self.bytes, self.bytes as u32);
        // SAFETY: the caller's promise.
        unsafe {
            match act {
                Act::Move | Act::Late | Act::Held => {
                    self.move_bytes(bytes);
                    self.complete(1, 0, 0);
                }
                Act::Fault(after) => {
                    self.move_bytes((after as usize).min(bytes));
                    // The uppermost bit: a write has faulted.
                    self.complete(0x83, 0, after.min(all));
                }
                Act::Boast => self.complete(3, 0, all + 1),
                Act::FaultBackwards => self.complete(3, 1, all / 2),
                Act::Fail(status) => {
                    self.spoil();
                    self.complete(status, 0, 0);
                }
                Act::Corrupt => {
                    self.move_bytes(bytes - 1);
                    self.complete(1, 0, 0);
                }
                Act::Lost | Act::Full => unreachable!("nothing of it is executed"),
            }
        }
    }
}

/// The way to a device, and its thread.
type Device = (Sender<(Order, Act)>, JoinHandle<()>);

/// The emulated queue and its device.
pub(super) struct Emulated {
    act: fn(usize) -> Act,
    transfer_bytes_max: usize,
    entries: usize,
    may_block: bool,
    under_way: Arc<AtomicUsize>,
    /// All offered descriptors.
    pub orders: Mutex<Vec<Order>>,
    pub go: Mutex<Sender<()>>,
    device: Mutex<Option<Device>>,
}

impl Emulated {
    /// `act` decides the fate of the n-th offer.
    pub(super) fn start(found: &Found, act: fn(usize) -> Act) -> Self {
        let ((orders, ordered), (go, may_go)) = (channel(), channel());
        let under_way = Arc::new(AtomicUsize::new(0));
        let of_device = under_way.clone();
        let device = std::thread::spawn(move || serve(&ordered, &may_go, &of_device));
        Self {
            act,
            transfer_bytes_max: found.transfer_bytes_max,
            entries: found.entries,
            may_block: found.blocks_on_fault,
            under_way,
            orders: Mutex::default(),
            go: Mutex::new(go),
            device: Mutex::new(Some((orders, device))),
        }
    }
}

/// The device. It ends when the queue is closed, after all that has been ordered.
fn serve(ordered: &Receiver<(Order, Act)>, may_go: &Receiver<()>, under_way: &AtomicUsize) {
    let mut kept = Vec::new();
    for (order, act) in ordered {
        if matches!(act, Act::Late | Act::Lost) {
            kept.push((order, act));
            continue;
        }
        if act == Act::Held {
            // With a limit, because a failing test does not signal.
            let _ = may_go.recv_timeout(LONG);
        }
        under_way.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: its record has not been written.
        unsafe { order.execute(act) };
    }
    for (order, act) in kept {
        // SAFETY: the queue is not closed before this thread has ended, and its record has not been written.
        unsafe { if act == Act::Lost { order.spoil() } else { order.execute(act) } };
    }
}

// SAFETY: `close` waits for the end of the thread, which alone accesses memory.
unsafe impl Queue for Emulated {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submitted {
        let device = self.device.lock().unwrap();
        let Some((orders, _)) = &*device else { return Submitted::Closed };
        // SAFETY: a descriptor is 64 initialised bytes without padding.
        let order = Order::read(unsafe { *(&raw const *descriptor).cast() });
        let mut seen = self.orders.lock().unwrap();
        let mut act = (self.act)(seen.len());
        seen.push(order);
        if act == Act::Full {
            return Submitted::Full;
        }
        let status = order.refusal(self.transfer_bytes_max, self.may_block);
        if status != 0 {
            act = Act::Fail(status);
        }
        // As a dedicated queue, it says nothing of one that it has no room for.
        if self.under_way.fetch_add(1, Ordering::SeqCst) >= self.entries {
            act = Act::Lost;
        }
        orders.send((order, act)).unwrap();
        Submitted::Taken
    }

    fn close(&self) {
        if let Some((orders, device)) = self.device.lock().unwrap().take() {
            drop(orders);
            device.join().unwrap();
        }
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.close();
    }
}

/// A queue of one entry whose portal is a page of memory, and a device that looks at this page: descriptors go by the real `MOVDIR64B`.
pub(super) struct Page {
    queue: WorkQueue,
    device: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
}

impl Page {
    /// `None`: this processor lacks the instruction.
    fn start() -> Option<Self> {
        if !Instructions::of_this_processor().movdir64b {
            farhold_testkit::skipped("this processor has no MOVDIR64B");
            return None;
        }
        let (queue, page) = WorkQueue::of_memory();
        let page = page.expose_provenance();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let device = std::thread::spawn(move || {
            let words = std::ptr::with_exposed_provenance::<[AtomicU64; 8]>(page);
            // SAFETY: the page is unmapped after the end of this thread.
            let words = unsafe { &*words };
            while !stopped.load(Ordering::SeqCst) {
                // The address of the record is never 0. A descriptor comes in one piece.
                if words[1].load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                    continue;
                }
                let order = Order::read(std::array::from_fn(|at| words[at].load(Ordering::SeqCst)));
                for word in words {
                    word.store(0, Ordering::SeqCst);
                }
                let status = order.refusal(1 << 20, false);
                let act = if status == 0 { Act::Move } else { Act::Fail(status) };
                // SAFETY: its record has not been written.
                unsafe { order.execute(act) };
            }
        });
        Some(Self { queue, device: Mutex::new(Some(device)), stop })
    }
}

// SAFETY: `close` waits for the end of the thread, which alone accesses memory.
unsafe impl Queue for Page {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submitted {
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit(descriptor) }
    }

    fn close(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(device) = self.device.lock().unwrap().take() {
            device.join().unwrap();
        }
        self.queue.close();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.close();
    }
}

/// A queue as sysfs might describe it.
pub(super) fn found(entries: usize, transfer_bytes_max: usize) -> Found {
    Found { name: "wq0.0".to_owned(), mode: Mode::Shared, entries, transfer_bytes_max, blocks_on_fault: false }
}

/// A device that answers is never abandoned, however busy the machine of the test is.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// An engine whose emulated device does what `act` says.
pub(super) fn engine(found: &Found, act: fn(usize) -> Act) -> Dsa<Emulated> {
    Dsa::new(Emulated::start(found, act), found, LONG)
}

/// An engine that abandons its device at once.
pub(super) fn impatient(act: fn(usize) -> Act) -> Dsa<Emulated> {
    let found = found(8, 1 << 20);
    Dsa::new(Emulated::start(&found, act), &found, Duration::ZERO)
}

/// Emulated engines for the suite over all engines, by what their devices do.
pub(in crate::mover) fn engines() -> Vec<(&'static str, Box<dyn CopyEngine>)> {
    let by = |act| -> Box<dyn CopyEngine> { Box::new(engine(&found(8, 1 << 20), act)) };
    let short: Box<dyn CopyEngine> = Box::new(engine(&found(8, 4999), |_| Act::Move));
    let mut all = vec![
        ("emulated DSA", by(|_| Act::Move)),
        ("emulated DSA, short transfers", short),
        ("emulated DSA, pages are missing", by(|n| if n % 3 == 0 { Act::Move } else { Act::Fault(n as u32 * 1777) })),
        ("emulated DSA, all pages are missing", by(|_| Act::Fault(0))),
        ("emulated DSA, mostly full", by(|n| if n % 4 == 3 { Act::Move } else { Act::Full })),
        ("emulated DSA, always full", by(|_| Act::Full)),
        ("emulated DSA, errors", by(|n| if n % 2 == 0 { Act::Fail(0x1a) } else { Act::Move })),
        ("emulated DSA, late", Box::new(impatient(|_| Act::Late))),
        ("emulated DSA, lost", Box::new(impatient(|_| Act::Lost))),
    ];
    if let Some(page) = Page::start() {
        all.push(("emulated DSA behind MOVDIR64B", Box::new(Dsa::new(page, &found(1, 1 << 20), LONG))));
    }
    all
}
