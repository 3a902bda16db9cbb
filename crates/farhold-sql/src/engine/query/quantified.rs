//! `x op ANY (array)` and `x op ALL (array)` if the statement does not list a few elements of the array itself: for a
//! parameter, a function's result, or a list of thousands.
//!
//! If an element decides the result, it is that. Otherwise the result is NULL if a comparison is NULL, and else that of
//! an empty array. Nested arrays are flattened to their elements. A text in place of the array has PostgreSQL's array
//! syntax; its elements have the type of `x`, or that of a third argument. Floats and intervals are compared by their
//! keys ([`floats`]).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar};
use arrow::compute::cast;
use arrow::compute::kernels::cmp;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{DFSchema, ScalarValue, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_fn::in_list;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, lit,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::{clocks, floats};
use crate::engine::scalar::Comparison;
use crate::engine::types::{TIMESTAMP, from_arrow, from_field, is_timestamptz, to_scalar};
use crate::engine::{ColumnType, Datum, OPERATOR_PREFIX};
use crate::value::{Zone, parse_datum, read_list};
use crate::{SqlError, SqlState};

/// The comparisons and their functions.
const FUNCTIONS: [(Comparison, &str); 6] = [
    (Comparison::Equal, "eq"),
    (Comparison::NotEqual, "ne"),
    (Comparison::Less, "lt"),
    (Comparison::LessEqual, "le"),
    (Comparison::Greater, "gt"),
    (Comparison::GreaterEqual, "ge"),
];

fn named(is_all: bool, name: &str) -> String {
    format!("{OPERATOR_PREFIX}{}_{name}", if is_all { "all" } else { "any" })
}

/// The function for `x op ANY (array)` or `x op ALL (array)`; `None` if the operator is not a comparison.
pub(super) fn function_of(op: &BinaryOperator, is_all: bool) -> Option<String> {
    let wanted = match op {
        BinaryOperator::Eq => Comparison::Equal,
        BinaryOperator::NotEq => Comparison::NotEqual,
        BinaryOperator::Lt => Comparison::Less,
        BinaryOperator::LtEq => Comparison::LessEqual,
        BinaryOperator::Gt => Comparison::Greater,
        BinaryOperator::GtEq => Comparison::GreaterEqual,
        _ => return None,
    };
    FUNCTIONS.iter().find(|(comparison, _)| *comparison == wanted).map(|(_, name)| named(is_all, name))
}

/// The function around `x` in `x = ANY (ARRAY[a, b])` and similar expressions. They are planned as `x IN (a, b)` and
/// comparisons, but typed like an array's elements: [`take_mark`] removes the function.
pub(super) fn mark() -> String {
    format!("{OPERATOR_PREFIX}of_array")
}

/// Whether the expression is compared with the elements of an array.
pub(super) fn is_marked(expression: &Expr) -> bool {
    matches!(expression, Expr::ScalarFunction(function) if function.func.inner().downcast_ref::<Mark>().is_some())
}

/// Removes the function [`mark`]. Returns whether it was there.
pub(super) fn take_mark(expression: &mut Expr) -> bool {
    let Expr::ScalarFunction(function) = expression else { return false };
    if function.func.inner().downcast_ref::<Mark>().is_none() {
        return false;
    }
    *expression = function.args.swap_remove(0);
    true
}

/// See [`mark`]. A running plan contains none.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Mark {
    name: String,
    signature: Signature,
}

impl ScalarUDFImpl for Mark {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&arguments.arg_fields[0]))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args[0].clone())
    }
}

/// Registers the functions.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Mark { name: mark(), signature: Signature::any(1, Volatility::Immutable) }));
    for (comparison, name) in FUNCTIONS {
        for is_all in [false, true] {
            let signature = Signature::user_defined(Volatility::Immutable);
            let (name, zone) = (named(is_all, name), Zone::UTC);
            context.register_udf(ScalarUDF::from(Quantified { comparison, is_all, name, zone, signature }));
        }
    }
}

