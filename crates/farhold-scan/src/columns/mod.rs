//! A predicate compiled for the chunks of some rows: which rows of a block pass. A comparison with a constant becomes a range of codes once for each chunk, and
//! the kernel compares packed codes. Values without codes are compared row by row. A condition costs nothing on a chunk that has no code in the range. If all
//! rows pass, or none, the rows are not read.

#[cfg(test)]
pub(crate) mod conformance;
mod zones;

pub use zones::excludes;

use std::ops::Bound;

use farhold_store::column::{BLOCK_ROWS, Chunk, Encoding, after_prefix, ordered_double, ordered_real};
use farhold_store::row::{ColumnType, Schema};

use crate::kernels::{Bits, Kernel, Range};
use crate::predicate::{Comparison, Condition, Constant, Predicate};

/// No row.
const NONE: Bits = [0; BLOCK_ROWS / 64];

/// Where a condition holds in a chunk.
#[derive(Clone, Debug)]
enum Term {
    /// In rows whose code is in one of the ranges, or (`true`) in none. No two ranges overlap or adjoin.
    Codes(usize, Vec<Range>, bool),
    /// In rows whose decimal of more than 18 digits satisfies this comparison.
    Wide(usize, Comparison, i128),
    /// In rows whose decimal of more than 18 digits is one of these, in order, or (`true`) none.
    WideIn(usize, Vec<i128>, bool),
    /// In rows whose text satisfies this comparison.
    Text(usize, Comparison, Vec<u8>),
    /// In rows whose text is one of these, in order, or (`true`) none.
    TextIn(usize, Vec<Vec<u8>>, bool),
    /// In rows whose text begins with these bytes, or (`true`) does not.
    Prefix(usize, Vec<u8>, bool),
    Null(usize, bool),
    Any(Vec<Vec<Term>>),
    Never,
}

/// Decides a [`Predicate`] on the chunks of the same rows.
#[derive(Clone, Debug)]
pub struct ColumnFilter<'a> {
    rows: usize,
    /// At least those of the predicate's columns.
    chunks: Vec<Option<Chunk<'a>>>,
    terms: Vec<Term>,
    kernel: &'static Kernel,
}

/// Kernels pass over a block once for each range of codes, some 0.07 ns a code. For more ranges, each code is looked up in their list.
const PASSES_MAX: usize = 32;

