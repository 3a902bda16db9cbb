//! CH-benCHmark: 22 analytical queries over TPC-C's tables while its transactions change them, and the three additional tables of
//! the queries: `region`, `nation`, `supplier`.
//!
//! A customer's nation is the one whose key is the ASCII code of the first character of the state; a stock row's supplier
//! is number `s_w_id * s_i_id` modulo 10,000. The query texts run unchanged on Farhold and DuckDB; their order is total,
//! and where one differs from its original, its first lines say so.

mod load;

pub use load::{ChRows, ChTable, create, load, rows};

use super::{Spread, TableSpec};
use farhold_store::row::ColumnType;

/// Suppliers.
pub const SUPPLIERS: i32 = 10_000;

/// The queries: number `n` is at `n - 1`.
pub const QUERIES: [&str; 22] = [
    include_str!("../../../sql/ch/q01.sql"),
    include_str!("../../../sql/ch/q02.sql"),
    include_str!("../../../sql/ch/q03.sql"),
    include_str!("../../../sql/ch/q04.sql"),
    include_str!("../../../sql/ch/q05.sql"),
    include_str!("../../../sql/ch/q06.sql"),
    include_str!("../../../sql/ch/q07.sql"),
    include_str!("../../../sql/ch/q08.sql"),
    include_str!("../../../sql/ch/q09.sql"),
    include_str!("../../../sql/ch/q10.sql"),
    include_str!("../../../sql/ch/q11.sql"),
    include_str!("../../../sql/ch/q12.sql"),
    include_str!("../../../sql/ch/q13.sql"),
    include_str!("../../../sql/ch/q14.sql"),
    include_str!("../../../sql/ch/q15.sql"),
    include_str!("../../../sql/ch/q16.sql"),
    include_str!("../../../sql/ch/q17.sql"),
    include_str!("../../../sql/ch/q18.sql"),
    include_str!("../../../sql/ch/q19.sql"),
    include_str!("../../../sql/ch/q20.sql"),
    include_str!("../../../sql/ch/q21.sql"),
    include_str!("../../../sql/ch/q22.sql"),
];

/// `region`
pub const REGION: TableSpec = TableSpec {
    name: "region",
    spread: Spread::Replicated,
    hash: true,
    columns: &[
        ("r_regionkey", ColumnType::Int, false),
        ("r_name", ColumnType::Char(55), false),
        ("r_comment", ColumnType::Char(152), false),
    ],
    key: &["r_regionkey"],
    indexes: &[],
};

/// `nation`
pub const NATION: TableSpec = TableSpec {
    name: "nation",
    spread: Spread::Replicated,
    hash: true,
    columns: &[
        ("n_nationkey", ColumnType::Int, false),
        ("n_name", ColumnType::Char(25), false),
        ("n_regionkey", ColumnType::Int, false),
        ("n_comment", ColumnType::Char(152), false),
    ],
    key: &["n_nationkey"],
    indexes: &[],
};

/// `supplier`
pub const SUPPLIER: TableSpec = TableSpec {
    name: "supplier",
    spread: Spread::Replicated,
    hash: true,
    columns: &[
        ("su_suppkey", ColumnType::Int, false),
        ("su_name", ColumnType::Char(25), false),
        ("su_address", ColumnType::Varchar(40), false),
        ("su_nationkey", ColumnType::Int, false),
        ("su_phone", ColumnType::Char(15), false),
        ("su_acctbal", ColumnType::Decimal { precision: 12, scale: 2 }, false),
        ("su_comment", ColumnType::Char(101), false),
    ],
    key: &["su_suppkey"],
    indexes: &[],
};

/// The three tables that TPC-C does not have.
pub const TABLES: [TableSpec; 3] = [REGION, NATION, SUPPLIER];

/// The DDL text of the three tables.
#[must_use]
pub fn ddl() -> String {
    TABLES.iter().map(|table| table.ddl() + "\n").collect()
}

/// Regions, by key.
const REGIONS: [&str; 5] = ["Africa", "America", "Asia", "Europe", "Middle East"];

/// Nations and their regions. The key of the n-th is the n-th character of [`crate::random::ALPHANUMERIC`].
const NATIONS: [(&str, i32); 62] = [
    ("Algeria", 0),
    ("Argentina", 1),
    ("Brazil", 1),
    ("Canada", 1),
    ("Egypt", 4),
    ("Ethiopia", 0),
    ("France", 3),
    ("Germany", 3),
    ("India", 2),
    ("Indonesia", 2),
    ("Iran", 4),
    ("Iraq", 4),
    ("Japan", 2),
    ("Jordan", 4),
    ("Kenya", 0),
    ("Morocco", 0),
    ("Mozambique", 0),
    ("Peru", 1),
    ("China", 2),
    ("Romania", 3),
    ("Saudi Arabia", 4),
    ("Vietnam", 2),
    ("Russia", 3),
    ("United Kingdom", 3),
    ("United States", 1),
    ("Pakistan", 2),
    ("Bangladesh", 2),
    ("Mexico", 1),
    ("Philippines", 2),
    ("Thailand", 2),
    ("Italy", 3),
    ("South Africa", 0),
    ("South Korea", 2),
    ("Colombia", 1),
    ("Spain", 3),
    ("Ukraine", 3),
    ("Poland", 3),
    ("Sudan", 0),
    ("Uzbekistan", 2),
    ("Malaysia", 2),
    ("Venezuela", 1),
    ("Nepal", 2),
    ("Afghanistan", 2),
    ("Ghana", 0),
    ("Yemen", 4),
    ("Cambodia", 2),
    ("Syria", 4),
    ("Madagascar", 0),
    ("Cameroon", 0),
    ("Chile", 1),
    ("Netherlands", 3),
    ("Ecuador", 1),
    ("Guatemala", 1),
    ("Greece", 3),
    ("Portugal", 3),
    ("Czechia", 3),
    ("Sweden", 3),
    ("Hungary", 3),
    ("Israel", 4),
    ("Oman", 4),
    ("Uganda", 0),
    ("Cuba", 1),
];
