//! Payment (clause 2.5.2).

use super::{Scratch, customer_id, district_key, find_customer, present};
use crate::workload::tpcc::input::Payment;
use crate::workload::tpcc::population::TableKind;
use crate::workload::tpcc::tables::Tables;
use farhold_store::row::StackKey;
use farhold_txn::{Txn, TxnError};

/// What the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paid {
    /// The customer.
    pub c_id: i32,
    /// The new balance in cents.
    pub balance: i64,
    /// The customer has bad credit, and the data says so now.
    pub bad_credit: bool,
}

/// The longest `c_data`.
const DATA_MAX: usize = 500;

/// Takes a payment; `h_id` becomes the history row's number, unique in the warehouse.
///
/// # Errors
/// As the transaction's operations.
pub async fn payment(
    txn: &mut Txn,
    tables: &Tables,
    input: &Payment,
    date: i64,
    h_id: i64,
    scratch: &mut Scratch,
) -> Result<Paid, TxnError> {
    let &Payment { w_id, d_id, c_w_id, c_d_id, amount, .. } = input;
    let columns = &tables.columns;
    // w_name, four blanks, d_name (clause 2.5.2.2)
    let mut h_data = [b' '; 24];

    // The customer first: it may be another node's, and while the answer travels others change the warehouse.
    let customer = find_customer(txn, tables, c_w_id, c_d_id, input.customer, &mut scratch.rows).await?;
    let warehouse = txn.get(tables.get(TableKind::Warehouse), StackKey::<4>::new().with(w_id).as_slice()).await?;
    let row = txn.value_mut(present(TableKind::Warehouse, warehouse)?);
    columns.warehouse.ytd.set(row, columns.warehouse.ytd.get(row) + i64::from(amount));
    let name = columns.warehouse.name.get(row);
    let blanks = name.len();
    h_data[..blanks].copy_from_slice(name);

    let district = txn.get(tables.get(TableKind::District), district_key(w_id, d_id).as_slice()).await?;
    let row = txn.value_mut(present(TableKind::District, district)?);
    columns.district.ytd.set(row, columns.district.ytd.get(row) + i64::from(amount));
    let name = columns.district.name.get(row);
    let h_data_len = blanks + 4 + name.len();
    h_data[blanks + 4..h_data_len].copy_from_slice(name);

    let c_id = customer_id(txn, customer)?;
    let c = &columns.customer;
    let row = txn.value_mut(customer);
    let balance = c.balance.get(row) - i64::from(amount);
    c.balance.set(row, balance);
    c.ytd_payment.set(row, c.ytd_payment.get(row) + i64::from(amount));
    c.payment_cnt.set(row, c.payment_cnt.get(row) + 1);
    let bad_credit = c.credit.get(row) == b"BC";
    if bad_credit {
        let mut note = Note { bytes: [0; 66], len: 0 };
        for number in [c_id, i32::from(c_d_id), c_w_id, i32::from(d_id), w_id, amount] {
            note.push(number);
        }
        let row = txn.value(customer);
        let (note, old) = (note.get(), c.data.get(row));
        let kept = old.len().min(DATA_MAX - note.len());
        c.data.replace(row, &[note, &old[..kept]], &mut scratch.value);
        txn.update(customer, &scratch.value)?;
    }

    let h = &columns.history;
    let mut value = tables.get(TableKind::History).layout().build(&mut scratch.value);
    value.set(h.c_id, c_id).set(h.c_d_id, c_d_id).set(h.c_w_id, c_w_id).set(h.d_id, d_id);
    value.set(h.date, date).set(h.amount, amount).push(&h_data[..h_data_len]);
    let key = StackKey::<12>::new().with(w_id).with(h_id);
    txn.insert(tables.get(TableKind::History), key.as_slice(), value.finish()).await?;
    Ok(Paid { c_id, balance, bad_credit })
}

/// Decimal numbers with a blank behind each, on the stack: what a bad customer's data gets in front.
struct Note {
    /// Six numbers of at most ten digits, and their blanks.
    bytes: [u8; 66],
    len: usize,
}

impl Note {
    fn push(&mut self, number: i32) {
        let mut digits = [0; 10];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        for byte in digits[at..].iter().chain(b" ") {
            self.bytes[self.len] = *byte;
            self.len += 1;
        }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_numbers_and_blanks() {
        let mut note = Note { bytes: [0; 66], len: 0 };
        for number in [0, 7, 10, 2_147_483_647] {
            note.push(number);
        }
        assert_eq!(note.get(), b"0 7 10 2147483647 ");
    }
}
