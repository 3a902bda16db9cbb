//! Files to COPY: turns a Parquet or CSV file into chunks of CSV text for `COPY … FROM STDIN (FORMAT csv)`.
//!
//! One way in for every file: the server's COPY checks types, lengths and keys, so the importer only has to spell the
//! values. A Parquet file is read batch by batch; a CSV file is passed through as it is.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

/// Rows of a Parquet batch, and so of a chunk.
const BATCH_ROWS: usize = 8192;
/// Bytes of a chunk of a CSV file.
const CHUNK_BYTES: usize = 256 * 1024;
/// Rows of a CSV file that decide the types of its columns.
const INFER_ROWS: usize = 10_000;

/// Why a file cannot be imported.
#[derive(Debug)]
pub enum ImportError {
    /// The file cannot be read.
    Io(PathBuf, std::io::Error),
    /// The file is not what its name or the format says.
    Format(PathBuf, String),
    /// A column's type has no counterpart here.
    Type {
        /// The column.
        column: String,
        /// Its type in the file.
        data_type: String,
    },
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Format(path, message) => write!(f, "{}: {message}", path.display()),
            Self::Type { column, data_type } => {
                write!(
                    f,
                    "column {column} has type {data_type}, which Farhold does not store; leave it out of the file"
                )
            }
        }
    }
}

impl std::error::Error for ImportError {}

/// What the file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Comma-separated values with a header line.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// A file on its way into a table.
pub struct ImportFile {
    path: PathBuf,
    schema: Arc<Schema>,
    source: Source,
    bytes_total: u64,
    rows_total: Option<u64>,
}

enum Source {
    Csv(BufReader<File>),
    Parquet(ParquetRecordBatchReader),
}

/// A piece of CSV text.
pub struct Chunk {
    /// The text; for a CSV file a chunk may end inside a line.
    pub csv: Vec<u8>,
    /// Rows in it, where that is known (Parquet).
    pub rows: Option<u64>,
    /// Bytes of the file behind it (CSV).
    pub file_bytes: u64,
}

impl ImportFile {
    /// Opens a file and reads its columns.
    pub fn open(path: &Path, kind: FileKind) -> Result<Self, ImportError> {
        let io = |error| ImportError::Io(path.to_owned(), error);
        let mut file = File::open(path).map_err(io)?;
        let bytes_total = file.metadata().map_err(io)?.len();
        match kind {
            FileKind::Csv => {
                let (schema, _) = Format::default()
                    .with_header(true)
                    .infer_schema(&mut BufReader::new(&mut file), Some(INFER_ROWS))
                    .map_err(|error| ImportError::Format(path.to_owned(), format!("not readable as CSV: {error}")))?;
                file.rewind().map_err(io)?;
                let source = Source::Csv(BufReader::with_capacity(CHUNK_BYTES, file));
                Ok(Self { path: path.to_owned(), schema: Arc::new(schema), source, bytes_total, rows_total: None })
            }
            FileKind::Parquet => {
                let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| {
                    ImportError::Format(path.to_owned(), format!("not readable as Parquet: {error}"))
                })?;
                let schema = builder.schema().clone();
                let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
                for field in schema.fields() {
                    sql_type(field.name(), field.data_type())?;
                }
                let reader = builder
                    .with_batch_size(BATCH_ROWS)
                    .build()
                    .map_err(|error| ImportError::Format(path.to_owned(), error.to_string()))?;
                Ok(Self {
                    path: path.to_owned(),
                    schema,
                    source: Source::Parquet(reader),
                    bytes_total,
                    rows_total: Some(rows),
                })
            }
        }
    }

    /// Bytes of the file.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Rows of the file, where it says so.
    pub fn rows_total(&self) -> Option<u64> {
        self.rows_total
    }

    /// The column names, in the file's order.
    pub fn columns(&self) -> Vec<String> {
        self.schema.fields().iter().map(|f| f.name().clone()).collect()
    }

    /// `CREATE TABLE` for the file's columns.
    pub fn create_table(&self, table: &str, key: &str) -> Result<String, ImportError> {
        if !self.schema.fields().iter().any(|f| f.name() == key) {
            let known = self.columns().join(", ");
            return Err(ImportError::Format(self.path.clone(), format!("has no column `{key}`; it has {known}")));
        }
        let mut columns = Vec::new();
        for field in self.schema.fields() {
            columns.push(format!("{} {}", quote(field.name()), sql_type(field.name(), field.data_type())?));
        }
        Ok(format!("CREATE TABLE {} ({}, PRIMARY KEY ({}))", quote(table), columns.join(", "), quote(key)))
    }

    /// The `COPY` statement that takes the chunks.
    pub fn copy_statement(&self, table: &str) -> String {
        let columns: Vec<String> = self.columns().iter().map(|c| quote(c)).collect();
        let header = matches!(self.source, Source::Csv(_));
        format!("COPY {} ({}) FROM STDIN (FORMAT csv, HEADER {header})", quote(table), columns.join(", "))
    }

    /// The next chunk, or `None` at the end.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, ImportError> {
        match &mut self.source {
            Source::Csv(reader) => {
                let mut csv = vec![0; CHUNK_BYTES];
                let length = reader.read(&mut csv).map_err(|error| ImportError::Io(self.path.clone(), error))?;
                csv.truncate(length);
                Ok((length > 0).then_some(Chunk { csv, rows: None, file_bytes: length as u64 }))
            }
            Source::Parquet(reader) => {
                let Some(batch) = reader.next() else { return Ok(None) };
                let broken = |error: String| ImportError::Format(self.path.clone(), error);
                let batch = batch.map_err(|error| broken(error.to_string()))?;
                let mut csv = Vec::new();
                write_csv(&batch, &mut csv).map_err(|error| broken(error.to_string()))?;
                Ok(Some(Chunk { csv, rows: Some(batch.num_rows() as u64), file_bytes: 0 }))
            }
        }
    }
}

