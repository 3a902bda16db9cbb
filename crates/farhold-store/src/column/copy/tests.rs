//! Copies compared with every state that each row has ever had: changes in any order, merges and views at any time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::TableId;
use crate::column::memory::NoMemory;
use crate::column::{BLOCK_ROWS, Chunk, Zone};
use crate::row::{Column, ColumnReader, ColumnType, Datum, Schema};
use farhold_fabric::{FarPtr, NodeId, RegionId, RegionMemory};

fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::BigInt),
        Column::new("name", ColumnType::Text).nullable(),
        Column::new("count", ColumnType::Int),
    ];
    Schema::new(columns, vec![0]).unwrap()
}

/// A row's content follows from these.
type Row = (i64, Option<u32>, i32);

fn bytes(schema: &Schema, row: &Row) -> (Vec<u8>, Vec<u8>) {
    let name = row.1.map_or(Datum::Null, |name| Datum::Text(format!("name {name}")));
    let datums = [Datum::BigInt(row.0), name, Datum::Int(row.2)];
    let (mut key, mut value) = (Vec::new(), Vec::new());
    schema.encode_key(&datums, &mut key).unwrap();
    schema.encode_value(&datums, &mut value).unwrap();
    (key, value)
}

/// One change of a slot.
#[derive(Clone, Debug)]
struct Change {
    slot: u32,
    version: u64,
    epoch: u32,
    row: Option<Row>,
}

/// What each slot has been, by epoch.
#[derive(Default)]
struct History(BTreeMap<u32, Vec<(u32, Option<Row>)>>);

impl History {
    fn rows(&self, epoch: u32) -> Vec<Row> {
        let state = |states: &Vec<(u32, Option<Row>)>| states.iter().rev().find(|(begin, _)| *begin <= epoch)?.1;
        let mut rows: Vec<Row> = self.0.values().filter_map(state).collect();
        rows.sort_unstable();
        rows
    }
}

fn memory(bytes: u64) -> Arc<ColumnMemory> {
    let origin = FarPtr::new(NodeId(0), RegionId(2), 0);
    ColumnMemory::new(Arc::new(RegionMemory::anonymous(origin, bytes).unwrap()))
}

fn new_copy(schema: &Schema, kept: Kept, config: CopyConfig) -> ColumnCopy {
    ColumnCopy::new(schema, kept, config, &memory(if cfg!(miri) { 1 << 20 } else { 256 << 20 }))
}

fn reference(slot: u32) -> ObjectRef {
    ObjectRef::new(u64::from(slot) * farhold_fabric::object::ALIGN, 1)
}

fn rows_of(view: &ColumnView) -> Vec<Row> {
    let schema = schema();
    let mut rows = Vec::new();
    let name = |text: Option<&[u8]>| text.map(|text| std::str::from_utf8(text).unwrap()[5..].parse().unwrap());
    for part in view.parts() {
        match part {
            ViewPart::Segment(segment) => {
                let chunks = segment.chunks();
                for block in 0..segment.rows().div_ceil(BLOCK_ROWS) {
                    let here = (segment.rows() - block * BLOCK_ROWS).min(BLOCK_ROWS);
                    let mut bits = [0; BLOCK_ROWS / 64];
                    (0..here).for_each(|row| bits[row / 64] |= 1 << (row % 64));
                    view.select(&segment, block, &mut bits);
                    for row in (0..here).filter(|row| bits[row / 64] >> (row % 64) & 1 == 1) {
                        let row = block * BLOCK_ROWS + row;
                        let id = chunks[0].integer(row).unwrap();
                        rows.push((id, name(chunks[1].text(row)), chunks[2].integer(row).unwrap() as i32));
                    }
                }
            }
            ViewPart::Delta(part) => view.visit_delta(part, &mut |key, value| {
                let [id, text, count] = [0, 1, 2].map(|column| ColumnReader::new(&schema, column));
                let mut scratch = Vec::new();
                let text = (!text.is_null(value)).then(|| text.bytes(key, value, &mut scratch));
                rows.push((id.integer(key, value), name(text), count.integer(key, value) as i32));
            }),
        }
    }
    rows.sort_unstable();
    rows
}

