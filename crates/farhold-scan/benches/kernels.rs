//! Equality on packed codes beside reading memory, on one core, in one run, taking turns.
//!
//! ```text
//! cargo bench -p farhold-scan --bench kernels                 512 MiB of codes, 9 rounds
//! cargo bench -p farhold-scan --bench kernels -- --quick      what the tests run: figures without meaning
//! cargo bench -p farhold-scan --bench kernels -- --json FILE
//! ```
//!
//! A scan reads packed codes and writes a bit a row, as the column scan of the GRU paper does. Its rate is that of the packed
//! bytes, and `share` is this rate over that of reading the same bytes without doing anything with them.
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]
#![expect(clippy::cast_precision_loss, reason = "rates, not counts")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use farhold_report::Report;
use farhold_scan::kernels::{ALL, Bits, Range};
use farhold_store::column::BLOCK_ROWS;
use farhold_store::column::pack::{block_bytes, pack};

/// Bits of a code; 10 is the width of the paper.
const WIDTHS: [u32; 8] = [2, 4, 8, 10, 16, 20, 32, 48];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` runs it without `--bench`.
    let quick = arguments.iter().any(|argument| argument == "--quick") || !arguments.iter().any(|a| a == "--bench");
    let json = arguments.iter().position(|argument| argument == "--json").and_then(|at| arguments.get(at + 1));
    let (bytes, rounds) = if quick { (1 << 20, 1) } else { (512 << 20, 9) };
    let mut report = Report::new(quick);
    report.table("equality on packed codes, one core");
    for width in WIDTHS {
        one_width(&mut report, width, bytes, rounds);
    }
    if let Some(path) = json {
        report.write(&PathBuf::from(path)).expect("the file of the figures");
    }
}

fn one_width(report: &mut Report, width: u32, bytes: usize, rounds: usize) {
    let block_len = block_bytes(width);
    let blocks = bytes / block_len;
    let greatest = u64::MAX >> (64 - width);
    let mut packed = vec![0; blocks * block_len];
    let mut random = fastrand::Rng::with_seed(1);
    for block in packed.chunks_exact_mut(block_len) {
        let codes: [u64; BLOCK_ROWS] = std::array::from_fn(|_| random.u64(..=greatest));
        pack(&codes, width, block);
    }
    let mut bits: Vec<Bits> = vec![[0; BLOCK_ROWS / 64]; blocks];
    let range = Range::new(greatest / 2, greatest / 2).expect("one code");
    let kernels: Vec<_> = ALL.iter().filter(|kernel| kernel.is_available()).collect();
    let mut read = Vec::new();
    let mut times = vec![Vec::new(); kernels.len()];
    for _ in 0..rounds {
        let started = Instant::now();
        black_box(read_all(&packed));
        read.push(started.elapsed().as_secs_f64());
        for (kernel, times) in kernels.iter().zip(&mut times) {
            let started = Instant::now();
            for (block, bits) in packed.chunks_exact(block_len).zip(&mut bits) {
                kernel.select(block, width, range, bits);
            }
            black_box(&mut bits);
            times.push(started.elapsed().as_secs_f64());
        }
    }
    let giga = |seconds: f64| packed.len() as f64 / seconds / 1e9;
    let read = median(&mut read);
    report.row("kernels", &format!("{width} bits, reading alone"), &[("gb_s", giga(read))]);
    for (kernel, times) in kernels.iter().zip(&mut times) {
        let seconds = median(times);
        let codes = (blocks * BLOCK_ROWS) as f64 / seconds / 1e9;
        report.row(
            "kernels",
            &format!("{width} bits, {}", kernel.name),
            &[("gb_s", giga(seconds)), ("gcodes_s", codes), ("share", read / seconds)],
        );
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Reads every byte, with as wide loads as the processor has of AVX2 and less.
fn read_all(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { read_wide(bytes) };
    }
    sum(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_wide(bytes: &[u8]) -> u64 {
    sum(bytes)
}

#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0_u64; 16];
    for words in bytes.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}
