//! The nine tables (clause 1.3), and typed access to their columns.
//!
//! Where the specification asks for *at least* a number of digits, some numbers here have more: at tens of thousands of payments
//! a second a year-to-date sum of 12 digits overflows within minutes, and counters of 4 digits within hours. `history` has no key
//! in the specification; here it gets a number, unique within its warehouse.

use super::super::{Spread, TableSpec};
use farhold_store::row::{ColumnType, Field, Layout, NullableField, RowError, Schema, VarField};

const ID: ColumnType = ColumnType::Int;
const SMALL: ColumnType = ColumnType::SmallInt;
const BIG: ColumnType = ColumnType::BigInt;
const TIME: ColumnType = ColumnType::Timestamp;
const MONEY: ColumnType = decimal(18, 2);
const RATE: ColumnType = decimal(4, 4);
const STREET: ColumnType = ColumnType::Varchar(20);
const STATE: ColumnType = ColumnType::Char(2);
const ZIP: ColumnType = ColumnType::Char(9);
const DIST_INFO: ColumnType = ColumnType::Char(24);

const fn decimal(precision: u8, scale: u8) -> ColumnType {
    ColumnType::Decimal { precision, scale }
}

const fn varchar(n: u32) -> ColumnType {
    ColumnType::Varchar(n)
}

/// Slot of the index `customer_by_name` in `customer`.
pub const CUSTOMER_BY_NAME: u16 = 0;
/// Slot of the index `orders_by_customer` in `orders`.
pub const ORDERS_BY_CUSTOMER: u16 = 0;

/// `warehouse`
pub const WAREHOUSE: TableSpec = TableSpec {
    name: "warehouse",
    spread: Spread::ByWarehouse,
    hash: true,
    columns: &[
        ("w_id", ID, false),
        ("w_name", varchar(10), false),
        ("w_street_1", STREET, false),
        ("w_street_2", STREET, false),
        ("w_city", STREET, false),
        ("w_state", STATE, false),
        ("w_zip", ZIP, false),
        ("w_tax", RATE, false),
        ("w_ytd", MONEY, false),
    ],
    key: &["w_id"],
    indexes: &[],
};

/// `district`
pub const DISTRICT: TableSpec = TableSpec {
    name: "district",
    spread: Spread::ByWarehouse,
    hash: true,
    columns: &[
        ("d_id", SMALL, false),
        ("d_w_id", ID, false),
        ("d_name", varchar(10), false),
        ("d_street_1", STREET, false),
        ("d_street_2", STREET, false),
        ("d_city", STREET, false),
        ("d_state", STATE, false),
        ("d_zip", ZIP, false),
        ("d_tax", RATE, false),
        ("d_ytd", MONEY, false),
        ("d_next_o_id", ID, false),
    ],
    key: &["d_w_id", "d_id"],
    indexes: &[],
};

/// `customer`
pub const CUSTOMER: TableSpec = TableSpec {
    name: "customer",
    spread: Spread::ByWarehouse,
    hash: true,
    columns: &[
        ("c_id", ID, false),
        ("c_d_id", SMALL, false),
        ("c_w_id", ID, false),
        ("c_first", varchar(16), false),
        ("c_middle", ColumnType::Char(2), false),
        ("c_last", varchar(16), false),
        ("c_street_1", STREET, false),
        ("c_street_2", STREET, false),
        ("c_city", STREET, false),
        ("c_state", STATE, false),
        ("c_zip", ZIP, false),
        ("c_phone", ColumnType::Char(16), false),
        ("c_since", TIME, false),
        ("c_credit", ColumnType::Char(2), false),
        ("c_credit_lim", MONEY, false),
        ("c_discount", RATE, false),
        ("c_balance", MONEY, false),
        ("c_ytd_payment", MONEY, false),
        ("c_payment_cnt", ID, false),
        ("c_delivery_cnt", ID, false),
        ("c_data", varchar(500), false),
    ],
    key: &["c_w_id", "c_d_id", "c_id"],
    indexes: &[("customer_by_name", &["c_w_id", "c_d_id", "c_last", "c_first", "c_id"])],
};

