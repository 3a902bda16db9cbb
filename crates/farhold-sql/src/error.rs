//! Errors of statements: a message for the user and a SQLSTATE for the program.

use std::fmt;

/// A five-character SQLSTATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqlState(&'static str);

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState {
            $($(#[$doc])* pub const $name: SqlState = SqlState($code);)*

            /// The state with this code, if Farhold uses it.
            pub(crate) fn of_code(code: &str) -> Option<Self> {
                [$($code),*].into_iter().find(|known| *known == code).map(Self)
            }
        }
    };
}

states! {
    /// The connection to the node that holds the data is lost.
    CONNECTION_FAILURE = "08006";
    /// The client violated the protocol.
    PROTOCOL_VIOLATION = "08P01";
    /// PostgreSQL supports it, Farhold does not.
    FEATURE_NOT_SUPPORTED = "0A000";
    /// A subquery used as an expression returned more than one row.
    CARDINALITY_VIOLATION = "21000";
    /// A string does not fit its column.
    STRING_TOO_LONG = "22001";
    /// A number does not fit its type.
    NUMERIC_OUT_OF_RANGE = "22003";
    /// A query succeeded, but was not executed as planned.
    WARNING = "01000";
    /// Text that is not a date or time.
    INVALID_DATETIME = "22007";
    /// A date or time outside of its type's range.
    DATETIME_OVERFLOW = "22008";
    /// An offset from UTC that no time zone has.
    INVALID_TIME_ZONE = "22009";
    /// A substring of negative length, or before the start.
    SUBSTRING_ERROR = "22011";
    /// Division by zero.
    DIVISION_BY_ZERO = "22012";
    /// A frame bound at a negative distance.
    INVALID_PRECEDING_OR_FOLLOWING_SIZE = "22013";
    /// An interval with a number that does not fit.
    INTERVAL_FIELD_OVERFLOW = "22015";
    /// A number of parts that is not positive.
    INVALID_NTILE_ARGUMENT = "22014";
    /// A row number that is not positive.
    INVALID_NTH_VALUE_ARGUMENT = "22016";
    /// A pattern that is not a regular expression.
    INVALID_REGULAR_EXPRESSION = "2201B";
    /// A logarithm outside of its domain.
    INVALID_LOGARITHM_ARGUMENT = "2201E";
    /// A root or a power outside of its domain.
    INVALID_POWER_ARGUMENT = "2201F";
    /// Invalid bounds or an invalid number of buckets.
    INVALID_WIDTH_BUCKET_ARGUMENT = "2201G";
    /// A negative LIMIT.
    INVALID_LIMIT = "2201W";
    /// A negative OFFSET.
    INVALID_OFFSET = "2201X";
    /// A position outside of the bytes.
    ARRAY_SUBSCRIPT_ERROR = "2202E";
    /// A pattern that ends with its escape character.
    INVALID_ESCAPE_SEQUENCE = "22025";
    /// Bytes that are not UTF-8.
    CHARACTER_NOT_IN_REPERTOIRE = "22021";
    /// An invalid value of a parameter or setting.
    INVALID_PARAMETER_VALUE = "22023";
    /// A sequence has reached its limit.
    SEQUENCE_LIMIT = "2200H";
    /// Text that is not a value of the type.
    INVALID_TEXT = "22P02";
    /// Bytes that are not a value of the type.
    INVALID_BINARY = "22P03";
    /// A malformed line in COPY data.
    BAD_COPY_FORMAT = "22P04";
    /// NULL where a value is required.
    NULL_VALUE_NOT_ALLOWED = "22004";
    /// NULL in a NOT NULL column.
    NOT_NULL_VIOLATION = "23502";
    /// A duplicate key.
    UNIQUE_VIOLATION = "23505";
    /// A row that a CHECK constraint refuses.
    CHECK_VIOLATION = "23514";
    /// A cursor in a state that the command cannot use.
    INVALID_CURSOR_STATE = "24000";
    /// BEGIN within a transaction.
    ACTIVE_TRANSACTION = "25001";
    /// A write in a read-only transaction.
    READ_ONLY_TRANSACTION = "25006";
    /// A command that needs a transaction block.
    NO_ACTIVE_TRANSACTION = "25P01";
    /// A command in a transaction that has failed.
    IN_FAILED_TRANSACTION = "25P02";
    /// An object on which others depend.
    DEPENDENT_OBJECTS = "2BP01";
    /// No such prepared statement.
    INVALID_STATEMENT_NAME = "26000";
    /// A client was idle within a transaction for too long.
    IDLE_IN_TRANSACTION_TIMEOUT = "25P03";
    /// A start-up message without required parameters.
    INVALID_AUTHORIZATION = "28000";
    /// The password is wrong.
    INVALID_PASSWORD = "28P01";
    /// No such cursor.
    INVALID_CURSOR_NAME = "34000";
    /// No such savepoint.
    INVALID_SAVEPOINT = "3B001";
    /// No such schema.
    INVALID_SCHEMA_NAME = "3F000";
    /// A conflict with another transaction; a retry may succeed.
    SERIALIZATION_FAILURE = "40001";
    /// Only other nodes know the outcome of a COMMIT.
    RESOLUTION_UNKNOWN = "08007";
    /// The outcome of a COMMIT is unknown.
    COMPLETION_UNKNOWN = "40003";
    /// The statement does not parse.
    SYNTAX_ERROR = "42601";
    /// A value for a column that is GENERATED ALWAYS.
    GENERATED_ALWAYS = "428C9";
    /// An invalid definition.
    INVALID_TABLE_DEFINITION = "42P16";
    /// A column named twice.
    DUPLICATE_COLUMN = "42701";
    /// A name that matches more than one column.
    AMBIGUOUS_COLUMN = "42702";
    /// No such column.
    UNDEFINED_COLUMN = "42703";
    /// No such object.
    UNDEFINED_OBJECT = "42704";
    /// An object of this name exists.
    DUPLICATE_OBJECT = "42710";
    /// A relation or a WITH query is named twice.
    DUPLICATE_ALIAS = "42712";
    /// A column outside of GROUP BY.
    GROUPING_ERROR = "42803";
    /// Types that cannot be combined.
    DATATYPE_MISMATCH = "42804";
    /// No cast exists between the types.
    CANNOT_COERCE = "42846";
    /// No such function or operator.
    UNDEFINED_FUNCTION = "42883";
    /// An object or a value of another kind than the statement requires.
    WRONG_OBJECT_TYPE = "42809";
    /// No such table.
    UNDEFINED_TABLE = "42P01";
    /// No such parameter.
    UNDEFINED_PARAMETER = "42P02";
    /// A cursor with this name is already open.
    DUPLICATE_CURSOR = "42P03";
    /// A prepared statement with this name already exists.
    DUPLICATE_STATEMENT = "42P05";
    /// A table with this name already exists.
    DUPLICATE_TABLE = "42P07";
    /// A column reference that is not valid in its place.
    INVALID_COLUMN_REFERENCE = "42P10";
    /// An invalid window.
    WINDOWING_ERROR = "42P20";
    /// The disk of the journal, or of the joins' spill files, is full: nothing was written.
    DISK_FULL = "53100";
    /// Out of memory: in the queries' budget or the data region.
    OUT_OF_MEMORY = "53200";
    /// All connections are in use.
    TOO_MANY_CONNECTIONS = "53300";
    /// A row, a key or a statement is too large.
    PROGRAM_LIMIT_EXCEEDED = "54000";
    /// A statement that is nested too deeply or too complex.
    STATEMENT_TOO_COMPLEX = "54001";
    /// More columns than a result or a table may have.
    TOO_MANY_COLUMNS = "54011";
    /// The object is not in the state that the command needs.
    OBJECT_NOT_IN_STATE = "55000";
    /// A parameter that cannot be changed now.
    CANNOT_CHANGE_PARAMETER = "55P02";
    /// Cancelled by the user or by `statement_timeout`.
    QUERY_CANCELED = "57014";
    /// The server is going down.
    ADMIN_SHUTDOWN = "57P01";
    /// A client that was silent for too long.
    IDLE_SESSION_TIMEOUT = "57P05";
    /// The node cannot serve at the moment.
    CANNOT_CONNECT_NOW = "57P03";
    /// The directory of the joins' spill files cannot be used.
    IO_ERROR = "58030";
    /// A bug in Farhold.
    INTERNAL_ERROR = "XX000";
    /// A row that was half written when the process of its node ended.
    DATA_CORRUPTED = "XX001";
}

