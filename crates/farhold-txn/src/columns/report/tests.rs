use super::*;
use crate::base::definition::{KeptColumns, TableDef};
use crate::node::{Node, NodeConfig};
use crate::protocol::snapshot::PageTask;
use crate::protocol::worker::Retry;
use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, NodeId};
use farhold_store::column::copy::{ColumnCopy, CopyConfig, Kept};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use std::sync::Arc;

fn table(name: &str, reason: Option<NoColumns>) -> TableColumns {
    let size = CopySize { segments: 2, segment_rows: 30, segment_bytes: 4_000, delta_rows: 5, delta_bytes: u64::MAX };
    TableColumns { table: name.to_owned(), reason, table_rows: 70, size, epochs_behind: 7 }
}

fn read(text: &str) -> ColumnReport {
    let mut report = ColumnReport::default();
    text.lines().filter_map(|line| line.split_once(' ')).for_each(|(name, value)| report.add_line(name, value));
    report
}

#[test]
fn reports_come_back() {
    let reasons = NoColumns::EXAMPLES.map(Some).into_iter().chain([None]);
    let mut tables: Vec<_> = reasons.map(|reason| table("lines", reason)).collect();
    tables.extend(["", " two words ", "a\nb\r", "\\", "\\a;", "ä\u{85}\u{2028}"].map(|name| table(name, None)));
    let report = ColumnReport::new(tables, 99, 3);
    let text = report.to_string();
    assert_eq!(text.lines().count(), 1 + report.tables.len(), "{text}");
    assert_eq!(read(&text), report);
    assert_eq!(ColumnReport::default().to_string(), "", "a node without columns says nothing of them");
}

/// As another version may have it.
#[test]
fn what_makes_no_sense_is_left_out() {
    let line = table("lines", None).to_string();
    for (from, to) in [("kept", "99:0"), ("kept", "so"), ("70", "many"), (" 30 4000", ""), ("lines", "\\zz;")] {
        assert!(line.contains(from), "{line}");
        assert_eq!(read(&format!("columns {}\nother 1\n", line.replace(from, to))), ColumnReport::default(), "{to}");
    }
}

#[test]
fn those_that_cannot_be_read_come_first() {
    let mut tables: Vec<_> = (0..70).map(|number| table(&number.to_string(), None)).collect();
    tables.push(table("new", Some(NoColumns::Building)));
    let report = ColumnReport::new(tables, 0, 0);
    assert_eq!((report.tables.len(), report.left_out), (64, 7));
    assert_eq!((&*report.tables[0].table, &*report.tables[1].table), ("new", "0"));
}

#[test]
fn a_build_has_a_percentage() {
    let building = |segment_rows, table_rows| {
        let mut it = table("new", Some(NoColumns::Building));
        (it.size.segment_rows, it.table_rows) = (segment_rows, table_rows);
        it.built_percent()
    };
    assert_eq!(
        [building(0, 0), building(0, 9), building(1, 3), building(3, 3), building(4, 3)].map(Option::unwrap),
        [0, 0, 33, 100, 100]
    );
    assert_eq!(table("old", None).built_percent().or(table("gone", Some(NoColumns::NoRoom)).built_percent()), None);
}

/// The thread that serves other nodes makes the report, so it does not wait while many changes are applied.
#[test]
fn a_report_does_not_wait_for_changes() {
    let executor = Executor::virtual_time(1);
    let fabric = Sim::new(&executor.handle(), Rdma, Faults::default()).join(NodeId(0)).expect("a fabric");
    let node = Node::open(fabric, NodeConfig { region_bytes: 8 << 20, ..NodeConfig::default() }).expect("a node");
    let worker = node.worker(&executor.handle()).expect("a worker");
    let feed = node.column_feed().expect("it is alone").clone();
    executor.run(async {
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let definition = TableDef { columns: KeptColumns::All, ..TableDef::new("t", schema) };
        worker.create_table(definition).await.expect("a table");
    });
    let table = node.table("t").expect("created");
    let memory = feed.memory().expect("a region");
    let copy = Arc::new(ColumnCopy::new(table.schema(), Kept::All, CopyConfig::default(), memory));
    assert!(feed.add(table.id(), copy.clone(), 0));
    let mut answered = None;
    // It asks for the first change while it holds the locks under which it applies them.
    copy.apply(std::iter::from_fn(|| {
        let (node, (told, answer)) = (node.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || told.send(node.column_report()));
        answered = Some(answer.recv_timeout(std::time::Duration::from_mins(1)));
        None
    }));
    let report = answered.expect("asked").expect("a report");
    assert_eq!((report.tables.len(), report.tables[0].reason), (1, Some(NoColumns::Building)));
    drop((worker, executor));
}

