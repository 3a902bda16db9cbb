//! A table's columns and primary key.

use super::key::{KeyField, KeyScalar, decode_column, put_fitted, split_column};
use super::layout::Layout;
use super::{ColumnType, Datum, RowError};

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name, unique in the table.
    pub name: String,
    /// Its type.
    pub data_type: ColumnType,
    /// It may hold NULL. Primary-key columns never do.
    pub nullable: bool,
}

impl Column {
    /// A NOT NULL column.
    #[must_use]
    pub fn new(name: impl Into<String>, data_type: ColumnType) -> Self {
        Self { name: name.into(), data_type, nullable: false }
    }

    /// The same column, with NULL allowed.
    #[must_use]
    pub fn nullable(self) -> Self {
        Self { nullable: true, ..self }
    }
}

/// How long a table's primary keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyShape {
    /// Every key has this many bytes.
    Fixed(usize),
    /// Keys vary; the columns before the first variable one take this many bytes.
    Variable {
        /// Bytes at fixed offsets at the start of every key.
        fixed_prefix: usize,
    },
}

/// A table's columns, its primary key, and the layout that follows from them. Immutable: it is made once and checked then.
#[derive(Debug, Clone)]
pub struct Schema {
    columns: Vec<Column>,
    key: Vec<usize>,
    key_shape: KeyShape,
    /// One a key column: its offset in the key, while all columns before it are fixed.
    key_offsets: Vec<Option<u32>>,
    layout: Layout,
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.columns == other.columns && self.key == other.key
    }
}
impl Eq for Schema {}

impl Schema {
    /// The most columns of a table, as in PostgreSQL.
    pub const COLUMNS_MAX: usize = 1600;
    /// The most columns of a key, as in PostgreSQL.
    pub const KEY_COLUMNS_MAX: usize = 32;
    /// The longest column or index name in bytes.
    pub const NAME_BYTES_MAX: usize = 255;
    /// The longest key or value in bytes; a whole row must also fit an object.
    pub const PART_BYTES_MAX: usize = u16::MAX as usize;

    /// A schema of `columns`, whose primary key is the columns at the positions `key`, in that order. Key columns become
    /// NOT NULL.
    ///
    /// # Errors
    /// [`RowError::InvalidSchema`] with the reason.
    pub fn new(mut columns: Vec<Column>, key: Vec<usize>) -> Result<Self, RowError> {
        check_columns(&columns)?;
        if key.is_empty() {
            return Err(invalid("a table needs a primary key"));
        }
        check_column_list(&key, columns.len(), "primary key")?;
        for &k in &key {
            columns[k].nullable = false;
        }
        let mut key_offsets = Vec::with_capacity(key.len());
        let mut offset = Some(0);
        let mut fixed_prefix = 0;
        for &k in &key {
            key_offsets.push(offset.map(|o: usize| u32::try_from(o).unwrap_or(u32::MAX)));
            offset = offset.zip(columns[k].data_type.key_bytes()).map(|(o, len)| o + len);
            fixed_prefix = offset.unwrap_or(fixed_prefix);
        }
        let key_shape = offset.map_or(KeyShape::Variable { fixed_prefix }, KeyShape::Fixed);
        let layout = Layout::new(&columns, &key, &key_offsets);
        if layout.fixed_bytes() > Self::PART_BYTES_MAX {
            return Err(invalid("the fixed columns alone are longer than a row may be"));
        }
        Ok(Self { columns, key, key_shape, key_offsets, layout })
    }

    /// All columns.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The positions of the primary-key columns, in key order.
    #[must_use]
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// The position of the column called `name`.
    ///
    /// # Errors
    /// [`RowError::NoSuchColumn`].
    pub fn column_index(&self, name: &str) -> Result<usize, RowError> {
        let no_such = || RowError::NoSuchColumn { column: name.to_owned() };
        self.columns.iter().position(|c| c.name == name).ok_or_else(no_such)
    }

    /// How long the primary keys are.
    #[must_use]
    pub const fn key_shape(&self) -> KeyShape {
        self.key_shape
    }

    /// Where each column lives.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The reader of a fixed-width key column at a fixed offset: `i32` for `INT` and `DATE`, `i64` for `BIGINT`,
    /// timestamps and decimals up to 18 digits, and so on.
    ///
    /// # Errors
    /// [`RowError::NoSuchColumn`], or [`RowError::WrongAccessor`] for another type or a column behind a variable one.
    pub fn key_field<T: KeyScalar + super::FixedScalar>(&self, name: &str) -> Result<KeyField<T>, RowError> {
        let column = self.column_index(name)?;
        let part = self.key.iter().position(|k| *k == column);
        let offset = part.and_then(|p| self.key_offsets[p]);
        match offset {
            Some(offset) if T::reads(self.columns[column].data_type.key_physical()) => Ok(KeyField::new(offset)),
            _ => Err(RowError::WrongAccessor { column: name.to_owned(), accessor: T::NAME }),
        }
    }

