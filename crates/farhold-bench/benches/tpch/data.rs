//! The tables as Parquet files: one folder a table, files of about a million rows, made once and kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use tpchgen::generators as rows;
use tpchgen_arrow as arrow_rows;
use tpchgen_arrow::RecordBatchIterator;

use crate::Failure;

/// Rows of a row group: what one thread of an engine takes at a time.
const ROW_GROUP_ROWS: usize = 1 << 18;

type Generator = fn(f64, i32, i32) -> Box<dyn RecordBatchIterator>;

macro_rules! generator {
    ($rows:ident, $arrow:ident) => {
        |scale, part, parts| Box::new(arrow_rows::$arrow::new(rows::$rows::new(scale, part, parts)))
    };
}

/// Table, rows at scale factor 1 (for the number of files), generator. `nation` and `region` do not grow.
const TABLES: [(&str, f64, Generator); 8] = [
    ("customer", 150e3, generator!(CustomerGenerator, CustomerArrow)),
    ("lineitem", 6e6, generator!(LineItemGenerator, LineItemArrow)),
    ("nation", 0.0, generator!(NationGenerator, NationArrow)),
    ("orders", 1.5e6, generator!(OrderGenerator, OrderArrow)),
    ("part", 200e3, generator!(PartGenerator, PartArrow)),
    ("partsupp", 800e3, generator!(PartSuppGenerator, PartSuppArrow)),
    ("region", 0.0, generator!(RegionGenerator, RegionArrow)),
    ("supplier", 10e3, generator!(SupplierGenerator, SupplierArrow)),
];

/// The folder of a scale factor's files under `root`, which are made if they are not there yet.
pub fn folder(root: &Path, scale: f64) -> Result<PathBuf, Failure> {
    let folder = root.join(format!("sf{scale}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    // A folder has its final name only once it is whole.
    let unfinished = root.join(format!("sf{scale}.unfinished"));
    let _ = fs::remove_dir_all(&unfinished);
    let mut files = Vec::new();
    for (table, rows_at_1, generator) in TABLES {
        fs::create_dir_all(unfinished.join(table))?;
        let parts = ((rows_at_1 * scale / 1e6).ceil() as i32).max(1);
        for part in 1..=parts {
            let path = unfinished.join(table).join(format!("{part:03}.parquet"));
            files.push((path, generator, part, parts));
        }
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..std::thread::available_parallelism()?.get())
            .map(|_| {
                scope.spawn(|| -> Result<(), Failure> {
                    while let Some((path, generator, part, parts)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        write(path, generator(scale, *part, *parts))?;
                    }
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })?;
    fs::rename(&unfinished, &folder)?;
    Ok(folder)
}

fn write(path: &Path, batches: Box<dyn RecordBatchIterator>) -> Result<(), Failure> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, batches.schema().clone(), Some(properties))?;
    for batch in batches {
        writer.write(&batch)?;
    }
    writer.close()?;
    Ok(())
}