/// While a table's first segments are made, the node's report shows how many of its rows they have, and afterwards what became of them.
#[test]
fn a_first_build_is_reported() {
    let executor = Executor::virtual_time(1);
    let fabric = Sim::new(&executor.handle(), Rdma, Faults::default()).join(NodeId(0)).expect("a fabric");
    let node = Node::open(fabric, NodeConfig { region_bytes: 8 << 20, ..NodeConfig::default() }).expect("a node");
    let worker = node.worker(&executor.handle()).expect("a worker");
    let feed = node.column_feed().expect("it is alone").clone();
    executor.run(async {
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        for (name, columns) in [("t", KeptColumns::All), ("small", KeptColumns::Auto), ("rows", KeptColumns::None)] {
            let definition = TableDef { columns, ..TableDef::new(name, schema.clone()) };
            worker.create_table(definition).await.expect("a table");
        }
        let table = node.table("t").expect("created");
        let report = || -> TableColumns {
            let mut report = node.column_report();
            assert_eq!(report.tables.len(), 1, "{report}");
            report.tables.remove(0)
        };
        let mut value = Vec::new();
        schema.encode_value(&[Datum::Int(0)], &mut value).expect("a value");
        let filled = worker.run(Retry::never(), async |txn| {
            for id in 0..100_u32 {
                txn.insert(&table, &(id ^ 1 << 31).to_be_bytes(), &value).await?;
            }
            Ok(())
        });
        filled.await.expect("rows");
        let begins = report();
        assert_eq!(
            (begins.reason, begins.built_percent(), begins.table_rows),
            (Some(NoColumns::Building), Some(0), 100)
        );

        let memory = feed.memory().expect("a region");
        let config = CopyConfig { segment_rows: 32, ..CopyConfig::default() };
        let copy = Arc::new(ColumnCopy::new(table.schema(), Kept::All, config, memory));
        assert!(feed.add(table.id(), copy.clone(), 0));
        let snapshot = worker.snapshot().await.expect("a snapshot");
        let mut tasks = snapshot.own_pages(&table).expect("pages");
        tasks.sort_by_key(PageTask::first_page);
        let (mut builder, mut seen) = (copy.build(), Vec::new());
        for task in &tasks {
            let mut append = |reference, key: &[u8], value: &[u8]| {
                builder.append(reference, key, value).expect("room");
                seen.push(report().built_percent());
            };
            snapshot.scan_objects(task, &mut append).expect("rows");
        }
        let expected: Vec<_> = (0..100).map(|row| Some(row / 32 * 32)).collect();
        assert_eq!(seen, expected);
        copy.install(builder, snapshot.epoch()).expect("room");
        let built = report();
        assert_eq!((built.reason, built.built_percent(), built.size.segment_rows), (None, None, 100));
        assert!(built.size.segments == 4 && built.size.segment_bytes > 0, "{built}");

        feed.offer(&[0; 10]);
        feed.close(copy.complete_to() + 5);
        assert_eq!((report().epochs_behind, node.column_report().waiting_bytes), (5, 10));
        feed.set_without_room(table.id(), &copy, 1, 0);
        assert_eq!((report().reason, report().size.bytes()), (Some(NoColumns::NoRoom), 0));
        feed.forget_need(table.id());
        feed.lose();
        assert_eq!((report().reason, node.column_report().losses), (Some(NoColumns::Building), 1));
    });
    drop((worker, executor));
}
