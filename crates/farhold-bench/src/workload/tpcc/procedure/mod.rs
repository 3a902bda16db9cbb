//! The five transactions as stored procedures.
//!
//! They name columns by typed offsets, and build keys on the stack and values in a buffer that is kept, so that a row costs no
//! allocation and no text. Each runs within a transaction that its caller begins and ends.

mod delivery;
mod new_order;
mod order_status;
mod payment;
mod stock_level;

pub use delivery::{Delivered, delivery};
pub use new_order::{Ordered, new_order};
pub use order_status::{OrderState, order_status};
pub use payment::{Paid, payment};
pub use stock_level::stock_level;

use super::input::Customer;
use super::population::TableKind;
use super::schema::CUSTOMER_BY_NAME;
use super::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{Index, RowHandle, ScanSpec, Txn, TxnError};

/// Buffers that a terminal keeps from one transaction to the next.
#[derive(Debug, Default)]
pub struct Scratch {
    value: Vec<u8>,
    rows: Vec<RowHandle>,
    items: Vec<i32>,
    /// Of a delivery: district, order, customer.
    orders: Vec<(i16, i32, i32)>,
}

/// A stock row with header and key, up to about its end: the bytes to prefetch.
const STOCK_BYTES: u64 = 384;
/// A customer's.
const CUSTOMER_BYTES: u64 = 640;

/// The error texts for a missing row that the population or an earlier transaction has made, by [`TableKind`].
const MISSING: [&str; 9] = [
    "a warehouse of TPC-C is missing",
    "a district of TPC-C is missing",
    "a customer of TPC-C is missing",
    "a payment of TPC-C is missing",
    "a new order of TPC-C is missing",
    "an order of TPC-C is missing",
    "an order line of TPC-C is missing",
    "an item of TPC-C is missing",
    "the stock of an item of TPC-C is missing",
];

/// Is it that a row is missing which the population or an earlier transaction has made? A transaction whose reads are out
/// of date may meet that; its commit would find it out.
#[must_use]
pub fn is_missing(error: &TxnError) -> bool {
    matches!(error, TxnError::Corrupt { what } if MISSING.contains(what))
}

#[inline]
fn present(table: TableKind, row: Option<RowHandle>) -> Result<RowHandle, TxnError> {
    row.ok_or(TxnError::Corrupt { what: MISSING[table as usize] })
}

fn district_key(w_id: i32, d_id: i16) -> StackKey<6> {
    StackKey::new().with(w_id).with(d_id)
}

/// The key of `customer` with a customer number, of `orders` and `new_order` with an order number.
fn district_part_key(w_id: i32, d_id: i16, id: i32) -> StackKey<10> {
    StackKey::new().with(w_id).with(d_id).with(id)
}

/// The key of `order_line`.
fn line_key(w_id: i32, d_id: i16, o_id: i32, number: i16) -> StackKey<12> {
    StackKey::new().with(w_id).with(d_id).with(o_id).with(number)
}

/// The customer by number, or of those with the last name the one in the middle, by first name (clause 2.5.2.2).
async fn find_customer(
    txn: &mut Txn,
    tables: &Tables,
    w_id: i32,
    d_id: i16,
    customer: Customer,
    rows: &mut Vec<RowHandle>,
) -> Result<RowHandle, TxnError> {
    let table = tables.get(TableKind::Customer);
    match customer {
        Customer::Id(c_id) => {
            present(TableKind::Customer, txn.get(table, district_part_key(w_id, d_id, c_id).as_slice()).await?)
        }
        Customer::LastName(name, len) => {
            let low = StackKey::<24>::new().with(w_id).with(d_id).with_text(&name[..usize::from(len)]);
            let high = low.next_prefix();
            let spec = ScanSpec::range(low.as_slice(), high.as_slice()).index(Index::Secondary(CUSTOMER_BY_NAME));
            rows.clear();
            txn.scan_into(table, spec, rows).await?;
            // Position n/2 rounded up, counted from one.
            present(TableKind::Customer, rows.get(rows.len().saturating_sub(1) / 2).copied())
        }
    }
}

/// The customer's number, the last part of the key.
fn customer_id(txn: &Txn, row: RowHandle) -> Result<i32, TxnError> {
    number_at(txn.key(row), 6)
}

/// An integer column of a key.
fn number_at(key: &[u8], offset: usize) -> Result<i32, TxnError> {
    let bytes = key.get(offset..offset + 4).ok_or(TxnError::Corrupt { what: "a key of TPC-C is too short" })?;
    Ok(<i32 as farhold_store::row::KeyScalar>::take(bytes))
}
