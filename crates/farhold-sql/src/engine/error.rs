//! Maps the errors of the lower crates to PostgreSQL's.

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;
use farhold_join::JoinError;
use farhold_store::row::RowError;
use farhold_txn::TxnError;

use super::ColumnType;
use crate::{SqlError, SqlState};

/// A join that failed.
fn from_join(error: &JoinError) -> SqlError {
    match error {
        JoinError::Spill(cause) if cause.kind() == std::io::ErrorKind::StorageFull => {
            SqlError::new(SqlState::DISK_FULL, error.to_string())
        }
        JoinError::Spill(_) => SqlError::new(SqlState::IO_ERROR, error.to_string()),
        JoinError::Cancelled => SqlError::cancelled(error.to_string()),
        _ => SqlError::internal(error.to_string()),
    }
}

/// A row that does not fit its table.
pub(crate) fn from_row(error: &RowError) -> SqlError {
    let state = match error {
        RowError::TooLong { .. } => SqlState::STRING_TOO_LONG,
        RowError::NumericOverflow { .. } => SqlState::NUMERIC_OUT_OF_RANGE,
        RowError::WrongType { .. } => SqlState::DATATYPE_MISMATCH,
        RowError::NullNotAllowed { .. } => SqlState::NOT_NULL_VIOLATION,
        RowError::InvalidText { .. } => SqlState::CHARACTER_NOT_IN_REPERTOIRE,
        RowError::RowTooLarge { .. } => SqlState::PROGRAM_LIMIT_EXCEEDED,
        RowError::NoSuchColumn { .. } => SqlState::UNDEFINED_COLUMN,
        RowError::InvalidSchema { .. } => SqlState::INVALID_TABLE_DEFINITION,
        RowError::ColumnCount { .. }
        | RowError::NoSuchKey { .. }
        | RowError::WrongAccessor { .. }
        | RowError::Corrupt { .. } => SqlState::INTERNAL_ERROR,
    };
    match error {
        RowError::NumericOverflow { data_type: ColumnType::Decimal { precision, scale }, column } => SqlError::new(
            state,
            "numeric field overflow",
        )
        .with_detail(format!(
            "Column \"{column}\" with precision {precision}, scale {scale} must round to an absolute value less than \
                 10^{}.",
            precision - scale
        )),
        _ => SqlError::new(state, error.to_string()),
    }
}

/// A transaction that failed.
pub(crate) fn from_txn(error: &TxnError) -> SqlError {
    match error {
        TxnError::Conflict => {
            SqlError::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to a concurrent transaction")
                .with_hint("The transaction might succeed if retried.")
        }
        TxnError::SchemaChanged => {
            SqlError::new(SqlState::SERIALIZATION_FAILURE, "a table changed while the transaction ran")
                .with_hint("The transaction might succeed if retried.")
        }
        TxnError::DuplicateKey { table, index } => SqlError::new(
            SqlState::UNIQUE_VIOLATION,
            format!("duplicate key value violates a unique constraint: {index} of {table}"),
        ),
        TxnError::NotFound { what } => SqlError::new(SqlState::UNDEFINED_OBJECT, format!("{what} does not exist")),
        TxnError::AlreadyExists { name } => {
            SqlError::new(SqlState::DUPLICATE_TABLE, format!("relation \"{name}\" already exists"))
        }
        TxnError::TooLarge { what, bytes, bytes_max } => SqlError::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("{what} needs {bytes} bytes, the limit is {bytes_max}"),
        ),
        TxnError::NodeUnavailable { node, committed: true } => SqlError::new(
            SqlState::COMPLETION_UNKNOWN,
            format!("node {} became unavailable while the transaction committed", node.0),
        ),
        TxnError::NodeUnavailable { node, committed: false } => {
            SqlError::new(SqlState::CONNECTION_FAILURE, format!("node {} is unavailable", node.0))
        }
        TxnError::Recovering { node } => SqlError::new(
            SqlState::SERIALIZATION_FAILURE,
            format!("node {} is being replaced, or its cluster is changing", node.0),
        )
        .with_hint("The transaction might succeed if retried."),
        TxnError::OutcomeUnknown => SqlError::new(
            SqlState::RESOLUTION_UNKNOWN,
            "this node lost its cluster while the transaction committed: only the other nodes know whether it has",
        ),
        TxnError::NotDurable { committed: true, .. } => SqlError::new(SqlState::RESOLUTION_UNKNOWN, error.to_string()),
        TxnError::NotDurable { committed: false, .. } => SqlError::new(SqlState::CANNOT_CONNECT_NOW, error.to_string()),
        TxnError::DiskFull { .. } => SqlError::new(SqlState::DISK_FULL, error.to_string()),
        TxnError::OutOfMemory { node } => {
            SqlError::new(SqlState::OUT_OF_MEMORY, format!("the memory of node {} is full", node.0))
        }
        TxnError::TooMany { what, limit } => {
            SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("too many {what}: the limit is {limit}"))
        }
        TxnError::ReadOnly => SqlError::new(SqlState::READ_ONLY_TRANSACTION, "cannot write in a read-only transaction"),
        TxnError::Row(error) => from_row(error),
        error if *error == TxnError::HALF_WRITTEN => SqlError::new(SqlState::DATA_CORRUPTED, error.to_string()),
        other => SqlError::internal(other.to_string()),
    }
}

