//! Import of files: turns a Parquet or CSV file into chunks of CSV text for `COPY … FROM STDIN (FORMAT csv)`.
//!
//! All files take the same path: the server's COPY checks types, lengths and keys, so the importer only has to format
//! the values. A Parquet file is read batch by batch; a CSV file is passed through unchanged.
//!
//! No information is lost: a column of a CSV file gets a type only if formatting each value gives back its text, and a
//! Parquet type without a counterpart, or a value that the counterpart cannot hold, is refused.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit, TimestampNanosecondType};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use crate::engine::{ColumnType, csv_names, csv_types, datum_at, from_arrow, to_arrow};
use crate::value::{Zone, format_datum};

/// Rows per Parquet batch, and so per chunk.
const BATCH_ROWS: usize = 8192;
/// Bytes per chunk of a CSV file.
const CHUNK_BYTES: usize = 256 * 1024;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, std::io::Error),
    /// The file does not have the format of its name, or is not as the format requires.
    #[error("{}: {}", .0.display(), .1)]
    Format(PathBuf, String),
    /// A column's type has no counterpart here.
    #[error("column {column} has type {data_type}, which Farhold does not store; leave it out of the file")]
    Type {
        /// The column.
        column: String,
        /// Its type in the file.
        data_type: String,
    },
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Comma-separated values with a header line.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// A file being imported into a table.
pub struct ImportFile {
    path: PathBuf,
    columns: Vec<String>,
    source: Source,
    bytes_total: u64,
    rows_total: Option<u64>,
}

enum Source {
    Csv(BufReader<File>),
    Parquet { reader: ParquetRecordBatchReader, types: Vec<ColumnType> },
}

/// A piece of CSV text.
pub struct Chunk {
    /// The text; for a CSV file a chunk may end inside a line.
    pub csv: Vec<u8>,
    /// The number of rows in it, if known (Parquet).
    pub rows: Option<u64>,
    /// The number of file bytes that it represents (CSV).
    pub file_bytes: u64,
}

impl ImportFile {
    /// Opens a file and reads its columns.
    ///
    /// # Errors
    /// [`ImportError::Io`]; [`ImportError::Format`] if the file has another format; [`ImportError::Type`] for a column of
    /// a Parquet file that no column type holds.
    pub fn open(path: &Path, kind: FileKind) -> Result<Self, ImportError> {
        let io = |error| ImportError::Io(path.to_owned(), error);
        let mut file = File::open(path).map_err(io)?;
        let bytes_total = file.metadata().map_err(io)?.len();
        match kind {
            FileKind::Csv => {
                let columns = csv_names(&mut file).map_err(|error| csv_error(path, error))?;
                file.rewind().map_err(io)?;
                let source = Source::Csv(BufReader::with_capacity(CHUNK_BYTES, file));
                Ok(Self { path: path.to_owned(), columns, source, bytes_total, rows_total: None })
            }
            FileKind::Parquet => {
                let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| {
                    ImportError::Format(path.to_owned(), format!("not readable as Parquet: {error}"))
                })?;
                let schema = builder.schema().clone();
                let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
                let types = schema.fields().iter().map(|field| column_type(field.name(), field.data_type()));
                let types = types.collect::<Result<_, _>>()?;
                let reader = builder
                    .with_batch_size(BATCH_ROWS)
                    .build()
                    .map_err(|error| ImportError::Format(path.to_owned(), error.to_string()))?;
                Ok(Self {
                    path: path.to_owned(),
                    columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
                    source: Source::Parquet { reader, types },
                    bytes_total,
                    rows_total: Some(rows),
                })
            }
        }
    }

    /// The size of the file in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// The number of rows in the file, if it is recorded there.
    pub fn rows_total(&self) -> Option<u64> {
        self.rows_total
    }

    /// A `CREATE TABLE` for the file's columns. A CSV file is read to its end to find the types.
    ///
    /// # Errors
    /// [`ImportError::Format`] if there is no column `key`, or the CSV cannot be read; [`ImportError::Io`].
    pub fn create_table(&self, table: &str, key: &str) -> Result<String, ImportError> {
        if !self.columns.iter().any(|column| column == key) {
            let known = self.columns.join(", ");
            return Err(ImportError::Format(self.path.clone(), format!("has no column `{key}`; it has {known}")));
        }
        let types = match &self.source {
            Source::Csv(_) => {
                let file = File::open(&self.path).map_err(|error| ImportError::Io(self.path.clone(), error))?;
                csv_types(file).map_err(|error| csv_error(&self.path, error))?
            }
            Source::Parquet { types, .. } => types.clone(),
        };
        let columns = self.columns.iter().zip(types).map(|(name, data_type)| format!("{} {data_type}", quote(name)));
        let columns = columns.collect::<Vec<_>>().join(", ");
        Ok(format!("CREATE TABLE {} ({columns}, PRIMARY KEY ({}))", quote(table), quote(key)))
    }

    /// A `DROP TABLE` for the table of [`create_table`](Self::create_table).
    pub fn drop_table(table: &str) -> String {
        format!("DROP TABLE {}", quote(table))
    }

    /// The `COPY` statement to which the chunks belong.
    pub fn copy_statement(&self, table: &str) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| quote(column)).collect();
        let header = matches!(self.source, Source::Csv(_));
        format!("COPY {} ({}) FROM STDIN (FORMAT csv, HEADER {header})", quote(table), columns.join(", "))
    }

    /// The next chunk, or `None` at the end.
    ///
    /// # Errors
    /// [`ImportError::Io`], or [`ImportError::Format`] at the row that cannot be read.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, ImportError> {
        match &mut self.source {
            Source::Csv(reader) => {
                let mut csv = vec![0; CHUNK_BYTES];
                let length = reader.read(&mut csv).map_err(|error| ImportError::Io(self.path.clone(), error))?;
                csv.truncate(length);
                Ok((length > 0).then_some(Chunk { csv, rows: None, file_bytes: length as u64 }))
            }
            Source::Parquet { reader, types } => {
                let Some(batch) = reader.next() else { return Ok(None) };
                let broken = |error: String| ImportError::Format(self.path.clone(), error);
                let batch = batch.map_err(|error| broken(error.to_string()))?;
                let mut csv = Vec::new();
                write_csv(&batch, types, &mut csv).map_err(broken)?;
                Ok(Some(Chunk { csv, rows: Some(batch.num_rows() as u64), file_bytes: 0 }))
            }
        }
    }
}

