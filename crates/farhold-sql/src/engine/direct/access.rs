//! Which index answers a condition, and the key bounds that follow from it.

use std::ops::Bound;

use farhold_store::row::{RowError, next_prefix};
use farhold_txn::{Index, RowHandle, ScanSpec, Txn};

use crate::SqlError;
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;
use crate::engine::scalar::{Comparison, Parameters, Scalar};
use crate::engine::types::round_decimal;
use crate::engine::{ColumnType, Datum, error};

/// An access path to the rows of a table: equalities on the first columns of an index, then optionally a range on the
/// next one.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) index: Index,
    /// One constant per column.
    pub(crate) equal: Vec<Scalar>,
    /// The range on the next column: the bound, and whether it is included.
    pub(crate) lower: Option<(Scalar, bool)>,
    pub(crate) upper: Option<(Scalar, bool)>,
    pub(crate) descending: bool,
    /// At most one row: all columns of a unique key are bound.
    pub(crate) point: bool,
}

/// Encoded bounds of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyBounds {
    pub(crate) lo: Bound<Vec<u8>>,
    pub(crate) hi: Bound<Vec<u8>>,
}

/// The conjuncts of a condition.
#[recursive::recursive]
pub(crate) fn conjuncts(condition: Scalar, into: &mut Vec<Scalar>) {
    match condition {
        Scalar::And(a, b) => {
            conjuncts(*a, into);
            conjuncts(*b, into);
        }
        other => into.push(other),
    }
}

/// A condition on one column that an index can use: `column <comparison> constant`.
struct Sarg<'a> {
    column: usize,
    comparison: Comparison,
    constant: &'a Scalar,
}

fn sarg<'a>(condition: &'a Scalar, table: &TableInfo) -> Option<Sarg<'a>> {
    let Scalar::Compare(comparison, a, b) = condition else { return None };
    let (column, constant, comparison) = match (bare_column(a, table), bare_column(b, table)) {
        (Some(column), None) if b.is_constant() => (column, b, *comparison),
        (None, Some(column)) if a.is_constant() => (column, a, comparison.flipped()),
        _ => return None,
    };
    Some(Sarg { column, comparison, constant })
}

/// The column, also inside a cast between integer types that preserves every value.
fn bare_column(scalar: &Scalar, table: &TableInfo) -> Option<usize> {
    use ColumnType as T;
    match scalar {
        Scalar::Column(column) => Some(*column),
        Scalar::Cast { inner, to, .. } => {
            let Scalar::Column(column) = inner.as_ref() else { return None };
            let from = table.columns()[*column].data_type;
            matches!(
                (from, to),
                (T::SmallInt, T::SmallInt | T::Int | T::BigInt) | (T::Int, T::Int | T::BigInt) | (T::BigInt, T::BigInt)
            )
            .then_some(*column)
        }
        _ => None,
    }
}

