//! The arguments of each kernel: the layouts of `kernels/arguments.h`, word for word. Both sides assert the sizes.

/// Rows in one piece (`pages` = 0) or in pages of `2^page_shift` tuples.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Rows {
    pub base: u64,
    pub pages: u64,
    pub page_shift: u32,
    pub reserved: u32,
}

/// The bits of a key's digest that give its partition.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Radix {
    pub key_min: u64,
    pub is_dense: u32,
    pub bits: u32,
    pub shift: u32,
    pub reserved: u32,
}

impl Radix {
    /// The bijection from which kernels take their radix bits (`mix` in `tuple.cuh`).
    fn digest(&self, key: u64) -> u64 {
        if self.is_dense != 0 {
            return key.wrapping_sub(self.key_min);
        }
        const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
        let key = (key ^ key >> 32).wrapping_mul(MULTIPLIER);
        let key = (key ^ key >> 32).wrapping_mul(MULTIPLIER);
        key ^ key >> 32
    }

    /// The partition of a key, as the kernels compute it.
    pub fn partition(&self, key: u64) -> usize {
        (self.digest(key) >> self.shift & ((1 << self.bits) - 1)) as usize
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Source {
    pub keys: u64,
    pub payloads: u64,
    pub payload_stride: u64,
    pub rows: Rows,
    pub first: u64,
    pub count: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct HistogramArguments {
    pub source: Source,
    pub radix: Radix,
    pub counts: u64,
    pub replicas: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefixSumArguments {
    pub counts: u64,
    pub begins: u64,
    pub fronts: u64,
    pub backs: u64,
    pub partitions: u32,
    pub align_tuples: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PartitionArguments {
    pub source: Source,
    pub radix: Radix,
    pub out: Rows,
    pub fronts: u64,
    pub backs: u64,
    pub second_level: u64,
    pub second_level_state: u64,
    pub buffer_tuples: u32,
    pub second_level_tuples: u32,
    pub resume: u32,
    pub keep: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ScheduleArguments {
    pub build_begins: u64,
    pub build_counts: u64,
    pub probe_begins: u64,
    pub probe_counts: u64,
    pub tasks: u64,
    pub task_count: u64,
    pub partitions: u32,
    pub task_capacity: u32,
    pub table_tuples: u32,
    pub probe_tuples_max: u32,
}

/// Bytes of a `JoinTask`.
pub const TASK_BYTES: u64 = 24;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct JoinAggregate {
    pub matches: u64,
    pub build_sum: u64,
    pub probe_sum: u64,
    pub refused: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct JoinArguments {
    pub build: Rows,
    pub probe: Rows,
    pub tasks: u64,
    pub task_count: u64,
    pub next_task: u64,
    pub aggregate: u64,
    pub rows: u64,
    pub rows_cursor: u64,
    pub rows_capacity: u64,
    pub radix: Radix,
    pub table_tuples: u32,
    pub table_slots: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TableArguments {
    pub source: Source,
    pub radix: Radix,
    pub keys: u64,
    pub payloads: u64,
    pub slots: u64,
    pub spare: u64,
    pub spare_count: u64,
    pub spare_capacity: u64,
    pub aggregate: u64,
    pub rows: u64,
    pub rows_cursor: u64,
    pub rows_capacity: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct AccessArguments {
    pub at: u64,
    pub bytes: u64,
    pub accesses: u64,
    pub granularity_bytes: u32,
    pub misalign_bytes: u32,
    pub is_sequential: u32,
    pub reserved: u32,
    pub sink: u64,
}

/// A structure that a kernel takes by value: plain words, no padding.
///
/// # Safety
/// The type is `repr(C)` and every byte of it is initialised.
pub unsafe trait Arguments: Copy {}

macro_rules! arguments {
    ($($name:ident: $bytes:literal),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: repr(C), words and word pairs only, and the size asserted above is the sum of its fields.
        unsafe impl Arguments for $name {}
    )*};
}

arguments! {
    HistogramArguments: 104,
    PrefixSumArguments: 40,
    PartitionArguments: 160,
    ScheduleArguments: 64,
    JoinArguments: 136,
    TableArguments: 168,
    AccessArguments: 48,
}
const _: () = assert!(size_of::<Rows>() == 24 && size_of::<Radix>() == 24 && size_of::<Source>() == 64);
const _: () = assert!(size_of::<JoinAggregate>() == 32);

/// The bytes of a kernel's arguments.
pub fn bytes_of<A: Arguments>(arguments: &A) -> &[u8] {
    // SAFETY: by the trait's contract all bytes are initialised; the borrow keeps them alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(arguments).cast(), size_of::<A>()) }
}
