//! The consistency conditions of clause 3.3.2, computed natively: the oracle for their SQL texts, and the quicker check.
//!
//! Condition 11 is stated for the initial database (2,100 orders of a district are delivered); here the customers'
//! delivery counts are added, so that it holds after a run, too.

use super::population::TableKind;
use super::schema::{Columns, TABLES};
use super::tables::Tables;
use crate::workload::TableSpec;
use farhold_store::row::{KeyScalar, RowError, Schema};
use farhold_txn::{ScanSpec, Snapshot, Txn, TxnError};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// A condition that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Which: `n` of clause 3.3.2.n.
    pub condition: u8,
    /// Where, and what was found.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.3.2.{}: {}", self.condition, self.what)
    }
}

/// The SQL texts of the conditions: each returns a row per violation. Text `n` is at `n - 1`.
pub const SQL: [&str; 12] = [
    include_str!("../../../sql/consistency/01.sql"),
    include_str!("../../../sql/consistency/02.sql"),
    include_str!("../../../sql/consistency/03.sql"),
    include_str!("../../../sql/consistency/04.sql"),
    include_str!("../../../sql/consistency/05.sql"),
    include_str!("../../../sql/consistency/06.sql"),
    include_str!("../../../sql/consistency/07.sql"),
    include_str!("../../../sql/consistency/08.sql"),
    include_str!("../../../sql/consistency/09.sql"),
    include_str!("../../../sql/consistency/10.sql"),
    include_str!("../../../sql/consistency/11.sql"),
    include_str!("../../../sql/consistency/12.sql"),
];

/// Checks what a transaction sees, by scanning whole tables in it: for databases that fit.
///
/// # Errors
/// As [`Txn::scan`], or rows that are not TPC-C's.
pub async fn check_in(txn: &mut Txn, tables: &Tables) -> Result<Vec<Violation>, TxnError> {
    let mut sums = Sums::new(tables.columns);
    for kind in SUMMED {
        for row in txn.scan(tables.get(kind), ScanSpec::all()).await? {
            sums.add(kind, txn.key(row), txn.value(row))?;
        }
    }
    Ok(sums.violations())
}

/// Checks the state that a snapshot shows.
///
/// # Errors
/// An unavailable node, or rows that are not TPC-C's.
pub fn check(snapshot: &Snapshot, tables: &Tables) -> Result<Vec<Violation>, TxnError> {
    let mut sums = Sums::new(tables.columns);
    for kind in SUMMED {
        for task in snapshot.pages(tables.get(kind))? {
            let mut broken = None;
            snapshot.scan_page(&task, &mut |key, value| {
                if let Err(error) = sums.add(kind, key, value) {
                    broken = Some(error);
                }
            })?;
            if let Some(error) = broken {
                return Err(error.into());
            }
        }
    }
    Ok(sums.violations())
}

/// The tables that the conditions are about.
const SUMMED: [TableKind; 7] = [
    TableKind::Warehouse,
    TableKind::District,
    TableKind::Customer,
    TableKind::History,
    TableKind::NewOrder,
    TableKind::Orders,
    TableKind::OrderLine,
];

#[derive(Default)]
struct WarehouseSums {
    rows: u32,
    ytd: i64,
    district_ytd: i64,
    history: i64,
}

#[derive(Default)]
struct DistrictSums {
    rows: u32,
    ytd: i64,
    next_o_id: i32,
    o_id_max: i32,
    orders: i64,
    ol_cnt: i64,
    lines: i64,
    new_orders: i64,
    no_o_id_min: i32,
    no_o_id_max: i32,
    history: i64,
    customers: i64,
    deliveries: i64,
}

#[derive(Default)]
struct OrderSums {
    rows: u32,
    c_id: i32,
    ol_cnt: i64,
    lines: i64,
    lines_delivered: i64,
    amount_delivered: i64,
    has_carrier: bool,
    is_new: bool,
}

#[derive(Default)]
struct CustomerSums {
    rows: u32,
    balance: i64,
    ytd_payment: i64,
    history: i64,
    delivered: i64,
}

