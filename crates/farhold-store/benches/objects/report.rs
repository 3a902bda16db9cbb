//! Prints rows of figures, and keeps them as JSON.

use std::fmt::Write as _;
use std::path::Path;

pub struct Report {
    pub quick: bool,
    json: String,
}

impl Report {
    pub fn new(quick: bool) -> Self {
        Self { quick, json: String::new() }
    }

    pub fn table(&self, title: &str) {
        println!("\n{title}{}", if self.quick { " (quick: the figures mean nothing)" } else { "" });
    }

    pub fn row(&mut self, table: &str, name: &str, figures: &[(&str, f64)]) {
        let mut line = format!("  {name:<34}");
        let mut json = format!("  {{\"table\": \"{table}\", \"row\": \"{name}\"");
        for (figure, value) in figures {
            write!(line, "  {figure} {value:>8.2}").expect("a string");
            write!(json, ", \"{figure}\": {value:.4}").expect("a string");
        }
        println!("{line}");
        self.json += &json;
        self.json += "},\n";
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, format!("[\n{}\n]\n", self.json.trim_end_matches(",\n"))).expect("write the figures");
    }
}
