//! Arrays with PostgreSQL's semantics, where DataFusion's functions and Arrow's casts differ.
//!
//! | expression | DataFusion | here, as in PostgreSQL |
//! |---|---|---|
//! | `a[n]` | n below 1 counts from the end; `array_agg(x)[n]` is `nth_value` | NULL; an element of the result of `array_agg` |
//! | `a[n]` of an array of arrays | an array | NULL: an element needs a subscript for each dimension |
//! | `a[m:n]` | numbers below 1 count from the end | the existing elements from `m` to `n` |
//! | `array_remove`, `array_replace` | the first such element; NULL if the element is NULL | all such elements, NULLs too |
//! | `a @> b` | a NULL in `b` is found in `a` | a NULL equals nothing |
//! | `a < b` and other comparisons | NULL is below other elements | above them |
//! | `array_dims` | the lengths | `[1:2]` for each dimension |
//! | `array_to_string` | Arrow's formats | the formats that clients receive |
//! | `unnest` of an array of arrays | arrays | their elements |
//! | casts of arrays, and of texts to arrays | Arrow's; the text becomes the only element | element by element ([`casts`]) |
//!
//! The number of dimensions is part of an array's type here, so a cast refuses a text with several dimensions.

mod casts;
mod functions;
mod subscripts;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, DFSchema};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Unnest};
use datafusion::prelude::SessionContext;

use super::quantified::leaf;
use crate::SqlError;

pub(super) use casts::{cast_typed, printed, read_beside};
pub(super) use functions::ordered;
pub(super) use subscripts::Subscripts;

/// Registers the functions.
pub(super) fn register(context: &SessionContext) {
    functions::register(context);
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Whether it is an array type whose elements are arrays.
fn is_deep(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            leaf(element.data_type()).is_some()
        }
        _ => false,
    }
}

/// `unnest` makes rows of all elements of an array, of nested arrays too.
pub(super) fn unnested(unnest: Unnest) -> Result<LogicalPlan> {
    let schema: &DFSchema = unnest.input.schema();
    let is_deep = |at: usize| {
        let mut of_column = unnest.list_type_columns.iter().filter(|(list, _)| *list == at).peekable();
        of_column.peek().is_some() && of_column.all(|(_, how)| how.depth == 1) && is_deep(schema.field(at).data_type())
    };
    if !(0..schema.fields().len()).any(is_deep) {
        return Ok(LogicalPlan::Unnest(unnest));
    }
    let item = |(at, (qualifier, field)): (usize, (Option<&_>, &Arc<Field>))| {
        let column = Expr::Column(Column::from((qualifier, field)));
        if is_deep(at) {
            functions::leaves_of(column).alias_qualified(qualifier.cloned(), field.name())
        } else {
            column
        }
    };
    let items: Vec<Expr> = schema.iter().enumerate().map(item).collect();
    let input = LogicalPlanBuilder::from(LogicalPlan::clone(&unnest.input)).project(items)?.build()?;
    Unnest::try_new(Arc::new(input), unnest.exec_columns, unnest.options).map(LogicalPlan::Unnest)
}

/// The positions of a list's elements among its array's values.
fn places(lists: &ListArray, row: usize) -> std::ops::Range<u64> {
    let offsets = lists.value_offsets();
    let place = |offset: i32| u64::try_from(offset).unwrap_or(0);
    place(offsets[row])..place(offsets[row + 1])
}

/// Lists of selected values, given by their positions; `None` for NULL.
fn picked(values: &ArrayRef, rows: impl Iterator<Item = Option<Vec<u64>>>) -> Result<ListArray> {
    let (mut all, mut lengths, mut valid) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        valid.push(row.is_some());
        let row = row.unwrap_or_default();
        lengths.push(row.len());
        all.extend(row);
    }
    let values = take(values, &UInt64Array::from(all), None)?;
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Ok(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), values, Some(NullBuffer::from(valid)))?)
}
