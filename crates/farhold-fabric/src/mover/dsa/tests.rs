//! What the engine does with each answer of an emulated device; which queues it finds in a tree of files.

use super::emulated::{Act, Emulated, LONG, Order, engine, found, impatient};
use super::queue::{Mode, Named, find, refusal};
use super::*;
use std::io;

const BYTES: usize = 64 << 10;
const OFFSET: usize = 100;

fn region() -> RegionMemory {
    let memory = RegionMemory::anonymous(FarPtr::new(NodeId(1), RegionId(1), 0), 2 * BYTES as u64).unwrap();
    memory.copy_in(0, &(0..2 * BYTES).map(content).collect::<Vec<_>>()).unwrap();
    memory
}

fn content(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// Copies a step, and looks at every byte of the buffer.
fn copy<Q: Queue>(dsa: &Dsa<Q>, memory: &RegionMemory) {
    let mut to = vec![0xee; BYTES + 2];
    dsa.copy(memory, OFFSET as u64, &mut to[1..=BYTES]).unwrap();
    // Not as the region has it: a device that copies the wrong way would change that.
    assert!(to[1..=BYTES].iter().enumerate().all(|(at, byte)| *byte == content(OFFSET + at)), "{:?}", dsa.counts());
    assert_eq!((to[0], to[BYTES + 1]), (0xee, 0xee));
}

fn orders(dsa: &Dsa<Emulated>) -> Vec<Order> {
    dsa.queue.orders.lock().unwrap().clone()
}

/// `transfer_bytes_max`, what the device does, the offers, and what the engine counts.
type Case = (usize, fn(usize) -> Act, usize, Counts);

#[test]
fn each_answer_of_a_device() {
    let (done, taken_over) =
        (Counts { by_device: 1, ..Counts::default() }, Counts { taken_over: 1, ..Counts::default() });
    let status = |last_status| Counts { last_status, ..taken_over };
    let cases: &[Case] = &[
        (1 << 20, |_| Act::Move, 1, done),
        (BYTES, |_| Act::Move, 1, done),
        (4096, |_| Act::Move, 16, done),
        (5000, |_| Act::Move, 14, done),
        (1 << 20, |n| if n < 3 { Act::Full } else { Act::Move }, 4, done),
        (1 << 20, |_| Act::Full, OFFERS_MAX as usize, taken_over),
        (1 << 20, |_| Act::Fail(0x1a), 1, status(0x1a)),
        // The first of two transfers counts.
        (BYTES / 2, |n| if n == 0 { Act::Move } else { Act::Fail(0x04) }, 2, status(0x04)),
        (1 << 20, |n| if n == 0 { Act::Fault(5000) } else { Act::Move }, 2, Counts { faults: 1, ..done }),
        (1 << 20, |n| if n < 8 { Act::Fault(0) } else { Act::Move }, 9, Counts { faults: 8, ..done }),
        (1 << 20, |_| Act::Fault(0), 9, Counts { faults: 8, ..taken_over }),
        // All bytes of the transfer, and a fault: nothing is left.
        (1 << 20, |_| Act::Fault(u32::MAX), 1, Counts { faults: 1, ..done }),
        (1 << 20, |_| Act::Boast, 1, taken_over),
        (1 << 20, |_| Act::FaultBackwards, 1, status(0x03)),
    ];
    let memory = region();
    for (number, (transfer_bytes_max, act, offers, counts)) in cases.iter().enumerate() {
        let dsa = engine(&found(8, *transfer_bytes_max), *act);
        copy(&dsa, &memory);
        assert_eq!(dsa.counts(), *counts, "case {number}");
        assert_eq!(orders(&dsa).len(), *offers, "case {number}");
        // Whatever has happened, the next step finds the engine usable.
        assert_eq!(dsa.under_way.load(Ordering::Relaxed), 0, "case {number}");
        copy(&dsa, &memory);
    }
}

/// After a missing page the device goes on behind it, and the processor has brought it in.
#[test]
fn a_missing_page_is_brought_in_by_the_processor() {
    let dsa = engine(&found(8, 1 << 20), |n| if n == 0 { Act::Fault(5000) } else { Act::Move });
    let memory = region();
    copy(&dsa, &memory);
    let [first, second] = orders(&dsa)[..] else { panic!("two descriptors") };
    // Regions begin at a page; 5,100 bytes of it are behind the fault, the next page begins at 8,192.
    let moved = 8192 - OFFSET;
    assert_eq!((first.source % 4096, first.bytes), (OFFSET as u64, BYTES));
    assert_eq!(
        second,
        Order {
            source: first.source + moved as u64,
            target: first.target + moved as u64,
            bytes: BYTES - moved,
            ..second
        }
    );
}

#[test]
fn only_a_queue_that_allows_it_is_told_to_wait_for_pages() {
    for blocks_on_fault in [false, true] {
        let dsa = engine(&Found { blocks_on_fault, ..found(8, 1 << 20) }, |_| Act::Move);
        copy(&dsa, &region());
        assert_eq!(dsa.counts(), Counts { by_device: 1, ..Counts::default() });
        assert_eq!(orders(&dsa)[0].flags & u64::from(BLOCK_ON_FAULT) != 0, blocks_on_fault);
    }
}

/// A device that was silent may write until the queue is closed: rubbish that it writes then is not in the result.
#[test]
fn a_silent_device_is_stopped_before_the_processor_copies() {
    let (dsa, memory) = (impatient(|_| Act::Lost), region());
    for step in 1..=2 {
        copy(&dsa, &memory);
        assert_eq!(dsa.counts(), Counts { taken_over: step, ..Counts::default() });
        assert_eq!(orders(&dsa).len(), 1, "a closed queue takes nothing");
    }
}

/// What a slow device has done by the end of the wait counts.
#[test]
fn a_late_answer_counts() {
    let (dsa, memory) = (impatient(|_| Act::Late), region());
    copy(&dsa, &memory);
    assert_eq!(dsa.counts(), Counts { by_device: 1, ..Counts::default() });
    copy(&dsa, &memory);
    assert_eq!(dsa.counts(), Counts { by_device: 1, taken_over: 1, ..Counts::default() });
}

/// A dedicated queue drops what it has no room for. So the engine counts, and the processor copies instead.
#[test]
fn no_more_descriptors_are_under_way_than_a_queue_holds() {
    let (dsa, memory) = (engine(&found(1, 1 << 20), |n| if n == 0 { Act::Held } else { Act::Move }), region());
    std::thread::scope(|scope| {
        scope.spawn(|| copy(&dsa, &memory));
        while orders(&dsa).is_empty() {
            std::thread::yield_now();
        }
        copy(&dsa, &memory);
        assert_eq!(dsa.counts(), Counts { taken_over: 1, ..Counts::default() });
        dsa.queue.go.lock().unwrap().send(()).unwrap();
    });
    assert_eq!(dsa.counts(), Counts { by_device: 1, taken_over: 1, ..Counts::default() });
    copy(&dsa, &memory);
    assert_eq!(dsa.counts().by_device, 2, "there is room again");
}

#[test]
fn short_steps_are_the_processors() {
    let (dsa, memory) = (engine(&found(8, 1 << 20), |_| Act::Move), region());
    dsa.copy(&memory, 0, &mut [0; SHORT_BYTES - 1]).unwrap();
    assert_eq!(orders(&dsa).len(), 0);
    dsa.copy(&memory, 0, &mut [0; SHORT_BYTES]).unwrap();
    assert_eq!(orders(&dsa).len(), 1);
    assert_eq!(dsa.step_bytes(), STEP_BYTES_MAX);
    assert_eq!(engine(&found(8, 5000), |_| Act::Move).step_bytes(), 5000);
}

#[test]
fn the_self_check_notices_a_device_that_does_not_work() {
    let check = |act| {
        let found = found(8, 1 << 20);
        let checked = Dsa::checked(Emulated::start(&found, act), &found, LONG);
        checked.map(|dsa| assert_eq!(dsa.patience, PATIENCE, "that of copies"))
    };
    assert_eq!(check(|_| Act::Move), Ok(()));
    assert_eq!(check(|n| if n == 0 { Act::Fault(70_000) } else { Act::Move }), Ok(()));
    let wrong: [fn(usize) -> Act; 2] = [|_| Act::Corrupt, |n| if n == 0 { Act::Move } else { Act::Corrupt }];
    for act in wrong {
        assert_eq!(check(act), Err("in the self-check, the device copied wrong bytes".to_owned()));
    }
    let status = "in the self-check, the device answered with status 0x11";
    assert_eq!(check(|_| Act::Fail(0x11)), Err(status.to_owned()));
    let silent = "in the self-check, the device took no descriptor or did not answer";
    assert_eq!(check(|_| Act::Full), Err(silent.to_owned()));
    assert_eq!(impatient(|_| Act::Lost).check(), Err(silent.to_owned()));
}

const ALL: Instructions = Instructions { movdir64b: true, enqcmd: true, waitpkg: false };

/// A tree of files, as sysfs has them.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{content}\n")).unwrap();
    }
    root
}