    /// Encodes the primary key of `row` (all columns of the table) into `out`, which is cleared first.
    ///
    /// # Errors
    /// The row does not fit the table.
    pub fn encode_key(&self, row: &[Datum], out: &mut Vec<u8>) -> Result<(), RowError> {
        self.check_count(row)?;
        out.clear();
        for &k in &self.key {
            put_fitted(&row[k].fit(&self.columns[k])?, &self.columns[k], false, out);
        }
        check_part(out)
    }

    /// Encodes the first `parts.len()` columns of a primary key (all of them for a whole key, fewer for a prefix) into
    /// `out`, which is cleared first.
    ///
    /// # Errors
    /// Too many parts, or one that does not fit its column.
    pub fn encode_key_parts(&self, parts: &[Datum], out: &mut Vec<u8>) -> Result<(), RowError> {
        if parts.len() > self.key.len() {
            return Err(RowError::ColumnCount { expected: self.key.len(), found: parts.len() });
        }
        out.clear();
        for (part, &k) in parts.iter().zip(&self.key) {
            put_fitted(&part.fit(&self.columns[k])?, &self.columns[k], false, out);
        }
        check_part(out)
    }

    /// The datums of a primary key, in key order.
    ///
    /// # Errors
    /// [`RowError::Corrupt`].
    pub fn decode_key(&self, key: &[u8]) -> Result<Vec<Datum>, RowError> {
        let mut rest = key;
        let mut datums = Vec::with_capacity(self.key.len());
        for &k in &self.key {
            let data_type = self.columns[k].data_type;
            let (column, tail) = split_column(rest, data_type, false)?;
            datums.push(decode_column(column, data_type, false)?);
            rest = tail;
        }
        if rest.is_empty() { Ok(datums) } else { Err(RowError::Corrupt { what: "bytes behind the end of a key" }) }
    }

    /// Decodes a whole row into `row`, which is cleared first: one datum a column.
    ///
    /// # Errors
    /// [`RowError::Corrupt`].
    pub fn decode_row(&self, key: &[u8], value: &[u8], row: &mut Vec<Datum>) -> Result<(), RowError> {
        row.clear();
        row.resize(self.columns.len(), Datum::Null);
        for (datum, &k) in self.decode_key(key)?.into_iter().zip(&self.key) {
            row[k] = datum;
        }
        self.decode_value_columns(value, row)
    }

    pub(super) fn check_count(&self, row: &[Datum]) -> Result<(), RowError> {
        if row.len() == self.columns.len() {
            Ok(())
        } else {
            Err(RowError::ColumnCount { expected: self.columns.len(), found: row.len() })
        }
    }
}

pub(super) fn invalid(reason: impl Into<String>) -> RowError {
    RowError::InvalidSchema { reason: reason.into() }
}

/// A key or value is not longer than a row's part may be.
pub(super) fn check_part(bytes: &[u8]) -> Result<(), RowError> {
    if bytes.len() <= Schema::PART_BYTES_MAX {
        Ok(())
    } else {
        Err(RowError::RowTooLarge { bytes: bytes.len(), limit: Schema::PART_BYTES_MAX })
    }
}

fn check_columns(columns: &[Column]) -> Result<(), RowError> {
    if columns.len() > Schema::COLUMNS_MAX {
        return Err(invalid(format!("{} columns, the limit is {}", columns.len(), Schema::COLUMNS_MAX)));
    }
    let mut names = std::collections::HashSet::with_capacity(columns.len());
    for column in columns {
        check_name(&column.name)?;
        if !names.insert(column.name.as_str()) {
            return Err(invalid(format!("column \"{}\" specified more than once", column.name)));
        }
        match column.data_type {
            ColumnType::Decimal { precision, scale }
                if precision == 0 || precision > ColumnType::PRECISION_MAX || scale > precision =>
            {
                let limits = "the precision is between 1 and 38 and the scale at most the precision";
                return Err(invalid(format!("column \"{}\": numeric({precision},{scale}), but {limits}", column.name)));
            }
            ColumnType::Char(n) | ColumnType::Varchar(n) if n == 0 || n > ColumnType::CHARACTERS_MAX => {
                let limit = ColumnType::CHARACTERS_MAX;
                return Err(invalid(format!("column \"{}\": length {n} is not between 1 and {limit}", column.name)));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn check_name(name: &str) -> Result<(), RowError> {
    if name.is_empty() || name.len() > Schema::NAME_BYTES_MAX {
        return Err(invalid(format!("name of {} bytes, the limit is {}", name.len(), Schema::NAME_BYTES_MAX)));
    }
    Ok(())
}

/// `list` names 1 to 32 distinct columns.
pub(super) fn check_column_list(list: &[usize], columns: usize, of: &str) -> Result<(), RowError> {
    if list.is_empty() || list.len() > Schema::KEY_COLUMNS_MAX {
        return Err(invalid(format!("{of} of {} columns, the limit is {}", list.len(), Schema::KEY_COLUMNS_MAX)));
    }
    for (i, column) in list.iter().enumerate() {
        if *column >= columns {
            return Err(invalid(format!("{of} names column {column} of {columns}")));
        }
        if list[..i].contains(column) {
            return Err(invalid(format!("{of} names a column twice")));
        }
    }
    Ok(())
}