impl<'a> ColumnFilter<'a> {
    /// For the chunks of a table's columns, one each and in the order of the schema, all of the same rows.
    ///
    /// # Panics
    /// If the predicate does not fit the table ([`Predicate::check`]), or the chunks are not one a column, with the same number of
    /// rows and encodings for their columns' types ([`Chunk::open_for`] returns an error for those that are not).
    #[must_use]
    pub fn new(schema: &Schema, predicate: &Predicate, chunks: &'a [Chunk<'a>]) -> Self {
        assert_eq!(chunks.len(), schema.columns().len(), "a chunk for each column");
        let rows = chunks.first().map_or(0, Chunk::rows);
        Self::of_some(schema, predicate, rows, chunks.iter().copied().map(Some).collect())
    }

    /// For the chunks of some of a table's columns, all of the same `rows` rows: a place for each column in the order of the schema, filled
    /// for the predicate's columns at least.
    ///
    /// # Panics
    /// As [`Self::new`], or if a column of the predicate has no chunk.
    #[must_use]
    pub fn of_some(schema: &Schema, predicate: &Predicate, rows: usize, chunks: Vec<Option<Chunk<'a>>>) -> Self {
        predicate.check(schema);
        assert_eq!(chunks.len(), schema.columns().len(), "a place for each column");
        for (column, chunk) in schema.columns().iter().zip(&chunks) {
            let Some(chunk) = chunk else { continue };
            let (name, encoding) = (&column.name, chunk.encoding());
            assert!(
                encoding.fits(column.data_type),
                "{encoding:?} of the column {name}, which is {}",
                column.data_type
            );
            assert_eq!(chunk.rows(), rows, "rows of the column {name}");
        }
        let terms = Compile { schema, chunks: &chunks }.conjunction(predicate.conditions());
        Self { rows, chunks, terms, kernel: Kernel::best() }
    }

    /// Whether the chunks' least and greatest values show that no row passes.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.terms.iter().any(Term::is_nothing)
    }

    /// Sets in `bits` the bits of the rows of a block that pass. Bits beyond the last row are not set.
    ///
    /// # Panics
    /// If the chunks have no such block.
    pub fn select(&self, block: usize, bits: &mut Bits) {
        let here = self.rows.saturating_sub(block * BLOCK_ROWS).min(BLOCK_ROWS);
        assert!(here > 0, "block {block} of {} rows", self.rows);
        *bits = NONE;
        for (word, bits) in bits.iter_mut().enumerate() {
            *bits = match here.saturating_sub(word * 64) {
                0 => 0,
                64.. => u64::MAX,
                some => u64::MAX >> (64 - some),
            };
        }
        self.conjunction(&self.terms, block, bits);
    }

    fn chunk(&self, column: usize) -> &Chunk<'a> {
        chunk_of(&self.chunks, column)
    }

    /// Clears the bits of rows that fail one of `terms`.
    fn conjunction(&self, terms: &[Term], block: usize, bits: &mut Bits) {
        for term in terms {
            if *bits == NONE {
                return;
            }
            self.term(term, block, bits);
        }
    }

    fn term(&self, term: &Term, block: usize, bits: &mut Bits) {
        match term {
            Term::Codes(column, ranges, negated) if ranges.len() > PASSES_MAX => {
                let chunk = self.chunk(*column);
                each(bits, block, |row| Range::one_has(ranges, chunk.code(row)) != *negated);
                self.without_nulls(*column, block, bits);
            }
            Term::Codes(column, ranges, negated) => {
                let chunk = self.chunk(*column);
                let mut found = NONE;
                for range in ranges {
                    let mut more = NONE;
                    self.kernel.select(chunk.codes(block), chunk.width(), *range, &mut more);
                    found.iter_mut().zip(more).for_each(|(found, more)| *found |= more);
                }
                if *negated {
                    found = found.map(|word| !word);
                }
                and(bits, &found);
                self.without_nulls(*column, block, bits);
            }
            Term::Wide(column, comparison, constant) => {
                let chunk = self.chunk(*column);
                each(bits, block, |row| chunk.wide(row).is_some_and(|value| comparison.holds(value.cmp(constant))));
            }
            Term::WideIn(column, list, negated) => {
                let holds = |value: i128| list.binary_search(&value).is_ok() != *negated;
                let chunk = self.chunk(*column);
                each(bits, block, |row| chunk.wide(row).is_some_and(holds));
            }
            Term::Text(column, comparison, constant) => {
                let holds = |text: &[u8]| comparison.holds(text.cmp(constant.as_slice()));
                let chunk = self.chunk(*column);
                each(bits, block, |row| chunk.text(row).is_some_and(holds));
            }
            Term::TextIn(column, list, negated) => {
                let holds = |text: &[u8]| list.binary_search_by(|item| item.as_slice().cmp(text)).is_ok() != *negated;
                let chunk = self.chunk(*column);
                each(bits, block, |row| chunk.text(row).is_some_and(holds));
            }
            Term::Prefix(column, prefix, negated) => {
                let holds = |text: &[u8]| text.starts_with(prefix) != *negated;
                let chunk = self.chunk(*column);
                each(bits, block, |row| chunk.text(row).is_some_and(holds));
            }
            Term::Null(column, wanted) => match (self.chunk(*column).nulls(block), wanted) {
                (None, true) => *bits = NONE,
                (None, false) => {}
                (Some(nulls), true) => and(bits, &nulls),
                (Some(_), false) => self.without_nulls(*column, block, bits),
            },
            Term::Any(ways) => {
                let mut found = NONE;
                for way in ways {
                    let mut passing = *bits;
                    self.conjunction(way, block, &mut passing);
                    found.iter_mut().zip(passing).for_each(|(found, passing)| *found |= passing);
                }
                *bits = found;
            }
            Term::Never => *bits = NONE,
        }
    }

    fn without_nulls(&self, column: usize, block: usize, bits: &mut Bits) {
        if let Some(nulls) = self.chunk(column).nulls(block) {
            bits.iter_mut().zip(nulls).for_each(|(bits, nulls)| *bits &= !nulls);
        }
    }
}

