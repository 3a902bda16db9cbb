//! Conditions on rows, independent of the form in which the rows are stored: bytes of rows, or columns.
//!
//! A condition compares one column with constants. The constants are of the column's kind already: the creator of a predicate converts them, and omits
//! conditions whose constants cannot be converted without a loss. [`Predicate::check`] asserts it.

use std::cmp::Ordering;

use farhold_store::row::{ColumnType, Schema};

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
    /// All of them. Requests to agents number them in this order.
    pub const ALL: [Self; 6] =
        [Self::Equal, Self::NotEqual, Self::Less, Self::LessEqual, Self::Greater, Self::GreaterEqual];

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
    /// The same, where it does not fit 64 bits.
    Wide(i128),
    /// Of a float. NaN is equal to itself and above everything; the zeros are equal.
    Float(f64),
    /// Of a text or a byte string. Texts are compared by their bytes.
    Bytes(Vec<u8>),
}

impl Constant {
    /// Whether it may stand beside a column of this type.
    #[must_use]
    pub const fn is_of(&self, data_type: ColumnType) -> bool {
        match data_type {
            ColumnType::Real | ColumnType::Double => matches!(self, Self::Float(_)),
            ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text | ColumnType::Bytea => {
                matches!(self, Self::Bytes(_))
            }
            ColumnType::Boolean
            | ColumnType::SmallInt
            | ColumnType::Int
            | ColumnType::BigInt
            | ColumnType::Decimal { .. }
            | ColumnType::Date
            | ColumnType::Timestamp
            | ColumnType::Timestamptz => matches!(self, Self::Integer(_) | Self::Wide(_)),
        }
    }

    /// That of a column which is neither a float nor text. [`Predicate::check`] has been called, here and for the next two.
    pub(crate) fn whole(&self) -> i128 {
        match self {
            Self::Integer(integer) => i128::from(*integer),
            Self::Wide(wide) => *wide,
            other => unreachable!("{other:?} has been checked to be an integer"),
        }
    }

    /// That of a float.
    pub(crate) fn float(&self) -> f64 {
        match self {
            Self::Float(float) => *float,
            other => unreachable!("{other:?} has been checked to be a float"),
        }
    }

    /// That of a text or a byte string.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            other => unreachable!("{other:?} has been checked to be bytes"),
        }
    }
}

/// A condition on a row. A NULL fails every one but [`Null`](Self::Null).
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A column compared with a constant.
    Compare(usize, Comparison, Constant),
    /// A column is one of some constants, or (`true`) none of them. If there are no constants, a column that is not NULL is none of them.
    In(usize, Vec<Constant>, bool),
    /// A text or byte string begins with these bytes, or (`true`) does not.
    Prefix(usize, Vec<u8>, bool),
    /// A column is NULL, or (`false`) is not.
    Null(usize, bool),
    /// One of these conjunctions holds.
    Any(Vec<Vec<Condition>>),
    /// No row passes.
    Never,
}

/// Conditions that must all hold, and an estimate of the rows that pass.
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

    /// Adds a condition that about this fraction of the rows passes. For [`Condition::Never`] the fraction is 0, whatever the caller says.
    pub fn push(&mut self, condition: Condition, selectivity: f64) {
        self.selectivity *= if matches!(condition, Condition::Never) { 0.0 } else { selectivity };
        self.conditions.push(condition);
    }

    /// Adds all conditions of another predicate.
    pub fn push_all(&mut self, other: &Self) {
        self.conditions.extend_from_slice(&other.conditions);
        self.selectivity *= other.selectivity;
    }

    /// The predicate that holds if one of several predicates holds.
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

    /// Asserts that it [fits](Self::fits) this table.
    ///
    /// # Panics
    /// If it does not.
    pub fn check(&self, schema: &Schema) {
        if let Err(Misfit(what)) = self.fits(schema) {
            panic!("{what}");
        }
    }

    /// Whether it uses columns of this table only, and each constant is of its column's kind.
    ///
    /// # Errors
    /// What does not fit.
    pub fn fits(&self, schema: &Schema) -> Result<(), Misfit> {
        self.conditions.iter().try_for_each(|condition| condition.fits(schema))
    }

    /// The columns that it uses, in order.
    #[must_use]
    pub fn columns(&self) -> Vec<usize> {
        let mut columns = Vec::new();
        self.conditions.iter().for_each(|condition| condition.add_columns(&mut columns));
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The conditions, all of which must hold.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The estimated fraction of the rows that passes.
    #[must_use]
    pub const fn selectivity(&self) -> f64 {
        self.selectivity
    }
}

/// Why a predicate does not fit a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(String);

