//! Counters in rows of a replicated cluster whose nodes die and come back: their words change without a commit, so no copy has them.

use crate::seeds;
use farhold_planted::{Defect, plant};
use farhold_sim::failover::{Failover, Load, run};

fn setup(seed: u64) -> Failover {
    Failover { load: Load::Numbers, transactions: 60, ..Failover::of_seed(seed) }
}

#[test]
fn nobody_gets_a_number_that_was_given_before_a_death() {
    let given = seeds::are_in_order(0..80, setup);
    assert!(given > 10_000, "{given} blocks");
    // The test of the test.
    plant(Some(Defect::WordBelieved));
    let noticed = (0..80).find(|seed| run(&setup(*seed)).check().is_err());
    plant(None);
    assert!(noticed.is_some(), "words that are believed after they were lost are not noticed");
}
