//! Journals that are cut off, flipped or written by others: what was synced is read, and all else is refused.

use super::read::scan;
use super::*;
use crate::durable::files::Directory;
use crate::durable::power::Volatile;
use crate::durable::{DurableError, Identity, Inventory, word};
use farhold_fabric::NodeId;
use std::sync::Arc;

const IDENTITY: Identity = Identity { cluster: 9, node: NodeId(1), nodes: 2 };

fn shape(directory: &Volatile) -> Shape {
    let inventory = Arc::new(Inventory::open(directory, &IDENTITY).expect("a list"));
    let directory = Arc::new(directory.clone());
    Shape { directory, identity: IDENTITY, start: 1, segment_bytes: SEGMENT_BYTES_MIN, inventory }
}

fn item(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; 64 * len];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&((64 * len as u64) | (5 << 32)).to_le_bytes());
    bytes
}

/// Numbers of all items, in order.
fn read(directory: &Volatile) -> Result<Vec<u64>, DurableError> {
    let mut numbers = Vec::new();
    let names = directory.list().expect("names");
    for segment in segments(&names, NodeId(1)) {
        read_segment(directory, &IDENTITY, segment, &mut |body, _| {
            for item in items(body) {
                if let Item::Record(bytes) = item? {
                    numbers.push(word(bytes, 0));
                }
            }
            Ok(())
        })?;
    }
    Ok(numbers)
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    move || random.u64(..)
}

fn write_some(directory: &Volatile, seed: u64) -> (Vec<u64>, Journal) {
    let shape = shape(directory);
    let mut journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
    let mut random = random(seed);
    let mut written = Vec::new();
    for batch in 0..40_u64 {
        let mut body = Vec::new();
        for one in 0..random() % 5 {
            body.extend(item(batch * 10 + one, 1 + random() as usize % 40));
            written.push(batch * 10 + one);
        }
        if !journal.fits(body.len() as u64) {
            journal.switch(shape.make_segment(journal.next_number()).expect("a segment"));
        }
        journal
            .write(&[&body], Closing { closed: batch as u32, epoch_max: batch as u32, configuration: 0 })
            .expect("written");
    }
    (written, journal)
}

#[test]
fn what_was_synced_survives_every_cut() {
    for seed in 0..200 {
        let directory = Volatile::default();
        let (mut written, mut journal) = write_some(&directory, seed);
        assert_eq!(read(&directory), Ok(written.clone()));
        // A batch that is written and not synced may be there or not; what was acknowledged is.
        let mut random = random(seed + 99);
        let torn = item(777, 1 + random() as usize % 40);
        let before = directory.cut(&mut random);
        if journal.fits(torn.len() as u64) {
            journal.write(&[&torn], Closing::default()).expect("written");
            // The batch, as if its sync had not come.
            let (name, at) = (segment_name(NodeId(1), 1, journal.segment.number), journal.segment.at);
            let bytes = directory.bytes(&name);
            let file = before.open(&name).expect("a file");
            let from = at as usize - torn.len() - 128;
            file.write_at(from as u64, &bytes[from..at as usize]).expect("written");
        }
        let after = read(&before.cut(&mut random)).expect("no damage");
        if after.last() == Some(&777) {
            written.push(777);
        }
        assert_eq!(after, written, "seed {seed}");
    }
}

#[test]
fn every_flipped_bit_of_what_was_durable_is_refused() {
    let directory = Volatile::default();
    let (written, journal) = write_some(&directory, 3);
    journal.close().expect("closed");
    let whole = read(&directory);
    assert_eq!(whole, Ok(written));
    let segments = segments(&directory.list().expect("names"), NodeId(1));
    let names: Vec<String> = segments.iter().map(|(start, number)| segment_name(NodeId(1), *start, *number)).collect();
    assert!(names.len() > 1, "more than one segment: {names:?}");
    let mut random = random(1);
    let mut refused = 0;
    for name in &names {
        let end = if *name == names[names.len() - 1] { journal.segment.at as usize } else { 40_000 };
        for _ in 0..400 {
            let (at, bits) = (random() as usize % end, 1 << (random() % 8));
            directory.flip(name, at, bits);
            let found = read(&directory);
            directory.flip(name, at, bits);
            if (72..4096).contains(&at) {
                // Unused bytes, and the mark; without the mark the batches mean the same.
                continue;
            }
            assert!(matches!(found, Err(DurableError::Damaged { .. } | DurableError::Foreign { .. })), "{name} {at}");
            refused += 1;
        }
    }
    assert!(refused > 300, "{refused}");
}

