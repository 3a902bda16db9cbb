//! The home node's agent scans, and sends the rows that pass.
//!
//! ```text
//!   scan ── request: predicate, wanted, some segments ──> agent: Serving ── chunks in its own memory
//!        <── replies: of each segment with passing rows, which ones and their values, or aggregates ──┘
//! ```
//! - If few rows pass, few bytes are sent. The agent's processor does the work.
//! - Values travel as chunks of the passing rows, in the format of all chunks.
//! - A request has a limited number of segments, which bounds an agent's useless work for a cancelled scan. Replies to such a scan are recognised by their
//!   numbers, and dropped. Between two steps ([`Serving::next`]) the agent does its other work.
//! - Neither side can make the other hold more than a record of 256 MiB, and no reply delays a scan by more than
//!   [`Settings::reply_ns_max`](super::Settings::reply_ns_max).
//! - The agent accepts no address from a request: its [`Home`] says which chunks it keeps.
//! - Both sides check every byte that they receive. The only transport in this module is a small one for tests and benches ([`Messages`]).

mod bits;
mod line;
mod reply;
mod request;
mod serve;
#[cfg(test)]
mod tests;
mod wire;

pub use line::{Line, Messages, ROOM_NS_MAX, Waiting, answer, number_of_reply, number_of_request};
pub use reply::Refusal;
pub use serve::{Home, RegionHome, Serving, Step, serve};
pub use wire::WireError;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::task::Poll;

use farhold_fabric::executor::{Handle, Sleep};
use farhold_fabric::provider::MESSAGE_BYTES_MAX;
use farhold_fabric::{FabricError, NodeId};
use farhold_store::column::Chunk;

use self::reply::{Kind, MESSAGE_BYTES, RECORD_BYTES_MAX, Record, Reply, read_value};
use self::request::OwnedWanted;
use super::stage::Stage;
use super::{
    AccessPath, Counters, FarChunk, FarSegment, Found, Reader, Scan, ScanError, Scanning, Sink, Value, Values, Wanted,
    Why,
};

/// The longest request. The rest of a message is for the data that a [`Line`] puts before it: an envelope, or the snapshot's epoch.
pub const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 128;

pub(super) const PATH: AccessPath = AccessPath {
    name: "pushdown",
    about: "the home node's agent filters, projects and aggregates",
    unusable,
    scan: |reader, scan, sink| -> Scanning<'_> { Box::pin(run(reader, scan, sink)) },
};

fn unusable(reader: &Reader<'_>, scan: &Scan<'_>) -> Option<Why> {
    if reader.line.is_none() {
        return Some(Why::NoLine);
    }
    let needed = request::needed(scan.wanted, scan.predicate);
    let head = request::put_head(scan.wanted, scan.predicate).map(|head| head.len());
    let longest = scan.segments.iter().map(|segment| request::segment_bytes(segment, needed.len())).max();
    let bytes = head.map_or(REQUEST_BYTES_MAX + 1, |head| head + 2 + longest.unwrap_or_default());
    if bytes > REQUEST_BYTES_MAX {
        return Some(Why::LongRequest { bytes, bytes_max: REQUEST_BYTES_MAX });
    }
    // For all segments, before the sink has received the first one: after that, no other path can be taken.
    let is_scattered = |segment: &FarSegment| {
        let mut nodes = needed.iter().filter_map(|column| segment.chunks.get(*column)).map(|chunk| chunk.at.node());
        let first = nodes.next();
        nodes.any(|node| Some(node) != first)
    };
    scan.segments.iter().position(is_scattered).map(|segment| Why::Scattered { segment })
}

/// A request in flight, and the part of its reply that has arrived.
struct Asked<'a> {
    line: &'a dyn Line,
    number: u64,
    /// The segments of the request, from the next one that the sink may receive.
    segments: Range<usize>,
    /// The first of them.
    first: usize,
    sequence: u32,
    /// The record that is arriving.
    record: Vec<u8>,
    waited_ns: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.line.forget(self.number);
    }
}

/// The content of a message.
enum Brought {
    /// A part of a record.
    Part,
    /// The last part of this record.
    Record(Vec<u8>),
    /// The end of the reply.
    End,
}

struct Pushdown<'a> {
    stage: Stage<'a>,
    line: &'a dyn Line,
    head: Vec<u8>,
    needed: Vec<usize>,
    /// The columns or aggregates that a record has values of, and the position among them of each wanted one.
    distinct: OwnedWanted,
    places: Vec<usize>,
    asked: VecDeque<Asked<'a>>,
    next: usize,
    counters: Counters,
}

