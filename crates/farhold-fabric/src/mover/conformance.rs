//! One suite over all copy engines, alone and inside of a mover. Devices are emulated in software, and say so; a real one is included if there is one.

use super::tests::{piece, region, wait};
use super::*;

fn engines() -> Vec<(&'static str, Box<dyn CopyEngine>)> {
    let mut engines: Vec<(&'static str, Box<dyn CopyEngine>)> = vec![("processor", Box::new(Processor))];
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    engines.extend(dsa::emulated::engines());
    let chosen = choose();
    match chosen.queue {
        Ok(_) => engines.push(("real DSA", chosen.engine)),
        Err(reason) => farhold_testkit::skipped(&format!("no copy by a real DSA work queue: {reason}")),
    }
    engines
}

const REGION_BYTES: usize = 600_000;
const LENS: &[usize] = if cfg!(miri) {
    &[0, 1, 100, 4097]
} else {
    &[0, 1, 100, 4095, 4096, 4097, STEP_BYTES - 7, STEP_BYTES, STEP_BYTES + 1, 300_001]
};

#[test]
fn bytes_are_those_of_the_region() {
    let memory = region(REGION_BYTES);
    let mut expected = vec![0; REGION_BYTES];
    memory.copy_out(0, &mut expected).unwrap();
    for (name, engine) in engines() {
        for (number, len) in LENS.iter().copied().enumerate() {
            for offset in [0, 1, 4095, 8 * number, REGION_BYTES - len] {
                // Bytes around what is asked for stay as they are.
                let (before, behind) = (number * 3, 9);
                let mut to = vec![0xee; before + len + behind];
                engine.copy(&memory, offset as u64, &mut to[before..][..len]).unwrap();
                assert!(to[before..][..len] == expected[offset..][..len], "{name}: {len} bytes at {offset}");
                let around = to[..before].iter().chain(&to[before + len..]);
                assert!(around.copied().all(|byte| byte == 0xee), "{name}: around {len} bytes at {offset}");
            }
        }
        for (offset, len) in [(REGION_BYTES as u64 + 4096, 1), (u64::MAX, 5000), (u64::MAX - 4999, 5000), (0, 700_000)]
        {
            let mut to = vec![0xee; len];
            let copied = engine.copy(&memory, offset, &mut to);
            assert!(matches!(copied, Err(FabricError::OutOfBounds { .. })), "{name}: {len} bytes at {offset}");
            assert!(to.iter().all(|byte| *byte == 0xee), "{name}");
        }
        assert!(engine.step_bytes() > 0, "{name}");
    }
}

#[test]
fn pieces_come_one_behind_the_other() {
    let memory = region(REGION_BYTES);
    let mut expected = vec![0; REGION_BYTES];
    memory.copy_out(0, &mut expected).unwrap();
    for (name, engine) in engines() {
        let mover = Mover::start(2, engine).unwrap();
        for (first, second) in LENS.iter().flat_map(|first| LENS.iter().map(|second| (*first, *second))) {
            let pieces = vec![piece(&memory, 5, first), piece(&memory, 77, second)];
            let buffer = wait(mover.copy(pieces, Bytes::zeroed(first + second + 3)).unwrap()).unwrap();
            assert!(buffer[..first] == expected[5..][..first], "{name}: {first}, {second}");
            assert!(buffer[first..][..second] == expected[77..][..second], "{name}: {first}, {second}");
        }
        let outside = vec![piece(&memory, memory.len() - 1, 2)];
        let outside = mover.copy(outside, Bytes::zeroed(2)).unwrap();
        assert!(matches!(wait(outside), Err(FabricError::OutOfBounds { .. })), "{name}");
        assert_eq!(mover.under_way(), 0, "{name}");
    }
}

/// The end of a mover with running transfers waits for one step at most.
#[test]
fn a_mover_may_end_at_any_time() {
    let memory = region(16 * STEP_BYTES);
    for _ in 0..5 {
        for (name, engine) in engines() {
            let mover = Mover::start(2, engine).unwrap();
            for _ in 0..8 {
                let pieces = vec![piece(&memory, 0, 16 * STEP_BYTES)];
                std::mem::forget(mover.copy(pieces, Bytes::zeroed(16 * STEP_BYTES)).unwrap());
            }
            drop(mover);
            assert_eq!(Arc::strong_count(&memory), 1, "{name}");
        }
    }
}

/// What is chosen here: the engine is the processor if and only if there is no queue, and its steps are its own.
#[test]
fn the_choice_says_why() {
    let chosen = choose();
    match chosen.queue {
        Ok(queue) => assert!(queue.starts_with("wq"), "{queue}"),
        Err(reason) => {
            assert!(!reason.is_empty());
            assert_eq!(chosen.engine.step_bytes(), Processor.step_bytes());
        }
    }
}
