//! What must not work: strangers, other versions, rubbish, peers that go silent. Each gives a typed error in time, nothing
//! is written, and all other nodes go on.

use super::agent::entry::SESSIONS_PER_NODE_MAX;
use super::caller::Caller;
use super::channel::{BulkTarget, Channel, Event, FRAMES_SENT, Peer, Size};
use super::frame::{self, Header, Kind, Reader, Tag, WireOp};
use super::rendezvous::{self, Record};
use super::secret::{Introduction, NONCE_BYTES, Nonce, Side};
use super::{Config, Rendezvous, Secret};
use crate::batch::OpKind;
use crate::provider::shm;
use crate::{
    Address, Admitted, Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, NodeId, RegionId, RegionMemory,
};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

const REGION: RegionId = RegionId(3);
const BYTES: u64 = 4 << 20;
const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];

struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(farhold_testkit::memory_directory())
    }

    fn join(&self, node: u8, config: &Config) -> Fabric {
        Fabric::join_libfabric(&self.0, NodeId(node), config.clone()).unwrap()
    }

    fn record(&self, node: u8) -> Record {
        rendezvous::find(self.0.path(), &Rendezvous::Directory, NodeId(node), u64::MAX).unwrap()
    }
}

/// Longer than a thread waits for its turn on a third of a processor.
const TIMEOUT_NS: u64 = 3_000_000_000;

fn config(provider: &str) -> Config {
    Config { connect_timeout_ns: TIMEOUT_NS, request_timeout_ns: TIMEOUT_NS, ..Config::new(provider, secret()) }
}

fn secret() -> Secret {
    Secret::new(b"the secret of this cluster").unwrap()
}

/// Two good nodes, 1 and 2; node 2 has a region full of sevens.
struct Bed {
    dir: Dir,
    provider: &'static str,
    executor: Executor,
    one: Fabric,
    two: Fabric,
    memory: Arc<RegionMemory>,
}

impl Bed {
    fn new(provider: &'static str) -> Self {
        println!("over {provider}");
        let dir = Dir::new();
        let (one, two) = (dir.join(1, &config(provider)), dir.join(2, &config(provider)));
        let memory = two.create_region(REGION, BYTES).unwrap();
        memory.copy_in(0, &vec![7; BYTES as usize]).unwrap();
        Self { dir, provider, executor: Executor::real(1), one, two, memory }
    }

    fn endpoint(&self, fabric: &Fabric) -> Endpoint {
        fabric.endpoint(&self.executor.handle()).unwrap()
    }

    /// The region of node 2 is as it was, and node 1 can use it.
    fn assert_whole(&self) {
        let mut bytes = vec![0; BYTES as usize];
        self.memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7), "somebody wrote");
        self.assert_usable(&self.endpoint(&self.one));
    }

    /// The key of node 2's region, for tests that build requests by hand.
    fn key(&self) -> u64 {
        self.endpoint(&self.one).refresh(NodeId(2), REGION).unwrap().0
    }

    fn assert_usable(&self, endpoint: &Endpoint) {
        let done = run(&self.executor, endpoint, |batch| {
            batch.read(at(8), 8);
            batch.fetch_add(at(16), 0);
        });
        assert_eq!(done, Ok(()));
    }
}

fn at(offset: u64) -> FarPtr {
    FarPtr::new(NodeId(2), REGION, offset)
}

/// The first failure of a batch.
fn run(executor: &Executor, endpoint: &Endpoint, fill: impl FnOnce(&mut Batch)) -> Result<(), FabricError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    executor.run(async { endpoint.submit(batch).await.all_done() })
}

fn on_each(test: impl Fn(&Bed)) {
    for provider in PROVIDERS {
        test(&Bed::new(provider));
    }
}

/// A program that speaks libfabric and knows where a node is.
struct Stranger {
    channel: Channel,
    home: Peer,
    record: Record,
    number: u64,
}

impl Stranger {
    fn of(bed: &Bed) -> Self {
        let record = bed.dir.record(2);
        let local = (bed.provider != "shm").then_some("127.0.0.1");
        let channel = Channel::open(bed.provider, local, Size { rx: 8, tx: 8, bulk: 4 }, false).unwrap();
        let home = channel.meet(&record.name).unwrap();
        Self { channel, home, record, number: 0 }
    }

    /// Is found as a node that it is not.
    fn publish_as(&self, bed: &Bed, member: &shm::Member) -> rendezvous::Publication {
        let record = Record {
            version: frame::VERSION,
            node: crate::provider::Membership::node(member),
            incarnation: member.incarnation(),
            pid: std::process::id(),
            provider: self.record.provider.clone(),
            name: self.channel.name().unwrap(),
        };
        rendezvous::Publication::new(bed.dir.0.path(), &Rendezvous::Directory, &record).unwrap()
    }

    /// How the NIC gets to byte 128 of the region.
    fn nic_target(&mut self, bed: &Bed, session: u32, token: u64) -> BulkTarget {
        let wire = WireOp { kind: OpKind::Flush, a: frame::NIC_KEY, ..write_of(bed.key()) };
        let (_, answer) = self.ask(Kind::Request, session, token, &request_of(&wire, &[]));
        let mut words = Reader(&answer[8..]);
        let [key, base] = [(); 2].map(|()| words.u64().unwrap());
        BulkTarget { remote: base + 128, key }
    }

    /// Reads or writes by the NIC; true if it says that it did.
    fn transfer(&self, is_write: bool, bytes: &mut [u8], target: BulkTarget) -> bool {
        let (local, len) = (bytes.as_mut_ptr(), bytes.len() as u64);
        // SAFETY: the bytes are borrowed until the event has come.
        while let Err(refusal) = unsafe { self.channel.bulk(is_write, local, len, None, self.home, target) } {
            if refusal == super::channel::Refusal::Broken {
                return false;
            }
            self.channel.poll(|_| {});
            std::thread::yield_now();
        }
        let mut outcome = None;
        while outcome.is_none() {
            self.channel.poll(|event| {
                if let Event::Bulk { is_done, .. } = event {
                    outcome = Some(is_done);
                }
            });
            std::thread::yield_now();
        }
        outcome == Some(true)
    }

