//! `date_part` and EXTRACT of dates, timestamps and intervals.
//!
//! DataFusion's functions return integers: they truncate seconds, have no century, count years before Christ from 0,
//! and wrap at infinity. For intervals they have no fractions of seconds, and no epoch beyond 68 years. PostgreSQL's
//! `date_part` returns DOUBLE PRECISION, and treats a date as its midnight. Its EXTRACT returns NUMERIC with as many
//! decimals as the unit has. An infinite timestamp has an infinite year and no month. NUMERIC has no infinity here, so
//! EXTRACT refuses an infinite result. The parts of a timestamp with time zone are those of its time in the session's zone.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array};
use arrow::datatypes::{
    DataType, Date32Type, Field, FieldRef, IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions::datetime::date_part;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::clocks;
use crate::engine::ColumnType;
use crate::engine::types::{INTERVAL, TIMESTAMP, is_timestamptz, local_of, timestamptz};
use crate::value::{DAY_MICROSECONDS, Zone, civil_from_days, days_from_civil};
use crate::{SqlError, SqlState};

/// The Julian day of 1970-01-01.
const JULIAN_EPOCH: i64 = 2_440_588;
/// Decimals of a Julian day that includes the time of day.
const JULIAN_SCALE: u8 = 16;

/// Replaces DataFusion's `date_part`.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Part::new(Form::DatePart, Zone::UTC)));
}

/// Replaces the function that DataFusion's planner uses for EXTRACT; both functions get the session's time zone.
pub(super) fn in_place_of(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let known = function.inner().downcast_ref::<Part>().map(|part| part.form);
    let form = if function == date_part() { Some(Form::Extract) } else { known };
    form.map_or(function, |form| Arc::new(ScalarUDF::from(Part::new(form, clocks::zone()))))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    DatePart,
    Extract,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Part {
    form: Form,
    /// The zone of timestamps with time zone.
    zone: Zone,
    signature: Signature,
    /// Both names of DataFusion's function: a name left out would still refer to it.
    aliases: Vec<String>,
}

fn external(state: SqlState, message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(state, message)))
}

fn is_date_or_timestamp(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date32 | DataType::Timestamp(..))
}

impl Part {
    fn new(form: Form, zone: Zone) -> Self {
        let aliases = if form == Form::DatePart { vec!["datepart".to_owned()] } else { Vec::new() };
        Self { form, zone, signature: Signature::user_defined(Volatility::Immutable), aliases }
    }

    fn result_type(&self, unit: Option<Unit>, of: &DataType) -> DataType {
        match self.form {
            Form::DatePart => DataType::Float64,
            Form::Extract => {
                let scale = unit.map_or(0, |unit| unit.scale(of));
                DataType::Decimal128(ColumnType::PRECISION_MAX, scale.cast_signed())
            }
        }
    }

