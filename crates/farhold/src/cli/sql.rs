//! `farhold sql`: a prompt, or statements from -c or standard input.

use std::io::{self, IsTerminal, Read, Write};

use super::args::SqlArgs;
use super::client::{self, Connection};

const HELP: &str = "\
Statements end with a semicolon. Besides SQL:
  \\d          tables            \\d NAME   columns of a table
  \\?          this text         \\q        leave (Ctrl-D too)
psql works as well: psql -h 127.0.0.1 -p 5433";

/// Runs the command; the error is for a person.
pub async fn run(args: &SqlArgs, json: bool) -> Result<(), String> {
    let connection = client::connect(&args.connect.connect).await?;
    if let Some(sql) = &args.command {
        return run_and_print(&connection, sql, json).await;
    }
    if !io::stdin().is_terminal() {
        let mut sql = String::new();
        io::stdin().read_to_string(&mut sql).map_err(|error| format!("standard input: {error}"))?;
        return run_and_print(&connection, &sql, json).await;
    }
    prompt(&connection, json).await
}

async fn run_and_print(connection: &Connection, sql: &str, json: bool) -> Result<(), String> {
    let answers = client::query(&connection.client, sql).await.map_err(|error| client::describe(&error))?;
    let mut out = io::stdout().lock();
    for answer in &answers {
        client::print_answer(&mut out, answer, json).map_err(|error| format!("standard output: {error}"))?;
    }
    out.flush().map_err(|error| format!("standard output: {error}"))
}

async fn prompt(connection: &Connection, json: bool) -> Result<(), String> {
    let mut editor = rustyline::DefaultEditor::new().map_err(|error| format!("the prompt: {error}"))?;
    println!("farhold {}: \\? for help", env!("CARGO_PKG_VERSION"));
    let mut statement = String::new();
    loop {
        let line = match editor.readline(if statement.is_empty() { "farhold> " } else { "      -> " }) {
            Ok(line) => line,
            Err(rustyline::error::ReadlineError::Interrupted) => {
                statement.clear();
                continue;
            }
            Err(rustyline::error::ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(format!("the prompt: {error}")),
        };
        if statement.is_empty() {
            match line.trim() {
                "" => continue,
                "\\q" => return Ok(()),
                "\\?" => {
                    println!("{HELP}");
                    continue;
                }
                _ => {}
            }
        }
        statement.push_str(&line);
        statement.push('\n');
        let Some(sql) = complete(&statement) else { continue };
        let _ = editor.add_history_entry(statement.trim());
        if let Err(message) = run_and_print(connection, &sql, json).await {
            eprintln!("ERROR: {message}");
            if connection.client.is_closed() {
                return Err("the server has closed the connection; start `farhold sql` again".to_owned());
            }
        }
        statement.clear();
    }
}

/// The SQL to send once the text is a whole statement or a backslash command.
fn complete(text: &str) -> Option<String> {
    let text = text.trim();
    if let Some(command) = text.strip_prefix("\\d") {
        let name = command.trim().replace('\'', "''");
        return Some(if name.is_empty() {
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1".to_owned()
        } else {
            format!(
                "SELECT column_name, data_type, is_nullable FROM information_schema.columns \
                 WHERE table_schema = 'public' AND table_name = '{name}' ORDER BY ordinal_position"
            )
        });
    }
    text.ends_with(';').then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::complete;

    #[test]
    fn a_statement_is_sent_at_its_semicolon() {
        assert_eq!(complete("SELECT 1\n"), None);
        assert_eq!(complete("SELECT 1;\n").as_deref(), Some("SELECT 1;"));
        assert!(complete("\\d").unwrap().contains("information_schema.tables"));
        assert!(complete("\\d o'clock").unwrap().contains("o''clock"));
    }
}
