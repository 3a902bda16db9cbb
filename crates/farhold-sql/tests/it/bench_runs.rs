//! Runs the benchmarks briefly, so that they keep working.

#[allow(dead_code)]
#[path = "../../benches/point.rs"]
mod point;

#[test]
fn point() {
    point::main();
}
