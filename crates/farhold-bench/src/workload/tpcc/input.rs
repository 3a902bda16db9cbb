//! The inputs of the five transactions (clause 2) and the order in which they come (clause 5.2.4.2).

use super::{DISTRICTS, Scale, last_name};
use crate::random::{NonUniform, Random};

/// The five transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A customer orders 5 to 15 items.
    NewOrder,
    /// A customer pays.
    Payment,
    /// A customer asks about the last order.
    OrderStatus,
    /// The oldest order of each district is delivered.
    Delivery,
    /// How many of the items sold last are low on stock.
    StockLevel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::NewOrder, Self::Payment, Self::OrderStatus, Self::Delivery, Self::StockLevel];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewOrder => "new-order",
            Self::Payment => "payment",
            Self::OrderStatus => "order-status",
            Self::Delivery => "delivery",
            Self::StockLevel => "stock-level",
        }
    }
}

/// A deck of 100 cards, 45/43/4/4/4, shuffled anew when it is used up: the shares are exact over every 100 transactions.
#[derive(Debug)]
pub struct Deck {
    cards: [Kind; 100],
    next: usize,
}

impl Default for Deck {
    fn default() -> Self {
        let mut cards = [Kind::NewOrder; 100];
        cards[45..88].fill(Kind::Payment);
        cards[88..92].fill(Kind::OrderStatus);
        cards[92..96].fill(Kind::Delivery);
        cards[96..].fill(Kind::StockLevel);
        Self { cards, next: cards.len() }
    }
}

impl Deck {
    /// The next card.
    pub fn draw(&mut self, random: &mut Random) -> Kind {
        if self.next == self.cards.len() {
            random.shuffle(&mut self.cards);
            self.next = 0;
        }
        self.next += 1;
        self.cards[self.next - 1]
    }
}

/// The shares that a run may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Percent of order lines whose item comes from another warehouse; 1 in the specification.
    pub remote_item_percent: u32,
    /// Percent of payments by a customer of another warehouse; 15 in the specification.
    pub remote_payment_percent: u32,
}

impl Default for Shares {
    fn default() -> Self {
        Self { remote_item_percent: 1, remote_payment_percent: 15 }
    }
}

/// How a customer is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Customer {
    /// By number.
    Id(i32),
    /// By last name: bytes and their count.
    LastName([u8; 16], u8),
}

/// One line of a new order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Line {
    /// The item; one above the last existing item for an order that is to be rolled back.
    pub i_id: i32,
    /// The warehouse it comes from.
    pub supply_w_id: i32,
    /// How many.
    pub quantity: i16,
}

/// Most lines of an order.
pub const LINES_MAX: usize = 15;

/// A new order (clause 2.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOrder {
    /// The terminal's warehouse.
    pub w_id: i32,
    /// The district.
    pub d_id: i16,
    /// The customer.
    pub c_id: i32,
    /// The lines; the first `line_count` are meant.
    pub lines: [Line; LINES_MAX],
    /// How many lines.
    pub line_count: u8,
}

/// A payment (clause 2.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payment {
    /// The terminal's warehouse.
    pub w_id: i32,
    /// The district where it is paid.
    pub d_id: i16,
    /// The customer's warehouse.
    pub c_w_id: i32,
    /// The customer's district.
    pub c_d_id: i16,
    /// The customer.
    pub customer: Customer,
    /// Cents.
    pub amount: i32,
}

/// An order-status (clause 2.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderStatus {
    /// The warehouse.
    pub w_id: i32,
    /// The district.
    pub d_id: i16,
    /// The customer.
    pub customer: Customer,
}

/// A delivery (clause 2.7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The warehouse.
    pub w_id: i32,
    /// The carrier.
    pub carrier_id: i16,
}

/// A stock-level (clause 2.8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockLevel {
    /// The warehouse.
    pub w_id: i32,
    /// The district.
    pub d_id: i16,
    /// Stock below this is low.
    pub threshold: i16,
}

/// Makes inputs.
#[derive(Debug, Clone)]
pub struct Inputs {
    scale: Scale,
    shares: Shares,
    non_uniform: NonUniform,
}

impl Inputs {
    /// Inputs for a database that was populated with `load_seed`; the constants of the run come from `run_seed`.
    #[must_use]
    pub fn new(scale: Scale, shares: Shares, load_seed: u64, run_seed: u64) -> Self {
        let non_uniform = NonUniform::of_run(NonUniform::of_load(load_seed), run_seed);
        Self { scale, shares, non_uniform }
    }

    fn district(random: &mut Random) -> i16 {
        random.between(1, DISTRICTS) as i16
    }

    fn customer_id(&self, random: &mut Random) -> i32 {
        NonUniform::draw(random, 1023, self.non_uniform.customer, 1, self.scale.customers)
    }

    /// 60 % by last name, else by number.
    fn customer(&self, random: &mut Random) -> Customer {
        if random.percent(60) {
            let names = self.scale.last_names();
            let number = NonUniform::draw(random, 255, self.non_uniform.last_name, 0, names - 1);
            let (name, len) = last_name(number);
            Customer::LastName(name, len as u8)
        } else {
            Customer::Id(self.customer_id(random))
        }
    }

