//! Typed rows: structs in place of encoded keys and values.
//!
//! [`row!`](crate::row) declares a struct whose fields are a table's columns, and [`Rows`] is a table of such structs. A typed
//! operation encodes or decodes a whole row. [`Txn`]'s own operations on bytes are there for programs that read or change single
//! columns in place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use farhold_store::row::{Column, ColumnType, Datum, RowError, Schema};
use farhold_txn::{Node, RowHandle, ScanSpec, Table, TableDef, Txn, TxnError, Worker};

/// A Rust type that can be the type of a column.
pub trait Field: Sized {
    /// The type of a column that is created for it.
    const TYPE: ColumnType;
    /// Whether the column may be NULL.
    const NULLABLE: bool = false;

    /// Whether a column of this type can hold such values.
    #[must_use]
    fn is_held_by(data_type: ColumnType) -> bool {
        data_type == Self::TYPE
    }

    /// The value as a datum.
    fn to_datum(&self) -> Datum;

    /// The value of a datum; `None` if the datum has another type.
    fn from_datum(datum: Datum) -> Option<Self>;
}

macro_rules! fields {
    ($($rust:ty => $kind:ident),* $(,)?) => {$(
        impl Field for $rust {
            const TYPE: ColumnType = ColumnType::$kind;

            fn to_datum(&self) -> Datum {
                Datum::$kind(self.clone())
            }

            fn from_datum(datum: Datum) -> Option<Self> {
                if let Datum::$kind(value) = datum { Some(value) } else { None }
            }
        }
    )*};
}

fields! { bool => Boolean, i16 => SmallInt, i32 => Int, i64 => BigInt, f32 => Real, f64 => Double, Vec<u8> => Bytea }

impl Field for String {
    const TYPE: ColumnType = ColumnType::Text;

    fn is_held_by(data_type: ColumnType) -> bool {
        matches!(data_type, ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Char(_))
    }

    fn to_datum(&self) -> Datum {
        Datum::Text(self.clone())
    }

    fn from_datum(datum: Datum) -> Option<Self> {
        if let Datum::Text(text) = datum { Some(text) } else { None }
    }
}

impl<T: Field> Field for Option<T> {
    const TYPE: ColumnType = T::TYPE;
    const NULLABLE: bool = true;

    fn is_held_by(data_type: ColumnType) -> bool {
        T::is_held_by(data_type)
    }

    fn to_datum(&self) -> Datum {
        self.as_ref().map_or(Datum::Null, T::to_datum)
    }

    fn from_datum(datum: Datum) -> Option<Self> {
        if datum.is_null() { Some(None) } else { T::from_datum(datum).map(Some) }
    }
}

/// A `DATE`, in days since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(pub i32);

impl Field for Date {
    const TYPE: ColumnType = ColumnType::Date;

    fn to_datum(&self) -> Datum {
        Datum::Date(self.0)
    }

    fn from_datum(datum: Datum) -> Option<Self> {
        if let Datum::Date(days) = datum { Some(Self(days)) } else { None }
    }
}

/// A `TIMESTAMP` without time zone, in microseconds since 1970-01-01 00:00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Field for Timestamp {
    const TYPE: ColumnType = ColumnType::Timestamp;

    fn to_datum(&self) -> Datum {
        Datum::Timestamp(self.0)
    }

    fn from_datum(datum: Datum) -> Option<Self> {
        if let Datum::Timestamp(microseconds) = datum { Some(Self(microseconds)) } else { None }
    }
}

/// A `TIMESTAMP WITH TIME ZONE`, in microseconds since 1970-01-01 00:00 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamptz(pub i64);

impl Field for Timestamptz {
    const TYPE: ColumnType = ColumnType::Timestamptz;

    fn to_datum(&self) -> Datum {
        Datum::Timestamptz(self.0)
    }

    fn from_datum(datum: Datum) -> Option<Self> {
        if let Datum::Timestamptz(microseconds) = datum { Some(Self(microseconds)) } else { None }
    }
}

/// A `DECIMAL(PRECISION, SCALE)`: this number of its last digits. `Decimal::<12, 2>(1999)` is 19.99.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal<const PRECISION: u8, const SCALE: u8>(pub i128);

