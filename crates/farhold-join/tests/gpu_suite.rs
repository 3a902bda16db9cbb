//! The suite for GPUs, small and on the emulation, so that it works as soon as a GPU is present.

#[path = "../examples/gpu_suite/suite.rs"]
mod suite;

use std::sync::Arc;

use farhold_join::gpu::{Device, Emulation, Fault};

fn run(device: Emulation, seconds: f64) -> (Vec<String>, usize, Arc<Emulation>) {
    let device = Arc::new(device);
    let mut lines = Vec::new();
    let shared: Arc<dyn Device> = device.clone();
    let failed = suite::measure(&shared, &suite::Sizes::small(), seconds, &mut |line| lines.push(line));
    (lines, failed, device)
}

#[test]
fn every_section_measures_something_and_every_answer_is_right() {
    let (lines, failed, device) = run(Emulation::new(64 << 20, 1).mapping(), 1e6);
    let bad: Vec<&String> =
        lines.iter().filter(|line| line.contains("\"failed\"") || line.contains("\"error\"")).collect();
    assert!(failed == 0 && bad.is_empty(), "{bad:#?}");
    assert!(!lines.iter().any(|line| line.contains("_per_s\": 0}")), "a section that does nothing: {lines:#?}");
    assert_eq!(device.live_allocations(), 0);
    for (figure, count) in [
        ("link", 3),
        ("granularity (figure 6)", 44),
        ("sizes (figure 13)", 20),
        ("CPU beside (figure 13)", 2),
        ("partitioners (figure 18)", 12),
        ("partitioners in a join (figure 17)", 4),
        ("cache (figure 19)", 6),
        ("who counts, feeds, maps (figure 20)", 6),
        ("ratios (figure 21)", 12),
        ("multiprocessors (figure 24)", 2),
        ("breakdown (figure 15)", 10),
        ("rows to the host", 1),
        ("payloads (figure 22)", 2),
    ] {
        let found = lines.iter().filter(|line| line.contains(figure) && !line.contains("section_seconds")).count();
        assert!(found >= count, "{figure}: {found} rows of {count}");
    }
}

#[test]
fn a_device_that_is_lost_half_way_leaves_the_results_of_the_sections_before() {
    let (_, _, whole) = run(Emulation::new(64 << 20, 1), 1e6);
    let (lines, failed, device) = run(Emulation::new(64 << 20, 1).failing_at(whole.calls() / 2, Fault::Lost), 1e6);
    assert!(failed > 0);
    assert!(lines.iter().any(|line| line.contains("granularity") && line.contains("gib_per_s")));
    assert!(lines.iter().any(|line| line.contains("\"failed\": \"the GPU failed")));
    assert_eq!(device.live_allocations(), 0);
}

#[test]
fn the_largest_join_is_the_papers_or_what_the_host_has_memory_for() {
    let sizes = suite::Sizes::of_this_host();
    assert!((21..=31).contains(&sizes.tuples_log) && *sizes.fan_out_logs.end() == 11);
}

#[test]
fn without_time_nothing_is_joined_and_every_section_says_so() {
    let (lines, failed, _) = run(Emulation::new(64 << 20, 1), 0.0);
    assert_eq!(failed, 0);
    assert!(!lines.iter().any(|line| line.contains("gtuples_per_s")), "{lines:#?}");
    assert!(lines.iter().filter(|line| line.contains("skipped")).count() > 10);
}
