//! Figures of benches: printed as rows, kept as JSON.

use std::fmt::Write as _;
use std::path::Path;

/// Prints rows of figures, and keeps them.
#[derive(Debug, Default)]
pub struct Report {
    /// The run is too short for meaningful figures; its tables say so.
    pub quick: bool,
    rows: Vec<String>,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(quick: bool) -> Self {
        Self { quick, rows: Vec::new() }
    }

    /// Begins a table.
    pub fn table(&self, title: &str) {
        println!("\n{title}{}", if self.quick { " (quick: the figures mean nothing)" } else { "" });
    }

    /// Adds a row: its table and name, then its figures by name. Names are plain words, so they need no escaping.
    pub fn row(&mut self, table: &str, name: &str, figures: &[(&str, f64)]) {
        let mut line = format!("  {name:<36}");
        let mut json = format!("  {{\"table\": \"{table}\", \"row\": \"{name}\"");
        for (figure, value) in figures {
            let _ = write!(line, "  {figure} {value:>8.2}");
            let _ = write!(json, ", \"{figure}\": {value:.4}");
        }
        println!("{line}");
        json.push('}');
        self.rows.push(json);
    }

    /// All rows, as a JSON array.
    #[must_use]
    pub fn json(&self) -> String {
        format!("[\n{}\n]\n", self.rows.join(",\n"))
    }

    /// Writes the rows to a file.
    ///
    /// # Errors
    /// The file system's error.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.json())
    }
}
