//! Delivery (clause 2.7.4): the oldest undelivered order of each district, all in one transaction.

use super::{CUSTOMER_BYTES, Scratch, district_part_key, line_key, number_at, present};
use crate::workload::tpcc::DISTRICTS;
use crate::workload::tpcc::input::Delivery;
use crate::workload::tpcc::population::TableKind;
use crate::workload::tpcc::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{RowHandle, ScanSpec, Txn, TxnError};

/// An order's row with header and key.
const ORDER_BYTES: u64 = 96;

/// What the result file records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Orders delivered.
    pub orders: u8,
    /// Districts without an undelivered order.
    pub skipped: u8,
}

/// Delivers. The districts take each step together, so that the cache misses of one step overlap.
///
/// # Errors
/// As the transaction's operations.
pub async fn delivery(
    txn: &mut Txn,
    tables: &Tables,
    input: &Delivery,
    date: i64,
    scratch: &mut Scratch,
) -> Result<Delivered, TxnError> {
    let columns = &tables.columns;
    let table = |kind| tables.get(kind);
    for d_id in 1..=DISTRICTS as i16 {
        txn.prefetch(table(TableKind::NewOrder), district_part_key(input.w_id, d_id, 0).as_slice());
    }
    let orders = &mut scratch.orders;
    orders.clear();
    for d_id in 1..=DISTRICTS as i16 {
        let Some(entry) = oldest(txn, tables, input.w_id, d_id, &mut scratch.rows).await? else { continue };
        let o_id = number_at(txn.key(entry), 6)?;
        txn.delete(entry)?;
        let key = district_part_key(input.w_id, d_id, o_id);
        txn.prefetch(table(TableKind::Orders), key.as_slice());
        txn.prefetch(table(TableKind::OrderLine), line_key(input.w_id, d_id, o_id, 0).as_slice());
        orders.push((d_id, o_id, 0));
    }
    for (d_id, o_id, _) in orders.iter() {
        let key = district_part_key(input.w_id, *d_id, *o_id);
        txn.prefetch_row(table(TableKind::Orders), key.as_slice(), ORDER_BYTES);
    }
    for (d_id, o_id, c_id) in orders.iter_mut() {
        let order_key = district_part_key(input.w_id, *d_id, *o_id);
        let order = present(TableKind::Orders, txn.get(table(TableKind::Orders), order_key.as_slice()).await?)?;
        let order = txn.value_mut(order);
        columns.orders.carrier_id.set(order, Some(input.carrier_id));
        *c_id = columns.orders.c_id.get(order);
        txn.prefetch(table(TableKind::Customer), district_part_key(input.w_id, *d_id, *c_id).as_slice());
    }
    for &(d_id, o_id, c_id) in orders.iter() {
        let customer_key = district_part_key(input.w_id, d_id, c_id);
        txn.prefetch_row(table(TableKind::Customer), customer_key.as_slice(), CUSTOMER_BYTES);
        let amount = deliver_lines(txn, tables, input, d_id, o_id, date, &mut scratch.rows).await?;
        let customer =
            present(TableKind::Customer, txn.get(table(TableKind::Customer), customer_key.as_slice()).await?)?;
        let customer = txn.value_mut(customer);
        let c = &columns.customer;
        c.balance.set(customer, c.balance.get(customer) + amount);
        c.delivery_cnt.set(customer, c.delivery_cnt.get(customer) + 1);
    }
    let count = orders.len() as u8;
    Ok(Delivered { orders: count, skipped: DISTRICTS as u8 - count })
}

/// The first `new_order` of a district.
async fn oldest(
    txn: &mut Txn,
    tables: &Tables,
    w_id: i32,
    d_id: i16,
    rows: &mut Vec<RowHandle>,
) -> Result<Option<RowHandle>, TxnError> {
    let low = StackKey::<6>::new().with(w_id).with(d_id);
    let high = low.next_prefix();
    let spec = ScanSpec::range(low.as_slice(), high.as_slice()).limit(1);
    rows.clear();
    txn.scan_into(tables.get(TableKind::NewOrder), spec, rows).await?;
    Ok(rows.first().copied())
}

/// Delivers an order's lines; returns the sum of their amounts.
async fn deliver_lines(
    txn: &mut Txn,
    tables: &Tables,
    input: &Delivery,
    d_id: i16,
    o_id: i32,
    date: i64,
    rows: &mut Vec<RowHandle>,
) -> Result<i64, TxnError> {
    let low = district_part_key(input.w_id, d_id, o_id);
    let high = low.next_prefix();
    rows.clear();
    txn.scan_into(tables.get(TableKind::OrderLine), ScanSpec::range(low.as_slice(), high.as_slice()), rows).await?;
    let columns = &tables.columns.order_line;
    let mut amount = 0;
    for &line in rows.iter() {
        let line = txn.value_mut(line);
        amount += i64::from(columns.amount.get(line));
        columns.delivery_d.set(line, Some(date));
    }
    Ok(amount)
}