impl Term {
    fn is_nothing(&self) -> bool {
        match self {
            Self::Codes(_, ranges, negated) => ranges.is_empty() && !negated,
            Self::WideIn(_, list, negated) => list.is_empty() && !negated,
            Self::TextIn(_, list, negated) => list.is_empty() && !negated,
            Self::Any(ways) => ways.iter().all(|way| way.iter().any(Self::is_nothing)),
            Self::Never => true,
            _ => false,
        }
    }
}

fn and(bits: &mut Bits, other: &Bits) {
    bits.iter_mut().zip(other).for_each(|(bits, other)| *bits &= other);
}

/// Clears the bits of rows for which `holds` is false.
fn each(bits: &mut Bits, block: usize, holds: impl Fn(usize) -> bool) {
    for (word, bits) in bits.iter_mut().enumerate() {
        let mut left = *bits;
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            if !holds(block * BLOCK_ROWS + word * 64 + bit) {
                *bits &= !(1 << bit);
            }
        }
    }
}

fn chunk_of<'c, 'a>(chunks: &'c [Option<Chunk<'a>>], column: usize) -> &'c Chunk<'a> {
    chunks[column].as_ref().unwrap_or_else(|| panic!("column {column} of the predicate has no chunk"))
}

struct Compile<'c, 'a> {
    schema: &'c Schema,
    chunks: &'c [Option<Chunk<'a>>],
}

impl<'c, 'a> Compile<'c, 'a> {
    fn chunk(&self, column: usize) -> &'c Chunk<'a> {
        chunk_of(self.chunks, column)
    }

    fn conjunction(&self, conditions: &[Condition]) -> Vec<Term> {
        conditions.iter().map(|condition| self.condition(condition)).collect()
    }

    fn condition(&self, condition: &Condition) -> Term {
        match condition {
            Condition::Compare(column, comparison, constant) => self.compare(*column, *comparison, constant),
            Condition::In(column, constants, negated) => self.list(*column, constants, *negated),
            Condition::Prefix(column, prefix, negated) => self.prefix(*column, prefix, *negated),
            Condition::Null(column, wanted) => Term::Null(*column, *wanted),
            Condition::Any(ways) => Term::Any(ways.iter().map(|way| self.conjunction(way)).collect()),
            Condition::Never => Term::Never,
        }
    }

    fn compare(&self, column: usize, comparison: Comparison, constant: &Constant) -> Term {
        let chunk = self.chunk(column);
        match chunk.encoding() {
            Encoding::Frame | Encoding::Dictionary => {
                // A value is not equal if it is in no range of equal values.
                let negated = comparison == Comparison::NotEqual;
                let range = self.integers(column, if negated { Comparison::Equal } else { comparison }, constant);
                Term::Codes(column, range.into_iter().collect(), negated)
            }
            Encoding::Wide => Term::Wide(column, comparison, constant.whole()),
            Encoding::TextDictionary => {
                let negated = comparison == Comparison::NotEqual;
                let (least, greatest) = between(if negated { Comparison::Equal } else { comparison }, constant.bytes());
                Term::Codes(column, range(chunk.text_range(least, greatest)).into_iter().collect(), negated)
            }
            Encoding::Text => Term::Text(column, comparison, constant.bytes().to_vec()),
        }
    }

    /// The codes of a chunk of integers that satisfy a comparison; not for `<>`.
    fn integers(&self, column: usize, comparison: Comparison, constant: &Constant) -> Option<Range> {
        let (least, greatest) = integers_between(self.schema.columns()[column].data_type, comparison, constant)?;
        range(self.chunk(column).integer_range(least, greatest))
    }

