//! The data that a device and this process exchange: a descriptor of 64 bytes, and a completion record of 32.
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification (341204), "Descriptor Formats", and `linux/idxd.h`
//! (`struct dsa_hw_desc`, `struct dsa_completion_record`).

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opcode Memory Move.
const MEMORY_MOVE: u32 = 0x03;
/// The device waits for the system where a page is missing. A queue whose `block_on_fault` is off refuses the flag.
pub(super) const BLOCK_ON_FAULT: u32 = 0x0002;
/// The address of the completion record is valid.
const RECORD_ADDRESS_VALID: u32 = 0x0004;
/// A completion record is also written on success.
const REQUEST_RECORD: u32 = 0x0008;
/// Written data goes to the cache, because the mover's caller is about to read it.
const CACHE_CONTROL: u32 = 0x0100;

/// One order to a device.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Descriptor {
    /// The address space. The processor or the device enters that of this process.
    pasid: u32,
    /// 24 bits of flags, then the opcode.
    flags_opcode: u32,
    record: u64,
    source: u64,
    target: u64,
    bytes: u32,
    interrupt: u16,
    reserved: u16,
    of_operation: [u64; 3],
}

const _: () = assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
const _: () = assert!(offset_of!(Descriptor, record) == 8 && offset_of!(Descriptor, source) == 16);
const _: () = assert!(offset_of!(Descriptor, target) == 24 && offset_of!(Descriptor, bytes) == 32);

impl Descriptor {
    /// Copies `bytes` bytes; `flags` is 0 or [`BLOCK_ON_FAULT`]. The addresses are exposed here: the device reads and writes there.
    pub(super) fn memory_move(source: *const u8, target: *mut u8, bytes: u32, record: &Record, flags: u32) -> Self {
        let flags = RECORD_ADDRESS_VALID | REQUEST_RECORD | CACHE_CONTROL | flags;
        Self {
            pasid: 0,
            flags_opcode: MEMORY_MOVE << 24 | flags,
            record: (&raw const *record).expose_provenance() as u64,
            source: source.expose_provenance() as u64,
            target: target.expose_provenance() as u64,
            bytes,
            interrupt: 0,
            reserved: 0,
            of_operation: [0; 3],
        }
    }
}

/// The record in which a device reports how a descriptor ended: status (a byte; 0: not yet), result (a byte), 2 bytes reserved, bytes completed (4 bytes); then
/// the fault's address, and what other operations return.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(super) struct Record([AtomicU64; 4]);

const _: () = assert!(size_of::<Record>() == 32 && align_of::<Record>() == 32);

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All bytes have been copied.
    Done,
    /// A page was missing. This number of bytes has been copied, from the first one on.
    Faulted(u32),
    /// Another status: no byte counts.
    Failed(u8),
}

impl Record {
    /// `None`: not yet. The device writes the record after all bytes of the target, and in one piece.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        /// The uppermost bit says whether the access that faulted was a write.
        const STATUS: u64 = 0x7f;
        let word = self.0[0].load(Ordering::Acquire);
        let (status, result, bytes) = (word & STATUS, word >> 8 & 0xff, (word >> 32) as u32);
        match (status, result) {
            (0x00, _) => None,
            (0x01, _) => Some(Outcome::Done),
            // A result of 1 would say that the last bytes were moved first, as where source and target overlap.
            (0x03, 0) => Some(Outcome::Faulted(bytes)),
            (status, _) => Some(Outcome::Failed(status as u8)),
        }
    }

    /// For a processor that waits for a write to it.
    pub(super) fn address(&self) -> *const u8 {
        (&raw const *self).cast()
    }
}
