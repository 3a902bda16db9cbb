//! New-order (clause 2.4.2).

use super::{CUSTOMER_BYTES, STOCK_BYTES, Scratch, district_key, district_part_key, line_key, present};
use crate::workload::tpcc::input::NewOrder;
use crate::workload::tpcc::population::TableKind;
use crate::workload::tpcc::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{Txn, TxnError};

/// An item's row with header and key, up to about its end.
const ITEM_BYTES: u64 = 128;

/// What the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ordered {
    /// The order's number.
    pub o_id: i32,
    /// Hundredths of a cent: the sum of the lines less discount, plus taxes.
    pub total: i64,
    /// Lines whose item and stock both are "ORIGINAL", the terminal's brand B.
    pub brand_lines: u8,
}

/// Enters an order. `None`: its last item does not exist, and the caller must roll back (clause 2.4.1.4).
///
/// # Errors
/// As the transaction's operations.
pub async fn new_order(
    txn: &mut Txn,
    tables: &Tables,
    input: &NewOrder,
    entry_d: i64,
    scratch: &mut Scratch,
) -> Result<Option<Ordered>, TxnError> {
    let &NewOrder { w_id, d_id, c_id, .. } = input;
    let lines = &input.lines[..usize::from(input.line_count)];
    let columns = &tables.columns;

    // The cache misses of all items and stock rows overlap: first their buckets, then, with the district's row between, they
    // themselves.
    let (items, stocks) = (tables.get(TableKind::Item), tables.get(TableKind::Stock));
    for line in lines {
        txn.prefetch(items, StackKey::<4>::new().with(line.i_id).as_slice());
        txn.prefetch(stocks, StackKey::<8>::new().with(line.supply_w_id).with(line.i_id).as_slice());
    }
    let customer_key = district_part_key(w_id, d_id, c_id);
    txn.prefetch(tables.get(TableKind::Customer), customer_key.as_slice());
    // Where the order will be inserted: behind the district's last one.
    let last_key = district_part_key(w_id, d_id, i32::MAX);
    txn.prefetch(tables.get(TableKind::Orders), last_key.as_slice());
    txn.prefetch(tables.get(TableKind::NewOrder), last_key.as_slice());
    txn.prefetch(tables.get(TableKind::OrderLine), line_key(w_id, d_id, i32::MAX, 0).as_slice());
    let warehouse = txn.get(tables.get(TableKind::Warehouse), StackKey::<4>::new().with(w_id).as_slice()).await?;
    let w_tax = columns.warehouse.tax.get(txn.value(present(TableKind::Warehouse, warehouse)?));
    txn.prefetch_row(tables.get(TableKind::Customer), customer_key.as_slice(), CUSTOMER_BYTES);
    let district = txn.get(tables.get(TableKind::District), district_key(w_id, d_id).as_slice()).await?;
    let district = txn.value_mut(present(TableKind::District, district)?);
    let o_id = columns.district.next_o_id.get(district);
    columns.district.next_o_id.set(district, o_id + 1);
    let d_tax = columns.district.tax.get(district);

    for line in lines {
        txn.prefetch_row(items, StackKey::<4>::new().with(line.i_id).as_slice(), ITEM_BYTES);
        txn.prefetch_row(stocks, StackKey::<8>::new().with(line.supply_w_id).with(line.i_id).as_slice(), STOCK_BYTES);
    }
    let customer = txn.get(tables.get(TableKind::Customer), customer_key.as_slice()).await?;
    let discount = columns.customer.discount.get(txn.value(present(TableKind::Customer, customer)?));
    let order_key = district_part_key(w_id, d_id, o_id);
    let all_local = lines.iter().all(|line| line.supply_w_id == w_id);
    let mut value = tables.get(TableKind::Orders).layout().build(&mut scratch.value);
    value.set(columns.orders.c_id, c_id).set(columns.orders.entry_d, entry_d);
    value.set_nullable(columns.orders.carrier_id, None);
    value.set(columns.orders.ol_cnt, lines.len() as i16).set(columns.orders.all_local, i16::from(all_local));
    txn.insert(tables.get(TableKind::Orders), order_key.as_slice(), value.finish()).await?;
    txn.insert(tables.get(TableKind::NewOrder), order_key.as_slice(), &[]).await?;

    let mut sum = 0;
    let mut brand_lines = 0;
    for (number, line) in (1_i16..).zip(lines) {
        let item = txn.get(tables.get(TableKind::Item), StackKey::<4>::new().with(line.i_id).as_slice()).await?;
        let Some(item) = item else { return Ok(None) };
        let price = columns.item.price.get(txn.value(item));
        let stock_key = StackKey::<8>::new().with(line.supply_w_id).with(line.i_id);
        let stock = present(TableKind::Stock, txn.get(tables.get(TableKind::Stock), stock_key.as_slice()).await?)?;

        let s = &columns.stock;
        let row = txn.value_mut(stock);
        let quantity = s.quantity.get(row);
        let refill = if quantity >= line.quantity + 10 { 0 } else { 91 };
        s.quantity.set(row, quantity - line.quantity + refill);
        s.ytd.set(row, s.ytd.get(row) + i32::from(line.quantity));
        s.order_cnt.set(row, s.order_cnt.get(row) + 1);
        if line.supply_w_id != w_id {
            s.remote_cnt.set(row, s.remote_cnt.get(row) + 1);
        }

        let row = txn.value(stock);
        if is_original(columns.item.data.get(txn.value(item))) && is_original(s.data.get(row)) {
            brand_lines += 1;
        }
        let amount = price * i32::from(line.quantity);
        sum += i64::from(amount);
        let l = &columns.order_line;
        let mut value = tables.get(TableKind::OrderLine).layout().build(&mut scratch.value);
        value.set(l.i_id, line.i_id).set(l.supply_w_id, line.supply_w_id).set_nullable(l.delivery_d, None);
        value.set(l.quantity, line.quantity).set(l.amount, amount);
        value.push(s.dist[d_id as usize - 1].get(row));
        let key = line_key(w_id, d_id, o_id, number);
        txn.insert(tables.get(TableKind::OrderLine), key.as_slice(), value.finish()).await?;
    }
    let total = sum * i64::from(10_000 - discount) / 10_000 * i64::from(10_000 + w_tax + d_tax) / 100;
    Ok(Some(Ordered { o_id, total, brand_lines }))
}

/// The data of one item in ten says so.
fn is_original(data: &[u8]) -> bool {
    data.windows(8).any(|window| window == b"ORIGINAL")
}
