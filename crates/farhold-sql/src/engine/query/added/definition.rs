//! A function of ours in one place: what the planner asks about it, and its results.

use std::fmt;
use std::hash::{Hash, Hasher};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use super::super::functions::null_of;
use super::{not_taken, on_arrays};
use crate::engine::ColumnType;
use crate::engine::types::{TIMESTAMP, is_timestamptz, timestamptz};

/// A function that returns NULL where an argument is NULL.
pub(super) struct Definition {
    pub name: &'static str,
    /// The types to which the arguments are cast; `None` if the function does not take arguments of these types. An
    /// untyped string literal has been converted, and a text refused, before the function is called.
    pub takes: fn(&[DataType]) -> Option<Vec<DataType>>,
    /// The type of the results, by the types of the arguments after the cast.
    pub returns: fn(&[DataType]) -> DataType,
    /// The type of an argument that is a parameter without a type: by the number of arguments, and its place among them.
    pub parameter: fn(usize, usize) -> Option<ColumnType>,
    /// The result of each row. The arguments have the types that `takes` has returned, and one element per row.
    pub results: fn(&[ArrayRef]) -> Result<ArrayRef>,
}

/// For [`Definition::parameter`]: any type.
pub(super) fn any(_: usize, _: usize) -> Option<ColumnType> {
    None
}

/// An untyped string literal, or a text.
pub(super) fn is_bare(argument: &DataType) -> bool {
    argument.is_string() || argument.is_null()
}

pub(super) fn is_moment(argument: &DataType) -> bool {
    matches!(argument, DataType::Date32 | DataType::Timestamp(..))
}

/// The type of moments among the arguments of a function of one type: with time zone unless one is a timestamp without.
/// PostgreSQL prefers it for dates.
pub(in crate::engine::query) fn common_of_moments(arguments: &[DataType]) -> DataType {
    let is_plain = |argument: &DataType| matches!(argument, DataType::Timestamp(_, None));
    let has_type = arguments.iter().any(is_moment);
    if arguments.iter().any(is_timestamptz) || has_type && !arguments.iter().any(is_plain) {
        timestamptz()
    } else {
        TIMESTAMP
    }
}

pub(super) fn is_integer(argument: &DataType) -> bool {
    argument.is_integer() || argument.is_null()
}

pub(super) fn is_number(argument: &DataType) -> bool {
    argument.is_numeric() || argument.is_null()
}

/// The function of a definition.
pub(super) fn function(definition: &'static Definition) -> ScalarUDF {
    ScalarUDF::from(Defined { definition, signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Defined {
    definition: &'static Definition,
    signature: Signature,
}

impl ScalarUDFImpl for Defined {
    fn name(&self) -> &'static str {
        self.definition.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        (self.definition.takes)(arguments).ok_or_else(|| not_taken(self.name()))
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok((self.definition.returns)(arguments))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        on_arrays(&arguments, self.definition.results)
    }
}

// A definition is its name.

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Definition {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Definition {}

impl Hash for Definition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
