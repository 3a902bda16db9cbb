//! The shortest use of everything.

use farhold_fabric::{Batch, Executor, Fabric, FarPtr, NodeId, RegionId};

#[test]
fn a_word_and_a_message() {
    let cluster = tempfile::tempdir().unwrap();
    {
        let fabric = Fabric::join_shm(&cluster, NodeId(3)).unwrap();
        let memory = fabric.create_region(RegionId(1), 4096).unwrap();
        let executor = Executor::real(1);
        let endpoint = fabric.endpoint(&executor.handle()).unwrap();
        executor.run(async {
            let mut batch = Batch::new();
            let at = FarPtr::new(NodeId(3), RegionId(1), 64);
            let added = batch.fetch_add(at, 5);
            let mut batch = endpoint.submit(batch).await;
            assert_eq!(batch.word(added), Ok(0));
            batch.clear();
            let read = batch.read(at, 8);
            let batch = endpoint.submit(batch).await;
            assert_eq!(batch.bytes(read).unwrap(), 5u64.to_le_bytes());
            endpoint.send(endpoint.address(), b"hello").unwrap();
            assert_eq!(endpoint.recv().await.bytes, b"hello");
        });
        assert_eq!(memory.word(64).unwrap().load(std::sync::atomic::Ordering::Relaxed), 5);
    }
    farhold_fabric::provider::shm::remove(cluster.path()).unwrap();
}
