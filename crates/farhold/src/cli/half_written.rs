//! The messages of a node about rows that were half written when its process ended, without replicas and without a journal.

use std::collections::BTreeMap;

use farhold_sql::{Datum, Zone, format_datum};
use farhold_txn::Node;
use serde_json::{Value, json};

/// At most this many rows are named.
const NAMED_MAX: usize = 10;

/// Rows, by table and key.
type Rows = [(String, Vec<u8>)];

/// The message that a start has found such rows, or that a running node has found them after the writer's process ended. `None`
/// if there are no such rows.
pub fn found(node: &Node, rows: &Rows) -> Option<(Value, String)> {
    let said = describe(node, rows)?;
    let words = format!(
        "has {said} half written: a process ended in the middle of writing them. Statements that read them fail (XX001). To go on without them, \
         start this node once with --forget-half-written, and insert them again"
    );
    Some((event(node, "half_written", rows), words))
}

/// The message that a start has freed such rows, as `--forget-half-written` demands.
pub fn forgotten(node: &Node, rows: &Rows) -> Option<(Value, String)> {
    let said = describe(node, rows)?;
    let words =
        format!("has freed {said} that a process had left half written: they are lost, and their keys are free");
    Some((event(node, "forgotten", rows), words))
}

fn event(node: &Node, name: &str, rows: &Rows) -> Value {
    let named =
        rows.iter().take(NAMED_MAX).map(|(table, key)| json!({ "table": table, "key": key_text(node, table, key) }));
    json!({ "event": name, "rows": rows.len(), "tables": counts(rows), "first": named.collect::<Vec<_>>() })
}

/// The text "3 rows (2 of "people", 1 of "towns"; people (id)=(5), ...)".
fn describe(node: &Node, rows: &Rows) -> Option<String> {
    if rows.is_empty() {
        return None;
    }
    let tables: Vec<String> = counts(rows).iter().map(|(table, count)| format!("{count} of \"{table}\"")).collect();
    let named = rows.iter().take(NAMED_MAX).map(|(table, key)| format!("{table} {}", key_text(node, table, key)));
    let mut said = format!(
        "{} {} ({}; {}",
        rows.len(),
        if rows.len() == 1 { "row" } else { "rows" },
        tables.join(", "),
        named.collect::<Vec<_>>().join(", ")
    );
    said.push_str(if rows.len() > NAMED_MAX { ", ...)" } else { ")" });
    Some(said)
}

fn counts(rows: &Rows) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (table, _) in rows {
        *counts.entry(table.as_str()).or_default() += 1;
    }
    counts
}

/// The key as PostgreSQL names keys, `(a, b)=(1, x)`, or its bytes if the table is gone.
fn key_text(node: &Node, table: &str, key: &[u8]) -> String {
    let decoded = node.table(table).and_then(|table| {
        let schema = table.schema();
        let datums = schema.decode_key(key).ok()?;
        let names: Vec<&str> = schema.key().iter().map(|column| schema.columns()[*column].name.as_str()).collect();
        let values: Vec<String> =
            datums.iter().map(|datum| format_datum(datum, Zone::UTC).unwrap_or_else(|| "null".to_owned())).collect();
        Some(format!("({})=({})", names.join(", "), values.join(", ")))
    });
    decoded.or_else(|| format_datum(&Datum::Bytea(key.to_vec()), Zone::UTC)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use farhold_store::row::{Column, ColumnType, Schema};
    use farhold_txn::TableDef;

    use super::*;
    use crate::{Config, Database};

    #[test]
    fn rows_are_counted_and_the_first_ones_named() {
        let database = Database::open(&Config::in_memory().memory_bytes(16 << 20)).expect("a node");
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Text)];
        let schema = Schema::new(columns, vec![0, 1]).expect("a schema");
        let key_of = |id| {
            let mut key = Vec::new();
            schema.encode_key(&[Datum::Int(id), Datum::Text("ann".to_owned())], &mut key).expect("a key");
            key
        };
        let definition = TableDef::new("people", schema.clone());
        let made = database.run(async |worker, _| worker.create_table(definition).await.map(drop));
        made.expect("a worker").expect("a table");
        let node = database.node();
        assert_eq!(found(node, &[]), None);
        let two = [("people".to_owned(), key_of(5)), ("gone".to_owned(), vec![0xab, 1])];
        let (event, words) = found(node, &two).expect("two");
        assert!(
            words.contains("2 rows (1 of \"gone\", 1 of \"people\"; people (id, name)=(5, ann), gone \\xab01)"),
            "{words}"
        );
        assert_eq!(
            (&event["event"], &event["rows"], &event["tables"]["people"]),
            (&json!("half_written"), &json!(2), &json!(1))
        );
        assert_eq!(event["first"][0], json!({ "table": "people", "key": "(id, name)=(5, ann)" }));
        let many: Vec<_> = (1..=12).map(|id| ("people".to_owned(), key_of(id))).collect();
        let (event, words) = forgotten(node, &many).expect("twelve");
        assert!(words.contains("12 rows (12 of \"people\"") && words.contains("(10, ann), ...)"), "{words}");
        assert!(!words.contains("(11, ann)") && event["first"].as_array().map(Vec::len) == Some(NAMED_MAX), "{words}");
    }
}