    fn send(&mut self, header: Header, body: &[u8]) {
        for (head, part) in frame::split(header, body) {
            let frame = [&head, part].concat();
            while self.channel.send(self.home, 0, &frame).is_err() {
                self.channel.poll(|_| {});
                std::thread::yield_now();
            }
        }
    }

    /// The next answer to this number.
    fn answer(&self, number: u64) -> (Header, Vec<u8>) {
        loop {
            let mut found = None;
            self.channel.poll(|event| {
                if let Event::Received(frame) = event {
                    let mut parcels = frame::parcels(frame).map(|(header, part)| (header, part.to_vec()));
                    found = parcels.find(|(header, _)| header.number == number);
                }
            });
            if let Some(found) = found {
                return found;
            }
            std::thread::yield_now();
        }
    }

    fn ask(&mut self, kind: Kind, session: u32, token: u64, body: &[u8]) -> (Header, Vec<u8>) {
        self.number += 1;
        self.send(Header::new(kind, session, token, self.number, body.len()), body);
        self.answer(self.number)
    }

    /// As a worker of this node's first start.
    fn introduction<'a>(&'a self, node: u8, name: &'a [u8], home_nonce: &'a Nonce) -> Introduction<'a> {
        Introduction {
            version: frame::VERSION,
            worker_nonce: &[5; NONCE_BYTES],
            home_nonce,
            worker_node: node,
            home_node: 2,
            start: (1, 1),
            worker_name: name,
            home_name: &self.record.name,
        }
    }

    fn hello_body(&self, node: u8, name: &[u8], secret: &Secret) -> Vec<u8> {
        let introduction = self.introduction(node, name, &[0; NONCE_BYTES]);
        frame::hello(&introduction, &secret.prove(Side::Hello, &introduction))
    }

    /// Says hello as node 1 with the secret; what was sent before has been handled when the challenge comes.
    fn hello(&mut self) -> (Header, Vec<u8>) {
        let body = self.hello_body(1, &self.channel.name().unwrap(), &secret());
        self.ask(Kind::Hello, 0, 0, &body)
    }

    /// Says hello under `count` addresses of its host, whether or not anything is there.
    fn hello_often(&mut self, count: u16, node: u8, secret: &Secret) {
        let name = self.channel.name().unwrap();
        for port in 1..=count {
            // A `sockaddr_in`.
            let mut name = name.clone();
            name[2..4].copy_from_slice(&port.to_be_bytes());
            let body = self.hello_body(node, &name, secret);
            self.send(Header::new(Kind::Hello, 0, 0, 0, body.len()), &body);
        }
    }

    /// Enters with the secret: session and token.
    fn enter(&mut self) -> (u32, u64) {
        let (header, challenge) = self.hello();
        assert_eq!(header.kind, Kind::Challenge);
        let (name, secret) = (self.channel.name().unwrap(), secret());
        let introduction = self.introduction(1, &name, challenge[..NONCE_BYTES].try_into().unwrap());
        let proof = secret.prove(Side::Worker, &introduction);
        let token = secret.token(&introduction);
        // Another's proof, of which nothing comes.
        self.send(Header::new(Kind::Proof, header.session, 0, 0, 32), &[0; 32]);
        let (header, _) = self.ask(Kind::Proof, header.session, 0, &proof);
        assert_eq!(header.kind, Kind::Welcome);
        (header.session, token)
    }
}

/// A request with one instruction.
fn request_of(op: &WireOp, bytes: &[u8]) -> Vec<u8> {
    let mut body = [(Tag::Ops as u32).to_le_bytes(), [0; 4]].concat();
    op.put(&mut body);
    frame::put_padded(&mut body, bytes);
    body
}

fn write_of(key: u64) -> WireOp {
    WireOp { kind: OpKind::Write, region: REGION, len: 8, offset: 64, key, a: 0, b: 0 }
}

#[test]
fn who_does_not_know_the_secret_reads_and_writes_nothing() {
    on_each(|bed| {
        let other = Config { secret: Secret::new(b"the secret of another cluster").unwrap(), ..config(bed.provider) };
        let three = bed.dir.join(3, &other);
        let outsider = bed.endpoint(&three);
        let refused = Err(FabricError::NotAdmitted { node: NodeId(2) });
        assert_eq!(run(&bed.executor, &outsider, |batch| _ = batch.write(at(64), &[9; 8])), refused);
        assert_eq!(run(&bed.executor, &outsider, |batch| _ = batch.write(at(0), &vec![9; 1 << 20])), refused);
        assert_eq!(run(&bed.executor, &outsider, |batch| _ = batch.read(at(64), 8)), refused);
        assert_eq!(
            outsider.send(Address::home(NodeId(2)), b"hello").map_err(|it| it == refused.clone().unwrap_err()),
            Err(true)
        );
        // Nor does a node trust a home that does not know the secret.
        let insider = bed.endpoint(&bed.one);
        let far = FarPtr::new(NodeId(3), REGION, 0);
        three.create_region(REGION, 4096).unwrap();
        let refused = Err(FabricError::NotAdmitted { node: NodeId(3) });
        assert_eq!(run(&bed.executor, &insider, |batch| _ = batch.write(far, b"confided")), refused);
        bed.assert_usable(&insider);
        assert!(!bed.endpoint(&bed.two).wait(1), "no message came");
        bed.assert_whole();
    });
}