/// A queue `wq0.0` of `dsa0` that can be used, with one attribute changed: what is found of it.
fn one_queue(changed: &str, value: &str, has: Instructions) -> Result<Found, String> {
    let usual = [
        ("dsa0/pasid_enabled", "1"),
        ("dsa0/wq0.0/state", "enabled"),
        ("dsa0/wq0.0/type", "user"),
        ("dsa0/wq0.0/mode", "shared"),
        ("dsa0/wq0.0/size", "16"),
        ("dsa0/wq0.0/max_transfer_size", "2097152"),
        ("dsa0/wq0.0/block_on_fault", "1"),
    ];
    let mut files = usual.map(|(path, content)| (path, if path == changed { value } else { content })).to_vec();
    if !usual.iter().any(|file| file.0 == changed) {
        files.push((changed, value));
    }
    let root = tree(&files);
    let mut found: Vec<Named> = find(root.path(), has).unwrap();
    assert_eq!((found.len(), &*found[0].0), (1, "wq0.0"));
    found.remove(0).1
}

#[test]
fn a_queue_is_found_with_its_attributes() {
    let usual = Found { blocks_on_fault: true, ..found(16, 2 << 20) };
    let words = "wq0.0 (shared, 16 entries, 2097152 bytes a descriptor at most, waits for missing pages)";
    assert_eq!(usual.to_string(), words);
    let with = |changed, value| one_queue(changed, value, ALL);
    assert_eq!(with("dsa0/engine0.0/group_id", "0"), Ok(usual.clone()));
    assert_eq!(with("dsa0/wq0.0/mode", "dedicated"), Ok(Found { mode: Mode::Dedicated, ..usual.clone() }));
    assert_eq!(with("dsa0/wq0.0/prs_disable", "0"), Ok(usual.clone()));
    let never_blocks = Found { blocks_on_fault: false, ..usual };
    assert_eq!(with("dsa0/wq0.0/prs_disable", "1"), Ok(never_blocks.clone()));
    assert_eq!(with("dsa0/wq0.0/block_on_fault", "0"), Ok(never_blocks));
    let refused = [
        ("dsa0/wq0.0/state", "disabled", "its state is \"disabled\", not \"enabled\""),
        ("dsa0/wq0.0/type", "kernel", "its type is \"kernel\", not \"user\""),
        ("dsa0/pasid_enabled", "0", "its device does not share virtual memory: pasid_enabled is not 1"),
        ("dsa0/wq0.0/mode", "odd", "its mode is \"odd\""),
        ("dsa0/wq0.0/size", "0", "its size is \"0\""),
        ("dsa0/wq0.0/max_transfer_size", "-1", "its max_transfer_size is \"-1\""),
    ];
    for (changed, value, reason) in refused {
        assert_eq!(with(changed, value), Err(reason.to_owned()));
    }
    let without = |mode, has| one_queue("dsa0/wq0.0/mode", mode, has).unwrap_err();
    let (no_enqcmd, no_movdir64b) = (Instructions { enqcmd: false, ..ALL }, Instructions { movdir64b: false, ..ALL });
    assert_eq!(without("shared", no_enqcmd), "it is shared, and this processor has no ENQCMD");
    assert_eq!(without("dedicated", no_movdir64b), "it is dedicated, and this processor has no MOVDIR64B");
    assert!(one_queue("dsa0/wq0.0/mode", "dedicated", no_enqcmd).is_ok());
}

