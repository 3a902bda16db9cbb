//! COPY … TO STDOUT.

use super::CopyFormat;
use crate::SqlError;
use crate::engine::cancel::Armed;
use crate::engine::types::datum_at;
use crate::engine::{CommandTag, Datum, OutputColumn, Rows};
use crate::value::{self, Zone};

/// Rows per chunk: other connections of the thread wait while a chunk is written out.
const CHUNK_ROWS: usize = 1024;

/// The bytes of a COPY … TO STDOUT.
pub struct CopyOut {
    /// The number of columns of a line.
    pub columns: usize,
    rows: Rows,
    shape: Vec<OutputColumn>,
    format: CopyFormat,
    zone: Zone,
    header: Option<Vec<String>>,
    count: u64,
    line_ends: Vec<usize>,
}

impl CopyOut {
    pub(crate) fn new(rows: Rows, names: &[String], shape: Vec<OutputColumn>, format: CopyFormat, zone: Zone) -> Self {
        let header = format.header.then(|| names.to_vec());
        let rows = match rows {
            // Rows are taken from the end of the list.
            Rows::Direct { mut rows, tag } => {
                rows.reverse();
                Rows::Direct { rows, tag }
            }
            batches @ Rows::Batches(_) => batches,
        };
        Self { columns: names.len(), rows, shape, format, zone, header, count: 0, line_ends: Vec::new() }
    }

    /// Keeps the statement's span open as long as its rows.
    pub(crate) fn hold(&mut self, armed: Armed) {
        if let Rows::Batches(rows) = &mut self.rows {
            rows.hold(armed);
        }
    }

    /// The next chunk of whole lines; `None` after the last one, when [`tag`](Self::tag) is final.
    ///
    /// # Errors
    /// The error that stopped the query.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, SqlError>> {
        let mut out = Vec::new();
        self.line_ends.clear();
        if let Some(names) = self.header.take() {
            for (n, name) in names.iter().enumerate() {
                self.field(n, Some(name.as_bytes()), &mut out);
            }
            out.push(b'\n');
            self.line_ends.push(out.len());
            return Some(Ok(out));
        }
        let rows = match &mut self.rows {
            Rows::Direct { rows, .. } if rows.is_empty() => return None,
            Rows::Direct { rows, .. } => {
                let mut chunk = rows.split_off(rows.len().saturating_sub(CHUNK_ROWS));
                chunk.reverse();
                chunk
            }
            Rows::Batches(batches) => match batches.next().await? {
                Err(e) => return Some(Err(e)),
                Ok(batch) => {
                    let mut rows = Vec::with_capacity(batch.num_rows());
                    for n in 0..batch.num_rows() {
                        let row: Result<Vec<Datum>, SqlError> =
                            batch.columns().iter().map(|column| datum_at(column, n, self.zone)).collect();
                        match row {
                            Ok(row) => rows.push(row),
                            Err(e) => return Some(Err(e)),
                        }
                    }
                    rows
                }
            },
        };
        let mut text = Vec::new();
        for row in &rows {
            for (n, datum) in row.iter().enumerate() {
                text.clear();
                value::put(datum, self.shape[n].data_type, self.zone, &mut text);
                self.field(n, (!datum.is_null()).then_some(text.as_slice()), &mut out);
            }
            out.push(b'\n');
            self.line_ends.push(out.len());
        }
        self.count += rows.len() as u64;
        Some(Ok(out))
    }

    /// The end of each line in the last chunk; a CSV line may contain line feeds.
    #[must_use]
    pub fn line_ends(&self) -> &[usize] {
        &self.line_ends
    }

    /// The tag of `CommandComplete`, valid once all lines are out.
    #[must_use]
    pub fn tag(&self) -> CommandTag {
        CommandTag::rows("COPY", self.count)
    }

    fn field(&self, n: usize, text: Option<&[u8]>, out: &mut Vec<u8>) {
        let CopyFormat { csv, delimiter, quote, escape, ref null, .. } = self.format;
        if n > 0 {
            out.push(delimiter);
        }
        let Some(text) = text else {
            out.extend_from_slice(null.as_bytes());
            return;
        };
        if csv {
            let special = |b: &u8| *b == delimiter || *b == quote || matches!(b, b'\n' | b'\r');
            if text.iter().any(special) || text == null.as_bytes() || text == b"\\." {
                out.push(quote);
                for &byte in text {
                    if byte == quote || byte == escape {
                        out.push(escape);
                    }
                    out.push(byte);
                }
                out.push(quote);
            } else {
                out.extend_from_slice(text);
            }
            return;
        }
        for &byte in text {
            match byte {
                0x08 => out.extend_from_slice(b"\\b"),
                0x0b => out.extend_from_slice(b"\\v"),
                0x0c => out.extend_from_slice(b"\\f"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b if b == delimiter => {
                    out.push(b'\\');
                    out.push(b);
                }
                b => out.push(b),
            }
        }
    }
}
