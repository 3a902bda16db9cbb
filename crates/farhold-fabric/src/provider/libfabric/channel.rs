//! A channel: one libfabric domain, endpoint and completion queue, and the frames that go through it.
//!
//! ```text
//!   arena   | rx frame 0 | rx frame 1 | ... | tx frame 0 | tx frame 1 | ...
//!   slot      0            1                  rx           rx + 1            ; rx + tx and up: bulk transfers
//! ```
//!
//! A slot is the provider's from posting to completion, and the channel's otherwise. Everything here stays on one thread except
//! [`Registration`]s, which any thread may make and drop (the domain is opened thread-safe).

use crate::error::FabricError;
use crate::memory::RegionMemory;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a frame: what `ofi_rxm` still copies eagerly (its buffers have 16 KiB), with its own header; an object of 8 KiB
/// and eight large ones' headers fit.
pub(super) const FRAME_BYTES: usize = (16 << 10) - 512;
const COMPLETIONS_MAX: usize = 16;
/// The tag of frames of the channel's earlier owner. It is no session's tag: it would be of node 255, and not a stranger's.
const NOBODY: u64 = 0xffff_ffff_7fff_ffff;
const NAME_BYTES_MAX: usize = 256;
const AGAIN: i64 = -(libc::EAGAIN as i64);

#[repr(C)]
struct Options {
    provider: *const c_char,
    address: *const c_char,
    arena: *mut u8,
    frame_bytes: u64,
    rx: u32,
    tx: u32,
    rma: u32,
    wants_rma: u32,
    wants_wait: u32,
}

#[repr(C)]
struct RawTraits {
    provider: [u8; 64],
    mr_mode: u64,
    max_msg_size: u64,
    has_rma: u32,
    has_wait: u32,
    wants_local_mr: u32,
    api_version: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completion {
    slot: u32,
    error: i32,
    len: u64,
}

#[repr(C)]
struct RawRegion {
    mr: *mut c_void,
    key: u64,
    base: u64,
}

// Layouts that shim.c has too.
const _: () = assert!(size_of::<Options>() == 56 && size_of::<RawTraits>() == 96);
const _: () = assert!(size_of::<Completion>() == 16 && size_of::<RawRegion>() == 24);

#[repr(C)]
#[derive(Clone, Copy)]
struct RawFound {
    provider: [u8; 64],
    has_rma: u32,
    has_atomics: u32,
}
const _: () = assert!(size_of::<RawFound>() == 72);
const FOUND_MAX: usize = 32;

unsafe extern "C" {
    fn farhold_found(found: *mut RawFound, count_max: u32, version: *mut u32) -> c_int;
    fn farhold_provider_exists(provider: *const c_char) -> c_int;
    fn farhold_open(
        options: *const Options,
        opened: *mut *mut c_void,
        traits: *mut RawTraits,
        failed: *mut *const c_char,
    ) -> c_int;
    fn farhold_close(channel: *mut c_void);
    fn farhold_name(channel: *mut c_void, name: *mut u8, len: *mut usize) -> c_int;
    fn farhold_meet(channel: *mut c_void, name: *const u8, peer: *mut u64) -> c_int;
    fn farhold_forget(channel: *mut c_void, peer: u64) -> c_int;
    fn farhold_recv(channel: *mut c_void, slot: u32) -> i64;
    fn farhold_send(channel: *mut c_void, slot: u32, len: u64, peer: u64) -> i64;
    fn farhold_rma(
        channel: *mut c_void,
        is_write: c_int,
        slot: u32,
        local: *mut u8,
        len: u64,
        local_mr: *mut c_void,
        peer: u64,
        remote: u64,
        key: u64,
    ) -> i64;
    fn farhold_register(
        channel: *mut c_void,
        memory: *mut u8,
        len: u64,
        wanted_key: u64,
        peers_read: c_int,
        peers_write: c_int,
        region: *mut RawRegion,
    ) -> c_int;
    fn farhold_unregister(mr: *mut c_void) -> c_int;
    fn farhold_poll(channel: *mut c_void, completions: *mut Completion) -> i64;
    fn farhold_wait(channel: *mut c_void, bell: c_int, timeout: *const libc::timespec);
    fn farhold_reason(error: c_int) -> *const c_char;
}

/// The system's words for an error of libfabric.
fn reason(error: i64) -> String {
    // SAFETY: libfabric returns a constant string for every number.
    unsafe { CStr::from_ptr(farhold_reason(error as c_int)) }.to_string_lossy().into_owned()
}

fn failure(provider: &str, call: &str, reason: &str) -> FabricError {
    FabricError::unfit_provider(provider, format!("{call} failed: {reason}"))
}

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

/// The objects of libfabric, and the frames: closed together.
struct Raw {
    channel: NonNull<c_void>,
    arena: Arena,
}

// SAFETY: the domain is opened FI_THREAD_SAFE, and the only calls made through a shared `Raw` from other threads are
// registering and unregistering memory; the arena is touched by the `Channel`'s thread alone.
unsafe impl Send for Raw {}
// SAFETY: as for `Send`.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: opened by `farhold_open`, closed once; registrations hold this value, so none is left.
        unsafe { farhold_close(self.channel.as_ptr()) }
    }
}

