//! The initial database (clause 4.3.3).
//!
//! It is made unit by unit: a unit is a few thousand rows, in key order within each table, and depends on the seed and
//! its own numbers alone, so that warehouses can be loaded by any number of workers in any order and come out the same.

use super::schema::{Columns, TABLES};
use super::{DISTRICTS, Scale, last_name};
use crate::random::{NonUniform, Random};
use crate::workload::TableSpec;
use farhold_store::row::{Layout, StackKey};

/// The tables, in the order of [`TABLES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableKind {
    /// `warehouse`
    Warehouse,
    /// `district`
    District,
    /// `customer`
    Customer,
    /// `history`
    History,
    /// `new_order`
    NewOrder,
    /// `orders`
    Orders,
    /// `order_line`
    OrderLine,
    /// `item`
    Item,
    /// `stock`
    Stock,
}

/// A part of the population.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Items, a thousand of them, from this one.
    Items {
        /// The first.
        first: i32,
    },
    /// A warehouse and its districts.
    Warehouse {
        /// The warehouse.
        w_id: i32,
    },
    /// Stock of a thousand items.
    Stock {
        /// The warehouse.
        w_id: i32,
        /// The first item.
        first: i32,
    },
    /// A district's customers and their history.
    Customers {
        /// The warehouse.
        w_id: i32,
        /// The district.
        d_id: i16,
    },
    /// A district's orders, their lines, and the entries of those not delivered.
    Orders {
        /// The warehouse.
        w_id: i32,
        /// The district.
        d_id: i16,
    },
}

/// Items or stock rows of a unit.
const UNIT_ITEMS: i32 = 1000;

/// The units of the `item` table.
pub fn item_units(scale: Scale) -> impl Iterator<Item = Unit> {
    (1..=scale.items).step_by(UNIT_ITEMS as usize).map(|first| Unit::Items { first })
}

/// The units of one warehouse.
pub fn warehouse_units(scale: Scale, w_id: i32) -> impl Iterator<Item = Unit> {
    let stock = (1..=scale.items).step_by(UNIT_ITEMS as usize).map(move |first| Unit::Stock { w_id, first });
    let customers = (1..=DISTRICTS as i16).map(move |d_id| Unit::Customers { w_id, d_id });
    let orders = (1..=DISTRICTS as i16).map(move |d_id| Unit::Orders { w_id, d_id });
    std::iter::once(Unit::Warehouse { w_id }).chain(stock).chain(customers).chain(orders)
}

/// Encoded rows, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Rows {
    bytes: Vec<u8>,
    /// Table, end of the key, end of the value.
    ends: Vec<(TableKind, u32, u32)>,
}

