//! Functions of arrays, and the order of arrays.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, Scalar, StringViewArray, make_comparator};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{SortOptions, concat};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::super::added::{not_taken, on_arrays};
use super::super::floats;
use super::super::functions::null_of;
use super::super::quantified::{common, leaf, leaves, with_leaf};
use super::{external, is_deep, picked, places};
use crate::SqlError;
use crate::engine::scalar::Comparison;

/// Registers the functions that have SQL names.
pub(super) fn register(context: &SessionContext) {
    for kind in [Kind::Remove, Kind::Replace, Kind::Dims] {
        context.register_udf(function(kind));
    }
}

fn function(kind: Kind) -> ScalarUDF {
    let alias = match kind {
        Kind::Remove => Some("list_remove"),
        Kind::Replace => Some("list_replace"),
        Kind::Dims => Some("list_dims"),
        Kind::Contains | Kind::Leaves | Kind::Ordered(_) => None,
    };
    let aliases = alias.into_iter().map(str::to_owned).collect();
    ScalarUDF::from(OfArrays { kind, signature: Signature::user_defined(Volatility::Immutable), aliases })
}

/// `whole @> part`
pub(super) fn contains(whole: Expr, part: Expr) -> Expr {
    function(Kind::Contains).call(vec![whole, part])
}

/// `a < b` and the other comparisons of two arrays.
pub(in crate::engine::query) fn ordered(a: Expr, comparison: Comparison, b: Expr) -> Expr {
    function(Kind::Ordered(comparison)).call(vec![a, b])
}

/// An array of all elements, of nested arrays too.
pub(super) fn leaves_of(array: Expr) -> Expr {
    function(Kind::Leaves).call(vec![array])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Contains,
    Dims,
    Leaves,
    Ordered(Comparison),
    Remove,
    Replace,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfArrays {
    kind: Kind,
    signature: Signature,
    /// All names of DataFusion's function: a name left out would still refer to it.
    aliases: Vec<String>,
}

impl OfArrays {
    /// The argument types: an array, and elements of it.
    fn with_elements(&self, array: &DataType, elements: &[DataType]) -> Result<Vec<DataType>> {
        if is_deep(array) {
            let message = format!("{} of an array of several dimensions", self.name());
            return Err(external(SqlError::unsupported(message)));
        }
        if leaf(array).is_none() && !array.is_null() {
            return Err(not_taken(self.name()));
        }
        let own = leaf(array).unwrap_or(&DataType::Null);
        let both = |a: DataType, b: &DataType| match (&a, b) {
            // An untyped string literal, which will be converted: texts were refused before.
            (a, b) if b.is_string() && !a.is_string() && !a.is_null() => Ok(a.clone()),
            (a, b) => common(a, b).ok_or_else(|| not_taken(self.name())),
        };
        let element = elements.iter().try_fold(own.clone(), both)?;
        let element = if element.is_null() { DataType::Utf8View } else { element };
        let mut types = vec![DataType::new_list(element.clone(), true)];
        types.extend(elements.iter().map(|_| element.clone()));
        Ok(types)
    }
}

impl ScalarUDFImpl for OfArrays {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Contains => "farhold_array_contains",
            Kind::Dims => "array_dims",
            Kind::Leaves => "farhold_leaves",
            Kind::Ordered(Comparison::Less) => "farhold_array_lt",
            Kind::Ordered(Comparison::LessEqual) => "farhold_array_le",
            Kind::Ordered(Comparison::Greater) => "farhold_array_gt",
            Kind::Ordered(Comparison::GreaterEqual) => "farhold_array_ge",
            Kind::Ordered(Comparison::Equal) => "farhold_array_eq",
            Kind::Ordered(Comparison::NotEqual) => "farhold_array_ne",
            Kind::Remove => "array_remove",
            Kind::Replace => "array_replace",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        match (self.kind, arguments) {
            (Kind::Remove, [array, element]) => self.with_elements(array, std::slice::from_ref(element)),
            (Kind::Replace, [array, elements @ ..]) if elements.len() == 2 => self.with_elements(array, elements),
            (Kind::Dims | Kind::Leaves, [array]) => match leaf(array) {
                Some(element) => Ok(vec![with_leaf(array, element)]),
                None if array.is_null() => Ok(vec![DataType::Null]),
                None => Err(not_taken(self.name())),
            },
            (Kind::Contains | Kind::Ordered(_), [a, b]) => {
                let (Some(of_a), Some(of_b)) = (leaf(a), leaf(b)) else { return Err(not_taken(self.name())) };
                let common = common(of_a, of_b).ok_or_else(|| not_taken(self.name()))?;
                let common = if common.is_null() { DataType::Utf8View } else { common };
                Ok(vec![with_leaf(a, &common), with_leaf(b, &common)])
            }
            _ => Err(not_taken(self.name())),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Contains | Kind::Ordered(_) => DataType::Boolean,
            Kind::Dims => DataType::Utf8View,
            Kind::Leaves => {
                leaf(&arguments[0]).map_or(DataType::Null, |element| DataType::new_list(element.clone(), true))
            }
            Kind::Remove | Kind::Replace => arguments[0].clone(),
        })
    }

    fn is_strict(&self) -> bool {
        !matches!(self.kind, Kind::Remove | Kind::Replace)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.is_strict() {
            if let Some(null) = null_of(&arguments)? {
                return Ok(null);
            }
        } else if arguments.args.iter().any(|argument| argument.data_type().is_null()) {
            // Untyped NULLs, by which the optimiser evaluates the function for rows without a join partner.
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from(arguments.return_field.data_type())?));
        }
        on_arrays(&arguments, |of| match (self.kind, of) {
            (Kind::Remove, [lists, elements]) => removed(lists.as_list(), elements),
            (Kind::Replace, [lists, from, to]) => replaced(lists.as_list(), from, to),
            (Kind::Dims, [lists]) => Ok(dimensions(lists.as_list())),
            (Kind::Leaves, [lists]) => flat(lists.as_list(), arguments.return_field.data_type()),
            (Kind::Contains, [whole, part]) => contained(whole.as_list(), part.as_list()),
            (Kind::Ordered(comparison), [a, b]) => compared(a.as_list(), comparison, b.as_list()),
            _ => Err(not_taken(self.name())),
        })
    }
}

