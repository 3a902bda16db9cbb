//! Stock-level (clause 2.8.2). The specification permits less than a serializable state here; this implementation reads one.

use super::{STOCK_BYTES, Scratch, district_key, district_part_key, present};
use crate::workload::tpcc::input::StockLevel;
use crate::workload::tpcc::population::TableKind;
use crate::workload::tpcc::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{ScanSpec, Txn, TxnError};

/// How many of the last orders count.
const ORDERS: i32 = 20;
/// How many items before its turn a stock row's bucket is loaded, and the row.
const BUCKETS_AHEAD: usize = 16;
const ROWS_AHEAD: usize = 8;

/// How many different items of the district's last 20 orders are low on stock.
///
/// # Errors
/// As the transaction's operations.
pub async fn stock_level(
    txn: &mut Txn,
    tables: &Tables,
    input: &StockLevel,
    scratch: &mut Scratch,
) -> Result<u32, TxnError> {
    let &StockLevel { w_id, d_id, threshold } = input;
    let columns = &tables.columns;
    let district = txn.get(tables.get(TableKind::District), district_key(w_id, d_id).as_slice()).await?;
    let next_o_id = columns.district.next_o_id.get(txn.value(present(TableKind::District, district)?));

    let low = district_part_key(w_id, d_id, next_o_id - ORDERS);
    let high = district_part_key(w_id, d_id, next_o_id);
    scratch.rows.clear();
    let spec = ScanSpec::range(low.as_slice(), high.as_slice());
    txn.scan_into(tables.get(TableKind::OrderLine), spec, &mut scratch.rows).await?;
    scratch.items.clear();
    scratch.items.extend(scratch.rows.iter().map(|&line| columns.order_line.i_id.get(txn.value(line))));
    scratch.items.sort_unstable();
    scratch.items.dedup();

    // Some 200 rows, most of them not in a cache: while one is read, the next ones and the buckets of those behind are loaded.
    let stocks = tables.get(TableKind::Stock);
    let key = |i_id: i32| StackKey::<8>::new().with(w_id).with(i_id);
    let mut low_items = 0;
    for at in 0..scratch.items.len() + BUCKETS_AHEAD {
        if let Some(&i_id) = scratch.items.get(at) {
            txn.prefetch(stocks, key(i_id).as_slice());
        }
        if let Some(&i_id) = before(&scratch.items, at, BUCKETS_AHEAD - ROWS_AHEAD) {
            txn.prefetch_row(stocks, key(i_id).as_slice(), STOCK_BYTES);
        }
        if let Some(&i_id) = before(&scratch.items, at, BUCKETS_AHEAD) {
            let stock = present(TableKind::Stock, txn.get(stocks, key(i_id).as_slice()).await?)?;
            low_items += u32::from(columns.stock.quantity.get(txn.value(stock)) < threshold);
        }
    }
    Ok(low_items)
}

/// The element `count` places before `at`.
fn before<T>(of: &[T], at: usize, count: usize) -> Option<&T> {
    of.get(at.checked_sub(count)?)
}
