//! A sequence's definition, and its encoding in a table's attributes.
//!
//! ```text
//! 'Q' │ version u8 │ type u8 │ flags u8 (1: cycle, 2: owned) │ increment, min, max, start i64 │ cache u32 │ [owner's table, column]
//! ```

use datafusion::sql::sqlparser::ast::{Expr, SequenceOptions};
use farhold_store::row::{Column, Schema};
use farhold_txn::{Placement, RowCounter, Table, TableDef};

use crate::engine::catalog::{put_text, take, take_text};
use crate::engine::{ColumnType, Datum, error};
use crate::{SqlError, SqlState};

const MAGIC: u8 = b'Q';
const VERSION: u8 = 1;
const CYCLE: u8 = 1;
const OWNED: u8 = 2;

/// Numbers that a node takes at a time unless the sequence specifies another CACHE. PostgreSQL also loses up to 32
/// numbers in a crash.
const CACHE: u32 = 32;
/// The limit on the span of a block, and the least count of numbers outside of the limits. They ensure that a counter
/// beyond one limit does not wrap around to the other, however many sessions advance it before it is reset.
const SPAN_MAX: u128 = 1 << 40;
const OUTSIDE_MIN: i128 = 1 << 56;

/// The column that owns the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) table: String,
    pub(crate) column: String,
}

/// A sequence's definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequenceDef {
    pub(crate) data_type: ColumnType,
    pub(crate) increment: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
    pub(crate) start: i64,
    pub(crate) cache: u32,
    pub(crate) cycle: bool,
    pub(crate) owner: Option<Owner>,
}

/// A sequence in the catalog.
pub(crate) struct SequenceInfo {
    pub(crate) name: String,
    pub(crate) definition: SequenceDef,
    pub(crate) table: Table,
    key: Vec<u8>,
    promise_key: Vec<u8>,
}

impl SequenceInfo {
    /// `None` if the table is not a sequence.
    pub(crate) fn of(table: &Table) -> Option<Self> {
        let definition = SequenceDef::decode(&table.attributes())?;
        let place = place_of(table.name());
        let key = |number| {
            let mut row = vec![Datum::BigInt(0); 1 + RowCounter::COLUMNS.len()];
            row[0] = Datum::BigInt(number);
            let mut key = Vec::new();
            table.schema().encode_key(&row, &mut key).ok().map(|()| key)
        };
        let (key, promise_key) = (key(place)?, key(-place)?);
        Some(Self { name: table.name().to_owned(), definition, table: table.clone(), key, promise_key })
    }

    /// The row that holds the counter.
    pub(crate) fn counter(&self) -> RowCounter<'_> {
        let SequenceDef { start, increment, min, max, .. } = self.definition;
        RowCounter {
            table: &self.table,
            key: &self.key,
            promise_key: &self.promise_key,
            first: start.cast_unsigned(),
            last: if increment > 0 { max } else { min },
        }
    }
}

/// The row's key, which decides its placement: sequences are spread over the nodes by their names.
fn place_of(name: &str) -> i64 {
    1 + name.bytes().map(i64::from).sum::<i64>()
}

