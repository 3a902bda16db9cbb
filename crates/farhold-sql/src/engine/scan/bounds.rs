//! The bounds of a column's values in a scan, from the zone maps of its segments and the rows that are in no segment.

use datafusion::logical_expr::Operator;
use farhold_store::column::{Zone, ZoneValues};
use farhold_store::row::{ColumnReader, ColumnType, Stored};

use super::access::{Access, Source};
use crate::engine::catalog::TableInfo;

/// The known bounds of a column's values. They may be too wide, but never too narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    data_type: ColumnType,
    /// The least and the greatest value; `None`: all rows are NULL, or there are no rows.
    values: Option<(i64, i64)>,
}

/// The most rows in no segment that are read for the bounds of a column. Reading more takes longer than the possible gain.
const DELTA_ROWS_MAX: usize = 1 << 16;

impl Bounds {
    /// Whether a comparison is true for no pair of values.
    pub(crate) fn never(&self, operator: Operator, other: &Self) -> bool {
        // Values of different types have different units.
        if self.data_type != other.data_type {
            return false;
        }
        let (Some((least, greatest)), Some((others_least, others_greatest))) = (self.values, other.values) else {
            return matches!(operator, Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq);
        };
        match operator {
            Operator::Eq => greatest < others_least || others_greatest < least,
            Operator::Lt => least >= others_greatest,
            Operator::LtEq => least > others_greatest,
            Operator::Gt => greatest <= others_least,
            Operator::GtEq => greatest < others_least,
            _ => false,
        }
    }

    fn add(&mut self, least: i64, greatest: i64) {
        let (known_least, known_greatest) = self.values.unwrap_or((least, greatest));
        self.values = Some((known_least.min(least), known_greatest.max(greatest)));
    }

    /// `None`: the zone map shows nothing.
    fn add_zone(&mut self, zone: &Zone) -> Option<()> {
        match zone.values {
            ZoneValues::None => Some(()),
            ZoneValues::Integers(least, greatest) => {
                self.add(least, greatest);
                Some(())
            }
            ZoneValues::Wide(..) | ZoneValues::Texts(..) => None,
        }
    }

    fn add_row(&mut self, reader: &ColumnReader, key: &[u8], value: &[u8]) {
        if !reader.is_null(value) {
            let value = reader.integer(key, value);
            self.add(value, value);
        }
    }
}

impl Access {
    /// The bounds of a column that is stored as an integer of at most 64 bits; `None` for other columns, and if the scan reads pages of rows. `has_delta`:
    /// whether to include the rows that are in no segment. Without them the bounds may be too narrow, but are found quickly.
    pub(super) fn bounds(&self, table: &TableInfo, column: usize, has_delta: bool) -> Option<Bounds> {
        let Self::Columns(columns) = self else { return None };
        let data_type = table.schema().columns().get(column)?.data_type;
        let reader = ColumnReader::new(table.schema(), column);
        if !matches!(reader.stored(), Stored::I16 | Stored::I32 | Stored::I64) || !columns.aggregating.is_empty() {
            return None;
        }
        let mut bounds = Bounds { data_type, values: None };
        let mut delta_rows = 0;
        for part in columns.parts.iter() {
            match &part.source {
                Source::Pages(_) => return None,
                Source::Segment(_, segment) => bounds.add_zone(segment.zone(column))?,
                Source::FarSegment(far, number) => {
                    bounds.add_zone(far.segments()[*number].zones().get(far.place_of(column)?)?)?;
                }
                Source::FarRun(far, numbers) => {
                    let place = far.place_of(column)?;
                    for segment in &far.segments()[numbers.clone()] {
                        bounds.add_zone(segment.zones().get(place)?)?;
                    }
                }
                Source::Delta(..) | Source::FarDelta(..) if !has_delta => {}
                Source::Delta(_, rows) | Source::FarDelta(_, rows) if delta_rows + rows.len() > DELTA_ROWS_MAX => {
                    return None;
                }
                Source::Delta(view, rows) => {
                    delta_rows += rows.len();
                    view.visit_delta(rows.clone(), &mut |key, value| bounds.add_row(&reader, key, value));
                }
                Source::FarDelta(far, rows) => {
                    delta_rows += rows.len();
                    let rows = far.view().delta_part(rows.clone());
                    rows.for_each(|(key, value)| bounds.add_row(&reader, key, value));
                }
            }
        }
        Some(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Holds = fn(i64, i64) -> bool;

    fn of(values: Option<(i64, i64)>) -> Bounds {
        Bounds { data_type: ColumnType::BigInt, values }
    }

    /// Compares with all pairs of values.
    #[test]
    fn never_means_for_no_pair() {
        let ranges: Vec<(i64, i64)> =
            (0..4).flat_map(|least| (least..4).map(move |greatest| (least, greatest))).collect();
        let holds: [(Operator, Holds); 5] = [
            (Operator::Eq, |a, b| a == b),
            (Operator::Lt, |a, b| a < b),
            (Operator::LtEq, |a, b| a <= b),
            (Operator::Gt, |a, b| a > b),
            (Operator::GtEq, |a, b| a >= b),
        ];
        for (operator, holds) in holds {
            for one in &ranges {
                for other in &ranges {
                    let any = (one.0..=one.1).any(|a| (other.0..=other.1).any(|b| holds(a, b)));
                    assert_eq!(of(Some(*one)).never(operator, &of(Some(*other))), !any, "{one:?} {operator} {other:?}");
                }
            }
            assert!(of(None).never(operator, &of(Some((1, 2)))) && of(Some((1, 2))).never(operator, &of(None)));
        }
        assert!(!of(Some((1, 2))).never(Operator::NotEq, &of(Some((1, 2)))));
        assert!(!of(None).never(Operator::IsNotDistinctFrom, &of(None)));
        let date = Bounds { data_type: ColumnType::Date, values: Some((9, 9)) };
        assert!(!of(Some((1, 2))).never(Operator::Eq, &date));
    }
}
