//! Seeded randomness: the generators that the TPC specifications describe.

/// A splitmix64 generator: one word of state, every seed is good.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// The characters of a-strings. CH-benCHmark relies on these being exactly 62: the first character of a customer's state
/// names one of its 62 nations.
pub const ALPHANUMERIC: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl Random {
    /// A generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for one part of a job: the same `seed` and `part` give the same numbers, whatever other parts do.
    #[must_use]
    pub fn part(seed: u64, part: &[u64]) -> Self {
        let mut random = Self(seed);
        for &p in part {
            random = Self(random.next_u64() ^ p.wrapping_mul(0xd6e8_feb8_6659_fd93));
        }
        Self(random.next_u64())
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in `0..n` by multiplication; the bias is below n / 2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    #[inline]
    pub fn between(&mut self, low: i32, high: i32) -> i32 {
        low + self.below((high - low + 1) as u64) as i32
    }

    /// True in `percent` of 100 cases.
    #[inline]
    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Fills `to` with alphanumeric characters.
    pub fn fill_alphanumeric(&mut self, to: &mut [u8]) {
        for byte in to {
            *byte = ALPHANUMERIC[self.below(62) as usize];
        }
    }

    /// Fills `to` with digits.
    pub fn fill_digits(&mut self, to: &mut [u8]) {
        for byte in to {
            *byte = b'0' + self.below(10) as u8;
        }
    }

    /// Shuffles (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// The constants C of TPC-C's non-uniform distributions (clause 2.1.6), for one of their uses: the population or a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonUniform {
    /// C for A = 255, customers' last names.
    pub last_name: i32,
    /// C for A = 1023, customer numbers.
    pub customer: i32,
    /// C for A = 8191, item numbers.
    pub item: i32,
}

impl NonUniform {
    /// The constants of a population with this seed.
    #[must_use]
    pub fn of_load(seed: u64) -> Self {
        let mut random = Random::part(seed, &[0xc0]);
        Self { last_name: random.between(0, 255), customer: random.between(0, 1023), item: random.between(0, 8191) }
    }

    /// The constants of a run over that population. Clause 2.1.6.1: the last-name constants of run and load differ by 65
    /// to 119, but not by 96 or 112.
    #[must_use]
    pub fn of_run(load: Self, seed: u64) -> Self {
        let mut random = Random::part(seed, &[0xc1]);
        let last_name = loop {
            let candidate = random.between(0, 255);
            let delta = (candidate - load.last_name).abs();
            if (65..=119).contains(&delta) && delta != 96 && delta != 112 {
                break candidate;
            }
        };
        Self { last_name, customer: random.between(0, 1023), item: random.between(0, 8191) }
    }

    /// NURand(A, low, high) with constant `c` (clause 2.1.6).
    #[inline]
    pub fn draw(random: &mut Random, a: i32, c: i32, low: i32, high: i32) -> i32 {
        let mixed = random.between(0, a) | random.between(low, high);
        (mixed + c) % (high - low + 1) + low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_constant_keeps_its_distance() {
        for seed in 0..500 {
            let load = NonUniform::of_load(seed);
            for run in 0..4 {
                let delta = (NonUniform::of_run(load, run).last_name - load.last_name).abs();
                assert!((65..=119).contains(&delta) && delta != 96 && delta != 112, "seed {seed}: {delta}");
            }
        }
    }

    /// The `|` of two uniform numbers prefers numbers with many one bits: the hottest value is many times as likely as
    /// under a uniform draw, and every value stays in range.
    #[test]
    fn non_uniform_is_skewed_and_in_range() {
        let mut random = Random::new(7);
        let mut hits = vec![0_u32; 3000];
        for _ in 0..300_000 {
            hits[NonUniform::draw(&mut random, 1023, 259, 1, 3000) as usize - 1] += 1;
        }
        let (most, mean) = (*hits.iter().max().unwrap(), 100);
        assert!(most > 10 * mean, "the hottest of 3000 was drawn {most} times");
        assert!(hits.iter().filter(|h| **h == 0).count() < 600);
    }

    #[test]
    fn uniform_draws_are_even() {
        let mut random = Random::part(1, &[2, 3]);
        let mut hits = [0_u32; 10];
        for _ in 0..100_000 {
            hits[random.below(10) as usize] += 1;
        }
        assert!(hits.iter().all(|h| h.abs_diff(10_000) < 500), "{hits:?}");
        let mut order: Vec<u32> = (0..100).collect();
        random.shuffle(&mut order);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..100) && order != sorted);
    }
}
