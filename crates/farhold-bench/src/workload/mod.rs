//! The workloads, and what they share: the description of a table.

pub mod ch;
pub mod kv;
pub mod smallbank;
pub mod tpcc;
pub mod tpch;

use farhold_store::row::{Column, ColumnType, Schema, SecondaryIndex};

/// Where a table's rows live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// On every node.
    Replicated,
    /// By the warehouse number, the first column of the key.
    ByWarehouse,
}

/// A column: name, type, whether it may be NULL.
pub type ColumnSpec = (&'static str, ColumnType, bool);

/// An index: name and columns. All are unique: their columns end with what identifies the row.
pub type IndexSpec = (&'static str, &'static [&'static str]);

/// A table, as plain data: the source of its schema and of its DDL text.
#[derive(Debug, Clone, Copy)]
pub struct TableSpec {
    /// Its name.
    pub name: &'static str,
    /// Where its rows live.
    pub spread: Spread,
    /// It has a hash index beside the ordered one: for tables that are read by their whole key.
    pub hash: bool,
    /// Its columns.
    pub columns: &'static [ColumnSpec],
    /// Its primary key.
    pub key: &'static [&'static str],
    /// Its secondary indexes.
    pub indexes: &'static [IndexSpec],
}

impl TableSpec {
    /// The schema.
    ///
    /// # Panics
    /// When the description makes no sense, which the tests rule out.
    #[must_use]
    pub fn schema(&self) -> Schema {
        let column = |c: &ColumnSpec| Column { name: c.0.to_owned(), data_type: c.1, nullable: c.2 };
        let columns = self.columns.iter().map(column).collect();
        Schema::new(columns, self.positions(self.key)).expect("a workload's tables are well formed")
    }

    /// The secondary indexes, in the order of their slots.
    #[must_use]
    pub fn secondary_indexes(&self) -> Vec<SecondaryIndex> {
        let index = |i: &IndexSpec| SecondaryIndex { name: i.0.to_owned(), columns: self.positions(i.1), unique: true };
        self.indexes.iter().map(index).collect()
    }

    /// The DDL text: one `CREATE TABLE`, ended by a semicolon.
    #[must_use]
    pub fn ddl(&self) -> String {
        let mut parts = Vec::new();
        for (name, data_type, nullable) in self.columns {
            let not_null = if *nullable { "" } else { " NOT NULL" };
            parts.push(format!("    {name} {}{not_null}", sql_type(*data_type)));
        }
        parts.push(format!("    PRIMARY KEY ({})", self.key.join(", ")));
        for (name, columns) in self.indexes {
            parts.push(format!("    CONSTRAINT {name} UNIQUE ({})", columns.join(", ")));
        }
        let placement = match self.spread {
            Spread::Replicated => "replicated",
            Spread::ByWarehouse => "by_integer",
        };
        let (name, parts, hash) = (self.name, parts.join(",\n"), self.hash);
        format!("CREATE TABLE {name} (\n{parts}\n) WITH (placement = '{placement}', hash = {hash});\n")
    }

    fn positions(&self, names: &[&str]) -> Vec<usize> {
        let position = |name: &&str| self.columns.iter().position(|c| c.0 == *name).expect("a column of the table");
        names.iter().map(position).collect()
    }
}

fn sql_type(data_type: ColumnType) -> String {
    match data_type {
        ColumnType::Char(n) => format!("CHAR({n})"),
        ColumnType::Varchar(n) => format!("VARCHAR({n})"),
        ColumnType::Decimal { precision, scale } => format!("DECIMAL({precision}, {scale})"),
        ColumnType::Timestamp => "TIMESTAMP".to_owned(),
        other => other.to_string().to_uppercase(),
    }
}