    fn list(&self, column: usize, constants: &[Constant], negated: bool) -> Term {
        match self.chunk(column).encoding() {
            Encoding::Text => {
                let mut texts: Vec<Vec<u8>> = constants.iter().map(|constant| constant.bytes().to_vec()).collect();
                texts.sort();
                Term::TextIn(column, texts, negated)
            }
            Encoding::Wide => {
                let mut values: Vec<i128> = constants.iter().map(Constant::whole).collect();
                values.sort_unstable();
                Term::WideIn(column, values, negated)
            }
            Encoding::Frame | Encoding::Dictionary | Encoding::TextDictionary => {
                let equal = |constant: &Constant| match self.compare(column, Comparison::Equal, constant) {
                    Term::Codes(_, ranges, _) => ranges,
                    other => unreachable!("{other:?} of an encoding with codes"),
                };
                Term::Codes(column, Range::merged(constants.iter().flat_map(equal).collect()), negated)
            }
        }
    }

    fn prefix(&self, column: usize, prefix: &[u8], negated: bool) -> Term {
        let chunk = self.chunk(column);
        if chunk.encoding() == Encoding::Text {
            return Term::Prefix(column, prefix.to_vec(), negated);
        }
        let after = after_prefix(prefix);
        let greatest = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        Term::Codes(column, range(chunk.text_range(Bound::Included(prefix), greatest)).into_iter().collect(), negated)
    }
}

fn range(codes: Option<(u64, u64)>) -> Option<Range> {
    codes.and_then(|(first, last)| Range::new(first, last))
}

/// The bounds of the values that satisfy a comparison with a value; not for `<>`.
fn between<V: ?Sized>(comparison: Comparison, value: &V) -> (Bound<&V>, Bound<&V>) {
    match comparison {
        Comparison::Equal => (Bound::Included(value), Bound::Included(value)),
        Comparison::NotEqual => unreachable!("the caller negates ="),
        Comparison::Less => (Bound::Unbounded, Bound::Excluded(value)),
        Comparison::LessEqual => (Bound::Unbounded, Bound::Included(value)),
        Comparison::Greater => (Bound::Excluded(value), Bound::Unbounded),
        Comparison::GreaterEqual => (Bound::Included(value), Bound::Unbounded),
    }
}

/// The least and the greatest integer that may stand for a value of a column that satisfies a comparison; not for `<>`.
fn integers_between(data_type: ColumnType, comparison: Comparison, constant: &Constant) -> Option<(i64, i64)> {
    // The least value that is not below the constant, and the greatest that is not above it.
    let (not_below, not_above) = match constant {
        Constant::Integer(integer) => (Some(*integer), Some(*integer)),
        // Beyond 64 bits: all values are on one side of it.
        Constant::Wide(wide) => match i64::try_from(*wide) {
            Ok(integer) => (Some(integer), Some(integer)),
            Err(_) if *wide < 0 => (Some(i64::MIN), None),
            Err(_) => (None, Some(i64::MAX)),
        },
        Constant::Float(float) if data_type == ColumnType::Real => around_real(*float),
        // The zeros are neighbours, and equal.
        Constant::Float(0.0) => (Some(ordered_double(-0.0)), Some(ordered_double(0.0))),
        Constant::Float(float) => (Some(ordered_double(*float)), Some(ordered_double(*float))),
        Constant::Bytes(_) => unreachable!("a column that is no text has been checked to have no such constant"),
    };
    Some(match comparison {
        Comparison::Equal => (not_below?, not_above?),
        Comparison::NotEqual => unreachable!("the caller negates ="),
        Comparison::Less => (i64::MIN, not_below.map_or(Some(i64::MAX), |value| value.checked_sub(1))?),
        Comparison::LessEqual => (i64::MIN, not_above?),
        Comparison::Greater => (not_above.map_or(Some(i64::MIN), |value| value.checked_add(1))?, i64::MAX),
        Comparison::GreaterEqual => (not_below?, i64::MAX),
    })
}

/// The least real that is not below a double, and the greatest that is not above it.
fn around_real(float: f64) -> (Option<i64>, Option<i64>) {
    if float == 0.0 {
        return (Some(ordered_real(-0.0)), Some(ordered_real(0.0)));
    }
    let nearest = float as f32;
    let ordered = ordered_real(nearest);
    match f64::from(nearest).partial_cmp(&float) {
        Some(std::cmp::Ordering::Less) => (Some(ordered + 1), Some(ordered)),
        Some(std::cmp::Ordering::Greater) => (Some(ordered), Some(ordered - 1)),
        _ => (Some(ordered), Some(ordered)),
    }
}
