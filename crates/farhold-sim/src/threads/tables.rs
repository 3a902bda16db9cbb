//! Tables that are created and dropped while the clients run, with indexes on them and on the clients' own table; and tables that fill the region, so that
//! pages are released and reused by other tables.
//!
//! A table that comes has a number of rows, which its definition says, and a sum over them, both the same for as long
//! as it is there: its users move amounts from one row to another.

use super::bank::{RETRY, sum_of};
use super::{may_happen, pause};
use crate::workload::{Row, Tables};
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{Index, Placement, Retry, ScanSpec, Snapshot, Table, TableDef, TxnError, Worker};
use std::collections::BTreeSet;

/// How many come and go by turns.
const NAMES: u32 = 3;
/// What a row begins with.
const EACH: i64 = 10;
/// Bytes that fill rows: of a table by its turn.
const FILLERS: [u32; 5] = [8, 150, 850, 2_900, 7_000];
/// Attempts of a look at an index that writers change all the time.
const LOOK: Retry = Retry { attempts_max: 20, backoff_ns: 10_000, backoff_ns_max: 1_000_000 };
/// Rows of a table that fills regions, at most, and of one of its transactions.
const FILLING_ROWS_MAX: u32 = 1_200;
const FILLING_ROWS: u32 = 12;
/// Bytes that fill each of them.
const FILLING_BYTES: u32 = 7_000;
/// When the rows of a table that fills regions are deleted, one in this many stays.
const STAYING: u32 = 32;
/// Turns at least, however soon the clients are done.
const TURNS_MIN: u32 = 2;
/// Regions are filled in one turn in this many.
const TURNS_PER_FILLING: u32 = 4;
/// Between two looks at a snapshot: some turns.
const LOOK_NS_MAX: u64 = 8_000_000;
/// How often a drop is tried in a full region: for as long as a look at a snapshot may take.
const DROPS_MAX: u32 = 2_000;

fn name(turn: u32) -> String {
    format!("coming-{}", turn % NAMES)
}

/// The bytes of a row's filler; each row has different ones.
fn filler(id: u32, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (id.wrapping_mul(31) ^ at) as u8).collect()
}

fn definition(name: &str, turn: u32, rows: u32) -> Result<TableDef, TxnError> {
    let columns = vec![
        Column::new("id", ColumnType::Int),
        Column::new("amount", ColumnType::BigInt),
        Column::new("filler", ColumnType::Bytea),
    ];
    let by_amount = SecondaryIndex { name: format!("{name}_amount"), columns: vec![1], unique: false };
    Ok(TableDef {
        placement: if turn % 4 == 1 { Placement::Replicated } else { Placement::ByInteger },
        hash: turn.is_multiple_of(2),
        indexes: if turn.is_multiple_of(3) { vec![by_amount] } else { Vec::new() },
        attributes: rows.to_le_bytes().into(),
        ..TableDef::new(name, Schema::new(columns, vec![0])?)
    })
}

/// Rows that a table has, and their sum.
fn expected(table: &Table) -> (u64, i64) {
    let rows = table.attributes()[..].try_into().map_or(0, u32::from_le_bytes);
    (u64::from(rows), i64::from(rows) * EACH)
}

fn value(table: &Table, id: u32, bytes: u32) -> Result<Vec<u8>, TxnError> {
    let mut value = Vec::new();
    let row = [Datum::Int(id.cast_signed()), Datum::BigInt(EACH), Datum::Bytea(filler(id, bytes))];
    table.schema().encode_value(&row, &mut value)?;
    Ok(value)
}

/// Checks that the row has the bytes with which it was made; returns its amount.
fn check_row(table: &Table, key: &[u8], value: &[u8]) -> Result<i64, TxnError> {
    let mut row = Vec::new();
    table.schema().decode_row(key, value, &mut row)?;
    match &row[..] {
        [Datum::Int(id), Datum::BigInt(amount), Datum::Bytea(bytes)]
            if *bytes == filler(id.cast_unsigned(), bytes.len() as u32) =>
        {
            Ok(*amount)
        }
        _ => Err(TxnError::Corrupt { what: "a row of a table that came has other bytes than it was made with" }),
    }
}

/// What users of a table that comes and goes may meet.
fn may_be_gone(error: &TxnError) -> bool {
    may_happen(error) || matches!(error, TxnError::SchemaChanged | TxnError::NotFound { .. })
}

fn unless_gone(result: Result<(), TxnError>) -> Result<(), TxnError> {
    result.or_else(|error| if may_be_gone(&error) { Ok(()) } else { Err(error) })
}

