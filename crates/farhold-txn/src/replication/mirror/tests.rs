//! A mirror beside a plain map, whatever the order in which states come.

use super::*;
use farhold_store::log::{Record, RecordWriter};

/// An entry as it comes out of a record, as a patch of what was there before if that is shorter.
fn recorded(entry: &Entry<'_>, before: Option<&[u8]>) -> Vec<u8> {
    let mut writer = RecordWriter::default();
    writer.begin(1, 1, 1);
    match before {
        Some(before) => writer.add_change(entry, before),
        None => writer.add(entry),
    }
    writer.end();
    [&[0; 8], writer.place(0, 0).0].concat()
}

fn entry_of(record: &[u8]) -> Entry<'_> {
    let record = Record::check(record, 0).expect("whole");
    record.entries().next().expect("an entry").expect("whole")
}

/// Numbers below a bound, from a seed.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    move |below| random.u64(..below)
}

#[test]
fn the_newest_state_of_a_slot_stays_whatever_the_order() {
    let slot = |incarnation| ObjectRef::new(64, incarnation);
    let table = TableId(20);
    let states = [
        (slot(1), Version(8), &b"old"[..]),
        (slot(1), Version(16), b"new"),
        (slot(1), Version(24).with(Version::ABSENT), b""),
        (slot(2), Version(40), b"another row"),
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut mirror = MirrorRows::default();
        for at in order {
            let (reference, version, value) = states[at];
            mirror.take(reference, version, table, b"key", value);
        }
        let rows = mirror.rows();
        assert_eq!((rows.len(), rows[0].0, rows[0].1.value()), (1, 4, &b"another row"[..]));
    }
    let mut mirror = MirrorRows::default();
    mirror.take(slot(1), Version(24).with(Version::ABSENT), table, b"", b"");
    mirror.take(slot(1), Version(16), table, b"key", b"late");
    assert!(mirror.rows().is_empty(), "a delete is not undone by a late record");
}

/// Histories of rows, of whole values and patches, in any order.
#[test]
fn patches_wait_for_the_version_that_they_change() {
    let mut draw = numbers(11);
    let mut draw = |below: usize| draw(below as u64) as usize;
    let table = TableId(20);
    let mut waited = 0;
    for _ in 0..300 {
        let (mut records, mut latest) = (Vec::new(), BTreeMap::new());
        for slot in 1..4_u64 {
            let mut value: Vec<u8> = (0..40 + draw(300)).map(|_| draw(256) as u8).collect();
            for count in 1..2 + draw(9) as u64 {
                let before = value.clone();
                let at = draw(value.len());
                value[at] ^= 1 + draw(255) as u8;
                let entry = Entry {
                    node: farhold_fabric::NodeId(1),
                    change: Change::Write,
                    mirrored: true,
                    table,
                    reference: ObjectRef::new(slot * ALIGN, 1),
                    old: Version((count - 1) * Version::ONE),
                    new: Version(count * Version::ONE),
                    key: b"the key",
                    value: &value,
                };
                let is_whole = count == 1 || draw(4) == 0;
                let record = recorded(&entry, (!is_whole).then_some(&before));
                assert_eq!(entry_of(&record).change == Change::Patch, !is_whole);
                records.push(record);
            }
            latest.insert(slot as u32, value);
        }
        for place in (1..records.len()).rev() {
            records.swap(place, draw(place + 1));
        }
        let mut mirror = MirrorRows::default();
        for record in &records {
            let entry = entry_of(record);
            mirror.prefetch(entry.reference);
            mirror.prefetch_row(&entry);
            match entry.change {
                Change::Patch => mirror.patch(&entry),
                _ => mirror.take(entry.reference, entry.new, entry.table, entry.key, entry.value),
            }
            waited += usize::from(mirror.is_behind(|_| true));
        }
        assert!(!mirror.is_behind(|_| true));
        for (slot, row) in mirror.rows() {
            assert_eq!((row.key(), row.value()), (&b"the key"[..], &latest[&slot][..]));
        }
        assert_eq!(mirror.len(), 3);
    }
    assert!(waited > 300, "the order made patches wait");
    // The last records of a table may come after the message that it is gone.
    let before = [0; 64];
    let mut value = before;
    value[9] = 1;
    let late = Entry {
        node: farhold_fabric::NodeId(1),
        change: Change::Write,
        mirrored: true,
        table,
        reference: ObjectRef::new(ALIGN, 1),
        old: Version(Version::ONE),
        new: Version(2 * Version::ONE),
        key: b"the key",
        value: &value,
    };
    let mut mirror = MirrorRows::default();
    mirror.forget_table(table);
    mirror.patch(&entry_of(&recorded(&late, Some(&before))));
    assert!(mirror.is_behind(|_| true) && !mirror.is_behind(|it| it != table));
}