const TABLE: TableId = TableId(9);

fn asked<'s>(schema: &'s Schema, memory: &ColumnMemory, epoch: u32) -> Asked<'s> {
    Asked { origin: memory.region().origin(), table: TABLE, schema, epoch, columns: 3 }
}

/// The rows of a view as another node reads them.
fn rows_from_afar(view: &ColumnView, memory: &ColumnMemory) -> Vec<Row> {
    let schema = schema();
    let described = view.describe(TABLE, &[2, 0, 1], usize::MAX).unwrap();
    let view = FarView::read(described, &asked(&schema, memory, view.epoch())).unwrap();
    let mut rows = Vec::new();
    let name = |text: Option<&[u8]>| text.map(|text| std::str::from_utf8(text).unwrap()[5..].parse().unwrap());
    for segment in view.segments() {
        let read = |chunk: &FarChunk| {
            let mut bytes = vec![0; chunk.bytes as usize];
            memory.region().copy_out(chunk.at.offset(), &mut bytes).unwrap();
            bytes
        };
        let chunks: Vec<Vec<u8>> = segment.chunks().iter().map(read).collect();
        let chunks: Vec<Chunk<'_>> = chunks.iter().map(|bytes| Chunk::open(bytes).unwrap()).collect();
        assert_eq!(segment.zones(), chunks.iter().map(Zone::of).collect::<Vec<_>>());
        for block in 0..segment.rows().div_ceil(BLOCK_ROWS) {
            let here = (segment.rows() - block * BLOCK_ROWS).min(BLOCK_ROWS);
            let mut bits = [u64::MAX; BLOCK_ROWS / 64];
            segment.select(block, &mut bits);
            for row in (0..here).filter(|row| bits[row / 64] >> (row % 64) & 1 == 1) {
                let row = block * BLOCK_ROWS + row;
                let id = chunks[1].integer(row).unwrap();
                rows.push((id, name(chunks[2].text(row)), chunks[0].integer(row).unwrap() as i32));
            }
        }
    }
    for (key, value) in view.delta() {
        let mut datums = Vec::new();
        schema.decode_row(key, value, &mut datums).unwrap();
        let [Datum::BigInt(id), text, Datum::Int(count)] = &datums[..] else { panic!("{datums:?}") };
        let text = if let Datum::Text(text) = text { Some(text.as_bytes()) } else { None };
        rows.push((*id, name(text), *count));
    }
    rows.sort_unstable();
    rows
}

struct Run {
    schema: Schema,
    random: fastrand::Rng,
    slots: u64,
    epoch: u32,
    versions: BTreeMap<u32, u64>,
    history: History,
}

impl Run {
    /// Changes of the next epoch; a slot may change several times.
    fn epoch(&mut self) -> Vec<Change> {
        self.epoch += 1;
        let count = self.random.u64(..self.slots / 2 + 2);
        (0..count).map(|_| self.change()).collect()
    }

    fn change(&mut self) -> Change {
        let slot = 1 + self.random.u64(..self.slots) as u32 * 3;
        let version = self.versions.entry(slot).or_insert(0);
        *version += 4;
        let version = *version;
        let is_row = !self.random.u64(..5).is_multiple_of(5);
        let name = |random: u64| (!random.is_multiple_of(7)).then_some((random % 40) as u32);
        let row = is_row.then(|| (i64::from(slot), name(self.random.u64(..)), self.random.u64(..) as i32));
        self.history.0.entry(slot).or_default().push((self.epoch, row));
        Change { slot, version, epoch: self.epoch, row }
    }

    fn apply(&self, copy: &ColumnCopy, changes: &[Change]) {
        let rows: Vec<_> = changes.iter().map(|change| change.row.map(|row| bytes(&self.schema, &row))).collect();
        copy.apply(changes.iter().zip(&rows).map(|(change, row)| RowChange {
            reference: reference(change.slot),
            version: Version(change.version),
            epoch: change.epoch,
            row: row.as_ref().map(|(key, value)| (key.as_slice(), value.as_slice())),
        }));
    }

