//! CREATE and DROP of tables and indexes.
//!
//! Definitions are not part of transactions: they take effect on every node at once. In a transaction block a warning
//! says so.

mod checks;
mod conditions;
mod define;
mod drops;
mod indexes;
mod sequences;
mod tables;

use crate::{SqlError, SqlState};

pub(crate) use checks::Checking;
pub(crate) use drops::drop;
pub(crate) use indexes::create_index;
pub(crate) use sequences::{create_sequence, restart_sequence};
pub(crate) use tables::{alter_table, create_table};

/// The result of a definition: the tag's verb, and a notice if it did nothing.
pub(crate) struct Done {
    pub(crate) verb: &'static str,
    pub(crate) notices: Vec<SqlError>,
}

impl Done {
    fn plain(verb: &'static str) -> Self {
        Self { verb, notices: Vec::new() }
    }

    fn skipped(verb: &'static str, state: SqlState, message: String) -> Self {
        Self { verb, notices: vec![SqlError::new(state, message)] }
    }
}