impl SqlState {
    /// The five characters.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Why a statement failed, in PostgreSQL's terms. Kept below 128 bytes, because every `Result` has room for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// The SQLSTATE.
    pub state: SqlState,
    /// One sentence in lower case without a full stop, as in PostgreSQL.
    pub message: String,
    /// The details: the existing key, the line of a COPY.
    pub detail: Option<Box<str>>,
    /// What the user can do.
    pub hint: Option<Box<str>>,
    /// The position in the statement, in characters from 1.
    pub position: Option<usize>,
    /// The constraint that was violated.
    pub constraint: Option<Box<str>>,
    /// The table that it concerns.
    pub table: Option<Box<str>>,
}

impl SqlError {
    /// An error of `state`.
    #[must_use]
    pub fn new(state: SqlState, message: impl Into<String>) -> Self {
        Self { state, message: message.into(), detail: None, hint: None, position: None, constraint: None, table: None }
    }

    /// 0A000: PostgreSQL supports it, Farhold does not.
    #[must_use]
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(SqlState::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
    }

    /// 42601.
    #[must_use]
    pub fn syntax(message: impl Into<String>) -> Self {
        Self::new(SqlState::SYNTAX_ERROR, message)
    }

    /// XX000: a bug in Farhold.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(SqlState::INTERNAL_ERROR, message)
    }

    /// 57014.
    #[must_use]
    pub fn cancelled(message: impl Into<String>) -> Self {
        Self::new(SqlState::QUERY_CANCELED, message)
    }

    /// Adds a DETAIL line.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into().into_boxed_str());
        self
    }

    /// Adds a HINT line.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into().into_boxed_str());
        self
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.state, self.message)?;
        if let Some(detail) = &self.detail {
            write!(f, " ({detail})")?;
        }
        Ok(())
    }
}

impl std::error::Error for SqlError {}