#[test]
fn frames_without_a_session_are_dropped_unread() {
    on_each(|bed| {
        let mut stranger = Stranger::of(bed);
        let body = request_of(&write_of(bed.key()), &[9; 8]);
        let (challenge, _) = stranger.hello();
        // Among these are the numbers of living sessions, whose tokens cannot be guessed.
        let living = bed.endpoint(&bed.one);
        bed.assert_usable(&living);
        for session in (0..8).chain([challenge.session, u32::MAX]) {
            for token in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
                stranger.send(Header::new(Kind::Request, session, token, 99, body.len()), &body);
            }
        }
        // A sender that guesses is refused, and gets no answer that a guess could be tried against.
        let name = stranger.channel.name().unwrap();
        for guess in [&[1; 16], &[2; 16]] {
            let body = stranger.hello_body(1, &name, &Secret::new(guess).unwrap());
            let (refusal, why) = stranger.ask(Kind::Hello, 0, 0, &body);
            assert_eq!(
                (refusal.kind, why),
                (Kind::Refused, vec![frame::Refusal::NotAdmitted as u8, 0, 0, 0, 0, 0, 0, 0])
            );
        }
        stranger.hello();
        bed.assert_whole();
        // With the secret the same frame is a request like any other.
        let (session, token) = stranger.enter();
        let (_, answer) = stranger.ask(Kind::Request, session, token, &request_of(&write_of(bed.key()), &[7; 8]));
        assert_eq!(frame::take_answer(&mut Reader(&answer), at(64), Address::default()), Some(Ok(&[][..])));
        bed.assert_whole();
    });
}

#[test]
fn rubbish_gets_no_answer_and_harms_nobody() {
    on_each(|bed| {
        let mut stranger = Stranger::of(bed);
        let (session, token) = stranger.enter();
        let key = bed.key();
        let word = |kind, len, offset| WireOp { kind, region: REGION, len, offset, key, a: 1, b: 2 };
        let ops = [
            // Words of four bytes, and of none.
            request_of(&word(OpKind::FetchAdd, 4, 64), &[]),
            request_of(&word(OpKind::Swap, 0, 64), &[]),
            request_of(&word(OpKind::CompareSwap, 16, 64), &[]),
            // A write that has fewer bytes than it says; one that says more than there can be.
            request_of(&word(OpKind::Write, 4096, 64), &[9; 8]),
            request_of(&word(OpKind::Write, u32::MAX, 64), &[9; 8]),
            request_of(&word(OpKind::Read, u32::MAX, 64), &[]),
            vec![],
            vec![0; 7],
            [200, 0, 0, 0, 0, 0, 0, 0].to_vec(),
            [0, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0].to_vec(),
        ];
        for (number, body) in ops.iter().enumerate() {
            stranger.send(Header::new(Kind::Request, session, token, 1000 + number as u64, body.len()), body);
        }
        // Lanes that are not open, a message above the limit, a body that says it is longer than any.
        stranger.send(Header::new(Kind::Message, session, token, 5, 4), b"lost");
        stranger.send(Header::new(Kind::Message, session, token, u64::MAX, 4), b"lost");
        stranger.send(Header { total: u32::MAX, ..Header::new(Kind::Request, session, token, 6, 4) }, b"long");
        stranger.send(Header { offset: u32::MAX, ..Header::new(Kind::Request, session, token, 6, 4) }, b"far");
        let home = bed.endpoint(&bed.two);
        let (_, lane) = stranger.ask(Kind::Request, session, token, &frame::request(Tag::Lane, 0, 7));
        let lane = Reader(&lane[8..]).u64().unwrap();
        let long = vec![1; crate::provider::MESSAGE_BYTES_MAX + 1];
        stranger.send(Header::new(Kind::Message, session, token, lane, long.len()), &long);
        // Misaligned is a word like others, and refused like others.
        let (_, answer) = stranger.ask(Kind::Request, session, token, &request_of(&word(OpKind::FetchAdd, 8, 60), &[]));
        let answer = frame::take_answer(&mut Reader(&answer), at(60), Address::default());
        assert_eq!(answer, Some(Err(FabricError::Misaligned { at: at(60), align: 8 })));
        assert!(home.try_recv_home().is_none(), "nothing too long arrives");
        bed.assert_whole();
    });
}

/// A node that was expelled while it was cut off knows the secret. It asks a node that has started since, and never fenced it,
/// for keys.
#[test]
fn keys_go_only_to_starts_that_belong_to_the_cluster() {
    on_each(|bed| {
        let births = |of: &[&Fabric]| Admitted::Births(of.iter().map(|it| (it.node(), it.birth().unwrap())).collect());
        let (of_one, of_two) = (bed.endpoint(&bed.one), bed.endpoint(&bed.two));
        bed.assert_usable(&of_one);
        let unavailable = Err(FabricError::NodeUnavailable { node: NodeId(2) });
        // It is in the middle of a session, with a key that is good.
        bed.two.admit(7, births(&[&bed.two]));
        assert_eq!(run(&bed.executor, &of_one, |batch| _ = batch.write(at(64), &[9; 8])), unavailable);
        assert_eq!(run(&bed.executor, &of_one, |batch| _ = batch.write(at(0), &vec![9; 1 << 20])), unavailable);
        assert_eq!(run(&bed.executor, &of_one, |batch| _ = batch.fetch_add(at(64), 1)), unavailable);
        assert_eq!(of_one.refresh(NodeId(2), REGION).map(drop), unavailable);
        bed.two.admit(6, Admitted::Everybody);
        assert_eq!(of_one.refresh(NodeId(2), REGION).map(drop), unavailable, "what is older comes too late");
        // Nor does the key help that the region has now.
        bed.two.attach_region(REGION).unwrap();
        assert_eq!(of_one.refresh(NodeId(2), REGION).map(drop), unavailable);
        // By a message a node that starts asks to be let in.
        of_one.send(Address::home(NodeId(2)), b"may I?").unwrap();
        bed.executor.run(async {
            while of_two.try_recv_home().is_none() {
                bed.executor.handle().yield_now().await;
            }
        });
        bed.two.admit(8, births(&[&bed.one, &bed.two]));
        of_one.refresh(NodeId(2), REGION).unwrap();
        bed.assert_whole();
        // Another start of its node belongs to the cluster: not even messages come from this one.
        bed.two.admit(9, Admitted::Births(vec![(NodeId(1), bed.one.birth().unwrap() ^ 2)]));
        assert_eq!(of_one.refresh(NodeId(2), REGION).map(drop), unavailable);
        assert_eq!(of_one.send(Address::home(NodeId(2)), b"may I?"), unavailable);
        let newcomer = bed.endpoint(&bed.one);
        assert_eq!(run(&bed.executor, &newcomer, |batch| _ = batch.read(at(8), 8)), unavailable);
        bed.two.admit(10, Admitted::Everybody);
        // A caller that was refused slowly does not ask again at once.
        bed.executor.run(async {
            while of_one.refresh(NodeId(2), REGION).is_err() {
                bed.executor.handle().sleep_ns(1_000_000).await;
            }
        });
        bed.assert_whole();
    });
}

