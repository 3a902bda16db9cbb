//! Conditions on rows, before it is known what the rows lie in: bytes of rows, or columns.
//!
//! A condition compares one column with constants. The constants are of the column's kind already: whoever makes a predicate
//! converts them, and leaves out what cannot be converted without a loss.

use std::cmp::Ordering;

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
}

impl Comparison {
    /// As statements write it.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
        }
    }

    /// The same comparison with its sides swapped.
    #[must_use]
    pub const fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            other => other,
        }
    }

    /// Whether it holds for this order of the sides.
    #[inline]
    #[must_use]
    pub const fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterEqual => order.is_ge(),
        }
    }
}

/// A constant of a column's kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// Of a boolean (0, 1), an integer, a date, a timestamp, or a decimal in units of the column's scale.
    Integer(i64),
    /// Of a decimal, where it does not fit 64 bits.
    Wide(i128),
    /// Of a float. NaN is equal to itself and above everything; the zeros are equal.
    Float(f64),
    /// Of a text or a byte string. Texts are compared by their bytes.
    Bytes(Vec<u8>),
}

/// A condition on a row. A NULL fails every one but [`Null`](Self::Null).
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A column beside a constant.
    Compare(usize, Comparison, Constant),
    /// A column is one of some constants, or (`true`) none of them.
    In(usize, Vec<Constant>, bool),
    /// A text begins with these bytes, or (`true`) does not.
    Prefix(usize, Vec<u8>, bool),
    /// A column is NULL, or (`false`) is not.
    Null(usize, bool),
    /// One of these conjunctions holds.
    Any(Vec<Vec<Condition>>),
    /// No row passes.
    Never,
}

/// Conditions that all must hold, and a guess how many rows pass.
#[derive(Clone, Debug)]
pub struct Predicate {
    conditions: Vec<Condition>,
    selectivity: f64,
}

impl Default for Predicate {
    fn default() -> Self {
        Self::everything()
    }
}

impl Predicate {
    /// Lets every row pass.
    #[must_use]
    pub const fn everything() -> Self {
        Self { conditions: Vec::new(), selectivity: 1.0 }
    }

    /// Adds a condition that about this part of the rows passes.
    pub fn push(&mut self, condition: Condition, selectivity: f64) {
        self.conditions.push(condition);
        self.selectivity *= selectivity;
    }

    /// One of several predicates holds.
    pub fn push_any(&mut self, ways: Vec<Self>) {
        let selectivity = ways.iter().map(|way| way.selectivity).sum::<f64>().min(1.0);
        let mut conjunctions = Vec::with_capacity(ways.len());
        for mut way in ways {
            match way.conditions.as_mut_slice() {
                [Condition::Any(inner)] => conjunctions.append(inner),
                _ => conjunctions.push(way.conditions),
            }
        }
        self.push(Condition::Any(conjunctions), selectivity);
    }

    /// The conditions, all of which must hold.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The part of the rows that passes, about.
    #[must_use]
    pub const fn selectivity(&self) -> f64 {
        self.selectivity
    }
}