/// Which elements of a row's array equal the wanted one; NULL equals NULL here.
fn alike(keys: &ArrayRef, lists: &ListArray, wanted: &ArrayRef, row: usize) -> Result<BooleanArray> {
    let place = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
    let all = places(lists, row);
    let elements = keys.slice(place(all.start), place(all.end - all.start));
    Ok(not_distinct(&elements, &Scalar::new(wanted.slice(row, 1)))?)
}

fn removed(lists: &ListArray, elements: &ArrayRef) -> Result<ArrayRef> {
    let (keys, wanted) = (floats::keys(lists.values()), floats::keys(elements));
    let row = |row: usize| -> Result<Option<Vec<u64>>> {
        if lists.is_null(row) {
            return Ok(None);
        }
        let alike = alike(&keys, lists, &wanted, row)?;
        Ok(Some(places(lists, row).zip(alike.values()).filter_map(|(place, is)| (!is).then_some(place)).collect()))
    };
    let rows = (0..lists.len()).map(row).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(picked(lists.values(), rows.into_iter())?))
}

fn replaced(lists: &ListArray, from: &ArrayRef, to: &ArrayRef) -> Result<ArrayRef> {
    let (keys, wanted) = (floats::keys(lists.values()), floats::keys(from));
    // The new elements follow the old values.
    let values = concat(&[lists.values().as_ref(), to.as_ref()])?;
    let first = lists.values().len();
    let row = |row: usize| -> Result<Option<Vec<u64>>> {
        if lists.is_null(row) {
            return Ok(None);
        }
        let alike = alike(&keys, lists, &wanted, row)?;
        let put_in = (first + row) as u64;
        Ok(Some(places(lists, row).zip(alike.values()).map(|(place, is)| if is { put_in } else { place }).collect()))
    };
    let rows = (0..lists.len()).map(row).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(picked(&values, rows.into_iter())?))
}

