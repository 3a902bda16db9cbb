//! The definition of a table, and its form in the system table.
//!
//! ```text
//! 'T' │ version u8 │ placement u8 │ flags u8 (1: hash, 2, 4, 8: columns) │ slots u16 │ { recorded u8 }* │ attributes u32, bytes │ name u8, bytes
//!     │ { columns u16, { column u16 }* } if flag 8 │ schema and indexes (`farhold_store::row::encode_definition`)
//! ```
//! One slot for each index the table ever had, in order, so that an index keeps its number while others go.

use crate::base::error::TxnError;
use farhold_store::row::{ColumnType, RowError, Schema, SecondaryIndex, decode_definition, encode_definition};

/// Which node a row lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On every node: read near, written everywhere.
    Replicated,
    /// By the first key column, an integer: its value minus one, modulo the number of nodes. So warehouse 1 is on node 0.
    ByInteger,
    /// By a hash of the whole primary key.
    ByHash,
}

/// Which columns of a table are kept as columns too, for scans, where a node [can](crate::NoColumns).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptColumns {
    /// None.
    #[default]
    None,
    /// All of them on a node that has [`AUTO_ROWS`](Self::AUTO_ROWS) rows of the table or more; otherwise none.
    Auto,
    /// All.
    All,
    /// Those at these positions, in order and each once.
    These(Vec<u16>),
}

impl KeptColumns {
    /// With so many rows on a node, a table is kept as columns there if it is [`Auto`](Self::Auto): a full segment. The rows of smaller
    /// tables are read in a few milliseconds.
    pub const AUTO_ROWS: u64 = 65_536;
}

/// What a table is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDef {
    /// Its name, unique in the database. Compared byte by byte.
    pub name: String,
    /// Its columns and primary key.
    pub schema: Schema,
    /// Where its rows live.
    pub placement: Placement,
    /// Whether it has a hash index for point reads beside the ordered one. Far point reads need it to be one-sided.
    pub hash: bool,
    /// Which of its columns are kept as columns too, for scans.
    pub columns: KeptColumns,
    /// Its secondary indexes. Each node indexes its own rows, so a unique index requires that all rows with the same
    /// index key are on one node: the table is replicated, or the cluster has one node, or the index begins with the
    /// integer that places the row. [`create_table`](crate::Worker::create_table) refuses others.
    pub indexes: Vec<SecondaryIndex>,
    /// For the layer above: kept with the definition and given back, never read here.
    pub attributes: Vec<u8>,
}

/// The recorded state of an index of a table, which all nodes can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// It is being created. No transaction reads it, and its coordinator may have died.
    Begun = 0,
    /// All nodes have it complete.
    Live = 1,
    /// It has been dropped, for good.
    Dropped = 2,
}

const MAGIC: u8 = b'T';
const VERSION: u8 = 1;
const HASH: u8 = 1;
const COLUMNS_ALL: u8 = 2;
const COLUMNS_AUTO: u8 = 4;
const COLUMNS_THESE: u8 = 8;

impl TableDef {
    /// A table with hash index, placed by hash, without secondary indexes.
    #[must_use]
    pub fn new(name: impl Into<String>, schema: Schema) -> Self {
        let placement = Placement::ByHash;
        Self {
            name: name.into(),
            schema,
            placement,
            hash: true,
            columns: KeptColumns::None,
            indexes: Vec::new(),
            attributes: Vec::new(),
        }
    }

    /// Checks what the types do not say.
    ///
    /// # Errors
    /// [`TxnError::Row`] with the reason.
    pub(crate) fn check(&self, nodes: u8) -> Result<(), TxnError> {
        let invalid = |reason: String| Err(TxnError::Row(RowError::InvalidSchema { reason }));
        if self.name.is_empty() || self.name.len() > Schema::NAME_BYTES_MAX {
            return invalid(format!("a table's name has 1 to {} bytes", Schema::NAME_BYTES_MAX));
        }
        let first = self.schema.columns()[self.schema.key()[0]].data_type;
        let integer = matches!(first, ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt);
        if self.placement == Placement::ByInteger && !integer {
            return invalid(format!("rows are placed by the first key column, which is {first} and no integer"));
        }
        self.check_columns()?;
        for (i, index) in self.indexes.iter().enumerate() {
            if self.indexes[..i].iter().any(|other| other.name == index.name) {
                return invalid(format!("two indexes are called \"{}\"", index.name));
            }
            self.check_index(index, nodes)?;
        }
        Ok(())
    }