/// Moves an amount in one of the tables, if it is there, in a transaction that takes long.
///
/// # Errors
/// What must not happen to it.
pub(super) async fn visit(worker: &Worker) -> Result<(), TxnError> {
    let handle = worker.handle();
    let Some(table) = worker.node().table(&name(handle.random_u64() as u32)) else { return Ok(()) };
    let rows = expected(&table).0;
    let amount = table.layout().i64("amount")?;
    let ids = [1, 2].map(|_| 1 + (handle.random_u64() % rows.max(1)) as u32);
    let moved = worker.run(RETRY, async |txn| {
        let mut found = Vec::new();
        for id in ids {
            let Some(row) = txn.get(&table, &Row::key(id)).await? else { return Ok(()) };
            check_row(&table, txn.key(row), txn.value(row))?;
            found.push(row);
        }
        pause(worker).await;
        for (row, change) in found.into_iter().zip([-1, 1]) {
            let value = txn.value_mut(row);
            amount.set(value, amount.get(value) + change);
        }
        Ok(())
    });
    unless_gone(moved.await)
}

/// Looks at all tables that are there in a snapshot, each twice. The second look comes long enough after its pages were
/// listed for the table to be dropped and its pages to be used again, if that could happen. The table must be whole, or
/// not filled yet.
///
/// # Errors
/// What is wrong, in words.
pub(super) async fn look(worker: &Worker, snapshot: &Snapshot) -> Result<(), String> {
    let mut listed = Vec::new();
    for table in (0..NAMES).filter_map(|turn| worker.node().table(&name(turn))) {
        match worker.snapshot_pages(snapshot, &table).await {
            Err(error) if may_be_gone(&error) => {}
            Err(error) => return Err(format!("pages of {table:?}: {error}")),
            Ok(tasks) => listed.push((table, tasks, None)),
        }
    }
    for _ in 0..2 {
        for (table, tasks, before) in &mut listed {
            let found = sum_of(worker, snapshot, tasks, "amount").await;
            let is_as_before = before.as_ref().is_none_or(|before| *before == found);
            let is_whole = matches!(found, Ok((0, 0))) || found == Ok(expected(table));
            if !is_as_before || !is_whole {
                let (epoch, expected) = (snapshot.epoch(), expected(table));
                return Err(format!(
                    "{table:?} in a snapshot of epoch {epoch}: {found:?} (rows, sum), before {before:?}, not {expected:?}"
                ));
            }
            *before = Some(found);
        }
        worker.handle().sleep_ns(worker.handle().random_u64() % LOOK_NS_MAX).await;
    }
    Ok(())
}

/// Looks at all tables that are there in transactions: each is whole, or not filled.
///
/// # Errors
/// What is wrong, in words.
pub(super) async fn look_now(worker: &Worker) -> Result<(), String> {
    for table in (0..NAMES).filter_map(|turn| worker.node().table(&name(turn))) {
        let found = whole(worker, &table).await.map_err(|error| format!("{table:?}: {error}"))?;
        if found != (0, 0) && found != expected(&table) {
            return Err(format!("{table:?}: {found:?} (rows, sum) of {:?}", expected(&table)));
        }
    }
    Ok(())
}

/// Rows and their sum.
async fn whole(worker: &Worker, table: &Table) -> Result<(u64, i64), TxnError> {
    worker
        .run(LOOK, async |txn| {
            let rows = txn.scan(table, ScanSpec::all()).await?;
            let mut sum = 0;
            for row in &rows {
                sum += check_row(table, txn.key(*row), txn.value(*row))?;
            }
            Ok((rows.len() as u64, sum))
        })
        .await
}

/// Inserts rows with the numbers `ids`, all or none.
async fn fill(worker: &Worker, table: &Table, ids: std::ops::RangeInclusive<u32>, bytes: u32) -> Result<(), TxnError> {
    worker
        .run(Retry::default(), async |txn| {
            for id in ids.clone() {
                txn.insert(table, &Row::key(id), &value(table, id, bytes)?).await?;
            }
            Ok(())
        })
        .await
}

/// Drops a table. What a delete saves for an open snapshot needs memory: in a full region it is tried again.
async fn drop_table(worker: &Worker, table: &Table) -> Result<(), TxnError> {
    let mut dropped = worker.drop_table(table).await;
    for _ in 0..DROPS_MAX {
        if !matches!(dropped, Err(TxnError::OutOfMemory { .. })) {
            break;
        }
        pause(worker).await;
        dropped = worker.drop_table(table).await;
    }
    dropped
}

/// Drops the table of this name, if it is there.
async fn drop_named(worker: &Worker, name: &str) -> Result<(), TxnError> {
    let Some(table) = worker.node().table(name) else { return Ok(()) };
    drop_table(worker, &table).await
}

/// Makes tables and drops them, and indexes on the table of the clients, until `is_over`; of small regions, fills them.
///
/// # Errors
/// What is wrong, in words.
pub(super) async fn come_and_go(
    worker: &Worker,
    seed: u64,
    are_small: bool,
    is_over: impl Fn() -> bool,
) -> Result<(), String> {
    let first = (seed % 30) as u32;
    for (count, turn) in (0_u32..).zip(first..) {
        let is_last = is_over() && count >= TURNS_MIN;
        unless_gone(table_comes(worker, turn).await).map_err(|error| format!("turn {turn}: {error}"))?;
        index_comes(worker, turn, is_last).await.map_err(|error| format!("turn {turn}, an index: {error}"))?;
        if are_small && count.is_multiple_of(TURNS_PER_FILLING) {
            regions_fill(worker).await.map_err(|error| format!("turn {turn}, full regions: {error}"))?;
        }
        if is_last {
            break;
        }
        pause(worker).await;
    }
    Ok(())
}