    fn build<'c>(&self, copy: &'c ColumnCopy, epoch: u32) -> CopyBuilder<'c> {
        let mut builder = copy.build();
        for (slot, states) in &self.history.0 {
            if let Some((_, Some(row))) = states.iter().rev().find(|(begin, _)| *begin <= epoch) {
                let (key, value) = bytes(&self.schema, row);
                builder.append(reference(*slot), &key, &value).unwrap();
            }
        }
        builder
    }
}

/// How large a copy is, and up to which epoch it is complete.
fn counted(copy: &ColumnCopy) -> (CopySize, u32) {
    let state = copy.read();
    let delta = state.delta.read();
    let size = CopySize {
        segments: state.segments.len(),
        segment_rows: state.segments.iter().map(|segment| segment.rows() as u64).sum(),
        segment_bytes: state.segments.iter().map(|segment| segment.bytes()).sum(),
        delta_rows: delta.len() as u64,
        delta_bytes: delta.bytes(),
    };
    (size, state.complete)
}

fn run(seed: u64, slots: u64, epochs: usize) {
    let schema = schema();
    let mut run = Run {
        schema: schema.clone(),
        random: fastrand::Rng::with_seed(seed),
        slots,
        epoch: 0,
        versions: BTreeMap::new(),
        history: History::default(),
    };
    // Rows from before the copy, which its first segments are made of.
    for _ in 0..3 {
        run.epoch();
    }
    // Short segments, so that there are many.
    let config = CopyConfig { segment_rows: 24, changes_min: 1, changed_part: 8 };
    let eager = CopyConfig { changed_part: 1_000_000, ..config };
    let memory = memory(4 << 20);
    let copy = ColumnCopy::new(&schema, Kept::All, config, &memory);
    let mut segments_most = 0;
    let mut waiting: Vec<Change> = Vec::new();
    let mut complete = run.epoch;
    let built_at = run.epoch + run.random.u64(..3) as u32;
    let mut views: Vec<ColumnView> = Vec::new();
    for _ in 0..epochs {
        waiting.extend(run.epoch());
        // Some of the waiting changes arrive, in any order, some of them twice.
        for place in (1..waiting.len()).rev() {
            waiting.swap(place, run.random.usize(..=place));
        }
        let now = if run.random.u64(..3) == 0 { waiting.len() } else { waiting.len() / 2 };
        run.apply(&copy, &waiting[..now]);
        if run.random.u64(..4) == 0 {
            run.apply(&copy, &waiting[..now / 2]);
        }
        waiting.drain(..now);
        let done = waiting.iter().map(|change| change.epoch - 1).min().unwrap_or(run.epoch);
        if done > complete {
            complete = done;
            copy.complete(complete);
        }
        if run.epoch == built_at + 1 {
            assert_eq!(copy.view(complete).err(), Some(NoView::Building));
            copy.install(run.build(&copy, built_at), built_at).unwrap();
            complete = complete.max(built_at);
        }
        if run.epoch > built_at && run.random.u64(..3) > 0 {
            let epoch = complete - run.random.u64(..3) as u32;
            match copy.view(epoch) {
                Ok(view) => views.push(view),
                Err(NoView::Past { since }) => assert!(epoch < since && since <= complete),
                Err(error) => panic!("{error} at {epoch}, complete up to {complete}"),
            }
            assert_eq!(copy.view(complete + 1).err(), Some(NoView::Behind { complete }));
        }
        match run.random.u64(..6) {
            0 | 1 => drop(copy.merge(complete).unwrap()),
            2 => drop(copy.merge_changed(complete, config).unwrap()),
            // A snapshot of that epoch may still ask.
            3 => drop(copy.merge_changed(complete.saturating_sub(1), eager).unwrap()),
            _ => {}
        }
        // Memory of segments that no view holds is reused.
        memory.reclaim(|| run.epoch, || u32::MAX);
        assert_eq!((copy.size(), copy.complete_to()), counted(&copy), "seed {seed}");
        segments_most = segments_most.max(copy.size().segments);
        if views.len() > 4 {
            let view = views.swap_remove(run.random.u64(..4) as usize);
            let expected = run.history.rows(view.epoch());
            assert_eq!(rows_of(&view), expected, "seed {seed}, epoch {}", view.epoch());
            assert_eq!(rows_from_afar(&view, &memory), expected, "seed {seed}, epoch {}", view.epoch());
        }
    }
    for view in views {
        assert_eq!(rows_of(&view), run.history.rows(view.epoch()), "seed {seed}, epoch {}", view.epoch());
    }
    assert!(cfg!(miri) || slots < 200 || segments_most > 5, "{segments_most} segments at most");
    // Everything left is merged: the delta is empty, and no row is in two segments.
    run.apply(&copy, &waiting);
    copy.complete(run.epoch);
    copy.merge_changed(run.epoch, eager).unwrap();
    let size = copy.size();
    let rows = run.history.rows(run.epoch);
    assert_eq!((size.delta_rows, size.segment_rows), (0, rows.len() as u64), "seed {seed}");
    assert_eq!(rows_of(&copy.view(run.epoch).unwrap()), rows);
    drop(copy);
    memory.reclaim(|| run.epoch, || u32::MAX);
    let all = memory.statistics();
    assert_eq!(all.free_bytes, all.bytes, "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 64 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_have_the_rows_of_their_epoch(seed in any::<u64>(), slots in prop_oneof![1..40_u64, 200..800_u64]) {
        run(seed, slots, if cfg!(miri) { 12 } else { 40 });
    }
}

