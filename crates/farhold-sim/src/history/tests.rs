//! Small histories with known answers.

use super::{By, EdgeKind, History, Key, RangeRead, Read, Record, Saw, Write};

const X: Key = Key { table: 1, key: 1 };
const Y: Key = Key { table: 1, key: 2 };

fn read(key: Key, saw: Saw) -> Read {
    Read { key, saw }
}

fn write(key: Key) -> Write {
    Write { key, row: Some(0) }
}

/// Transactions that all overlapped, with serials in the order given.
fn history(records: Vec<(Vec<Read>, Vec<Write>)>) -> History {
    let record = |(i, (reads, writes)): (u64, _)| Record {
        id: i + 1,
        ended: 100,
        serial: i + 1,
        reads,
        writes,
        ..Record::default()
    };
    let records = (0_u64..).zip(records).map(record).collect();
    History { initial: vec![(X, 0), (Y, 0)], records, ..History::default() }
}

#[test]
fn a_chain_of_updates_is_serial() {
    let update = |saw| (vec![read(X, saw)], vec![write(X)]);
    history(vec![update(Saw::Initial), update(Saw::By(1)), update(Saw::By(2))]).check().expect("serial");
}

#[test]
fn a_lost_update_is_a_cycle() {
    let update = || (vec![read(X, Saw::Initial)], vec![write(X)]);
    let anomaly = history(vec![update(), update()]).check().expect_err("a cycle");
    assert_eq!(anomaly.cycle.len(), 2, "{anomaly}");
}

#[test]
fn write_skew_is_a_cycle_of_two_anti_dependencies() {
    let both = || vec![read(X, Saw::Initial), read(Y, Saw::Initial)];
    let anomaly = history(vec![(both(), vec![write(X)]), (both(), vec![write(Y)])]).check().expect_err("a cycle");
    assert!(anomaly.cycle.iter().all(|edge| matches!(edge.kind, EdgeKind::ReadWrite(_))), "{anomaly}");
}

#[test]
fn an_aborted_read_is_named() {
    let anomaly = history(vec![(vec![read(X, Saw::By(77))], vec![])]).check().expect_err("nobody wrote it");
    assert!(anomaly.to_string().contains("T77"), "{anomaly}");
}

#[test]
fn a_phantom_is_a_cycle() {
    // Both count the rows of an empty range and, finding none, insert one.
    let new = |key| Key { table: 2, key };
    let range = RangeRead { table: 2, by: By::Key, lo: 0, hi: 9, saw: vec![] };
    let mut history = history(vec![(vec![], vec![write(new(1))]), (vec![], vec![write(new(2))])]);
    history.check().expect("blind inserts");
    for record in &mut history.records {
        record.ranges.push(range.clone());
    }
    let anomaly = history.check().expect_err("a cycle");
    assert!(anomaly.cycle.iter().all(|edge| matches!(edge.kind, EdgeKind::Phantom(_))), "{anomaly}");
}

#[test]
fn a_row_that_moves_between_ranges_is_seen_by_attribute() {
    // 1 moves X from attribute 0 to 5; 2 sees it in neither [0, 0] nor [5, 5].
    let range =
        |at| RangeRead { table: 1, by: By::Attribute, lo: at, hi: at, saw: if at == 0 { vec![2] } else { vec![] } };
    let moves = (vec![read(X, Saw::Initial)], vec![Write { key: X, row: Some(5) }]);
    let mut history = history(vec![moves, (vec![read(Y, Saw::Initial)], vec![])]);
    history.records[1].ranges.push(range(0));
    history.check().expect("after the move");
    history.records[1].ranges.push(range(5));
    history.check().expect_err("neither before nor after the move");
}

#[test]
fn a_change_outside_of_a_range_is_no_concern_of_its_read() {
    // 1 sees no row of attribute 5, and 2, of an earlier epoch, changes X from 0 to 1.
    let nothing = RangeRead { table: 1, by: By::Attribute, lo: 5, hi: 5, saw: vec![] };
    let change = (vec![read(X, Saw::Initial)], vec![Write { key: X, row: Some(1) }]);
    let mut history = history(vec![(vec![], vec![write(Y)]), change]);
    history.records[0].ranges.push(nothing);
    (history.records[0].epoch, history.records[1].epoch) = (5, 4);
    history.check().expect("in any order");
    history.records[1].writes[0].row = Some(5);
    history.check().expect_err("the read comes before it, and is of a later epoch");
}