/// A segment that cannot be removed stays the first of the existing ones: if one behind it were missing, no start would
/// accept the journal.
#[test]
fn what_could_not_be_removed_is_removed_later() {
    let directory = Volatile::default();
    let shape = shape(&directory);
    let mut journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
    for epoch in 1..6 {
        let closing = Closing { closed: epoch - 1, epoch_max: epoch, configuration: 0 };
        journal.write(&[&item(u64::from(epoch), 1)], closing).expect("written");
        journal.switch(shape.make_segment(journal.next_number()).expect("a segment"));
    }
    let numbers = || -> Vec<u32> {
        segments(&directory.list().expect("names"), NodeId(1)).into_iter().map(|(_, number)| number).collect()
    };
    directory.keep_files(true);
    journal.forget(2).expect_err("they stay");
    assert_eq!(numbers(), [0, 1, 2, 3, 4, 5]);
    directory.keep_files(false);
    // Another process has removed one.
    directory.remove(&segment_name(NodeId(1), 1, 0)).expect("removed");
    journal.forget(4).expect("removed");
    assert_eq!(numbers(), [4, 5]);
}

/// A journal whose segment has no batch yet, because that could not be written, says in the one before what it has closed.
#[test]
fn the_segment_of_the_last_batch_stays() {
    let directory = Volatile::default();
    let shape = shape(&directory);
    let mut journal = Journal::new(shape.clone(), shape.make_segment(0).expect("a segment"));
    let write = |journal: &mut Journal, epoch| {
        journal.write(&[&item(u64::from(epoch), 1)], Closing { closed: epoch, epoch_max: epoch, configuration: 0 })
    };
    for epoch in 1..3 {
        write(&mut journal, epoch).expect("written");
        journal.switch(shape.make_segment(journal.next_number()).expect("a segment"));
    }
    let last = || {
        let (found, _) = last(&directory, &IDENTITY, 1, &directory.list().expect("names")).expect("no damage");
        (found.closed, found.segments_gone)
    };
    journal.forget(2).expect("removed");
    assert_eq!(last(), (2, 0));
    write(&mut journal, 3).expect("written");
    journal.forget(2).expect("removed");
    assert_eq!(segments(&directory.list().expect("names"), NodeId(1)), [(1, 2)]);
    assert_eq!(last(), (3, 0));
    // All that have a batch are missing.
    journal.switch(shape.make_segment(3).expect("a segment"));
    directory.remove(&segment_name(NodeId(1), 1, 2)).expect("removed");
    assert_eq!(last(), (0, 3), "a member's start is refused");
}

#[test]
fn garbage_is_no_journal() {
    let mut random = random(5);
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..SEGMENT_BYTES_MIN).map(|_| random() as u8).collect();
        scan("garbage", &bytes, &IDENTITY, (1, 0), &mut |_, _| Ok(())).expect_err("garbage");
        let cut = &bytes[..random() as usize % bytes.len()];
        for _ in items(cut) {}
    }
    // A good header with garbage behind it is an empty journal.
    let directory = Volatile::default();
    shape(&directory).make_segment(0).expect("a segment");
    let mut bytes = directory.bytes(&segment_name(NodeId(1), 1, 0));
    for _ in 0..100 {
        bytes[HEADER_BYTES as usize..].fill_with(|| random() as u8);
        let found = scan("garbage", &bytes, &IDENTITY, (1, 0), &mut |_, _| Ok(()));
        assert_eq!(found.map(|found| (found.last, found.closed)), Ok((0, 0)));
    }
}

#[test]
fn others_journals_are_refused() {
    let directory = Volatile::default();
    let (_, journal) = write_some(&directory, 3);
    drop(journal);
    let open = |identity: Identity| read_segment(&directory, &identity, (1, 0), &mut |_, _| Ok(()));
    open(IDENTITY).expect("its own");
    let foreign =
        |what| move |error: DurableError| matches!(error, DurableError::Foreign { what: found, .. } if found == what);
    assert!(open(Identity { cluster: 8, ..IDENTITY }).is_err_and(foreign("cluster")));
    assert!(open(Identity { nodes: 3, ..IDENTITY }).is_err_and(foreign("number of nodes")));
    directory.flip(&segment_name(NodeId(1), 1, 0), 8, 2);
    assert!(open(IDENTITY).is_err_and(foreign("version")));
}

#[test]
fn without_room_there_is_no_segment_and_the_others_stay() {
    let directory = Volatile::default();
    let shape = shape(&directory);
    let first = shape.make_segment(0).expect("a segment");
    directory.limit(SEGMENT_BYTES_MIN + 1000);
    let error = shape.make_segment(1).expect_err("no room");
    assert!(matches!(error, DurableError::Io { is_full: true, .. }), "{error}");
    assert_eq!(segments(&directory.list().expect("names"), NodeId(1)), [(1, 0)]);
    Journal::new(shape, first).write(&[&item(1, 10)], Closing::default()).expect("it had its room before");
    assert_eq!(read(&directory), Ok(vec![1]));
}
