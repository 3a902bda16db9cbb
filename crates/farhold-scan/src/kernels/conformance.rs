//! Every kernel that this processor has, at every width, against comparing one code after the other.

use farhold_store::column::BLOCK_ROWS;
use farhold_store::column::pack::{block_bytes, get, pack};

use super::{ALL, Kernel, Range};

#[test]
fn the_kernels_agree_with_comparing_each_code() {
    let mut random = fastrand::Rng::with_seed(0x853C_49E6_748F_EA9B);
    let mut random = || random.u64(..);
    for width in 0..=64 {
        let greatest = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
        // A few codes that repeat, so that equality finds some, and the extremes.
        let few: Vec<u64> = (0..6).map(|_| random() & greatest).chain([0, 1 & greatest, greatest]).collect();
        let codes: [u64; BLOCK_ROWS] =
            std::array::from_fn(|n| if n % 2 == 0 { few[n / 2 % few.len()] } else { random() & greatest });
        let mut packed = vec![0; block_bytes(width)];
        pack(&codes, width, &mut packed);
        assert!((0..BLOCK_ROWS).all(|n| get(&packed, width, n) == codes[n]), "packed");
        let mut bounds: Vec<u64> =
            few.iter().flat_map(|code| [code.saturating_sub(1), *code, code.saturating_add(1)]).collect();
        bounds.extend([0, greatest / 2, greatest, u64::MAX]);
        for &first in &bounds {
            for &last in &bounds {
                let Some(range) = Range::new(first, last) else { continue };
                for kernel in ALL.iter().filter(|kernel| kernel.is_available()) {
                    let mut bits = [0x5555_5555_5555_5555; BLOCK_ROWS / 64];
                    kernel.select(&packed, width, range, &mut bits);
                    for (n, code) in codes.iter().enumerate() {
                        let found = bits[n / 64] >> (n % 64) & 1 == 1;
                        assert_eq!(
                            found,
                            (first..=last).contains(code),
                            "{}, width {width}: {code} in {first}..={last}",
                            kernel.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_best_is_available_and_the_portable_one_always() {
    assert!(Kernel::best().is_available());
    assert!(ALL.last().is_some_and(|kernel| kernel.name == "portable" && kernel.is_available()));
    for kernel in ALL.iter().filter(|kernel| !kernel.is_available()) {
        farhold_testkit::skipped(&format!("this processor has no {}", kernel.name));
    }
}

#[test]
#[should_panic(expected = "codes of 65 bits")]
fn codes_of_more_than_64_bits_are_refused() {
    Kernel::best().select(&[0; 65 * 128], 65, Range::new(0, 0).unwrap(), &mut [0; BLOCK_ROWS / 64]);
}

#[test]
fn ranges_are_merged() {
    let ranges = |ranges: &[(u64, u64)]| -> Vec<Range> {
        ranges.iter().map(|(first, last)| Range::new(*first, *last).unwrap()).collect()
    };
    let merged = |some: &[(u64, u64)]| Range::merged(ranges(some));
    assert_eq!(merged(&[]), ranges(&[]));
    assert_eq!(merged(&[(7, 7), (3, 3), (5, 5), (4, 4)]), ranges(&[(3, 5), (7, 7)]), "neighbours");
    assert_eq!(merged(&[(2, 9), (3, 4), (12, 13), (9, 10)]), ranges(&[(2, 10), (12, 13)]), "within, and overlapping");
    assert_eq!(merged(&[(1, u64::MAX), (0, 0)]), ranges(&[(0, u64::MAX)]));
    assert_eq!(merged(&[(0, u64::MAX), (5, 5), (u64::MAX, u64::MAX)]), ranges(&[(0, u64::MAX)]));
    assert_eq!(merged(&[(u64::MAX, u64::MAX), (0, 0)]), ranges(&[(0, 0), (u64::MAX, u64::MAX)]));
}
