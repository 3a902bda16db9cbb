//! Reads of objects: each gets one state of the object, or none.

use super::{REGION, Start, at, bytes, check, one, word};
use crate::object::{self, Meta, Version};
use crate::{Batch, Endpoint, FabricError};
use std::sync::atomic::Ordering;

/// Writes one state of the object at 64, as a transaction would: every payload word is the version.
async fn write_object(endpoint: &Endpoint, round: u64, payload_len: usize) {
    let version = round * Version::ONE;
    let base = at(0, 64);
    word(endpoint, |b| b.swap(base.add(object::VERSION), (version - Version::ONE) | Version::WRITING)).await.unwrap();
    word(endpoint, |b| b.swap(base.add(object::META), Meta::new(1, Meta::ROW, 0, payload_len).0)).await.unwrap();
    let payload: Vec<u8> = version.to_le_bytes().into_iter().cycle().take(payload_len).collect();
    bytes(endpoint, |b| b.write(base.add(object::PAYLOAD), &payload)).await.unwrap();
    word(endpoint, |b| b.swap(base.add(object::VERSION), version)).await.unwrap();
}

/// A reader that races with a writer gets one state or `Torn`, never a mix; and it does get both.
#[test]
fn objects_are_whole_or_torn() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        home.create_region(REGION, 8192).unwrap();
        let (a, b) = (bed.join(1).unwrap(), bed.join(2).unwrap());
        let rounds: u64 = if cfg!(miri) { 30 } else { 1_500 };
        let len = |round: u64| 8 * (1 + round as usize % 130);
        let writer: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                for round in 1..=rounds {
                    write_object(&endpoint, round, len(round)).await;
                    for _ in 0..20 {
                        endpoint.handle().yield_now().await;
                    }
                }
            })
        });
        let reader: Start = Box::new(move |endpoint| {
            Box::pin(async move {
                let (mut whole, mut torn, mut last) = (0u32, 0u32, 0);
                let mut batch = Batch::new();
                while last < rounds * Version::ONE {
                    batch.clear();
                    let slot = batch.read_object(at(0, 64), 2048);
                    batch = endpoint.submit(batch).await;
                    match batch.object(slot) {
                        Ok(object) => {
                            assert!(object.version >= last && !Version(object.version).is_writing());
                            last = object.version;
                            let expected = if last == 0 { 0 } else { len(last / Version::ONE) };
                            assert_eq!(object.payload.len(), expected);
                            for word in object.payload.chunks(8) {
                                assert_eq!(word, last.to_le_bytes(), "a mix of two states");
                            }
                            whole += 1;
                        }
                        Err(FabricError::Torn { at: torn_at }) => {
                            assert_eq!(torn_at, at(0, 64));
                            torn += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                assert!(whole > 0);
                println!("{whole} whole, {torn} torn");
            })
        });
        bed.together(vec![(a, writer), (b, reader)]);
    });
}

#[test]
fn an_object_needs_room() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let endpoint = home.endpoint(&bed.handle()).unwrap();
        bed.executor.run(async {
            let object = |offset, room| {
                one(
                    &endpoint,
                    move |b| b.read_object(at(0, offset), room),
                    |b, s| b.object(s).map(|o| (o.version, o.payload.to_vec())),
                )
            };
            memory.word(16).unwrap().store(Meta::new(3, Meta::ROW, 4, 10).0, Ordering::SeqCst);
            memory.word(8).unwrap().store(Version::of_epoch(2).with(Version::ABSENT).0, Ordering::SeqCst);
            memory.copy_in(32, b"keysvalues").unwrap();
            assert_eq!(object(0, 10).await, Ok((2 << 32 | 4, b"keysvalues".to_vec())));
            assert_eq!(
                object(0, 9).await,
                Err(FabricError::ObjectTooLong { at: at(0, 0), payload_len: 10, payload_len_max: 9 })
            );
            memory.word(8).unwrap().store(Version::WRITING, Ordering::SeqCst);
            assert_eq!(object(0, 10).await, Err(FabricError::Torn { at: at(0, 0) }));
            // A meta word that leads out of the region, near its end.
            memory.word(4096 - 48 + 16).unwrap().store(Meta::new(3, Meta::ROW, 4, 17).0, Ordering::SeqCst);
            let outside = FabricError::OutOfBounds { at: at(0, 4080), bytes: 17, region_bytes: 4096 };
            assert_eq!(object(4096 - 48, 100).await, Err(outside));
        });
    });
}
