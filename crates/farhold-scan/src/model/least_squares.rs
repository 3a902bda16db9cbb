//! Weights of least squares, none negative, from sums of products of rows.
//!
//! The state is the sums, not their inverse. A sum forgets by one multiplication and never loses its symmetry, whereas the usual
//! recursive form, which keeps the inverse, does by rounding.

use super::features::COLUMNS;

/// A row of the model, or one value for each column.
pub(super) type Row = [f64; COLUMNS];
/// Sums of products of columns; symmetric.
pub(super) type Square = [Row; COLUMNS];

pub(super) fn dot(left: &Row, right: &Row) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// Changes `weights` to those that minimise `w'Aw / 2 - b'w` with no weight negative.
///
/// The method is Lawson and Hanson's active set (Solving Least Squares Problems, 1974, chapter 23). It starts from the given
/// weights, so after one more observation the set of positive weights is mostly the same, and one factorisation suffices: some
/// `COLUMNS^3 / 6` multiplications. `A` must be positive definite; the ridge makes it so. If rounding defeats that, the weights
/// stay at the best ones found, which are never negative.
pub(super) fn solve(sums: &Square, moments: &Row, weights: &mut Row) {
    let mut is_free: [bool; COLUMNS] = std::array::from_fn(|at| weights[at] > 0.0);
    // Each round frees or fixes a column. The method visits few sets in practice; the limit is for rounding.
    for _ in 0..4 * COLUMNS {
        let Some(target) = solve_free(sums, moments, &is_free) else { return };
        let step = longest_step(weights, &target, &is_free);
        for at in 0..COLUMNS {
            if is_free[at] {
                weights[at] = (weights[at] + step * (target[at] - weights[at])).max(0.0);
            }
        }
        if step < 1.0 {
            for at in 0..COLUMNS {
                if is_free[at] && target[at] <= 0.0 && weights[at] <= f64::EPSILON {
                    weights[at] = 0.0;
                    is_free[at] = false;
                }
            }
            continue;
        }
        *weights = target;
        match steepest(sums, moments, weights, &is_free) {
            Some(at) => is_free[at] = true,
            None => return,
        }
    }
}

/// How far, up to 1, the weights can go towards the target before the first of them is negative.
fn longest_step(weights: &Row, target: &Row, is_free: &[bool; COLUMNS]) -> f64 {
    (0..COLUMNS)
        .filter(|&at| is_free[at] && target[at] <= 0.0)
        .map(|at| if weights[at] > 0.0 { weights[at] / (weights[at] - target[at]) } else { 0.0 })
        .fold(1.0, f64::min)
}

/// The fixed column whose growth from 0 would lower the sum of squares most; `None` at the minimum.
fn steepest(sums: &Square, moments: &Row, weights: &Row, is_free: &[bool; COLUMNS]) -> Option<usize> {
    (0..COLUMNS)
        .filter(|&at| !is_free[at])
        .map(|at| (at, (moments[at] - dot(&sums[at], weights)) / sums[at][at].sqrt()))
        .filter(|&(at, slope)| slope > 1e-12 * (moments[at].abs() / sums[at][at].sqrt()).max(1e-12))
        .max_by(|left, right| left.1.total_cmp(&right.1))
        .map(|(at, _)| at)
}

/// The unconstrained minimum over the free columns, the others 0; `None` if the sums are not positive definite.
fn solve_free(sums: &Square, moments: &Row, is_free: &[bool; COLUMNS]) -> Option<Row> {
    let mut order = [0; COLUMNS];
    let mut count = 0;
    for at in (0..COLUMNS).filter(|&at| is_free[at]) {
        order[count] = at;
        count += 1;
    }
    let order = &order[..count];
    let mut lower = [[0.0; COLUMNS]; COLUMNS];
    let mut result = [0.0; COLUMNS];
    for (row, &of_row) in order.iter().enumerate() {
        for (column, &of_column) in order.iter().enumerate().take(row + 1) {
            let products: f64 = (0..column).map(|at| lower[row][at] * lower[column][at]).sum();
            let rest = sums[of_row][of_column] - products;
            if column < row {
                lower[row][column] = rest / lower[column][column];
            } else if rest > 0.0 && rest.is_finite() {
                lower[row][row] = rest.sqrt();
            } else {
                return None;
            }
        }
        let products: f64 = (0..row).map(|at| lower[row][at] * result[order[at]]).sum();
        result[of_row] = (moments[of_row] - products) / lower[row][row];
    }
    for (row, &of_row) in order.iter().enumerate().rev() {
        let products: f64 = (row + 1..count).map(|at| lower[at][row] * result[order[at]]).sum();
        result[of_row] = (result[of_row] - products) / lower[row][row];
    }
    result.iter().all(|weight| weight.is_finite()).then_some(result)
}

/// Whether the sums are positive definite.
pub(super) fn is_positive(sums: &Square) -> bool {
    solve_free(sums, &[0.0; COLUMNS], &[true; COLUMNS]).is_some()
}
