//! Writes the population of TPC-C and of CH-benCHmark's tables as CSV files, for other databases to load:
//! `cargo run --release -p farhold-bench --example population -- DIRECTORY WAREHOUSES [tiny]`

use farhold_bench::workload::tpcc::Scale;
use farhold_bench::workload::tpcc::population::{Population, item_units, warehouse_units};
use farhold_bench::workload::{ch, tpcc};
use farhold_store::row::{Datum, Schema};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A fixed date, so that a seed is a population: 2026-01-01.
const NOW_US: i64 = 1_767_225_600_000_000;
const SEED: u64 = 42;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, directory, warehouses, rest @ ..] = arguments.as_slice() else {
        return Err("usage: population DIRECTORY WAREHOUSES [tiny]".into());
    };
    let warehouses = warehouses.parse()?;
    let scale = if rest.is_empty() { Scale::full(warehouses) } else { Scale::tiny(warehouses) };
    let specs = tpcc::schema::TABLES.iter().chain(&ch::TABLES);
    let mut tables = Vec::new();
    for spec in specs {
        let file = File::create(Path::new(directory).join(format!("{}.csv", spec.name)))?;
        let mut table = (spec.schema(), BufWriter::new(file));
        let names: Vec<_> = spec.columns.iter().map(|c| c.0).collect();
        writeln!(table.1, "{}", names.join(","))?;
        tables.push(table);
    }
    let mut population = Population::new(scale, SEED, NOW_US);
    let units = item_units(scale).chain((1..=scale.warehouses).flat_map(|w_id| warehouse_units(scale, w_id)));
    for unit in units {
        for (table, key, value) in population.rows(unit).iter() {
            let (schema, to) = &mut tables[table as usize];
            write_row(schema, key, value, to)?;
        }
    }
    for (table, key, value) in ch::rows(SEED)? {
        let (schema, to) = &mut tables[tpcc::schema::TABLES.len() + table as usize];
        write_row(schema, &key, &value, to)?;
    }
    Ok(())
}

fn write_row(schema: &Schema, key: &[u8], value: &[u8], to: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let mut row = Vec::new();
    schema.decode_row(key, value, &mut row)?;
    for (i, datum) in row.iter().enumerate() {
        if i > 0 {
            to.write_all(b",")?;
        }
        match datum {
            Datum::Null => {}
            Datum::SmallInt(v) => write!(to, "{v}")?,
            Datum::Int(v) => write!(to, "{v}")?,
            Datum::BigInt(v) => write!(to, "{v}")?,
            Datum::Decimal { unscaled, scale } => {
                let sign = if *unscaled < 0 { "-" } else { "" };
                let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = usize::from(*scale) + 1);
                let (whole, fraction) = digits.split_at(digits.len() - usize::from(*scale));
                write!(to, "{sign}{whole}.{fraction}")?;
            }
            Datum::Text(v) => write!(to, "\"{v}\"")?, // no text of these tables holds a quote
            Datum::Timestamp(NOW_US) => write!(to, "2026-01-01 00:00:00")?,
            other => return Err(format!("no table has a {}", other.kind()).into()),
        }
    }
    Ok(writeln!(to)?)
}
