//! A predicate compiled for the bytes of a table's rows.

use farhold_store::row::{ColumnReader, Schema, Stored};

use crate::predicate::{Comparison, Condition, Constant, Predicate, compare_floats};

/// A condition on bytes.
#[derive(Clone, Debug)]
enum Term {
    Integer(ColumnReader, Comparison, i64),
    Wide(ColumnReader, Comparison, i128),
    Float(ColumnReader, Comparison, f64),
    Bytes(ColumnReader, Comparison, Vec<u8>),
    Prefix(ColumnReader, Vec<u8>, bool),
    /// Whether false passes, and whether true passes.
    Bool(ColumnReader, [bool; 2]),
    Null(ColumnReader, bool),
    /// Lists are in order.
    IntegerIn(ColumnReader, Vec<i64>, bool),
    WideIn(ColumnReader, Vec<i128>, bool),
    FloatIn(ColumnReader, Vec<f64>, bool),
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
    /// If the predicate does not fit the table ([`Predicate::check`]).
    #[must_use]
    pub fn new(schema: &Schema, predicate: &Predicate) -> Self {
        predicate.check(schema);
        Self { terms: terms(schema, predicate.conditions()) }
    }

    /// Whether it lets every row pass.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The number of bytes from the start of each value that it reads.
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
        Condition::In(column, constants, negated) => list(reader(column), constants, *negated),
        Condition::Prefix(column, prefix, negated) => Term::Prefix(reader(column), prefix.clone(), *negated),
        Condition::Null(column, wanted) => Term::Null(reader(column), *wanted),
        Condition::Any(ways) => Term::Any(ways.iter().map(|way| terms(schema, way)).collect()),
        Condition::Never => Term::Never,
    }
}

fn compare(reader: ColumnReader, comparison: Comparison, constant: &Constant) -> Term {
    match (reader.stored(), constant) {
        (Stored::Bool, constant) => {
            let passing = [0, 1].map(|value: i128| comparison.holds(value.cmp(&constant.whole())));
            Term::Bool(reader, passing)
        }
        (Stored::F32 | Stored::F64, constant) => Term::Float(reader, comparison, constant.float()),
        (Stored::Text | Stored::Bytes, constant) => Term::Bytes(reader, comparison, constant.bytes().to_vec()),
        (Stored::I16 | Stored::I32 | Stored::I64, Constant::Integer(integer)) => {
            Term::Integer(reader, comparison, *integer)
        }
        (Stored::I16 | Stored::I32 | Stored::I64 | Stored::I128, constant) => {
            Term::Wide(reader, comparison, constant.whole())
        }
    }
}

fn list(reader: ColumnReader, constants: &[Constant], negated: bool) -> Term {
    match reader.stored() {
        Stored::Bool => {
            let passing = [0, 1].map(|value| constants.iter().any(|constant| constant.whole() == value) != negated);
            Term::Bool(reader, passing)
        }
        Stored::I16 | Stored::I32 | Stored::I64 => {
            // A column of 64 bits has none of the other constants.
            let mut list: Vec<i64> = constants.iter().filter_map(|constant| constant.whole().try_into().ok()).collect();
            list.sort_unstable();
            Term::IntegerIn(reader, list, negated)
        }
        Stored::I128 => {
            let mut list: Vec<i128> = constants.iter().map(Constant::whole).collect();
            list.sort_unstable();
            Term::WideIn(reader, list, negated)
        }
        Stored::F32 | Stored::F64 => {
            let mut list: Vec<f64> = constants.iter().map(Constant::float).collect();
            list.sort_by(|left, right| compare_floats(*left, *right));
            Term::FloatIn(reader, list, negated)
        }
        Stored::Text | Stored::Bytes => {
            let mut list: Vec<Vec<u8>> = constants.iter().map(|constant| constant.bytes().to_vec()).collect();
            list.sort();
            Term::BytesIn(reader, list, negated)
        }
    }
}

/// The float of a column.
#[inline]
fn float_at(reader: &ColumnReader, key: &[u8], value: &[u8]) -> f64 {
    if reader.stored() == Stored::F32 { f64::from(reader.f32(key, value)) } else { reader.f64(key, value) }
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
            | Self::WideIn(reader, ..)
            | Self::FloatIn(reader, ..)
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
                !reader.is_null(value) && comparison.holds(compare_floats(float_at(reader, key, value), *constant))
            }
            Self::Bytes(reader, comparison, constant) => {
                !reader.is_null(value) && comparison.holds(reader.bytes(key, value, scratch).cmp(constant.as_slice()))
            }
            Self::Prefix(reader, prefix, negated) => {
                !reader.is_null(value) && reader.bytes(key, value, scratch).starts_with(prefix) != *negated
            }
            Self::Bool(reader, passing) => !reader.is_null(value) && passing[usize::from(reader.bool(key, value))],
            Self::Null(reader, wanted) => reader.is_null(value) == *wanted,
            Self::IntegerIn(reader, list, negated) => {
                !reader.is_null(value) && list.binary_search(&reader.integer(key, value)).is_ok() != *negated
            }
            Self::WideIn(reader, list, negated) => {
                !reader.is_null(value) && list.binary_search(&reader.wide(key, value)).is_ok() != *negated
            }
            Self::FloatIn(reader, list, negated) => {
                !reader.is_null(value) && {
                    let float = float_at(reader, key, value);
                    list.binary_search_by(|item| compare_floats(*item, float)).is_ok() != *negated
                }
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
