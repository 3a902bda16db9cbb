//! The benches run, briefly, so that they cannot rot.

#[allow(dead_code)]
#[path = "../../benches/point.rs"]
mod point;

#[test]
fn point() {
    point::main();
}