impl<const PRECISION: u8, const SCALE: u8> Field for Decimal<PRECISION, SCALE> {
    const TYPE: ColumnType = ColumnType::Decimal { precision: PRECISION, scale: SCALE };

    fn to_datum(&self) -> Datum {
        Datum::Decimal { unscaled: self.0, scale: SCALE }
    }

    fn from_datum(datum: Datum) -> Option<Self> {
        match datum {
            Datum::Decimal { unscaled, scale } if scale == SCALE => Some(Self(unscaled)),
            _ => None,
        }
    }
}

/// A primary key: one field, or a tuple of at most six.
pub trait Key {
    /// Its parts as datums, in key order.
    fn to_datums(&self) -> Vec<Datum>;
}

impl<T: Field> Key for T {
    fn to_datums(&self) -> Vec<Datum> {
        vec![self.to_datum()]
    }
}

macro_rules! keys {
    ($($($part:ident $at:tt)*;)*) => {$(
        impl<$($part: Field),*> Key for ($($part,)*) {
            fn to_datums(&self) -> Vec<Datum> {
                vec![$(self.$at.to_datum()),*]
            }
        }
    )*};
}

keys! {
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
}

/// A struct that is a row of a table. [`row!`](crate::row) implements it.
pub trait Row: Sized {
    /// The primary key.
    type Key: Key;
    /// The number of columns, from the first one on, that form the primary key.
    const KEY_COLUMNS: usize;

    /// The columns that a table is created with.
    fn columns() -> Vec<Column>;

    /// Whether a column of this type holds the field at this position.
    fn is_held_by(position: usize, data_type: ColumnType) -> bool;

    /// The row as datums, one per column.
    fn to_datums(&self) -> Vec<Datum>;

    /// The row of these datums; `None` if they have other types.
    fn from_datums(datums: Vec<Datum>) -> Option<Self>;

    /// A table of such rows: placed by a hash of the key, with a hash index. A table with another placement or with secondary
    /// indexes is a changed copy of it.
    ///
    /// # Errors
    /// [`TxnError::Row`] if no table can have these columns.
    fn table(name: &str) -> Result<TableDef, TxnError> {
        let schema = Schema::new(Self::columns(), (0..Self::KEY_COLUMNS).collect())?;
        Ok(TableDef::new(name, schema))
    }
}

/// Declares a struct and implements [`Row`](crate::Row) for it. The columns of the primary key come first, in `key`. Each field
/// implements [`Field`](crate::Field); an `Option` is a column that may be NULL.
///
/// ```
/// farhold::row! {
///     /// An order of a customer.
///     pub struct Order {
///         key { customer: i32, number: i64 }
///         /// Empty until it is sent.
///         carrier: Option<String>,
///         total: farhold::Decimal<12, 2>,
///     }
/// }
/// let order = Order { customer: 7, number: 1, carrier: None, total: farhold::Decimal(1999) };
/// assert_eq!(order.clone(), order);
/// ```
#[macro_export]
macro_rules! row {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            key { $($(#[$key_meta:meta])* $key:ident: $key_type:ty),+ $(,)? }
            $($(#[$column_meta:meta])* $column:ident: $column_type:ty),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[$key_meta])* pub $key: $key_type,)+
            $($(#[$column_meta])* pub $column: $column_type,)*
        }

        impl $crate::Row for $name {
            type Key = ($($key_type),+);
            const KEY_COLUMNS: usize = [$(stringify!($key)),+].len();

            fn columns() -> Vec<$crate::Column> {
                let column = |name: &str, data_type, nullable| $crate::Column { name: name.into(), data_type, nullable };
                vec![
                    $(column(
                        stringify!($key),
                        <$key_type as $crate::Field>::TYPE,
                        <$key_type as $crate::Field>::NULLABLE,
                    ),)+
                    $(column(
                        stringify!($column),
                        <$column_type as $crate::Field>::TYPE,
                        <$column_type as $crate::Field>::NULLABLE,
                    ),)*
                ]
            }

            fn is_held_by(position: usize, data_type: $crate::ColumnType) -> bool {
                let fields: &[fn($crate::ColumnType) -> bool] = &[
                    $(<$key_type as $crate::Field>::is_held_by,)+
                    $(<$column_type as $crate::Field>::is_held_by,)*
                ];
                fields.get(position).is_some_and(|field| field(data_type))
            }

            fn to_datums(&self) -> Vec<$crate::Datum> {
                vec![
                    $($crate::Field::to_datum(&self.$key),)+
                    $($crate::Field::to_datum(&self.$column),)*
                ]
            }

            fn from_datums(datums: Vec<$crate::Datum>) -> Option<Self> {
                let mut datums = datums.into_iter();
                Some(Self {
                    $($key: $crate::Field::from_datum(datums.next()?)?,)+
                    $($column: $crate::Field::from_datum(datums.next()?)?,)*
                })
            }
        }
    };
}

/// A table whose rows are structs. Cheap to clone.
pub struct Rows<R> {
    table: Table,
    row: PhantomData<fn() -> R>,
}

impl<R> Clone for Rows<R> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), row: PhantomData }
    }
}

impl<R> fmt::Debug for Rows<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rows").field(&self.table.name()).finish()
    }
}