/// The length of an array in each dimension. The arrays of one dimension have equal lengths, so the first is
/// representative.
fn lengths(array: ArrayRef) -> Vec<usize> {
    let mut lengths = vec![array.len()];
    let mut array = array;
    while matches!(array.data_type(), DataType::List(_)) && !array.is_empty() {
        let first = array.as_list::<i32>().value(0);
        lengths.push(first.len());
        array = first;
    }
    lengths
}

fn dimensions(lists: &ListArray) -> ArrayRef {
    let text = |row: usize| {
        let lengths = lists.is_valid(row).then(|| lengths(lists.value(row))).filter(|lengths| lengths[0] > 0)?;
        let written = lengths.into_iter().map(|length| format!("[1:{length}]"));
        Some(written.collect::<Vec<_>>().concat())
    };
    Arc::new((0..lists.len()).map(text).collect::<StringViewArray>())
}

fn flat(lists: &ListArray, data_type: &DataType) -> Result<ArrayRef> {
    let mut all = Vec::new();
    let mut rows = Vec::new();
    let mut count: u64 = 0;
    for row in 0..lists.len() {
        if lists.is_null(row) {
            rows.push(None);
            continue;
        }
        let elements = leaves(&lists.value(row))?;
        let end = count + elements.len() as u64;
        rows.push(Some((count..end).collect()));
        count = end;
        all.push(elements);
    }
    if all.is_empty() {
        return Ok(arrow::array::new_null_array(data_type, lists.len()));
    }
    let all: Vec<&dyn Array> = all.iter().map(AsRef::as_ref).collect();
    Ok(Arc::new(picked(&concat(&all)?, rows.into_iter())?))
}

/// Whether arrays contain all elements of others. A NULL equals nothing.
fn contained(whole: &ListArray, part: &ListArray) -> Result<ArrayRef> {
    let row = |row: usize| -> Result<Option<bool>> {
        if whole.is_null(row) || part.is_null(row) {
            return Ok(None);
        }
        let (whole, part) = (leaves(&whole.value(row))?, leaves(&part.value(row))?);
        if part.is_empty() {
            return Ok(Some(true));
        }
        if part.null_count() > 0 {
            return Ok(Some(false));
        }
        let converter = RowConverter::new(vec![SortField::new(whole.data_type().clone())])?;
        let (whole, part) =
            (converter.convert_columns(&[floats::keys(&whole)])?, converter.convert_columns(&[floats::keys(&part)])?);
        let known: HashSet<&[u8]> = whole.iter().map(|element| element.data()).collect();
        Ok(Some(part.iter().all(|element| known.contains(element.data()))))
    };
    let rows = (0..whole.len()).map(row).collect::<Result<BooleanArray>>()?;
    Ok(Arc::new(rows))
}

/// Compares arrays by their first differing elements, with NULL above all others; then by the number of elements, and
/// by the dimensions.
fn compared(a: &ListArray, comparison: Comparison, b: &ListArray) -> Result<ArrayRef> {
    let row = |row: usize| -> Result<Option<bool>> {
        if a.is_null(row) || b.is_null(row) {
            return Ok(None);
        }
        let (a, b) = (a.value(row), b.value(row));
        let (of_a, of_b) = (floats::keys(&leaves(&a)?), floats::keys(&leaves(&b)?));
        let compare = make_comparator(&of_a, &of_b, SortOptions { descending: false, nulls_first: false })?;
        let by_elements = (0..of_a.len().min(of_b.len())).map(|at| compare(at, at)).find(|of| of.is_ne());
        let by_lengths = || {
            let (a, b) = (lengths(a), lengths(b));
            of_a.len().cmp(&of_b.len()).then_with(|| a.len().cmp(&b.len())).then_with(|| a.cmp(&b))
        };
        let order = by_elements.unwrap_or_else(by_lengths);
        Ok(Some(match comparison {
            Comparison::Equal => order == Ordering::Equal,
            Comparison::NotEqual => order != Ordering::Equal,
            Comparison::Less => order == Ordering::Less,
            Comparison::LessEqual => order != Ordering::Greater,
            Comparison::Greater => order == Ordering::Greater,
            Comparison::GreaterEqual => order != Ordering::Less,
        }))
    };
    let rows = (0..a.len()).map(row).collect::<Result<BooleanArray>>()?;
    Ok(Arc::new(rows))
}