/// Whether a transaction that met this error may continue (after a rollback to a savepoint).
pub(crate) fn txn_survives(error: &SqlError) -> bool {
    !matches!(
        error.state,
        SqlState::SERIALIZATION_FAILURE
            | SqlState::COMPLETION_UNKNOWN
            | SqlState::RESOLUTION_UNKNOWN
            | SqlState::CONNECTION_FAILURE
            | SqlState::DATA_CORRUPTED
            | SqlState::INTERNAL_ERROR
    )
}

/// 42P20: an invalid window.
pub(crate) fn windowing(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::WINDOWING_ERROR, message)
}

/// A statement that needs more stack than a thread has: PostgreSQL's "stack depth limit exceeded".
pub(crate) fn too_deep() -> SqlError {
    SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "the statement is nested too deeply")
}

/// Text that does not parse.
pub(crate) fn from_parser(error: &ParserError) -> SqlError {
    match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => {
            SqlError::syntax(format!("syntax error: {message}"))
        }
        ParserError::RecursionLimitExceeded => too_deep(),
    }
}

/// A query that cannot be planned, or that failed while it ran.
pub(crate) fn from_datafusion(error: &DataFusionError) -> SqlError {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => from_datafusion(inner),
        DataFusionError::Shared(inner) => from_datafusion(inner),
        DataFusionError::Collection(errors) => {
            errors.first().map_or_else(|| SqlError::internal("a query failed"), from_datafusion)
        }
        DataFusionError::SQL(inner, _) => from_parser(inner),
        DataFusionError::External(inner) => {
            if let Some(error) = inner.downcast_ref::<SqlError>() {
                return error.clone();
            }
            if let Some(error) = inner.downcast_ref::<DataFusionError>() {
                return from_datafusion(error);
            }
            if let Some(error) = inner.downcast_ref::<JoinError>() {
                return from_join(error);
            }
            let message = inner.to_string();
            of_function(&message).unwrap_or_else(|| SqlError::internal(message))
        }
        DataFusionError::SchemaError(inner, _) => from_schema(inner),
        DataFusionError::ArrowError(inner, _) => from_arrow(inner),
        DataFusionError::ResourcesExhausted(message) => {
            let what = "out of memory: the query needs more than others leave of --query-memory";
            SqlError::new(SqlState::OUT_OF_MEMORY, what).with_detail(message.trim()).with_hint(
                "Give farhold serve more --query-memory, or --join-memory where that is set, or run fewer queries at a time.",
            )
        }
        // For a logical expression the message contains the planner's internal text, so it is replaced.
        DataFusionError::NotImplemented(message) if message.contains("does not support logical expression") => {
            SqlError::unsupported("a correlated subquery in this place")
        }
        DataFusionError::NotImplemented(message) => {
            SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, format!("not supported: {}", first_line(message)))
        }
        DataFusionError::Plan(message) => from_plan(message),
        DataFusionError::Execution(message) => from_execution(message),
        DataFusionError::ExecutionJoin(inner) => SqlError::internal(inner.to_string()),
        other => from_execution(&other.to_string()),
    }
}