/// A thread that must not wait, such as one that serves other nodes, gets the size of a copy and its epoch whatever locks others hold.
#[test]
fn sizes_are_known_without_locks() {
    let copy = new_copy(&schema(), Kept::All, CopyConfig::default());
    copy.complete(3);
    let expected = Ok((CopySize::default(), 3, false));
    let state = copy.read();
    assert_eq!(size_beside(&copy, state.delta.write()), expected, "while changes are applied");
    drop(state);
    assert_eq!(size_beside(&copy, copy.write()), expected, "while the state is replaced");
}

/// What another thread learns while this one holds a lock.
fn size_beside<G>(copy: &ColumnCopy, held: G) -> Result<(CopySize, u32, bool), std::sync::mpsc::RecvTimeoutError> {
    std::thread::scope(|scope| {
        let (told, answer) = std::sync::mpsc::channel();
        scope.spawn(move || told.send((copy.size(), copy.complete_to(), copy.is_built())));
        let found = answer.recv_timeout(std::time::Duration::from_mins(1));
        drop(held);
        found
    })
}

/// More rows than a segment has: segments are cut, ranges stay apart, and a change of a row in the middle makes one of them anew.
#[test]
#[cfg_attr(miri, ignore = "takes too long there")]
fn many_segments() {
    let schema = schema();
    let copy = new_copy(&schema, Kept::All, CopyConfig::default());
    let rows = 150_000_u32;
    let mut builder = copy.build();
    for slot in 1..=rows {
        let (key, value) = bytes(&schema, &(i64::from(slot), Some(slot % 9), 0));
        builder.append(reference(slot * 2), &key, &value).unwrap();
    }
    copy.install(builder, 10).unwrap();
    assert_eq!(copy.size().segments, 3);
    let (key, value) = bytes(&schema, &(7, None, 5));
    // New rows between those of the second segment, and one behind the last.
    let between = (0..20_000).map(|n| (140_001 + n * 2, 11));
    for (slot, epoch) in between.chain([(rows * 2 + 50, 11)]) {
        copy.apply([RowChange { reference: reference(slot), version: Version(4), epoch, row: Some((&key, &value)) }]);
    }
    copy.complete(11);
    let merged = copy.merge(11).unwrap();
    assert_eq!((merged.replaced, merged.made), (1, 2), "the one behind the last waits in the delta");
    assert_eq!(copy.size().delta_rows, 1);
    let view = copy.view(11).unwrap();
    assert_eq!(rows_of(&view).len(), 170_001);
    assert_eq!(copy.view(10).err(), Some(NoView::Past { since: 11 }));
}