/// `history`
pub const HISTORY: TableSpec = TableSpec {
    name: "history",
    spread: Spread::ByWarehouse,
    hash: false,
    columns: &[
        ("h_id", BIG, false),
        ("h_c_id", ID, false),
        ("h_c_d_id", SMALL, false),
        ("h_c_w_id", ID, false),
        ("h_d_id", SMALL, false),
        ("h_w_id", ID, false),
        ("h_date", TIME, false),
        ("h_amount", decimal(6, 2), false),
        ("h_data", varchar(24), false),
    ],
    key: &["h_w_id", "h_id"],
    indexes: &[],
};

/// `new_order`
pub const NEW_ORDER: TableSpec = TableSpec {
    name: "new_order",
    spread: Spread::ByWarehouse,
    hash: false,
    columns: &[("no_o_id", ID, false), ("no_d_id", SMALL, false), ("no_w_id", ID, false)],
    key: &["no_w_id", "no_d_id", "no_o_id"],
    indexes: &[],
};

/// `orders`
pub const ORDERS: TableSpec = TableSpec {
    name: "orders",
    spread: Spread::ByWarehouse,
    hash: false,
    columns: &[
        ("o_id", ID, false),
        ("o_d_id", SMALL, false),
        ("o_w_id", ID, false),
        ("o_c_id", ID, false),
        ("o_entry_d", TIME, false),
        ("o_carrier_id", SMALL, true),
        ("o_ol_cnt", SMALL, false),
        ("o_all_local", SMALL, false),
    ],
    key: &["o_w_id", "o_d_id", "o_id"],
    indexes: &[("orders_by_customer", &["o_w_id", "o_d_id", "o_c_id", "o_id"])],
};

/// `order_line`
pub const ORDER_LINE: TableSpec = TableSpec {
    name: "order_line",
    spread: Spread::ByWarehouse,
    hash: false,
    columns: &[
        ("ol_o_id", ID, false),
        ("ol_d_id", SMALL, false),
        ("ol_w_id", ID, false),
        ("ol_number", SMALL, false),
        ("ol_i_id", ID, false),
        ("ol_supply_w_id", ID, false),
        ("ol_delivery_d", TIME, true),
        ("ol_quantity", SMALL, false),
        ("ol_amount", decimal(6, 2), false),
        ("ol_dist_info", DIST_INFO, false),
    ],
    key: &["ol_w_id", "ol_d_id", "ol_o_id", "ol_number"],
    indexes: &[],
};

/// `item`
pub const ITEM: TableSpec = TableSpec {
    name: "item",
    spread: Spread::Replicated,
    hash: true,
    columns: &[
        ("i_id", ID, false),
        ("i_im_id", ID, false),
        ("i_name", varchar(24), false),
        ("i_price", decimal(5, 2), false),
        ("i_data", varchar(50), false),
    ],
    key: &["i_id"],
    indexes: &[],
};

/// `stock`
pub const STOCK: TableSpec = TableSpec {
    name: "stock",
    spread: Spread::ByWarehouse,
    hash: true,
    columns: &[
        ("s_i_id", ID, false),
        ("s_w_id", ID, false),
        ("s_quantity", SMALL, false),
        ("s_dist_01", DIST_INFO, false),
        ("s_dist_02", DIST_INFO, false),
        ("s_dist_03", DIST_INFO, false),
        ("s_dist_04", DIST_INFO, false),
        ("s_dist_05", DIST_INFO, false),
        ("s_dist_06", DIST_INFO, false),
        ("s_dist_07", DIST_INFO, false),
        ("s_dist_08", DIST_INFO, false),
        ("s_dist_09", DIST_INFO, false),
        ("s_dist_10", DIST_INFO, false),
        ("s_ytd", ID, false),
        ("s_order_cnt", ID, false),
        ("s_remote_cnt", ID, false),
        ("s_data", varchar(50), false),
    ],
    key: &["s_w_id", "s_i_id"],
    indexes: &[],
};

/// All nine tables.
pub const TABLES: [TableSpec; 9] = [WAREHOUSE, DISTRICT, CUSTOMER, HISTORY, NEW_ORDER, ORDERS, ORDER_LINE, ITEM, STOCK];