fn csv_error(path: &Path, error: std::io::Error) -> ImportError {
    match error.kind() {
        ErrorKind::InvalidData => ImportError::Format(path.to_owned(), format!("not readable as CSV: {error}")),
        _ => ImportError::Io(path.to_owned(), error),
    }
}

/// Writes the rows as CSV for COPY. Texts are quoted, because an unquoted empty text is NULL.
fn write_csv(batch: &RecordBatch, types: &[ColumnType], csv: &mut Vec<u8>) -> Result<(), String> {
    let columns = batch.columns().iter().zip(types).zip(batch.schema_ref().fields()).map(|((column, to), field)| {
        let is_quoted = to.is_text() || *to == ColumnType::Bytea;
        let values = values(column, *to).map_err(|error| format!("column {}: {error}", field.name()))?;
        Ok((is_quoted, values))
    });
    let columns = columns.collect::<Result<Vec<_>, String>>()?;
    for row in 0..batch.num_rows() {
        for (n, (is_quoted, values)) in columns.iter().enumerate() {
            if n > 0 {
                csv.push(b',');
            }
            let datum = datum_at(values, row, Zone::UTC).map_err(|error| error.to_string())?;
            let Some(text) = format_datum(&datum, Zone::UTC) else { continue };
            if *is_quoted {
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

/// A column converted to the Arrow type of the column type.
fn values(column: &ArrayRef, to: ColumnType) -> Result<ArrayRef, String> {
    let cast = |column: &ArrayRef, to: &DataType| {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(column, to, &options).map_err(|error| error.to_string())
    };
    match column.data_type() {
        DataType::Dictionary(_, of) => values(&cast(column, of)?, to),
        DataType::Timestamp(unit, zone) => {
            let is_exact = *unit != TimeUnit::Nanosecond
                || column.as_primitive::<TimestampNanosecondType>().iter().flatten().all(|moment| moment % 1000 == 0);
            if !is_exact {
                return Err("a timestamp has nanoseconds; round it to microseconds in the file".to_owned());
            }
            cast(column, &DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        _ => cast(column, &to_arrow(to)),
    }
}

/// The column type for a column of a Parquet file.
fn column_type(column: &str, data_type: &DataType) -> Result<ColumnType, ImportError> {
    match data_type {
        // The column has no values.
        DataType::Null => Ok(ColumnType::BigInt),
        data_type => from_arrow(data_type)
            .ok_or_else(|| ImportError::Type { column: column.to_owned(), data_type: data_type.to_string() }),
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, Date32Array, Decimal128Array, Int64Array, NullArray, StringArray, TimestampMillisecondArray,
        TimestampNanosecondArray,
    };
    use tempfile::{NamedTempFile, TempPath};

    use crate::engine::Datum;
    use crate::value::parse_datum;

    fn written(bytes: &[u8]) -> TempPath {
        let path = NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn parquet(batch: &RecordBatch) -> TempPath {
        let mut bytes = Vec::new();
        let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        written(&bytes)
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
        let path = parquet(&batch);
        let mut file = ImportFile::open(&path, FileKind::Parquet).unwrap();
        assert_eq!(file.rows_total(), Some(2));
        assert_eq!(
            file.create_table("t", "id").unwrap(),
            "CREATE TABLE \"t\" (\"id\" bigint, \"price\" numeric(10,2), \"name\" text, \"day\" date, \"note\" text, \"nothing\" bigint, PRIMARY KEY (\"id\"))"
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
    }

    #[test]
    fn dates_bytes_and_moments_of_a_parquet_file_are_kept() {
        let moments = TimestampMillisecondArray::from(vec![Some(1), Some(-62_135_596_800_001)]);
        let whole = TimestampNanosecondArray::from(vec![Some(1_000), None]);
        let batch = RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef),
            ("day", Arc::new(Date32Array::from(vec![-800_000, i32::MAX]))),
            ("picture", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"\x00\xff\"".as_slice()), None]))),
            ("at", Arc::new(moments.with_timezone("+02:00"))),
            ("whole", Arc::new(whole)),
        ])
        .unwrap();
        let path = parquet(&batch);
        let mut file = ImportFile::open(&path, FileKind::Parquet).unwrap();
        let definition = file.create_table("t", "id").unwrap();
        for column in ["\"day\" date", "\"picture\" bytea", "\"at\" timestamp with time zone"] {
            assert!(definition.contains(column), "{definition}");
        }
        let csv = String::from_utf8(file.next_chunk().unwrap().unwrap().csv).unwrap();
        let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        assert!(lines[0][1].ends_with(" BC"), "{csv}");
        assert_eq!(parse_datum(lines[0][1], ColumnType::Date, Zone::UTC).unwrap(), Datum::Date(-800_000));
        assert_eq!((lines[1][1], lines[0][2], lines[1][2]), ("infinity", "\"\\x00ff22\"", ""));
        assert_eq!((lines[0][3], lines[1][3]), ("1970-01-01 00:00:00.001+00", "0001-12-31 23:59:59.999+00 BC"));
        assert_eq!((lines[0][4], lines[1][4]), ("1970-01-01 00:00:00.000001", ""));
    }

    #[test]
    fn nanoseconds_that_a_column_cannot_hold_are_refused() {
        let batch = RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef),
            ("at", Arc::new(TimestampNanosecondArray::from(vec![1_001]))),
        ])
        .unwrap();
        let path = parquet(&batch);
        let Err(error) = ImportFile::open(&path, FileKind::Parquet).unwrap().next_chunk() else { panic!("rounded") };
        assert!(error.to_string().contains("column at: a timestamp has nanoseconds"), "{error}");
    }

    /// All lines of a CSV file determine its types.
    #[test]
    fn a_text_far_behind_decides_the_type() {
        let lines: Vec<String> = (1..20_000).map(|n| format!("{n},{n}\n")).collect();
        let lines = lines.concat();
        let path = written(format!("id,code\n{lines}20000,007\n").as_bytes());
        let file = ImportFile::open(&path, FileKind::Csv).unwrap();
        assert_eq!(
            file.create_table("t", "id").unwrap(),
            "CREATE TABLE \"t\" (\"id\" bigint, \"code\" text, PRIMARY KEY (\"id\"))"
        );
    }

    #[test]
    fn a_file_that_is_not_what_it_says_is_refused() {
        let path = written(b"hello");
        let Err(error) = ImportFile::open(&path, FileKind::Parquet) else { panic!("opened") };
        assert!(error.to_string().contains("not readable as Parquet"), "{error}");
        let missing = ImportFile::open(Path::new("/nowhere/rows.csv"), FileKind::Csv).err().unwrap();
        assert!(matches!(missing, ImportError::Io(..)));
    }

    #[test]
    fn a_key_column_that_is_not_there_is_named() {
        let path = written(b"a,b\n1,x\n");
        let file = ImportFile::open(&path, FileKind::Csv).unwrap();
        assert!(file.create_table("t", "c").unwrap_err().to_string().contains("it has a, b"));
    }
}
