//! A join of two CSV files, for `scripts/join-oracle`, which runs the same join in DuckDB:
//! `join_csv BUILD PROBE --keys int64,text --kind left --budget-kib 1024 [--algorithm radix] [--nulls-equal] [--threads 2]
//! [--seed 7]`
//!
//! Both files have the key columns first, a column of row numbers last, and no header line. An empty field is null.
//! Prints a line for each row: the build row's number, the probe row's number, the mark. A field that the row does not
//! have is empty.
#![allow(missing_docs)]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::csv::ReaderBuilder;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use farhold_join::{Join, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run, by_name};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1)).cloned();
    let number = |flag: &str, default: u64| value(flag).map_or(Ok(default), |text| text.parse::<u64>());
    let keys: Vec<DataType> =
        value("--keys").ok_or("--keys")?.split(',').map(key_type).collect::<Option<_>>().ok_or("an unknown type")?;
    let kind = kind(&value("--kind").ok_or("--kind")?).ok_or("an unknown kind")?;

    let mut fields: Vec<Field> =
        keys.iter().enumerate().map(|(n, kind)| Field::new(format!("k{n}"), kind.clone(), true)).collect();
    fields.push(Field::new("number", DataType::Int64, false));
    let schema = Arc::new(Schema::new(fields));
    let read = |path: &str| -> Result<Vec<RecordBatch>, Box<dyn Error>> {
        let reader = ReaderBuilder::new(schema.clone()).with_batch_size(97).build(File::open(path)?)?;
        Ok(reader.collect::<Result<_, _>>()?)
    };
    let (build, probe) = (read(&args[0])?, read(&args[1])?);
    let on = (0..keys.len()).map(|column| (column, column)).collect();
    let spec = JoinSpec {
        null_equals_null: args.iter().any(|arg| arg == "--nulls-equal"),
        ..JoinSpec::new(schema.clone(), schema.clone(), on, kind)
    };
    let options = JoinOptions {
        algorithm: value("--algorithm").map(|name| by_name(&name).ok_or("an unknown algorithm")).transpose()?,
        run: Run { seed: number("--seed", 1)?, ..Run::with_threads(number("--threads", 1)? as usize) },
        ..JoinOptions::new(MemoryPool::new(number("--budget-kib", 1 << 20)? << 10))
    };
    let mut join = Join::new(spec, options)?;
    build.iter().try_for_each(|batch| join.push_build(batch))?;
    join.finish_build()?;
    for batch in &probe {
        join.push_probe(batch)?;
        print(&mut join)?;
    }
    join.finish_probe()?;
    print(&mut join)
}

fn key_type(name: &str) -> Option<DataType> {
    Some(match name {
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "date" => DataType::Date32,
        "decimal" => DataType::Decimal128(20, 2),
        "text" => DataType::Utf8,
        "view" => DataType::Utf8View,
        "boolean" => DataType::Boolean,
        _ => return None,
    })
}

fn kind(name: &str) -> Option<JoinKind> {
    Some(match name {
        "inner" => JoinKind::Inner,
        "left" => JoinKind::Left,
        "right" => JoinKind::Right,
        "full" => JoinKind::Full,
        "left-semi" => JoinKind::LeftSemi,
        "right-semi" => JoinKind::RightSemi,
        "left-anti" => JoinKind::LeftAnti,
        "right-anti" => JoinKind::RightAnti,
        "left-mark" => JoinKind::LeftMark,
        "right-mark" => JoinKind::RightMark,
        _ => return None,
    })
}

/// Prints the rows that the join hands out. Columns named `number` are the build side's and the probe side's, in this
/// order, or that of the only side; the caller in Python knows which.
fn print(join: &mut Join) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    while let Some(batch) = join.next_output()? {
        let schema = batch.schema();
        let columns: Vec<usize> = (0..schema.fields().len())
            .filter(|&column| matches!(schema.field(column).name().as_str(), "number" | "mark"))
            .collect();
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|&column| cell(batch.column(column), row)).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
    }
    Ok(())
}

fn cell(column: &dyn Array, row: usize) -> String {
    match column.data_type() {
        _ if column.is_null(row) => String::new(),
        DataType::Boolean => column.as_boolean().value(row).to_string(),
        _ => column.as_primitive::<Int64Type>().value(row).to_string(),
    }
}
