//! Nodes die, pause, are cut off and come back; nothing acknowledged is lost, and everything heals. Each seed runs twice, and
//! both runs are the same.

use crate::seeds;
use farhold_sim::failover::Failover;

#[test]
fn a_healthy_cluster_replicates() {
    seeds::are_in_order(0..12, |seed| Failover { blows: Vec::new(), ..Failover::of_seed(seed) });
}

/// Rows of up to 64 KiB are put into new mirrors, copied to nodes that come back, and redone when their writer dies.
#[test]
fn rows_of_the_greatest_length_survive_deaths() {
    seeds::are_in_order(seeds::FIXED, Failover::with_long_rows);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_long_rows);
}

/// Tables and indexes come and go while nodes die, in regions that run full: rows that were acknowledged are there, in every
/// index and snapshot.
#[test]
fn tables_change_while_nodes_die() {
    seeds::are_in_order(seeds::FIXED, Failover::with_changing_tables);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_changing_tables);
}

/// The power fails after a node has left, while another has no room for its rows because a client is filling its region; the client ends
/// with the power cut. Once the client's table has been dropped, the rows are taken over and the node comes back.
#[test]
fn a_node_comes_back_when_what_a_lost_client_has_filled_is_dropped() {
    for seed in [9_240_480, 9_240_723] {
        seeds::are_in_order(seed..seed + 1, Failover::with_changing_tables);
    }
}

/// Instructions that a cut link has lost are executed after their initiator has given them up.
#[test]
fn instructions_that_come_late_change_nothing_that_was_done_since() {
    seeds::are_in_order(seeds::FIXED, Failover::with_late_instructions);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_late_instructions);
}

/// Members are expelled while they renew their leases.
#[test]
fn a_slow_register_expels_nobody_who_still_acts() {
    seeds::are_in_order(seeds::FIXED, Failover::with_slow_register);
}

/// A node dies while most rows that are read there are on their way to their holders.
#[test]
fn what_was_read_on_its_way_to_its_holders_survives_with_whoever_read_it() {
    seeds::are_in_order(seeds::FIXED, Failover::with_odd_reads);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_odd_reads);
}

/// A node never learns that it has been expelled. Its sessions still get an error, and what was acknowledged to them
/// holds.
#[test]
fn sessions_of_a_host_that_is_cut_off_for_ever_hear_something_in_time() {
    seeds::are_in_order(seeds::FIXED, Failover::with_lost_host);
}

/// Rows that change their places, and a founding of which some nodes learn late: the scenarios of `planted` hold without a planted
/// defect.
#[test]
fn scenarios_of_planted_defects_hold_without_them() {
    seeds::are_in_order(seeds::FIXED, Failover::with_moving_rows);
    seeds::are_in_order(seeds::FIXED, Failover::with_slow_founding);
}

/// Machines are stopped with the clock that their leases go by, and times of day are set.
#[test]
fn clocks_that_stand_or_jump_let_nobody_act_on_a_lease_that_is_over() {
    seeds::are_in_order(seeds::FIXED, Failover::with_stopped_clocks);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_stopped_clocks);
}

/// A machine stops when it has deleted rows of others, and not told them yet to take them out of their indexes.
#[test]
fn deleted_rows_leave_the_indexes_when_their_coordinator_dies() {
    for seed in [3_141_592_134, 3_141_592_186, 3_141_592_236] {
        seeds::are_in_order(seed..seed + 1, Failover::with_stopped_clocks);
    }
}

/// A node dies whose last records are about rows that have been changed and deleted since, on nodes that have died and come back since.
#[test]
fn records_of_long_ago_are_redone_nowhere_but_where_they_belong() {
    seeds::are_in_order(seeds::FIXED, Failover::with_old_records);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_old_records);
}

/// A host renews its lease and reaches no other node: the others find out, and go on without it.
#[test]
fn a_host_that_reaches_only_the_register_is_expelled() {
    seeds::are_in_order(seeds::FIXED, Failover::with_lonely_host);
}

/// Nodes without copies are paused, are cut off, die and start again, or have journals whose power goes: each does in
/// one of four seeds.
#[test]
fn what_is_promised_without_copies_holds() {
    seeds::are_in_order(0..48, Failover::with_one_copy);
    seeds::are_the_same_again(seeds::TWICE, Failover::with_one_copy);
}

/// Two threads: half of the seeds each.
#[test]
fn what_was_acknowledged_survives_even_seeds() {
    seeds::are_in_order_twice(0, Failover::of_seed);
}

#[test]
fn what_was_acknowledged_survives_odd_seeds() {
    seeds::are_in_order_twice(1, Failover::of_seed);
}