/// Errors of the optimiser and the physical planner. The statement's own names have been resolved by then. So an
/// unknown or ambiguous name is an internal one; if the plan had a correlated subquery, it comes from the join that
/// replaced it.
pub(crate) fn from_optimizer(error: &DataFusionError, is_correlated: bool) -> SqlError {
    match error.find_root() {
        DataFusionError::SchemaError(..) if is_correlated => {
            SqlError::unsupported("a correlated subquery in this place")
        }
        DataFusionError::SchemaError(inner, _) => {
            SqlError::unsupported(format!("this query plan ({})", first_line(&inner.to_string())))
        }
        _ => from_datafusion(error),
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().to_owned()
}

fn from_schema(error: &SchemaError) -> SqlError {
    match error {
        SchemaError::FieldNotFound { field, .. } => SqlError::new(
            SqlState::UNDEFINED_COLUMN,
            match &field.relation {
                Some(relation) => format!("column {}.{} does not exist", relation.table(), field.name),
                None => format!("column \"{}\" does not exist", field.name),
            },
        ),
        SchemaError::AmbiguousReference { field } => {
            SqlError::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{}\" is ambiguous", field.name))
        }
        // The error is not the statement's fault.
        other => SqlError::unsupported(format!("this query plan ({})", first_line(&other.to_string()))),
    }
}

fn from_arrow(error: &arrow::error::ArrowError) -> SqlError {
    use arrow::error::ArrowError;
    match error {
        ArrowError::DivideByZero => SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero"),
        ArrowError::ArithmeticOverflow(message) => {
            SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("value out of range: {}", first_line(message)))
        }
        ArrowError::CastError(message) | ArrowError::ParseError(message) => from_cast(message),
        ArrowError::ExternalError(inner) => match inner.downcast_ref::<DataFusionError>() {
            Some(error) => from_datafusion(error),
            None => SqlError::internal(inner.to_string()),
        },
        ArrowError::NotYetImplemented(message) => {
            SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, format!("not supported: {}", first_line(message)))
        }
        other => from_execution(&other.to_string()),
    }
}

fn from_cast(message: &str) -> SqlError {
    let lower = message.to_ascii_lowercase();
    let state = if lower.contains("overflow") || lower.contains("can't cast value") || lower.contains("too large") {
        SqlState::NUMERIC_OUT_OF_RANGE
    } else if lower.contains("date") || lower.contains("timestamp") {
        SqlState::INVALID_DATETIME
    } else {
        SqlState::INVALID_TEXT
    };
    SqlError::new(state, first_line(message))
}

/// An error of one of this crate's functions that DataFusion has wrapped in its own text. This happens where it asks
/// the function to coerce its argument types.
fn of_ours(message: &str) -> Option<SqlError> {
    let (_, said) = message.split_once("External error: ")?;
    let (code, words) = said.split_once(": ")?;
    let state = SqlState::of_code(code)?;
    let words = words.split(". No function matches").next().unwrap_or(words);
    let error = SqlError::new(state, first_line(words));
    Some(if state == SqlState::UNDEFINED_FUNCTION {
        error.with_hint("You might need to add explicit type casts.")
    } else {
        error
    })
}

/// DataFusion's planner has one error kind for many faults; the message tells them apart.
fn from_plan(message: &str) -> SqlError {
    if let Some(error) = of_ours(message) {
        return error;
    }
    let text = first_line(message);
    let lower = text.to_ascii_lowercase();
    let quoted = |text: &str| text.split('\'').nth(1).unwrap_or_default().to_owned();
    if lower.contains("table '") && lower.contains("not found") {
        let full = quoted(&text);
        let mut parts = full.rsplit('.');
        let name = parts.next().unwrap_or_default();
        return match parts.next() {
            Some(schema) if schema != "public" => no_such_table(&format!("{schema}.{name}")),
            _ => no_such_table(name),
        };
    }
    if lower.contains("invalid function") || lower.contains("function '") && lower.contains("not found") {
        return SqlError::new(SqlState::UNDEFINED_FUNCTION, format!("function {} does not exist", quoted(&text)));
    }
    if lower.contains("step cannot be zero") {
        return SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "step size cannot equal zero");
    }
    // The rest of the message consists of the planner's internal names of the keys.
    if let Some((_, column)) = text.split_once("column \"")
        && let Some((column, _)) = column.split_once("\" must appear in the GROUP BY")
    {
        let message =
            format!("column \"{column}\" must appear in the GROUP BY clause or be used in an aggregate function");
        return SqlError::new(SqlState::GROUPING_ERROR, message);
    }
    let state = if lower.contains("must appear in the group by")
        || lower.contains("must be in group by")
        || lower.contains("references non-aggregate")
        || lower.contains("aggregate functions are not allowed")
    {
        SqlState::GROUPING_ERROR
    } else if lower.contains("coerce") || lower.contains("no function matches") || lower.contains("cannot infer common")
    {
        SqlState::UNDEFINED_FUNCTION
    } else if lower.contains("ambiguous") {
        SqlState::AMBIGUOUS_COLUMN
    } else if lower.contains("no field named") || lower.contains("column") && lower.contains("not found") {
        SqlState::UNDEFINED_COLUMN
    } else if lower.contains("scalar subquery should only return one column")
        || lower.contains("should only return one")
    {
        SqlState::SYNTAX_ERROR
    } else if lower.contains("divide by zero") {
        SqlState::DIVISION_BY_ZERO
    } else if lower.contains("does not support the \"global\" option") {
        SqlState::INVALID_PARAMETER_VALUE
    } else if lower.contains("specified more than once") {
        SqlState::DUPLICATE_ALIAS
    } else if lower.contains("must match initial order by") {
        SqlState::INVALID_COLUMN_REFERENCE
    } else if lower.starts_with("limit must be") {
        SqlState::INVALID_LIMIT
    } else if lower.starts_with("offset must be") {
        SqlState::INVALID_OFFSET
    } else if lower.contains("must be aggregated")
        || lower.contains("not supported")
        || lower.contains("unsupported")
        || lower.contains("not implemented")
        || lower.contains("null_aware anti join")
        || lower.contains("correlated scalar subquery")
        || lower.contains("scalar correlated subquery")
        || lower.contains("outer reference columns")
        || lower.contains("require unique expression names")
    {
        SqlState::FEATURE_NOT_SUPPORTED
    } else if lower.contains("type") {
        SqlState::DATATYPE_MISMATCH
    } else {
        SqlState::SYNTAX_ERROR
    };
    SqlError::new(state, text)
}

