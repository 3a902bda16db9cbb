//! The connection of the client commands, and how a result is printed.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::clock::Stopwatch;

/// A connection; its background task ends with the runtime.
pub struct Connection {
    /// The PostgreSQL client.
    pub client: Client,
}

/// Connects, or returns a message with a remedy.
pub async fn connect(url: &str) -> Result<Connection, String> {
    let config: Config = url.parse().map_err(|error| format!("`{url}` is not a PostgreSQL URL: {error}"))?;
    let (client, connection) = config.connect(NoTls).await.map_err(|error| {
        let (place, why) = (without_password(url), describe(&error));
        if std::error::Error::source(&error).is_some_and(<dyn std::error::Error + 'static>::is::<io::Error>) {
            return format!(
                "no database answers at {place}: {why}\nStart one with `farhold serve`, or name another with --connect."
            );
        }
        format!("{place}: {why}")
    })?;
    tokio::spawn(async move {
        // The client's next call reports a broken connection; this task has no other receiver for the error.
        let _ = connection.await;
    });
    Ok(Connection { client })
}

/// A URL that may be shown.
fn without_password(url: &str) -> String {
    let shown = url.split_once("://").and_then(|(scheme, rest)| {
        let (who, place) = rest.rsplit_once('@')?;
        let user = who.split(':').next()?;
        Some(format!("{scheme}://{user}@{place}"))
    });
    shown.unwrap_or_else(|| url.to_owned())
}

/// A database's message with its SQLSTATE, detail and hint; or the transport's.
pub fn describe(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            text.push_str(": ");
            text.push_str(&inner.to_string());
            source = inner.source();
        }
        return text;
    };
    let mut text = format!("{} ({})", db.message(), db.code().code());
    if let Some(detail) = db.detail() {
        text.push_str("\nDETAIL: ");
        text.push_str(detail);
    }
    if let Some(hint) = db.hint() {
        text.push_str("\nHINT: ");
        text.push_str(hint);
    }
    text
}

/// One statement's answer.
#[derive(Debug, Default)]
pub struct Answer {
    /// Column names; empty for a command.
    pub columns: Vec<String>,
    /// Rows of text; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// Rows that a command changed.
    pub affected: u64,
}

/// Runs the statements of `sql` and returns each one's answer.
pub async fn query(client: &Client, sql: &str) -> Result<Vec<Answer>, tokio_postgres::Error> {
    let mut answers = Vec::new();
    let mut current = Answer::default();
    for message in client.simple_query(sql).await? {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                current.columns = columns.iter().map(|c| c.name().to_owned()).collect();
            }
            SimpleQueryMessage::Row(row) => {
                current.rows.push((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect());
            }
            SimpleQueryMessage::CommandComplete(affected) => {
                current.affected = affected;
                answers.push(std::mem::take(&mut current));
            }
            _ => {}
        }
    }
    Ok(answers)
}

/// How long a client retries while the cluster is between two configurations.
const PATIENCE: Duration = Duration::from_mins(1);

/// As [`query`], and retries while the answer is that the same statement may succeed later (SQLSTATE 40001).
pub async fn query_patiently(client: &Client, sql: &str) -> Result<Vec<Answer>, tokio_postgres::Error> {
    let clock = Stopwatch::start();
    loop {
        match query(client, sql).await {
            Err(error)
                if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
                    && clock.seconds() < PATIENCE.as_secs_f64() =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Prints an answer as a table (or as JSON, one object a row).
pub fn print_answer(out: &mut impl Write, answer: &Answer, json: bool) -> io::Result<()> {
    if json {
        for row in &answer.rows {
            let object: Map<String, Value> = answer
                .columns
                .iter()
                .zip(row)
                .map(|(name, value)| (name.clone(), value.clone().map_or(Value::Null, Value::String)))
                .collect();
            writeln!(out, "{}", Value::Object(object))?;
        }
        if answer.columns.is_empty() {
            writeln!(out, "{}", serde_json::json!({ "rows_affected": answer.affected }))?;
        }
        return Ok(());
    }
    if answer.columns.is_empty() {
        return writeln!(out, "ok, {} rows", answer.affected);
    }
    let mut widths: Vec<usize> = answer.columns.iter().map(|c| c.chars().count()).collect();
    for row in &answer.rows {
        for (width, value) in widths.iter_mut().zip(row) {
            *width = (*width).max(value.as_deref().map_or(4, |v| v.chars().count()));
        }
    }
    let rule: Vec<String> = widths.iter().map(|w| "-".repeat(w + 2)).collect();
    let line = |cells: Vec<&str>| -> String {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} ")).collect();
        padded.join("|").trim_end().to_owned()
    };
    writeln!(out, "{}", line(answer.columns.iter().map(String::as_str).collect()))?;
    writeln!(out, "{}", rule.join("+"))?;
    for row in &answer.rows {
        writeln!(out, "{}", line(row.iter().map(|v| v.as_deref().unwrap_or("NULL")).collect()))?;
    }
    let count = answer.rows.len();
    writeln!(out, "({count} row{})", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(answer: &Answer, json: bool) -> String {
        let mut out = Vec::new();
        print_answer(&mut out, answer, json).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("postgresql://ada:p@ss@[::1]:5433/farhold"), "postgresql://ada@[::1]:5433/farhold");
        assert_eq!(without_password("postgresql://127.0.0.1/farhold"), "postgresql://127.0.0.1/farhold");
    }

    #[test]
    fn a_table_is_aligned_and_null_is_told_from_text() {
        let answer = Answer {
            columns: vec!["id".into(), "name".into()],
            rows: vec![vec![Some("1".into()), Some("Ada".into())], vec![Some("20".into()), None]],
            affected: 2,
        };
        assert_eq!(printed(&answer, false), " id | name\n----+------\n 1  | Ada\n 20 | NULL\n(2 rows)\n");
        assert_eq!(printed(&answer, true), "{\"id\":\"1\",\"name\":\"Ada\"}\n{\"id\":\"20\",\"name\":null}\n");
    }
}
