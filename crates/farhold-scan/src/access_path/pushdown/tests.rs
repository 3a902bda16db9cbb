//! Bytes that a correct asker or agent would not send.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use farhold_fabric::{Executor, Fabric, FabricError, FarPtr, RegionId};
use farhold_store::column::BLOCK_ROWS;
use farhold_store::row::{ColumnType, Schema};
use proptest::prelude::*;

use super::super::aggregate::aggregate;
use super::super::stage::{Passed, rows_of};
use super::super::{Aggregate, FarSegment, Pinned, Settings};
use super::reply::put_value;
use super::serve::PIECE_BLOCKS;
use super::*;
use crate::columns::ColumnFilter;
use crate::columns::conformance::{Key, Random, TYPES, Table, table_of};
use crate::predicate::{Comparison, Condition, Constant, Predicate};

const HOME: NodeId = NodeId(2);

/// A home with one segment in this process.
struct Local {
    table: Table,
    segment: FarSegment,
    chunks: HashMap<FarChunk, Vec<u8>>,
}

impl Local {
    fn new(random: &mut Random, types: &[ColumnType], rows: usize) -> Self {
        let table = table_of(random, Key::Id, types, rows);
        let place = |(n, chunk): (usize, &Vec<u8>)| FarChunk {
            at: FarPtr::new(HOME, RegionId(1), (n as u64) << 24),
            bytes: chunk.len() as u32,
        };
        let far: Vec<FarChunk> = table.chunks.iter().enumerate().map(place).collect();
        let chunks = far.iter().copied().zip(table.chunks.iter().cloned()).collect();
        Self { segment: FarSegment { rows, chunks: far, ended: Vec::new() }, table, chunks }
    }

    fn request(&self, predicate: &Predicate, wanted: Wanted<'_>) -> Vec<u8> {
        let head = request::put_head(wanted, predicate).unwrap();
        let needed = request::needed(wanted, predicate);
        let chunks: Vec<FarChunk> = needed.iter().map(|column| self.segment.chunks[*column]).collect();
        let segment = FarSegment { chunks, ..self.segment.clone() };
        let bytes = request::segment_bytes(&segment, needed.len());
        let request = request::put(&head, 77, &[segment.clone(), segment]);
        assert_eq!(request.len(), head.len() + 2 + 2 * bytes);
        request
    }
}

impl Home for Local {
    fn schema(&self) -> &Schema {
        &self.table.schema
    }

    fn chunk(&self, chunk: FarChunk) -> Option<&[u8]> {
        self.chunks.get(&chunk).map(Vec::as_slice)
    }
}

// SAFETY: no thread writes to the chunks, which are the value's own.
unsafe impl Pinned for Local {
    fn covers(&self, _: FarChunk) -> bool {
        true
    }
}

/// The answer to a request, in short form.
fn outcome(messages: &[Vec<u8>]) -> Result<usize, Refusal> {
    let replies: Vec<Reply<'_>> = messages.iter().map(|message| Reply::read(message).unwrap()).collect();
    for (n, reply) in replies.iter().enumerate() {
        assert_eq!(reply.sequence as usize, n);
        assert!(messages[n].len() <= reply::MESSAGE_BYTES);
    }
    match replies.last().expect("each request is answered") {
        Reply { kind: Kind::Answered, .. } => Ok(replies.iter().filter(|reply| reply.kind == Kind::RecordEnd).count()),
        Reply { kind: Kind::Refused, bytes, .. } => Err(Refusal::read(bytes, 0).unwrap()),
        _ => panic!("the last message says how it ended"),
    }
}