/// The DDL text of all nine tables.
#[must_use]
pub fn ddl() -> String {
    TABLES.iter().map(|table| table.ddl() + "\n").collect()
}

/// A struct of accessors, each of which knows its column's offset.
macro_rules! columns {
    ($(#[$doc:meta] $table:ident { $($column:ident: $accessor:ident -> $kind:ty = $name:literal,)* })*) => {$(
        #[$doc]
        #[derive(Debug, Clone, Copy)]
        pub struct $table {
            $(#[doc = concat!("`", $name, "`")] pub $column: $kind,)*
        }
        impl $table {
            /// Finds the columns in the table's layout.
            ///
            /// # Errors
            /// The table is another one than this module describes.
            pub fn of(layout: &Layout) -> Result<Self, RowError> {
                Ok(Self { $($column: layout.$accessor($name)?,)* })
            }
        }
    )*};
}

columns! {
    /// Value columns of `warehouse`.
    WarehouseColumns {
        tax: i32 -> Field<i32> = "w_tax",
        ytd: i64 -> Field<i64> = "w_ytd",
        name: bytes -> VarField = "w_name",
        street_1: bytes -> VarField = "w_street_1",
        street_2: bytes -> VarField = "w_street_2",
        city: bytes -> VarField = "w_city",
        state: bytes -> VarField = "w_state",
        zip: bytes -> VarField = "w_zip",
    }
    /// Value columns of `district`.
    DistrictColumns {
        tax: i32 -> Field<i32> = "d_tax",
        ytd: i64 -> Field<i64> = "d_ytd",
        next_o_id: i32 -> Field<i32> = "d_next_o_id",
        name: bytes -> VarField = "d_name",
        street_1: bytes -> VarField = "d_street_1",
        street_2: bytes -> VarField = "d_street_2",
        city: bytes -> VarField = "d_city",
        state: bytes -> VarField = "d_state",
        zip: bytes -> VarField = "d_zip",
    }
    /// Value columns of `customer`.
    CustomerColumns {
        since: i64 -> Field<i64> = "c_since",
        credit_lim: i64 -> Field<i64> = "c_credit_lim",
        discount: i32 -> Field<i32> = "c_discount",
        balance: i64 -> Field<i64> = "c_balance",
        ytd_payment: i64 -> Field<i64> = "c_ytd_payment",
        payment_cnt: i32 -> Field<i32> = "c_payment_cnt",
        delivery_cnt: i32 -> Field<i32> = "c_delivery_cnt",
        first: bytes -> VarField = "c_first",
        middle: bytes -> VarField = "c_middle",
        last: bytes -> VarField = "c_last",
        street_1: bytes -> VarField = "c_street_1",
        street_2: bytes -> VarField = "c_street_2",
        city: bytes -> VarField = "c_city",
        state: bytes -> VarField = "c_state",
        zip: bytes -> VarField = "c_zip",
        phone: bytes -> VarField = "c_phone",
        credit: bytes -> VarField = "c_credit",
        data: bytes -> VarField = "c_data",
    }
    /// Value columns of `history`.
    HistoryColumns {
        c_id: i32 -> Field<i32> = "h_c_id",
        c_d_id: i16 -> Field<i16> = "h_c_d_id",
        c_w_id: i32 -> Field<i32> = "h_c_w_id",
        d_id: i16 -> Field<i16> = "h_d_id",
        date: i64 -> Field<i64> = "h_date",
        amount: i32 -> Field<i32> = "h_amount",
        data: bytes -> VarField = "h_data",
    }
    /// Value columns of `orders`.
    OrderColumns {
        c_id: i32 -> Field<i32> = "o_c_id",
        entry_d: i64 -> Field<i64> = "o_entry_d",
        carrier_id: nullable_field -> NullableField<i16> = "o_carrier_id",
        ol_cnt: i16 -> Field<i16> = "o_ol_cnt",
        all_local: i16 -> Field<i16> = "o_all_local",
    }
    /// Value columns of `order_line`.
    OrderLineColumns {
        i_id: i32 -> Field<i32> = "ol_i_id",
        supply_w_id: i32 -> Field<i32> = "ol_supply_w_id",
        delivery_d: nullable_field -> NullableField<i64> = "ol_delivery_d",
        quantity: i16 -> Field<i16> = "ol_quantity",
        amount: i32 -> Field<i32> = "ol_amount",
        dist_info: bytes -> VarField = "ol_dist_info",
    }
    /// Value columns of `item`.
    ItemColumns {
        im_id: i32 -> Field<i32> = "i_im_id",
        price: i32 -> Field<i32> = "i_price",
        name: bytes -> VarField = "i_name",
        data: bytes -> VarField = "i_data",
    }
}

/// Value columns of `stock`.
#[derive(Debug, Clone, Copy)]
pub struct StockColumns {
    /// `s_quantity`
    pub quantity: Field<i16>,
    /// `s_ytd`
    pub ytd: Field<i32>,
    /// `s_order_cnt`
    pub order_cnt: Field<i32>,
    /// `s_remote_cnt`
    pub remote_cnt: Field<i32>,
    /// `s_dist_01` to `s_dist_10`
    pub dist: [VarField; 10],
    /// `s_data`
    pub data: VarField,
}

impl StockColumns {
    /// Finds the columns in the table's layout.
    ///
    /// # Errors
    /// The table is another one than this module describes.
    pub fn of(layout: &Layout) -> Result<Self, RowError> {
        let mut dist = [layout.bytes("s_dist_01")?; 10];
        for (d, field) in dist.iter_mut().enumerate() {
            *field = layout.bytes(&format!("s_dist_{:02}", d + 1))?;
        }
        Ok(Self {
            quantity: layout.i16("s_quantity")?,
            ytd: layout.i32("s_ytd")?,
            order_cnt: layout.i32("s_order_cnt")?,
            remote_cnt: layout.i32("s_remote_cnt")?,
            dist,
            data: layout.bytes("s_data")?,
        })
    }
}

/// The columns of all tables.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// `warehouse`
    pub warehouse: WarehouseColumns,
    /// `district`
    pub district: DistrictColumns,
    /// `customer`
    pub customer: CustomerColumns,
    /// `history`
    pub history: HistoryColumns,
    /// `orders`
    pub orders: OrderColumns,
    /// `order_line`
    pub order_line: OrderLineColumns,
    /// `item`
    pub item: ItemColumns,
    /// `stock`
    pub stock: StockColumns,
}