/// A home that does not know the secret and welcomes every node: no node trusts it.
#[test]
fn an_impostor_is_told_nothing() {
    on_each(|bed| {
        let mut impostor = Stranger::of(bed);
        let four = shm::Member::join(bed.dir.0.path(), NodeId(4)).unwrap();
        let _published = impostor.publish_as(bed, &four);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let heard = std::thread::scope(|scope| {
            let stopped = &stop;
            let answering = scope.spawn(move || {
                let mut heard = Vec::new();
                while !stopped.load(Ordering::SeqCst) {
                    let mut frames = Vec::new();
                    impostor.channel.poll(|event| {
                        if let Event::Received(frame) = event {
                            frames.extend(frame::parcels(frame).map(|(header, part)| (header, part.to_vec())));
                        }
                    });
                    for (header, body) in frames {
                        heard.push(header.kind);
                        let len = usize::from(body[0]);
                        impostor.home = impostor.channel.meet(&body[2..2 + len]).unwrap();
                        let (kind, body) = match header.kind {
                            Kind::Hello => (Kind::Challenge, vec![3; NONCE_BYTES + 32]),
                            _ => (Kind::Welcome, vec![]),
                        };
                        impostor.send(Header::new(kind, 0, 0, header.number, body.len()), &body);
                    }
                    std::thread::yield_now();
                }
                heard
            });
            let endpoint = bed.endpoint(&bed.one);
            let far = FarPtr::new(NodeId(4), REGION, 0);
            let refused = Err(FabricError::NotAdmitted { node: NodeId(4) });
            assert_eq!(run(&bed.executor, &endpoint, |batch| _ = batch.write(far, b"confided")), refused);
            bed.assert_usable(&endpoint);
            stop.store(true, Ordering::SeqCst);
            answering.join().unwrap()
        });
        assert_eq!(heard, [Kind::Hello], "and no second proof, which it could use elsewhere");
        bed.assert_whole();
    });
}

/// The NIC's own keys: a key that a peer kept from an earlier registration gives no access to any peer. (Not on libfabric's
/// `shm`: its processes read each other with the kernel's permission and check no key.)
#[test]
fn an_old_key_opens_nothing_to_a_nic() {
    let bed = Bed::new("tcp;ofi_rxm");
    let mut insider = Stranger::of(&bed);
    let (session, token) = insider.enter();
    let target = insider.nic_target(&bed, session, token);
    let mut text = [0; 64];
    assert!(insider.transfer(false, &mut text, target), "a good key reads");
    assert_eq!(text, [7; 64]);
    let mut insider = Stranger::of(&bed);
    insider.hello();
    assert!(!insider.transfer(false, &mut text, BulkTarget { key: target.key ^ 1, ..target }), "a wrong one does not");
    bed.assert_whole();
    let memory = bed.two.attach_region(REGION).unwrap();
    let mut insider = Stranger::of(&bed);
    insider.hello();
    assert!(!insider.transfer(false, &mut text, target), "nor an old one");
    let mut bytes = vec![0; BYTES as usize];
    memory.copy_out(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "an old key wrote");
}

/// `tcp` checks a key when a transfer begins, and puts what comes into memory until it ends: a write that a node had begun before
/// it was fenced would go on. So no NIC's key permits writes there, and long writes of members go by the agent.
#[test]
fn nothing_writes_that_a_fence_does_not_stop() {
    let bed = Bed::new("tcp;ofi_rxm");
    let mut insider = Stranger::of(&bed);
    let (session, token) = insider.enter();
    let target = insider.nic_target(&bed, session, token);
    assert!(!insider.transfer(true, &mut [9; 64], target), "a good key writes");
    assert!(!insider.transfer(true, &mut vec![9; 1 << 20], target));
    bed.assert_whole();
    let long = vec![7; 3 << 20];
    assert_eq!(run(&bed.executor, &bed.endpoint(&bed.one), |batch| _ = batch.write(at(8), &long)), Ok(()));
    bed.assert_whole();
}

/// Neither strangers, nor a fenced node that does not know that it is fenced, exclude others.
#[test]
fn hellos_of_some_do_not_keep_others_out() {
    let bed = Bed::new("tcp;ofi_rxm");
    let mut other = Stranger::of(&bed);
    while !bed.two.fence(NodeId(3), 1).unwrap() {}
    let four = bed.dir.join(4, &config(bed.provider));
    other.hello_often(300, 1, &Secret::new(&[1; 16]).unwrap());
    other.hello_often(300, 3, &secret());
    bed.assert_usable(&bed.endpoint(&four));
    // Nor does a member that says hello and stays silent.
    other.hello_often(300, 1, &secret());
    let five = bed.dir.join(5, &config(bed.provider));
    bed.assert_usable(&bed.endpoint(&five));
    bed.assert_whole();
}

