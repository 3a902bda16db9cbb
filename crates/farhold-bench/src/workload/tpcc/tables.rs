//! The nine tables of an open database: handles for the transactions, and their creation.

use super::population::TableKind;
use super::schema::{Columns, TABLES};
use crate::workload::{Spread, TableSpec};
use farhold_txn::{KeptColumns, Node, Placement, Table, TableDef, TxnError, Worker};

/// The tables and where their columns are.
#[derive(Clone)]
pub struct Tables {
    tables: Vec<Table>,
    /// Typed access to the columns.
    pub columns: Columns,
}

impl Tables {
    /// The tables as they are in the database, whether this module or the DDL text created them.
    ///
    /// # Errors
    /// [`TxnError::NotFound`], or [`TxnError::Row`] when one has other columns.
    pub fn open(node: &Node) -> Result<Self, TxnError> {
        let find = |spec: &TableSpec| {
            node.table(spec.name).ok_or_else(|| TxnError::NotFound { what: format!("table {}", spec.name).into() })
        };
        let tables = TABLES.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let position = |spec: &TableSpec| TABLES.iter().position(|t| t.name == spec.name).unwrap_or(0);
        let columns = Columns::find(|spec| tables[position(spec)].schema().clone())?;
        Ok(Self { tables, columns })
    }

    /// Creates the tables on all nodes.
    ///
    /// # Errors
    /// As [`Worker::create_table`].
    pub async fn create(worker: &Worker) -> Result<(), TxnError> {
        for spec in &TABLES {
            worker.create_table(spec.definition()).await?;
        }
        Ok(())
    }

    /// One table.
    #[inline]
    #[must_use]
    pub fn get(&self, kind: TableKind) -> &Table {
        &self.tables[kind as usize]
    }
}

impl TableSpec {
    /// What [`Worker::create_table`] takes.
    #[must_use]
    pub fn definition(&self) -> TableDef {
        TableDef {
            name: self.name.to_owned(),
            schema: self.schema(),
            placement: match self.spread {
                Spread::Replicated => Placement::Replicated,
                Spread::ByWarehouse => Placement::ByInteger,
            },
            hash: self.hash,
            columns: KeptColumns::None,
            indexes: self.secondary_indexes(),
            attributes: Vec::new(),
        }
    }
}
