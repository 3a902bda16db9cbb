//! The population satisfies the conditions, and each condition notices a row that is changed, missing or too many.

use super::*;
use crate::workload::tpcc::Scale;
use crate::workload::tpcc::population::{Population, warehouse_units};
use farhold_store::row::StackKey;
use std::collections::BTreeSet;

type Rows = Vec<(TableKind, Vec<u8>, Vec<u8>)>;

fn population() -> Rows {
    let scale = Scale::tiny(2);
    let mut population = Population::new(scale, 9, 1_700_000_000_000_000);
    let mut all = Vec::new();
    for unit in (1..=2).flat_map(|w_id| warehouse_units(scale, w_id)) {
        all.extend(population.rows(unit).iter().map(|(t, k, v)| (t, k.to_vec(), v.to_vec())));
    }
    all
}

fn columns() -> Columns {
    Columns::find(TableSpec::schema).unwrap()
}

fn violated(rows: &Rows) -> BTreeSet<u8> {
    let mut sums = Sums::new(columns());
    for (kind, key, value) in rows {
        sums.add(*kind, key, value).unwrap();
    }
    sums.violations().iter().map(|v| v.condition).collect()
}

#[test]
fn the_population_is_consistent() {
    assert_eq!(violated(&population()), BTreeSet::new());
}

/// Changes one row of the population and says which conditions no longer hold.
fn after(kind: TableKind, key: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut rows = population();
    let row = rows.iter_mut().find(|r| r.0 == kind && r.1.starts_with(key)).unwrap();
    change(&mut row.2);
    violated(&rows).into_iter().collect()
}

fn without(kind: TableKind, key: &[u8]) -> Vec<u8> {
    let mut rows = population();
    let at = rows.iter().position(|r| r.0 == kind && r.1.starts_with(key)).unwrap();
    rows.remove(at);
    violated(&rows).into_iter().collect()
}

#[test]
fn every_condition_notices() {
    let c = columns();
    let warehouse = StackKey::<12>::new().with(2_i32);
    let district = warehouse.with(3_i16);
    let (delivered, open, last) = (district.with(5_i32), district.with(25_i32), district.with(30_i32));
    let warehouse = warehouse.as_slice();
    assert_eq!(after(TableKind::Warehouse, warehouse, |v| c.warehouse.ytd.set(v, 1)), [1, 8]);
    assert_eq!(after(TableKind::District, district.as_slice(), |v| c.district.ytd.set(v, 1)), [1, 9]);
    assert_eq!(after(TableKind::District, district.as_slice(), |v| c.district.next_o_id.set(v, 1)), [2]);
    assert_eq!(without(TableKind::NewOrder, open.as_slice()), [3, 5, 11]);
    assert_eq!(without(TableKind::NewOrder, last.as_slice()), [2, 5, 11]);
    assert_eq!(without(TableKind::OrderLine, open.as_slice()), [4, 6]);
    assert_eq!(after(TableKind::Orders, open.as_slice(), |v| c.orders.ol_cnt.set(v, 99)), [4, 6]);
    assert_eq!(after(TableKind::Orders, open.as_slice(), |v| c.orders.carrier_id.set(v, Some(1))), [5, 7]);
    assert_eq!(after(TableKind::OrderLine, delivered.as_slice(), |v| c.order_line.delivery_d.set(v, None)), [7]);
    assert_eq!(without(TableKind::History, warehouse), [8, 9, 10]);
    assert_eq!(after(TableKind::Customer, delivered.as_slice(), |v| c.customer.balance.set(v, 0)), [10, 12]);
    assert_eq!(after(TableKind::Customer, delivered.as_slice(), |v| c.customer.ytd_payment.set(v, 0)), [12]);
    assert_eq!(after(TableKind::Customer, delivered.as_slice(), |v| c.customer.delivery_cnt.set(v, 1)), [11]);
    assert_eq!(after(TableKind::OrderLine, delivered.as_slice(), |v| c.order_line.amount.set(v, 1)), [10, 12]);
}

#[test]
fn rows_of_another_shape_are_an_error() {
    let mut sums = Sums::new(columns());
    assert!(sums.add(TableKind::District, &[0; 6], &[]).is_err());
    assert!(sums.add(TableKind::NewOrder, &[0; 4], &[]).is_err());
}
