//! The options of a join on a device, as plain data.

/// One side of a join, as columns in host memory.
#[derive(Debug, Clone, Copy)]
pub struct Relation<'a> {
    /// The keys.
    pub keys: &'a [u64],
    /// Payload columns, one after the other, each as long as `keys`: 1, 3 or 7 of them. Without any, the payload is the
    /// row's number.
    pub payloads: &'a [u64],
    /// Whether both lie in pinned memory ([`Place::Host`](super::Place)), so that the device reads them where they are.
    /// Others go through a pinned bounce buffer, which costs a copy by the CPU.
    pub is_pinned: bool,
}

impl Relation<'_> {
    /// The number of tuples.
    pub fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Whether there is no tuple.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Payload words a tuple. None if the columns have different lengths, or no kernels exist for the width.
    pub(super) fn words(&self) -> Option<u32> {
        match self.payloads.len() {
            0 => Some(1),
            len if len % self.keys.len().max(1) != 0 => None,
            len => [1, 3, 7].into_iter().find(|&words| words as usize * self.keys.len() == len),
        }
    }
}

/// The first pass's partitioner (paper, sections 2.2 and 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partitioner {
    /// Every thread writes its tuple at once.
    Standard,
    /// A block sorts a batch by partition, then writes it.
    Linear,
    /// Write-combining buffers in shared memory.
    Shared,
    /// As `Shared`, with second-level buffers in device memory.
    Hierarchical,
}

impl Partitioner {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Standard, Self::Linear, Self::Shared, Self::Hierarchical];

    /// Its name in kernels and figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Linear => "linear",
            Self::Shared => "shared",
            Self::Hierarchical => "hierarchical",
        }
    }
}

/// How the first pass gets its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// The copy engine streams it into a ring in device memory.
    CopyEngine,
    /// Kernels read it from pinned host memory. Inputs that are not pinned go through the copy engine.
    Kernels,
}

/// Where the tuples of each first-pass partition are counted (paper, section 6.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Histogram {
    /// On the device: the keys cross the link once more.
    Device,
    /// On the CPU, by the threads of the run.
    Host,
}

/// How pages of device and host memory become one relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A table of the pages' addresses in device memory, which every flush reads. It works with every driver.
    Directory,
    /// One range of virtual addresses over both kinds of pages (paper, section 5.3, figure 12); a directory where the
    /// driver cannot map them. Mapping costs the driver some microseconds a page, for every relation.
    Mapped,
}

/// How a table finds a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Buckets of chained tuples.
    Chaining,
    /// Open slots.
    Linear,
    /// The key's distance from `key_min` is its slot. Build keys must be unique and lie in `key_min..=key_max`. A
    /// repeated key is refused. A key outside is refused too, unless the last slots, which are rounded up, happen to
    /// hold it.
    Perfect {
        /// The smallest build key.
        key_min: u64,
        /// The largest build key.
        key_max: u64,
    },
}

impl Scheme {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Chaining => "chaining",
            Self::Linear => "linear",
            Self::Perfect { .. } => "perfect",
        }
    }
}

/// Options of a join on a device.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// The partitioner of the first pass.
    pub partitioner: Partitioner,
    /// How the first pass gets its input.
    pub feed: Feed,
    /// Where the first pass counts.
    pub histogram: Histogram,
    /// The layout of the first pass's pages.
    pub layout: Layout,
    /// How tables find keys.
    pub scheme: Scheme,
    /// Whether rows may be wanted, not only their sums: the plan leaves room for them.
    pub materialize: bool,
    /// The most device memory that the join may take in all; none: what is free, less a twentieth.
    pub device_bytes_max: Option<u64>,
    /// The most device memory that caches partitions; none: what the rest of the join leaves.
    pub cache_bytes_max: Option<u64>,
    /// Radix bits of the first pass, 1 to 11; none: as many as the workspace of the second pass needs.
    pub first_bits: Option<u32>,
    /// Multiprocessors to use; none: all.
    pub multiprocessors_max: Option<u32>,
    /// Whether every kernel is timed by events around it. This separates launches that would otherwise follow at once.
    pub profile: bool,
    /// Sizes.
    pub tuning: Tuning,
}

/// Sizes, which tests make small. Not measured on a GPU so far: they are reasoned, not results.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Tuples that the copy engine moves at a time: 64 MiB of keys and payloads keep the link busy for a millisecond, a
    /// hundred times the cost of a launch.
    pub chunk_tuples: u64,
    /// Log2 of the tuples a page of the cache: 2 MiB pages (the device's own) of 16-byte tuples.
    pub page_shift: u32,
    /// The most tuples of one side in a second pass; with two pairs in flight, about 4 GiB at 16 bytes.
    pub piece_tuples_max: u64,
    /// Threads a block.
    pub threads: u32,
    /// Build tuples a table in shared memory (the paper has 2048 entries).
    pub table_tuples: u32,
    /// Probe tuples a task.
    pub probe_tuples_max: u32,
    /// The most rows that one piece may give; otherwise it is cut and repeated.
    pub result_rows_max: u64,
    /// Rows that come back to the host at a time.
    pub rows_host_max: u64,
}

impl Tuning {
    /// Sizes in proportion to the larger side, so that a small join takes little memory. Those of a large join are the
    /// defaults. The emulation takes few threads, each of which is a fiber.
    pub fn for_rows(rows: u64, is_emulation: bool) -> Self {
        let all = Self::default();
        Self {
            chunk_tuples: (rows / 8).clamp(1 << 10, all.chunk_tuples),
            page_shift: (rows / 64).clamp(1 << 6, 1 << all.page_shift).ilog2(),
            result_rows_max: (4 * rows).clamp(1 << 16, all.result_rows_max),
            rows_host_max: (rows / 8).clamp(1 << 10, all.rows_host_max),
            threads: if is_emulation { 64 } else { all.threads },
            ..all
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            chunk_tuples: 4 << 20,
            page_shift: 17,
            piece_tuples_max: 32 << 20,
            threads: 512,
            table_tuples: 2048,
            probe_tuples_max: 32 << 10,
            result_rows_max: 64 << 20,
            rows_host_max: 1 << 20,
        }
    }
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            partitioner: Partitioner::Hierarchical,
            feed: Feed::CopyEngine,
            histogram: Histogram::Device,
            layout: Layout::Directory,
            scheme: Scheme::Chaining,
            materialize: false,
            device_bytes_max: None,
            cache_bytes_max: None,
            first_bits: None,
            multiprocessors_max: None,
            profile: false,
            tuning: Tuning::default(),
        }
    }
}
