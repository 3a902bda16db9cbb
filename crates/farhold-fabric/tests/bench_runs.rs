//! The bench, tiny, so that it cannot rot.

#[path = "../benches/dispatch.rs"]
mod dispatch;

#[test]
fn quick() {
    dispatch::run(true, None, &["--exact", "quick", "--nocapture"]);
}
