//! The rows of `region`, `nation` and `supplier`.

use super::{NATIONS, REGIONS, SUPPLIERS, TABLES};
use crate::random::{ALPHANUMERIC, Random};
use farhold_store::row::{Datum, RowError, Schema};
use farhold_txn::{Node, Retry, TxnError, Worker};

/// Rows of one transaction; they go to every node.
const ROWS_PER_TRANSACTION: usize = 64;

/// The tables, in the order of [`TABLES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChTable {
    /// `region`
    Region,
    /// `nation`
    Nation,
    /// `supplier`
    Supplier,
}

/// Encoded rows: table, key, value.
pub type ChRows = Vec<(ChTable, Vec<u8>, Vec<u8>)>;

/// All rows, in key order within each table.
///
/// # Errors
/// None in practice: the rows fit their tables.
pub fn rows(seed: u64) -> Result<ChRows, RowError> {
    let schemas = TABLES.map(|table| table.schema());
    let mut rows = Vec::new();
    for (key, name) in (0..).zip(REGIONS) {
        let row = [Datum::Int(key), text(name), text(&format!("the nations of {name}"))];
        rows.push(encode(&schemas, ChTable::Region, &row)?);
    }
    for (key, (name, region)) in ALPHANUMERIC.iter().zip(NATIONS) {
        let comment = format!("customers whose state begins with {}", char::from(*key));
        let row = [Datum::Int(i32::from(*key)), text(name), Datum::Int(region), text(&comment)];
        rows.push(encode(&schemas, ChTable::Nation, &row)?);
    }
    let mut random = Random::part(seed, &[7]);
    for key in 0..SUPPLIERS {
        let nation = i32::from(ALPHANUMERIC[random.below(62) as usize]);
        let acctbal = Datum::Decimal { unscaled: i128::from(random.between(-99_999, 999_999)), scale: 2 };
        // One comment in a hundred is a complaint.
        let comment = if random.percent(1) { "bad service, customers complain" } else { "good service" };
        let row = [
            Datum::Int(key),
            text(&format!("Supplier#{key:09}")),
            text(&random_text(&mut random, 10, 40)),
            Datum::Int(nation),
            text(&format!("{nation:02}-{:03}-{:04}", random.below(1000), random.below(10_000))),
            acctbal,
            text(&format!("{comment} {}", random_text(&mut random, 20, 60))),
        ];
        rows.push(encode(&schemas, ChTable::Supplier, &row)?);
    }
    Ok(rows)
}

/// Creates the three tables on all nodes.
///
/// # Errors
/// As [`Worker::create_table`].
pub async fn create(worker: &Worker) -> Result<(), TxnError> {
    for spec in &TABLES {
        worker.create_table(spec.definition()).await?;
    }
    Ok(())
}

/// Loads the three tables.
///
/// # Errors
/// As [`farhold_txn::Txn::insert`]; a table is missing.
pub async fn load(worker: &Worker, node: &Node, seed: u64) -> Result<u64, TxnError> {
    let find = |name: &str| node.table(name).ok_or_else(|| TxnError::NotFound { what: format!("table {name}").into() });
    let tables = [find(TABLES[0].name)?, find(TABLES[1].name)?, find(TABLES[2].name)?];
    let rows = rows(seed)?;
    for batch in rows.chunks(ROWS_PER_TRANSACTION) {
        worker
            .run(Retry::default(), async |txn| {
                for (table, key, value) in batch {
                    txn.insert(&tables[*table as usize], key, value).await?;
                }
                Ok(())
            })
            .await?;
        worker.poll();
    }
    Ok(rows.len() as u64)
}

fn text(text: &str) -> Datum {
    Datum::Text(text.to_owned())
}

fn random_text(random: &mut Random, min: i32, max: i32) -> String {
    let mut bytes = vec![0; random.between(min, max) as usize];
    random.fill_alphanumeric(&mut bytes);
    bytes.into_iter().map(char::from).collect()
}

fn encode(schemas: &[Schema; 3], table: ChTable, row: &[Datum]) -> Result<(ChTable, Vec<u8>, Vec<u8>), RowError> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let schema = &schemas[table as usize];
    schema.encode_key(row, &mut key)?;
    schema.encode_value(row, &mut value)?;
    Ok((table, key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sixty_two_nations_in_five_regions_and_ten_thousand_suppliers() {
        let rows = rows(1).unwrap();
        let count = |table| rows.iter().filter(|r| r.0 == table).count();
        assert_eq!([ChTable::Region, ChTable::Nation, ChTable::Supplier].map(count), [5, 62, 10_000]);
        let names: HashSet<&str> = NATIONS.iter().map(|n| n.0).collect();
        assert!(names.len() == 62 && names.contains("Germany") && names.contains("Cambodia"));
        assert!(NATIONS.iter().all(|n| (0..5).contains(&n.1)));
        let schema = TABLES[2].schema();
        let mut row = Vec::new();
        let complaints = rows.iter().filter(|(table, key, value)| {
            *table == ChTable::Supplier && {
                schema.decode_row(key, value, &mut row).unwrap();
                matches!(&row[6], Datum::Text(comment) if comment.contains("bad"))
            }
        });
        assert!((50..200).contains(&complaints.count()));
        assert!(super::super::ddl().contains("CREATE TABLE supplier"));
    }
}
