//! The memory of nodes: chunks of one node type, never given back while the index lives.
//!
//! ```text
//!  chunks   [0] -> 4 nodes   [1] -> 8 nodes   [2] -> 16 nodes ...       node id = its place in this row
//! ```
//!
//! The memory is type-stable: an address that once held a node holds a node of that type as long as the arena lives. So a reader
//! that follows a stale pointer reads a wrong node, never something else, and the node's version shows it. To read a node, no
//! epoch has to be entered. (Considered and rejected: nodes freed through crossbeam-epoch. They need a pin on every lookup, and a
//! stamp that comes back from another process could not be checked without a table of ids.)
//!
//! Invariants:
//! - A node is either in the tree or on the free list, and on the free list it is locked and empty.
//! - All-zero bytes are a node (fresh chunks come from the zeroing allocator, whose untouched pages cost no memory).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

const FIRST_CHUNK_NODES_LOG2: u32 = 2;
const FIRST_CHUNK_NODES: usize = 1 << FIRST_CHUNK_NODES_LOG2;
/// Four nodes, doubled 28 times: 2^30 nodes, some 2^35 keys, and ids fit in 32 bits.
const CHUNKS: usize = 28;

/// A type that may live in an [`Arena`].
///
/// # Safety
/// All-zero bytes are a valid value, nothing needs dropping, and shared access from several threads is sound.
pub(crate) unsafe trait ArenaNode {}

pub(crate) struct Arena<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
    supply: Mutex<Supply<T>>,
}

struct Supply<T> {
    /// Nodes handed out at least once: ids below this.
    touched: usize,
    free: Vec<NonNull<T>>,
    blocks: Vec<(*mut u8, Layout)>,
}

// SAFETY: the arena owns its blocks and hands out only shared references to nodes, which `ArenaNode` promises may be
// used from several threads at once.
unsafe impl<T: ArenaNode> Send for Arena<T> {}
// SAFETY: as above; the supply is behind a mutex and the chunk table is atomic.
unsafe impl<T: ArenaNode> Sync for Arena<T> {}

impl<T: ArenaNode> Arena<T> {
    pub fn new() -> Self {
        let supply = Supply { touched: 0, free: Vec::new(), blocks: Vec::new() };
        Self { chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS], supply: Mutex::new(supply) }
    }

    /// A node that is in no tree, and the id of its place if this is its first use.
    pub fn take(&self) -> (&T, Option<u32>) {
        let mut supply = self.supply();
        if let Some(node) = supply.free.pop() {
            // SAFETY: only nodes of this arena are on the free list, and they live as long as `self`.
            return (unsafe { node.as_ref() }, None);
        }
        let id = supply.touched;
        let (chunk, offset) = place_of(id);
        assert!(chunk < CHUNKS, "the ordered index is full: {id} nodes");
        let mut base = self.chunks[chunk].load(Acquire);
        if base.is_null() {
            base = supply.new_chunk(FIRST_CHUNK_NODES << chunk);
            self.chunks[chunk].store(base, Release);
        }
        supply.touched += 1;
        // SAFETY: the chunk holds `FIRST_CHUNK_NODES << chunk` zeroed nodes, `place_of` stays below that, zero is a
        // valid node, and the chunk lives as long as `self`.
        let node = unsafe { &*base.add(offset) };
        (node, Some(u32::try_from(id).expect("28 chunks hold fewer than 2^32 nodes")))
    }

    /// Takes back a node that has been unlinked and retired.
    pub fn give_back(&self, node: &T) {
        self.supply().free.push(NonNull::from(node));
    }

    /// The node with this id, if the arena has ever held one there; any number may be asked for.
    pub fn get(&self, id: u64) -> Option<&T> {
        let (chunk, offset) = place_of(u32::try_from(id).ok()? as usize);
        let base = self.chunks.get(chunk)?.load(Acquire);
        // SAFETY: a chunk in the table holds all its nodes, zeroed where not yet handed out, and `place_of` stays
        // inside the chunk.
        (!base.is_null()).then(|| unsafe { &*base.add(offset) })
    }

    /// Every node ever handed out, those on the free list included.
    pub fn nodes(&mut self) -> impl Iterator<Item = &T> {
        let touched = self.supply().touched;
        (0..touched).filter_map(|id| self.get(id as u64))
    }

    pub fn bytes(&self) -> usize {
        self.supply().touched * size_of::<T>()
    }

    /// Nodes in the tree now.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        let supply = self.supply();
        supply.touched - supply.free.len()
    }

    /// The supply is consistent between any two statements of this file, so a poisoned lock is as good as any.
    fn supply(&self) -> MutexGuard<'_, Supply<T>> {
        self.supply.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Supply<T> {
    /// A block for `nodes` nodes and the slack to align them. The system allocator hands out lazily zeroed pages only
    /// for small alignments; asked for 64 it would write the zeros itself and so touch every page of the chunk.
    fn new_chunk(&mut self, nodes: usize) -> *mut T {
        let bytes = nodes.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(align_of::<T>()));
        let layout =
            bytes.and_then(|bytes| Layout::from_size_align(bytes, 8).ok()).expect("a chunk fits the address space");
        // SAFETY: the layout is not empty: `nodes` is at least one and nodes are not zero-sized.
        let block = unsafe { alloc_zeroed(layout) };
        if block.is_null() {
            handle_alloc_error(layout);
        }
        self.blocks.push((block, layout));
        ask_for_huge_pages(block, layout.size());
        let slack = block.align_offset(align_of::<T>());
        // SAFETY: the block is longer than the nodes by one alignment, and `slack` is less than that.
        unsafe { block.add(slack).cast() }
    }
}

impl<T> Drop for Arena<T> {
    fn drop(&mut self) {
        let supply = self.supply.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (block, layout) in supply.blocks.drain(..) {
            // SAFETY: allocated by `new_chunk` with this layout; `&mut self` means no node is borrowed any more, and
            // nodes need no dropping.
            unsafe { dealloc(block, layout) };
        }
    }
}

/// Asks the kernel to back a large block with huge pages: otherwise random lookups in a tree beyond the reach of the TLB miss it
/// at every level. It is a hint; nothing depends on it.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_huge_pages(block: *mut u8, bytes: usize) {
    use std::ffi::{c_int, c_void};
    // From <sys/mman.h>, as in every C library that Rust knows on Linux.
    const MADV_HUGEPAGE: c_int = 14;
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    unsafe extern "C" {
        fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    let start = block.align_offset(HUGE_PAGE_BYTES);
    let whole = bytes.saturating_sub(start) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole > 0 {
        // SAFETY: the range lies in the block just allocated, so the pages are ours; the advice changes how they are
        // backed, not what they hold.
        unsafe { madvise(block.add(start).cast(), whole, MADV_HUGEPAGE) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask_for_huge_pages(_: *mut u8, _: usize) {}

/// Which chunk holds the id-th node, and where in it.
fn place_of(id: usize) -> (usize, usize) {
    let shifted = id + FIRST_CHUNK_NODES;
    let chunk = (shifted.ilog2() - FIRST_CHUNK_NODES_LOG2) as usize;
    (chunk, shifted - (FIRST_CHUNK_NODES << chunk))
}