/// Zeroed, page-aligned memory that the provider reads and writes.
struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

impl Arena {
    fn new(bytes: usize) -> Result<Self, FabricError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(FabricError::io(
                "map memory for",
                "the frames of an endpoint",
                &std::io::Error::last_os_error(),
            ));
        }
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED"), bytes })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by `new`; the endpoint that used it is closed (field order and `Raw::drop`).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that peers may read and write, or that this channel's own bulk transfers use, until dropped.
pub(super) struct Registration {
    mr: NonNull<c_void>,
    /// What a peer must present.
    pub key: u64,
    /// The remote address of its first byte.
    pub base: u64,
    _raw: Arc<Raw>,
    /// Keeps the bytes mapped.
    memory: Option<Arc<RegionMemory>>,
}

// SAFETY: closing a registration is a thread-safe call on a domain opened FI_THREAD_SAFE.
unsafe impl Send for Registration {}
// SAFETY: a shared registration is two numbers.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `farhold_register`, closed once, and its domain lives in `_raw`.
        unsafe { farhold_unregister(self.mr.as_ptr()) };
    }
}

/// Registers memory from any thread.
#[derive(Clone)]
pub(super) struct Registrar(Arc<Raw>);

impl Registrar {
    /// Opens a region to peers that present a key: `wanted_key` if the provider permits a choice.
    pub fn open_to_peers(
        &self,
        memory: &Arc<RegionMemory>,
        wanted_key: u64,
        can_write: bool,
    ) -> Result<Registration, FabricError> {
        let base = memory.word(0)?.as_ptr().cast();
        // An admitted transfer may be at work after the registration's end.
        memory.keep_addresses();
        let access = if can_write { Access::PeersWrite } else { Access::PeersRead };
        // SAFETY: the registration holds the mapping, which is that long.
        let mut made = unsafe { register(&self.0, base, memory.len(), wanted_key, access)? };
        made.memory = Some(memory.clone());
        Ok(made)
    }
}

/// The users of registered memory, and their rights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Transfers of this channel.
    Own,
    PeersRead,
    /// And read.
    PeersWrite,
}

/// # Safety
/// `memory` points to `len` bytes that stay where they are until the registration is dropped.
unsafe fn register(
    raw: &Arc<Raw>,
    memory: *mut u8,
    len: u64,
    wanted_key: u64,
    access: Access,
) -> Result<Registration, FabricError> {
    let mut region = RawRegion { mr: std::ptr::null_mut(), key: 0, base: 0 };
    let (reads, writes) = (c_int::from(access != Access::Own), c_int::from(access == Access::PeersWrite));
    // SAFETY: the channel is open as long as `raw`; the memory is as the caller promises; `region` is ours.
    let done =
        unsafe { farhold_register(raw.channel.as_ptr(), memory, len, wanted_key, reads, writes, &raw mut region) };
    let mr = NonNull::new(region.mr).filter(|_| done >= 0);
    let mr = mr.ok_or_else(|| failure("libfabric", "register memory", &reason(done.into())))?;
    Ok(Registration { mr, key: region.key, base: region.base, _raw: raw.clone(), memory: None })
}

