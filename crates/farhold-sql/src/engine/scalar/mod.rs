//! Expressions that are evaluated on one row without the planner.
//!
//! [`Binder`] turns a parsed expression into a [`Scalar`] if it is simple enough (columns, parameters, arithmetic,
//! comparisons, CASE, a few functions), and infers the types of parameters. Other expressions are left to DataFusion.
//! Types and errors are PostgreSQL's: integer overflow is checked, `1/0` is 22012, NULL is unknown.

mod arithmetic;
mod bind;
mod evaluate;
mod letters;
mod like;

pub(crate) use arithmetic::{Arithmetic, has_digits, product, quotient, wide_quotient};
pub(crate) use bind::{
    BindError, Binder, Bound, ColumnRef, assignable, built_in_name, fold, is_kept_by_null_if, parameter_index,
    same_kind, without_regclass,
};

pub(crate) use evaluate::cut_to;
pub(crate) use farhold_scan::predicate::Comparison;
pub(crate) use letters::{lower, upper};
pub(crate) use like::like;

use super::sequence::Call;
use super::{ColumnType, Datum};
use crate::value::Zone;

/// The known types of `$1`, `$2`, … before a statement is bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParameterTypes {
    /// Declared by the client, or inferred.
    pub(crate) known: Vec<Option<ColumnType>>,
    /// Which of them the client has declared. A text parameter of inferred type is an untyped constant to the planner,
    /// like a string literal.
    pub(crate) stated: Vec<bool>,
}

impl ParameterTypes {
    /// The types that the client declares.
    pub(crate) fn stated(types: &[Option<ColumnType>]) -> Self {
        Self { known: types.to_vec(), stated: types.iter().map(Option::is_some).collect() }
    }

    /// The types of a statement that has been bound before.
    pub(crate) fn found(types: &[ColumnType], stated: &[bool]) -> Self {
        Self { known: types.iter().copied().map(Some).collect(), stated: stated.to_vec() }
    }
}

/// The inputs of a statement's expressions other than a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters<'a> {
    /// `$1`, `$2`, ….
    pub(crate) values: &'a [Datum],
    pub(crate) times: Times,
    /// The session's time zone.
    pub(crate) zone: Zone,
}

impl Parameters<'_> {
    /// For expressions of constants, none of which is a timestamp.
    pub(crate) const NONE: Self = Self::constant(Zone::UTC);

    /// For expressions of constants.
    pub(crate) const fn constant(zone: Zone) -> Self {
        Self { values: &[], times: Times { transaction_us: 0, statement_us: 0 }, zone }
    }
}

/// The start of a statement and of its transaction, in microseconds since 1970-01-01 UTC: `now()` stays the same within
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) transaction_us: i64,
    pub(crate) statement_us: i64,
}

/// The wall clock in the unit of [`Times`].
pub(crate) fn wall_clock_us() -> i64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "SQL's now() is the wall clock; row numbers pass those of earlier runs"
    )]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
}

/// A function of [`Scalar::Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Abs,
    /// `timezone(zone, moment)`, also written `moment AT TIME ZONE zone`.
    AtZone,
    /// `clock_timestamp()`
    ClockTime,
    Concat,
    Greatest,
    Least,
    Length,
    Lower,
    /// `statement_timestamp()`
    StatementTime,
    /// Rounds a timestamp to a number of fractional digits of the second.
    TimestampDigits(u8),
    /// `now()`, `transaction_timestamp()`, `current_timestamp`
    TransactionTime,
    Upper,
}

/// A bound expression.
#[derive(Clone, Debug)]
pub(crate) enum Scalar {
    Literal(Datum),
    /// The index of the parameter; `$1` has index 0.
    Parameter(usize),
    Column(usize),
    Negate(Box<Scalar>),
    /// Both sides are first cast to the type, which is also the result's.
    Arithmetic(Arithmetic, ColumnType, Box<Scalar>, Box<Scalar>),
    DatePlusDays(Box<Scalar>, Box<Scalar>),
    DateMinusDate(Box<Scalar>, Box<Scalar>),
    Compare(Comparison, Box<Scalar>, Box<Scalar>),
    DistinctFrom(Box<Scalar>, Box<Scalar>),
    And(Box<Scalar>, Box<Scalar>),
    Or(Box<Scalar>, Box<Scalar>),
    Not(Box<Scalar>),
    IsNull(Box<Scalar>),
    /// `IS TRUE`, `IS FALSE`: never NULL.
    IsBoolean(Box<Scalar>, bool),
    InList(Box<Scalar>, Vec<Scalar>),
    Like {
        text: Box<Scalar>,
        pattern: Box<Scalar>,
        any_case: bool,
        escape: Option<char>,
    },
    /// `cut`: shortens a string to the length of the type, as an explicit cast does.
    Cast {
        inner: Box<Scalar>,
        to: ColumnType,
        cut: bool,
    },
    /// (condition, result)*, then the value of ELSE.
    Case(Vec<(Scalar, Scalar)>, Box<Scalar>),
    Coalesce(Vec<Scalar>),
    NullIf(Box<Scalar>, Box<Scalar>),
    Call(Function, Vec<Scalar>),
    /// A sequence function, which [`Numbers::evaluate`](super::sequence::Numbers::evaluate) calls.
    Sequence(Call, Vec<Scalar>),
}

/// Defines a walk over an expression and all its subexpressions, by shared or by exclusive references.
macro_rules! visitor {
    ($(#[$about:meta])* $name:ident, $reference:ty) => {
        $(#[$about])*
        #[recursive::recursive]
        pub(crate) fn $name(self: $reference, f: &mut dyn FnMut($reference)) {
            f(self);
            match self {
                Self::Literal(_) | Self::Parameter(_) | Self::Column(_) => {}
                Self::Negate(a) | Self::Not(a) | Self::IsNull(a) | Self::IsBoolean(a, _) | Self::Cast { inner: a, .. } => {
                    a.$name(f);
                }
                Self::Arithmetic(_, _, a, b)
                | Self::DatePlusDays(a, b)
                | Self::DateMinusDate(a, b)
                | Self::Compare(_, a, b)
                | Self::DistinctFrom(a, b)
                | Self::And(a, b)
                | Self::Or(a, b)
                | Self::NullIf(a, b)
                | Self::Like { text: a, pattern: b, .. } => {
                    a.$name(f);
                    b.$name(f);
                }
                Self::InList(a, list) => {
                    a.$name(f);
                    for item in list {
                        item.$name(f);
                    }
                }
                Self::Case(whens, otherwise) => {
                    for (condition, result) in whens {
                        condition.$name(f);
                        result.$name(f);
                    }
                    otherwise.$name(f);
                }
                Self::Coalesce(list) | Self::Call(_, list) | Self::Sequence(_, list) => {
                    for item in list {
                        item.$name(f);
                    }
                }
            }
        }
    };
}

impl Scalar {
    /// Whether it reads no column.
    pub(crate) fn is_constant(&self) -> bool {
        let mut constant = true;
        self.visit(&mut |scalar| constant &= !matches!(scalar, Self::Column(_)));
        constant
    }

    visitor! {
        /// Calls `f` with this expression and all its subexpressions.
        visit, &Self
    }

    visitor! {
        /// As [`visit`](Self::visit), for changes: the walk continues in an expression that `f` has replaced.
        visit_mut, &mut Self
    }
}