/// The best access path to the rows that satisfy `conditions`, in the order `order` (columns, each with a descending
/// flag; empty for none), and the conditions that remain to be checked on each row. It always finds one: at worst a
/// scan of the whole primary key. The flag tells whether the path delivers the order.
pub(crate) fn choose(table: &TableInfo, conditions: &[Scalar], order: &[(usize, bool)]) -> (Access, Vec<Scalar>, bool) {
    let sargs: Vec<Option<Sarg<'_>>> = conditions.iter().map(|c| sarg(c, table)).collect();
    let mut candidates = vec![(Index::Primary, table.schema().key().to_vec(), true)];
    for index in table.indexes.iter().filter(|i| i.ready) {
        candidates.push((index.index, index.columns.clone(), index.unique));
    }
    let mut best: Option<(u32, Access, Vec<usize>, bool)> = None;
    for (index, columns, unique) in candidates {
        let mut used = Vec::new();
        let mut equal = Vec::new();
        for &column in &columns {
            let found = sargs.iter().enumerate().find_map(|(i, s)| {
                s.as_ref().filter(|s| s.column == column && s.comparison == Comparison::Equal).map(|s| (i, s))
            });
            let Some((i, sarg)) = found else { break };
            used.push(i);
            equal.push(sarg.constant.clone());
        }
        let point = unique && equal.len() == columns.len();
        let (mut lower, mut upper) = (None, None);
        if let Some(&next) = columns.get(equal.len()) {
            let exact = bounds_decide(table, next);
            for (i, sarg) in sargs.iter().enumerate() {
                let Some(sarg) = sarg.as_ref().filter(|s| s.column == next) else { continue };
                let bound = |inclusive| Some((sarg.constant.clone(), inclusive));
                match sarg.comparison {
                    Comparison::Greater if lower.is_none() => lower = bound(false),
                    Comparison::GreaterEqual if lower.is_none() => lower = bound(true),
                    Comparison::Less if upper.is_none() => upper = bound(false),
                    Comparison::LessEqual if upper.is_none() => upper = bound(true),
                    _ => continue,
                }
                if exact {
                    used.push(i);
                }
            }
        }
        let ordered = order_met(&columns, equal.len(), order, point);
        let ranges = u32::from(lower.is_some()) + u32::from(upper.is_some());
        let score = if point { 1000 } else { 0 }
            + 10 * u32::try_from(equal.len()).unwrap_or(0)
            + 3 * ranges
            + if !order.is_empty() && ordered.is_some() { 2 } else { 0 };
        if best.as_ref().is_none_or(|(other, ..)| score > *other) {
            let descending = ordered.unwrap_or(false);
            best = Some((score, Access { index, equal, lower, upper, descending, point }, used, ordered.is_some()));
        }
    }
    let (_, access, used, ordered) = best.expect("the primary key is always a candidate");
    let rest = conditions.iter().enumerate().filter(|(i, _)| !used.contains(i)).map(|(_, c)| c.clone()).collect();
    (access, rest, ordered)
}

/// Whether a range of keys holds exactly the rows of a comparison with this column: no key is NULL, and every constant
/// of the type either has a key or lies beyond all keys.
fn bounds_decide(table: &TableInfo, column: usize) -> bool {
    use ColumnType as T;
    let column = &table.columns()[column];
    !column.nullable
        && matches!(column.data_type, T::SmallInt | T::Int | T::BigInt | T::Date | T::Timestamp | T::Timestamptz)
}

/// The position of a constant among the values of a column's type.
enum BoundKey {
    /// The type has this value, which is a key.
    At(Datum),
    /// Below all of them.
    Below,
    /// Above all of them.
    Above,
    /// Between two of them, or not comparable: the filter decides.
    Unknown,
}

fn bound_key(datum: Datum, data_type: ColumnType) -> BoundKey {
    let negative = match datum {
        Datum::Int(v) => Some(v < 0),
        Datum::BigInt(v) => Some(v < 0),
        _ => None,
    };
    let integer = matches!(data_type, ColumnType::SmallInt | ColumnType::Int);
    match (exact(datum, data_type), negative) {
        (Some(datum), _) => BoundKey::At(datum),
        (None, Some(negative)) if integer => {
            if negative {
                BoundKey::Below
            } else {
                BoundKey::Above
            }
        }
        _ => BoundKey::Unknown,
    }
}

/// Whether an index whose first `bound` columns are fixed delivers the order, and if so, whether in reverse.
fn order_met(columns: &[usize], bound: usize, order: &[(usize, bool)], point: bool) -> Option<bool> {
    if point || order.is_empty() {
        return Some(false);
    }
    let fixed = &columns[..bound];
    let mut rest = columns[bound..].iter();
    let mut direction = None;
    for &(column, descending) in order {
        if fixed.contains(&column) {
            continue;
        }
        if rest.next() != Some(&column) || direction.is_some_and(|d| d != descending) {
            return None;
        }
        direction = Some(descending);
    }
    Some(direction.unwrap_or(false))
}

