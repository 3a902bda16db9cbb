//! `farhold check`: the TPC-C specification's consistency conditions by SQL, and the audit of acknowledged transactions.

use farhold_bench::workload::tpcc;
use serde_json::json;
use tokio_postgres::Client;

use super::args::CheckArgs;
use super::client;
use super::clock::Stopwatch;
use super::demo::Outcome;

/// How many conditions hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// Conditions without a violation.
    pub held: usize,
    /// Conditions with one.
    pub violated: usize,
}

/// Runs the command; the error is for a person.
pub async fn run(args: &CheckArgs, json: bool) -> Result<(), String> {
    let connection = client::connect(&args.connect.connect).await?;
    let conditions = conditions(&connection.client, json).await?;
    if conditions.violated > 0 {
        return Err(format!("{} of the specification's conditions do not hold; see above", conditions.violated));
    }
    Ok(())
}

/// Queries the violations of each condition and prints a line for each.
pub async fn conditions(database: &Client, json: bool) -> Result<Conditions, String> {
    if !json {
        println!("\nConsistency conditions of the TPC-C specification, by SQL");
    }
    let mut outcome = Conditions::default();
    for (number, sql) in (1..).zip(tpcc::check::SQL) {
        let (clause, title) = head_of(sql, number);
        let clock = Stopwatch::start();
        let answers = client::query_patiently(database, sql)
            .await
            .map_err(|error| format!("condition {clause}: {}", client::describe(&error)))?;
        let violations: usize = answers.iter().map(|a| a.rows.len()).sum();
        if violations == 0 {
            outcome.held += 1;
        } else {
            outcome.violated += 1;
        }
        let milliseconds = (clock.seconds() * 1e3) as u64;
        if json {
            println!(
                "{}",
                json!({ "event": "condition", "clause": clause, "violations": violations, "milliseconds": milliseconds })
            );
            continue;
        }
        println!(
            "  {} {:<9} {} ({milliseconds} ms)",
            if violations == 0 { "holds   " } else { "VIOLATED" },
            clause,
            title
        );
        for answer in answers.iter().filter(|a| !a.rows.is_empty()) {
            let mut first = client::Answer { columns: answer.columns.clone(), rows: answer.rows.clone(), affected: 0 };
            first.rows.truncate(5);
            client::print_answer(&mut std::io::stdout().lock(), &first, false).map_err(|error| error.to_string())?;
        }
    }
    Ok(outcome)
}

/// The clause and the sentence of a condition, from the comment that its text begins with.
fn head_of(sql: &str, number: usize) -> (String, &str) {
    let line = sql.lines().next().and_then(|line| line.strip_prefix("-- ")).unwrap_or_default();
    match line.split_once(": ") {
        Some((clause, title)) => (clause.to_owned(), title.trim_end_matches('.')),
        None => (format!("3.3.2.{number}"), line),
    }
}

/// Compares what the workers saw committed with what the tables hold. Each line says what is missing, or what is too much, unless
/// some worker may have died before it could report.
pub async fn lost_transactions(database: &Client, warehouses: u32, outcome: &Outcome) -> Result<Vec<String>, String> {
    let warehouses = u64::from(warehouses);
    let mut lost = Vec::new();
    for (table, of_type, initial) in [
        ("orders", "new-order", warehouses * tpcc::ORDERS_PER_WAREHOUSE),
        // One history row a customer, and as many customers as orders (4.3.3.1).
        ("history", "payment", warehouses * tpcc::ORDERS_PER_WAREHOUSE),
    ] {
        let told = outcome.transactions.iter().chain(&outcome.before);
        let acknowledged = told.filter(|t| t.name == of_type).map(|t| t.commits).sum::<u64>();
        let answers = client::query_patiently(database, &format!("SELECT count(*) FROM {table}"))
            .await
            .map_err(|error| format!("counting {table}: {}", client::describe(&error)))?;
        let count: u64 = answers
            .first()
            .and_then(|a| a.rows.first())
            .and_then(|r| r[0].as_deref())
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| format!("counting {table}: no number came back"))?;
        // A killed node may have committed more than it had reported.
        let is_right = count == initial + acknowledged || outcome.died && count > initial + acknowledged;
        if !is_right {
            lost.push(format!(
                "{table} holds {count} rows; {initial} were loaded and {acknowledged} {of_type} transactions were acknowledged"
            ));
        }
    }
    Ok(lost)
}