fn predicate(random: &mut Random) -> Predicate {
    let mut predicate = Predicate::everything();
    (0..random.next() % 4).for_each(|_| predicate.push(random.condition_on(&TYPES, 2), 0.5));
    predicate
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// A request comes back as it was written.
    #[test]
    fn requests_come_back(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let mut local = Local::new(random, &TYPES, 3);
        local.segment.ended = random.ended(3);
        let predicate = predicate(random);
        let aggregates = [Aggregate::Rows, Aggregate::Count(3), Aggregate::Sum(2), Aggregate::Min(9), Aggregate::Max(0)];
        for wanted in [Wanted::Columns(&[3, 0, 3]), Wanted::Aggregates(&aggregates), Wanted::Columns(&[])] {
            let bytes = local.request(&predicate, wanted);
            let read = request::Request::read(&bytes).unwrap();
            prop_assert_eq!(format!("{:?}", read.predicate.conditions()), format!("{:?}", predicate.conditions()));
            // Each once, in order.
            prop_assert_eq!(&read.wanted, &request::distinct(wanted));
            prop_assert_eq!(read.segments.len(), 2);
            for segment in &read.segments {
                prop_assert_eq!(rows_of(&segment.ended).collect::<Vec<_>>(), rows_of(&local.segment.ended).collect::<Vec<_>>());
            }
            prop_assert_eq!(request::Request::number_of(&bytes), 77);
            // A prefix of a request is not a request, and neither is a request with additional bytes.
            for len in 0..bytes.len() {
                prop_assert!(request::Request::read(&bytes[..len]).is_err());
            }
            prop_assert_eq!(request::Request::read(&[&bytes[..], &[0]].concat()).unwrap_err(), WireError::Long(1));
        }
    }

    /// Requests with bits flipped, and random bytes: an answer or a refusal, and no panic.
    #[test]
    fn hostile_requests_are_refused(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let mut local = Local::new(random, &TYPES, 1500);
        local.segment.ended = random.ended(1500);
        let (predicate, columns) = (predicate(random), [random.next() as usize % 16, 5]);
        for wanted in [Wanted::Columns(&columns), Wanted::Aggregates(&[Aggregate::Max(columns[0]), Aggregate::Rows])] {
            let right = local.request(&predicate, wanted);
            prop_assert!(outcome(&serve(&right, &local)).is_ok());
            for _ in 0..40 {
                let mut bytes = right.clone();
                for _ in 0..=(random.next() % 3) {
                    let at = random.next() as usize % bytes.len();
                    bytes[at] = if random.next() & 1 == 0 { random.next() as u8 } else { bytes[at] ^ 1 << (random.next() % 8) };
                }
                let _ = outcome(&serve(&bytes, &local));
            }
        }
        let noise: Vec<u8> = (0..random.next() % 300).map(|_| random.next() as u8).collect();
        prop_assert_eq!(outcome(&serve(&noise, &local)), Err(Refusal::Malformed));
        let behind_magic = [&b"FHQ2"[..], &noise].concat();
        let _ = outcome(&serve(&behind_magic, &local));
    }

    /// Replies with bits flipped, cut, doubled, and in another order: rows or an error, and no panic.
    #[test]
    fn hostile_replies_are_errors(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let mut local = Local::new(random, &TYPES, 1500);
        local.segment.ended = random.ended(1500);
        let predicate = predicate(random);
        let columns = [random.next() as usize % 16];
        let aggregates = [Aggregate::Max(columns[0]), Aggregate::Rows];
        for wanted in [Wanted::Columns(&columns), Wanted::Aggregates(&aggregates)] {
            for kind in 0..12 {
                let (seed, is_error) = (random.next(), Cell::new(false));
                let hostile = Hostile::new(&local, |messages: &mut Vec<Vec<u8>>| {
                    is_error.set(spoil(kind, &mut Random(seed), messages));
                });
                let result = hostile.scan(&predicate, wanted);
                prop_assert!(result.is_err() || !is_error.get(), "kind {kind}: {result:?}");
            }
        }
    }
}