#[test]
fn queues_of_all_devices_but_other_accelerators() {
    let files = ["dsa4/wq4.1", "dsa0/wq0.3", "dsa0/wq0.0", "iax1/wq1.0", "wq9.9"].map(|queue| format!("{queue}/state"));
    let root = tree(&files.each_ref().map(|file| (&**file, "disabled")));
    let found = find(root.path(), ALL).unwrap();
    assert_eq!(found.iter().map(|queue| &*queue.0).collect::<Vec<_>>(), ["wq0.0", "wq0.3", "wq4.1"]);
    // One sentence a reason.
    let reasons = open_in(root.path(), root.path(), ALL).unwrap_err();
    assert_eq!(reasons, "wq0.0, wq0.3, wq4.1: its state is \"disabled\", not \"enabled\"");
}

#[test]
fn why_there_is_no_queue() {
    let empty = tempfile::tempdir().unwrap();
    let reason = |devices: &Path| find(devices, ALL).unwrap_err();
    let missing = reason(&empty.path().join("devices"));
    assert!(missing.ends_with("there is no device, or the driver idxd is not loaded"), "{missing}");
    assert!(reason(empty.path()).ends_with("names no device dsa*"));
    assert!(reason(tree(&[("dsa0/state", "enabled")]).path()).ends_with("has a work queue"));
    let said = |errno| refusal("open", Path::new("/dev/dsa/wq0.0"), &io::Error::from_raw_os_error(errno));
    assert!(said(libc::EACCES).starts_with("cannot open /dev/dsa/wq0.0: Permission denied"), "{}", said(libc::EACCES));
    assert!(said(libc::EACCES).ends_with("; give this user access to the device file"));
    assert!(said(libc::EPERM).contains("CAP_SYS_RAWIO"));
    assert!(said(libc::EBUSY).ends_with("a dedicated queue has one user at a time"));
}