impl Condition {
    fn fits(&self, schema: &Schema) -> Result<(), Misfit> {
        let column = |at: usize| {
            let columns = schema.columns();
            columns.get(at).ok_or_else(|| Misfit(format!("a condition on column {at} of {}", columns.len())))
        };
        let beside = |at: usize, constant: &Constant| {
            let column = column(at)?;
            let (name, data_type) = (&column.name, column.data_type);
            let misfit = || Misfit(format!("{constant:?} beside the column {name}, which is {data_type}"));
            if constant.is_of(data_type) { Ok(()) } else { Err(misfit()) }
        };
        match self {
            Self::Compare(at, _, constant) => beside(*at, constant),
            Self::In(at, constants, _) => {
                column(*at)?;
                constants.iter().try_for_each(|constant| beside(*at, constant))
            }
            Self::Prefix(at, ..) => {
                let column = column(*at)?;
                let is_text = column.data_type.is_text() || column.data_type == ColumnType::Bytea;
                let misfit =
                    || Misfit(format!("a prefix beside the column {}, which is {}", column.name, column.data_type));
                if is_text { Ok(()) } else { Err(misfit()) }
            }
            Self::Null(at, _) => column(*at).map(drop),
            Self::Any(ways) => ways.iter().flatten().try_for_each(|condition| condition.fits(schema)),
            Self::Never => Ok(()),
        }
    }

    fn add_columns(&self, columns: &mut Vec<usize>) {
        match self {
            Self::Compare(at, ..) | Self::In(at, ..) | Self::Prefix(at, ..) | Self::Null(at, _) => columns.push(*at),
            Self::Any(ways) => ways.iter().flatten().for_each(|condition| condition.add_columns(columns)),
            Self::Never => {}
        }
    }
}

/// The order of a column's float and a constant, or of two constants: NaN is equal to itself and above everything.
#[inline]
pub(crate) fn compare_floats(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

#[cfg(test)]
mod tests {
    use farhold_store::row::Column;

    use super::*;

    fn passes(condition: Condition) -> bool {
        let types = [
            ColumnType::Int,
            ColumnType::Double,
            ColumnType::Text,
            ColumnType::Bytea,
            ColumnType::Decimal { precision: 38, scale: 0 },
            ColumnType::Boolean,
        ];
        let columns = types.iter().enumerate().map(|(n, data_type)| Column::new(format!("c{n}"), *data_type));
        let schema = Schema::new(columns.collect(), vec![0]).unwrap();
        let mut predicate = Predicate::everything();
        predicate.push_any(vec![Predicate::everything(), {
            let mut way = Predicate::everything();
            way.push(condition, 0.5);
            way
        }]);
        std::panic::catch_unwind(|| predicate.check(&schema)).is_ok()
    }

    #[test]
    fn constants_of_another_kind_are_refused() {
        let kinds = [Constant::Integer(1), Constant::Wide(1), Constant::Float(1.0), Constant::Bytes(vec![1])];
        let expected = [
            [true, true, false, false],
            [false, false, true, false],
            [false, false, false, true],
            [false, false, false, true],
            [true, true, false, false],
            [true, true, false, false],
        ];
        for (column, expected) in expected.iter().enumerate() {
            for (constant, expected) in kinds.iter().zip(expected) {
                assert_eq!(passes(Condition::Compare(column, Comparison::Less, constant.clone())), *expected);
                assert_eq!(passes(Condition::In(column, vec![constant.clone()], false)), *expected);
            }
            assert!(passes(Condition::In(column, Vec::new(), true)));
            assert_eq!(passes(Condition::Prefix(column, Vec::new(), false)), matches!(column, 2 | 3));
        }
        // One of a list of the right kind.
        assert!(!passes(Condition::In(0, vec![Constant::Integer(1), Constant::Float(1.0)], false)));
    }

    #[test]
    fn columns_that_the_table_lacks_are_refused() {
        assert!(passes(Condition::Null(5, true)));
        assert!(!passes(Condition::Null(6, true)));
        assert!(!passes(Condition::In(6, Vec::new(), false)));
        assert!(!passes(Condition::Prefix(6, Vec::new(), false)));
        assert!(!passes(Condition::Compare(6, Comparison::Equal, Constant::Integer(1))));
    }

    #[test]
    fn never_leaves_no_rows() {
        let mut predicate = Predicate::everything();
        predicate.push(Condition::Null(0, true), 0.25);
        assert!((predicate.selectivity() - 0.25).abs() < 1e-9);
        predicate.push(Condition::Never, 0.5);
        assert!(predicate.selectivity() <= 0.0);
    }
}