#[test]
fn a_row_that_was_always_in_a_range_must_be_seen() {
    let mut history = history(vec![(vec![], vec![])]);
    history.records[0].ranges.push(RangeRead { table: 1, by: By::Key, lo: 0, hi: 9, saw: vec![1] });
    history.check().expect_err("row 2 was there");
}

#[test]
fn an_old_read_is_legal_only_until_the_writer_has_ended() {
    let mut history =
        history(vec![(vec![read(X, Saw::Initial)], vec![write(X)]), (vec![read(X, Saw::Initial)], vec![])]);
    history.check().expect("they overlapped");
    history.records[0].ended = 10;
    (history.records[1].began, history.records[1].ended) = (20, 30);
    let anomaly = history.check().expect_err("the past");
    assert!(anomaly.cycle.iter().any(|edge| edge.kind == EdgeKind::Time), "{anomaly}");
    history.records[0].epoch = 2;
    history.records[1].snapshot = Some(1);
    history.check().expect("it asked for the past");
}

#[test]
fn absence_is_read_between_two_lives() {
    let delete = Write { key: X, row: None };
    let life = vec![
        (vec![read(X, Saw::Initial)], vec![delete]),
        (vec![read(X, Saw::Absent)], vec![]),
        (vec![read(X, Saw::Absent)], vec![write(X)]),
        (vec![read(X, Saw::By(3))], vec![delete]),
        (vec![read(X, Saw::Absent)], vec![]),
    ];
    history(life).check().expect("serial");
}

#[test]
fn a_snapshot_is_exactly_its_epoch() {
    let mut history =
        history(vec![(vec![read(X, Saw::Initial)], vec![write(X)]), (vec![read(X, Saw::Initial)], vec![])]);
    history.records[0].epoch = 1;
    history.records[1].snapshot = Some(1);
    history.check().expect_err("the first is of its epoch");
    history.records[1].reads[0].saw = Saw::By(1);
    history.check().expect("it sees it");
    let range = RangeRead { table: 1, by: By::Key, lo: 0, hi: 9, saw: vec![1] };
    history.records[1].ranges.push(range);
    history.check().expect_err("the other row is missing");
}

#[test]
fn epochs_that_fall_along_a_dependency_are_named() {
    let update = |saw| (vec![read(X, saw)], vec![write(X)]);
    let mut history = history(vec![update(Saw::Initial), update(Saw::By(1))]);
    (history.records[0].epoch, history.records[1].epoch) = (5, 4);
    let anomaly = history.check().expect_err("5 before 4");
    assert!(anomaly.to_string().contains("from 5 to 4"), "{anomaly}");
}

/// Many transactions whose node lost its disk are in doubt. All but the last were lost; that one has deleted a row, so
/// no transaction names it.
#[test]
fn of_many_in_doubt_those_that_cannot_have_committed_are_left_out() {
    let update = |saw| (vec![read(X, saw)], vec![write(X)]);
    let lost = |_| update(Saw::Initial);
    let kept = (vec![read(Y, Saw::Initial), read(X, Saw::Initial)], vec![write(Y)]);
    let deleting = (vec![read(X, Saw::Initial)], vec![Write { key: X, row: None }]);
    let looking = (vec![read(X, Saw::Absent)], vec![]);
    let all = (0..12).map(lost).chain([kept, deleting, looking]).collect();
    let mut history = history(all);
    for (place, record) in history.records.iter_mut().enumerate() {
        (record.in_doubt, record.epoch) = (place < 12 || place == 13, 1);
    }
    history.records[14].snapshot = Some(1);
    history.check_with_doubts().expect("serial");
    history.records.remove(13);
    history.check_with_doubts().expect_err("nobody has deleted the row");
}
