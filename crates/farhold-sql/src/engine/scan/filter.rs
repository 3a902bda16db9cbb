//! Compiles the planner's filters to a predicate on the rows of one table.

use std::cmp::Ordering;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, Operator};
use farhold_scan::predicate::{Comparison, Condition, Constant, Predicate};
use farhold_scan::rows::RowFilter;

use crate::engine::catalog::TableInfo;
use crate::engine::query::without_key;
use crate::engine::scalar::Scalar;
use crate::engine::types::{datum_at, round_decimal};
use crate::engine::{ColumnType, Datum};
use crate::value::Zone;

/// The filters of a query that a scan evaluates itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanFilter {
    predicate: Predicate,
    /// The same predicates as scalars over the table's columns, as far as an index can use them.
    sargs: Vec<Scalar>,
}

impl ScanFilter {
    /// Whether a scan can evaluate `expression`.
    pub(crate) fn supports(table: &TableInfo, expression: &Expr) -> bool {
        Self::default().add(table, expression).is_some()
    }

    /// The filter for the expressions that a scan can evaluate, and the remaining expressions. There may be some even
    /// after [`supports`](Self::supports), since the optimizer may rewrite a filter afterwards.
    pub(crate) fn split<'e>(table: &TableInfo, filters: &'e [Expr]) -> (Self, Vec<&'e Expr>) {
        let mut filter = Self::default();
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

    /// The filter of a predicate, which no index uses.
    pub(super) fn of(predicate: Predicate) -> Self {
        Self { predicate, sargs: Vec::new() }
    }

    /// The predicate.
    pub(crate) fn predicate(&self) -> &Predicate {
        &self.predicate
    }

    /// The filter for encoded rows of its table.
    pub(crate) fn on_rows(&self, table: &TableInfo) -> RowFilter {
        RowFilter::new(table.schema(), &self.predicate)
    }

    /// The predicates that an index can use.
    pub(crate) fn sargs(&self) -> &[Scalar] {
        &self.sargs
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
                for side in [&binary.left, &binary.right] {
                    let mut way = Self::default();
                    way.add(table, side)?;
                    ways.push(way.predicate);
                }
                self.predicate.push_any(ways);
                Some(())
            }
            Expr::Literal(value, _) => match value {
                ScalarValue::Boolean(Some(true)) => Some(()),
                ScalarValue::Boolean(_) | ScalarValue::Null => {
                    self.predicate.push(Condition::Never, 0.0);
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
                self.predicate.push(Condition::Prefix(column, prefix.as_bytes().to_vec(), like.negated), 0.1);
                Some(())
            }
            _ => None,
        }
    }

    fn compare(&mut self, table: &TableInfo, name: &str, comparison: Comparison, literal: &ScalarValue) -> Option<()> {
        let (column, data_type) = find(table, name)?;
        if literal.is_null() {
            self.predicate.push(Condition::Never, 0.0);
            return Some(());
        }
        let datum = to_datum(literal)?;
        if has_blanks(&datum, data_type) {
            return None;
        }
        let constant = match (data_type, &datum) {
            (ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt, datum) => Constant::Integer(integer(datum)?),
            (ColumnType::Date, Datum::Date(v)) => Constant::Integer(i64::from(*v)),
            (ColumnType::Timestamp, Datum::Timestamp(v)) | (ColumnType::Timestamptz, Datum::Timestamptz(v)) => {
                Constant::Integer(*v)
            }
            (ColumnType::Decimal { scale, .. }, Datum::Decimal { unscaled, scale: from }) => {
                let unscaled = round_decimal(*unscaled, *from, scale)?;
                // A constant with a larger scale than the column's is left to the planner.
                if *from > scale && datum.compare(&Datum::Decimal { unscaled, scale }) != Some(Ordering::Equal) {
                    return None;
                }
                i64::try_from(unscaled).map_or(Constant::Wide(unscaled), Constant::Integer)
            }
            (ColumnType::Double, Datum::Double(v)) => Constant::Float(*v),
            (ColumnType::Real, Datum::Real(v)) => Constant::Float(f64::from(*v)),
            (data_type, Datum::Text(text)) if data_type.is_text() => Constant::Bytes(text.as_bytes().to_vec()),
            (ColumnType::Boolean, Datum::Boolean(v)) if comparison == Comparison::Equal => {
                Constant::Integer(i64::from(*v))
            }
            _ => return None,
        };
        let selectivity = match comparison {
            Comparison::Equal => 0.05,
            Comparison::NotEqual => 0.95,
            _ => 0.33,
        };
        self.predicate.push(Condition::Compare(column, comparison, constant), selectivity);
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
        let wanted = Constant::Integer(i64::from(wanted));
        self.predicate.push(Condition::Compare(column, Comparison::Equal, wanted), 0.5);
        Some(())
    }

    fn null(&mut self, table: &TableInfo, inner: &Expr, wanted: bool) -> Option<()> {
        let Expr::Column(column) = inner else { return None };
        let (column, _) = find(table, &column.name)?;
        self.predicate.push(Condition::Null(column, wanted), if wanted { 0.05 } else { 0.95 });
        Some(())
    }

    fn in_list(&mut self, table: &TableInfo, list: &datafusion::logical_expr::expr::InList) -> Option<()> {
        let Expr::Column(column) = list.expr.as_ref() else { return None };
        let (column, data_type) = find(table, &column.name)?;
        let mut constants = Vec::with_capacity(list.list.len());
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
            constants.push(match (data_type, datum) {
                (ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt, datum) => {
                    Constant::Integer(integer(&datum)?)
                }
                (ColumnType::Date, Datum::Date(v)) => Constant::Integer(i64::from(v)),
                (ColumnType::Timestamp, Datum::Timestamp(v)) | (ColumnType::Timestamptz, Datum::Timestamptz(v)) => {
                    Constant::Integer(v)
                }
                (data_type, Datum::Text(text)) if data_type.is_text() => Constant::Bytes(text.into_bytes()),
                _ => return None,
            });
        }
        #[allow(clippy::cast_precision_loss)]
        let selectivity = (0.05 * list.list.len() as f64).min(0.5);
        let selectivity = if list.negated { 1.0 - selectivity } else { selectivity };
        // `x NOT IN (…, NULL)` is never true, and neither is `x IN (NULL)`, for a column of any type.
        let never = if list.negated { any_null } else { constants.is_empty() };
        let condition = if never { Condition::Never } else { Condition::In(column, constants, list.negated) };
        self.predicate.push(condition, selectivity);
        Some(())
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

/// Whether a constant compared with a CHAR has trailing blanks. Those of an untyped literal have been removed, so the
/// constant is a TEXT, whose blanks are significant; an index does not distinguish them.
fn has_blanks(constant: &Datum, column: ColumnType) -> bool {
    matches!((constant, column), (Datum::Text(text), ColumnType::Char(_)) if text.ends_with(' '))
}

fn to_datum(value: &ScalarValue) -> Option<Datum> {
    // A list or a record is no constant of a column.
    datum_at(&value.to_array().ok()?, 0, Zone::UTC).ok()
}
