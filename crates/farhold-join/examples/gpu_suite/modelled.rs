//! What the cost model predicts for an H100, on which none of it has been measured: for orientation, and to be compared
//! with measurements.

use farhold_join::gpu::{Description, Driver, GpuOptions, Prediction, Work, predict, tuned};

const M: u64 = 1 << 20;

fn row(driver: Driver, build_rows: u64, probe_rows: u64, cache_gib: Option<u64>) {
    let device = Description::published_h100();
    let work = Work { build_rows, probe_rows, probes: 1, words: 1, rows: 0, is_pinned: true, threads: 16 };
    let options = GpuOptions { cache_bytes_max: cache_gib.map(|gib| gib << 30), ..tuned(&device, &work) };
    let cache = cache_gib.map_or_else(|| "free".into(), |gib| format!("{gib} GiB"));
    print!("| {} | {} M x {} M | {cache} | ", driver.name(), build_rows / M, probe_rows / M);
    match predict(driver, &device, &work, &options) {
        Ok(Prediction { seconds, phases, cached_share }) => {
            let phases: Vec<String> = phases
                .iter()
                .filter(|phase| phase.1 >= 0.0005)
                .map(|(name, seconds)| format!("{name} {:.0}", seconds * 1e3))
                .collect();
            let rate = (build_rows + probe_rows) as f64 / 1e9 / seconds;
            println!("{:.0} % | {rate:.2} | {:.0} = {} |", cached_share * 100.0, seconds * 1e3, phases.join(" + "));
        }
        Err(error) => println!("- | - | {error} |"),
    }
}

/// A table in Markdown.
pub fn print() {
    println!("MODELLED, NOT MEASURED: {:?}", Description::published_h100());
    println!();
    println!("| join | tuples | cache | cached | G tuples/s | ms |");
    println!("|---|---|---|---|---|---|");
    for size in [128, 512, 1024, 2048] {
        for driver in Driver::ALL {
            row(driver, size * M, size * M, None);
        }
    }
    for gib in [0, 8, 16, 32, 64] {
        row(Driver::Triton, 2048 * M, 2048 * M, Some(gib));
    }
    for ratio in [2, 8, 32] {
        row(Driver::Triton, 2048 * M / ratio, 2048 * M, None);
        row(Driver::NoPartition, 2048 * M / ratio, 2048 * M, None);
    }
}
