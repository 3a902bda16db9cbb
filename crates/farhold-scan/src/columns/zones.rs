//! Evaluates a predicate on the zone maps of some chunks: whether no row passes, without reading the chunks.

use std::ops::Bound;

use farhold_store::column::{Zone, ZoneValues, after_prefix};
use farhold_store::row::{ColumnType, Schema};

use super::{between, integers_between};
use crate::predicate::{Comparison, Condition, Constant, Predicate};

/// Whether the zone maps of some chunks show that no row passes. `zone`: the zone map of a column, if it is known.
///
/// # Panics
/// If the predicate does not fit the table ([`Predicate::check`]).
#[must_use]
pub fn excludes<'z>(schema: &Schema, predicate: &Predicate, zone: impl Fn(usize) -> Option<&'z Zone>) -> bool {
    predicate.check(schema);
    let zones = Zones { schema, zone: &zone };
    predicate.conditions().iter().any(|condition| zones.exclude(condition))
}

struct Zones<'a, 'z> {
    schema: &'a Schema,
    zone: &'a dyn Fn(usize) -> Option<&'z Zone>,
}

impl<'z> Zones<'_, 'z> {
    fn values(&self, column: usize) -> Option<&'z ZoneValues> {
        (self.zone)(column).map(|zone| &zone.values)
    }

    /// Whether a condition holds for no row.
    fn exclude(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Never => true,
            Condition::Any(ways) => ways.iter().all(|way| way.iter().any(|condition| self.exclude(condition))),
            Condition::Null(column, true) => (self.zone)(*column).is_some_and(|zone| zone.nulls == 0),
            // All values may pass except some.
            Condition::Null(column, false)
            | Condition::In(column, _, true)
            | Condition::Prefix(column, _, true)
            | Condition::Compare(column, Comparison::NotEqual, _) => self.values(*column) == Some(&ZoneValues::None),
            Condition::Compare(column, comparison, constant) => self.compare(*column, *comparison, constant),
            Condition::In(column, constants, false) => {
                constants.iter().all(|constant| self.compare(*column, Comparison::Equal, constant))
            }
            Condition::Prefix(column, prefix, false) => match self.values(*column) {
                Some(ZoneValues::None) => true,
                Some(ZoneValues::Texts(least, greatest)) => {
                    let after = after_prefix(prefix);
                    let wanted =
                        (Bound::Included(&**prefix), after.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
                    is_outside(wanted, least, greatest.as_deref())
                }
                _ => false,
            },
        }
    }

    /// Whether no value of a column satisfies a comparison; not for `<>`. A zone map of another type than the column's shows nothing.
    fn compare(&self, column: usize, comparison: Comparison, constant: &Constant) -> bool {
        let data_type = self.schema.columns()[column].data_type;
        let holds_texts = data_type.is_text() || data_type == ColumnType::Bytea;
        match self.values(column) {
            Some(ZoneValues::None) => true,
            Some(ZoneValues::Integers(least, greatest)) if !holds_texts => {
                integers_between(data_type, comparison, constant).is_none_or(|(from, to)| {
                    from > to || is_outside((Bound::Included(&from), Bound::Included(&to)), least, Some(greatest))
                })
            }
            Some(ZoneValues::Wide(least, greatest)) if matches!(data_type, ColumnType::Decimal { .. }) => {
                is_outside(between(comparison, &constant.whole()), least, Some(greatest))
            }
            Some(ZoneValues::Texts(least, greatest)) if holds_texts => {
                is_outside(between(comparison, constant.bytes()), least, greatest.as_deref())
            }
            _ => false,
        }
    }
}

/// Whether the wanted range is below all values, or above all of them.
fn is_outside<V: Ord + ?Sized>((from, to): (Bound<&V>, Bound<&V>), least: &V, greatest: Option<&V>) -> bool {
    let is_above = greatest.is_some_and(|greatest| match from {
        Bound::Included(from) => from > greatest,
        Bound::Excluded(from) => from >= greatest,
        Bound::Unbounded => false,
    });
    let is_below = match to {
        Bound::Included(to) => to < least,
        Bound::Excluded(to) => to <= least,
        Bound::Unbounded => false,
    };
    is_above || is_below
}

#[cfg(test)]
mod tests {
    use farhold_store::row::Datum;

