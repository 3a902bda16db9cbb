//! Compares every build tuple with every probe tuple: the oracle of the other algorithms, and the right join for a
//! handful of rows.

use super::{Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table};
use crate::cost::Expected;
use crate::{JoinError, Run};

/// See the module.
#[derive(Debug)]
pub struct NestedLoop;

/// Comparisons between two checks of the cancel token.
const MORSEL: usize = 1 << 16;

/// Build rows where the number of probe rows is an estimate: a list of so few costs no more than a table.
const ROWS_ESTIMATED_MAX: usize = 16;

impl Algorithm for NestedLoop {
    fn name(&self) -> &'static str {
        "nested_loop"
    }

    fn memory_bytes(&self, shape: Shape) -> u64 {
        16 * shape.build_rows as u64
    }

    fn predicted_ns(&self, join: &Expected<'_>) -> Option<f64> {
        Some(0.5 * join.build_rows as f64 * join.probe_rows as f64)
    }

    fn reason(&self, join: &Expected<'_>) -> String {
        format!("{} x {} comparisons cost less than a table", join.build_rows, join.probe_rows)
    }

    fn build_rows_estimated_max(&self) -> usize {
        ROWS_ESTIMATED_MAX
    }

    fn build(&self, build: Columns<'_>, run: &Run) -> Result<Box<dyn Table>, JoinError> {
        run.cancel.check()?;
        Ok(Box::new(Rows { keys: build.keys().to_vec(), payloads: build.payloads().to_vec() }))
    }
}

struct Rows {
    keys: Vec<u64>,
    payloads: Vec<u64>,
}

impl Table for Rows {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        let mut sum = Sum::default();
        for (&key, &payload) in probe.keys().iter().zip(probe.payloads()) {
            run.cancel.check()?;
            for (&other, &build) in self.keys.iter().zip(&self.payloads) {
                if key == other {
                    sum.add(build, payload);
                }
            }
        }
        Ok(sum)
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        while cursor.row < probe.len() {
            if cursor.position.is_multiple_of(MORSEL) {
                run.cancel.check()?;
            }
            if pairs.is_full() {
                return Ok(());
            }
            let is_match = self.keys.get(cursor.position) == Some(&probe.keys()[cursor.row]);
            if is_match {
                pairs.push(self.payloads[cursor.position], probe.payloads()[cursor.row]);
            }
            cursor.position += 1;
            if cursor.position >= self.keys.len() || (is_match && matches == Matches::First) {
                cursor.row += 1;
                cursor.position = 0;
            }
        }
        cursor.is_done = true;
        Ok(())
    }

    fn scheme(&self) -> &'static str {
        "list"
    }

    fn memory_bytes(&self) -> u64 {
        16 * self.keys.capacity() as u64
    }
}
