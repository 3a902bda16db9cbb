//! The objects that every step of a device join needs, and the only places that queue work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Wanted;
use super::device::{Device, Event, GpuError, Grid, Stream};
use super::kernels::{Arguments, Radix, bytes_of};
use super::options::{GpuOptions, Scheme};
use super::plan::Plan;
use crate::Run;

/// The stream of copies from the host.
pub const COPY: Stream = Stream(0);
/// The stream of kernels of the first pass.
pub const COMPUTE: Stream = Stream(1);

/// The part of a join that does not change between its turns.
#[derive(Clone)]
pub struct Setup {
    pub device: Arc<dyn Device>,
    pub options: GpuOptions,
    pub plan: Plan,
}

impl Setup {
    /// Begins a turn; when it ends, all work has ended too.
    pub fn turn<'a>(&'a self, run: &'a Run) -> Context<'a> {
        Context {
            device: &self.device,
            options: self.options,
            plan: self.plan,
            run,
            rows_max: u64::MAX,
            spans: Mutex::default(),
            _turn: Turn { device: &*self.device, _guard: self.device.turn() },
        }
    }
}

/// One turn of a join on a device.
pub struct Context<'a> {
    pub device: &'a Arc<dyn Device>,
    pub options: GpuOptions,
    pub plan: Plan,
    /// Threads for the host's part, and the cancel token.
    pub run: &'a Run,
    /// The most rows that the caller takes.
    pub rows_max: u64,
    /// With `options.profile`: the queued kernels, each between two events.
    spans: Mutex<Vec<(String, Event, Event)>>,
    _turn: Turn<'a>,
}

impl Context<'_> {
    /// Sets the result that this turn's probe must give.
    pub fn want(&mut self, wanted: Wanted) {
        (self.options.materialize, self.rows_max) = match wanted {
            Wanted::Sum => (false, 0),
            Wanted::Rows { max } => (true, max),
        };
    }

    /// A launch on all multiprocessors of the plan.
    pub fn grid(&self, shared_bytes: u64) -> Grid {
        Grid { blocks: self.plan.blocks, threads: self.plan.threads, shared_bytes }
    }

    /// The batch of the Linear partitioner (`LINEAR_TUPLES_PER_THREAD` in `linear.cuh`).
    pub fn linear_batch_bytes(&self) -> u64 {
        u64::from(self.plan.threads) * if self.plan.words == 1 { 4 } else { 1 } * self.plan.tuple_bytes
    }

    /// Bits `shift..shift + bits` of the digest of the scheme.
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
        self.run.cancel.check()?;
        let before = if self.options.profile { Some(self.device.record(stream)?) } else { None };
        // SAFETY: every address in the arguments is that of a `Buffer` or of a borrowed relation that the join holds
        // until the device has been quiesced (`Turn`). Each was requested with the extent that the kernel's comment
        // states.
        unsafe { self.device.launch(stream, kernel, grid, bytes_of(arguments)) }?;
        if let Some(before) = before {
            let after = self.device.record(stream)?;
            self.spans.lock().unwrap_or_else(PoisonError::into_inner).push((kernel.into(), before, after));
        }
        Ok(())
    }

    /// Milliseconds of each kernel, all its launches together, in the order of the first launches. Call when all have
    /// ended.
    pub fn profile(&self) -> Vec<(String, f64)> {
        let mut profile: Vec<(String, f64)> = Vec::new();
        for (kernel, from, to) in &*self.spans.lock().unwrap_or_else(PoisonError::into_inner) {
            let ms = self.device.elapsed_ms(*from, *to).map_or(0.0, f64::from);
            match profile.iter_mut().find(|(name, _)| name == kernel) {
                Some((_, sum)) => *sum += ms,
                None => profile.push((kernel.clone(), ms)),
            }
        }
        profile
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

    /// Queues the filling of a range.
    pub fn fill(&self, stream: Stream, at: u64, byte: u8, bytes: u64) -> Result<(), GpuError> {
        // SAFETY: as for `launch`.
        unsafe { self.device.fill(stream, at, byte, bytes) }
    }
}

/// The right to queue work. Its drop waits for all work, so that no memory is released while the device may use it, and
/// the next turn finds the streams idle. A turn is made before the first address is queued, and after the inputs are
/// borrowed. Buffers wait by themselves when they are released.
pub struct Turn<'a> {
    device: &'a dyn Device,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.device.quiesce();
    }
}