/// Changes the messages of a reply. True: the scan must notice.
fn spoil(kind: u64, random: &mut Random, messages: &mut Vec<Vec<u8>>) -> bool {
    let message = random.next() as usize % messages.len();
    let at = random.next() as usize % messages[message].len();
    // Messages after the end of a reply are ignored.
    let is_last = message + 1 == messages.len();
    let must_fail = match kind {
        0 | 2 | 3 => true,
        1 => !is_last,
        4 => messages.len() > 1,
        _ => false,
    };
    match kind {
        0 => drop(messages.remove(message)),
        1 => messages.insert(message, messages[message].clone()),
        2 => messages[message].truncate(at),
        3 => messages[message].extend([0; 3]),
        4 => messages.reverse(),
        _ => {
            for _ in 0..kind - 4 {
                // Not in the head, where most changes are an error at once. The number stays that of the request.
                let len = messages[message].len();
                let at = if len > reply::HEAD_BYTES {
                    reply::HEAD_BYTES + at % (len - reply::HEAD_BYTES).min(200)
                } else {
                    at
                };
                if let Some(byte) = messages[message].get_mut(at) {
                    *byte ^= 1 << (random.next() % 8);
                }
            }
        }
    }
    must_fail
}

/// A line to an agent whose replies are spoiled.
struct Hostile<'a, F> {
    local: &'a Local,
    spoil: F,
    messages: RefCell<VecDeque<Vec<u8>>>,
}

impl<'a, F: Fn(&mut Vec<Vec<u8>>)> Hostile<'a, F> {
    fn new(local: &'a Local, spoil: F) -> Self {
        Self { local, spoil, messages: RefCell::default() }
    }

    fn scan(&self, predicate: &Predicate, wanted: Wanted<'_>) -> Result<Counters, ScanError> {
        scan_by(&Executor::virtual_time(1), self, self.local, Settings::default(), predicate, wanted)
    }
}

/// Scans two segments by a line.
fn scan_by(
    executor: &Executor,
    line: &dyn Line,
    local: &Local,
    settings: Settings,
    predicate: &Predicate,
    wanted: Wanted<'_>,
) -> Result<Counters, ScanError> {
    let sim = farhold_fabric::provider::sim::Sim::new(
        &executor.handle(),
        farhold_fabric::provider::sim::Numa,
        farhold_fabric::provider::sim::Faults::default(),
    );
    let fabric: Fabric = sim.join(NodeId(1)).unwrap();
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    let reader = Reader { endpoint: &endpoint, pinned: local, mover: None, line: Some(line), settings };
    let segments = [local.segment.clone(), local.segment.clone()];
    let scan = Scan { schema: &local.table.schema, segments: &segments, predicate, wanted };
    let mut take = |found: &Found<'_>| {
        assert!((1..=found.rows).contains(&found.passing));
        if let Values::OfPassing(chunks) = found.values {
            assert_eq!(found.places().count(), found.passing);
            for chunk in chunks {
                (0..found.passing).for_each(|row| assert!(chunk.wide(row).is_none() || chunk.text(row).is_none()));
            }
        }
        ControlFlow::Continue(())
    };
    executor.run(PATH.scan(&reader, &scan, &mut take))
}

impl<F: Fn(&mut Vec<Vec<u8>>)> Line for Hostile<'_, F> {
    fn number(&self) -> u64 {
        77
    }

    fn send<'a>(&'a self, _: NodeId, request: &'a [u8]) -> Waiting<'a, ()> {
        let mut messages = serve(request, self.local);
        (self.spoil)(&mut messages);
        self.messages.borrow_mut().extend(messages);
        Box::pin(std::future::ready(Ok(())))
    }

    fn receive(&self, _: u64) -> Waiting<'_, Vec<u8>> {
        let message = self.messages.borrow_mut().pop_front();
        Box::pin(std::future::ready(message.ok_or(FabricError::Timeout { waited_ns: 1 })))
    }

    fn forget(&self, number: u64) {
        assert_eq!(number, 77);
    }
}

