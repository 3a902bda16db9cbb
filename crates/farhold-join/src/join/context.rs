//! What all parts of a join share: its columns, its sizes, its memory.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;

use super::resident::ONE_BLOCK_BYTES_MAX;
use crate::blocks::batch_of;
use crate::cost::{Machine, no_gpu_wanted};
use crate::keys::{Encoder, encoders};
use crate::memory::{BUDGET_BYTES_MIN, Reservation};
use crate::model::Width;
use crate::spec::Origin;
use crate::{Above, CancelToken, Devices, JoinError, JoinOptions, JoinSpec, MemoryPool, Run};

/// The part of a join that does not change while it runs.
pub(crate) struct Context {
    pub spec: JoinSpec,
    pub options: JoinOptions,
    pub schema: SchemaRef,
    pub outputs: Outputs,
    pub build_keys: Encoder,
    pub probe_keys: Encoder,
    pub sizes: Sizes,
    pub machine: Machine,
    pub probe_width: Width,
    /// The run of a probe: one thread for a share among others, all threads for the only one.
    pub probe_run: Run,
}

/// The wanted columns of each side, and where in the output they go.
pub(crate) struct Outputs {
    build: Vec<usize>,
    probe: Vec<usize>,
    /// For each column of the output, its position among the build side's columns, the probe side's and the mark.
    order: Vec<usize>,
}

impl Outputs {
    fn new(spec: &JoinSpec) -> Self {
        let (mut build, mut probe) = (Vec::new(), Vec::new());
        let origins = spec.output_columns();
        for origin in &origins {
            match *origin {
                Origin::Build(column) => build.push(column),
                Origin::Probe(column) => probe.push(column),
                Origin::Mark => {}
            }
        }
        let (mut next_build, mut next_probe) = (0..build.len(), build.len()..build.len() + probe.len());
        let mark = build.len() + probe.len();
        let order = origins.iter().map(|origin| match origin {
            Origin::Build(_) => next_build.next(),
            Origin::Probe(_) => next_probe.next(),
            Origin::Mark => None,
        });
        let order = order.map(|place| place.unwrap_or(mark)).collect();
        Self { build, probe, order }
    }

    pub fn build(&self) -> impl Iterator<Item = usize> + '_ {
        self.build.iter().copied()
    }

    pub fn probe(&self) -> impl Iterator<Item = usize> + '_ {
        self.probe.iter().copied()
    }
}

/// Sizes in proportion to the budget, or, where each thread has its own, to the thread's part.
pub(crate) struct Sizes {
    /// Incoming batches are cut into slices of about this size.
    pub slice_bytes: u64,
    /// The size of a write to a file.
    pub chunk_bytes: u64,
    /// The size of batches in which the table's rows are kept.
    pub block_bytes: u64,
    pub fan_out_bits: u32,
    pub bloom_bytes: u64,
    /// The most bytes of build rows that are distributed together, and also of their copies.
    pub group_bytes: u64,
    /// The most bytes of probe rows that each thread distributes together.
    pub gather_bytes: u64,
    pub probe_room_bytes: u64,
    /// Slices, copies of them, batches read ahead, and file buffers. They are not reserved one by one.
    pub in_flight_bytes: u64,
}

impl Sizes {
    pub(super) fn new(pool: &MemoryPool, threads: usize) -> Self {
        let budget = pool.limit();
        let fan_out_bits = if budget >= 64 << 20 {
            5
        } else if budget >= 8 << 20 {
            4
        } else {
            3
        };
        // Pairs that several threads read back should each fit in a part of the memory.
        let fan_out_bits = fan_out_bits + u32::from(threads > 1 && !pool.gives_back());
        let part = budget / threads as u64;
        let slice_bytes = (part / 64).clamp(16 << 10, 4 << 20);
        let chunk_bytes = (part / 64).clamp(16 << 10, 1 << 20);
        Self {
            slice_bytes,
            chunk_bytes,
            block_bytes: (budget / 32).clamp(16 << 10, 16 << 20),
            fan_out_bits,
            bloom_bytes: (budget / 32).max(8 << fan_out_bits),
            // A single thread often runs one of several joins of a pool.
            group_bytes: (budget / if threads > 1 { 16 } else { 64 }).min(ONE_BLOCK_BYTES_MAX),
            gather_bytes: (part / 16).min(ONE_BLOCK_BYTES_MAX),
            probe_room_bytes: budget / 8,
            in_flight_bytes: 3 * slice_bytes + 2 * chunk_bytes + (8 << 10 << fan_out_bits),
        }
    }

    /// The part of the bytes in flight for which the floor has room.
    pub(super) fn in_flight_reserved(&self) -> u64 {
        self.in_flight_bytes.min(BUDGET_BYTES_MIN / 2)
    }
}

impl Context {
    pub(super) fn new(spec: JoinSpec, options: JoinOptions) -> Result<Self, JoinError> {
        let [build_keys, probe_keys] = encoders(&spec, options.run.seed)?;
        let machine = Machine { budget_bytes: options.pool.limit(), ..Machine::detect() };
        let machine = match options.devices {
            Devices::Cpu => Machine { gpu: no_gpu_wanted, ..machine },
            Devices::Any => machine,
        };
        let probe_run =
            Run { threads: if options.shares > 1 { 1 } else { options.run.threads }, ..options.run.clone() };
        Ok(Self {
            probe_width: Width::of(spec.probe_columns_of_pairs()),
            probe_run,
            schema: spec.output_schema(),
            outputs: Outputs::new(&spec),
            sizes: Sizes::new(&options.pool, options.run.threads),
            spec,
            options,
            build_keys,
            probe_keys,
            machine,
        })
    }

    /// The same join on one thread, within one of `parts` parts of the memory, which it takes from `above`.
    pub(super) fn part(&self, parts: u64, above: Box<dyn Above>, cancel: CancelToken) -> Result<Self, JoinError> {
        let options = JoinOptions {
            run: Run { threads: 1, cancel, ..self.options.run.clone() },
            pool: MemoryPool::below(above, self.options.pool.limit() / parts),
            on_progress: None,
            shares: 1,
            ..self.options.clone()
        };
        Self::new(self.spec.clone(), options)
    }

    /// Reserves the floor, and takes from it what is in flight.
    pub(super) fn reserve(&self) -> Result<Reservation, JoinError> {
        let mut memory = Reservation::new(&self.options.pool, BUDGET_BYTES_MIN)?;
        if !memory.try_grow(self.sizes.in_flight_reserved()) {
            return Err(JoinError::OutOfMemory { wanted_bytes: self.sizes.in_flight_bytes });
        }
        Ok(memory)
    }

    /// A batch of the output. `columns` are the build side's wanted ones, the probe side's, and the mark.
    pub fn output_of(&self, columns: impl Iterator<Item = ArrayRef>, rows: usize) -> Result<RecordBatch, JoinError> {
        let columns: Vec<ArrayRef> = columns.collect();
        let ordered = self.outputs.order.iter().map(|&place| columns[place].clone()).collect();
        batch_of(&self.schema, ordered, rows)
    }

    /// The number of rows of an output batch whose rows have at most this many bytes.
    pub fn batch_rows(&self, row_bytes: usize) -> usize {
        let bytes = self.options.batch_bytes_max.min(i32::MAX as usize);
        self.options.batch_rows_max.min(bytes / row_bytes.max(1)).max(1)
    }
}
