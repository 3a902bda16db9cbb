//! A peer of another version: this version does not read its node's entry.

use farhold_fabric::{Address, Batch, Executor, Fabric, FabricError, FarPtr, NodeId, RegionId};
use std::os::unix::fs::FileExt;

const REGION: RegionId = RegionId(1);

#[test]
fn a_peer_of_another_version_is_told_apart() {
    let cluster = tempfile::tempdir().unwrap();
    let here = Fabric::join_shm(&cluster, NodeId(0)).unwrap();
    let there = Fabric::join_shm(&cluster, NodeId(1)).unwrap();
    let memory = there.create_region(REGION, 4096).unwrap();
    let entry = cluster.path().join("node-001");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&entry).unwrap();
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, 0).unwrap();
    // The next version's.
    let other = (u64::from_le_bytes(magic) + (1 << 56)).to_le_bytes();
    file.write_all_at(&other, 0).unwrap();

    let executor = Executor::real(1);
    let is_other = |error: FabricError| match &error {
        FabricError::BadFormat(file) => assert!(file.path == entry && error.to_string().contains("version"), "{error}"),
        error => panic!("{error}"),
    };
    executor.run(async {
        let endpoint = here.endpoint(&executor.handle()).unwrap();
        let at = FarPtr::new(NodeId(1), REGION, 0);
        let mut batch = Batch::new();
        let (write, add) = (batch.write(at, b"no"), batch.fetch_add(at.add(8), 1));
        let mut batch = endpoint.submit(batch).await;
        is_other(batch.done(write).unwrap_err());
        is_other(batch.word(add).unwrap_err());
        is_other(endpoint.send(Address::home(NodeId(1)), b"no").unwrap_err());
        assert_eq!(memory.word(0).unwrap().load(std::sync::atomic::Ordering::Relaxed), 0);
        // It is restarted as this version: the same endpoint goes on.
        file.write_all_at(&magic, 0).unwrap();
        batch.clear();
        let write = batch.write(at, b"yes");
        assert_eq!(endpoint.submit(batch).await.done(write), Ok(()));
    });
    // Nor can a node of this version take its place.
    drop(there);
    file.write_all_at(&other, 0).unwrap();
    is_other(Fabric::join_shm(&cluster, NodeId(1)).err().unwrap());
}