/// Renumbers the messages of a reply, so that only another error remains.
fn renumber(messages: &mut [Vec<u8>]) {
    for (n, message) in messages.iter_mut().enumerate() {
        message[12..16].copy_from_slice(&(n as u32).to_le_bytes());
    }
}

fn message(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    Reply { number: 77, sequence: 0, kind, bytes }.put()
}

/// Replies that would make the asker keep more and more, or read for ever.
#[test]
fn replies_without_bounds_are_errors() {
    let random = &mut Random(6);
    let local = Local::new(random, &[ColumnType::BigInt], 1000);
    let everything = Predicate::everything();
    let fails = |first: &[Vec<u8>]| {
        let spoil = |messages: &mut Vec<Vec<u8>>| {
            messages.splice(0..0, first.iter().cloned());
            renumber(messages);
        };
        let hostile = Hostile::new(&local, spoil);
        let error = hostile.scan(&everything, Wanted::Columns(&[0])).unwrap_err();
        assert!(matches!(error, ScanError::Reply(_)), "{error:?}");
        // It fails at the first of them.
        assert!(hostile.messages.borrow().len() >= first.len() + 2, "{error:?}");
    };
    fails(&vec![message(Kind::RecordEnd, &[]); 100]);
    fails(&vec![message(Kind::More, &[]); 100]);
    fails(&vec![message(Kind::More, &[0; 100]); 100]);
    let answered = message(Kind::Answered, &[0]);
    fails(&[answered]);
    let again = |messages: &mut Vec<Vec<u8>>| {
        let record = messages[1].clone();
        messages.splice(2..2, vec![record; 100]);
        renumber(messages);
    };
    let error = Hostile::new(&local, again).scan(&everything, Wanted::Columns(&[0])).unwrap_err();
    assert!(matches!(error, ScanError::Reply(WireError::Wrong(_))), "more records than segments: {error:?}");
}

/// A line to an agent that sends nothing, or one message every second without an end.
struct Slow {
    handle: farhold_fabric::Handle,
    says: bool,
    sequence: Cell<u32>,
}

impl Line for Slow {
    fn number(&self) -> u64 {
        77
    }

    fn send<'a>(&'a self, _: NodeId, _: &'a [u8]) -> Waiting<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn receive(&self, _: u64) -> Waiting<'_, Vec<u8>> {
        Box::pin(async {
            self.handle.sleep_ns(if self.says { 1_000_000_000 } else { u64::MAX }).await;
            let sequence = self.sequence.replace(self.sequence.get() + 1);
            let bytes = vec![0; reply::MESSAGE_BYTES - reply::HEAD_BYTES];
            Ok(Reply { number: 77, sequence, kind: Kind::More, bytes: &bytes }.put())
        })
    }

    fn forget(&self, _: u64) {}
}

/// A slow agent delays the scan by no more than the settings allow.
#[test]
fn a_reply_has_a_deadline() {
    let local = Local::new(&mut Random(7), &[ColumnType::BigInt], 1000);
    for (says, messages) in [(false, 0), (true, 9)] {
        let executor = Executor::virtual_time(1);
        let (handle, sequence) = (executor.handle(), Cell::new(0));
        let line = Slow { handle, says, sequence };
        let settings = Settings { reply_ns_max: 9_500_000_000, ..Settings::default() };
        let everything = Predicate::everything();
        let result = scan_by(&executor, &line, &local, settings, &everything, Wanted::Columns(&[0]));
        assert!(matches!(result, Err(ScanError::Fabric(FabricError::Timeout { .. }))), "{result:?}");
        assert_eq!(line.sequence.get(), messages);
        assert!((9_500_000_000..9_600_000_000).contains(&executor.handle().now_ns()));
    }
}