    /// Are there such columns to keep?
    ///
    /// # Errors
    /// [`TxnError::Row`] with the reason.
    pub(crate) fn check_columns(&self) -> Result<(), TxnError> {
        let KeptColumns::These(columns) = &self.columns else { return Ok(()) };
        let is_known = columns.last().is_none_or(|last| usize::from(*last) < self.schema.columns().len());
        if columns.is_empty() || !is_known || !columns.is_sorted_by(|one, next| one < next) {
            let reason = format!(
                "the columns that are kept as columns, at {columns:?}, are not columns of the table in their order"
            );
            return Err(TxnError::Row(RowError::InvalidSchema { reason }));
        }
        Ok(())
    }

    /// Can this index be kept?
    ///
    /// # Errors
    /// [`TxnError::Row`] with the reason.
    pub(crate) fn check_index(&self, index: &SecondaryIndex, nodes: u8) -> Result<(), TxnError> {
        farhold_store::row::SecondaryKeys::new(&self.schema, index)?;
        let together = nodes == 1
            || self.placement == Placement::Replicated
            || (self.placement == Placement::ByInteger && index.columns.contains(&self.schema.key()[0]));
        if index.unique && !together {
            let reason = format!(
                "unique index \"{}\" does not contain the column that places the rows, so no node could tell that a key is unique",
                index.name
            );
            return Err(TxnError::Row(RowError::InvalidSchema { reason }));
        }
        Ok(())
    }

