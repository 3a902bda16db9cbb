//! Conditions decided on a row's bytes, before anything of it is copied.

use std::cmp::Ordering;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, Operator};

use super::column::{ColumnReader, Stored};
use crate::engine::catalog::TableInfo;
use crate::engine::query::without_key;
use crate::engine::scalar::{Comparison, Scalar};
use crate::engine::types::{datum_at, round_decimal};
use crate::engine::{ColumnType, Datum};

/// One condition. A null fails every one but `Null`.
#[derive(Clone, Debug)]
enum Term {
    Integer(ColumnReader, Comparison, i64),
    Wide(ColumnReader, Comparison, i128),
    Float(ColumnReader, Comparison, f64),
    Bytes(ColumnReader, Comparison, Vec<u8>),
    Prefix(ColumnReader, Vec<u8>, bool),
    Bool(ColumnReader, bool),
    /// Is null, or is not.
    Null(ColumnReader, bool),
    IntegerIn(ColumnReader, Vec<i64>, bool),
    BytesIn(ColumnReader, Vec<Vec<u8>>, bool),
    /// One of these conjunctions holds.
    Any(Vec<Vec<Term>>),
    Never,
}

/// Conditions that all must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowFilter {
    terms: Vec<Term>,
    /// The same as scalars over the table's columns, where an index may help.
    sargs: Vec<Scalar>,
    /// The part of the rows that will pass, about.
    selectivity: f64,
}

impl RowFilter {
    /// Whether it can decide `expression`.
    pub(crate) fn supports(table: &TableInfo, expression: &Expr) -> bool {
        Self::everything().add(table, expression).is_some()
    }