/// A destination, by libfabric's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer(u64);

#[cfg(test)]
impl Peer {
    /// For tests that send nothing.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// Where a bulk transfer goes, in the terms of the peer's registration.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BulkTarget {
    pub remote: u64,
    pub key: u64,
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

/// Channels of libfabric's `shm` that are not in use any more. Its endpoints of one process reach into each other's memory (seen
/// in 1.17), so closing one harms the others: they are kept, and used again. It also does not survive the removal of a peer while
/// something for that peer is under way: peers are removed only when the table, of 256, gets full.
static KEPT: Mutex<Vec<Open>> = Mutex::new(Vec::new());
const NEVER_CLOSED: &str = "shm";
/// See [`Traits::stops_writes`].
const STOP_WRITES: [&str; 2] = ["shm", "verbs"];
const PEERS_MAX: usize = 200;
/// The segments that never closed channels leave in /dev/shm, 16 MiB each: libfabric 1.17 does not clean up when the process
/// ends.
static SEGMENTS: Mutex<Vec<CString>> = Mutex::new(Vec::new());

extern "C" fn remove_segments() {
    for segment in SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // SAFETY: a terminated string; peers keep the mappings that they have.
        unsafe { libc::shm_unlink(segment.as_ptr()) };
    }
}

/// Registers the removal of a channel's segment at the end of the process.
fn remove_at_end(name: &[u8]) {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let Ok(segment) = CString::new(name.rsplit('/').next().unwrap_or_default()) else { return };
    let mut segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if segments.is_empty() {
        // SAFETY: the function needs nothing that is gone at the end of a process.
        unsafe { libc::atexit(remove_segments) };
    }
    segments.push(segment);
}

#[cfg(test)]
thread_local! {
    /// Frames that this thread has sent, for tests that check what travels together.
    pub(super) static FRAMES_SENT: Cell<u64> = const { Cell::new(0) };
}

/// How long a channel that is given up may take to send what it has.
const DRAIN_TURNS_MAX: u32 = 10_000;

// SAFETY: a channel may move to the thread that will use it; it holds no thread's own things.
unsafe impl Send for Channel {}

/// A provider that this machine has, with reliable messages in order.
pub(super) struct Found {
    pub provider: String,
    pub has_rma: bool,
    pub has_atomics: bool,
}

/// libfabric's version (major in the upper half), and what it offers here, by name.
pub(super) fn found() -> (u32, Vec<Found>) {
    let mut raw = [RawFound { provider: [0; 64], has_rma: 0, has_atomics: 0 }; FOUND_MAX];
    let mut version = 0;
    // SAFETY: there is room for FOUND_MAX.
    let count = unsafe { farhold_found(raw.as_mut_ptr(), FOUND_MAX as u32, &raw mut version) };
    let read = |raw: &RawFound| Found {
        provider: text_of(&raw.provider),
        has_rma: raw.has_rma != 0,
        has_atomics: raw.has_atomics != 0,
    };
    let mut found: Vec<Found> = raw[..usize::try_from(count).unwrap_or(0)].iter().map(read).collect();
    found.sort_by(|a, b| a.provider.cmp(&b.provider));
    (version, found)
}

/// A terminated string in an array.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Whether libfabric knows a provider of this name, whatever its capabilities.
fn provider_exists(provider: &CStr) -> bool {
    // SAFETY: a terminated string that lives through the call.
    unsafe { farhold_provider_exists(provider.as_ptr()) != 0 }
}

