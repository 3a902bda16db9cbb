//! What the numbers of a text add up to: months, days and microseconds, each in its range.

use arrow::datatypes::IntervalMonthDayNano;

use super::unit::{Number, Unit};
use super::{IntervalField, IntervalFields, Wrong};
use crate::value::datetime::{DAY_MICROSECONDS, HOUR_US, MINUTE_US, SECOND_US};

const DAYS_OF_MONTH: f64 = 30.0;

/// The interval parsed so far.
#[derive(Default)]
pub(super) struct Sum {
    months: i64,
    days: i64,
    microseconds: i64,
    /// The units that have occurred.
    met: Vec<Unit>,
}

impl Sum {
    /// Whether no unit has occurred.
    pub(super) fn is_empty(&self) -> bool {
        self.met.is_empty()
    }

    fn met(&mut self, unit: Unit) -> Result<(), Wrong> {
        if self.met.contains(&unit) {
            return Err(Wrong::Syntax);
        }
        self.met.push(unit);
        Ok(())
    }

    pub(super) fn add(&mut self, number: Number, unit: Unit) -> Result<(), Wrong> {
        self.met(unit)?;
        let Number { whole, fraction } = number;
        match unit {
            Unit::Years(years) => {
                let months = (fraction * f64::from(years) * 12.0).round_ties_even();
                self.add_months(whole, i64::from(years) * 12)?;
                self.add_months(months as i64, 1)
            }
            Unit::Month => {
                self.add_months(whole, 1)?;
                self.add_part_of_days(fraction * DAYS_OF_MONTH)
            }
            Unit::Week => {
                self.add_days(whole, 7)?;
                self.add_part_of_days(fraction * 7.0)
            }
            Unit::Day => {
                self.add_days(whole, 1)?;
                self.add_part_of_microseconds(fraction * DAY_MICROSECONDS as f64)
            }
            Unit::Time(microseconds) => {
                self.add_microseconds(whole, microseconds)?;
                self.add_part_of_microseconds(fraction * microseconds as f64)
            }
        }
    }

    /// `4:05`, `4:05:06.7`, or `5:06.7`, which means minutes and seconds.
    pub(super) fn add_time(&mut self, text: &str, of: IntervalFields) -> Result<(), Wrong> {
        let is_short = of.fields == Some((IntervalField::Minute, IntervalField::Second));
        for unit in [Unit::HOUR, Unit::MINUTE, Unit::SECOND] {
            self.met(unit)?;
        }
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(unsigned) => (true, unsigned),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        // A point in the last part marks it as seconds.
        let (before_last, last) = unsigned.rsplit_once(':').ok_or(Wrong::Syntax)?;
        if unsigned.contains(['+', '-']) || before_last.contains('.') {
            return Err(Wrong::Syntax);
        }
        let parts = unsigned.split(':').map(Number::parse).collect::<Result<Vec<Number>, Wrong>>()?;
        let none = Number { whole: 0, fraction: 0.0 };
        let (hours, minutes, seconds) = match parts.as_slice() {
            [minutes, seconds] if is_short || last.contains('.') => (none, *minutes, *seconds),
            [hours, minutes] => (*hours, *minutes, none),
            [hours, minutes, seconds] => (*hours, *minutes, *seconds),
            _ => return Err(Wrong::Syntax),
        };
        if minutes.whole > 59 || seconds.whole > 60 {
            return Err(Wrong::Range);
        }
        let sign = if is_negative { -1 } else { 1 };
        for (number, microseconds) in [(hours, HOUR_US), (minutes, MINUTE_US), (seconds, SECOND_US)] {
            self.add_microseconds(number.whole, sign * microseconds)?;
            self.add_part_of_microseconds(number.fraction * (sign * microseconds) as f64)?;
        }
        Ok(())
    }

    /// `2-3`: years and months.
    pub(super) fn add_years_and_months(&mut self, text: &str) -> Result<(), Wrong> {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let (years, months) = digits.split_once('-').ok_or(Wrong::Syntax)?;
        let (years, months) = (Number::parse(years)?, Number::parse(months)?);
        if years.fraction != 0.0 || months.fraction != 0.0 {
            return Err(Wrong::Syntax);
        }
        if !(0..12).contains(&months.whole) {
            return Err(Wrong::Range);
        }
        self.met(Unit::Month)?;
        self.add_months(years.whole, sign * 12)?;
        self.add_months(months.whole, sign)
    }

    fn add_months(&mut self, count: i64, months: i64) -> Result<(), Wrong> {
        added(&mut self.months, count, months)
    }

    fn add_days(&mut self, count: i64, days: i64) -> Result<(), Wrong> {
        added(&mut self.days, count, days)
    }

    fn add_microseconds(&mut self, count: i64, microseconds: i64) -> Result<(), Wrong> {
        added(&mut self.microseconds, count, microseconds)
    }

    fn add_part_of_days(&mut self, days: f64) -> Result<(), Wrong> {
        self.add_days(days.trunc() as i64, 1)?;
        self.add_part_of_microseconds(days.fract() * DAY_MICROSECONDS as f64)
    }

    /// Half a microsecond is rounded towards zero.
    fn add_part_of_microseconds(&mut self, microseconds: f64) -> Result<(), Wrong> {
        let rest = microseconds.fract();
        let more = i64::from(rest > 0.5) - i64::from(rest < -0.5);
        self.add_microseconds(microseconds.trunc() as i64 + more, 1)
    }

    /// Cuts off fields that the type does not have, and rounds the seconds half away from zero.
    pub(super) fn cut(&mut self, of: IntervalFields) {
        let unit = match of.fields.map(|(_, last)| last) {
            Some(IntervalField::Year) => {
                (self.months, self.days, self.microseconds) = (self.months / 12 * 12, 0, 0);
                return;
            }
            Some(IntervalField::Month) => {
                (self.days, self.microseconds) = (0, 0);
                return;
            }
            Some(IntervalField::Day) => DAY_MICROSECONDS,
            Some(IntervalField::Hour) => HOUR_US,
            Some(IntervalField::Minute) => MINUTE_US,
            Some(IntervalField::Second) | None => 1,
        };
        self.microseconds = if unit == DAY_MICROSECONDS { 0 } else { self.microseconds / unit * unit };
        if let Some(digits) = of.digits.filter(|digits| *digits < 6) {
            let step = 10_i64.pow(6 - u32::from(digits));
            let half = self.microseconds.signum() * step / 2;
            self.microseconds = self.microseconds.saturating_add(half) / step * step;
        }
    }

    pub(super) fn negate(&mut self) {
        for part in [&mut self.months, &mut self.days, &mut self.microseconds] {
            *part = part.saturating_neg();
        }
    }

    pub(super) fn finish(self) -> Result<IntervalMonthDayNano, Wrong> {
        let months = i32::try_from(self.months).map_err(|_| Wrong::Range)?;
        let days = i32::try_from(self.days).map_err(|_| Wrong::Range)?;
        let nanoseconds = self.microseconds.checked_mul(1000).ok_or(Wrong::Range)?;
        Ok(IntervalMonthDayNano::new(months, days, nanoseconds))
    }
}

fn added(part: &mut i64, count: i64, units: i64) -> Result<(), Wrong> {
    let more = count.checked_mul(units).ok_or(Wrong::Range)?;
    *part = part.checked_add(more).ok_or(Wrong::Range)?;
    Ok(())
}