/// From files of sysfs to the instruction, with a device file behind which there is no device: it is not taken for one.
#[test]
fn a_device_file_without_a_device_is_given_up() {
    let root = tree(&[
        ("dsa0/pasid_enabled", "1"),
        ("dsa0/wq0.0/state", "enabled"),
        ("dsa0/wq0.0/type", "user"),
        ("dsa0/wq0.0/mode", "dedicated"),
        ("dsa0/wq0.0/size", "16"),
        ("dsa0/wq0.0/max_transfer_size", "2097152"),
    ]);
    let files = tempfile::tempdir().unwrap();
    let has = Instructions::of_this_processor();
    let opened = || open_in(root.path(), files.path(), has).map(|found| found.1).unwrap_err();
    if !has.movdir64b {
        assert_eq!(opened(), "wq0.0: it is dedicated, and this processor has no MOVDIR64B");
        farhold_testkit::skipped("this processor has no MOVDIR64B");
        return;
    }
    let file = files.path().join("wq0.0");
    assert!(opened().contains("No such file"), "{}", opened());
    std::fs::write(&file, [0; 4096]).unwrap();
    assert!(opened().ends_with("is not a device"), "{}", opened());
    std::fs::remove_file(&file).unwrap();
    // A mapping of it is memory, which takes descriptors and never answers.
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert_eq!(opened(), "wq0.0: in the self-check, the device took no descriptor or did not answer");
}

/// The soundness of a wait that ends without an answer rests on this: a closed queue takes nothing, and its portal is unmapped.
#[test]
fn a_closed_queue_has_no_portal() {
    if !Instructions::of_this_processor().movdir64b {
        farhold_testkit::skipped("this processor has no MOVDIR64B");
        return;
    }
    let (source, mut target, record) = ([1; 8], [0; 8], Record::default());
    let descriptor = Descriptor::memory_move(source.as_ptr(), target.as_mut_ptr(), 8, &record, 0);
    // Another thread may map something at the address at once.
    let is_unmapped = (0..100).any(|_| {
        let (queue, page) = WorkQueue::of_memory();
        // SAFETY: no device reads the page.
        let submit = || unsafe { queue.submit(&descriptor) };
        assert_eq!(submit(), Submitted::Taken);
        queue.close();
        assert_eq!(submit(), Submitted::Closed);
        queue.close();
        // SAFETY: of a mapping that there may be, it changes no byte.
        let done = unsafe { libc::msync(page.cast_mut().cast(), 4096, libc::MS_ASYNC) };
        done != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM)
    });
    assert!(is_unmapped);
}