/// `datum` as the value of a column's type that has the same key; `None` if no value of the type equals it.
fn exact(datum: Datum, data_type: ColumnType) -> Option<Datum> {
    use ColumnType as T;
    let wide = |datum: &Datum| match datum {
        Datum::SmallInt(v) => Some(i64::from(*v)),
        Datum::Int(v) => Some(i64::from(*v)),
        Datum::BigInt(v) => Some(*v),
        _ => None,
    };
    match (data_type, &datum) {
        (_, Datum::Null) => None,
        (T::SmallInt, _) => i16::try_from(wide(&datum)?).ok().map(Datum::SmallInt),
        (T::Int, _) => i32::try_from(wide(&datum)?).ok().map(Datum::Int),
        (T::BigInt, _) => wide(&datum).map(Datum::BigInt),
        (T::Decimal { precision, scale }, Datum::Decimal { unscaled, scale: from }) => {
            let rounded = round_decimal(*unscaled, *from, scale)?;
            let equal = datum.compare(&Datum::Decimal { unscaled: rounded, scale }) == Some(std::cmp::Ordering::Equal);
            let fits = rounded.unsigned_abs() < 10_u128.pow(u32::from(precision));
            (equal && fits).then_some(Datum::Decimal { unscaled: rounded, scale })
        }
        // Beside a CHAR, a string literal has already lost its trailing blanks. So this is a TEXT, where blanks count,
        // and a CHAR key never ends in one.
        (T::Char(_), Datum::Text(text)) if text.ends_with(' ') => None,
        (T::Char(n) | T::Varchar(n), Datum::Text(text)) => {
            (text.chars().count() <= n as usize && !text.contains('\0')).then_some(datum)
        }
        (T::Text, Datum::Text(text)) => (!text.contains('\0')).then_some(datum),
        _ => (super::super::types::type_of(&datum) == data_type).then_some(datum),
    }
}

/// Encodes the first columns of a key. Returns false if the key is longer than any row's.
fn encoded(table: &TableInfo, index: Index, parts: &[Datum], key: &mut Vec<u8>) -> Result<bool, SqlError> {
    match table.encode_parts(index, parts, key) {
        Ok(()) => Ok(true),
        Err(RowError::RowTooLarge { .. }) => Ok(false),
        Err(error) => Err(error::from_row(&error)),
    }
}

/// The rows of a scan; an error if the statement was stopped.
pub(crate) async fn scan(
    txn: &mut Txn,
    table: &TableInfo,
    spec: ScanSpec<'_>,
    cancel: &CancelHandle,
) -> Result<Vec<RowHandle>, SqlError> {
    let rows = txn.scan_while(&table.table, spec, &|| !cancel.is_cancelled()).await.map_err(|e| error::from_txn(&e))?;
    cancel.check()?;
    Ok(rows)
}

impl Access {
    /// The key bounds for these parameters; `None` if no row can match.
    pub(crate) fn bounds(&self, table: &TableInfo, parameters: Parameters<'_>) -> Result<Option<KeyBounds>, SqlError> {
        let columns = table.index_columns(self.index);
        let mut parts = Vec::with_capacity(self.equal.len() + 1);
        for (constant, &column) in self.equal.iter().zip(columns) {
            let datum = constant.evaluate(&[], parameters)?;
            let Some(datum) = exact(datum, table.columns()[column].data_type) else { return Ok(None) };
            parts.push(datum);
        }
        let encode = |parts: &[Datum]| {
            let mut key = Vec::with_capacity(32);
            Ok::<_, SqlError>(encoded(table, self.index, parts, &mut key)?.then_some(key))
        };
        let Some(prefix) = encode(&parts)? else { return Ok(None) };
        let after = |mut key: Vec<u8>| if next_prefix(&mut key) { Some(key) } else { None };
        let mut nothing = false;
        let mut side = |bound: &Option<(Scalar, bool)>, is_lower: bool| -> Result<Option<(Vec<u8>, bool)>, SqlError> {
            let Some((constant, inclusive)) = bound else { return Ok(None) };
            let column = columns[parts.len()];
            let datum = constant.evaluate(&[], parameters)?;
            // A comparison with NULL matches no row.
            nothing |= datum.is_null();
            match bound_key(datum, table.columns()[column].data_type) {
                BoundKey::At(datum) => {
                    parts.push(datum);
                    let key = encode(&parts);
                    parts.pop();
                    // A bound longer than any key is left to the filter.
                    Ok(key?.map(|key| (key, *inclusive)))
                }
                BoundKey::Below => {
                    nothing |= !is_lower;
                    Ok(None)
                }
                BoundKey::Above => {
                    nothing |= is_lower;
                    Ok(None)
                }
                BoundKey::Unknown => Ok(None),
            }
        };
        let (lower, upper) = (side(&self.lower, true)?, side(&self.upper, false)?);
        if nothing {
            return Ok(None);
        }
        let lo = match lower {
            Some((key, true)) => Bound::Included(key),
            Some((key, false)) => match after(key) {
                Some(key) => Bound::Included(key),
                None => return Ok(None),
            },
            None if prefix.is_empty() => Bound::Unbounded,
            None => Bound::Included(prefix.clone()),
        };
        let hi = match upper {
            Some((key, true)) => after(key).map_or(Bound::Unbounded, Bound::Excluded),
            Some((key, false)) => Bound::Excluded(key),
            None if prefix.is_empty() => Bound::Unbounded,
            None => after(prefix).map_or(Bound::Unbounded, Bound::Excluded),
        };
        Ok(Some(KeyBounds { lo, hi }))
    }

