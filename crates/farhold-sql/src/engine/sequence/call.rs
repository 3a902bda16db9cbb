//! The functions of sequences in expressions.

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::engine::catalog::table_name;
use crate::engine::scalar::Scalar;
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// A function of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `nextval(sequence)`
    Next,
    /// `currval(sequence)`
    Current,
    /// `lastval()`
    Last,
    /// `setval(sequence, number [, is called])`
    Set,
}

/// The function of this name with so many arguments, and the arguments' types.
pub(crate) fn bind(name: &str, arguments: usize) -> Option<(Call, &'static [ColumnType])> {
    use ColumnType::{BigInt, Boolean, Text};
    match (name, arguments) {
        ("nextval", 1) => Some((Call::Next, &[Text])),
        ("currval", 1) => Some((Call::Current, &[Text])),
        ("lastval", 0) => Some((Call::Last, &[])),
        ("setval", 2) => Some((Call::Set, &[Text, BigInt])),
        ("setval", 3) => Some((Call::Set, &[Text, BigInt, Boolean])),
        _ => None,
    }
}

/// A call with its arguments' values; `None`: one of them is null, and so is the result.
pub(super) enum Asked {
    Next(String),
    Current(String),
    Last,
    Set { sequence: String, to: i64, is_called: bool },
}

impl Asked {
    pub(super) fn new(
        call: Call,
        arguments: &[Scalar],
        row: &[Datum],
        parameters: &[Datum],
    ) -> Result<Option<Self>, SqlError> {
        let values = arguments.iter().map(|a| a.evaluate(row, parameters)).collect::<Result<Vec<_>, _>>()?;
        Ok(match (call, values.as_slice()) {
            (Call::Last, _) => Some(Self::Last),
            (Call::Next, [Datum::Text(name)]) => Some(Self::Next(sequence_name(name)?)),
            (Call::Current, [Datum::Text(name)]) => Some(Self::Current(sequence_name(name)?)),
            (Call::Set, [Datum::Text(name), Datum::BigInt(to)]) => {
                Some(Self::Set { sequence: sequence_name(name)?, to: *to, is_called: true })
            }
            (Call::Set, [Datum::Text(name), Datum::BigInt(to), Datum::Boolean(is_called)]) => {
                Some(Self::Set { sequence: sequence_name(name)?, to: *to, is_called: *is_called })
            }
            _ => None,
        })
    }
}

/// The name that a text means: as an identifier would, so `"S"` keeps its case.
fn sequence_name(text: &str) -> Result<String, SqlError> {
    let wrong = || SqlError::new(SqlState::SYNTAX_ERROR, format!("invalid name syntax: {text}"));
    let mut parser = Parser::new(&PostgreSqlDialect {}).try_with_sql(text).map_err(|_| wrong())?;
    let name = parser.parse_object_name(false).map_err(|_| wrong())?;
    if parser.peek_token().token != Token::EOF {
        return Err(wrong());
    }
    table_name(&name)
}
