//! The raw columns that are joined, and the sums by which answers are compared.

use crate::error::JoinError;

/// Tuples as two columns of equal length.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    keys: &'a [u64],
    payloads: &'a [u64],
}

impl<'a> Columns<'a> {
    /// The columns of a relation.
    ///
    /// # Errors
    /// [`JoinError::Invalid`] if their lengths differ or reach 2^32 - 1.
    pub fn new(keys: &'a [u64], payloads: &'a [u64]) -> Result<Self, JoinError> {
        if keys.len() >= u32::MAX as usize {
            return Err(JoinError::Invalid(format!("{} tuples; columns hold fewer than 2^32 - 1", keys.len())));
        }
        if keys.len() != payloads.len() {
            return Err(JoinError::Invalid(format!("{} keys but {} payloads", keys.len(), payloads.len())));
        }
        Ok(Self { keys, payloads })
    }

    /// The keys.
    pub fn keys(&self) -> &'a [u64] {
        self.keys
    }

    /// The payloads, one for each key.
    pub fn payloads(&self) -> &'a [u64] {
        self.payloads
    }

    /// The number of tuples.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no tuple.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// The aggregate of a join: the number of pairs, and the sums of their payloads (wrapping).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// The number of pairs.
    pub pairs: u64,
    /// Sum of the build payloads of all pairs.
    pub build: u64,
    /// Sum of the probe payloads of all pairs.
    pub probe: u64,
}

impl Sum {
    /// Counts one pair.
    #[inline(always)]
    pub fn add(&mut self, build: u64, probe: u64) {
        self.pairs += 1;
        self.build = self.build.wrapping_add(build);
        self.probe = self.probe.wrapping_add(probe);
    }
}

impl std::iter::Sum for Sum {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |all, part| Self {
            pairs: all.pairs + part.pairs,
            build: all.build.wrapping_add(part.build),
            probe: all.probe.wrapping_add(part.probe),
        })
    }
}