impl<R: Row> Rows<R> {
    /// Creates the table on all nodes.
    ///
    /// # Errors
    /// [`TxnError::AlreadyExists`], and those of [`Worker::create_table`].
    pub async fn create(worker: &Worker, name: &str) -> Result<Self, TxnError> {
        Self::of(worker.create_table(R::table(name)?).await?)
    }

    /// The table of this name.
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; [`TxnError::Row`] if its columns are not the fields of `R`.
    pub fn open(node: &Node, name: &str) -> Result<Self, TxnError> {
        let table = node.table(name);
        Self::of(table.ok_or_else(|| TxnError::NotFound { what: format!("table \"{name}\"").into() })?)
    }

    /// A table that is open, with rows of this type.
    ///
    /// # Errors
    /// [`TxnError::Row`] if its columns are not the fields of `R`: in the same order, with the same names, types and NOT NULL, the
    /// primary key first.
    pub fn of(table: Table) -> Result<Self, TxnError> {
        let schema = table.schema();
        let (fields, columns) = (R::columns(), schema.columns());
        let differs = |reason: String| {
            let reason = format!("table \"{}\" has other columns than its struct: {reason}", table.name());
            TxnError::Row(RowError::InvalidSchema { reason })
        };
        if fields.len() != columns.len() {
            return Err(differs(format!("{} columns, {} fields", columns.len(), fields.len())));
        }
        for (position, (field, column)) in fields.iter().zip(columns).enumerate() {
            let shown =
                |it: &Column| format!("{} {}{}", it.name, it.data_type, if it.nullable { "" } else { " NOT NULL" });
            let is_same = field.name == column.name && R::is_held_by(position, column.data_type);
            if !is_same || field.nullable != column.nullable {
                return Err(differs(format!("column {}, field {}", shown(column), shown(field))));
            }
        }
        if !schema.key().iter().copied().eq(0..R::KEY_COLUMNS) {
            return Err(differs("another primary key".to_owned()));
        }
        Ok(Self { table, row: PhantomData })
    }

    /// The table, for operations on encoded rows.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Inserts a row.
    ///
    /// # Errors
    /// Those of [`Txn::insert`], such as [`TxnError::DuplicateKey`]; [`TxnError::Row`] if a value does not fit its column.
    pub async fn insert(&self, txn: &mut Txn, row: &R) -> Result<(), TxnError> {
        let (key, value) = self.encode(row)?;
        txn.insert(&self.table, &key, &value).await.map(drop)
    }

