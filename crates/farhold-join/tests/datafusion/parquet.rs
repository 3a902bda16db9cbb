//! Tables in Parquet files.

use std::fs::File;
use std::path::Path;

use arrow::array::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

/// Row groups and pages so small that a filter leaves some of them empty.
pub fn write(folder: &Path, batch: &RecordBatch) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(5000))
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(100)
        .build();
    for (number, start) in (0..batch.num_rows()).step_by(12_000).enumerate() {
        let file = File::create(folder.join(format!("{number}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.clone())).unwrap();
        writer.write(&batch.slice(start, 12_000.min(batch.num_rows() - start))).unwrap();
        writer.close().unwrap();
    }
}

pub async fn register(context: &SessionContext, name: &str, folder: &Path) {
    let options = ParquetReadOptions::default();
    context.register_parquet(name, folder.to_str().unwrap(), options).await.unwrap();
}