async fn run<'a>(reader: &'a Reader<'a>, scan: &'a Scan<'a>, sink: &mut Sink<'_>) -> Result<Counters, ScanError> {
    let head = request::put_head(scan.wanted, scan.predicate).expect("the scan has been seen to fit a request");
    let distinct = request::distinct(scan.wanted);
    let mut pushdown = Pushdown {
        stage: Stage::new(scan, reader.pinned),
        line: reader.line.expect("there has been a line"),
        head,
        needed: request::needed(scan.wanted, scan.predicate),
        places: places(scan.wanted, &distinct),
        distinct,
        asked: VecDeque::new(),
        next: 0,
        counters: Counters::default(),
    };
    let handle = reader.endpoint.handle();
    // One timer for all requests, because a timer per request would stay set long after its reply.
    let mut alarm = handle.sleep_ns(reader.settings.reply_ns_max);
    loop {
        while pushdown.asked.len() < reader.settings.requests.max(1) && pushdown.next < scan.segments.len() {
            pushdown.ask(reader.settings.segments_per_request.clamp(1, request::SEGMENTS_MAX)).await?;
        }
        let Some(asked) = pushdown.asked.front_mut() else { break };
        let since_ns = handle.now_ns();
        let left_ns = reader.settings.reply_ns_max.saturating_sub(asked.waited_ns);
        let received = pushdown.line.receive(asked.number);
        let message = in_time(handle, left_ns, &mut alarm, received).await?;
        let waited_ns = handle.now_ns().saturating_sub(since_ns);
        asked.waited_ns += waited_ns;
        pushdown.counters.waited_ns += waited_ns;
        match pushdown.take(&message)? {
            Brought::Part => {}
            Brought::Record(record) => {
                if pushdown.deliver(&record, sink)?.is_break() {
                    break;
                }
            }
            Brought::End => {
                let asked = pushdown.asked.pop_front().expect("a request whose reply has ended");
                let segments = asked.first..asked.segments.end;
                pushdown.counters.rows += segments.map(|segment| pushdown.stage.rows(segment) as u64).sum::<u64>();
            }
        }
    }
    Ok(pushdown.counters)
}

/// The position in a record of the values of each wanted column or aggregate.
fn places(wanted: Wanted<'_>, distinct: &OwnedWanted) -> Vec<usize> {
    fn of<T: Ord>(wanted: &[T], distinct: &[T]) -> Vec<usize> {
        wanted.iter().map(|it| distinct.binary_search(it).expect("each is one of the distinct ones")).collect()
    }
    match (wanted, distinct) {
        (Wanted::Columns(wanted), OwnedWanted::Columns(distinct)) => of(wanted, distinct),
        (Wanted::Aggregates(wanted), OwnedWanted::Aggregates(distinct)) => of(wanted, distinct),
        _ => unreachable!("the distinct ones of what is wanted"),
    }
}

/// Waits for a message, at most `limit_ns`.
async fn in_time(
    handle: &Handle,
    limit_ns: u64,
    alarm: &mut Sleep,
    mut received: Waiting<'_, Vec<u8>>,
) -> Result<Vec<u8>, FabricError> {
    let until_ns = handle.now_ns().saturating_add(limit_ns);
    poll_fn(|cx| {
        if let Poll::Ready(message) = received.as_mut().poll(cx) {
            return Poll::Ready(message);
        }
        loop {
            if handle.now_ns() >= until_ns {
                return Poll::Ready(Err(FabricError::Timeout { waited_ns: limit_ns }));
            }
            if Pin::new(&mut *alarm).poll(cx).is_pending() {
                return Poll::Pending;
            }
            *alarm = handle.sleep_until_ns(until_ns);
        }
    })
    .await
}

