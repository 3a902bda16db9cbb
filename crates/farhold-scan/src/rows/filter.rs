//! A predicate compiled for the bytes of a table's rows.

use farhold_store::row::{ColumnReader, Schema, Stored};

use crate::predicate::{Comparison, Condition, Constant, Predicate};

/// A condition on bytes.
#[derive(Clone, Debug)]
enum Term {
    Integer(ColumnReader, Comparison, i64),
    Wide(ColumnReader, Comparison, i128),
    Float(ColumnReader, Comparison, f64),
    Bytes(ColumnReader, Comparison, Vec<u8>),
    Prefix(ColumnReader, Vec<u8>, bool),
    Bool(ColumnReader, bool),
    Null(ColumnReader, bool),
    IntegerIn(ColumnReader, Vec<i64>, bool),
    BytesIn(ColumnReader, Vec<Vec<u8>>, bool),
    Any(Vec<Vec<Term>>),
    Never,
}

/// Decides a [`Predicate`] on a row's bytes.
#[derive(Clone, Debug, Default)]
pub struct RowFilter {
    terms: Vec<Term>,
}

impl RowFilter {
    /// For the rows of a table.
    ///
    /// # Panics
    /// If a constant is not of its column's kind.
    #[must_use]
    pub fn new(schema: &Schema, predicate: &Predicate) -> Self {
        Self { terms: terms(schema, predicate.conditions()) }
    }

    /// Whether it lets every row pass.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// How many bytes of each value, from its start, it looks at.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.terms.iter().map(Term::value_bytes).max().unwrap_or(0)
    }

    /// Whether the row passes. `scratch` is room that it may use.
    #[inline]
    #[must_use]
    pub fn matches(&self, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> bool {
        self.terms.iter().all(|term| term.holds(key, value, scratch))
    }
}

fn terms(schema: &Schema, conditions: &[Condition]) -> Vec<Term> {
    conditions.iter().map(|condition| term(schema, condition)).collect()
}

fn term(schema: &Schema, condition: &Condition) -> Term {
    let reader = |column: &usize| ColumnReader::new(schema, *column);
    match condition {
        Condition::Compare(column, comparison, constant) => compare(reader(column), *comparison, constant),
        Condition::In(column, constants, negated) => {
            let (mut integers, mut texts) = (Vec::new(), Vec::new());
            for constant in constants {
                match constant {
                    Constant::Integer(integer) => integers.push(*integer),
                    Constant::Bytes(bytes) => texts.push(bytes.clone()),
                    other => panic!("a list of {other:?}"),
                }
            }
            let reader = reader(column);
            if matches!(reader.stored(), Stored::Text | Stored::Bytes) {
                texts.sort();
                Term::BytesIn(reader, texts, *negated)
            } else {
                integers.sort_unstable();
                Term::IntegerIn(reader, integers, *negated)
            }
        }
        Condition::Prefix(column, prefix, negated) => Term::Prefix(reader(column), prefix.clone(), *negated),
        Condition::Null(column, wanted) => Term::Null(reader(column), *wanted),
        Condition::Any(ways) => Term::Any(ways.iter().map(|way| terms(schema, way)).collect()),
        Condition::Never => Term::Never,
    }
}

fn compare(reader: ColumnReader, comparison: Comparison, constant: &Constant) -> Term {
    match (reader.stored(), constant) {
        (Stored::Bool, Constant::Integer(wanted)) if comparison == Comparison::Equal => {
            Term::Bool(reader, *wanted != 0)
        }
        (Stored::I16 | Stored::I32 | Stored::I64, Constant::Integer(integer)) => {
            Term::Integer(reader, comparison, *integer)
        }
        (Stored::I128, Constant::Integer(integer)) => Term::Wide(reader, comparison, i128::from(*integer)),
        (Stored::I16 | Stored::I32 | Stored::I64 | Stored::I128, Constant::Wide(wide)) => {
            Term::Wide(reader, comparison, *wide)
        }
        (Stored::F32 | Stored::F64, Constant::Float(float)) => Term::Float(reader, comparison, *float),
        (Stored::Text | Stored::Bytes, Constant::Bytes(bytes)) => Term::Bytes(reader, comparison, bytes.clone()),
        (stored, constant) => panic!("{stored:?} {} {constant:?}", comparison.sign()),
    }
}

impl Term {
    fn value_bytes(&self) -> usize {
        match self {
            Self::Integer(reader, ..)
            | Self::Wide(reader, ..)
            | Self::Float(reader, ..)
            | Self::Bytes(reader, ..)
            | Self::Prefix(reader, ..)
            | Self::Bool(reader, ..)
            | Self::Null(reader, ..)
            | Self::IntegerIn(reader, ..)
            | Self::BytesIn(reader, ..) => reader.value_bytes(),
            Self::Any(ways) => ways.iter().flatten().map(Self::value_bytes).max().unwrap_or(0),
            Self::Never => 0,
        }
    }

    #[inline]
    fn holds(&self, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> bool {
        match self {
            Self::Integer(reader, comparison, constant) => {
                !reader.is_null(value) && comparison.holds(reader.integer(key, value).cmp(constant))
            }
            Self::Wide(reader, comparison, constant) => {
                !reader.is_null(value) && comparison.holds(reader.wide(key, value).cmp(constant))
            }
            Self::Float(reader, comparison, constant) => {
                let found = if reader.stored() == Stored::F32 {
                    f64::from(reader.f32(key, value))
                } else {
                    reader.f64(key, value)
                };
                // NaN is above every number, and equal to itself.
                let order = found.partial_cmp(constant).unwrap_or_else(|| found.is_nan().cmp(&constant.is_nan()));
                !reader.is_null(value) && comparison.holds(order)
            }
            Self::Bytes(reader, comparison, constant) => {
                !reader.is_null(value) && comparison.holds(reader.bytes(key, value, scratch).cmp(constant.as_slice()))
            }
            Self::Prefix(reader, prefix, negated) => {
                !reader.is_null(value) && reader.bytes(key, value, scratch).starts_with(prefix) != *negated
            }
            Self::Bool(reader, wanted) => !reader.is_null(value) && reader.bool(key, value) == *wanted,
            Self::Null(reader, wanted) => reader.is_null(value) == *wanted,
            Self::IntegerIn(reader, list, negated) => {
                !reader.is_null(value) && list.binary_search(&reader.integer(key, value)).is_ok() != *negated
            }
            Self::BytesIn(reader, list, negated) => {
                !reader.is_null(value) && {
                    let bytes = reader.bytes(key, value, scratch);
                    list.binary_search_by(|item| item.as_slice().cmp(bytes)).is_ok() != *negated
                }
            }
            Self::Any(ways) => ways.iter().any(|terms| terms.iter().all(|term| term.holds(key, value, scratch))),
            Self::Never => false,
        }
    }
}