    /// Another warehouse, uniformly; the same if there is only one.
    fn other_warehouse(&self, random: &mut Random, w_id: i32) -> i32 {
        if self.scale.warehouses == 1 {
            return w_id;
        }
        let other = random.between(1, self.scale.warehouses - 1);
        if other < w_id { other } else { other + 1 }
    }

    /// A new order of warehouse `w_id`. In one of a hundred the last item does not exist.
    pub fn new_order(&self, random: &mut Random, w_id: i32) -> NewOrder {
        let mut order = NewOrder {
            w_id,
            d_id: Self::district(random),
            c_id: self.customer_id(random),
            lines: [Line::default(); LINES_MAX],
            line_count: random.between(5, 15) as u8,
        };
        let line_count = usize::from(order.line_count);
        for line in &mut order.lines[..line_count] {
            line.i_id = NonUniform::draw(random, 8191, self.non_uniform.item, 1, self.scale.items);
            line.quantity = random.between(1, 10) as i16;
            let remote = random.percent(self.shares.remote_item_percent);
            line.supply_w_id = if remote { self.other_warehouse(random, w_id) } else { w_id };
        }
        if random.percent(1) {
            order.lines[line_count - 1].i_id = self.scale.items + 1;
        }
        order
    }

    /// A payment at warehouse `w_id`.
    pub fn payment(&self, random: &mut Random, w_id: i32) -> Payment {
        let d_id = Self::district(random);
        let remote = self.scale.warehouses > 1 && random.percent(self.shares.remote_payment_percent);
        let (c_w_id, c_d_id) =
            if remote { (self.other_warehouse(random, w_id), Self::district(random)) } else { (w_id, d_id) };
        let customer = self.customer(random);
        Payment { w_id, d_id, c_w_id, c_d_id, customer, amount: random.between(100, 500_000) }
    }

    /// An order-status at warehouse `w_id`.
    pub fn order_status(&self, random: &mut Random, w_id: i32) -> OrderStatus {
        OrderStatus { w_id, d_id: Self::district(random), customer: self.customer(random) }
    }

    /// A delivery at warehouse `w_id`.
    pub fn delivery(&self, random: &mut Random, w_id: i32) -> Delivery {
        Delivery { w_id, carrier_id: random.between(1, 10) as i16 }
    }

    /// A stock-level at warehouse `w_id`, of district `d_id`.
    pub fn stock_level(&self, random: &mut Random, w_id: i32, d_id: i16) -> StockLevel {
        StockLevel { w_id, d_id, threshold: random.between(10, 20) as i16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deck_has_exact_shares() {
        let (mut deck, mut random) = (Deck::default(), Random::new(1));
        for _ in 0..10 {
            let drawn: Vec<Kind> = (0..100).map(|_| deck.draw(&mut random)).collect();
            let count = |kind| drawn.iter().filter(|k| **k == kind).count();
            assert_eq!(Kind::ALL.map(count), [45, 43, 4, 4, 4]);
        }
    }

    #[test]
    fn shares_are_the_specifications() {
        let inputs = Inputs::new(Scale::full(4), Shares::default(), 1, 2);
        let mut random = Random::new(3);
        let (mut lines, mut remote_lines, mut rolled_back) = (0.0, 0.0, 0.0);
        let (mut remote_payments, mut by_name) = (0.0, 0.0);
        const RUNS: u32 = 20_000;
        for _ in 0..RUNS {
            let order = inputs.new_order(&mut random, 2);
            for line in &order.lines[..usize::from(order.line_count)] {
                lines += 1.0;
                remote_lines += f64::from(u8::from(line.supply_w_id != 2));
                rolled_back += f64::from(u8::from(line.i_id > 100_000));
                assert!((1..=4).contains(&line.supply_w_id) && (1..=10).contains(&line.quantity));
            }
            let payment = inputs.payment(&mut random, 2);
            remote_payments += f64::from(u8::from(payment.c_w_id != 2));
            by_name += f64::from(u8::from(matches!(payment.customer, Customer::LastName(..))));
        }
        let near = |found: f64, of: f64, expected: f64| {
            let share = 100.0 * found / of;
            assert!((share - expected).abs() < expected * 0.05 + 0.2, "{share} %, expected {expected} %");
        };
        near(lines, 1000.0 * f64::from(RUNS), 1.0);
        near(remote_lines, lines, 1.0);
        near(rolled_back, f64::from(RUNS), 1.0);
        near(remote_payments, f64::from(RUNS), 15.0);
        near(by_name, f64::from(RUNS), 60.0);
    }

    #[test]
    fn one_warehouse_has_no_other() {
        let inputs =
            Inputs::new(Scale::tiny(1), Shares { remote_item_percent: 100, remote_payment_percent: 100 }, 1, 2);
        let mut random = Random::new(3);
        let order = inputs.new_order(&mut random, 1);
        assert!(order.lines[..5].iter().all(|line| line.supply_w_id == 1));
        assert_eq!(inputs.payment(&mut random, 1).c_w_id, 1);
    }
}