impl Pushdown<'_> {
    /// Sends a request for the next segments: as many as are on one node and fit into a message.
    async fn ask(&mut self, segments_max: usize) -> Result<(), ScanError> {
        let mut room = REQUEST_BYTES_MAX - self.head.len() - 2;
        let start = self.next;
        let (mut node, mut segments) = (None, Vec::new());
        while self.next < self.stage.scan.segments.len() && segments.len() < segments_max {
            let chunks = self.stage.chunks(self.next, &self.needed)?;
            let home = self.home_of(self.next, &chunks)?;
            let of = &self.stage.scan.segments[self.next];
            // At least one fits; otherwise the path could not be used.
            let left = room.checked_sub(request::segment_bytes(of, self.needed.len()));
            let (true, Some(left)) = (*node.get_or_insert(home) == home, left) else { break };
            room = left;
            segments.push(FarSegment { rows: of.rows, chunks, ended: of.ended.clone() });
            self.next += 1;
        }
        let number = self.line.number();
        let asked = Asked {
            line: self.line,
            number,
            segments: start..self.next,
            first: start,
            sequence: 0,
            record: Vec::new(),
            waited_ns: 0,
        };
        let message = request::put(&self.head, number, &segments);
        self.counters.reads += 1;
        self.line.send(node.expect("a segment at least"), &message).await?;
        self.asked.push_back(asked);
        Ok(())
    }

    /// The node of a segment. The request includes segments of which no column is needed: a pin may keep a node's segments without their rows.
    fn home_of(&self, segment: usize, chunks: &[FarChunk]) -> Result<NodeId, ScanError> {
        let any = chunks.first().or(self.stage.scan.segments[segment].chunks.first());
        let Some(any) = any else {
            return Err(ScanError::Segment { segment, what: "it has no chunk" });
        };
        let node = any.at.node();
        if chunks.iter().all(|chunk| chunk.at.node() == node) {
            Ok(node)
        } else {
            Err(ScanError::Segment { segment, what: "its chunks lie on several nodes" })
        }
    }

    /// Receives a message of the reply to the first request.
    fn take(&mut self, message: &[u8]) -> Result<Brought, ScanError> {
        let wrong = |what| Err(WireError::Wrong(what).into());
        let asked = self.asked.front_mut().expect("a request whose reply is awaited");
        let reply = Reply::read(message)?;
        self.counters.bytes_moved += message.len() as u64;
        if reply.number != asked.number {
            return wrong("it is part of the reply to another request");
        }
        if reply.sequence != asked.sequence {
            return wrong("a message of it is missing, or one too many");
        }
        asked.sequence = asked.sequence.wrapping_add(1);
        if asked.record.len() + reply.bytes.len() > RECORD_BYTES_MAX {
            return wrong("a segment of it is too long");
        }
        match reply.kind {
            // Otherwise a record could have as many messages as it has bytes, or more.
            Kind::More if message.len() != MESSAGE_BYTES => wrong("a message of it is not full"),
            Kind::More => {
                asked.record.extend_from_slice(reply.bytes);
                Ok(Brought::Part)
            }
            Kind::RecordEnd if reply.bytes.is_empty() => wrong("a segment of it ends with nothing"),
            Kind::RecordEnd => {
                asked.record.extend_from_slice(reply.bytes);
                Ok(Brought::Record(std::mem::take(&mut asked.record)))
            }
            Kind::Answered if !asked.record.is_empty() => Err(WireError::Short("the end of a segment").into()),
            Kind::Answered if !reply.bytes.is_empty() => Err(WireError::Long(reply.bytes.len()).into()),
            Kind::Answered => Ok(Brought::End),
            Kind::Refused => Err(ScanError::Refused(Refusal::read(reply.bytes, asked.first)?)),
        }
    }

    /// Passes a segment of the first request to the sink.
    fn deliver(&mut self, record: &[u8], sink: &mut Sink<'_>) -> Result<ControlFlow<()>, ScanError> {
        let asked = self.asked.front_mut().expect("a request with a record");
        let (first, segments) = (asked.first, asked.segments.clone());
        // Segments must arrive in order, each once.
        let rows_of = |number: usize| {
            let segment = first + number;
            segments.contains(&segment).then(|| self.stage.rows(segment))
        };
        let has_bits = matches!(self.distinct, OwnedWanted::Columns(_));
        let Record { passed, values } = Record::read(record, first, rows_of, has_bits)?;
        asked.segments.start = passed.segment + 1;
        let (segment, schema) = (passed.segment, self.stage.scan.schema);
        self.counters.rows_passing += passed.passing as u64;
        self.counters.result_bytes += size_of_val(passed.bits.as_slice()) as u64;
        let mut found = Found {
            segment,
            rows: passed.rows,
            passing: passed.passing,
            bits: &passed.bits,
            values: Values::OfPassing(&[]),
        };
        let count = match &self.distinct {
            OwnedWanted::Columns(columns) => columns.len(),
            OwnedWanted::Aggregates(aggregates) => aggregates.len(),
        };
        if values.len() != count {
            return Err(WireError::Wrong("it has not as many values as are wanted").into());
        }
        self.counters.result_bytes += self.places.iter().map(|place| values[*place].len() as u64).sum::<u64>();
        match &self.distinct {
            OwnedWanted::Columns(columns) => {
                let mut chunks = Vec::with_capacity(columns.len());
                for (&column, &bytes) in columns.iter().zip(&values) {
                    let chunk = Chunk::open_for(schema.columns()[column].data_type, passed.passing, bytes);
                    chunks.push(chunk.map_err(|source| ScanError::Chunk { segment, column, source })?);
                }
                let chunks: Vec<Chunk<'_>> = self.places.iter().map(|place| chunks[*place]).collect();
                found.values = Values::OfPassing(&chunks);
                Ok(sink(&found))
            }
            OwnedWanted::Aggregates(aggregates) => {
                let read = |(aggregate, bytes): (&_, &&[u8])| read_value(bytes, *aggregate, schema, passed.passing);
                let values: Vec<Value> = aggregates.iter().zip(&values).map(read).collect::<Result<_, _>>()?;
                let values: Vec<Value> = self.places.iter().map(|place| values[*place].clone()).collect();
                found.values = Values::Aggregates(&values);
                Ok(sink(&found))
            }
        }
    }
}
