//! Interval literals in PostgreSQL's syntax.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType as SqlType, DateTimeField, Expr, Function, Interval, IntervalFields as SqlFields,
    NamedWindowDefinition, NamedWindowExpr, Select, Value, ValueWithSpan, VisitorMut, WindowFrame, WindowFrameBound,
    WindowSpec, WindowType,
};

use crate::SqlError;
use crate::engine::parse::unnested;
use crate::value::{IntervalField, IntervalFields, parse_interval_of, put_interval, written};

/// `INTERVAL '26:00:00'` becomes `CAST('26:00:00' AS INTERVAL)`, and `INTERVAL '2' DAY` that of '2 days': DataFusion
/// parses intervals differently from PostgreSQL. In frame bounds DataFusion accepts only literals, so there casts
/// become literals.
pub(super) struct Intervals;

impl Intervals {
    fn literals(frame: &mut WindowFrame) {
        for bound in [Some(&mut frame.start_bound), frame.end_bound.as_mut()].into_iter().flatten() {
            let (WindowFrameBound::Preceding(Some(distance)) | WindowFrameBound::Following(Some(distance))) = bound
            else {
                continue;
            };
            if let Expr::Cast { expr: value, data_type: SqlType::Interval { .. }, .. } = distance.as_mut()
                && matches!(value.as_ref(), Expr::Value(_))
            {
                let value = std::mem::replace(value, Box::new(Expr::value(Value::Null)));
                **distance = Expr::Interval(Interval {
                    value,
                    leading_field: None,
                    leading_precision: None,
                    last_field: None,
                    fractional_seconds_precision: None,
                });
            }
        }
    }

    fn in_window(window: &mut WindowSpec) {
        window.window_frame.iter_mut().for_each(Self::literals);
    }
}

impl VisitorMut for Intervals {
    type Break = SqlError;

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        for NamedWindowDefinition(_, window) in &mut select.named_window {
            if let NamedWindowExpr::WindowSpec(window) = window {
                Self::in_window(window);
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if let Expr::Function(Function { over: Some(WindowType::WindowSpec(window)), .. }) = expr {
            Self::in_window(window);
        }
        let (value, of) = match expr {
            Expr::Interval(interval) => match fields_of_literal(interval) {
                Some(of) => (interval.value.as_ref(), of),
                None => return ControlFlow::Continue(()),
            },
            Expr::Cast { expr: value, data_type: SqlType::Interval { fields, precision }, .. }
                if fields.is_some() || precision.is_some() =>
            {
                (unnested(value), interval_fields(fields.as_ref(), *precision))
            }
            _ => return ControlFlow::Continue(()),
        };
        let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) = value else {
            return ControlFlow::Continue(());
        };
        let text = if of == IntervalFields::default() {
            text.clone()
        } else {
            match parse_interval_of(text, of) {
                Ok(interval) => written(|out| put_interval(interval, out)),
                Err(error) => return ControlFlow::Break(error),
            }
        };
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(Expr::value(Value::SingleQuotedString(text))),
            data_type: SqlType::Interval { fields: None, precision: None },
            array: false,
            format: None,
        };
        ControlFlow::Continue(())
    }
}

/// The fields named by a literal; `None` for fields of other databases.
fn fields_of_literal(interval: &Interval) -> Option<IntervalFields> {
    use IntervalField as F;
    let field = |field: &DateTimeField| {
        Some(match field {
            DateTimeField::Year | DateTimeField::Years => F::Year,
            DateTimeField::Month | DateTimeField::Months => F::Month,
            DateTimeField::Day | DateTimeField::Days => F::Day,
            DateTimeField::Hour | DateTimeField::Hours => F::Hour,
            DateTimeField::Minute | DateTimeField::Minutes => F::Minute,
            DateTimeField::Second | DateTimeField::Seconds => F::Second,
            _ => return None,
        })
    };
    let fields = match (&interval.leading_field, &interval.last_field) {
        (None, _) => None,
        (Some(first), None) => Some((field(first)?, field(first)?)),
        (Some(first), Some(last)) => Some((field(first)?, field(last)?)),
    };
    // After SECOND alone the parser takes the digits for the precision of a leading field.
    let digits = match fields {
        Some((F::Second, _)) => interval.leading_precision.or(interval.fractional_seconds_precision),
        _ if interval.leading_precision.is_some() => return None,
        _ => interval.fractional_seconds_precision,
    };
    Some(IntervalFields { fields, digits: digits.and_then(|digits| u8::try_from(digits).ok()) })
}

/// The fields named by a type.
fn interval_fields(fields: Option<&SqlFields>, digits: Option<u64>) -> IntervalFields {
    use IntervalField as F;
    let fields = fields.map(|fields| match fields {
        SqlFields::Year => (F::Year, F::Year),
        SqlFields::Month => (F::Month, F::Month),
        SqlFields::Day => (F::Day, F::Day),
        SqlFields::Hour => (F::Hour, F::Hour),
        SqlFields::Minute => (F::Minute, F::Minute),
        SqlFields::Second => (F::Second, F::Second),
        SqlFields::YearToMonth => (F::Year, F::Month),
        SqlFields::DayToHour => (F::Day, F::Hour),
        SqlFields::DayToMinute => (F::Day, F::Minute),
        SqlFields::DayToSecond => (F::Day, F::Second),
        SqlFields::HourToMinute => (F::Hour, F::Minute),
        SqlFields::HourToSecond => (F::Hour, F::Second),
        SqlFields::MinuteToSecond => (F::Minute, F::Second),
    });
    IntervalFields { fields, digits: digits.and_then(|digits| u8::try_from(digits).ok()) }
}