/// A row changes after the epoch of a merge: the merge ends the row in the new segment too. True if a view then has the row once.
fn is_ended_after_a_merge() -> bool {
    let schema = schema();
    let copy = new_copy(&schema, Kept::All, CopyConfig { segment_rows: 24, changes_min: 1, changed_part: 8 });
    let mut builder = copy.build();
    let (key, value) = bytes(&schema, &(1, None, 1));
    builder.append(reference(1), &key, &value).unwrap();
    copy.install(builder, 1).unwrap();
    for epoch in [2, 3] {
        let (key, value) = bytes(&schema, &(1, None, epoch as i32));
        let version = Version(u64::from(epoch) * 4);
        copy.apply([RowChange { reference: reference(1), version, epoch, row: Some((&key, &value)) }]);
    }
    copy.complete(3);
    assert_eq!(copy.merge(2).unwrap().made, 1);
    rows_of(&copy.view(3).unwrap()) == [(1, None, 3)]
}

#[test]
fn a_merge_keeps_the_ends_of_later_epochs() {
    use farhold_planted::Defect;
    assert!(is_ended_after_a_merge());
    assert!(!farhold_planted::with(Defect::MergedEndsLost, is_ended_after_a_merge), "a planted defect is noticed");
}

/// A row that changes all the time: its ended states do not stay in the delta, and a view that is held has its row.
#[test]
#[cfg_attr(miri, ignore = "takes too long there")]
fn states_that_have_ended_go() {
    let schema = schema();
    let copy = new_copy(&schema, Kept::All, CopyConfig::default());
    copy.install(copy.build(), 1).unwrap();
    let (mut held, mut most) = (None, 0);
    for epoch in 2..6_000 {
        let (key, value) = bytes(&schema, &(7, None, epoch as i32));
        let row = Some((key.as_slice(), value.as_slice()));
        copy.apply([RowChange { reference: reference(4), version: Version(u64::from(epoch) * 4), epoch, row }]);
        copy.complete(epoch);
        if epoch == 3_000 {
            held = Some(copy.view(epoch).unwrap());
        }
        copy.merge(epoch).unwrap();
        most = most.max(copy.size().delta_rows);
    }
    assert!(most < 4_000, "{most} states of one row");
    assert_eq!(rows_of(&held.unwrap()), [(7, None, 3_000)]);
    assert_eq!(rows_of(&copy.view(5_999).unwrap()), [(7, None, 5_999)]);
}

/// A change that arrives before its epoch is complete is merged once the epoch is complete, even if nothing else arrives.
#[test]
fn the_last_change_is_merged_too() {
    let schema = schema();
    let copy =
        new_copy(&schema, Kept::All, CopyConfig { changes_min: 1, changed_part: usize::MAX, ..CopyConfig::default() });
    copy.install(copy.build(), 1).unwrap();
    let (key, value) = bytes(&schema, &(7, None, 1));
    let row = Some((key.as_slice(), value.as_slice()));
    copy.apply([RowChange { reference: reference(4), version: Version(4), epoch: 3, row }]);
    copy.complete(2);
    copy.merge(u32::MAX).unwrap();
    assert_eq!(copy.size().delta_rows, 1);
    copy.complete(3);
    copy.merge(u32::MAX).unwrap();
    assert_eq!((copy.size().delta_rows, copy.size().segment_rows), (0, 1));
}

/// A copy that keeps some columns has their values, also after merges, and nothing of the others.
#[test]
fn a_copy_of_some_columns() {
    let schema = schema();
    let config = CopyConfig { segment_rows: 64, changes_min: 1, changed_part: usize::MAX };
    let (some, all) = (new_copy(&schema, Kept::These(Arc::from([0, 2])), config), new_copy(&schema, Kept::All, config));
    for copy in [&some, &all] {
        let mut builder = copy.build();
        for slot in 1..=500_u32 {
            let (key, value) = bytes(&schema, &(slot.into(), Some(slot), -(slot as i32)));
            builder.append(reference(slot), &key, &value).unwrap();
        }
        copy.install(builder, 1).unwrap();
        let (key, value) = bytes(&schema, &(7, Some(9), 1000));
        let row = Some((&key[..], &value[..]));
        copy.apply([RowChange { reference: reference(7), version: Version(4), epoch: 2, row }]);
        copy.complete(2);
        assert!(copy.merge(2).unwrap().made > 0);
    }
    assert!(some.size().segment_bytes < all.size().segment_bytes, "{:?} {:?}", some.size(), all.size());
    let view = some.view(2).expect("a view");
    assert!(view.kept().has(0) && !view.kept().has(1) && view.kept().has(2));
    let mut found = Vec::new();
    for part in view.parts() {
        let ViewPart::Segment(segment) = part else { panic!("all has been merged") };
        let chunks = segment.chunks();
        for row in 0..segment.rows() {
            assert!(chunks[1].text(row).is_none_or(<[u8]>::is_empty), "a text that is not kept");
            found.push((chunks[0].integer(row).unwrap(), chunks[2].integer(row).unwrap()));
        }
    }
    found.sort_unstable();
    let expected: Vec<_> = (1..=500).map(|id| (id, if id == 7 { 1000 } else { -id })).collect();
    assert_eq!(found, expected);
}