    /// Of those of `filters` that it can decide, and the others: the optimiser may change a filter after it has been told
    /// that it can be decided.
    pub(crate) fn split<'e>(table: &TableInfo, filters: &'e [Expr]) -> (Self, Vec<&'e Expr>) {
        let mut filter = Self::everything();
        let mut others = Vec::new();
        for expression in filters {
            let mut more = filter.clone();
            match more.add(table, expression) {
                Some(()) => filter = more,
                None => others.push(expression),
            }
        }
        (filter, others)
    }

    /// Lets every row pass.
    pub(crate) fn everything() -> Self {
        Self { selectivity: 1.0, ..Self::default() }
    }

    /// What an index may use of it.
    pub(crate) fn sargs(&self) -> &[Scalar] {
        &self.sargs
    }

    /// The part of the rows that will pass, about.
    pub(crate) fn selectivity(&self) -> f64 {
        self.selectivity
    }

    /// Whether it lets every row pass.
    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// How many bytes of each value, from its start, it looks at.
    pub(crate) fn value_bytes(&self) -> usize {
        self.terms.iter().map(Term::value_bytes).max().unwrap_or(0)
    }

    /// Whether the row passes.
    #[inline]
    pub(crate) fn matches(&self, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> bool {
        self.terms.iter().all(|term| term.holds(key, value, scratch))
    }

    fn add(&mut self, table: &TableInfo, expression: &Expr) -> Option<()> {
        match expression {
            Expr::Alias(alias) => self.add(table, &alias.expr),
            Expr::BinaryExpr(binary) if binary.op == Operator::And => {
                self.add(table, &binary.left)?;
                self.add(table, &binary.right)
            }
            Expr::BinaryExpr(binary) if binary.op == Operator::Or => {
                let mut ways = Vec::new();
                let mut selectivity = 0.0;
                for side in [&binary.left, &binary.right] {
                    let mut way = Self::everything();
                    way.add(table, side)?;
                    selectivity += way.selectivity;
                    match way.terms.as_slice() {
                        [Term::Any(_)] => {
                            if let Some(Term::Any(more)) = way.terms.pop() {
                                ways.extend(more);
                            }
                        }
                        _ => ways.push(way.terms),
                    }
                }
                self.push(Term::Any(ways), f64::min(selectivity, 1.0));
                Some(())
            }
            Expr::Literal(value, _) => match value {
                ScalarValue::Boolean(Some(true)) => Some(()),
                ScalarValue::Boolean(_) | ScalarValue::Null => {
                    self.push(Term::Never, 0.0);
                    Some(())
                }
                _ => None,
            },
            Expr::BinaryExpr(binary) => {
                let comparison = comparison(binary.op)?;
                let (column, literal, comparison) = match (without_key(&binary.left), without_key(&binary.right)) {
                    (Expr::Column(c), Expr::Literal(v, _)) => (c, v, comparison),
                    (Expr::Literal(v, _), Expr::Column(c)) => (c, v, comparison.flipped()),
                    _ => return None,
                };
                self.compare(table, &column.name, comparison, literal)
            }
            Expr::Between(between) if !between.negated => {
                let (Expr::Column(column), Expr::Literal(low, _), Expr::Literal(high, _)) =
                    (without_key(&between.expr), without_key(&between.low), without_key(&between.high))
                else {
                    return None;
                };
                self.compare(table, &column.name, Comparison::GreaterEqual, low)?;
                self.compare(table, &column.name, Comparison::LessEqual, high)
            }
            Expr::InList(list) => self.in_list(table, list),
            Expr::IsNull(inner) => self.null(table, inner, true),
            Expr::IsNotNull(inner) => self.null(table, inner, false),
            Expr::Column(column) => self.boolean(table, &column.name, true),
            Expr::Not(inner) => match inner.as_ref() {
                Expr::Column(column) => self.boolean(table, &column.name, false),
                _ => None,
            },
            Expr::Like(like) if !like.case_insensitive && like.escape_char.is_none() => {
                let (Expr::Column(column), Expr::Literal(pattern, _)) = (like.expr.as_ref(), like.pattern.as_ref())
                else {
                    return None;
                };
                let pattern = pattern.try_as_str()??;
                let prefix = pattern.strip_suffix('%')?;
                if prefix.contains(['%', '_', '\\']) {
                    return None;
                }
                let (column, data_type) = find(table, &column.name)?;
                if !data_type.is_text() {
                    return None;
                }
                self.push(
                    Term::Prefix(ColumnReader::new(table, column), prefix.as_bytes().to_vec(), like.negated),
                    0.1,
                );
                Some(())
            }
            _ => None,
        }
    }

    fn push(&mut self, term: Term, selectivity: f64) {
        self.terms.push(term);
        self.selectivity *= selectivity;
    }

    fn compare(&mut self, table: &TableInfo, name: &str, comparison: Comparison, literal: &ScalarValue) -> Option<()> {
        let (column, data_type) = find(table, name)?;
        if literal.is_null() {
            self.push(Term::Never, 0.0);
            return Some(());
        }
        let datum = to_datum(literal)?;
        if has_blanks(&datum, data_type) {
            return None;
        }
        let reader = ColumnReader::new(table, column);
        let term = match (data_type, &datum) {
            (ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt, datum) => {
                Term::Integer(reader, comparison, integer(datum)?)
            }
            (ColumnType::Date, Datum::Date(v)) => Term::Integer(reader, comparison, i64::from(*v)),
            (ColumnType::Timestamp, Datum::Timestamp(v)) => Term::Integer(reader, comparison, *v),
            (ColumnType::Decimal { scale, .. }, Datum::Decimal { unscaled, scale: from }) => {
                let unscaled = round_decimal(*unscaled, *from, scale)?;
                // A constant with more digits than the column has is the planner's to compare.
                if *from > scale && datum.compare(&Datum::Decimal { unscaled, scale }) != Some(Ordering::Equal) {
                    return None;
                }
                match i64::try_from(unscaled) {
                    Ok(v) if reader.stored != Stored::I128 => Term::Integer(reader, comparison, v),
                    _ => Term::Wide(reader, comparison, unscaled),
                }
            }
            (ColumnType::Double, Datum::Double(v)) => Term::Float(reader, comparison, *v),
            (ColumnType::Real, Datum::Real(v)) => Term::Float(reader, comparison, f64::from(*v)),
            (data_type, Datum::Text(text)) if data_type.is_text() => {
                Term::Bytes(reader, comparison, text.as_bytes().to_vec())
            }
            (ColumnType::Boolean, Datum::Boolean(v)) if comparison == Comparison::Equal => Term::Bool(reader, *v),
            _ => return None,
        };
        let selectivity = match comparison {
            Comparison::Equal => 0.05,
            Comparison::NotEqual => 0.95,
            _ => 0.33,
        };
        self.push(term, selectivity);
        self.sargs.push(Scalar::Compare(
            comparison,
            Box::new(Scalar::Column(column)),
            Box::new(Scalar::Literal(datum)),
        ));
        Some(())
    }

    fn boolean(&mut self, table: &TableInfo, name: &str, wanted: bool) -> Option<()> {
        let (column, data_type) = find(table, name)?;
        if data_type != ColumnType::Boolean {
            return None;
        }
        self.push(Term::Bool(ColumnReader::new(table, column), wanted), 0.5);
        Some(())
    }

    fn null(&mut self, table: &TableInfo, inner: &Expr, wanted: bool) -> Option<()> {
        let Expr::Column(column) = inner else { return None };
        let (column, _) = find(table, &column.name)?;
        self.push(Term::Null(ColumnReader::new(table, column), wanted), if wanted { 0.05 } else { 0.95 });
        Some(())
    }

    fn in_list(&mut self, table: &TableInfo, list: &datafusion::logical_expr::expr::InList) -> Option<()> {
        let Expr::Column(column) = list.expr.as_ref() else { return None };
        let (column, data_type) = find(table, &column.name)?;
        let reader = ColumnReader::new(table, column);
        let mut integers = Vec::new();
        let mut texts = Vec::new();
        let mut any_null = false;
        for item in &list.list {
            let Expr::Literal(value, _) = item else { return None };
            if value.is_null() {
                any_null = true;
                continue;
            }
            let datum = to_datum(value)?;
            if has_blanks(&datum, data_type) {
                return None;
            }
            match (data_type, datum) {
                (ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt, datum) => integers.push(integer(&datum)?),
                (ColumnType::Date, Datum::Date(v)) => integers.push(i64::from(v)),
                (ColumnType::Timestamp, Datum::Timestamp(v)) => integers.push(v),
                (data_type, Datum::Text(text)) if data_type.is_text() => texts.push(text.into_bytes()),
                _ => return None,
            }
        }
        #[allow(clippy::cast_precision_loss)]
        let selectivity = (0.05 * list.list.len() as f64).min(0.5);
        let selectivity = if list.negated { 1.0 - selectivity } else { selectivity };
        // `x NOT IN (…, NULL)` is never true.
        let term = if any_null && list.negated {
            Term::Never
        } else if data_type.is_text() {
            texts.sort();
            Term::BytesIn(reader, texts, list.negated)
        } else {
            integers.sort_unstable();
            Term::IntegerIn(reader, integers, list.negated)
        };
        self.push(term, selectivity);
        Some(())
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
                let found = if reader.stored == Stored::F32 {
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

fn comparison(op: Operator) -> Option<Comparison> {
    Some(match op {
        Operator::Eq => Comparison::Equal,
        Operator::NotEq => Comparison::NotEqual,
        Operator::Lt => Comparison::Less,
        Operator::LtEq => Comparison::LessEqual,
        Operator::Gt => Comparison::Greater,
        Operator::GtEq => Comparison::GreaterEqual,
        _ => return None,
    })
}

fn find(table: &TableInfo, name: &str) -> Option<(usize, ColumnType)> {
    let column = table.columns().iter().position(|c| c.name == name)?;
    Some((column, table.columns()[column].data_type))
}

fn integer(datum: &Datum) -> Option<i64> {
    match datum {
        Datum::SmallInt(v) => Some(i64::from(*v)),
        Datum::Int(v) => Some(i64::from(*v)),
        Datum::BigInt(v) => Some(*v),
        _ => None,
    }
}

/// Whether a constant beside a CHAR has blanks at its end. Those of a bare string are gone, so it is a TEXT, where they count; an index does not
/// know them.
fn has_blanks(constant: &Datum, column: ColumnType) -> bool {
    matches!((constant, column), (Datum::Text(text), ColumnType::Char(_)) if text.ends_with(' '))
}

fn to_datum(value: &ScalarValue) -> Option<Datum> {
    datum_at(&value.to_array().ok()?, 0).ok()
}
