//! The benches run with tiny parameters, so that they cannot rot.

#[path = "../benches/dispatch.rs"]
mod dispatch;

#[cfg(feature = "libfabric")]
#[path = "../benches/libfabric.rs"]
mod libfabric;

#[cfg(feature = "libfabric")]
#[test]
fn quick_libfabric() {
    libfabric::run(true, None);
}

#[test]
fn quick() {
    dispatch::run(true, None, &["--exact", "quick", "--nocapture"]);
}