    /// The row with this key.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub async fn get(&self, txn: &mut Txn, key: impl Into<R::Key>) -> Result<Option<R>, TxnError> {
        let found = self.find(txn, &key.into()).await?;
        found.map(|found| self.decode(txn, found)).transpose()
    }

    /// Replaces the content of the row with the same key.
    ///
    /// # Errors
    /// [`TxnError::NotFound`] if there is none, and those of [`Txn::get`] and [`Txn::update`].
    pub async fn update(&self, txn: &mut Txn, row: &R) -> Result<(), TxnError> {
        let (key, value) = self.encode(row)?;
        let found = txn.get(&self.table, &key).await?;
        let missing =
            || TxnError::NotFound { what: format!("a row of \"{}\" with this key", self.table.name()).into() };
        txn.update(found.ok_or_else(missing)?, &value)
    }

    /// Inserts a row, or replaces the content of the row with the same key.
    ///
    /// # Errors
    /// Those of [`Self::insert`] and [`Self::update`].
    pub async fn put(&self, txn: &mut Txn, row: &R) -> Result<(), TxnError> {
        let (key, value) = self.encode(row)?;
        match txn.get(&self.table, &key).await? {
            Some(found) => txn.update(found, &value),
            None => txn.insert(&self.table, &key, &value).await.map(drop),
        }
    }

    /// Deletes the row with this key. False: there is none.
    ///
    /// # Errors
    /// Those of [`Txn::get`] and [`Txn::delete`].
    pub async fn delete(&self, txn: &mut Txn, key: impl Into<R::Key>) -> Result<bool, TxnError> {
        match self.find(txn, &key.into()).await? {
            Some(found) => txn.delete(found).map(|()| true),
            None => Ok(false),
        }
    }

    /// The rows with keys in a range, by key; `..` for all rows.
    ///
    /// # Errors
    /// Those of [`Txn::scan`]; [`RowError::NoSuchKey`] if no row can have a bound's key, such as a text that is too long for its column.
    pub async fn range(&self, txn: &mut Txn, keys: impl RangeBounds<R::Key>) -> Result<Vec<R>, TxnError> {
        let encoded = |key: &R::Key| {
            let key = key.to_datums();
            self.encode_key(&key)?.ok_or_else(|| TxnError::from(RowError::NoSuchKey { key: format!("{key:?}") }))
        };
        let encode = |bound: Bound<&R::Key>| {
            Ok::<_, TxnError>(match bound {
                Bound::Included(key) => Bound::Included(encoded(key)?),
                Bound::Excluded(key) => Bound::Excluded(encoded(key)?),
                Bound::Unbounded => Bound::Unbounded,
            })
        };
        let (lo, hi) = (encode(keys.start_bound())?, encode(keys.end_bound())?);
        let spec =
            ScanSpec { lo: lo.as_ref().map(Vec::as_slice), hi: hi.as_ref().map(Vec::as_slice), ..ScanSpec::all() };
        let found = txn.scan(&self.table, spec).await?;
        found.into_iter().map(|found| self.decode(txn, found)).collect()
    }

    /// The row with exactly this key. A key that no row can have is not converted to one that a row can have.
    async fn find(&self, txn: &mut Txn, key: &R::Key) -> Result<Option<RowHandle>, TxnError> {
        match self.encode_key(&key.to_datums())? {
            Some(key) => txn.get(&self.table, &key).await,
            None => Ok(None),
        }
    }

    /// `None`: no row can have this key.
    fn encode_key(&self, key: &[Datum]) -> Result<Option<Vec<u8>>, TxnError> {
        let schema = self.table.schema();
        let mut columns = schema.key().iter().map(|&column| &schema.columns()[column]);
        if !key.iter().all(|part| columns.next().is_some_and(|column| part.is_held_by(column))) {
            return Ok(None);
        }
        let mut encoded = Vec::new();
        match schema.encode_key_parts(key, &mut encoded) {
            Ok(()) => Ok(Some(encoded)),
            Err(RowError::RowTooLarge { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn encode(&self, row: &R) -> Result<(Vec<u8>, Vec<u8>), TxnError> {
        let (datums, schema) = (row.to_datums(), self.table.schema());
        let (mut key, mut value) = (Vec::new(), Vec::new());
        schema.encode_key(&datums, &mut key)?;
        schema.encode_value(&datums, &mut value)?;
        Ok((key, value))
    }

    fn decode(&self, txn: &Txn, found: RowHandle) -> Result<R, TxnError> {
        let mut datums = Vec::new();
        self.table.schema().decode_row(txn.key(found), txn.value(found), &mut datums)?;
        R::from_datums(datums).ok_or(TxnError::Corrupt { what: "a row has other types than its table" })
    }
}