/// A segment that has few rows because they are long is rebuilt once they have changed or been deleted.
#[test]
fn short_segments_are_made_anew() {
    let schema = schema();
    let copy = new_copy(&schema, Kept::All, CopyConfig { segment_rows: 200, ..CopyConfig::default() });
    let mut builder = copy.build();
    for slot in 1..=800_u32 {
        let (key, value) = bytes(&schema, &(slot.into(), Some(slot), 0));
        builder.append(reference(slot), &key, &value).unwrap();
    }
    copy.install(builder, 1).unwrap();
    let delete = |slot| RowChange { reference: reference(slot), version: Version(4), epoch: 2, row: None };
    // All rows of the first segments are deleted, and half of those of the third.
    copy.apply((1..=500).map(delete));
    copy.complete(2);
    assert_eq!(copy.merge(2).unwrap().replaced, 2);
    assert_eq!((copy.size().segment_rows, copy.size().delta_rows), (400, 100));
    assert_eq!(rows_of(&copy.view(2).expect("a view")).len(), 300);
}

/// Each row is found by its slot, and no other, however the slots are spaced.
#[test]
fn rows_of_uneven_slots_end() {
    let schema = schema();
    let spacings: [fn(u32) -> u32; 3] = [|n| n, |n| n * n, |n| 100_000 - (300 - n) * (300 - n)];
    for slot_of in spacings {
        let copy = new_copy(&schema, Kept::All, CopyConfig::default());
        let mut builder = copy.build();
        for n in 1..=300 {
            let (key, value) = bytes(&schema, &(n.into(), Some(n), 0));
            builder.append(reference(slot_of(n)), &key, &value).unwrap();
        }
        copy.install(builder, 1).unwrap();
        let there: Vec<u32> = (1..=300).map(slot_of).collect();
        let delete = |slot| RowChange { reference: reference(slot), version: Version(4), epoch: 2, row: None };
        copy.apply((1..=100_000).filter(|slot| there.binary_search(slot).is_err()).map(delete));
        copy.complete(2);
        assert_eq!(rows_of(&copy.view(2).expect("a view")).len(), 300);
        for (deleted, slot) in there.iter().enumerate() {
            copy.apply([RowChange { epoch: 3 + deleted as u32, ..delete(*slot) }]);
            copy.complete(3 + deleted as u32);
            assert_eq!(rows_of(&copy.view(3 + deleted as u32).expect("a view")).len(), 299 - deleted);
        }
    }
}

/// A few long rows are merged too.
#[test]
fn long_rows_are_merged() {
    let schema = schema();
    let copy = new_copy(&schema, Kept::All, CopyConfig::default());
    copy.install(copy.build(), 1).unwrap();
    let (key, mut value) = bytes(&schema, &(1, Some(1), 0));
    value.resize(60_000, 0);
    let row = Some((&key[..], &value[..]));
    let insert = |slot| RowChange { reference: reference(slot), version: Version(4), epoch: 2, row };
    copy.apply((1..=60).map(insert));
    copy.complete(2);
    assert_eq!(copy.merge(2).unwrap().made, 0, "3.6 MB");
    copy.apply((61..=80).map(|slot| RowChange { epoch: 3, ..insert(slot) }));
    copy.complete(3);
    assert_eq!(copy.merge(3).unwrap().made, 1, "4.8 MB");
}