async fn table_comes(worker: &Worker, turn: u32) -> Result<(), TxnError> {
    let (rows, bytes) = (6 + turn % 7, FILLERS[turn as usize % FILLERS.len()]);
    let name = name(turn);
    drop_named(worker, &name).await?;
    let table = worker.create_table(definition(&name, turn, rows)?).await?;
    match fill(worker, &table, 1..=rows, bytes).await {
        Err(error) if may_be_gone(&error) => return drop_table(worker, &table).await,
        filled => filled?,
    }
    let found = whole(worker, &table).await?;
    if found == expected(&table) {
        Ok(())
    } else {
        Err(TxnError::Corrupt { what: "a table that came has not the rows that it was filled with" })
    }
}

/// Makes an index that every update changes, compares it with the table, and drops it, unless it is to stay.
async fn index_comes(worker: &Worker, turn: u32, stays: bool) -> Result<(), TxnError> {
    const BY_WRITER: usize = 1;
    let table = Tables::of(worker).spread;
    let definition = SecondaryIndex { name: format!("writer-{turn}"), columns: vec![BY_WRITER], unique: false };
    let index = match worker.create_index(&table, definition.clone()).await {
        Err(error) if may_happen(&error) => return Ok(()),
        index => index?,
    };
    let compared = worker.run(LOOK, async |txn| {
        let mut keys = [BTreeSet::new(), BTreeSet::new()];
        for (keys, index) in keys.iter_mut().zip([Index::Primary, index]) {
            for row in txn.scan(&table, ScanSpec::all().index(index)).await? {
                keys.insert(txn.key(row).to_vec());
            }
        }
        let [primary, secondary] = keys;
        Ok(primary == secondary)
    });
    match compared.await {
        Ok(true) => {}
        Ok(false) => return Err(TxnError::Corrupt { what: "an index has other rows than its table" }),
        Err(error) if may_happen(&error) => {}
        Err(error) => return Err(error),
    }
    if stays {
        return Ok(());
    }
    let dropped = worker.drop_index(&table, &definition.name).await;
    dropped.or_else(|error| if may_happen(&error) { Ok(()) } else { Err(error) })
}

/// Fills the regions with rows of one table, deletes most of them, and fills them with rows of another one, of the same size: the pages
/// of the first are released, and the second takes them. The remaining rows of the first must be unchanged.
async fn regions_fill(worker: &Worker) -> Result<(), TxnError> {
    let names = ["filling-0", "filling-1"];
    let mut tables = Vec::new();
    for name in names {
        drop_named(worker, name).await?;
        let made = worker.create_table(TableDef { indexes: Vec::new(), ..definition(name, 0, 0)? }).await;
        match made {
            Err(TxnError::OutOfMemory { .. }) => return Ok(()),
            made => tables.push(made?),
        }
    }
    let mut last = fill_up(worker, &tables[0]).await?;
    let mut staying = 0;
    while last > 0 {
        // The rows of the last transaction that fitted, then those before it.
        let first = last.saturating_sub(FILLING_ROWS) + 1;
        let deleted = worker.run(RETRY, async |txn| {
            for id in (first..=last).filter(|id| id % STAYING != 0) {
                let row = txn.get(&tables[0], &Row::key(id)).await?;
                txn.delete(row.ok_or(TxnError::Corrupt { what: "a row of a full region is gone" })?)?;
            }
            Ok(())
        });
        // An open snapshot wants copies of them, for which there may be no room.
        let are_deleted = match deleted.await {
            Ok(()) => true,
            Err(error) if may_happen(&error) => false,
            Err(error) => return Err(error),
        };
        staying += (first..=last).filter(|id| !are_deleted || id % STAYING == 0).count() as u64;
        last = first - 1;
    }
    fill_up(worker, &tables[1]).await?;
    let found = whole(worker, &tables[0]).await?;
    for table in &tables {
        drop_table(worker, table).await?;
    }
    let is_whole = found == (staying, EACH * staying.cast_signed());
    if is_whole { Ok(()) } else { Err(TxnError::Corrupt { what: "rows of a full region are not what they were" }) }
}

/// Inserts until there is no room, or enough is there; the number of the last row.
async fn fill_up(worker: &Worker, table: &Table) -> Result<u32, TxnError> {
    let mut last = 0;
    while last < FILLING_ROWS_MAX {
        match fill(worker, table, last + 1..=last + FILLING_ROWS, FILLING_BYTES).await {
            Ok(()) => last += FILLING_ROWS,
            Err(error) if may_happen(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(last)
}