/// The rows as COPY's CSV. Texts are quoted: an empty one without quotes is NULL.
fn write_csv(batch: &RecordBatch, csv: &mut Vec<u8>) -> Result<(), ArrowError> {
    let options = FormatOptions::default().with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"));
    let columns = batch.columns().iter().map(|column| {
        let data_type = column.data_type();
        let quoted = !(data_type.is_primitive() || matches!(data_type, DataType::Boolean | DataType::Null));
        Ok((column, quoted, ArrayFormatter::try_new(column, &options)?))
    });
    let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
    for row in 0..batch.num_rows() {
        for (n, (column, quoted, formatter)) in columns.iter().enumerate() {
            if n > 0 {
                csv.push(b',');
            }
            if column.is_null(row) {
                continue;
            }
            let text = formatter.value(row).try_to_string()?;
            if *quoted {
                csv.push(b'"');
                csv.extend_from_slice(text.replace('"', "\"\"").as_bytes());
                csv.push(b'"');
            } else {
                csv.extend_from_slice(text.as_bytes());
            }
        }
        csv.push(b'\n');
    }
    Ok(())
}

/// The SQL type that holds a column of the file.
fn sql_type(column: &str, data_type: &DataType) -> Result<String, ImportError> {
    Ok(match data_type {
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => "SMALLINT".to_owned(),
        DataType::UInt16 | DataType::Int32 => "INT".to_owned(),
        DataType::UInt32 | DataType::Int64 | DataType::Null => "BIGINT".to_owned(),
        DataType::UInt64 => "DECIMAL(20, 0)".to_owned(),
        DataType::Float16 | DataType::Float32 => "REAL".to_owned(),
        DataType::Float64 => "DOUBLE PRECISION".to_owned(),
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) | DataType::Decimal128(p, s) => {
            format!("DECIMAL({p}, {s})")
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "TEXT".to_owned(),
        DataType::Date32 | DataType::Date64 => "DATE".to_owned(),
        DataType::Timestamp(_, None) => "TIMESTAMP".to_owned(),
        other => return Err(ImportError::Type { column: column.to_owned(), data_type: other.to_string() }),
    })
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array, NullArray, StringArray};

    fn written(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farhold-import-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn a_parquet_file_becomes_csv_text() {
        let batch = RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef),
            ("price", Arc::new(Decimal128Array::from(vec![Some(150), None]).with_precision_and_scale(10, 2).unwrap())),
            ("name", Arc::new(StringArray::from(vec!["a,\"b\"", "c"]))),
            ("day", Arc::new(Date32Array::from(vec![0, 1]))),
            ("note", Arc::new(StringArray::from(vec![Some(""), None]))),
            ("nothing", Arc::new(NullArray::new(2))),
        ])
        .unwrap();
        let mut bytes = Vec::new();
        let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let path = written("rows.parquet", &bytes);
        let mut file = ImportFile::open(&path, FileKind::Parquet).unwrap();
        assert_eq!(file.rows_total(), Some(2));
        assert_eq!(
            file.create_table("t", "id").unwrap(),
            "CREATE TABLE \"t\" (\"id\" BIGINT, \"price\" DECIMAL(10, 2), \"name\" TEXT, \"day\" DATE, \"note\" TEXT, \"nothing\" BIGINT, PRIMARY KEY (\"id\"))"
        );
        assert_eq!(
            file.copy_statement("t"),
            "COPY \"t\" (\"id\", \"price\", \"name\", \"day\", \"note\", \"nothing\") FROM STDIN (FORMAT csv, HEADER false)"
        );
        let chunk = file.next_chunk().unwrap().unwrap();
        assert_eq!(
            String::from_utf8(chunk.csv).unwrap(),
            "1,1.50,\"a,\"\"b\"\"\",1970-01-01,\"\",\n2,,\"c\",1970-01-02,,\n"
        );
        assert!(file.next_chunk().unwrap().is_none());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_is_not_what_it_says_is_refused() {
        let path = written("not.parquet", b"hello");
        let Err(error) = ImportFile::open(&path, FileKind::Parquet) else { panic!("opened") };
        assert!(error.to_string().contains("not readable as Parquet"), "{error}");
        std::fs::remove_file(path).unwrap();
        let missing = ImportFile::open(Path::new("/nowhere/rows.csv"), FileKind::Csv).err().unwrap();
        assert!(matches!(missing, ImportError::Io(..)));
    }

    #[test]
    fn a_key_column_that_is_not_there_is_named() {
        let path = written("rows.csv", b"a,b\n1,x\n");
        let file = ImportFile::open(&path, FileKind::Csv).unwrap();
        assert!(file.create_table("t", "c").unwrap_err().to_string().contains("it has a, b"));
        std::fs::remove_file(path).unwrap();
    }
}