    /// The parts of dates, timestamps or intervals.
    fn parts(&self, unit: Unit, moments: &ArrayRef) -> Result<ArrayRef> {
        let of = moments.data_type();
        let scale = unit.scale(of);
        if let Some(intervals) = moments.as_primitive_opt::<IntervalMonthDayNanoType>() {
            let part = |interval| unit.of_interval(interval).ok_or_else(|| unit.unsupported("interval"));
            let parts = intervals.iter().map(|interval| interval.map(part).transpose());
            if self.form == Form::DatePart {
                let double = |part: i128| part as f64 / 10_f64.powi(scale.into());
                let parts = parts.map(|part| Ok(part?.map(double))).collect::<Result<Float64Array>>()?;
                return Ok(Arc::new(parts));
            }
            let parts = parts.collect::<Result<Decimal128Array>>()?;
            return Ok(Arc::new(parts.with_data_type(self.result_type(Some(unit), of))));
        }
        if unit.is_of_zone() && !is_timestamptz(of) {
            let name = if *of == DataType::Date32 { "date" } else { "timestamp without time zone" };
            return Err(unit.unsupported(name));
        }
        let found = |row: usize| match of {
            _ if moments.is_null(row) => Ok(None),
            DataType::Date32 => Ok(Some(Moment::of_date(moments.as_primitive::<Date32Type>().value(row)))),
            of => {
                let moment = moments.as_primitive::<TimestampMicrosecondType>().value(row);
                if is_timestamptz(of) {
                    Moment::of_instant(moment, unit, self.zone).map(Some)
                } else {
                    Ok(Some(Moment::of_timestamp(moment)))
                }
            }
        };
        let found = (0..moments.len()).map(found).collect::<Result<Vec<_>>>()?;
        let moment = |row: usize| found[row];
        if self.form == Form::DatePart {
            let part = |row| match moment(row)? {
                Moment::At { day, of_day } => Some(unit.double(day, of_day)),
                Moment::Ahead(seconds) => Some(unit.of_zone(seconds) as f64),
                Moment::Infinite(sign) => unit.grows().then_some(f64::INFINITY.copysign(sign)),
            };
            return Ok(Arc::new((0..moments.len()).map(part).collect::<Float64Array>()));
        }
        if *of == DataType::Date32 && unit.is_of_clock() {
            return Err(unit.unsupported("date"));
        }
        let part = |row| match moment(row) {
            Some(Moment::At { day, of_day }) => Ok(Some(unit.value(day, of_day, scale))),
            Some(Moment::Ahead(seconds)) => Ok(Some(unit.of_zone(seconds).into())),
            Some(Moment::Infinite(_)) if unit.grows() => {
                let message = format!("the {} of infinity is infinite, which NUMERIC cannot represent", unit.name());
                let error = SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message);
                Err(DataFusionError::External(Box::new(error.with_hint("date_part returns it as DOUBLE PRECISION."))))
            }
            Some(Moment::Infinite(_)) | None => Ok(None),
        };
        let parts: Decimal128Array = (0..moments.len()).map(part).collect::<Result<_>>()?;
        Ok(Arc::new(parts.with_data_type(self.result_type(Some(unit), of))))
    }
}

impl ScalarUDFImpl for Part {
    fn name(&self) -> &'static str {
        match self.form {
            Form::DatePart => "date_part",
            Form::Extract => "extract",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |argument: &DataType| argument.is_string() || argument.is_null();
        let of = match arguments {
            [unit, DataType::Date32] if is_text(unit) => DataType::Date32,
            [unit, DataType::Timestamp(_, None)] if is_text(unit) => TIMESTAMP,
            [unit, DataType::Timestamp(..)] if is_text(unit) => timestamptz(),
            [unit, DataType::Interval(_) | DataType::Duration(_)] if is_text(unit) => INTERVAL,
            [unit, of] if is_text(unit) && is_text(of) => TIMESTAMP,
            _ => {
                let message = format!("function {} takes a text and a date, timestamp or interval", self.name());
                return Err(external(SqlState::UNDEFINED_FUNCTION, message));
            }
        };
        // The unit must not be cast: until the plan is optimised it would not be a constant, and the result type
        // depends on its value.
        Ok(vec![arguments[0].clone(), of])
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(self.result_type(None, &arguments[1]))
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let of = arguments.arg_fields[1].data_type();
        let Some(unit) = arguments.scalar_arguments.first().copied().flatten() else {
            let message = format!("{} with a unit that is not constant is not supported", self.name());
            return Err(external(SqlState::FEATURE_NOT_SUPPORTED, message));
        };
        let unit = unit.try_as_str().flatten().map(|name| Unit::named(name, of)).transpose()?;
        Ok(Arc::new(Field::new(self.name(), self.result_type(unit, of), true)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let to = arguments.return_type().clone();
        let [ColumnarValue::Scalar(unit), moments] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal(format!("{} takes a unit and a date or timestamp", self.name())));
        };
        let Some(unit) = unit.try_as_str().flatten() else {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from(&to)?));
        };
        let unit = Unit::named(unit, &moments.data_type())?;
        Ok(match moments {
            ColumnarValue::Array(moments) => ColumnarValue::Array(self.parts(unit, moments)?),
            ColumnarValue::Scalar(moment) => {
                let part = self.parts(unit, &moment.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&part, 0)?)
            }
        })
    }
}

/// A date's midnight, or a timestamp.
#[derive(Clone, Copy)]
enum Moment {
    /// Days since 1970-01-01, and microseconds of the day.
    At { day: i64, of_day: i64 },
    /// Of a zone, its distance from UTC in seconds to the east.
    Ahead(i64),
    /// With its sign.
    Infinite(f64),
}

impl Moment {
    fn of_date(days: i32) -> Self {
        match days {
            i32::MAX => Self::Infinite(1.0),
            i32::MIN => Self::Infinite(-1.0),
            days => Self::At { day: days.into(), of_day: 0 },
        }
    }

