//! What a memory instruction does. One that is refused or cancelled does nothing.

use super::{REGION, Start, at, bytes, check, one, word};
use crate::{Batch, Fabric, FabricError, FarPtr, NodeId, RegionId};
use std::rc::Rc;
use std::sync::atomic::Ordering;

#[test]
fn a_cancelled_instruction_does_nothing() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let memory = b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let mut batch = Batch::new();
            let kept = batch.fetch_add(at(2, 0), 1);
            let cancelled = [batch.fetch_add(at(2, 8), 1), batch.write(at(2, 16), b"bytes"), batch.read(at(2, 0), 64)];
            for slot in cancelled {
                batch.cancel(slot);
            }
            let batch = endpoint.submit(batch).await;
            assert_eq!(batch.word(kept), Ok(0));
            assert!(cancelled.into_iter().all(|slot| batch.done(slot).is_ok()));
            let words: Vec<u64> = (0..4).map(|i| memory.word(i * 8).unwrap().load(Ordering::SeqCst)).collect();
            assert_eq!(words, [1, 0, 0, 0]);
        });
    });
}

#[test]
fn every_instruction() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let e = &endpoint;
            assert_eq!(word(e, |b| b.fetch_add(at(2, 8), 5)).await, Ok(0));
            assert_eq!(word(e, |b| b.fetch_add(at(2, 8), u64::MAX)).await, Ok(5));
            assert_eq!(word(e, |b| b.compare_swap(at(2, 8), 5, 9)).await, Ok(4), "not as expected: unchanged");
            assert_eq!(word(e, |b| b.compare_swap(at(2, 8), 4, 0b1100)).await, Ok(4));
            assert_eq!(word(e, |b| b.and(at(2, 8), 0b0110)).await, Ok(0b1100));
            assert_eq!(word(e, |b| b.or(at(2, 8), 0b0011)).await, Ok(0b0100));
            assert_eq!(word(e, |b| b.xor(at(2, 8), 0b0101)).await, Ok(0b0111));
            assert_eq!(word(e, |b| b.swap(at(2, 8), 77)).await, Ok(0b0010));
            assert_eq!(word(e, |b| b.clear_word(at(2, 8))).await, Ok(77));
            assert_eq!(bytes(e, |b| b.read(at(2, 0), 24)).await, Ok(vec![0; 24]));
            let text: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
            assert_eq!(bytes(e, |b| b.write(at(2, 101), &text)).await, Ok(vec![]));
            assert_eq!(bytes(e, |b| b.read(at(2, 101), 1000)).await.as_deref(), Ok(&text[..]));
            assert_eq!(bytes(e, |b| b.read(at(2, 100), 1)).await, Ok(vec![0]), "the byte before is untouched");
            assert_eq!(bytes(e, |b| b.read(at(2, 1101), 1)).await, Ok(vec![0]), "the byte behind is untouched");
            assert_eq!(bytes(e, |b| b.read(at(2, 4096), 0)).await, Ok(vec![]), "nothing, at the end");
            assert_eq!(bytes(e, |b| b.flush(at(2, 0), 4096)).await, Ok(vec![]));
        });
    });
}

#[test]
fn a_batch_has_a_result_for_each_and_is_used_again() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        for node in [&a, &b] {
            node.create_region(REGION, 4096).unwrap();
        }
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let mut batch = Batch::new();
            for round in 0..20u64 {
                batch.clear();
                let near = batch.fetch_add(at(1, 0), 1);
                let bad = batch.fetch_add(at(2, 4096), 1);
                let text = batch.read(at(2, 64), 100);
                let far = batch.fetch_add(at(2, 8), 2);
                batch = endpoint.submit(batch).await;
                assert_eq!(batch.word(near), Ok(round));
                assert!(matches!(batch.word(bad), Err(FabricError::OutOfBounds { .. })));
                assert_eq!(batch.bytes(text), Ok(&[0; 100][..]));
                assert_eq!(batch.word(far), Ok(round * 2));
                assert_eq!(batch.all_done(), Err(batch.word(bad).unwrap_err()));
            }
        });
    });
}