impl Channel {
    /// Opens a channel of a provider, bound to a local address if the provider has local addresses.
    pub fn open(provider: &str, address: Option<&str>, size: Size, wants_wait: bool) -> Result<Self, FabricError> {
        if provider == NEVER_CLOSED {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = kept.iter().position(|open| open.size == size) {
                return Ok(Self::of(kept.swap_remove(at)));
            }
        }
        if provider.is_empty() {
            return Err(FabricError::unfit_provider(provider, "there is none of this name"));
        }
        let c_string = |text: &str| {
            CString::new(text).map_err(|_| FabricError::unfit_provider(provider, "there is none of this name"))
        };
        let (name, local) = (c_string(provider)?, address.map(c_string).transpose()?);
        let arena = Arena::new(FRAME_BYTES * (size.rx + size.tx) as usize)?;
        let options = Options {
            provider: name.as_ptr(),
            address: local.as_ref().map_or(std::ptr::null(), |local| local.as_ptr()),
            arena: arena.base.as_ptr(),
            frame_bytes: FRAME_BYTES as u64,
            rx: size.rx,
            tx: size.tx,
            rma: size.bulk,
            wants_rma: 1,
            wants_wait: u32::from(wants_wait),
        };
        let (mut channel, mut failed) = (std::ptr::null_mut(), c"open".as_ptr());
        // SAFETY: all-zero bytes are a valid `RawTraits`.
        let mut traits: RawTraits = unsafe { std::mem::zeroed() };
        // SAFETY: all pointers are valid through the call; the arena outlives the channel, in `Raw`.
        let done = unsafe { farhold_open(&raw const options, &raw mut channel, &raw mut traits, &raw mut failed) };
        if done < 0 {
            if done == -libc::ENODATA {
                return Err(if provider_exists(&name) {
                    FabricError::unfit_provider(
                        provider,
                        "it has no reliable datagrams with messages in order (FI_EP_RDM, FI_MSG, FI_ORDER_SAS)"
                            .to_owned(),
                    )
                } else {
                    FabricError::unfit_provider(provider, "there is none of this name")
                });
            }
            // SAFETY: a constant string of the shim.
            let call = unsafe { CStr::from_ptr(failed) }.to_string_lossy();
            let call = call.split('(').next().unwrap_or_default().to_owned();
            return Err(failure(provider, &call, &reason(done.into())));
        }
        let raw = Arc::new(Raw { channel: NonNull::new(channel).expect("opened"), arena });
        let full_name = text_of(&traits.provider);
        let channel = Self::of(Open {
            size,
            traits: Traits {
                stops_writes: STOP_WRITES.iter().any(|name| full_name.split(';').next() == Some(name)),
                provider: full_name,
                has_rma: traits.has_rma != 0,
                has_wait: traits.has_wait != 0,
                wants_local_registration: traits.wants_local_mr != 0,
                transfer_bytes_max: traits.max_msg_size,
            },
            free_tx: RefCell::new((size.rx..size.rx + size.tx).rev().collect()),
            free_bulk: RefCell::new((size.rx + size.tx..size.rx + size.tx + size.bulk).rev().collect()),
            sending: Cell::new(0),
            tags: RefCell::new(vec![None; size.tx as usize]),
            unposted: RefCell::new((0..size.rx).collect()),
            peers: RefCell::default(),
            forgotten: RefCell::default(),
            raw,
        });
        if channel.is_never_closed() {
            remove_at_end(&channel.name()?);
        }
        channel.post_receives();
        if channel.open.unposted.borrow().len() == size.rx as usize {
            return Err(FabricError::unfit_provider(provider, "it takes no buffers to receive into"));
        }
        Ok(channel)
    }

    fn of(open: Open) -> Self {
        Self { open, _not_sync: PhantomData }
    }

    pub fn traits(&self) -> &Traits {
        &self.open.traits
    }

    pub fn registrar(&self) -> Registrar {
        Registrar(self.open.raw.clone())
    }

