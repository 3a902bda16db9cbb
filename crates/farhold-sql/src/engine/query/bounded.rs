//! Text functions whose result may be far longer than what they are given.
//!
//! What a function makes of a batch is in no operator's reservation. So before `repeat`, `lpad` and `rpad` make theirs, its bytes are taken
//! from the queries' memory and given back at once: a result for which there is no room is refused (53200), and one value has at most 1 GiB,
//! as in PostgreSQL (54000).

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use datafusion::prelude::SessionContext;

use super::checked::{self, Check};
use crate::{SqlError, SqlState};

/// Bytes of one value.
const VALUE_BYTES_MAX: u64 = (1 << 30) - 1;

/// Puts the functions in the place of DataFusion's.
pub(super) fn register(context: &SessionContext) {
    let pool = Arc::clone(&context.runtime_env().memory_pool);
    checked::register(context, &["repeat", "lpad", "rpad"], &Bounds { pool });
}

#[derive(Clone, Debug)]
struct Bounds {
    pool: Arc<dyn MemoryPool>,
}

impl Check for Bounds {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        let is_repeat = inner.name() == "repeat";
        let mut all = 0_u64;
        if let [text, count, ..] = arguments.args.as_slice() {
            let fill = arguments.args.get(2);
            for row in 0..rows {
                let count = u64::try_from(number(count, row)).unwrap_or(0);
                let bytes = if is_repeat {
                    size(text, row).bytes.saturating_mul(count)
                } else {
                    padded_bytes(
                        size(text, row),
                        fill.map_or(Size { bytes: 1, characters: 1 }, |f| size(f, row)),
                        count,
                    )
                };
                // PostgreSQL takes room for the longest characters.
                let taken = if is_repeat { bytes } else { count.saturating_mul(4) };
                if taken > VALUE_BYTES_MAX {
                    let error = SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large");
                    return Err(DataFusionError::External(Box::new(error)));
                }
                all = all.saturating_add(bytes);
            }
        }
        let room = MemoryConsumer::new(inner.name()).register(&self.pool);
        room.try_grow(usize::try_from(all).unwrap_or(usize::MAX))?;
        inner.invoke_with_args(arguments)
    }
}

/// How long a text is.
#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    characters: u64,
}

/// The bytes of a text that is filled up to a count of characters, at most.
fn padded_bytes(text: Size, fill: Size, count: u64) -> u64 {
    let times = count.saturating_sub(text.characters).div_ceil(fill.characters.max(1));
    text.bytes.saturating_add(times.saturating_mul(fill.bytes))
}

/// A row's text; nothing of a null.
fn size(value: &ColumnarValue, row: usize) -> Size {
    let text = match value {
        ColumnarValue::Scalar(value) => value.try_as_str().flatten().unwrap_or_default(),
        ColumnarValue::Array(array) if array.is_null(row) => "",
        ColumnarValue::Array(array) => match array.data_type() {
            DataType::Utf8 => array.as_string::<i32>().value(row),
            DataType::LargeUtf8 => array.as_string::<i64>().value(row),
            DataType::Utf8View => array.as_string_view().value(row),
            _ => "",
        },
    };
    Size { bytes: text.len() as u64, characters: text.chars().count() as u64 }
}

/// A row's number; 0 of a null.
fn number(value: &ColumnarValue, row: usize) -> i64 {
    match value {
        ColumnarValue::Scalar(ScalarValue::Int64(number)) => number.unwrap_or(0),
        ColumnarValue::Array(array) if array.is_valid(row) && *array.data_type() == DataType::Int64 => {
            array.as_primitive::<Int64Type>().value(row)
        }
        _ => 0,
    }
}
