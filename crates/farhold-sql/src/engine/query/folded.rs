//! Constants that are too long to be put in a plan.
//!
//! The planner puts the value in the place of a function whose arguments are constants. It writes names of expressions with their constants in them,
//! many times over, and nobody counts what they take: an array of half a million elements was 2.6 GB of names. So while it plans, functions that
//! make long values of short ones refuse those; the planner then leaves the function where it is, and the value is made when the query runs.

use std::cell::Cell;

use datafusion::common::resources_err;
use datafusion::error::Result;

/// Bytes of a value that may stand in a plan.
const BYTES_MAX: u64 = 64 << 10;

thread_local! {
    static IS_PLANNING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a planner, which must not change threads.
pub(super) fn while_planning<T>(plan: impl FnOnce() -> T) -> T {
    /// Put back also where the planner panics.
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            IS_PLANNING.set(self.0);
        }
    }

    let _before = Before(IS_PLANNING.replace(true));
    plan()
}

/// Refuses a value that a planner wants and that is too long for a plan.
pub(super) fn check(name: &str, bytes: u64) -> Result<()> {
    if bytes > BYTES_MAX && IS_PLANNING.get() {
        return resources_err!("{name} makes {bytes} bytes, which no plan should have in it");
    }
    Ok(())
}