/// The function with the session's time zone, if it is one of these.
pub(super) fn in_zone(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let quantified = function.inner().downcast_ref::<Quantified>().map(|of| Quantified {
        comparison: of.comparison,
        is_all: of.is_all,
        name: of.name.clone(),
        zone: clocks::zone(),
        signature: of.signature.clone(),
    });
    quantified.map_or(function, |quantified| Arc::new(ScalarUDF::from(quantified)))
}

/// The type to which an untyped string literal in place of `x` is converted, if the function is one of these. Only a
/// literal text may replace an array; a parameter becomes one.
pub(super) fn type_of_elements(function: &ScalarFunction, schema: &DFSchema) -> Result<Option<DataType>> {
    if function.func.inner().downcast_ref::<Quantified>().is_none() {
        return Ok(None);
    }
    let data_type = |argument: &Expr| argument.get_type(schema).ok();
    let [_, array, typed @ ..] = function.args.as_slice() else { return Ok(None) };
    let found = data_type(array);
    if found.as_ref().is_some_and(DataType::is_string) && !matches!(array, Expr::Literal(..) | Expr::Placeholder(_)) {
        return Err(external(no_array()));
    }
    Ok(match typed.first() {
        Some(element) => data_type(element),
        None => found.as_ref().and_then(leaf).cloned(),
    })
}