impl SequenceDef {
    /// From the options of CREATE SEQUENCE or of an identity column.
    pub(crate) fn new(data_type: ColumnType, options: &[SequenceOptions]) -> Result<Self, SqlError> {
        let (low, high) = match data_type {
            ColumnType::SmallInt => (i64::from(i16::MIN), i64::from(i16::MAX)),
            ColumnType::Int => (i64::from(i32::MIN), i64::from(i32::MAX)),
            ColumnType::BigInt => (i64::MIN, i64::MAX),
            _ => return Err(wrong("sequence type must be smallint, integer, or bigint")),
        };
        let (mut increment, mut min, mut max, mut start, mut cache, mut cycle) = (1, None, None, None, None, false);
        for option in options {
            match option {
                SequenceOptions::IncrementBy(value, _) => increment = integer(value)?,
                SequenceOptions::MinValue(value) => min = value.as_ref().map(integer).transpose()?,
                SequenceOptions::MaxValue(value) => max = value.as_ref().map(integer).transpose()?,
                SequenceOptions::StartWith(value, _) => start = Some(integer(value)?),
                SequenceOptions::Cache(value) => cache = Some(integer(value)?),
                // The parser's flag means NO CYCLE.
                SequenceOptions::Cycle(no) => cycle = !no,
            }
        }
        if increment == 0 {
            return Err(wrong("INCREMENT must not be zero"));
        }
        let rises = increment > 0;
        let min = min.unwrap_or(if rises { 1 } else { low });
        let max = max.unwrap_or(if rises { high } else { -1 });
        if min < low || max > high || min > max {
            return Err(wrong(format!("MINVALUE ({min}) must be at most MAXVALUE ({max}), both within the type")));
        }
        if i128::from(max) - i128::from(min) > i128::from(u64::MAX) - OUTSIDE_MIN {
            return Err(SqlError::unsupported("a sequence over the whole bigint range")
                .with_hint("Specify MINVALUE or MAXVALUE."));
        }
        let start = start.unwrap_or(if rises { min } else { max });
        if !(min..=max).contains(&start) {
            return Err(wrong(format!("START value ({start}) must be between MINVALUE ({min}) and MAXVALUE ({max})")));
        }
        let cache = match cache {
            None => CACHE,
            Some(cache) => u32::try_from(cache)
                .ok()
                .filter(|cache| *cache > 0)
                .ok_or_else(|| wrong(format!("CACHE ({cache}) must be between 1 and {}", u32::MAX)))?,
        };
        // With steps this large, a block would span too much.
        let cache = if u128::from(increment.unsigned_abs()) * u128::from(cache) > SPAN_MAX { 1 } else { cache };
        Ok(Self { data_type, increment, min, max, start, cache, cycle, owner: None })
    }

    /// The table that stores the sequence.
    pub(crate) fn table(&self, name: &str) -> Result<TableDef, SqlError> {
        let column = |name: &str| Column { name: name.to_owned(), data_type: ColumnType::BigInt, nullable: false };
        let columns = std::iter::once("row").chain(RowCounter::COLUMNS).map(column).collect();
        let schema = Schema::new(columns, vec![0]).map_err(|e| error::from_row(&e))?;
        let table = TableDef::new(name, schema);
        Ok(TableDef { placement: Placement::ByInteger, hash: false, attributes: self.encode(), ..table })
    }

    fn encode(&self) -> Vec<u8> {
        let data_type = match self.data_type {
            ColumnType::SmallInt => 2,
            ColumnType::Int => 4,
            _ => 8,
        };
        let flags = (u8::from(self.cycle) * CYCLE) | (u8::from(self.owner.is_some()) * OWNED);
        let mut out = vec![MAGIC, VERSION, data_type, flags];
        for number in [self.increment, self.min, self.max, self.start] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.cache.to_le_bytes());
        if let Some(owner) = &self.owner {
            put_text(&owner.table, &mut out);
            put_text(&owner.column, &mut out);
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [MAGIC, VERSION, data_type, flags] = *take(&mut rest, 4)? else { return None };
        let data_type = match data_type {
            2 => ColumnType::SmallInt,
            4 => ColumnType::Int,
            8 => ColumnType::BigInt,
            _ => return None,
        };
        let mut number = || take(&mut rest, 8)?.try_into().ok().map(i64::from_le_bytes);
        let (increment, min, max, start) = (number()?, number()?, number()?, number()?);
        let cache = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
        let owner = if flags & OWNED == 0 {
            None
        } else {
            Some(Owner { table: take_text(&mut rest)?, column: take_text(&mut rest)? })
        };
        Some(Self { data_type, increment, min, max, start, cache, cycle: flags & CYCLE != 0, owner })
    }
}

fn integer(expression: &Expr) -> Result<i64, SqlError> {
    expression.to_string().replace(' ', "").parse().map_err(|_| wrong(format!("{expression} is not a valid bigint")))
}

fn wrong(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let plain = SequenceDef::new(ColumnType::BigInt, &[]).unwrap();
        assert_eq!((plain.min, plain.max, plain.start, plain.increment), (1, i64::MAX, 1, 1));
        let owner = Some(Owner { table: "t".to_owned(), column: "ид".to_owned() });
        let other = SequenceDef { increment: -3, cycle: true, data_type: ColumnType::SmallInt, owner, ..plain.clone() };
        for definition in [plain, other] {
            let bytes = definition.encode();
            assert_eq!(SequenceDef::decode(&bytes), Some(definition));
            for cut in 0..bytes.len() {
                assert_eq!(SequenceDef::decode(&bytes[..cut]), None);
            }
        }
        assert_eq!(SequenceDef::decode(&crate::engine::catalog::Attributes::default().encode()), None);
    }
}