/// Messages of DataFusion's functions about their arguments, with the state and the message of PostgreSQL's functions.
const OF_FUNCTIONS: [(&str, SqlState, &str); 9] = [
    ("negative count not allowed", SqlState::SUBSTRING_ERROR, "negative substring length not allowed"),
    ("overlay start position must be", SqlState::SUBSTRING_ERROR, "negative substring length not allowed"),
    ("field position must not be zero", SqlState::INVALID_PARAMETER_VALUE, "field position must not be zero"),
    ("factorial of a negative number", SqlState::NUMERIC_OUT_OF_RANGE, "factorial of a negative number is undefined"),
    ("month value '", SqlState::DATETIME_OVERFLOW, "date field value out of range"),
    ("day value '", SqlState::DATETIME_OVERFLOW, "date field value out of range"),
    ("unable to parse date from", SqlState::DATETIME_OVERFLOW, "date field value out of range"),
    ("regular expression did not compile", SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression"),
    ("regex parse error", SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression"),
];

/// An error of a function, recognised by the first line of its message. The whole message becomes the detail: for a
/// pattern, the last line states the fault and the lines before it show the position.
fn of_function(message: &str) -> Option<SqlError> {
    let lower = first_line(message).to_ascii_lowercase();
    let (_, state, words) = OF_FUNCTIONS.iter().find(|(said, ..)| lower.contains(said))?;
    Some(SqlError::new(*state, *words).with_detail(message.trim()))
}

fn from_execution(message: &str) -> SqlError {
    if let Some(error) = of_ours(message) {
        return error;
    }
    if let Some(error) = of_function(message) {
        return error;
    }
    let text = first_line(message);
    let lower = text.to_ascii_lowercase();
    if lower.contains("divide by zero") || lower.contains("division by zero") {
        return SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero");
    }
    if lower.contains("resources exhausted") || lower.contains("failed to allocate") {
        return SqlError::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail(message.trim());
    }
    if lower.contains("cannot access field at argument") {
        let message = "missing FROM-clause entry for a table: the name before the dot is a column";
        return SqlError::new(SqlState::UNDEFINED_TABLE, message);
    }
    if lower.contains("more than one row") {
        return SqlError::new(
            SqlState::CARDINALITY_VIOLATION,
            "more than one row returned by a subquery used as an expression",
        );
    }
    if lower.contains("overflow") || lower.contains("out of range") || lower.contains("to store in a decimal") {
        return SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, text);
    }
    if lower.contains("cast") || lower.contains("parse") || lower.contains("parsing") {
        return from_cast(&text);
    }
    if lower.contains("not supported") || lower.contains("not implemented") {
        return SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, text);
    }
    SqlError::internal(text)
}

/// 42P01.
pub(crate) fn no_such_table(name: &str) -> SqlError {
    SqlError::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"))
}
