//! One suite: every actor, on every provider, under every form of counters and latches; and the queue.

use super::actor::{self, Agent, Cpu, Posted, WordAgent};
use super::{Counter, Holder, Latch, LatchError, Queue, QueueError, WordOp, Words, counter, latch};
use crate::provider::conformance::{Bed, Start, check};
use crate::{Address, Endpoint, FabricError, FarPtr, NodeId, RegionId};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const REGION: RegionId = RegionId(4);
const AGENT: Address = Address { node: NodeId(0), port: 77 };

fn at(offset: u64) -> FarPtr {
    FarPtr::new(NodeId(0), REGION, offset)
}

fn holder(thread: u16) -> Holder {
    Holder { configuration: 3, node: NodeId(thread as u8), thread }
}

/// Any actor, by name.
enum Any {
    Agent(Agent),
    Cpu(Cpu),
    Posted(Posted),
}

impl Any {
    /// `None` if it is impossible: memory that is not mapped.
    fn of(name: &str, endpoint: &Rc<Endpoint>) -> Option<Self> {
        Some(match name {
            "agent" => Self::Agent(Agent::asked_at(endpoint, AGENT)),
            "cpu" => Self::Cpu(Cpu::on(endpoint, NodeId(0), REGION)?),
            "posted" => Self::Posted(Posted::by(endpoint)),
            other => panic!("no actor {other}"),
        })
    }
}

impl Words for Any {
    async fn execute(&self, at: FarPtr, op: WordOp) -> Result<u64, FabricError> {
        match self {
            Self::Agent(words) => words.execute(at, op).await,
            Self::Cpu(words) => words.execute(at, op).await,
            Self::Posted(words) => words.execute(at, op).await,
        }
    }
    async fn pause(&self) {
        match self {
            Self::Agent(words) => words.pause().await,
            Self::Cpu(words) => words.pause().await,
            Self::Posted(words) => words.pause().await,
        }
    }
}