/// A message for a lane that its home has closed is lost, and does not come to an inbox that has a lane since.
#[test]
fn a_lane_is_never_another_one() {
    on_each(|bed| {
        let mut insider = Stranger::of(bed);
        let (session, token) = insider.enter();
        let open = |insider: &mut Stranger, port: u16| {
            let request = frame::request(Tag::Lane, u32::from(port), 7);
            let (_, lane) = insider.ask(Kind::Request, session, token, &request);
            Reader(&lane[8..]).u64().unwrap()
        };
        let (first, second) = (bed.endpoint(&bed.two), bed.endpoint(&bed.two));
        let old = open(&mut insider, first.address().port);
        drop(first);
        // Its home notices at the first message.
        let message = |lane, text: &[u8]| (Header::new(Kind::Message, session, token, lane, text.len()), text.to_vec());
        let (header, text) = message(old, b"too late");
        insider.send(header, &text);
        let new = open(&mut insider, second.address().port);
        for (header, text) in [message(old, b"for another"), message(new, b"for this")] {
            insider.send(header, &text);
        }
        insider.hello();
        let mut heard = Vec::new();
        while let Some(found) = second.try_recv() {
            heard.push(found.bytes.clone());
        }
        assert_eq!(heard, [b"for this"]);
    });
}

/// If an inbox is just being closed and its file is still there, no sender is told that its message has arrived.
#[test]
fn no_lane_opens_into_a_closed_inbox() {
    on_each(|bed| {
        let closed = bed.endpoint(&bed.two);
        let to = closed.address();
        let path = bed.dir.0.path().join(format!("node-002.inbox-1-{}", to.port));
        let inbox = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&inbox, &1_u64.to_le_bytes(), 8).unwrap();
        assert_eq!(bed.endpoint(&bed.one).send(to, b"too late"), Err(FabricError::NoSuchPort { to }));
        bed.assert_whole();
    });
}

/// A home does not keep the inboxes of ports that have ended for endpoints that once sent to them, nor do they use up a session's
/// lanes.
#[test]
fn lanes_into_ended_inboxes_are_let_go() {
    on_each(|bed| {
        let sender = bed.endpoint(&bed.one);
        for _ in 0..10 {
            let ended = bed.endpoint(&bed.two);
            sender.send(ended.address(), b"a last word").unwrap();
            while ended.try_recv().is_none() {
                std::thread::yield_now();
            }
        }
        let last = bed.endpoint(&bed.two);
        sender.send(last.address(), b"and a first one").unwrap();
        let (maps, dir) = (std::fs::read_to_string("/proc/self/maps").unwrap(), bed.dir.0.path().display().to_string());
        let ended = maps.lines().filter(|it| it.contains(&dir) && it.contains(".inbox-") && it.ends_with("(deleted)"));
        assert_eq!(ended.count(), 0);
    });
}

/// Keys that the agent gives a node while the node is being fenced are closed as well.
#[test]
fn a_fence_closes_the_keys_that_were_given_meanwhile() {
    // In most of the rounds the fence comes in the middle of a request.
    for _ in 0..10 {
        let bed = Bed::new("tcp;ofi_rxm");
        let mut zombie = Stranger::of(&bed);
        let (session, token) = zombie.enter();
        let wire = WireOp { kind: OpKind::Flush, a: frame::NIC_KEY, ..write_of(bed.key()) };
        let mut request = request_of(&wire, &[]);
        (0..2000).for_each(|_| wire.put(&mut request));
        let (asks, is_out) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut kept = zombie.nic_target(&bed, session, token);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while asks.load(Ordering::SeqCst) < 20 {
                    std::thread::yield_now();
                }
                while !bed.two.fence(NodeId(1), 1).unwrap() {}
                is_out.store(1, Ordering::SeqCst);
            });
            let mut looks = 0;
            // The last answers may come when the fence is over.
            while looks < 1000 {
                if is_out.load(Ordering::SeqCst) == 1 {
                    looks += 1;
                } else {
                    zombie.send(Header::new(Kind::Request, session, token, 7, request.len()), &request);
                    asks.fetch_add(1, Ordering::SeqCst);
                }
                zombie.channel.poll(|event| {
                    let Event::Received(frame) = event else { return };
                    for (header, part) in frame::parcels(frame) {
                        // The end of an answer: the key and the base that the last instruction got.
                        if header.number == 7 && header.offset + header.len == header.total {
                            let mut words = Reader(&part[part.len() - 16..]);
                            let [key, base] = [(); 2].map(|()| words.u64().unwrap());
                            kept = BulkTarget { remote: base + 128, key };
                        }
                    }
                });
                std::thread::yield_now();
            }
        });
        let mut reader = Stranger::of(&bed);
        reader.hello();
        assert!(!reader.transfer(false, &mut [0; 64], kept));
    }
}

