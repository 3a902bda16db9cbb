//! Constants that are too long for a plan.
//!
//! The planner replaces a function whose arguments are constants by its value. It writes names of expressions with
//! their constants many times, and their memory is not counted: an array of half a million elements led to 2.6 GB of
//! names. So functions that make long values of short ones refuse such values during planning. The planner then keeps
//! the function, and the query computes the value when it runs.

use std::cell::Cell;

use datafusion::common::resources_err;
use datafusion::error::Result;

/// The size limit of a value in a plan, in bytes.
const BYTES_MAX: u64 = 64 << 10;

thread_local! {
    static IS_PLANNING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a planner, which must not move to another thread.
pub(super) fn while_planning<T>(plan: impl FnOnce() -> T) -> T {
    /// Restores the flag, even if the planner panics.
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            IS_PLANNING.set(self.0);
        }
    }

    let _before = Before(IS_PLANNING.replace(true));
    plan()
}

/// Refuses a value during planning if it is too long for a plan.
pub(super) fn check(name: &str, bytes: u64) -> Result<()> {
    if bytes > BYTES_MAX && IS_PLANNING.get() {
        return resources_err!("{name} makes {bytes} bytes, too large a constant for a plan");
    }
    Ok(())
}
