//! A decision tree: the rival that the paper compares its linear models with. CART with the Gini index (Breiman et al., 1984).

/// What a case is told apart by.
pub type Inputs = [f64; 6];

/// Greatest depth, and fewest cases of a leaf: the best of a few values on the synthetic machine.
const DEPTH_MAX: usize = 10;
const LEAF_MIN: usize = 3;
const CLASSES: usize = 5;

pub enum Tree {
    Leaf(usize),
    /// The input, and the greatest value that goes to the left.
    Split(usize, f64, Box<[Tree; 2]>),
}

impl Tree {
    /// The tree of these cases and their classes.
    pub fn grow(cases: &[(Inputs, usize)]) -> Self {
        Self::grow_to(cases, DEPTH_MAX)
    }

    fn grow_to(cases: &[(Inputs, usize)], depth: usize) -> Self {
        let counts = counts(cases);
        let most = (0..CLASSES).max_by_key(|&class| (counts[class], CLASSES - class)).unwrap_or(0);
        match best_split(cases).filter(|_| depth > 0 && counts[most] < cases.len()) {
            None => Self::Leaf(most),
            Some((input, limit)) => {
                let side = |is_left: bool| -> Vec<_> {
                    cases.iter().filter(|(inputs, _)| (inputs[input] <= limit) == is_left).copied().collect()
                };
                let children = [side(true), side(false)].map(|side| Self::grow_to(&side, depth - 1));
                Self::Split(input, limit, Box::new(children))
            }
        }
    }

    pub fn class(&self, inputs: &Inputs) -> usize {
        match self {
            Self::Leaf(class) => *class,
            Self::Split(input, limit, children) => children[usize::from(inputs[*input] > *limit)].class(inputs),
        }
    }
}

fn counts(cases: &[(Inputs, usize)]) -> [usize; CLASSES] {
    let mut counts = [0; CLASSES];
    for (_, class) in cases {
        counts[*class] += 1;
    }
    counts
}

/// Cases that would be wrong if classes were drawn by their shares, times two: the Gini index, times the cases.
fn impurity(counts: &[usize; CLASSES]) -> f64 {
    let all: usize = counts.iter().sum();
    let squares: usize = counts.iter().map(|count| count * count).sum();
    if all == 0 { 0.0 } else { all as f64 - squares as f64 / all as f64 }
}

/// The input and the limit that leave the least impurity.
fn best_split(cases: &[(Inputs, usize)]) -> Option<(usize, f64)> {
    let mut best = (impurity(&counts(cases)) - 1e-9, None);
    for input in 0..cases.first()?.0.len() {
        let mut sorted: Vec<_> = cases.iter().map(|(inputs, class)| (inputs[input], *class)).collect();
        sorted.sort_by(|left, right| left.0.total_cmp(&right.0));
        let (mut left, mut right) = ([0; CLASSES], counts(cases));
        for at in 0..sorted.len() - 1 {
            left[sorted[at].1] += 1;
            right[sorted[at].1] -= 1;
            let is_between = sorted[at].0 < sorted[at + 1].0;
            let is_large = at + 1 >= LEAF_MIN && sorted.len() - at > LEAF_MIN;
            let left_over = impurity(&left) + impurity(&right);
            if is_between && is_large && left_over < best.0 {
                best = (left_over, Some((input, sorted[at].0.midpoint(sorted[at + 1].0))));
            }
        }
    }
    best.1
}
