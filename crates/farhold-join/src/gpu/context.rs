//! What every step of a device join needs at hand, and the only places that queue work.

use super::device::{Device, GpuError, Grid, Stream};
use super::kernels::{Arguments, Radix, bytes_of};
use super::options::{GpuOptions, Scheme};
use super::plan::Plan;

/// Copies from the host.
pub const COPY: Stream = Stream(0);
/// Kernels of the first pass.
pub const COMPUTE: Stream = Stream(1);

/// One join's device, options and plan.
pub struct Context<'d> {
    pub device: &'d dyn Device,
    pub options: GpuOptions,
    pub plan: Plan,
}

impl Context<'_> {
    /// A launch on all multiprocessors of the plan.
    pub fn grid(&self, shared_bytes: u64) -> Grid {
        Grid { blocks: self.plan.blocks, threads: self.plan.threads, shared_bytes }
    }

    /// The batch of the Linear partitioner (`LINEAR_TUPLES_PER_THREAD` in `linear.cuh`).
    pub fn linear_batch_bytes(&self) -> u64 {
        u64::from(self.plan.threads) * if self.plan.words == 1 { 4 } else { 1 } * self.plan.tuple_bytes
    }

    /// Bits `shift..shift + bits` of the digest that the scheme takes.
    pub fn radix(&self, shift: u32, bits: u32) -> Radix {
        match self.options.scheme {
            Scheme::Perfect { key_min, .. } => Radix { key_min, is_dense: 1, bits, shift, reserved: 0 },
            _ => Radix { key_min: 0, is_dense: 0, bits, shift, reserved: 0 },
        }
    }

    /// Queues a kernel.
    pub fn launch<A: Arguments>(
        &self,
        stream: Stream,
        kernel: &str,
        grid: Grid,
        arguments: &A,
    ) -> Result<(), GpuError> {
        // SAFETY: every address in the arguments is of a `Buffer` or a borrowed relation that the join holds until the device
        // has been quiesced (`Quiesce`), and was asked for with the extent that the kernel's comment gives.
        unsafe { self.device.launch(stream, kernel, grid, bytes_of(arguments)) }
    }

    /// Queues the form of a kernel for the plan's tuple width.
    pub fn launch_wide<A: Arguments>(
        &self,
        stream: Stream,
        kernel: &str,
        grid: Grid,
        arguments: &A,
    ) -> Result<(), GpuError> {
        self.launch(stream, &format!("{kernel}_w{}", self.plan.words), grid, arguments)
    }

    /// Queues a copy.
    pub fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        // SAFETY: as for `launch`: addresses come from `Buffer::at`, which checks extents, or from borrowed slices.
        unsafe { self.device.copy(stream, to, from, bytes) }
    }

    /// Queues a filling.
    pub fn fill(&self, stream: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), GpuError> {
        // SAFETY: as for `launch`.
        unsafe { self.device.fill(stream, at, byte, bytes) }
    }
}

/// Waits for all queued work when dropped, so that no memory goes while the device may use it. Declare it before the first
/// borrowed address is queued and after the inputs; buffers wait on their own release.
pub struct Quiesce<'d>(pub &'d dyn Device);

impl Drop for Quiesce<'_> {
    fn drop(&mut self) {
        self.0.quiesce();
    }
}
