//! Nodes with copies and journals die, pause and come back, and then the power of all is cut. The files restore everything acknowledged,
//! and of every other transaction all or nothing. Each seed runs twice, and both runs are the same.

use crate::seeds;
use farhold_sim::failover::Failover;

/// Two threads: half of the seeds each.
#[test]
fn what_was_acknowledged_survives_even_seeds() {
    seeds::are_in_order_twice(0, Failover::with_power_cuts);
}

#[test]
fn what_was_acknowledged_survives_odd_seeds() {
    seeds::are_in_order_twice(1, Failover::with_power_cuts);
}

/// A node that did not know of its expulsion met a later start of another node, which had no rows yet, and its session reported lost
/// accounts. A transaction that misses an account must now commit; such commits are refused.
#[test]
fn an_account_is_missing_only_if_a_commit_says_so() {
    for seed in [1_001_421, 2_000_411, 3_000_537, 3_001_115] {
        seeds::are_in_order(seed..seed + 1, Failover::with_power_cuts);
    }
}

/// An expelled node goes on writing its journal.
#[test]
fn what_an_expelled_keeper_writes_does_not_count() {
    seeds::are_in_order(seeds::FIXED, Failover::with_zombie_keeper);
}

/// Journals wait for disks that take longer than a lease now and then, while nodes die, join and are expelled.
#[test]
fn disks_may_take_longer_than_a_lease() {
    seeds::are_in_order(seeds::FIXED, Failover::with_slow_disks);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_slow_disks);
}
