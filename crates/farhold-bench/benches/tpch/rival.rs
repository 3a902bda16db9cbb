//! Another database behind a pipe: one line of JSON a query, one line of JSON an answer.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::Failure;
use crate::answer::Answer;

/// The program, running.
pub struct Rival {
    name: String,
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Rival {
    /// Starts `command --folder F --threads N --memory BYTES`; its first line is `{"name": …}`.
    pub fn start(command: &str, folder: &Path, threads: usize, memory: usize) -> Result<Self, Failure> {
        let mut words = command.split_whitespace();
        let mut process = Command::new(words.next().ok_or("no command of the rival")?)
            .args(words)
            .arg("--folder")
            .arg(folder)
            .args(["--threads", &threads.to_string(), "--memory", &memory.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let questions = process.stdin.take();
        let mut answers = BufReader::new(process.stdout.take().ok_or("no pipe from the rival")?);
        let hello = read(&mut answers)?;
        let name = hello["name"].as_str().ok_or("the rival does not say its name")?.to_owned();
        Ok(Self { name, process, questions, answers })
    }

    /// What the record calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a query to its end: seconds, as the rival measures them, and rows.
    pub fn run(&mut self, sql: &str) -> Result<(f64, Answer), String> {
        let questions = self.questions.as_mut().ok_or("the rival has ended")?;
        writeln!(questions, "{}", json!({ "sql": sql })).map_err(|error| error.to_string())?;
        let answer = read(&mut self.answers)?;
        if let Some(error) = answer["error"].as_str() {
            return Err(error.to_owned());
        }
        let seconds = answer["seconds"].as_f64().ok_or("the rival gives no time")?;
        let rows = answer["rows"].as_array().ok_or("the rival gives no rows")?;
        let cell = |cell: &Value| cell.as_str().unwrap_or("NULL").to_owned();
        let rows = rows.iter().map(|row| row.as_array().into_iter().flatten().map(cell).collect()).collect();
        Ok((seconds, Answer::new(rows)))
    }
}

fn read(answers: &mut impl BufRead) -> Result<Value, String> {
    let mut line = String::new();
    answers.read_line(&mut line).map_err(|error| error.to_string())?;
    serde_json::from_str(&line).map_err(|error| format!("the rival answers `{}`: {error}", line.trim()))
}

impl Drop for Rival {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.questions = None;
        let _ = self.process.wait();
    }
}
