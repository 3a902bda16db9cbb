//! Delivery (clause 2.7.4): the oldest undelivered order of each district, all in one transaction.

use super::{Scratch, district_part_key, number_at, present};
use crate::workload::tpcc::DISTRICTS;
use crate::workload::tpcc::input::Delivery;
use crate::workload::tpcc::population::TableKind;
use crate::workload::tpcc::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{RowHandle, ScanSpec, Txn, TxnError};

/// What the result file records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Orders delivered.
    pub orders: u8,
    /// Districts without an undelivered order.
    pub skipped: u8,
}

/// Delivers.
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
    let mut delivered = Delivered::default();
    for d_id in 1..=DISTRICTS as i16 {
        match oldest(txn, tables, input.w_id, d_id, &mut scratch.rows).await? {
            Some(entry) => {
                let o_id = number_at(txn.key(entry), 6)?;
                txn.delete(entry)?;
                deliver(txn, tables, input, d_id, o_id, date, &mut scratch.rows).await?;
                delivered.orders += 1;
            }
            None => delivered.skipped += 1,
        }
    }
    Ok(delivered)
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

async fn deliver(
    txn: &mut Txn,
    tables: &Tables,
    input: &Delivery,
    d_id: i16,
    o_id: i32,
    date: i64,
    rows: &mut Vec<RowHandle>,
) -> Result<(), TxnError> {
    let columns = &tables.columns;
    let order_key = district_part_key(input.w_id, d_id, o_id);
    let order = present(txn.get(tables.get(TableKind::Orders), order_key.as_slice()).await?)?;
    let order = txn.value_mut(order);
    columns.orders.carrier_id.set(order, Some(input.carrier_id));
    let c_id = columns.orders.c_id.get(order);

    let high = order_key.next_prefix();
    rows.clear();
    let spec = ScanSpec::range(order_key.as_slice(), high.as_slice());
    txn.scan_into(tables.get(TableKind::OrderLine), spec, rows).await?;
    let mut amount = 0;
    for &line in rows.iter() {
        let line = txn.value_mut(line);
        amount += i64::from(columns.order_line.amount.get(line));
        columns.order_line.delivery_d.set(line, Some(date));
    }

    let customer_key = district_part_key(input.w_id, d_id, c_id);
    let customer = present(txn.get(tables.get(TableKind::Customer), customer_key.as_slice()).await?)?;
    let customer = txn.value_mut(customer);
    let c = &columns.customer;
    c.balance.set(customer, c.balance.get(customer) + amount);
    c.delivery_cnt.set(customer, c.delivery_cnt.get(customer) + 1);
    Ok(())
}
