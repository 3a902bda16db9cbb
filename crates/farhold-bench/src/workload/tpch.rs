//! TPC-H: the 22 queries of its specification with their validation parameters, over its eight tables.
//!
//! A text differs from the specification's only in this: the number of rows that a query returns at most is a `LIMIT`, and query
//! 15's view is a common table expression (variant A of the specification). The data and the answers at scale factor 1 come from
//! `tpchgen`; see `benches/tpch`.

/// The tables.
pub const TABLES: [&str; 8] = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"];

/// The queries: number `n` is at `n - 1`. [`query`] fits them to a scale factor.
pub const QUERIES: [&str; 22] = [
    include_str!("../../sql/tpch/q01.sql"),
    include_str!("../../sql/tpch/q02.sql"),
    include_str!("../../sql/tpch/q03.sql"),
    include_str!("../../sql/tpch/q04.sql"),
    include_str!("../../sql/tpch/q05.sql"),
    include_str!("../../sql/tpch/q06.sql"),
    include_str!("../../sql/tpch/q07.sql"),
    include_str!("../../sql/tpch/q08.sql"),
    include_str!("../../sql/tpch/q09.sql"),
    include_str!("../../sql/tpch/q10.sql"),
    include_str!("../../sql/tpch/q11.sql"),
    include_str!("../../sql/tpch/q12.sql"),
    include_str!("../../sql/tpch/q13.sql"),
    include_str!("../../sql/tpch/q14.sql"),
    include_str!("../../sql/tpch/q15.sql"),
    include_str!("../../sql/tpch/q16.sql"),
    include_str!("../../sql/tpch/q17.sql"),
    include_str!("../../sql/tpch/q18.sql"),
    include_str!("../../sql/tpch/q19.sql"),
    include_str!("../../sql/tpch/q20.sql"),
    include_str!("../../sql/tpch/q21.sql"),
    include_str!("../../sql/tpch/q22.sql"),
];

/// Query 11's fraction in its text: that of scale factor 1.
const FRACTION: &str = "0.0001000000";

/// The text of query `number` (1 to 22) at a scale factor. Only query 11 depends on it: its fraction is 0.0001 / scale.
#[must_use]
pub fn query(number: usize, scale: f64) -> String {
    QUERIES[number - 1].replace(FRACTION, &format!("{:.10}", 0.0001 / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fraction_follows_the_scale() {
        assert_eq!(query(11, 1.0), QUERIES[10]);
        assert!(query(11, 10.0).contains("* 0.0000100000"));
        assert_eq!(query(1, 10.0), QUERIES[0]);
    }
}