/// A request that names the same column as often as it has room for, or more segments than allowed.
#[test]
fn a_request_cannot_ask_for_the_same_again_and_again() {
    let random = &mut Random(8);
    let local = Local::new(random, &[ColumnType::Text], 1000);
    let request = |kind: u8, of: &[u8], times: u16, segments: u16| {
        let mut bytes = b"FHQ2".to_vec();
        bytes.extend([0; 8]);
        bytes.push(kind);
        bytes.extend(times.to_le_bytes());
        bytes.extend(of.repeat(usize::from(times)));
        bytes.extend([0, 0]);
        bytes.extend(segments.to_le_bytes());
        for _ in 0..segments {
            bytes.extend(1000_u32.to_le_bytes());
            bytes.extend(0_u32.to_le_bytes());
            bytes.extend(local.segment.chunks[1].at.to_bits().to_le_bytes());
            bytes.extend(local.segment.chunks[1].bytes.to_le_bytes());
        }
        outcome(&serve(&bytes, &local))
    };
    for (kind, of, most) in [(0, &[1, 0][..], 32_000), (1, &[4, 1, 0], 21_000)] {
        assert_eq!(request(kind, of, 1, 2), Ok(2));
        assert_eq!(request(kind, of, most, 2), Err(Refusal::Malformed));
        assert_eq!(request(kind, of, 1, 256), Ok(256));
        assert_eq!(request(kind, of, 1, 257), Err(Refusal::Malformed));
    }
    // The asker names it once, and its sink receives it as often as it is wanted.
    let everything = Predicate::everything();
    let bytes = local.request(&everything, Wanted::Columns(&vec![1; 20_000]));
    assert!(bytes.len() < 200);
}

/// The record of a segment is refused before it is longer than it may be.
#[test]
fn long_records_are_refused() {
    let random = &mut Random(9);
    let local = Local::new(random, &[ColumnType::Text, ColumnType::BigInt], 1000);
    let everything = Predicate::everything();
    let wanted = [
        Wanted::Columns(&[1]),
        Wanted::Columns(&[0, 2]),
        Wanted::Aggregates(&[Aggregate::Min(1), Aggregate::Max(1), Aggregate::Rows]),
    ];
    for wanted in wanted {
        let request = local.request(&everything, wanted);
        let answered = |bytes_max: usize| {
            let mut serving = Serving::new(&request);
            serving.record_bytes_max = bytes_max;
            let steps = std::iter::from_fn(|| serving.next(&local));
            let messages =
                steps.filter_map(|step| if let Step::Message(message) = step { Some(message) } else { None });
            outcome(&messages.collect::<Vec<_>>())
        };
        assert_eq!(answered(1 << 20), Ok(2));
        assert_eq!(answered(20), Err(Refusal::Long { segment: 0 }));
    }
}

/// Impossible counts, and ended rows that do not exist.
#[test]
fn aggregates_that_cannot_be_are_errors() {
    let random = &mut Random(11);
    let local = Local::new(random, &[ColumnType::BigInt], 1000);
    let everything = Predicate::everything();
    let wanted = Wanted::Aggregates(&[Aggregate::Rows, Aggregate::Count(1)]);
    let scan = |spoil: &dyn Fn(&mut Vec<Vec<u8>>)| Hostile::new(&local, spoil).scan(&everything, wanted);
    assert_eq!(scan(&|_| ()).unwrap().rows_passing, 2000);
    // Behind the segment, its rows, the number of values, a length and a kind: the number of rows, and of values.
    let first = reply::HEAD_BYTES + 2 + 4 + 2 + 4 + 1;
    for (at, byte) in [(0, 1), (15, 1), (21 + 1, 1 << 7), (21 + 15, 1 << 7)] {
        let spoiled = scan(&|messages| messages[0][first + at] ^= byte);
        assert!(matches!(spoiled, Err(ScanError::Reply(_))), "{at}: {spoiled:?}");
    }
    let mut more = local.request(&everything, wanted);
    let of_segment = request::segment_bytes(&local.segment, 1);
    let at = more.len() - of_segment + 4;
    more[at..at + 4].copy_from_slice(&1001_u32.to_le_bytes());
    assert_eq!(outcome(&serve(&more, &local)), Err(Refusal::Malformed));
}