    /// At most `limit` of the rows.
    pub(crate) async fn rows(
        &self,
        txn: &mut Txn,
        table: &TableInfo,
        parameters: Parameters<'_>,
        limit: usize,
        cancel: &CancelHandle,
    ) -> Result<Vec<RowHandle>, SqlError> {
        if self.point {
            let mut key = Vec::with_capacity(32);
            return Ok(self.row(txn, table, parameters, &mut key).await?.into_iter().collect());
        }
        let Some(bounds) = self.bounds(table, parameters)? else { return Ok(Vec::new()) };
        let spec = ScanSpec {
            lo: bounds.lo.as_ref().map(Vec::as_slice),
            hi: bounds.hi.as_ref().map(Vec::as_slice),
            descending: self.descending,
            limit,
            ..ScanSpec::all().index(self.index)
        };
        scan(txn, table, spec, cancel).await
    }

    /// The row of a point access.
    pub(crate) async fn row(
        &self,
        txn: &mut Txn,
        table: &TableInfo,
        parameters: Parameters<'_>,
        key: &mut Vec<u8>,
    ) -> Result<Option<RowHandle>, SqlError> {
        let columns = table.index_columns(self.index);
        let mut parts = Vec::with_capacity(self.equal.len());
        for (constant, &column) in self.equal.iter().zip(columns) {
            let datum = constant.evaluate(&[], parameters)?;
            let Some(datum) = exact(datum, table.columns()[column].data_type) else { return Ok(None) };
            parts.push(datum);
        }
        if !encoded(table, self.index, &parts, key)? {
            return Ok(None);
        }
        let found = match self.index {
            Index::Primary => txn.get(&table.table, key).await,
            index @ Index::Secondary(_) => txn.get_by(&table.table, index, key).await,
        };
        found.map_err(|e| error::from_txn(&e))
    }

    /// Whether the bound key columns, not just the table's size, limit the number of rows: then the statement needs no
    /// planner.
    pub(crate) fn is_narrow(&self, table: &TableInfo) -> bool {
        let columns = table.index_columns(self.index).len();
        self.point
            || (!self.equal.is_empty() && self.equal.len() + 1 >= columns && columns > 1)
            || self.equal.len() == columns
    }

    /// For EXPLAIN.
    pub(crate) fn describe(&self, table: &TableInfo) -> String {
        let index = match self.index {
            Index::Primary => table.primary_key_name.as_str(),
            Index::Secondary(_) => table.index_info(self.index).map_or("an index", |i| i.name.as_str()),
        };
        let columns = table.index_columns(self.index);
        let mut bound: Vec<String> =
            columns.iter().take(self.equal.len()).map(|&c| format!("{} =", table.columns()[c].name)).collect();
        if let Some(&next) = columns.get(self.equal.len())
            && (self.lower.is_some() || self.upper.is_some())
        {
            bound.push(format!("{} in a range", table.columns()[next].name));
        }
        let kind = if self.point { "Point read" } else { "Index scan" };
        let direction = if self.descending { ", backward" } else { "" };
        if bound.is_empty() {
            format!("{kind} of {} by {index} (all rows{direction})", table.name)
        } else {
            format!("{kind} of {} by {index} ({}{direction})", table.name, bound.join(", "))
        }
    }
}