/// A table's page had a row, became another table's that was dropped, and the first row's record comes late, whole or as a patch. It brings
/// nothing back, and nothing waits for it; what the page is used for next is taken.
#[test]
fn a_row_of_an_earlier_use_of_its_page_stays_gone() {
    let (first, second) = (TableId(20), TableId(21));
    let slot = |incarnation| ObjectRef::new(64, incarnation);
    let version = |count: u64| Version(count * Version::ONE);
    let before = [0; 64];
    let mut value = before;
    value[9] = 1;
    let late = Entry {
        node: farhold_fabric::NodeId(1),
        change: Change::Write,
        mirrored: true,
        table: first,
        reference: slot(1),
        old: version(4),
        new: version(5),
        key: b"the key",
        value: &value,
    };
    let late = recorded(&late, Some(&before));
    assert_eq!(entry_of(&late).change, Change::Patch);
    let comes_late = |mirror: &mut MirrorRows| {
        mirror.take(slot(1), version(5), first, b"the key", b"late");
        mirror.patch(&entry_of(&late));
        assert!(mirror.rows().is_empty(), "a row that was deleted is back");
        assert!(!mirror.is_behind(|table| table == first), "a patch waits for a version that never comes");
    };
    // The mirror has had all of it.
    let mut mirror = MirrorRows::default();
    mirror.take(slot(1), version(5), first, b"the key", b"row");
    mirror.take(slot(1), version(7).with(Version::ABSENT), first, b"", b"");
    mirror.take(slot(2), version(9), second, b"another", b"row");
    mirror.forget_table(second);
    comes_late(&mut mirror);
    // It is a new one, and its node tells it of the page, before the record or after it.
    let mut mirror = MirrorRows::default();
    mirror.raise_floor(0, version(9));
    comes_late(&mut mirror);
    let mut mirror = MirrorRows::default();
    mirror.patch(&entry_of(&late));
    mirror.take(ObjectRef::new(128, 1), version(5), first, b"a key", b"late");
    mirror.raise_floor(0, version(9));
    comes_late(&mut mirror);
    mirror.take(slot(3), version(10), first, b"a key", b"new");
    mirror.take(ObjectRef::new(PAGE_BYTES, 1), version(5), first, b"key", b"of the next page");
    assert_eq!(mirror.rows().len(), 2);
}

/// Rows of all lengths that grow, shrink, go and come back, and whose tables are dropped, against a map of vectors.
#[test]
fn a_mirror_is_a_map_from_slots_to_their_latest_states() {
    type State = (Version, TableId, Vec<u8>);
    let (mut mirror, mut oracle) = (MirrorRows::default(), BTreeMap::<u32, State>::new());
    let mut floors = BTreeMap::<u32, u64>::new();
    let mut draw = numbers(7);
    for count in 1..6_000_u64 {
        let (slot, table) = (draw(300) as u32 * 37, TableId(draw(3) as u32));
        let len = if draw(50) == 0 { draw(65_000) } else { draw(300) } as usize;
        // Some come late.
        let version = Version((count.saturating_sub(draw(2) * 50)).max(1) * Version::ONE);
        let version = if draw(5) == 0 { version.with(Version::ABSENT) } else { version };
        let payload = vec![count as u8; len];
        let (key, value) = payload.split_at(len.min(9));
        let reference = ObjectRef::new(u64::from(slot) * ALIGN, 0);
        mirror.prefetch(reference);
        mirror.take(reference, version, table, key, value);
        let page = slot / PAGE_SLOTS;
        let known = oracle.get(&slot).map(|(known, ..)| known.number()).or(floors.get(&page).copied());
        if known.is_none_or(|known| known < version.number()) {
            oracle.insert(slot, (version, table, payload));
        }
        if draw(1_000) == 0 {
            mirror.forget_table(table);
            for (slot, (version, ..)) in oracle.iter().filter(|(_, (_, its, _))| *its == table) {
                let floor = floors.entry(slot / PAGE_SLOTS).or_default();
                *floor = version.number().max(*floor);
            }
            oracle.retain(|_, (_, its, _)| *its != table);
        }
    }
    let rows: Vec<_> = mirror
        .rows()
        .into_iter()
        .map(|(slot, row)| (slot, (row.version, row.table, [row.key(), row.value()].concat())))
        .collect();
    assert_eq!(mirror.len(), oracle.len());
    oracle.retain(|_, (version, ..)| !version.is_absent());
    assert_eq!(rows, oracle.into_iter().collect::<Vec<_>>());
}