impl Rows {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// None.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Row `index`: table, key, value.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn get(&self, index: usize) -> (TableKind, &[u8], &[u8]) {
        let start = if index == 0 { 0 } else { self.ends[index - 1].2 as usize };
        let (table, key_end, end) = self.ends[index];
        (table, &self.bytes[start..key_end as usize], &self.bytes[key_end as usize..end as usize])
    }

    /// All rows.
    pub fn iter(&self) -> impl Iterator<Item = (TableKind, &[u8], &[u8])> {
        (0..self.len()).map(|i| self.get(i))
    }

    fn push(&mut self, table: TableKind, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push((table, key_end, self.bytes.len() as u32));
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Makes the rows of units.
#[derive(Debug)]
pub struct Population {
    scale: Scale,
    seed: u64,
    now_us: i64,
    non_uniform: NonUniform,
    columns: Columns,
    layouts: [Layout; 9],
    value: Vec<u8>,
    rows: Rows,
}

/// An a-string or n-string, on the stack.
struct Text<const MAX: usize> {
    bytes: [u8; MAX],
    len: usize,
}

impl<const MAX: usize> Text<MAX> {
    fn alphanumeric(random: &mut Random, min: usize) -> Self {
        let len = random.between(min as i32, MAX as i32) as usize;
        let mut bytes = [0; MAX];
        random.fill_alphanumeric(&mut bytes[..len]);
        Self { bytes, len }
    }

    fn digits(random: &mut Random) -> Self {
        let mut bytes = [0; MAX];
        random.fill_digits(&mut bytes);
        Self { bytes, len: MAX }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// 26 to 50 characters, of which one in ten strings holds "ORIGINAL" (clauses 4.3.3.1, `i_data` and `s_data`).
fn data_text(random: &mut Random) -> Text<50> {
    let mut text = Text::alphanumeric(random, 26);
    if random.percent(10) {
        let at = random.below((text.len - 7) as u64) as usize;
        text.bytes[at..at + 8].copy_from_slice(b"ORIGINAL");
    }
    text
}

/// Street, street, city, state, zip code (clause 4.3.2.7).
struct Address {
    streets: [Text<20>; 3],
    state: Text<2>,
    zip: [u8; 9],
}

impl Address {
    fn new(random: &mut Random) -> Self {
        let streets = std::array::from_fn(|_| Text::alphanumeric(random, 10));
        let state = Text::alphanumeric(random, 2);
        let mut zip = *b"000011111";
        random.fill_digits(&mut zip[..4]);
        Self { streets, state, zip }
    }

    fn parts(&self) -> [&[u8]; 5] {
        let [street_1, street_2, city] = &self.streets;
        [street_1.get(), street_2.get(), city.get(), self.state.get(), &self.zip]
    }
}

impl Population {
    /// The population of `scale` from `seed`, dated `now_us` (microseconds since 1970).
    ///
    /// # Panics
    /// Never: the tables' descriptions are constants that the tests check.
    #[must_use]
    pub fn new(scale: Scale, seed: u64, now_us: i64) -> Self {
        Self {
            scale,
            seed,
            now_us,
            non_uniform: NonUniform::of_load(seed),
            columns: Columns::find(TableSpec::schema).expect("the workload's own tables"),
            layouts: TABLES.map(|table| table.schema().layout().clone()),
            value: Vec::new(),
            rows: Rows::default(),
        }
    }

    /// The rows of a unit.
    pub fn rows(&mut self, unit: Unit) -> &Rows {
        self.rows.clear();
        match unit {
            Unit::Items { first } => self.items(first),
            Unit::Warehouse { w_id } => self.warehouse(w_id),
            Unit::Stock { w_id, first } => self.stock(w_id, first),
            Unit::Customers { w_id, d_id } => self.customers(w_id, d_id),
            Unit::Orders { w_id, d_id } => self.orders(w_id, d_id),
        }
        &self.rows
    }

    fn items(&mut self, first: i32) {
        let mut random = Random::part(self.seed, &[1, first as u64]);
        let columns = self.columns.item;
        for i_id in first..(first + UNIT_ITEMS).min(self.scale.items + 1) {
            let mut value = self.layouts[TableKind::Item as usize].build(&mut self.value);
            value.set(columns.im_id, random.between(1, 10_000));
            value.set(columns.price, random.between(100, 10_000));
            value.push(Text::<24>::alphanumeric(&mut random, 14).get()).push(data_text(&mut random).get());
            self.rows.push(TableKind::Item, StackKey::<4>::new().with(i_id).as_slice(), value.finish());
        }
    }

    fn warehouse(&mut self, w_id: i32) {
        let mut random = Random::part(self.seed, &[2, w_id as u64]);
        // Ten dollars of history a customer; at full scale 30,000.00 a district and 300,000.00 a warehouse.
        let district_ytd = i64::from(self.scale.customers) * 1000;
        let mut value = self.layouts[TableKind::Warehouse as usize].build(&mut self.value);
        value.set(self.columns.warehouse.tax, random.between(0, 2000));
        value.set(self.columns.warehouse.ytd, district_ytd * i64::from(DISTRICTS));
        value.push(Text::<10>::alphanumeric(&mut random, 6).get());
        for part in Address::new(&mut random).parts() {
            value.push(part);
        }
        self.rows.push(TableKind::Warehouse, StackKey::<4>::new().with(w_id).as_slice(), value.finish());
        let columns = self.columns.district;
        for d_id in 1..=DISTRICTS as i16 {
            let mut value = self.layouts[TableKind::District as usize].build(&mut self.value);
            value.set(columns.tax, random.between(0, 2000)).set(columns.ytd, district_ytd);
            value.set(columns.next_o_id, self.scale.customers + 1);
            value.push(Text::<10>::alphanumeric(&mut random, 6).get());
            for part in Address::new(&mut random).parts() {
                value.push(part);
            }
            let key = StackKey::<6>::new().with(w_id).with(d_id);
            self.rows.push(TableKind::District, key.as_slice(), value.finish());
        }
    }

    fn stock(&mut self, w_id: i32, first: i32) {
        let mut random = Random::part(self.seed, &[3, w_id as u64, first as u64]);
        let columns = self.columns.stock;
        for i_id in first..(first + UNIT_ITEMS).min(self.scale.items + 1) {
            let mut value = self.layouts[TableKind::Stock as usize].build(&mut self.value);
            value.set(columns.quantity, random.between(10, 100) as i16);
            for _ in 0..DISTRICTS {
                value.push(Text::<24>::alphanumeric(&mut random, 24).get());
            }
            value.push(data_text(&mut random).get());
            let key = StackKey::<8>::new().with(w_id).with(i_id);
            self.rows.push(TableKind::Stock, key.as_slice(), value.finish());
        }
    }

    fn customers(&mut self, w_id: i32, d_id: i16) {
        let mut random = Random::part(self.seed, &[4, w_id as u64, d_id as u64]);
        for c_id in 1..=self.scale.customers {
            let names = self.scale.last_names();
            let number = if c_id <= names {
                c_id - 1
            } else {
                NonUniform::draw(&mut random, 255, self.non_uniform.last_name, 0, names - 1)
            };
            let columns = self.columns.customer;
            let (last, last_len) = last_name(number);
            let mut value = self.layouts[TableKind::Customer as usize].build(&mut self.value);
            value.set(columns.since, self.now_us).set(columns.credit_lim, 5_000_000);
            value.set(columns.discount, random.between(0, 5000));
            value.set(columns.balance, -1000).set(columns.ytd_payment, 1000);
            value.set(columns.payment_cnt, 1).set(columns.delivery_cnt, 0);
            value.push(Text::<16>::alphanumeric(&mut random, 8).get()).push(b"OE").push(&last[..last_len]);
            for part in Address::new(&mut random).parts() {
                value.push(part);
            }
            value.push(Text::<16>::digits(&mut random).get());
            value.push(if random.percent(10) { b"BC" } else { b"GC" });
            value.push(Text::<500>::alphanumeric(&mut random, 300).get());
            let key = StackKey::<10>::new().with(w_id).with(d_id).with(c_id);
            self.rows.push(TableKind::Customer, key.as_slice(), value.finish());
        }
        let columns = self.columns.history;
        for c_id in 1..=self.scale.customers {
            let mut value = self.layouts[TableKind::History as usize].build(&mut self.value);
            value.set(columns.c_id, c_id).set(columns.c_d_id, d_id).set(columns.c_w_id, w_id).set(columns.d_id, d_id);
            value.set(columns.date, self.now_us).set(columns.amount, 1000);
            value.push(Text::<24>::alphanumeric(&mut random, 12).get());
            let h_id = i64::from(d_id - 1) * i64::from(self.scale.customers) + i64::from(c_id);
            let key = StackKey::<12>::new().with(w_id).with(h_id);
            self.rows.push(TableKind::History, key.as_slice(), value.finish());
        }
    }

    fn orders(&mut self, w_id: i32, d_id: i16) {
        let mut random = Random::part(self.seed, &[5, w_id as u64, d_id as u64]);
        let mut customers: Vec<i32> = (1..=self.scale.customers).collect();
        random.shuffle(&mut customers);
        for (o_id, c_id) in (1..).zip(customers) {
            let delivered = o_id <= self.scale.delivered();
            let ol_cnt = random.between(5, 15) as i16;
            let columns = self.columns.orders;
            let mut value = self.layouts[TableKind::Orders as usize].build(&mut self.value);
            value.set(columns.c_id, c_id).set(columns.entry_d, self.now_us);
            let carrier = random.between(1, 10) as i16;
            value.set_nullable(columns.carrier_id, delivered.then_some(carrier));
            value.set(columns.ol_cnt, ol_cnt).set(columns.all_local, 1);
            let key = StackKey::<10>::new().with(w_id).with(d_id).with(o_id);
            self.rows.push(TableKind::Orders, key.as_slice(), value.finish());
            if !delivered {
                self.rows.push(TableKind::NewOrder, key.as_slice(), &[]);
            }
            let columns = self.columns.order_line;
            for number in 1..=ol_cnt {
                let mut value = self.layouts[TableKind::OrderLine as usize].build(&mut self.value);
                value.set(columns.i_id, random.between(1, self.scale.items)).set(columns.supply_w_id, w_id);
                value.set_nullable(columns.delivery_d, delivered.then_some(self.now_us)).set(columns.quantity, 5);
                value.set(columns.amount, if delivered { 0 } else { random.between(1, 999_999) });
                value.push(Text::<24>::alphanumeric(&mut random, 24).get());
                let key = StackKey::<12>::new().with(w_id).with(d_id).with(o_id).with(number);
                self.rows.push(TableKind::OrderLine, key.as_slice(), value.finish());
            }
        }
    }
}

#[cfg(test)]
mod tests;