    /// What peers must know to send here.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let (mut name, mut len) = (vec![0; NAME_BYTES_MAX], NAME_BYTES_MAX);
        // SAFETY: `name` has `len` bytes.
        let done = unsafe { farhold_name(self.open.raw.channel.as_ptr(), name.as_mut_ptr(), &raw mut len) };
        if done < 0 {
            return Err(failure(&self.open.traits.provider, "fi_getname", &reason(done.into())));
        }
        name.truncate(len);
        Ok(name)
    }

    /// Learns a peer by its name. No connection is made before the first frame.
    pub fn meet(&self, name: &[u8]) -> Result<Peer, FabricError> {
        if !self.is_never_closed() {
            return self.insert(name);
        }
        if let Some(known) = self.open.peers.borrow().get(name) {
            self.open.forgotten.borrow_mut().retain(|forgotten| forgotten != name);
            return Ok(*known);
        }
        if self.open.peers.borrow().len() >= PEERS_MAX {
            let oldest = self.open.forgotten.borrow_mut().pop_front();
            let peer = oldest.and_then(|name| self.open.peers.borrow_mut().remove(&name));
            if let Some(peer) = peer {
                self.remove(peer);
            }
        }
        let peer = self.insert(name)?;
        self.open.peers.borrow_mut().insert(name.to_vec(), peer);
        Ok(peer)
    }

    /// Ends the use of a peer.
    pub fn forget(&self, peer: Peer) {
        if !self.is_never_closed() {
            return self.remove(peer);
        }
        let peers = self.open.peers.borrow();
        let name = peers.iter().find(|(_, known)| **known == peer).map(|(name, _)| name.clone());
        self.open.forgotten.borrow_mut().extend(name);
    }

    /// Whether it goes on after its end, with what is under way.
    pub fn is_never_closed(&self) -> bool {
        self.open.traits.provider == NEVER_CLOSED
    }

    fn insert(&self, name: &[u8]) -> Result<Peer, FabricError> {
        // Longer than any address format, zeroed behind the name: the provider reads as much as its format has.
        let mut padded = [0; NAME_BYTES_MAX];
        let len = name.len().min(NAME_BYTES_MAX - 1);
        padded[..len].copy_from_slice(&name[..len]);
        let mut peer = 0;
        // SAFETY: `padded` is longer than every address of every provider, and a terminated string if it is one.
        let done = unsafe { farhold_meet(self.open.raw.channel.as_ptr(), padded.as_ptr(), &raw mut peer) };
        if done < 0 {
            return Err(failure(&self.open.traits.provider, "fi_av_insert", &reason(done.into())));
        }
        Ok(Peer(peer))
    }

    fn remove(&self, peer: Peer) {
        // SAFETY: a peer that `insert` gave; one that is known no more is an error, not a danger.
        unsafe { farhold_forget(self.open.raw.channel.as_ptr(), peer.0) };
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

    /// Starts a bulk transfer; its end is an [`Event::Bulk`].
    ///
    /// # Safety
    /// `local` points to `len` bytes that stay where they are. No other code writes them (for a write) or touches them (for a
    /// read) until the event has come or the channel is dropped. For a channel that [is never closed](Self::is_never_closed),
    /// only the event counts.
    pub unsafe fn bulk(
        &self,
        is_write: bool,
        local: *mut u8,
        len: u64,
        registration: Option<&Registration>,
        peer: Peer,
        target: BulkTarget,
    ) -> Result<u32, Refusal> {
        let slot = self.open.free_bulk.borrow_mut().pop().ok_or(Refusal::Again)?;
        let mr = registration.map_or(std::ptr::null_mut(), |it| it.mr.as_ptr());
        // SAFETY: the slot was free; the memory is as the caller promises; the rest are numbers that the peer checks.
        let done = unsafe {
            let BulkTarget { remote, key } = target;
            farhold_rma(
                self.open.raw.channel.as_ptr(),
                c_int::from(is_write),
                slot,
                local,
                len,
                mr,
                peer.0,
                remote,
                key,
            )
        };
        if done < 0 {
            self.open.free_bulk.borrow_mut().push(slot);
            return Err(if done == AGAIN { Refusal::Again } else { Refusal::Broken });
        }
        Ok(slot)
    }

    /// Registers local memory for bulk transfers, if the provider requires it.
    ///
    /// # Safety
    /// `memory` points to `len` bytes that stay where they are until the registration is dropped.
    pub unsafe fn register_local(&self, memory: *mut u8, len: u64) -> Result<Option<Registration>, FabricError> {
        if !self.open.traits.wants_local_registration {
            return Ok(None);
        }
        // SAFETY: the caller promises the same.
        unsafe { register(&self.open.raw, memory, len, 0, Access::Own).map(Some) }
    }

    /// Makes progress and hands out what happened. True: something did.
    pub fn poll(&self, mut take: impl FnMut(Event<'_>)) -> bool {
        let mut completions = [Completion::default(); COMPLETIONS_MAX];
        // SAFETY: there is room for COMPLETIONS_MAX.
        let count = unsafe { farhold_poll(self.open.raw.channel.as_ptr(), completions.as_mut_ptr()) };
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

    /// Sleeps until there may be something to poll for, the bell rings, or the time is over. If the provider has no wait, only
    /// the last two.
    pub fn wait(&self, bell: &Bell, timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        // SAFETY: an open descriptor and a time that lives through the call.
        unsafe { farhold_wait(self.open.raw.channel.as_ptr(), bell.0, &raw const timeout) };
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.is_never_closed() {
            return;
        }
        for _ in 0..DRAIN_TURNS_MAX {
            if !self.is_sending() {
                break;
            }
            self.poll(|_| {});
            std::thread::yield_now();
        }
        let Open { raw, size, traits, .. } = &self.open;
        let peers = self.open.peers.take();
        let open = Open {
            raw: raw.clone(),
            size: *size,
            traits: traits.clone(),
            free_tx: RefCell::new(self.open.free_tx.take()),
            free_bulk: RefCell::new(self.open.free_bulk.take()),
            // What was not drained ends when the channel is used again.
            sending: Cell::new(self.open.sending.get()),
            // What was under way may still fail while the channel has its next owner, to whom the failure means nothing.
            tags: RefCell::new(self.open.tags.take().into_iter().map(|tag| tag.and(Some(NOBODY))).collect()),
            unposted: RefCell::new(self.open.unposted.take()),
            forgotten: RefCell::new(peers.keys().cloned().collect()),
            peers: RefCell::new(peers),
        };
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }
}

/// Wakes a thread from [`Channel::wait`], which silences it: an eventfd.
pub(super) struct Bell(c_int);

impl Bell {
    pub fn new() -> Result<Self, FabricError> {
        // SAFETY: makes a descriptor, touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(FabricError::io("make", "an eventfd", &std::io::Error::last_os_error()));
        }
        Ok(Self(fd))
    }

    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: an open descriptor and 8 bytes.
        unsafe { libc::write(self.0, (&raw const one).cast(), 8) };
    }

    /// Would a wait end at once?
    #[cfg(test)]
    fn is_rung(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives through the call.
        unsafe { libc::poll(&raw mut fd, 1, 0) > 0 }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: opened by `new`, closed once.
        unsafe { libc::close(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a bell that stayed rung made the home agent look without a pause from its first ring on.
    #[test]
    fn a_wait_silences_the_bell() {
        for provider in ["tcp;ofi_rxm", "shm"] {
            let address = (provider != NEVER_CLOSED).then_some("127.0.0.1");
            let channel = Channel::open(provider, address, Size { rx: 8, tx: 8, bulk: 0 }, true).unwrap();
            let bell = Bell::new().unwrap();
            bell.ring();
            bell.ring();
            // Other reasons than the bell may end a wait.
            for _ in 0..100 {
                if bell.is_rung() {
                    channel.wait(&bell, Duration::from_mins(1));
                }
            }
            assert!(!bell.is_rung(), "{provider}");
            bell.ring();
            assert!(bell.is_rung(), "and it rings again");
        }
    }
}