#[test]
fn wrong_pointers_are_refused() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        b.create_region(REGION, 4096).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let e = &endpoint;
            let outside = |offset, bytes| FabricError::OutOfBounds { at: at(2, offset), bytes, region_bytes: 4096 };
            assert_eq!(bytes(e, |b| b.read(at(2, 4090), 7)).await, Err(outside(4090, 7)));
            assert_eq!(bytes(e, |b| b.write(at(2, 4095), b"ab")).await, Err(outside(4095, 2)));
            assert_eq!(bytes(e, |b| b.flush(at(2, 4095), 2)).await, Err(outside(4095, 2)));
            let last = FarPtr::OFFSET_MAX;
            assert_eq!(bytes(e, |b| b.read(at(2, last), 1)).await, Err(outside(last, 1)));
            assert_eq!(word(e, |b| b.swap(at(2, 4096), 1)).await, Err(outside(4096, 8)));
            assert_eq!(word(e, |b| b.swap(at(2, 4092), 1)).await, Err(outside(4092, 8)));
            let misaligned = FabricError::Misaligned { at: at(2, 12), align: 8 };
            assert_eq!(word(e, |b| b.fetch_add(at(2, 12), 1)).await, Err(misaligned));
            let object =
                |offset| one(e, move |b| b.read_object(at(2, offset), 8), |b, s| b.object(s).map(|o| o.version));
            assert_eq!(object(8).await, Err(FabricError::Misaligned { at: at(2, 8), align: 16 }));
            assert_eq!(object(4080).await, Err(outside(4080, 32)));
            let nowhere = FarPtr::new(NodeId(2), RegionId(9), 0);
            let missing = FabricError::NoSuchRegion { node: NodeId(2), region: RegionId(9) };
            assert_eq!(bytes(e, |b| b.read(nowhere, 1)).await, Err(missing));
            assert_eq!(
                bytes(e, |b| b.read(at(99, 0), 1)).await,
                Err(FabricError::NodeUnavailable { node: NodeId(99) })
            );
            assert!(endpoint.mapped(NodeId(99), REGION).is_none());
        });
    });
}

/// A refused instruction changes nothing, in the batch's other instructions and in memory, and the endpoint goes on.
#[test]
fn what_is_refused_leaves_no_trace() {
    check(|bed| {
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let memory = b.create_region(REGION, 4096).unwrap();
        let content: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
        memory.copy_in(0, &content).unwrap();
        let endpoint = a.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let mut batch = Batch::new();
            for round in 0..3_u8 {
                batch.clear();
                let wrong = [
                    batch.write(at(2, 4090), &[0xee; 7]),
                    batch.write(at(2, FarPtr::OFFSET_MAX), &[0xee]),
                    batch.write(FarPtr::new(NodeId(2), RegionId(9), 0), &[0xee]),
                    batch.write(at(77, 0), &[0xee]),
                    // A word of which only its half is aligned: what an atomic of four bytes would be.
                    batch.swap(at(2, 4), 0xeeee_eeee),
                    batch.fetch_add(at(2, 4092), 1),
                    batch.compare_swap(at(2, 3), 0, 0xee),
                    batch.clear_word(at(2, 4096)),
                    batch.read_object(at(2, 4080), 64),
                ];
                let right = batch.write(at(2, 64), &[round; 8]);
                batch = endpoint.submit(batch).await;
                for slot in wrong {
                    assert!(batch.done(slot).is_err());
                }
                assert_eq!(batch.done(right), Ok(()));
                let mut now = vec![0; 4096];
                memory.copy_out(0, &mut now).unwrap();
                let expected = [&content[..64], &[round; 8], &content[72..]].concat();
                assert!(now == expected, "round {round}: something else was written");
            }
        });
    });
}

#[test]
fn counters_lose_nothing() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let (tasks, rounds) = (4, if cfg!(miri) { 4 } else { 200 });
        let body = |number: u64| -> Start {
            Box::new(move |endpoint| {
                Box::pin(async move {
                    for _ in 0..rounds {
                        word(&endpoint, |b| b.fetch_add(at(0, 0), 1)).await.unwrap();
                        let mut expected = 0;
                        loop {
                            let seen =
                                word(&endpoint, |b| b.compare_swap(at(0, 64), expected, expected + 1)).await.unwrap();
                            if seen == expected {
                                break;
                            }
                            expected = seen;
                        }
                        word(&endpoint, |b| b.xor(at(0, 128), 1 << number)).await.unwrap();
                    }
                })
            })
        };
        let nodes: Vec<Fabric> = (1..=tasks).map(|number| bed.join(number as u8).unwrap()).collect();
        bed.together(nodes.iter().zip(1..).map(|(fabric, number)| (fabric.clone(), body(number))).collect());
        let value = |offset| memory.word(offset).unwrap().load(Ordering::SeqCst);
        assert_eq!((value(0), value(64), value(128)), (tasks * rounds, tasks * rounds, 0));
    });
}

/// An instruction whose future is dropped early is still executed, and nothing is left behind.
#[test]
fn a_dropped_submission_still_happens() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let endpoint = Rc::new(home.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let mut batch = Batch::new();
            batch.fetch_add(at(0, 0), 1);
            {
                let mut submission = std::pin::pin!(endpoint.submit(batch));
                std::future::poll_fn(|cx| {
                    let _ = submission.as_mut().poll(cx);
                    std::task::Poll::Ready(())
                })
                .await;
            }
            let until_ns = bed.handle().now_ns() + 10_000_000_000;
            while memory.word(0).unwrap().load(Ordering::SeqCst) == 0 && bed.handle().now_ns() < until_ns {
                bed.handle().sleep_ns(1_000_000).await;
            }
            assert_eq!(memory.word(0).unwrap().load(Ordering::SeqCst), 1);
        });
    });
}
