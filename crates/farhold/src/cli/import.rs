//! `farhold import`: loads a file into a table, with progress.

use std::io::{IsTerminal, Write};
use std::pin::pin;

use bytes::Bytes;
use farhold_sql::import::{FileKind, ImportFile};
use futures::SinkExt;
use serde_json::json;

use super::args::{FileFormat, ImportArgs};
use super::client;
use super::clock::Stopwatch;

/// Runs the command; the error is for a person.
pub async fn run(args: &ImportArgs, json: bool) -> Result<(), String> {
    let kind = kind_of(args)?;
    let table = match &args.table {
        Some(table) => table.clone(),
        None => args.file.file_stem().map(|s| s.to_string_lossy().to_lowercase()).ok_or_else(|| {
            format!("{} has no name that the table could have; say --table NAME", args.file.display())
        })?,
    };
    let mut file = ImportFile::open(&args.file, kind).map_err(|error| error.to_string())?;
    let connection = client::connect(&args.connect.connect).await?;
    let database = |error: tokio_postgres::Error| client::describe(&error);
    if let Some(key) = &args.create {
        let statement = file.create_table(&table, key).map_err(|error| error.to_string())?;
        connection.client.batch_execute(&statement).await.map_err(database)?;
    }
    let started = Stopwatch::start();
    let rows = match load(&connection.client, &mut file, &table, !json).await {
        Ok(rows) => rows,
        Err(error) if args.create.is_some() => {
            // The table is empty, and the same command would not make it again.
            return Err(match connection.client.batch_execute(&ImportFile::drop_table(&table)).await {
                Ok(()) => format!("{error}; the table {table} is dropped again"),
                Err(why) => format!("{error}; the table {table} stays ({})", client::describe(&why)),
            });
        }
        Err(error) => return Err(error),
    };
    let seconds = started.seconds();
    if json {
        println!("{}", json!({ "table": table, "rows": rows, "seconds": seconds }));
    } else {
        println!("{rows} rows into {table} in {seconds:.1} s ({:.0} rows/s)", rows as f64 / seconds.max(1e-9));
    }
    Ok(())
}

/// Copies the file's rows into the table, all or none.
async fn load(
    client: &tokio_postgres::Client,
    file: &mut ImportFile,
    table: &str,
    with_progress: bool,
) -> Result<u64, String> {
    let database = |error: tokio_postgres::Error| client::describe(&error);
    let copy = client.copy_in::<_, Bytes>(&file.copy_statement(table)).await.map_err(database)?;
    let mut copy = pin!(copy);
    let (mut rows, mut bytes) = (0, 0);
    let live = with_progress && std::io::stderr().is_terminal();
    while let Some(chunk) = file.next_chunk().map_err(|error| error.to_string())? {
        rows += chunk.rows.unwrap_or(0);
        bytes += chunk.file_bytes;
        if let Err(error) = copy.send(Bytes::from(chunk.csv)).await {
            return Err(database(error));
        }
        let (done, total) = file.rows_total().map_or((bytes, file.bytes_total()), |total| (rows, total));
        if live {
            eprint!("\r{table}: {:>3} %", done * 100 / total.max(1));
            let _ = std::io::stderr().flush();
        }
    }
    let rows = copy.as_mut().finish().await.map_err(database)?;
    if live {
        eprintln!();
    }
    Ok(rows)
}

fn kind_of(args: &ImportArgs) -> Result<FileKind, String> {
    if let Some(format) = args.format {
        return Ok(match format {
            FileFormat::Csv => FileKind::Csv,
            FileFormat::Parquet => FileKind::Parquet,
        });
    }
    match args.file.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("csv") => Ok(FileKind::Csv),
        Some("parquet" | "pq") => Ok(FileKind::Parquet),
        _ => Err(format!(
            "{} ends in neither .csv nor .parquet; say --format csv or --format parquet",
            args.file.display()
        )),
    }
}