/// A merge or a build that finds no memory changes nothing, and succeeds once there is memory.
#[test]
fn full_memory() {
    let (schema, memory) = (schema(), memory(64 << 10));
    let config = CopyConfig { segment_rows: 64, changes_min: 1, changed_part: usize::MAX };
    let copy = ColumnCopy::new(&schema, Kept::All, config, &memory);
    let insert = |slots: std::ops::RangeInclusive<u32>| {
        let mut builder = copy.build();
        for slot in slots {
            let (key, value) = bytes(&schema, &(slot.into(), Some(slot), 0));
            builder.append(reference(slot), &key, &value)?;
        }
        copy.install(builder, 1)
    };
    assert!(matches!(insert(1..=10_000), Err(NoMemory { .. })));
    assert_eq!(copy.view(1).err(), Some(NoView::Building));
    let reclaim = || memory.reclaim(|| 1, || u32::MAX);
    reclaim();
    insert(1..=1_000).unwrap();
    // While it is rebuilt, all of it is needed twice.
    let rest: Vec<_> = std::iter::from_fn(|| memory.store([&[0; 64][..]]).ok()).collect();
    let (key, value) = bytes(&schema, &(7, None, 1));
    copy.apply([RowChange { reference: reference(7), version: Version(4), epoch: 2, row: Some((&key, &value)) }]);
    copy.complete(2);
    for _ in 0..2 {
        assert_eq!(rows_of(&copy.view(2).unwrap()).len(), 1_000);
        if copy.merge(2).is_ok() {
            assert_eq!(copy.size().delta_rows, 1, "it is not tried again, and nothing is lost");
        }
    }
    drop(rest);
    reclaim();
    assert_eq!(copy.merge(2).unwrap().made, 1);
    assert_eq!((copy.size().delta_rows, rows_of(&copy.view(2).unwrap()).len()), (0, 1_000));
}

/// Any bytes that do not describe a view are an error.
#[test]
fn a_damaged_description() {
    let (schema, memory) = (schema(), memory(1 << 20));
    let config = CopyConfig { segment_rows: 40, ..CopyConfig::default() };
    let copy = ColumnCopy::new(&schema, Kept::All, config, &memory);
    let mut builder = copy.build();
    for slot in 1..=60_u32 {
        let (key, value) = bytes(&schema, &(slot.into(), Some(slot), 0));
        builder.append(reference(slot), &key, &value).unwrap();
    }
    copy.install(builder, 1).unwrap();
    let (key, value) = bytes(&schema, &(7, Some(1), 1));
    copy.apply([RowChange { reference: reference(7), version: Version(4), epoch: 2, row: Some((&key, &value)) }]);
    copy.complete(2);
    let (good, asked) =
        (copy.view(2).unwrap().describe(TABLE, &[0, 1, 2], usize::MAX).unwrap(), asked(&schema, &memory, 2));
    assert_eq!(FarView::read(good.clone(), &asked).unwrap().delta_rows(), 1);
    assert!(copy.view(2).unwrap().describe(TABLE, &[0], good.len() / 2).is_none());
    for other in [Asked { epoch: 1, ..asked }, Asked { table: TableId(1), ..asked }, Asked { columns: 2, ..asked }] {
        assert!(FarView::read(good.clone(), &other).is_err());
    }
    for len in 0..good.len() {
        assert!(FarView::read(good[..len].to_vec(), &asked).is_err());
    }
    // A segment of one block, without columns, that claims bits of more blocks than it may have, or than are present.
    for (blocks, bytes, what) in [(2_u32, 2 * 132, "the bits of a segment"), (30, 132, "it is cut off")] {
        let mut bad = good[..16].to_vec();
        for number in [0, 1, 40, blocks] {
            bad.extend_from_slice(&number.to_le_bytes());
        }
        bad.resize(bad.len() + bytes, 0);
        let of_none = Asked { columns: 0, ..asked };
        assert_eq!(FarView::read_checked(bad.len(), bad, &of_none).err(), Some(Damaged { what }));
    }
    let (mut refused, len) = (0, good.len() - 8);
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FarView::read(bad.clone(), &asked).err(), Some(Damaged { what: "its checksum" }));
        // Also where the checksum is right.
        refused += usize::from(FarView::read_checked(len, bad, &asked).is_err());
    }
    assert!(refused > 0);
}