/// An agent returns to its other work after each segment, even if it has nothing to send.
#[test]
fn each_step_scans_one_segment_at_most() {
    let local = Local::new(&mut Random(10), &[ColumnType::BigInt], 1000);
    let mut nothing = Predicate::everything();
    nothing.push(Condition::Compare(0, Comparison::Less, Constant::Integer(-1)), 0.5);
    let mut serving = Serving::new(&local.request(&nothing, Wanted::Columns(&[1])));
    assert_eq!(serving.next(&local), Some(Step::Nothing));
    assert_eq!(serving.next(&local), Some(Step::Nothing));
    assert!(matches!(serving.next(&local), Some(Step::Message(_))));
    assert_eq!(serving.next(&local), None);
}

/// A step goes on with one aggregate by a limited number of rows, and the values are those of all rows at a time.
#[test]
fn aggregates_are_computed_in_pieces() {
    let random = &mut Random(12);
    let rows = (2 * PIECE_BLOCKS + 1) * BLOCK_ROWS - 5;
    let mut local = Local::new(random, &TYPES, rows);
    local.segment.ended = vec![[1 << 7; BLOCK_ROWS / 64]; 3];
    let schema = &local.table.schema;
    let of_column = |column| [Aggregate::Count, Aggregate::Sum, Aggregate::Min, Aggregate::Max].map(|of| of(column));
    let all = (0..schema.columns().len()).flat_map(of_column).chain([Aggregate::Rows]);
    let mut wanted: Vec<Aggregate> = all.filter(|aggregate| aggregate.fits(schema)).collect();
    wanted.sort_unstable();
    let everything = Predicate::everything();
    let mut serving = Serving::new(&local.request(&everything, Wanted::Aggregates(&wanted)));
    let steps: Vec<Step> = std::iter::from_fn(|| serving.next(&local)).collect();
    // Of each of two segments: which rows pass, how many, and each other aggregate in three pieces. Behind the last one is the record.
    let nothing = steps.iter().filter(|step| **step == Step::Nothing).count();
    assert_eq!(nothing, 2 * (1 + 1 + 3 * (wanted.len() - 1) - 1));

    let chunks: Vec<Chunk<'_>> = local.table.chunks.iter().map(|bytes| Chunk::open(bytes).unwrap()).collect();
    let filter = ColumnFilter::of_some(schema, &everything, rows, chunks.iter().copied().map(Some).collect());
    let passed = Passed::of(0, rows, &filter, &local.segment.ended);
    let mut expected = Vec::new();
    for of in &wanted {
        put_value(&mut expected, &aggregate(*of, schema, &passed, &|column| chunks[column]));
    }
    let message = steps.iter().find_map(|step| if let Step::Message(message) = step { Some(message) } else { None });
    let reply = Reply::read(message.expect("a record")).unwrap();
    // Behind the segment, how many rows pass, and how many values there are.
    assert!(reply.kind == Kind::RecordEnd && reply.bytes[2 + 4 + 2..] == expected);
}

