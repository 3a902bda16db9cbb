//! Changes of a table's attributes, which the layer above relies on when it writes rows.

use super::*;

fn value(table: &Table, age: i32) -> Vec<u8> {
    let mut value = Vec::new();
    table.schema().encode_value(&[Datum::Int(0), Datum::Int(age)], &mut value).expect("a value");
    value
}

fn key(id: u32) -> [u8; 4] {
    (id ^ 0x8000_0000).to_be_bytes()
}

/// The first key from `id` on whose row is on the node of this worker.
fn near(worker: &Worker, table: &Table, id: u32) -> [u8; 4] {
    (id..id + 1_000).map(key).find(|key| table.home_of(key) == worker.core.me).expect("a key")
}

async fn rows(worker: &Worker, table: &Table) -> usize {
    let snapshot = worker.snapshot().await.expect("a snapshot");
    let mut rows = 0;
    for task in worker.snapshot_pages(&snapshot, table).await.expect("pages") {
        worker.scan_page(&snapshot, &task, &mut |_, _| rows += 1).await.expect("rows");
    }
    rows
}

/// All nodes have a change when it is over. Transactions that have begun before on a node do not commit what they write.
#[test]
fn who_has_found_older_attributes_does_not_commit() {
    with_two(async |[one, two], table| {
        let there = two.node().table("people").expect("the table");
        let (mut writer, mut reader) = (two.begin(), two.begin());
        writer.insert(&there, &near(two, &there, 1), &value(&there, 1)).await.expect("reserved");
        assert!(reader.get(&there, &near(two, &there, 100)).await.expect("read").is_none());
        let (before, version) = (there.attributes(), there.attributes_version());
        assert!(before.is_empty());
        let changed = one.change_attributes(&table, |old| Ok([old, b"one"].concat())).await;
        assert_eq!(changed, Ok(()));
        for table in [&table, &there] {
            assert_eq!((&*table.attributes(), table.attributes_version()), (&b"one"[..], version + 1));
        }
        assert_eq!(writer.commit().await.map(drop), Err(TxnError::Conflict));
        assert_eq!(reader.commit().await.map(drop), Ok(()), "it writes nothing");
        let mut later = two.begin();
        later.insert(&there, &near(two, &there, 1), &value(&there, 1)).await.expect("reserved");
        assert_eq!(later.commit().await.map(drop), Ok(()));
        assert_eq!(system::differences(one.node()), Vec::<String>::new());
        assert_eq!(system::differences(two.node()), Vec::<String>::new());
    });
}

/// A node that has not taken the change over yet commits by the older attributes. The change waits for that node, and a snapshot after it
/// has the row.
#[test]
fn what_a_node_commits_before_it_hears_of_a_change_is_in_later_snapshots() {
    with_two_served(async |[one, two], table, is_served| {
        let there = two.node().table("people").expect("the table");
        one.change_attributes(&table, |_| Ok(b"one".to_vec())).await.expect("changed");
        let mut changing = Box::pin(one.change_attributes(&table, |_| Ok(b"two".to_vec())));
        while futures::poll!(&mut changing).is_pending() && *table.attributes() != b"two"[..] {
            one.handle().yield_now().await;
        }
        // The message for the other node is in its inbox.
        is_served.set(false);
        let (mut writer, mut late) = (two.begin(), two.begin());
        assert_eq!(*there.attributes(), b"one"[..]);
        writer.insert(&there, &near(two, &there, 1), &value(&there, 1)).await.expect("reserved");
        late.insert(&there, &near(two, &there, 100), &value(&there, 2)).await.expect("reserved");
        assert_eq!(writer.commit().await.map(drop), Ok(()));
        assert!(futures::poll!(&mut changing).is_pending(), "a node has not answered");
        is_served.set(true);
        changing.await.expect("changed");
        assert_eq!(*there.attributes(), b"two"[..]);
        assert_eq!(rows(one, &table).await, 1);
        assert_eq!(late.commit().await.map(drop), Err(TxnError::Conflict));
    });
}

/// Each of two changes at the same time is made of the other's outcome.
#[test]
fn no_change_of_attributes_is_lost() {
    with_two(async |[one, two], table| {
        let there = two.node().table("people").expect("the table");
        for round in 1..=20 {
            let add = |old: &[u8]| Ok([old, b"."].concat());
            let both = futures::join!(one.change_attributes(&table, add), two.change_attributes(&there, add));
            assert_eq!(both, (Ok(()), Ok(())));
            assert_eq!((table.attributes().len(), there.attributes().len()), (2 * round, 2 * round));
        }
        let refused = one.change_attributes(&table, |_| Err(TxnError::NotFound { what: "it".into() })).await;
        assert_eq!(refused, Err(TxnError::NotFound { what: "it".into() }));
        assert_eq!(table.attributes().len(), 40);
        one.drop_table(&table).await.expect("dropped");
        let gone = one.change_attributes(&table, add_nothing).await;
        assert_eq!(gone, Err(TxnError::SchemaChanged));
    });
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a change")]
fn add_nothing(old: &[u8]) -> Result<Vec<u8>, TxnError> {
    Ok(old.to_vec())
}
