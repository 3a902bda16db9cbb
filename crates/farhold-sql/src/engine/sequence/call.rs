//! Sequence functions in expressions.

use crate::engine::dialect::Dialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::engine::parse::table_name;
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// A sequence function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

impl Call {
    pub(crate) const ALL: [Self; 4] = [Self::Next, Self::Current, Self::Last, Self::Set];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Next => "nextval",
            Self::Current => "currval",
            Self::Last => "lastval",
            Self::Set => "setval",
        }
    }

    /// The types of the arguments, for each of the function's forms.
    pub(crate) fn forms(self) -> &'static [&'static [ColumnType]] {
        use ColumnType::{BigInt, Boolean, Text};
        match self {
            Self::Next | Self::Current => &[&[Text]],
            Self::Last => &[&[]],
            Self::Set => &[&[Text, BigInt], &[Text, BigInt, Boolean]],
        }
    }

    /// Whether it advances the sequence.
    pub(crate) fn takes_numbers(self) -> bool {
        matches!(self, Self::Next | Self::Set)
    }

    /// The function of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|call| call.name() == name)
    }
}

/// The function of this name with this number of arguments, and the arguments' types.
pub(crate) fn bind(name: &str, arguments: usize) -> Option<(Call, &'static [ColumnType])> {
    let call = Call::named(name)?;
    call.forms().iter().find(|types| types.len() == arguments).map(|types| (call, *types))
}

/// A call with the values of its arguments.
#[derive(Clone)]
pub(crate) enum SequenceCall {
    Next(String),
    Current(String),
    Last,
    Set { sequence: String, to: i64, is_called: bool },
}

impl SequenceCall {
    /// `None` if an argument is NULL, and so is the result.
    pub(crate) fn of(call: Call, arguments: &[Datum]) -> Result<Option<Self>, SqlError> {
        Ok(match (call, arguments) {
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

/// The name in a text, read like an identifier: `"S"` keeps its case.
fn sequence_name(text: &str) -> Result<String, SqlError> {
    let wrong = || SqlError::new(SqlState::SYNTAX_ERROR, format!("invalid name syntax: {text}"));
    let dialect = Dialect::new(text);
    let mut parser = Parser::new(&dialect).try_with_sql(text).map_err(|_| wrong())?;
    let name = parser.parse_object_name(false).map_err(|_| wrong())?;
    if parser.peek_token().token != Token::EOF {
        return Err(wrong());
    }
    table_name(&name)
}

/// The error of a sequence function where it cannot be called.
pub(crate) fn out_of_place(call: Call) -> SqlError {
    SqlError::unsupported(format!("{} in this place", call.name()))
        .with_hint("It is allowed in queries, VALUES, SET and DEFAULT.")
}