    use super::super::conformance::{check, on_one_column, one_column, open};
    use super::*;

    /// What zone maps show, and what they cannot show.
    #[test]
    fn zone_maps_exclude_what_lies_outside() {
        use Comparison::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        let excluded = |data_type: ColumnType, values: &[Datum], condition: Condition| {
            let table = one_column(data_type, values);
            let zones: Vec<Zone> = open(&table).iter().map(Zone::of).collect();
            check(&table, &on_one_column(condition.clone()));
            excludes(&table.schema, &on_one_column(condition), |column| zones.get(column))
        };
        let some = [Datum::Int(10), Datum::Null, Datum::Int(20)];
        for (comparison, outside, inside) in [
            (Equal, 9, 15),
            (Equal, 21, 20),
            (Less, 10, 11),
            (LessEqual, 9, 10),
            (Greater, 20, 19),
            (GreaterEqual, 21, 20),
        ] {
            let compare = |constant| Condition::Compare(1, comparison, Constant::Integer(constant));
            assert!(excluded(ColumnType::Int, &some, compare(outside)), "{} {outside}", comparison.sign());
            assert!(!excluded(ColumnType::Int, &some, compare(inside)), "{} {inside}", comparison.sign());
        }
        let list =
            |negated, list: &[i64]| Condition::In(1, list.iter().copied().map(Constant::Integer).collect(), negated);
        assert!(
            excluded(ColumnType::Int, &some, list(false, &[1, 30]))
                && excluded(ColumnType::Int, &some, list(false, &[]))
        );
        assert!(
            !excluded(ColumnType::Int, &some, list(false, &[1, 15]))
                && !excluded(ColumnType::Int, &some, list(true, &[10]))
        );
        let (below, above) = (vec![list(false, &[1])], vec![list(false, &[30])]);
        assert!(excluded(ColumnType::Int, &some, Condition::Any(vec![below.clone(), above])));
        assert!(!excluded(ColumnType::Int, &some, Condition::Any(vec![below, vec![Condition::Null(1, true)]])));
        let text = |text: &str| Datum::Text(text.to_owned());
        let texts = [text("b 1"), text("b 2"), text("d")];
        for (prefix, is_excluded) in [("a", true), ("b", false), ("b 3", false), ("e", true), ("", false)] {
            let condition = Condition::Prefix(1, prefix.into(), false);
            assert_eq!(excluded(ColumnType::Text, &texts, condition), is_excluded, "{prefix}");
        }
        assert!(excluded(ColumnType::Text, &texts, Condition::Compare(1, Less, Constant::Bytes(b"b 1".into()))));
        assert!(!excluded(ColumnType::Text, &texts, Condition::Compare(1, LessEqual, Constant::Bytes(b"b 1".into()))));
        let wide = ColumnType::Decimal { precision: 38, scale: 0 };
        let decimals =
            [i128::from(i64::MAX) + 5, i128::from(i64::MAX) + 9].map(|unscaled| Datum::Decimal { unscaled, scale: 0 });
        assert!(excluded(wide, &decimals, Condition::Compare(1, Less, Constant::Integer(i64::MAX))));
        assert!(!excluded(wide, &decimals, Condition::Compare(1, Equal, Constant::Wide(i128::from(i64::MAX) + 7))));
        // Chunks with a NULL, and chunks with nothing else.
        assert!(
            !excluded(ColumnType::Int, &some, Condition::Null(1, true))
                && excluded(ColumnType::Text, &texts, Condition::Null(1, true))
        );
        let nulls = [Datum::Null, Datum::Null];
        assert!(excluded(ColumnType::Int, &nulls, Condition::Compare(1, NotEqual, Constant::Integer(3))));
        assert!(
            excluded(ColumnType::Int, &nulls, Condition::Null(1, false))
                && !excluded(ColumnType::Int, &some, Condition::Null(1, false))
        );
        // Of a column without a zone map, and by that of another type, nothing is known.
        let table = one_column(ColumnType::Int, &some);
        let predicate = on_one_column(Condition::Compare(1, Equal, Constant::Integer(99)));
        let other = Zone { nulls: 0, values: ZoneValues::Texts(b"z".into(), None) };
        assert!(
            !excludes(&table.schema, &predicate, |_| None) && !excludes(&table.schema, &predicate, |_| Some(&other))
        );
    }
}
