//! A GPU that fails in the middle of a query: the rows must be correct, and the session receives a notice. The GPU is
//! emulated.
//!
//! A test binary of its own, since the device that joins use is global to the process.

#[path = "it/harness.rs"]
#[allow(dead_code, reason = "the suite uses the rest")]
mod harness;

use std::sync::Arc;

use farhold_join::gpu::{Description, Device, Emulation, Fault, Gpu};
use harness::Db;

/// Enough rows for a join to consider the GPU.
const QUERY: &str = "SELECT count(*), sum(a.value) FROM generate_series(1, 1100000) a JOIN generate_series(1, 1100000) b ON a.value = b.value";

#[test]
fn a_session_is_told_that_a_join_went_on_on_the_cpu() {
    let emulation = || Emulation::new(256 << 20, 1).mapping();
    // High rates, so that the cost model chooses the GPU; the actual speed of the emulation is irrelevant.
    let description = Description {
        to_device_bytes_per_s: 1e13,
        from_device_bytes_per_s: 1e13,
        both_bytes_per_s: 1e13,
        kernel_read_bytes_per_s: 1e13,
        device_bytes_per_s: 1e13,
        host_read_bytes_per_s: 1e13,
        launch_s: 0.0,
        ..Gpu::new(Arc::new(emulation())).unwrap().describe().unwrap()
    };
    let device: Arc<dyn Device> = Arc::new(emulation().failing_at(12, Fault::Lost));
    Arc::new(Gpu::described(device, description)).hand_over();
    let db = Db::new();
    let client = db.client();
    let answer = client.run(QUERY).unwrap();
    assert_eq!(answer.lines(), ["1100000|605000550000"]);
    let [notice] = &answer.notices[..] else { panic!("{:?}", answer.notices) };
    assert!(notice.contains("joined on the CPU: the GPU failed (") && notice.contains("emulated fault"), "{notice}");
    // From now on the device is not used, which EXPLAIN shows.
    let answer = client.run(QUERY).unwrap();
    assert_eq!((answer.lines(), answer.notices), (vec!["1100000|605000550000".to_owned()], Vec::new()));
}