/// The sums that the conditions compare.
pub struct Sums {
    columns: Columns,
    schemas: [Schema; 9],
    warehouses: BTreeMap<i32, WarehouseSums>,
    districts: BTreeMap<(i32, i16), DistrictSums>,
    orders: HashMap<(i32, i16, i32), OrderSums>,
    customers: HashMap<(i32, i16, i32), CustomerSums>,
}

/// (warehouse, district, number) from the key of `customer`, `orders`, `new_order` or `order_line`.
fn district_part(key: &[u8]) -> (i32, i16, i32) {
    (i32::take(key), i16::take(&key[4..]), i32::take(&key[6..]))
}

impl Sums {
    /// No rows yet. `columns` are the tables'.
    #[must_use]
    pub fn new(columns: Columns) -> Self {
        Self {
            columns,
            schemas: TABLES.map(|t: TableSpec| t.schema()),
            warehouses: BTreeMap::new(),
            districts: BTreeMap::new(),
            orders: HashMap::new(),
            customers: HashMap::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`RowError::Corrupt`] when the bytes are no row of the table.
    pub fn add(&mut self, kind: TableKind, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        let schema = &self.schemas[kind as usize];
        schema.check_value(value)?;
        if schema.key_shape() != farhold_store::row::KeyShape::Fixed(key.len()) {
            return Err(RowError::Corrupt { what: "a key of another length than TPC-C's" });
        }
        match kind {
            TableKind::Warehouse => {
                let sums = self.warehouses.entry(i32::take(key)).or_default();
                sums.rows += 1;
                sums.ytd = self.columns.warehouse.ytd.get(value);
            }
            TableKind::District => {
                let (w_id, d_id) = (i32::take(key), i16::take(&key[4..]));
                let ytd = self.columns.district.ytd.get(value);
                self.warehouses.entry(w_id).or_default().district_ytd += ytd;
                let sums = self.districts.entry((w_id, d_id)).or_default();
                sums.rows += 1;
                sums.ytd = ytd;
                sums.next_o_id = self.columns.district.next_o_id.get(value);
            }
            TableKind::Customer => {
                let (w_id, d_id, c_id) = district_part(key);
                let c = &self.columns.customer;
                let district = self.districts.entry((w_id, d_id)).or_default();
                district.customers += 1;
                district.deliveries += i64::from(c.delivery_cnt.get(value));
                let sums = self.customers.entry((w_id, d_id, c_id)).or_default();
                sums.rows += 1;
                (sums.balance, sums.ytd_payment) = (c.balance.get(value), c.ytd_payment.get(value));
            }
            TableKind::History => {
                let h = &self.columns.history;
                let (w_id, amount) = (i32::take(key), i64::from(h.amount.get(value)));
                self.warehouses.entry(w_id).or_default().history += amount;
                self.districts.entry((w_id, h.d_id.get(value))).or_default().history += amount;
                let customer = (h.c_w_id.get(value), h.c_d_id.get(value), h.c_id.get(value));
                self.customers.entry(customer).or_default().history += amount;
            }
            TableKind::NewOrder => {
                let (w_id, d_id, o_id) = district_part(key);
                let sums = self.districts.entry((w_id, d_id)).or_default();
                let first = sums.new_orders == 0;
                sums.new_orders += 1;
                sums.no_o_id_min = if first { o_id } else { sums.no_o_id_min.min(o_id) };
                sums.no_o_id_max = if first { o_id } else { sums.no_o_id_max.max(o_id) };
                self.orders.entry((w_id, d_id, o_id)).or_default().is_new = true;
            }
            TableKind::Orders => {
                let (w_id, d_id, o_id) = district_part(key);
                let o = &self.columns.orders;
                let ol_cnt = i64::from(o.ol_cnt.get(value));
                let district = self.districts.entry((w_id, d_id)).or_default();
                district.orders += 1;
                district.ol_cnt += ol_cnt;
                district.o_id_max = district.o_id_max.max(o_id);
                let sums = self.orders.entry((w_id, d_id, o_id)).or_default();
                sums.rows += 1;
                (sums.ol_cnt, sums.c_id) = (ol_cnt, o.c_id.get(value));
                sums.has_carrier = o.carrier_id.get(value).is_some();
            }
            TableKind::OrderLine => {
                let (w_id, d_id, o_id) = district_part(key);
                let l = &self.columns.order_line;
                self.districts.entry((w_id, d_id)).or_default().lines += 1;
                let sums = self.orders.entry((w_id, d_id, o_id)).or_default();
                sums.lines += 1;
                if l.delivery_d.get(value).is_some() {
                    sums.lines_delivered += 1;
                    sums.amount_delivered += i64::from(l.amount.get(value));
                }
            }
            TableKind::Item | TableKind::Stock => {}
        }
        Ok(())
    }

    /// Every violation, by condition.
    #[must_use]
    pub fn violations(mut self) -> Vec<Violation> {
        for (&(w_id, d_id, _), order) in &self.orders {
            let customer = self.customers.entry((w_id, d_id, order.c_id)).or_default();
            customer.delivered += order.amount_delivered;
        }
        let mut found = Vec::new();
        let mut require = |condition: u8, holds: bool, what: &dyn Fn() -> String| {
            if !holds {
                found.push(Violation { condition, what: what() });
            }
        };
        for (w_id, w) in &self.warehouses {
            let (ytd, districts, history) = (w.ytd, w.district_ytd, w.history);
            require(1, w.rows == 1 && ytd == districts, &|| {
                format!("warehouse {w_id}: w_ytd {ytd}, sum(d_ytd) {districts}")
            });
            require(8, w.rows == 1 && ytd == history, &|| {
                format!("warehouse {w_id}: w_ytd {ytd}, sum(h_amount) {history}")
            });
        }
        for ((w_id, d_id), d) in &self.districts {
            let place = || format!("warehouse {w_id} district {d_id}");
            let last = d.next_o_id - 1;
            let new_orders_end = d.new_orders == 0 || d.no_o_id_max == last;
            require(2, d.rows == 1 && d.o_id_max == last && new_orders_end, &|| {
                format!(
                    "{}: d_next_o_id {}, max(o_id) {}, max(no_o_id) {}",
                    place(),
                    d.next_o_id,
                    d.o_id_max,
                    d.no_o_id_max
                )
            });
            let span = i64::from(d.no_o_id_max) - i64::from(d.no_o_id_min) + 1;
            require(3, d.new_orders == 0 || span == d.new_orders, &|| {
                format!("{}: new_order spans {span} numbers with {} rows", place(), d.new_orders)
            });
            require(4, d.ol_cnt == d.lines, &|| format!("{}: sum(o_ol_cnt) {}, {} lines", place(), d.ol_cnt, d.lines));
            require(9, d.rows == 1 && d.ytd == d.history, &|| {
                format!("{}: d_ytd {}, sum(h_amount) {}", place(), d.ytd, d.history)
            });
            let delivered = d.customers * 7 / 10 + d.deliveries;
            require(11, d.orders - d.new_orders == delivered, &|| {
                format!("{}: {} orders, {} new, {delivered} delivered", place(), d.orders, d.new_orders)
            });
        }
        for ((w_id, d_id, o_id), o) in &self.orders {
            let place = || format!("warehouse {w_id} district {d_id} order {o_id}");
            let exists = o.rows == 1;
            require(5, exists && o.has_carrier != o.is_new, &|| {
                format!("{}: carrier {}, in new_order {}", place(), o.has_carrier, o.is_new)
            });
            require(6, exists && o.ol_cnt == o.lines, &|| {
                format!("{}: o_ol_cnt {}, {} lines", place(), o.ol_cnt, o.lines)
            });
            let expected = if o.has_carrier { o.lines } else { 0 };
            require(7, exists && o.lines_delivered == expected, &|| {
                format!("{}: carrier {}, {} of {} lines delivered", place(), o.has_carrier, o.lines_delivered, o.lines)
            });
        }
        for ((w_id, d_id, c_id), c) in &self.customers {
            let place = || format!("warehouse {w_id} district {d_id} customer {c_id}");
            require(10, c.rows == 1 && c.balance == c.delivered - c.history, &|| {
                format!("{}: c_balance {}, delivered {}, paid {}", place(), c.balance, c.delivered, c.history)
            });
            require(12, c.rows == 1 && c.balance + c.ytd_payment == c.delivered, &|| {
                format!(
                    "{}: c_balance {} + c_ytd_payment {}, delivered {}",
                    place(),
                    c.balance,
                    c.ytd_payment,
                    c.delivered
                )
            });
        }
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests;