fn no_array() -> SqlError {
    SqlError::new(SqlState::WRONG_OBJECT_TYPE, "op ANY/ALL (array) requires array on right side")
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Quantified {
    comparison: Comparison,
    is_all: bool,
    name: String,
    /// The zone in which elements of a text are read.
    zone: Zone,
    signature: Signature,
}

impl ScalarUDFImpl for Quantified {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let [value, array, typed @ ..] = arguments else { return internal_err!("{} has two arguments", self.name) };
        let is_text = array.is_string() || array.is_null();
        let element = match (leaf(array), is_text) {
            (Some(element), _) => element,
            (None, true) => typed.first().unwrap_or(value),
            (None, false) => return Err(external(no_array())),
        };
        let Some(common) = common(value, element) else {
            let message = format!("operator does not exist: {value} {} {element}", self.comparison.sign());
            return Err(external(SqlError::new(SqlState::UNDEFINED_FUNCTION, message)));
        };
        let common = if common.is_null() { DataType::Utf8View } else { common };
        let array = if is_text { DataType::Utf8View } else { with_leaf(array, &common) };
        Ok([common, array].into_iter().chain(typed.iter().cloned()).collect())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    /// Turns a constant array into a list.
    fn simplify(&self, mut arguments: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let is_list = self.comparison == if self.is_all { Comparison::NotEqual } else { Comparison::Equal };
        let (true, [value, Expr::Literal(array, _), typed @ ..]) = (is_list, arguments.as_slice()) else {
            return Ok(ExprSimplifyResult::Original(arguments));
        };
        let (_, field) = value.to_field(info.schema())?;
        let element = typed.first().map(|typed| info.get_data_type(typed)).transpose()?;
        if field.data_type().is_null() {
            return Ok(ExprSimplifyResult::Original(arguments));
        }
        let Some(elements) = elements(&array.to_array()?, 0, &Wanted::of(&field, element.as_ref(), self.zone))? else {
            return Ok(ExprSimplifyResult::Simplified(lit(ScalarValue::Boolean(None))));
        };
        if elements.is_empty() {
            return Ok(ExprSimplifyResult::Simplified(lit(self.is_all)));
        }
        let list = (0..elements.len()).map(|at| ScalarValue::try_from_array(&elements, at).map(lit));
        let list = list.collect::<Result<Vec<Expr>>>()?;
        let mut value = arguments.swap_remove(0);
        if elements.data_type() != field.data_type() {
            value = Expr::Cast(Cast::new(Box::new(value), elements.data_type().clone()));
        }
        Ok(ExprSimplifyResult::Simplified(in_list(value, list, self.is_all)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let alike = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if alike { 1 } else { arguments.number_rows };
        let [values, arrays, ..] = arguments.args.as_slice() else {
            return internal_err!("{} has two arguments", self.name);
        };
        let element = arguments.arg_fields.get(2).map(|field| field.data_type());
        let wanted = Wanted::of(&arguments.arg_fields[0], element, self.zone);
        let values = values.to_array(rows)?;
        let answers: BooleanArray = match arrays {
            ColumnarValue::Scalar(array) => match elements(&array.to_array()?, 0, &wanted)? {
                Some(elements) => self.answers(&values, |_| Ok(Some(Arc::clone(&elements))))?,
                None => BooleanArray::new_null(rows),
            },
            ColumnarValue::Array(arrays) => self.answers(&values, |row| elements(arrays, row, &wanted))?,
        };
        Ok(if alike {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&answers, 0)?)
        } else {
            ColumnarValue::Array(Arc::new(answers))
        })
    }
}

impl Quantified {
    /// The result for each row. `of` returns the row's elements; without an array the result is NULL.
    fn answers(&self, values: &ArrayRef, of: impl Fn(usize) -> Result<Option<ArrayRef>>) -> Result<BooleanArray> {
        let mut keyed: Option<ArrayRef> = None;
        (0..values.len())
            .map(|row| {
                let Some(elements) = of(row)? else { return Ok(None) };
                if elements.is_empty() {
                    return Ok(Some(self.is_all));
                }
                if values.is_null(row) {
                    return Ok(None);
                }
                let is_known = |keyed: &ArrayRef| keyed.data_type() == elements.data_type();
                let keys = match keyed.take().filter(is_known) {
                    Some(keys) => keys,
                    None => floats::keys(&cast(values, elements.data_type())?),
                };
                let value = Scalar::new(keys.slice(row, 1));
                keyed = Some(keys);
                let elements = floats::keys(&elements);
                let compared = match self.comparison {
                    Comparison::Equal => cmp::eq(&value, &elements),
                    Comparison::NotEqual => cmp::neq(&value, &elements),
                    Comparison::Less => cmp::lt(&value, &elements),
                    Comparison::LessEqual => cmp::lt_eq(&value, &elements),
                    Comparison::Greater => cmp::gt(&value, &elements),
                    Comparison::GreaterEqual => cmp::gt_eq(&value, &elements),
                }?;
                let holds = compared.true_count();
                let decides = if self.is_all { compared.len() - compared.null_count() - holds } else { holds };
                Ok(match (decides, compared.null_count()) {
                    (0, 0) => Some(self.is_all),
                    (0, _) => None,
                    _ => Some(!self.is_all),
                })
            })
            .collect()
    }
}

/// How the elements of an array's text are converted.
struct Wanted {
    /// The type of `x`.
    value: DataType,
    /// The type of the elements; `None` if it has no column type.
    element: Option<ColumnType>,
    zone: Zone,
}

impl Wanted {
    fn of(value: &Field, element: Option<&DataType>, zone: Zone) -> Self {
        let own = || from_field(value);
        Self { value: value.data_type().clone(), element: element.map_or_else(own, from_arrow), zone }
    }
}

/// The elements of the array in a row, converted to the type of `x` except for the scale of decimals; `None` without an
/// array.
fn elements(arrays: &ArrayRef, row: usize, wanted: &Wanted) -> Result<Option<ArrayRef>> {
    if arrays.is_null(row) || arrays.data_type().is_null() {
        return Ok(None);
    }
    match arrays.data_type() {
        DataType::List(_) => leaves(&arrays.as_list::<i32>().value(row)).map(Some),
        DataType::Utf8View => read(arrays.as_string_view().value(row), wanted).map(Some),
        other => internal_err!("an array as {other}"),
    }
}

/// The elements of a list, including those of nested lists.
pub(super) fn leaves(elements: &ArrayRef) -> Result<ArrayRef> {
    let DataType::List(_) = elements.data_type() else { return Ok(Arc::clone(elements)) };
    let lists = elements.as_list::<i32>();
    let inner = (0..lists.len()).filter(|at| lists.is_valid(*at)).map(|at| leaves(&lists.value(at)));
    let inner = inner.collect::<Result<Vec<ArrayRef>>>()?;
    if inner.is_empty() {
        return leaves(&lists.values().slice(0, 0));
    }
    let inner: Vec<&dyn Array> = inner.iter().map(AsRef::as_ref).collect();
    Ok(arrow::compute::concat(&inner)?)
}

/// The elements of an array's text.
fn read(text: &str, wanted: &Wanted) -> Result<ArrayRef> {
    let (elements, _) = read_list(text).map_err(external)?;
    let Some(element) = wanted.element else {
        let message = format!("a cast of text to an array of {}", wanted.value);
        return Err(external(SqlError::unsupported(message)));
    };
    let datum = |element_text: Option<String>| match element_text {
        // A CHAR has no trailing blanks, as in columns.
        Some(text) if matches!(element, ColumnType::Char(_)) => Ok(Datum::Text(text.trim_end_matches(' ').to_owned())),
        Some(text) => parse_datum(&text, element, wanted.zone),
        None => Ok(Datum::Null),
    };
    let data = elements.into_iter().map(datum).collect::<Result<Vec<Datum>, SqlError>>().map_err(external)?;
    let scale = |datum: &Datum| match datum {
        Datum::Decimal { scale, .. } => Some(*scale),
        _ => None,
    };
    // All decimals of the elements, and of the value, are kept.
    let own_scale = match wanted.value {
        DataType::Decimal128(_, scale) => u8::try_from(scale).unwrap_or(0),
        _ => 0,
    };
    let scale = data.iter().filter_map(scale).fold(own_scale, u8::max);
    let (read_as, compared_as) = match element {
        ColumnType::Decimal { .. } => {
            let read_as = ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale };
            let digits = DataType::Decimal128(ColumnType::PRECISION_MAX, scale.cast_signed());
            (read_as, if wanted.value.is_floating() { wanted.value.clone() } else { digits })
        }
        element => (element, wanted.value.clone()),
    };
    let scalars = data.iter().map(|datum| to_scalar(datum, read_as, wanted.zone)).collect::<Result<Vec<_>, SqlError>>();
    let scalars = scalars.map_err(external)?;
    if scalars.is_empty() {
        return Ok(arrow::array::new_empty_array(&compared_as));
    }
    Ok(cast(&ScalarValue::iter_to_array(scalars)?, &compared_as)?)
}

