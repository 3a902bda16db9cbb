//! Runs the `.slt` files: SQL statements with their expected results.

use std::path::Path;
use std::sync::Arc;

use farhold_sql::{ColumnType, SqlError};
use farhold_txn::{CopyConfig, KeptColumns, Node};
use sqllogictest::{DBOutput, DefaultColumnType, Runner};

use crate::harness::{Client, Db, wait_for_columns};

/// A connection of the test runner.
struct Connection(Client, Arc<Node>);

/// Displayed as text, so that the runner's patterns can match the state and the message.
#[derive(Debug)]
struct Failed(SqlError);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for Failed {}

impl sqllogictest::DB for Connection {
    type Error = Failed;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failed> {
        let answer = self.0.run(sql).map_err(Failed)?;
        if answer.columns.is_empty() {
            // What a statement has written is in column segments before the next one.
            wait_for_columns(&self.1);
            let count = answer.tag.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            return Ok(DBOutput::StatementComplete(count));
        }
        let types = answer
            .columns
            .iter()
            .map(|(_, t)| match t {
                ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt => DefaultColumnType::Integer,
                ColumnType::Real | ColumnType::Double | ColumnType::Decimal { .. } => DefaultColumnType::FloatingPoint,
                _ => DefaultColumnType::Text,
            })
            .collect();
        let rows = answer
            .rows
            .iter()
            .map(|row| {
                row.iter()
                    .map(|value| match value.as_deref() {
                        None => "NULL".to_owned(),
                        Some("") => "(empty)".to_owned(),
                        Some(text) => text.to_owned(),
                    })
                    .collect()
            })
            .collect();
        Ok(DBOutput::Rows { types, rows })
    }

    fn engine_name(&self) -> &'static str {
        "farhold"
    }

    fn error_sql_state(error: &Failed) -> Option<String> {
        Some(error.0.state.code().to_owned())
    }
}

/// Runs one file. `FARHOLD_SLT_UPDATE=1` replaces its expected results instead.
fn suite(name: &str, db: &Db) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt").join(format!("{name}.slt"));
    let mut runner = Runner::new(|| {
        let client = db.client();
        let connection = Connection(client, Arc::clone(&db.node));
        async move { Ok(connection) }
    });
    if std::env::var_os("FARHOLD_SLT_UPDATE").is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime
            .block_on(runner.update_test_file(
                &path,
                " ",
                sqllogictest::default_validator,
                sqllogictest::default_normalizer,
                sqllogictest::default_column_validator,
            ))
            .expect("the suite can be updated");
        return;
    }
    if let Err(error) = runner.run_file(&path) {
        panic!("{}", error.display(false));
    }
}

/// A database whose tables are kept as columns: with a journal, or without if `FARHOLD_SLT_IN_MEMORY=1`.
fn kept_as_columns() -> Db {
    // Segments are short, and made at once.
    let config = CopyConfig { segment_rows: 16, changes_min: 1, changed_part: usize::MAX };
    if std::env::var_os("FARHOLD_SLT_IN_MEMORY").is_some() {
        Db::with_columns_in_memory(config, KeptColumns::All)
    } else {
        Db::with_columns(config)
    }
}

/// Suites whose queries scan no table outside of transaction blocks.
const WITHOUT_SCANS: [&str; 1] = ["settings"];

macro_rules! suites {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            suite(stringify!($name), &Db::new());
        }
    )*

    /// The same where scans read columns.
    mod on_columns {
        use super::{WITHOUT_SCANS, kept_as_columns, suite};
    $(
        #[test]
        fn $name() {
            let db = kept_as_columns();
            suite(stringify!($name), &db);
            let (columns, name) = (db.node.columns(), stringify!($name));
            assert!(columns.views > 0 || WITHOUT_SCANS.contains(&name), "no query has read segments: {columns:?}");
        }
    )*}};
}

suites! {
    aggregates
    arrays
    checks
    conflicts
    dates
    definitions
    direct
    dml
    expressions
    floats
    frames
    functions
    indexes
    intervals
    joins
    keys
    literals
    names
    numbers
    orders
    quantifiers
    regexes
    results
    sequences
    series
    sets
    settings
    subqueries
    timestamptz
    transactions
    types
    windows
}
