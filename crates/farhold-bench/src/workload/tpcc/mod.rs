//! TPC-C (revision 5.11): the order entry of a wholesale supplier.
//!
//! ```text
//!   schema      nine tables, their DDL, typed access to their columns
//!   population  the rows of clause 4.3.3, unit by unit, from a seed
//!   load        putting them into a database
//!   input       what a terminal asks for (clause 2), from a seed
//!   procedure   the five transactions
//!   driver      terminals, and what they count
//!   check       the consistency conditions (clause 3.3.2), natively and as SQL
//! ```
//!
//! Differences from the specification, which are stated wherever a figure is shown: terminals neither think nor key in, so a
//! warehouse carries thousands of times the specified load, and the figures are not tpmC; a delivery runs at once instead of
//! being queued.

pub mod check;
pub mod driver;
pub mod input;
pub mod load;
pub mod population;
pub mod procedure;
pub mod schema;
pub mod tables;

/// Districts of a warehouse.
pub const DISTRICTS: i32 = 10;
/// Orders of a warehouse after the population.
pub const ORDERS_PER_WAREHOUSE: u64 = 30_000;

/// How large a database is. [`Scale::full`] is the specification's; tests use smaller ones, whose shape is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: i32,
    /// Items (100,000 in the specification), also the stock rows of a warehouse.
    pub items: i32,
    /// Customers of a district (3,000), also its initial orders.
    pub customers: i32,
}

impl Scale {
    /// The specification's cardinalities.
    #[must_use]
    pub const fn full(warehouses: i32) -> Self {
        Self { warehouses, items: 100_000, customers: 3_000 }
    }

    /// A hundredth of them, for tests.
    #[must_use]
    pub const fn tiny(warehouses: i32) -> Self {
        Self { warehouses, items: 1_000, customers: 30 }
    }

    /// The last order of a district that the population has delivered: seven tenths of them.
    #[must_use]
    pub const fn delivered(&self) -> i32 {
        self.customers / 10 * 7
    }

    /// How many last names the population uses: the first customers of a district get one each.
    #[must_use]
    pub const fn last_names(&self) -> i32 {
        if self.customers < 1000 { self.customers } else { 1000 }
    }

    /// Rows of one warehouse, about: an order has ten lines on average.
    #[must_use]
    pub const fn rows_per_warehouse(&self) -> u64 {
        let orders = (self.customers * DISTRICTS) as u64;
        let new_orders = ((self.customers - self.delivered()) * DISTRICTS) as u64;
        1 + DISTRICTS as u64 + 3 * orders + new_orders + 10 * orders + self.items as u64
    }
}

/// The last name of number `number` in 0..1000 (clause 4.3.2.3), and its length.
#[must_use]
pub fn last_name(number: i32) -> ([u8; 16], usize) {
    const SYLLABLES: [&[u8]; 10] =
        [b"BAR", b"OUGHT", b"ABLE", b"PRI", b"PRES", b"ESE", b"ANTI", b"CALLY", b"ATION", b"EING"];
    let mut name = [0; 16];
    let mut len = 0;
    for digit in [number / 100, number / 10 % 10, number % 10] {
        let syllable = SYLLABLES[digit as usize];
        name[len..len + syllable.len()].copy_from_slice(syllable);
        len += syllable.len();
    }
    (name, len)
}

#[cfg(test)]
mod tests {
    #[test]
    fn last_names_are_syllables() {
        let check = |number, expected: &str| {
            let (name, len) = super::last_name(number);
            assert_eq!(&name[..len], expected.as_bytes());
        };
        check(371, "PRICALLYOUGHT");
        check(0, "BARBARBAR");
        check(999, "EINGEINGEING");
        check(777, "CALLYCALLYCALLY");
    }
}