/// The type of a list's innermost elements.
pub(super) fn leaf(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            Some(leaf(element.data_type()).unwrap_or(element.data_type()))
        }
        _ => None,
    }
}

/// The type of a list with other elements, nested to the same depth.
pub(super) fn with_leaf(data_type: &DataType, of: &DataType) -> DataType {
    match data_type {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            DataType::List(Arc::new(Field::new_list_field(with_leaf(element.data_type(), of), true)))
        }
        _ => of.clone(),
    }
}

/// The type in which values of two types are compared.
pub(super) fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    Some(match (a, b) {
        (a, DataType::Null) => a.clone(),
        (DataType::Null, b) => b.clone(),
        (a, b) if a == b => a.clone(),
        (a, b) if a.is_string() && b.is_string() => DataType::Utf8View,
        (a, b) if a.is_numeric() && b.is_numeric() && (a.is_floating() || b.is_floating()) => DataType::Float64,
        // Only in a time zone, which is not known here.
        (DataType::Date32 | DataType::Timestamp(..), DataType::Date32 | DataType::Timestamp(..))
            if is_timestamptz(a) != is_timestamptz(b) =>
        {
            return None;
        }
        (DataType::Date32, DataType::Timestamp(TimeUnit::Microsecond, None))
        | (DataType::Timestamp(TimeUnit::Microsecond, None), DataType::Date32) => TIMESTAMP,
        (a, b) => comparison_coercion(a, b)?,
    })
}
