//! A node's report about its columns to operators, as lines of its status.
//!
//! ```text
//!   columns-all WAITING_BYTES LOSSES LEFT_OUT
//!   columns STATE TABLE_ROWS SEGMENTS SEGMENT_ROWS SEGMENT_BYTES DELTA_ROWS DELTA_BYTES EPOCHS_BEHIND NAME      one a table
//! ```
//! The first line is written only if there is something to report. `STATE` is `kept`, or the code of [`NoColumns`] and its epoch (`4:0`).

use crate::columns::NoColumns;
use farhold_store::column::copy::CopySize;
use std::fmt;
use std::str::FromStr;

/// The columns that a node keeps of its rows of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumns {
    /// The table's name.
    pub table: String,
    /// Why queries read rows; `None`: they may read the columns.
    pub reason: Option<NoColumns>,
    /// Rows of the table on this node.
    pub table_rows: u64,
    /// The size of the columns. While they are being built, their rows grow by segments.
    pub size: CopySize,
    /// Epochs that the node's journal has closed and the columns have not taken yet.
    pub epochs_behind: u32,
}

impl TableColumns {
    /// The progress of a first build in percent; `None`: no build is in progress.
    #[must_use]
    pub fn built_percent(&self) -> Option<u64> {
        let percent = self.size.segment_rows.saturating_mul(100).checked_div(self.table_rows).unwrap_or(0);
        (self.reason == Some(NoColumns::Building)).then_some(percent.min(100))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(9, ' ');
        let reason = match words.next()? {
            "kept" => None,
            code => {
                let (code, epoch) = code.split_once(':')?;
                Some(NoColumns::of_code(code.parse().ok()?, epoch.parse().ok()?)?)
            }
        };
        let table_rows = number(words.next())?;
        let size = CopySize {
            segments: number(words.next())?,
            segment_rows: number(words.next())?,
            segment_bytes: number(words.next())?,
            delta_rows: number(words.next())?,
            delta_bytes: number(words.next())?,
        };
        let epochs_behind = number(words.next())?;
        Some(Self { table: unescaped(words.next()?)?, reason, table_rows, size, epochs_behind })
    }
}

impl fmt::Display for TableColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CopySize { segments, segment_rows, segment_bytes, delta_rows, delta_bytes } = self.size;
        match self.reason.map(NoColumns::code) {
            None => f.write_str("kept")?,
            Some((code, epoch)) => write!(f, "{code}:{epoch}")?,
        }
        write!(f, " {} {segments} {segment_rows} {segment_bytes}", self.table_rows)?;
        write!(f, " {delta_rows} {delta_bytes} {} {}", self.epochs_behind, escaped(&self.table))
    }
}

/// All columns of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnReport {
    /// The tables that are kept as columns, or will be; tables whose columns cannot be read come first.
    pub tables: Vec<TableColumns>,
    /// The number of further tables: at most 64 are reported.
    pub left_out: usize,
    /// Bytes of records that wait to be applied to the columns.
    pub waiting_bytes: u64,
    /// The number of times that all columns were dropped because records were missing: they arrived faster than they were applied, or their files were removed
    /// first.
    pub losses: u64,
}

impl ColumnReport {
    const TABLES_MAX: usize = 64;

    pub(crate) fn new(mut tables: Vec<TableColumns>, waiting_bytes: u64, losses: u64) -> Self {
        tables.sort_by_key(|table| table.reason.is_none());
        let left_out = tables.len().saturating_sub(Self::TABLES_MAX);
        tables.truncate(Self::TABLES_MAX);
        Self { tables, left_out, waiting_bytes, losses }
    }

    /// Adds a line of a status, given as its first word and the rest. Lines of another version, and lines that are not about columns, are ignored.
    pub fn add_line(&mut self, name: &str, value: &str) {
        match name {
            "columns-all" => {
                let mut words = value.split(' ');
                self.waiting_bytes = number(words.next()).unwrap_or(0);
                self.losses = number(words.next()).unwrap_or(0);
                self.left_out = number(words.next()).unwrap_or(0);
            }
            "columns" => self.tables.extend(TableColumns::parse(value)),
            _ => {}
        }
    }
}

/// As lines of a status.
impl fmt::Display for ColumnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self != Self::default() {
            writeln!(f, "columns-all {} {} {}", self.waiting_bytes, self.losses, self.left_out)?;
        }
        self.tables.iter().try_for_each(|table| writeln!(f, "columns {table}"))
    }
}

fn number<T: FromStr>(word: Option<&str>) -> Option<T> {
    word?.parse().ok()
}

/// A name in one line: `\a;` is the character 10, a line feed.
fn escaped(name: &str) -> String {
    let escape = |c: char| if c.is_control() || c == '\\' { format!("\\{:x};", u32::from(c)) } else { c.into() };
    name.chars().map(escape).collect()
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('\\');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_once(';')?;
        name.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        name.push_str(rest);
    }
    Some(name)
}

#[cfg(test)]
mod tests;
