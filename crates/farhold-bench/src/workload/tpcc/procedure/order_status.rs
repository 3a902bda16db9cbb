//! Order-status (clause 2.6.2).

use super::{Scratch, customer_id, find_customer, number_at, present};
use crate::workload::tpcc::input::OrderStatus;
use crate::workload::tpcc::population::TableKind;
use crate::workload::tpcc::schema::ORDERS_BY_CUSTOMER;
use crate::workload::tpcc::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{Index, ScanSpec, Txn, TxnError};

/// What the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderState {
    /// The customer.
    pub c_id: i32,
    /// The customer's balance in cents.
    pub balance: i64,
    /// The customer's last order.
    pub o_id: i32,
    /// Its carrier, once it is delivered.
    pub carrier_id: Option<i16>,
    /// Its lines.
    pub lines: i16,
    /// Of these, delivered.
    pub lines_delivered: i16,
    /// The sum of its lines in cents.
    pub amount: i64,
}

/// Finds a customer's last order and its lines.
///
/// # Errors
/// As the transaction's operations.
pub async fn order_status(
    txn: &mut Txn,
    tables: &Tables,
    input: &OrderStatus,
    scratch: &mut Scratch,
) -> Result<OrderState, TxnError> {
    let &OrderStatus { w_id, d_id, customer } = input;
    let columns = &tables.columns;
    let rows = &mut scratch.rows;
    let customer = find_customer(txn, tables, w_id, d_id, customer, rows).await?;
    let c_id = customer_id(txn, customer)?;
    let balance = columns.customer.balance.get(txn.value(customer));

    let low = StackKey::<10>::new().with(w_id).with(d_id).with(c_id);
    let high = low.next_prefix();
    let spec = ScanSpec::range(low.as_slice(), high.as_slice()).index(Index::Secondary(ORDERS_BY_CUSTOMER));
    rows.clear();
    txn.scan_into(tables.get(TableKind::Orders), spec.descending().limit(1), rows).await?;
    let order = present(TableKind::Orders, rows.first().copied())?;
    let o_id = number_at(txn.key(order), 6)?;
    let carrier_id = columns.orders.carrier_id.get(txn.value(order));

    let low = StackKey::<10>::new().with(w_id).with(d_id).with(o_id);
    let high = low.next_prefix();
    rows.clear();
    txn.scan_into(tables.get(TableKind::OrderLine), ScanSpec::range(low.as_slice(), high.as_slice()), rows).await?;
    let mut state = OrderState { c_id, balance, o_id, carrier_id, lines: 0, lines_delivered: 0, amount: 0 };
    for &line in rows.iter() {
        let value = txn.value(line);
        state.lines += 1;
        state.lines_delivered += i16::from(columns.order_line.delivery_d.get(value).is_some());
        state.amount += i64::from(columns.order_line.amount.get(value));
    }
    Ok(state)
}
