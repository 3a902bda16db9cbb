//! The time zone of the session for which a statement is planned, and the functions of the current time.
//!
//! The planner serves all sessions, and our rules convert timestamps in one of many places. So the task that plans a
//! statement has the session's zone and times, and a function that converts keeps the zone that it was made with: a plan
//! belongs to one zone. The session binds a statement again in another one.
//!
//! | function | type | time |
//! |---|---|---|
//! | `now`, `current_timestamp`, `transaction_timestamp` | timestamp with time zone | the start of the transaction |
//! | `localtimestamp`, `current_date`, `today`, `current_time`, `localtime` | timestamp, date, time | the same, in the session's zone |
//! | `statement_timestamp` | timestamp with time zone | the start of the statement |
//! | `clock_timestamp` | timestamp with time zone | the current time, once for each batch |
//!
//! In PostgreSQL `current_time` has a time zone, a type that is missing here.

use std::sync::Arc;

use arrow::array::TimestampMicrosecondArray;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::prelude::SessionContext;

use crate::SqlError;
use crate::engine::scalar::{Times, wall_clock_us};
use crate::engine::types::{TIMESTAMP, instant_scalar, local_of, timestamptz};
use crate::value::{DAY_MICROSECONDS, Zone};

/// What a planner knows of its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub zone: Zone,
    /// `None` before the statement is executed.
    pub times: Option<Times>,
}

tokio::task_local! {
    static CLOCK: Clock;
}

/// Runs a planner for a session.
pub(super) async fn within<T>(clock: Clock, planner: impl Future<Output = T>) -> T {
    CLOCK.scope(clock, planner).await
}

/// The time zone of the session whose statement this task plans.
pub(super) fn zone() -> Zone {
    CLOCK.try_with(|clock| clock.zone).unwrap_or(Zone::UTC)
}

fn times() -> Option<Times> {
    CLOCK.try_with(|clock| clock.times).ok().flatten()
}

/// Replaces DataFusion's functions.
pub(super) fn register(context: &SessionContext) {
    // All names of DataFusion's functions: one left out would still refer to them.
    let functions: [(Kind, &[&str]); 6] = [
        (Kind::Transaction, &["current_timestamp", "transaction_timestamp"]),
        (Kind::Statement, &[]),
        (Kind::Wall, &[]),
        (Kind::LocalTimestamp, &[]),
        (Kind::Date, &["today"]),
        (Kind::Time, &["localtime"]),
    ];
    for (kind, aliases) in functions {
        let volatility = if kind == Kind::Wall { Volatility::Volatile } else { Volatility::Stable };
        let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        context.register_udf(ScalarUDF::from(Now { kind, signature: Signature::nullary(volatility), aliases }));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Transaction,
    Statement,
    Wall,
    LocalTimestamp,
    Date,
    Time,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Now {
    kind: Kind,
    signature: Signature,
    aliases: Vec<String>,
}

impl Now {
    /// The value in a statement.
    fn value(&self, times: Times) -> Result<ScalarValue, SqlError> {
        let local = || local_of(times.transaction_us, zone());
        Ok(match self.kind {
            Kind::Transaction => instant_scalar(Some(times.transaction_us)),
            Kind::Statement => instant_scalar(Some(times.statement_us)),
            Kind::Wall => instant_scalar(Some(wall_clock_us())),
            Kind::LocalTimestamp => ScalarValue::TimestampMicrosecond(Some(local()?), None),
            Kind::Date => ScalarValue::Date32(i32::try_from(local()?.div_euclid(DAY_MICROSECONDS)).ok()),
            Kind::Time => ScalarValue::Time64Nanosecond(Some(local()?.rem_euclid(DAY_MICROSECONDS) * 1_000)),
        })
    }
}

impl ScalarUDFImpl for Now {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Transaction => "now",
            Kind::Statement => "statement_timestamp",
            Kind::Wall => "clock_timestamp",
            Kind::LocalTimestamp => "localtimestamp",
            Kind::Date => "current_date",
            Kind::Time => "current_time",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Transaction | Kind::Statement | Kind::Wall => timestamptz(),
            Kind::LocalTimestamp => TIMESTAMP,
            Kind::Date => DataType::Date32,
            Kind::Time => DataType::Time64(TimeUnit::Nanosecond),
        })
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(self.name(), self.return_type(&[])?, false)))
    }

    fn simplify(&self, arguments: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let Some(times) = times().filter(|_| self.kind != Kind::Wall) else {
            return Ok(ExprSimplifyResult::Original(arguments));
        };
        let value = self.value(times).map_err(|error| DataFusionError::External(Box::new(error)))?;
        Ok(ExprSimplifyResult::Simplified(lit(value)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.kind != Kind::Wall {
            return internal_err!("{} is evaluated before the query runs", self.name());
        }
        let now = TimestampMicrosecondArray::from_value(wall_clock_us(), arguments.number_rows);
        Ok(ColumnarValue::Array(Arc::new(now.with_data_type(timestamptz()))))
    }
}