/// Errors that a check of each message by itself would miss.
#[test]
fn replies_that_contradict_their_request_are_errors() {
    let random = &mut Random(4);
    let local = Local::new(random, &[ColumnType::BigInt], 1000);
    let everything = Predicate::everything();
    let wanted = Wanted::Columns(&[0]);
    let fails = |spoil: &dyn Fn(&mut Vec<Vec<u8>>)| Hostile::new(&local, spoil).scan(&everything, wanted).unwrap_err();
    assert_eq!(Hostile::new(&local, |_: &mut Vec<Vec<u8>>| ()).scan(&everything, wanted).unwrap().rows_passing, 2000);
    let record = reply::HEAD_BYTES;
    let wrong = |at: usize, byte: u8| fails(&move |messages: &mut Vec<Vec<u8>>| messages[0][record + at] = byte);
    assert!(matches!(wrong(0, 9), ScanError::Reply(WireError::Wrong(_))), "another segment");
    assert!(matches!(wrong(2, 0), ScanError::Reply(WireError::Wrong(_) | WireError::Unknown { .. })), "fewer rows");
    assert!(matches!(wrong(3, 200), ScanError::Reply(WireError::Wrong(_))), "more rows than the segment has");
    assert!(matches!(wrong(6, 9), ScanError::Reply(WireError::Unknown { .. })), "bits in no form");
    assert!(matches!(wrong(7, 2), ScanError::Reply(WireError::Short(_) | WireError::Wrong(_))), "more values");
    assert!(
        matches!(fails(&|messages| drop(messages.remove(0))), ScanError::Reply(WireError::Wrong(_))),
        "a missing message"
    );
    assert!(
        matches!(fails(&|messages| drop(messages.pop())), ScanError::Fabric(FabricError::Timeout { .. })),
        "no end"
    );
    let twice = |messages: &mut Vec<Vec<u8>>| {
        let mut again = messages[0].clone();
        again[12] = 1;
        (messages[1][12], messages[2][12]) = (2, 3);
        messages.insert(1, again);
    };
    assert!(matches!(fails(&twice), ScanError::Reply(WireError::Wrong(_))), "a segment twice");
}

/// If an agent refuses a request, the scan's error gives the reason.
#[test]
fn refusals_come_back() {
    let random = &mut Random(5);
    let mut local = Local::new(random, &[ColumnType::BigInt], 1000);
    let other = Local::new(random, &[ColumnType::Text], 1000);
    let mut misfit = Predicate::everything();
    misfit.push(Condition::Compare(1, Comparison::Equal, Constant::Bytes(b"text".to_vec())), 0.5);
    assert_eq!(outcome(&serve(&other.request(&misfit, Wanted::Columns(&[0])), &local)), Err(Refusal::Misfit));
    let sum = Wanted::Aggregates(&[Aggregate::Sum(1)]);
    assert_eq!(outcome(&serve(&local.request(&Predicate::everything(), sum), &other)), Err(Refusal::Misfit));
    let wanted = Wanted::Columns(&[1]);
    let request = local.request(&Predicate::everything(), wanted);
    assert_eq!(outcome(&serve(&request, &local)), Ok(2));
    local.chunks.get_mut(&local.segment.chunks[1]).unwrap()[0] ^= 1;
    assert_eq!(outcome(&serve(&request, &local)), Err(Refusal::Damaged { segment: 0 }));
    local.chunks.clear();
    assert_eq!(outcome(&serve(&request, &local)), Err(Refusal::UnknownChunk { segment: 0 }));
    let hostile = Hostile::new(&local, |_: &mut Vec<Vec<u8>>| ());
    let refused = hostile.scan(&Predicate::everything(), wanted).unwrap_err();
    assert_eq!(refused, ScanError::Refused(Refusal::UnknownChunk { segment: 0 }));
}

/// A request whose conditions are nested too deeply for the agent's stack is refused.
#[test]
fn deep_conditions_are_refused() {
    let mut bytes = b"FHQ2".to_vec();
    bytes.extend([0; 8]);
    bytes.extend([0, 0, 0]);
    for _ in 0..15_000 {
        // One condition, which is a choice of one way.
        bytes.extend([1, 0, 4, 1, 0]);
    }
    bytes.extend([0; 64]);
    assert!(matches!(request::Request::read(&bytes), Err(WireError::Wrong(_))));
    let mut deep = Condition::Never;
    for _ in 0..20 {
        deep = Condition::Any(vec![vec![deep]]);
    }
    let mut predicate = Predicate::everything();
    predicate.push(deep, 0.5);
    assert!(request::put_head(Wanted::Columns(&[]), &predicate).is_none());
}