/// A fenced node reaches nothing, neither by the agent nor by a NIC's key that it has kept, and its messages are dropped. Others
/// go on, and so does its next start.
#[test]
fn a_fenced_node_writes_nothing() {
    let bed = Bed::new("tcp;ofi_rxm");
    let mut insider = Stranger::of(&bed);
    let (session, token) = insider.enter();
    let kept = insider.nic_target(&bed, session, token);
    let three = bed.dir.join(3, &config(bed.provider));
    let (zombie, bulk) = (bed.endpoint(&three), vec![7; 1 << 20]);
    let home = Address::home(NodeId(2));
    let write =
        |endpoint: &Endpoint, bytes: &[u8]| run(&bed.executor, endpoint, |batch| _ = batch.write(at(64), bytes));
    assert_eq!((write(&zombie, &[7; 8]), write(&zombie, &bulk)), (Ok(()), Ok(())));
    let good = bed.endpoint(&bed.one);
    assert_eq!(write(&good, &bulk), Ok(()));

    let birth = three.birth().unwrap();
    while !bed.two.fence(NodeId(3), birth ^ 2).unwrap() {}
    assert_eq!(write(&zombie, &[7; 8]), Ok(()), "another start is meant");
    while !bed.two.fence(NodeId(3), birth).unwrap() {}
    let unavailable = Err(FabricError::NodeUnavailable { node: NodeId(2) });
    for _ in 0..2 {
        assert_eq!(write(&zombie, &[9; 8]), unavailable);
        assert_eq!(write(&zombie, &vec![9; 1 << 20]), unavailable);
        assert_eq!(zombie.send(home, b"I am alive"), unavailable);
    }
    assert!(!insider.transfer(false, &mut [9; 64], kept), "a NIC's key of before");
    assert!(bed.endpoint(&bed.two).try_recv_home().is_none());
    assert_eq!(write(&good, &bulk), Ok(()), "who is not shut out");
    bed.assert_whole();
    assert!(matches!(bed.two.fence(NodeId(2), 1), Err(FabricError::Unsupported { .. })));

    drop((zombie, three));
    let again = bed.endpoint(&bed.dir.join(3, &config(bed.provider)));
    assert_eq!((write(&again, &[7; 8]), write(&again, &bulk)), (Ok(()), Ok(())));
    bed.assert_whole();
    // To fence its earlier start once more, or another node, does not affect the start that has come back.
    while !bed.two.fence(NodeId(3), birth).unwrap() {}
    while !bed.two.fence(NodeId(1), bed.one.birth().unwrap()).unwrap() {}
    assert_eq!((write(&again, &[7; 8]), write(&again, &bulk)), (Ok(()), Ok(())));
    assert_eq!(write(&good, &[9; 8]), unavailable);
}

#[test]
fn another_version_is_told_so() {
    on_each(|bed| {
        // By the agent, to a sender of a hello.
        let mut stranger = Stranger::of(bed);
        let body = stranger.hello_body(1, &stranger.channel.name().unwrap(), &secret());
        stranger.send(Header { version: 99, ..Header::new(Kind::Hello, 0, 0, 4, body.len()) }, &body);
        let (header, why) = stranger.answer(4);
        assert_eq!(header.kind, Kind::Refused);
        assert_eq!(why, [1, 0, 0, 0, frame::VERSION as u8, 0, 0, 0]);
        // By the record, before anything is sent.
        let path = bed.dir.0.path().join("node-009.address");
        std::fs::write(&path, "farhold 99\nsomething new\n").unwrap();
        let endpoint = bed.endpoint(&bed.one);
        let far = FarPtr::new(NodeId(9), REGION, 0);
        let mismatch = FabricError::VersionMismatch { node: NodeId(9), ours: frame::VERSION, theirs: 99 };
        assert_eq!(run(&bed.executor, &endpoint, |batch| _ = batch.read(far, 8)), Err(mismatch));
        std::fs::write(&path, "rubbish").unwrap();
        let read = run(&bed.executor, &endpoint, |batch| _ = batch.read(far, 8));
        assert!(matches!(read, Err(FabricError::BadFormat(_))), "{read:?}");
        bed.assert_usable(&endpoint);
        bed.assert_whole();
    });
}

/// Bulk transfers, which go by the NIC: bounds and keys hold for them as well.
#[test]
fn bulk_stays_inside_and_needs_a_living_key() {
    on_each(|bed| {
        let endpoint = bed.endpoint(&bed.one);
        let (e, mib) = (&bed.executor, 1 << 20);
        let sevens = vec![7; 3 << 20];
        assert_eq!(run(e, &endpoint, |batch| _ = batch.write(at(8), &sevens)), Ok(()));
        let mut batch = Batch::new();
        let (long, word) = (batch.read(at(1), 3 << 20), batch.read(at(0), 8));
        let batch = e.run(endpoint.submit(batch));
        assert_eq!(batch.bytes(long), Ok(&sevens[..]));
        assert_eq!(batch.bytes(word), Ok(&[7; 8][..]));
        // Of bytes that never change, reads of every length go by the NIC.
        for len in [0, 1, 100, 70_000] {
            let mut batch = Batch::new();
            let read = batch.read_immutable(at(3), len);
            assert_eq!(e.run(endpoint.submit(batch)).bytes(read), Ok(&sevens[..len]));
        }
        let outside = |offset, bytes| Err(FabricError::OutOfBounds { at: at(offset), bytes, region_bytes: BYTES });
        assert_eq!(
            run(e, &endpoint, |batch| _ = batch.write(at(BYTES - 8), &vec![9; mib])),
            outside(BYTES - 8, 1 << 20)
        );
        assert_eq!(
            run(e, &endpoint, |batch| _ = batch.write(at(BYTES - 8), &vec![9; 40_000])),
            outside(BYTES - 8, 40_000)
        );
        assert_eq!(run(e, &endpoint, |batch| _ = batch.read(at(BYTES + 8), mib)), outside(BYTES + 8, 1 << 20));
        assert_eq!(run(e, &endpoint, |batch| _ = batch.read_immutable(at(BYTES - 8), 9)), outside(BYTES - 8, 9));
        bed.assert_whole();
        // Registered anew: the NIC's key went with the region's.
        let memory = bed.two.attach_region(REGION).unwrap();
        let stale = Err(FabricError::StaleKey { node: NodeId(2), region: REGION });
        assert_eq!(run(e, &endpoint, |batch| _ = batch.write(at(0), &vec![9; mib])), stale);
        assert_eq!(run(e, &endpoint, |batch| _ = batch.read(at(0), mib)), stale);
        assert_eq!(run(e, &endpoint, |batch| _ = batch.read_immutable(at(0), 100)), stale);
        assert_eq!(run(e, &endpoint, |batch| _ = batch.write(at(0), &vec![9; 40_000])), stale);
        let mut bytes = vec![0; BYTES as usize];
        memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7), "an old key wrote");
        endpoint.refresh(NodeId(2), REGION).unwrap();
        assert_eq!(run(e, &endpoint, |batch| _ = batch.write(at(0), &vec![7; mib])), Ok(()));
    });
}

