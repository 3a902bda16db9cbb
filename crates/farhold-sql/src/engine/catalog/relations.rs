//! The tables as `pg_catalog` shows them.

use super::{Catalog, TableInfo};
use farhold_txn::{KeptColumns, NoColumns};

use crate::pg_catalog::{Attribute, CheckOf, IndexKind, IndexOf, Relation, Relations, Segments, quoted};

impl Relations for Catalog {
    fn relations(&self) -> Vec<Relation> {
        let mut relations: Vec<Relation> = self.tables().iter().map(|table| relation(table)).collect();
        relations.sort_by_key(|relation| relation.number);
        relations
    }

    fn segments(&self, number: u32) -> Segments {
        let tables = self.tables();
        let Some(table) = tables.iter().find(|table| table.table.id().0 == number) else { return Segments::default() };
        let (size, reason) = self.node.columns_of(&table.table);
        let name = |position: &u16| table.columns().get(usize::from(*position)).map(|column| as_option(&column.name));
        let option = match table.table.kept_columns() {
            KeptColumns::Auto => "auto".to_owned(),
            KeptColumns::All => "all".to_owned(),
            KeptColumns::None => "none".to_owned(),
            KeptColumns::These(columns) => columns.iter().filter_map(name).collect::<Vec<_>>().join(", "),
        };
        let state = match reason {
            None => "kept".to_owned(),
            Some(NoColumns::NotKept) if option == "auto" => "none: the table is small".to_owned(),
            Some(NoColumns::NotKept) => "none".to_owned(),
            Some(NoColumns::Building) => "building".to_owned(),
            Some(reason) => format!("none: {reason}"),
        };
        Segments {
            option,
            state,
            table_rows: table.table.row_count(),
            table_bytes: table.table.row_bytes(),
            rows: size.segment_rows,
            count: size.segments,
            delta_rows: size.delta_rows,
            bytes: size.bytes(),
        }
    }
}

/// The name of a column in the option `columns`.
fn as_option(name: &str) -> String {
    if ["auto", "all", "none"].contains(&name) { format!("\"{name}\"") } else { quoted(name) }
}

fn relation(table: &TableInfo) -> Relation {
    let columns = table.visible_columns().iter().zip(&table.defaults);
    let columns = columns.map(|(column, default)| Attribute {
        name: column.name.clone(),
        data_type: column.data_type,
        nullable: column.nullable,
        default: default.as_ref().map(|(text, _)| text.clone()),
    });
    let mut indexes = Vec::new();
    if !table.hidden_row_number {
        let columns = table.schema().key().to_vec();
        indexes.push(IndexOf { name: table.primary_key_name.clone(), columns, kind: IndexKind::PrimaryKey });
    }
    for index in table.indexes.iter().filter(|index| index.ready) {
        // The hidden row number at the end of a key is not shown.
        let columns = index.columns.iter().copied().filter(|&column| column < table.visible).collect();
        // ALTER TABLE … ADD PRIMARY KEY makes such an index on a table whose rows have hidden numbers.
        let added_key = table.hidden_row_number && index.unique && index.name == table.primary_key_name;
        let kind = match index.unique {
            true if added_key => IndexKind::PrimaryKey,
            true => IndexKind::Unique,
            false => IndexKind::Plain,
        };
        indexes.push(IndexOf { name: index.name.clone(), columns, kind });
    }
    let checks = table.checks.iter().map(|check| CheckOf {
        name: check.name.clone(),
        condition: check.text.clone(),
        columns: check.columns.clone(),
        validated: check.validated,
    });
    Relation {
        number: table.table.id().0,
        name: table.name.clone(),
        rows: -1,
        columns: columns.collect(),
        indexes,
        checks: checks.collect(),
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}
