//! Delays some steps at random, so that the same steps occur in other orders. A lost row was found only in an order that no earlier seed had produced.

use farhold_fabric::provider::sim::{Fault, Faults, Rdma, Sim};
use farhold_fabric::{Executor, Handle};

/// Of all network operations and all turns of tasks, one in `one_in` takes up to `ns_max` longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hiccups {
    /// One operation in this many.
    pub one_in: u64,
    /// Nanoseconds, at most. Well below a lease.
    pub ns_max: u64,
}

impl Hiccups {
    /// None, some that are short, or few that are long.
    #[must_use]
    pub fn of_seed(seed: u64) -> Option<Self> {
        let some = |one_in, ns_max| Some(Self { one_in, ns_max });
        let all = [None, some(8, 5_000), some(64, 30_000), some(512, 200_000)];
        all[(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62) as usize]
    }

    /// An executor in virtual time whose tasks have them.
    pub(crate) fn executor(hiccups: Option<Self>, seed: u64) -> Executor {
        let executor = Executor::virtual_time(seed);
        if let Some(Self { one_in, ns_max }) = hiccups {
            executor.put_tasks_aside(one_in, ns_max);
        }
        executor
    }

    /// A network that has them.
    pub(crate) fn network(hiccups: Option<Self>, handle: &Handle) -> Sim {
        let sim = Sim::new(handle, Rdma, Faults::default());
        if let Some(Self { one_in, ns_max }) = hiccups {
            sim.inject(Fault::Hiccups(one_in, ns_max));
        }
        sim
    }
}