/// More under way than any queue holds: it waits its turn, and nothing is lost.
#[test]
fn many_instructions_wait_their_turn() {
    on_each(|bed| {
        let endpoint = bed.endpoint(&bed.one);
        let word = bed.memory.word(32).unwrap();
        word.store(0, Ordering::SeqCst);
        bed.executor.run(async {
            let batch = |count: u64| {
                let mut batch = Batch::new();
                (0..count).for_each(|_| _ = batch.fetch_add(at(32), 1));
                batch
            };
            let all: Vec<_> = (0..200).map(|_| Box::pin(endpoint.submit(batch(500)))).collect();
            let mut all = all.into_iter().map(Some).collect::<Vec<_>>();
            std::future::poll_fn(|cx| {
                for waiting in &mut all {
                    if let Some(submit) = waiting
                        && let std::task::Poll::Ready(batch) = submit.as_mut().poll(cx)
                    {
                        batch.all_done().unwrap();
                        *waiting = None;
                    }
                }
                if all.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        });
        assert_eq!(word.swap(0x0707_0707_0707_0707, Ordering::SeqCst), 100_000);
        bed.assert_whole();
    });
}

/// Answers of more frames than a home keeps for a worker: the worker asks for no more at a time than its home keeps.
#[test]
fn long_answers_wait_their_turn() {
    on_each(|bed| {
        let endpoint = bed.endpoint(&bed.one);
        bed.assert_usable(&endpoint);
        let reads = |batch: &mut Batch| (0..3000).for_each(|_| _ = batch.read(at(0), 15_000));
        assert_eq!(run(&bed.executor, &endpoint, reads), Ok(()));
        bed.assert_whole();
    });
}

/// A thread whose session has broken ends. Its home learns of that, so it does not keep a place for each such thread.
#[test]
fn broken_sessions_of_ended_threads_take_no_places() {
    on_each(|bed| {
        let member = super::Member::join(bed.dir.0.path(), NodeId(3), config(bed.provider)).unwrap();
        for _ in 0..SESSIONS_PER_NODE_MAX + 8 {
            let mut caller = Caller::open(member.shared.clone()).unwrap();
            caller.break_a_new_session(NodeId(2)).unwrap();
        }
        bed.assert_whole();
    });
}

/// A host that has been taken for dead starts. It lives from the moment in which it has shown itself.
#[test]
fn a_host_that_has_shown_itself_lives() {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let hosts = [free(), free()];
    let join = |node: u8| {
        let (listen, peer) = (hosts[usize::from(node)].clone(), 1 - node);
        let peers = [(NodeId(peer), hosts[usize::from(peer)].clone())].into();
        let config = Config { rendezvous: Rendezvous::Hosts { listen, peers }, ..config("tcp;ofi_rxm") };
        let dir = Dir::new();
        let fabric = dir.join(node, &config);
        (fabric, dir)
    };
    let executor = Executor::real(1);
    let (zero, _dir) = join(0);
    let endpoint = zero.endpoint(&executor.handle()).unwrap();
    let far = FarPtr::new(NodeId(1), REGION, 0);
    let read = || run(&executor, &endpoint, |batch| _ = batch.read(far, 8));
    for _ in 0..3 {
        while zero.node_is_live(NodeId(1)) {
            std::thread::yield_now();
        }
        let (one, _dir) = join(1);
        one.create_region(REGION, BYTES).unwrap();
        let handle = executor.handle();
        let until_ns = handle.now_ns() + 10 * TIMEOUT_NS;
        while read().is_err() {
            assert!(handle.now_ns() < until_ns);
            let _ = endpoint.refresh(NodeId(1), REGION);
        }
        assert!(zero.node_is_live(NodeId(1)), "it has just answered");
    }
}

/// What the tasks of a thread post in one turn is one frame, and each of them gets its own answer.
#[test]
fn what_is_ready_together_travels_together() {
    on_each(|bed| {
        let endpoint = std::rc::Rc::new(bed.endpoint(&bed.one));
        bed.assert_usable(&endpoint);
        let word = bed.memory.word(32).unwrap();
        word.store(0, Ordering::SeqCst);
        let (handle, before) = (bed.executor.handle(), FRAMES_SENT.get());
        let mut found = bed.executor.run(async {
            let tasks: Vec<_> = (0..50)
                .map(|_| {
                    let endpoint = endpoint.clone();
                    handle.spawn(async move {
                        let mut batch = Batch::new();
                        let slot = batch.fetch_add(at(32), 1);
                        endpoint.submit(batch).await.word(slot).unwrap()
                    })
                })
                .collect();
            let mut found = Vec::new();
            for task in tasks {
                found.push(task.await);
            }
            found
        });
        assert_eq!(FRAMES_SENT.get() - before, 1);
        found.sort_unstable();
        assert_eq!(found, (0..50).collect::<Vec<_>>());
        word.store(0x0707_0707_0707_0707, Ordering::SeqCst);
        bed.assert_whole();
    });
}

/// A task that starts instructions and then does other work blocks no other: its instructions are done, and so are those of tasks
/// that would have left the polling to it.
#[test]
fn who_does_not_look_holds_nobody_up() {
    on_each(|bed| {
        let endpoint = bed.endpoint(&bed.one);
        bed.assert_usable(&endpoint);
        let word = bed.memory.word(32).unwrap();
        word.store(0, Ordering::SeqCst);
        let post = || {
            let mut batch = Batch::new();
            batch.fetch_add(at(32), 1);
            Box::pin(endpoint.submit(batch))
        };
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // Posted, and never looked at again: it leaves while this thread asks for messages.
        let mut posted = post();
        assert!(posted.as_mut().poll(&mut context).is_pending());
        while word.load(Ordering::SeqCst) == 0 {
            assert!(endpoint.try_recv().is_none());
        }
        // One that polls for the others, and then does so no more.
        let mut poller = post();
        assert!(poller.as_mut().poll(&mut context).is_pending());
        let is_over = poller.as_mut().poll(&mut context).is_ready();
        bed.assert_usable(&endpoint);
        assert!(is_over || poller.as_mut().poll(&mut context).is_ready(), "its answer came with the others'");
        word.store(0x0707_0707_0707_0707, Ordering::SeqCst);
        bed.assert_whole();
    });
}

/// A home that takes what comes and answers nothing.
#[test]
fn a_silent_node_is_unavailable_in_time() {
    on_each(|bed| {
        let silent = Stranger::of(bed);
        let four = shm::Member::join(bed.dir.0.path(), NodeId(4)).unwrap();
        let _published = silent.publish_as(bed, &four);
        let endpoint = bed.endpoint(&bed.one);
        let far = FarPtr::new(NodeId(4), REGION, 0);
        let handle = bed.executor.handle();
        let before_ns = handle.now_ns();
        let unavailable = Err(FabricError::NodeUnavailable { node: NodeId(4) });
        assert_eq!(run(&bed.executor, &endpoint, |batch| _ = batch.read(far, 8)), unavailable);
        let waited_ns = handle.now_ns() - before_ns;
        // The upper bound leaves room for a machine that pauses.
        assert!((TIMEOUT_NS..20 * TIMEOUT_NS).contains(&waited_ns), "{waited_ns}");
        assert_eq!(
            endpoint.send(Address::home(NodeId(4)), b"?"),
            Err(FabricError::NodeUnavailable { node: NodeId(4) })
        );
        bed.assert_usable(&endpoint);
        bed.assert_whole();
    });
}

#[test]
fn unfit_providers_are_named() {
    let dir = Dir::new();
    let join = |node, provider: &str| Fabric::join_libfabric(&dir.0, NodeId(node), config(provider)).err();
    for name in ["nosuch", "tcp;nosuch", "", "with\0zero"] {
        match join(1, name) {
            Some(FabricError::ProviderUnfit(unfit)) => {
                assert_eq!((&*unfit.provider, &*unfit.reason), (name, "there is none of this name"));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(matches!(Fabric::join(&dir.0, NodeId(1), "carrier-pigeon").err(), Some(FabricError::ProviderUnfit(_))));
    // The node is free again, and nodes of two providers report that they cannot communicate.
    let (one, two) = (dir.join(1, &config("tcp;ofi_rxm")), dir.join(2, &config("shm")));
    two.create_region(REGION, 4096).unwrap();
    let executor = Executor::real(1);
    let endpoint = one.endpoint(&executor.handle()).unwrap();
    let read = run(&executor, &endpoint, |batch| _ = batch.read(at(0), 8));
    assert!(matches!(read, Err(FabricError::ProviderUnfit(_))), "{read:?}");
}

/// What a child process of `a_provider_that_lacks_something` finds, with a part of libfabric taken away.
#[test]
fn a_provider_that_lacks_something() {
    const CHILD: &str = "FARHOLD_LIBFABRIC_CHILD";
    const NAME: &str = "provider::libfabric::tests::a_provider_that_lacks_something";
    if std::env::var_os(CHILD).is_some() {
        let dir = Dir::new();
        let refused = Fabric::join_libfabric(&dir.0, NodeId(1), config("tcp")).err().unwrap();
        let FabricError::ProviderUnfit(unfit) = refused else { panic!("{refused}") };
        assert!(unfit.reason.starts_with("it has no reliable datagrams"), "{}", unfit.reason);
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .envs([(CHILD, "1"), ("FI_PROVIDER", "^ofi_rxm,ofi_rxd")])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

/// A node leaves in the middle of reads of all lengths from its region. They fail or bring its bytes, and the process goes on.
#[test]
fn a_node_may_leave_in_the_midst_of_reads() {
    for turn in 0..4 {
        for provider in PROVIDERS {
            let bed = Bed::new(provider);
            let Bed { dir: _dir, one, two, memory, .. } = bed;
            let begun = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for reader in [1, 2] {
                    let (one, begun) = (&one, &begun);
                    scope.spawn(move || {
                        let executor = Executor::real(reader);
                        let endpoint = one.endpoint(&executor.handle()).unwrap();
                        for number in 0_u32.. {
                            let mut batch = Batch::new();
                            let read: Vec<_> = (0..16)
                                .map(|part| batch.read_immutable(at(8 * part), 1 << ((number + part as u32) % 18)))
                                .collect();
                            let batch = executor.run(endpoint.submit(batch));
                            begun.fetch_add(1, Ordering::SeqCst);
                            for slot in read {
                                match batch.bytes(slot) {
                                    Ok(bytes) => assert!(bytes.iter().all(|byte| *byte == 7), "not its bytes"),
                                    Err(_) => return,
                                }
                            }
                        }
                    });
                }
                while begun.load(Ordering::SeqCst) < 20 + turn {
                    std::thread::yield_now();
                }
                drop((two, memory));
            });
        }
    }
}
