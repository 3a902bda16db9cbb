//! Answers as text, and the rule by which two are equal.
//!
//! Two numbers with a fraction are equal if they differ by at most one in a million, and by at most 100, or in the fifth
//! place: stricter than the specification (2.1.3.5), which allows 100 dollars in a sum and a hundredth of an average. Its
//! own answers are rounded, so against those a number may also be off by one in the second place. Everything else is equal
//! only exactly. Rows that an `ORDER BY` leaves in any order may come in any order.

use std::fmt;

use tpchgen::q_and_a::answers_sf1;

/// The rows of an answer.
pub struct Answer {
    rows: Vec<Vec<String>>,
}

/// The difference of numbers with a fraction that is always permitted. Some engines divide decimals, some in floating point.
const ENGINES: f64 = 5e-5;
/// The same, against the specification's answers, which have two places.
const OFFICIAL: f64 = 0.010_001;

impl Answer {
    /// Of rows of cells.
    pub fn new(rows: Vec<Vec<String>>) -> Self {
        Self {
            rows: rows.into_iter().map(|row| row.into_iter().map(|cell| cell.trim().to_owned()).collect()).collect(),
        }
    }

    /// The specification's answer of query `number` at scale factor 1.
    fn official(number: usize) -> Self {
        let text = answers_sf1::answer(number as i32).expect("an answer of every query");
        let rows = text.trim_matches('\n').lines().skip(1);
        Self::new(rows.map(|row| row.split('|').map(str::to_owned).collect()).collect())
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// How this differs from another engine's answer; `None`: not at all.
    pub fn difference(&self, other: &Self) -> Option<String> {
        self.difference_within(other, ENGINES)
    }

    /// How this differs from the specification's answer of query `number` at scale factor 1.
    pub fn difference_from_official(&self, number: usize) -> Option<String> {
        let mut ours = Self { rows: self.rows.clone() };
        if number == 11 {
            // The text of this answer has lost the last two digits of the part keys.
            for row in &mut ours.rows {
                let digits = row[0].len().saturating_sub(2);
                row[0].truncate(digits);
            }
        }
        ours.difference_within(&Self::official(number), OFFICIAL)
    }

    fn difference_within(&self, other: &Self, absolute: f64) -> Option<String> {
        if self.rows.len() != other.rows.len() {
            return Some(format!("{} rows instead of {}", self.rows.len(), other.rows.len()));
        }
        let in_order = first_difference(self.rows.iter(), other.rows.iter(), absolute)?;
        first_difference(self.sorted().into_iter(), other.sorted().into_iter(), absolute).map(|_| in_order)
    }

    /// Sorted by the cells that are equal only exactly.
    fn sorted(&self) -> Vec<&Vec<String>> {
        let mut rows: Vec<&Vec<String>> = self.rows.iter().collect();
        rows.sort_by_cached_key(|row| row.iter().filter(|cell| fraction(cell).is_none()).cloned().collect::<Vec<_>>());
        rows
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", row.join(" | ")))
    }
}

fn first_difference<'a>(
    ours: impl Iterator<Item = &'a Vec<String>>,
    theirs: impl Iterator<Item = &'a Vec<String>>,
    absolute: f64,
) -> Option<String> {
    ours.zip(theirs).enumerate().find_map(|(number, (ours, theirs))| {
        let equal = ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| cells_equal(a, b, absolute));
        (!equal).then(|| format!("row {}: {ours:?} instead of {theirs:?}", number + 1))
    })
}

fn cells_equal(ours: &str, theirs: &str, absolute: f64) -> bool {
    if ours == theirs {
        return true;
    }
    if fraction(ours).is_none() && fraction(theirs).is_none() {
        return false;
    }
    let (Ok(ours), Ok(theirs)) = (ours.parse::<f64>(), theirs.parse::<f64>()) else { return false };
    (ours - theirs).abs() <= absolute.max((1e-6 * theirs.abs()).min(100.0))
}

/// The number, where the text is one with a fraction.
fn fraction(text: &str) -> Option<f64> {
    if text.contains(['.', 'e']) { text.parse().ok() } else { None }
}