/// Runs `tasks` tasks concurrently on nodes of their own, each by the actors named in turn, with an agent at node 0.
/// Tasks that cannot have their actor (memory that is not mapped) use the provider.
fn race<F>(
    bed: &Bed,
    actors: &'static [&'static str],
    tasks: u16,
    task: impl Fn(u16, Any) -> F + Clone + Send + 'static,
) where
    F: Future<Output = ()> + 'static,
{
    let home = bed.join(0).unwrap();
    home.create_region(REGION, 64 << 10).unwrap();
    let left = Arc::new(AtomicU32::new(tasks.into()));
    let mut bodies: Vec<(crate::Fabric, Start)> = Vec::new();
    let served = left.clone();
    let ready = Arc::new(AtomicBool::new(false));
    let agent_ready = ready.clone();
    bodies.push((
        home.clone(),
        Box::new(move |endpoint| {
            Box::pin(async move {
                let endpoint = Rc::new(home.endpoint_at(endpoint.handle(), AGENT.port).unwrap());
                let agent = WordAgent::at(&endpoint);
                assert_eq!(agent.address(), AGENT);
                agent_ready.store(true, Ordering::SeqCst);
                while served.load(Ordering::SeqCst) > 0 {
                    if agent.poll() == 0 {
                        let _ = agent.arrival(20_000).await;
                    }
                }
            })
        }),
    ));
    for number in 0..tasks {
        let (task, left, ready) = (task.clone(), left.clone(), ready.clone());
        bodies.push((
            bed.join(number as u8 + 1).unwrap(),
            Box::new(move |endpoint| {
                Box::pin(async move {
                    let endpoint = Rc::new(endpoint);
                    while !ready.load(Ordering::SeqCst) {
                        endpoint.handle().yield_now().await;
                    }
                    /// Counts down also when the task panics: the agent must not wait for it.
                    struct Left(Arc<AtomicU32>);
                    impl Drop for Left {
                        fn drop(&mut self) {
                            self.0.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                    let _left = Left(left);
                    let name = actors[usize::from(number) % actors.len()];
                    let words = Any::of(name, &endpoint).unwrap_or_else(|| Any::Posted(Posted::by(&endpoint)));
                    task(number, words).await;
                })
            }),
        ));
    }
    bed.together(bodies);
}

/// Each actor alone, and all together on the same words.
const CASTS: &[&[&str]] = &[&["agent"], &["cpu"], &["posted"], &["cpu", "agent", "posted"]];

#[test]
fn names_are_sorted_and_unique() {
    assert!(actor::ALL.is_sorted_by(|a, b| a.name < b.name));
    let cast: Vec<&str> = actor::ALL.iter().map(|kind| kind.name).collect();
    assert!(cast.iter().all(|name| CASTS.iter().any(|one| one.contains(name))));
}

#[test]
fn every_instruction_and_every_error() {
    for cast in CASTS {
        check(|bed| {
            race(bed, cast, 1, |_, words| async move {
                let run = async |op| words.execute(at(8), op).await.unwrap();
                assert_eq!(run(WordOp::Add(5)).await, 0);
                assert_eq!(run(WordOp::CompareSwap { expected: 4, new: 9 }).await, 5);
                assert_eq!(run(WordOp::CompareSwap { expected: 5, new: 9 }).await, 5);
                assert_eq!(run(WordOp::Swap(11)).await, 9);
                assert_eq!(run(WordOp::Load).await, 11);
                assert_eq!(run(WordOp::Clear).await, 11);
                assert_eq!(run(WordOp::Load).await, 0);
                let outside = FabricError::OutOfBounds { at: at(1 << 20), bytes: 8, region_bytes: 64 << 10 };
                assert_eq!(words.execute(at(1 << 20), WordOp::Load).await, Err(outside));
                let odd = words.execute(at(4), WordOp::Load).await;
                assert_eq!(odd, Err(FabricError::Misaligned { at: at(4), align: 8 }));
                let elsewhere = FarPtr::new(NodeId(0), RegionId(99), 0);
                let nowhere = FabricError::NoSuchRegion { node: NodeId(0), region: RegionId(99) };
                assert_eq!(words.execute(elsewhere, WordOp::Load).await, Err(nowhere));
            });
        });
    }
}

#[test]
fn no_number_is_given_twice() {
    const FORMS: &[counter::Form] = &[counter::Form::Single, counter::Form::Batched(7), counter::Form::Striped(2)];
    let each: u64 = if cfg!(miri) { 10 } else { 150 };
    for cast in CASTS {
        for form in FORMS {
            check(|bed| {
                let all = Arc::new(Mutex::new(Vec::new()));
                let given = Arc::new(AtomicU64::new(0));
                let (numbers, total) = (all.clone(), given.clone());
                race(bed, cast, 3, move |task, words| {
                    let (numbers, total) = (numbers.clone(), total.clone());
                    async move {
                        let counter = Counter::new(at(0), *form);
                        let mut mine = counter.numbers(task.into());
                        let mut got = Vec::new();
                        for _ in 0..each {
                            got.push(mine.next(&words).await.unwrap());
                        }
                        assert!(got.is_sorted(), "one thread's numbers grow");
                        numbers.lock().unwrap().extend(got);
                        total.fetch_max(counter.given(&words).await.unwrap(), Ordering::SeqCst);
                    }
                });
                let mut all = all.lock().unwrap().clone();
                all.sort_unstable();
                assert!(all.windows(2).all(|two| two[0] != two[1]), "{cast:?}, {form:?}: twice");
                let wanted = match form {
                    counter::Form::Batched(size) => 3 * each.next_multiple_of((*size).into()),
                    _ => 3 * each,
                };
                assert_eq!(given.load(Ordering::SeqCst), wanted, "{cast:?}, {form:?}");
                if *form == counter::Form::Single {
                    assert!(all.iter().copied().eq(0..3 * each), "dense");
                }
            });
        }
    }
}

const LATCHES: &[latch::Form] = &[latch::Form::Plain, latch::Form::Fair(2), latch::Form::Fair(8)];

#[test]
fn one_holds_a_latch_at_a_time() {
    let rounds = if cfg!(miri) { 5 } else { 60 };
    for cast in CASTS {
        for form in LATCHES {
            check(|bed| {
                let inside = Arc::new(AtomicU32::new(0));
                race(bed, cast, 3, move |task, words| {
                    let inside = inside.clone();
                    async move {
                        let latch = Latch::new(at(1024), *form);
                        for _ in 0..rounds {
                            let held = latch.acquire(&words, holder(task), u64::MAX).await.unwrap();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                            assert_eq!(latch.holder(&words).await.unwrap(), Some(holder(task)));
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                            latch.release(&words, held).await.unwrap();
                        }
                    }
                });
            });
        }
    }
}

#[test]
fn the_dead_are_freed_and_the_impatient_go() {
    for cast in CASTS {
        for form in LATCHES {
            check(|bed| {
                race(bed, cast, 1, move |_, words| async move {
                    let latch = Latch::new(at(1024), *form);
                    for _ in 0..20 {
                        let dead = latch.acquire(&words, holder(9), 1).await.unwrap();
                        let busy = latch.acquire(&words, holder(1), 5).await;
                        assert_eq!(busy, Err(LatchError::Busy { attempts: 5 }));
                        assert_eq!(latch.free_dead(&words, |who| who == holder(8)).await, Ok(0), "nobody's");
                        assert_eq!(latch.free_dead(&words, |who| who.configuration == 3).await, Ok(1));
                        assert_eq!(latch.holder(&words).await, Ok(None));
                        let mine = latch.acquire(&words, holder(1), 3).await.unwrap();
                        assert_eq!(latch.release(&words, dead).await, Err(LatchError::Lost));
                        assert_eq!(latch.holder(&words).await, Ok(Some(holder(1))), "a lost release frees nothing");
                        latch.release(&words, mine).await.unwrap();
                        assert_eq!(latch.holder(&words).await, Ok(None));
                    }
                });
            });
        }
    }
}

/// Waiters get a fair latch in the order in which they came; one that died while it waited is passed over.
#[test]
fn a_fair_latch_is_fair() {
    check(|bed| {
        let home = bed.join(0).unwrap();
        home.create_region(REGION, 64 << 10).unwrap();
        let endpoint = Rc::new(home.endpoint(&bed.handle()).unwrap());
        let order = Rc::new(RefCell::new(Vec::new()));
        bed.executor.run(async {
            let latch = Latch::new(at(0), latch::Form::Fair(4));
            let words = Posted::by(&endpoint);
            let first = latch.acquire(&words, holder(0), 1).await.unwrap();
            let mut waiters = Vec::new();
            for number in 1..4 {
                let (order, endpoint) = (order.clone(), endpoint.clone());
                waiters.push(bed.handle().spawn(async move {
                    let words = Posted::by(&endpoint);
                    match latch.acquire(&words, holder(number), u64::MAX).await {
                        Ok(held) => {
                            order.borrow_mut().push(number);
                            latch.release(&words, held).await.unwrap();
                        }
                        Err(error) => assert_eq!((number, error), (2, LatchError::Lost)),
                    }
                }));
                // Until it has its ticket.
                while words.execute(at(64), WordOp::Load).await.unwrap() != u64::from(number) + 1 {
                    words.pause().await;
                }
            }
            assert_eq!(latch.free_dead(&words, |who| who == holder(2)).await, Ok(1));
            latch.release(&words, first).await.unwrap();
            for number in [0, 2] {
                (&mut waiters[number]).await;
            }
        });
        assert_eq!(*order.borrow(), [1, 3]);
    });
}

#[test]
fn a_queue_keeps_every_message_and_each_senders_order() {
    let (senders, count) = (3_u16, if cfg!(miri) { 10 } else { 200_u32 });
    check(|bed| {
        let queue = Queue { at: at(0), places: 5, message_bytes_max: 100 };
        let home = bed.join(0).unwrap();
        home.create_region(REGION, 64 << 10).unwrap();
        let mut bodies: Vec<(crate::Fabric, Start)> = vec![(
            home,
            Box::new(move |endpoint| {
                Box::pin(async move {
                    let receiver = queue.receiver(&endpoint).expect("its own memory");
                    let (mut next, mut message) = (vec![0; senders.into()], Vec::new());
                    for _ in 0..u32::from(senders) * count {
                        while !receiver.try_recv_into(&mut message) {
                            assert!(!receiver.skip_dead(|_| false));
                            std::thread::yield_now();
                            endpoint.handle().yield_now().await;
                        }
                        let (sender, number) = (usize::from(message[0]), message[1]);
                        assert_eq!(number, next[sender] as u8);
                        assert_eq!(message.len(), 2 + next[sender] as usize % 99);
                        assert!(message[2..].iter().all(|byte| *byte == number));
                        next[sender] += 1;
                    }
                    assert!(next.iter().all(|sent| *sent == count));
                    assert_eq!(receiver.try_recv(), None);
                })
            }),
        )];
        for sender in 0..senders {
            bodies.push((
                bed.join(sender as u8 + 1).unwrap(),
                Box::new(move |endpoint| {
                    Box::pin(async move {
                        let endpoint = Rc::new(endpoint);
                        let out = queue.sender(&endpoint, holder(sender));
                        for number in 0..count {
                            let mut message = vec![number as u8; 2 + number as usize % 99];
                            message[0] = sender as u8;
                            while let Err(error) = out.send(&message).await {
                                assert_eq!(error, QueueError::Full);
                                std::thread::yield_now();
                                endpoint.handle().yield_now().await;
                            }
                        }
                    })
                }),
            ));
        }
        bed.together(bodies);
    });
}

#[test]
fn a_dead_sender_is_skipped_and_a_full_queue_says_so() {
    check(|bed| {
        let queue = Queue { at: at(64), places: 3, message_bytes_max: 8 };
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let endpoint = Rc::new(home.endpoint(&bed.handle()).unwrap());
        let receiver = queue.receiver(&endpoint).expect("its own memory");
        assert!(Queue { places: 1000, ..queue }.receiver(&endpoint).is_none(), "longer than the region");
        bed.executor.run(async {
            let out = queue.sender(&endpoint, holder(1));
            let too_long = out.send(&[0; 9]).await;
            assert_eq!(too_long, Err(QueueError::TooLong { bytes_max: 8 }));
            // Many turns: in every place a sender dies once, before and after the tail was moved.
            for turn in 0..12_u64 {
                let ticket = memory.word(64 + 64).unwrap().load(Ordering::SeqCst);
                let place = memory.word(64 + 128 + ticket % 3 * 64).unwrap();
                let dead = place.load(Ordering::SeqCst) | holder(9).bits() << 2 | 1;
                place.store(dead, Ordering::SeqCst);
                if turn % 2 == 0 {
                    memory.word(64 + 64).unwrap().store(ticket + 1, Ordering::SeqCst);
                }
                out.send(b"behind").await.unwrap();
                assert_eq!(receiver.try_recv(), None, "order is kept");
                assert!(!receiver.skip_dead(|who| who == holder(8)), "not that one");
                assert!(receiver.skip_dead(|who| who == holder(9)));
                assert_eq!(receiver.try_recv().as_deref(), Some(&b"behind"[..]));
            }
            for _ in 0..3 {
                out.send(b"x").await.unwrap();
            }
            assert_eq!(out.send(b"y").await, Err(QueueError::Full));
            assert_eq!(receiver.try_recv().as_deref(), Some(&b"x"[..]));
            out.send(b"z").await.unwrap();
            let rest: Vec<Vec<u8>> = std::iter::from_fn(|| receiver.try_recv()).collect();
            assert_eq!(rest, [b"x", b"x", b"z"]);
        });
    });
}

/// A receiver that dies between giving a place back and moving on leaves both to the next one.
#[test]
fn the_next_receiver_goes_on_where_one_died() {
    check(|bed| {
        let queue = Queue { at: at(64), places: 2, message_bytes_max: 40 };
        let home = bed.join(0).unwrap();
        let memory = home.create_region(REGION, 4096).unwrap();
        let endpoint = Rc::new(home.endpoint(&bed.handle()).unwrap());
        bed.executor.run(async {
            let sender = queue.sender(&endpoint, holder(1));
            for number in 0..8_u8 {
                sender.send(&[number]).await.unwrap();
                let (head, receiver) = (memory.word(64).unwrap(), queue.receiver(&endpoint).expect("its own memory"));
                let before = head.load(Ordering::SeqCst);
                assert_eq!(receiver.try_recv(), Some(vec![number]));
                // The dead receiver had not moved on. In half of the cases the place is used again before the next
                // receiver looks.
                head.store(before, Ordering::SeqCst);
                if number % 2 == 1 {
                    continue;
                }
                let next = queue.receiver(&endpoint).expect("its own memory");
                assert!(!next.skip_dead(|_| true));
                assert_eq!(next.try_recv(), None);
            }
        });
    });
}