    /// The definition as bytes; `recorded` has the recorded state of each index.
    ///
    /// # Errors
    /// [`TxnError::Row`] if an index does not fit the schema.
    pub(crate) fn encode(&self, recorded: &[Recorded]) -> Result<Vec<u8>, TxnError> {
        debug_assert_eq!(recorded.len(), self.indexes.len());
        let placement = match self.placement {
            Placement::Replicated => 0,
            Placement::ByInteger => 1,
            Placement::ByHash => 2,
        };
        let columns = match self.columns {
            KeptColumns::None => 0,
            KeptColumns::Auto => COLUMNS_AUTO,
            KeptColumns::All => COLUMNS_ALL,
            KeptColumns::These(_) => COLUMNS_THESE,
        };
        let flags = if self.hash { HASH } else { 0 } | columns;
        let mut out = vec![MAGIC, VERSION, placement, flags];
        out.extend(u16::try_from(recorded.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(recorded.iter().map(|recorded| *recorded as u8));
        out.extend(u32::try_from(self.attributes.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(&self.attributes);
        out.push(u8::try_from(self.name.len()).unwrap_or(u8::MAX));
        out.extend(self.name.as_bytes());
        if let KeptColumns::These(columns) = &self.columns {
            out.extend(u16::try_from(columns.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend(columns.iter().flat_map(|column| column.to_le_bytes()));
        }
        encode_definition(&self.schema, &self.indexes, &mut out)?;
        Ok(out)
    }

    /// Back from [`Self::encode`].
    ///
    /// # Errors
    /// [`TxnError::Corrupt`] or [`TxnError::Row`] for bytes that are no definition.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Vec<Recorded>), TxnError> {
        const CORRUPT: TxnError = TxnError::Corrupt { what: "not a table's definition" };
        fn take<'b>(rest: &mut &'b [u8], len: usize) -> Result<&'b [u8], TxnError> {
            let (head, tail) = rest.split_at_checked(len).ok_or(CORRUPT)?;
            *rest = tail;
            Ok(head)
        }
        let mut rest = bytes;
        let [MAGIC, VERSION, placement, flags, low, high] = *take(&mut rest, 6)? else { return Err(CORRUPT) };
        let placement = match placement {
            0 => Placement::Replicated,
            1 => Placement::ByInteger,
            2 => Placement::ByHash,
            _ => return Err(CORRUPT),
        };
        let slots = usize::from(u16::from_le_bytes([low, high]));
        let recorded = take(&mut rest, slots)?.iter().map(|byte| match byte {
            0 => Ok(Recorded::Begun),
            1 => Ok(Recorded::Live),
            2 => Ok(Recorded::Dropped),
            _ => Err(CORRUPT),
        });
        let recorded: Vec<Recorded> = recorded.collect::<Result<_, _>>()?;
        let attributes = u32::from_le_bytes(take(&mut rest, 4)?.try_into().map_err(|_| CORRUPT)?);
        let attributes = take(&mut rest, attributes as usize)?.to_vec();
        let name = usize::from(take(&mut rest, 1)?[0]);
        let name = String::from_utf8(take(&mut rest, name)?.to_vec()).map_err(|_| CORRUPT)?;
        let columns = match flags & (COLUMNS_ALL | COLUMNS_AUTO | COLUMNS_THESE) {
            0 => KeptColumns::None,
            COLUMNS_AUTO => KeptColumns::Auto,
            COLUMNS_ALL => KeptColumns::All,
            COLUMNS_THESE => {
                let [low, high] = *take(&mut rest, 2)? else { return Err(CORRUPT) };
                let positions = take(&mut rest, 2 * usize::from(u16::from_le_bytes([low, high])))?;
                KeptColumns::These(positions.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect())
            }
            _ => return Err(CORRUPT),
        };
        let (schema, indexes, rest) = decode_definition(rest)?;
        if !rest.is_empty() || recorded.len() != indexes.len() {
            return Err(CORRUPT);
        }
        let hash = flags & HASH != 0;
        let definition = Self { name, schema, placement, hash, columns, indexes, attributes };
        definition.check_columns()?;
        Ok((definition, recorded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_store::row::Column;

    fn definition() -> TableDef {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Varchar(20)).nullable()];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let index = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: false };
        TableDef { indexes: vec![index], attributes: vec![7, 8, 9], ..TableDef::new("people", schema) }
    }

    #[test]
    fn a_definition_comes_back_and_no_other_bytes_are_one() {
        let mut definition = definition();
        for columns in [KeptColumns::None, KeptColumns::Auto, KeptColumns::All, KeptColumns::These(vec![0, 1])] {
            definition.columns = columns;
            for recorded in [Recorded::Begun, Recorded::Live, Recorded::Dropped] {
                let bytes = definition.encode(&[recorded]).expect("bytes");
                assert_eq!(TableDef::decode(&bytes), Ok((definition.clone(), vec![recorded])));
            }
        }
        let bytes = definition.encode(&[Recorded::Live]).expect("bytes");
        for len in 0..bytes.len() {
            TableDef::decode(&bytes[..len]).expect_err("cut off");
        }
        for at in 0..bytes.len() {
            for flip in 1..=255 {
                let mut other = bytes.clone();
                other[at] ^= flip;
                let _ = TableDef::decode(&other);
            }
        }
    }

    #[test]
    fn columns_that_are_kept_are_the_tables_in_their_order() {
        let mut definition = definition();
        for columns in [vec![], vec![2], vec![1, 0], vec![0, 0]] {
            definition.columns = KeptColumns::These(columns);
            definition.check(1).expect_err("no such columns");
            let bytes = definition.encode(&[Recorded::Live]).expect("bytes");
            TableDef::decode(&bytes).expect_err("no such columns");
        }
    }

    #[test]
    fn a_unique_index_must_see_all_rows_of_its_keys() {
        let mut definition = definition();
        definition.indexes[0].unique = true;
        definition.check(1).expect("one node sees everything");
        definition.check(3).expect_err("each node sees a third");
        definition.placement = Placement::Replicated;
        definition.check(3).expect("each node sees everything");
        definition.placement = Placement::ByInteger;
        definition.indexes[0].columns = vec![1, 0];
        definition.check(3).expect("rows of one key are on one node");
    }
}