    /// The local time of an instant, or what the unit asks of it instead.
    fn of_instant(instant: i64, unit: Unit, zone: Zone) -> Result<Self> {
        if matches!(instant, i64::MIN | i64::MAX) || unit == Unit::Epoch {
            return Ok(Self::of_timestamp(instant));
        }
        if unit.is_of_zone() {
            return Ok(Self::Ahead(zone.seconds_at(instant)));
        }
        let local = local_of(instant, zone).map_err(|error| DataFusionError::External(Box::new(error)))?;
        Ok(Self::of_timestamp(local))
    }

    fn of_timestamp(microseconds: i64) -> Self {
        match microseconds {
            i64::MAX => Self::Infinite(1.0),
            i64::MIN => Self::Infinite(-1.0),
            microseconds => Self::At {
                day: microseconds.div_euclid(DAY_MICROSECONDS),
                of_day: microseconds.rem_euclid(DAY_MICROSECONDS),
            },
        }
    }
}

/// The unit to be extracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Microseconds,
    Milliseconds,
    Second,
    Minute,
    Hour,
    Day,
    DayOfWeek,
    IsoDayOfWeek,
    DayOfYear,
    Week,
    Month,
    Quarter,
    Year,
    IsoYear,
    Decade,
    Century,
    Millennium,
    Julian,
    Epoch,
    Zone,
    ZoneHour,
    ZoneMinute,
}