impl Columns {
    /// Finds all columns. `schema` gives the schema of the table described by a spec.
    ///
    /// # Errors
    /// A table is another one than this module describes.
    pub fn find(schema: impl Fn(&TableSpec) -> Schema) -> Result<Self, RowError> {
        Ok(Self {
            warehouse: WarehouseColumns::of(schema(&WAREHOUSE).layout())?,
            district: DistrictColumns::of(schema(&DISTRICT).layout())?,
            customer: CustomerColumns::of(schema(&CUSTOMER).layout())?,
            history: HistoryColumns::of(schema(&HISTORY).layout())?,
            orders: OrderColumns::of(schema(&ORDERS).layout())?,
            order_line: OrderLineColumns::of(schema(&ORDER_LINE).layout())?,
            item: ItemColumns::of(schema(&ITEM).layout())?,
            stock: StockColumns::of(schema(&STOCK).layout())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_store::row::KeyShape;

    #[test]
    fn every_column_is_found_and_every_key_is_fixed() {
        Columns::find(TableSpec::schema).unwrap();
        let key_bytes = TABLES.map(|table| match table.schema().key_shape() {
            KeyShape::Fixed(bytes) => bytes,
            KeyShape::Variable { .. } => panic!("{} has variable keys", table.name),
        });
        assert_eq!(key_bytes, [4, 6, 10, 12, 10, 10, 12, 4, 8]);
    }

    /// `sql/tpcc.sql` is this module's DDL, for users of psql. Set `FARHOLD_UPDATE=1` to write it anew.
    #[test]
    fn the_sql_file_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/tpcc.sql");
        if std::env::var_os("FARHOLD_UPDATE").is_some() {
            std::fs::write(path, ddl()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), ddl());
    }
}