impl Unit {
    fn named(name: &str, of: &DataType) -> Result<Self> {
        let lower = name.trim_matches(['\'', '"']).to_lowercase();
        Ok(match lower.as_str() {
            "microsecond" | "microseconds" | "us" | "usec" | "usecs" => Self::Microseconds,
            "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => Self::Milliseconds,
            "second" | "seconds" | "s" | "sec" | "secs" => Self::Second,
            "minute" | "minutes" | "m" | "min" | "mins" => Self::Minute,
            "hour" | "hours" | "h" | "hr" | "hrs" => Self::Hour,
            "day" | "days" | "d" => Self::Day,
            "dow" => Self::DayOfWeek,
            "isodow" => Self::IsoDayOfWeek,
            "doy" => Self::DayOfYear,
            "week" | "weeks" | "w" => Self::Week,
            "month" | "months" | "mon" | "mons" => Self::Month,
            "quarter" | "qtr" => Self::Quarter,
            "year" | "years" | "y" | "yr" | "yrs" => Self::Year,
            "isoyear" => Self::IsoYear,
            "decade" | "decades" | "dec" | "decs" => Self::Decade,
            "century" | "centuries" | "c" | "cent" => Self::Century,
            "millennium" | "millennia" | "mil" | "mils" => Self::Millennium,
            "julian" => Self::Julian,
            "epoch" => Self::Epoch,
            "timezone" => Self::Zone,
            "timezone_hour" | "timezone_h" => Self::ZoneHour,
            "timezone_minute" | "timezone_m" => Self::ZoneMinute,
            _ => {
                let of = match of {
                    DataType::Date32 => "date",
                    of if is_timestamptz(of) => "timestamp with time zone",
                    of if is_date_or_timestamp(of) => "timestamp without time zone",
                    _ => "interval",
                };
                let message = format!("unit \"{lower}\" not recognized for type {of}");
                return Err(external(SqlState::INVALID_PARAMETER_VALUE, message));
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "microseconds",
            Self::Milliseconds => "milliseconds",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::DayOfWeek => "dow",
            Self::IsoDayOfWeek => "isodow",
            Self::DayOfYear => "doy",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
            Self::IsoYear => "isoyear",
            Self::Decade => "decade",
            Self::Century => "century",
            Self::Millennium => "millennium",
            Self::Julian => "julian",
            Self::Epoch => "epoch",
            Self::Zone => "timezone",
            Self::ZoneHour => "timezone_hour",
            Self::ZoneMinute => "timezone_minute",
        }
    }

    fn unsupported(self, of: &str) -> DataFusionError {
        let message = format!("unit \"{}\" not supported for type {of}", self.name());
        external(SqlState::FEATURE_NOT_SUPPORTED, message)
    }

    /// Whether it is a part of the time of day, which a date does not have.
    fn is_of_clock(self) -> bool {
        matches!(self, Self::Microseconds | Self::Milliseconds | Self::Second | Self::Minute | Self::Hour)
    }

    /// Whether it is a part of the distance from UTC.
    fn is_of_zone(self) -> bool {
        matches!(self, Self::Zone | Self::ZoneHour | Self::ZoneMinute)
    }

    /// A part of a distance from UTC, in seconds to the east.
    fn of_zone(self, seconds: i64) -> i64 {
        match self {
            Self::ZoneHour => seconds / 3_600,
            Self::ZoneMinute => seconds / 60 % 60,
            _ => seconds,
        }
    }

    /// Whether it grows without bound, so that it is infinite at infinity. Other units are cyclic.
    fn grows(self) -> bool {
        use Unit::{Century, Decade, Epoch, IsoYear, Julian, Millennium, Year};
        matches!(self, Year | IsoYear | Decade | Century | Millennium | Julian | Epoch)
    }

    /// The scale of its NUMERIC.
    fn scale(self, of: &DataType) -> u8 {
        let is_date = *of == DataType::Date32;
        match self {
            Self::Milliseconds => 3,
            Self::Second => 6,
            Self::Epoch if !is_date => 6,
            Self::Julian if !is_date => JULIAN_SCALE,
            _ => 0,
        }
    }

    /// The value times `10^scale`.
    fn value(self, day: i64, of_day: i64, scale: u8) -> i128 {
        let (year, month, day_of_month) = civil_from_days(day);
        let first_day = |year| days_from_civil(year, 1, 1).unwrap_or(day);
        // A week belongs to the year of its Thursday; 1970-01-01 was a Thursday.
        let thursday = day - (day + 3).rem_euclid(7) + 3;
        let (iso_year, ..) = civil_from_days(thursday);
        // There is no year 0: -1 precedes 1.
        let shown = |year: i64| if year > 0 { year } else { year - 1 };
        let span = |years: i64| {
            if year > 0 { (year + years - 1) / years } else { -((years - 1 - (year - 1)) / years) }
        };
        let part = match self {
            Self::Microseconds | Self::Milliseconds | Self::Second => of_day % 60_000_000,
            Self::Minute => of_day / 60_000_000 % 60,
            Self::Hour => of_day / 3_600_000_000,
            Self::Day => day_of_month.into(),
            Self::DayOfWeek => (day + 4).rem_euclid(7),
            Self::IsoDayOfWeek => (day + 3).rem_euclid(7) + 1,
            Self::DayOfYear => day - first_day(year) + 1,
            Self::Week => (thursday - first_day(iso_year)) / 7 + 1,
            Self::Month => month.into(),
            Self::Quarter => i64::from((month - 1) / 3 + 1),
            Self::Year => shown(year),
            Self::IsoYear => shown(iso_year),
            Self::Decade if year >= 0 => year / 10,
            Self::Decade => -((8 - (year - 1)) / 10),
            Self::Century => span(100),
            Self::Millennium => span(1000),
            Self::Julian => {
                let unit = 10_i128.pow(scale.into());
                let part =
                    (i128::from(of_day) * unit + i128::from(DAY_MICROSECONDS / 2)) / i128::from(DAY_MICROSECONDS);
                return i128::from(day + JULIAN_EPOCH) * unit + part;
            }
            Self::Epoch => {
                let microseconds = i128::from(day) * i128::from(DAY_MICROSECONDS) + i128::from(of_day);
                return if scale == 0 { microseconds / 1_000_000 } else { microseconds };
            }
            // A part of the zone, not of a moment in it.
            Self::Zone | Self::ZoneHour | Self::ZoneMinute => 0,
        };
        part.into()
    }

    /// The value for an interval times `10^scale`; `None` if an interval does not have the unit.
    fn of_interval(self, interval: IntervalMonthDayNano) -> Option<i128> {
        /// A year of 365.25 days.
        const YEAR_SECONDS: i128 = 31_557_600;
        let (years, months) = (interval.months / 12, interval.months % 12);
        let microseconds = interval.nanoseconds / 1000;
        Some(match self {
            Self::Microseconds | Self::Milliseconds | Self::Second => (microseconds % 60_000_000).into(),
            Self::Minute => (microseconds / 60_000_000 % 60).into(),
            Self::Hour => (microseconds / 3_600_000_000).into(),
            Self::Day => interval.days.into(),
            Self::Month => months.into(),
            Self::Quarter => (months / 3 + 1).into(),
            Self::Year => years.into(),
            Self::Decade => (years / 10).into(),
            Self::Century => (years / 100).into(),
            Self::Millennium => (years / 1000).into(),
            Self::Epoch => {
                let days = i128::from(months) * 30 + i128::from(interval.days);
                (i128::from(years) * YEAR_SECONDS + days * 86_400) * 1_000_000 + i128::from(microseconds)
            }
            Self::DayOfWeek
            | Self::IsoDayOfWeek
            | Self::DayOfYear
            | Self::Week
            | Self::IsoYear
            | Self::Julian
            | Self::Zone
            | Self::ZoneHour
            | Self::ZoneMinute => return None,
        })
    }

    fn double(self, day: i64, of_day: i64) -> f64 {
        let scale = self.scale(&TIMESTAMP);
        match self {
            Self::Julian => (day + JULIAN_EPOCH) as f64 + of_day as f64 / 1e6 / 86_400.0,
            _ => self.value(day, of_day, scale) as f64 / 10_f64.powi(scale.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of PostgreSQL 15.
    #[test]
    fn parts_of_moments_before_and_after_christ() {
        let units = [
            Unit::Year,
            Unit::IsoYear,
            Unit::Decade,
            Unit::Century,
            Unit::Millennium,
            Unit::Quarter,
            Unit::Week,
            Unit::DayOfWeek,
            Unit::IsoDayOfWeek,
            Unit::DayOfYear,
        ];
        for ((year, month, day), expected) in [
            // 2024-02-29, 2000-12-31, 1999-01-03, 0001-01-01, 0001-12-31 BC, 0044-03-15 BC
            ((2024, 2, 29), [2024, 2024, 202, 21, 3, 1, 9, 4, 4, 60]),
            ((2000, 12, 31), [2000, 2000, 200, 20, 2, 4, 52, 0, 7, 366]),
            ((1999, 1, 3), [1999, 1998, 199, 20, 2, 1, 53, 0, 7, 3]),
            ((1, 1, 1), [1, 1, 0, 1, 1, 1, 1, 1, 1, 1]),
            ((0, 12, 31), [-1, -1, 0, -1, -1, 4, 52, 0, 7, 366]),
            ((-43, 3, 15), [-44, -44, -5, -1, -1, 1, 11, 5, 5, 74]),
        ] {
            let days = days_from_civil(year, month, day).unwrap();
            assert_eq!(units.map(|unit| unit.value(days, 0, 0)), expected, "{year}-{month}-{day}");
        }
    }

    /// The values are those of PostgreSQL 15.
    #[test]
    fn parts_of_intervals() {
        let part = |unit: Unit, months, days, microseconds: i64| {
            unit.of_interval(IntervalMonthDayNano::new(months, days, microseconds * 1000))
        };
        assert_eq!(part(Unit::Second, 0, -1, -7_390_500_000), Some(-10_500_000));
        assert_eq!(part(Unit::Minute, 0, -1, -7_390_500_000), Some(-3));
        assert_eq!(part(Unit::Hour, 0, 2, 50 * 3_600_000_000), Some(50));
        assert_eq!(part(Unit::Month, -25, 0, 0), Some(-1));
        assert_eq!(part(Unit::Quarter, -25, 0, 0), Some(1));
        assert_eq!(part(Unit::Millennium, -2125 * 12, 0, 0), Some(-2));
        assert_eq!(part(Unit::Epoch, 14, 3, 4_500_000), Some(37_000_804_500_000));
        assert_eq!(part(Unit::Epoch, -17, 0, 0), Some(-44_517_600_000_000));
        assert_eq!(part(Unit::Week, 0, 8, 0), None);
    }

    #[test]
    fn parts_of_a_time_of_day() {
        // 2024-02-29 23:59:59.5
        let day = days_from_civil(2024, 2, 29).unwrap();
        let of_day = DAY_MICROSECONDS - 500_000;
        assert_eq!(Unit::Second.value(day, of_day, 6), 59_500_000);
        assert_eq!(Unit::Minute.value(day, of_day, 0), 59);
        assert_eq!(Unit::Hour.value(day, of_day, 0), 23);
        assert_eq!(Unit::Epoch.value(day, of_day, 6), 1_709_251_199_500_000);
        assert_eq!(Unit::Milliseconds.double(day, of_day).to_bits(), 59_500.0_f64.to_bits());
        assert_eq!(Unit::Julian.value(day, DAY_MICROSECONDS / 2, 1), 24_603_705);
    }
}
