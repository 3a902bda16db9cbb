//! The home node's agent scans, and sends what passes.
//!
//! ```text
//!   scan ── request: predicate, wanted, some segments ──> agent: Serving ── chunks in its own memory
//!        <── replies: of each segment with passing rows, which ones, and their values or aggregates ──┘
//! ```
//!
//! - Few bytes travel if few rows pass, and the agent's processor does the work.
//! - Values travel as chunks of the passing rows, in the format of all chunks.
//! - A request is about a limited number of segments, so an agent works in vain for a scan that was given up only that long. Replies to
//!   such a scan are told by their numbers, and dropped.
//! - The agent takes no address from a request: its [`Home`] says which chunks it keeps.
//! - Both sides check every byte that they receive.
//!
//! There is no transport here but a small one for tests and benches ([`Messages`]).

mod line;
mod reply;
mod request;
mod serve;
#[cfg(test)]
mod tests;
mod wire;

pub use line::{Line, Messages, Waiting, answer};
pub use reply::Refusal;
pub use serve::{Home, RegionHome, Serving, serve};
pub use wire::WireError;

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use farhold_fabric::NodeId;
use farhold_fabric::provider::MESSAGE_BYTES_MAX;
use farhold_store::column::Chunk;

use self::reply::{Kind, Record, Reply, read_value};
use super::stage::Stage;
use super::{
    AccessPath, Counters, FarChunk, Found, Reader, Scan, ScanError, Scanning, Sink, Value, Values, Wanted, Why,
};

pub(super) const PATH: AccessPath = AccessPath {
    name: "pushdown",
    about: "the home node's agent filters, projects and aggregates",
    unusable,
    scan: |reader, scan, sink| -> Scanning<'_> { Box::pin(run(reader, scan, sink)) },
};

/// Bytes of a record at most: what all wanted columns of a segment have, and a limit for what an agent may make this node keep.
const RECORD_BYTES_MAX: usize = 1 << 30;

fn unusable(reader: &Reader<'_>, scan: &Scan<'_>) -> Option<Why> {
    if reader.line.is_none() {
        return Some(Why::NoLine);
    }
    let needed = request::needed(scan.wanted, scan.predicate);
    let head = request::put_head(scan.wanted, scan.predicate).map(|head| head.len());
    let bytes = head.map_or(MESSAGE_BYTES_MAX + 1, |head| head + 2 + request::segment_bytes(needed.len()));
    (bytes > MESSAGE_BYTES_MAX).then_some(Why::LongRequest { bytes, bytes_max: MESSAGE_BYTES_MAX })
}

/// A request under way, and what has come of its reply.
struct Asked {
    number: u64,
    /// The segments that it is about, from the next one on that the sink may get.
    segments: Range<usize>,
    /// The first of them.
    first: usize,
    sequence: u32,
    /// The record that is arriving, then complete ones.
    record: Vec<u8>,
    records: VecDeque<Vec<u8>>,
    is_answered: bool,
    refusal: Option<Refusal>,
}

struct Pushdown<'a> {
    stage: Stage<'a>,
    line: &'a dyn Line,
    head: Vec<u8>,
    needed: Vec<usize>,
    asked: VecDeque<Asked>,
    next: usize,
    counters: Counters,
}

async fn run<'a>(reader: &'a Reader<'a>, scan: &'a Scan<'a>, sink: &mut Sink<'_>) -> Result<Counters, ScanError> {
    let head = request::put_head(scan.wanted, scan.predicate).expect("the scan has been seen to fit a request");
    let mut pushdown = Pushdown {
        stage: Stage::new(scan, reader.pinned),
        line: reader.line.expect("there has been a line"),
        head,
        needed: request::needed(scan.wanted, scan.predicate),
        asked: VecDeque::new(),
        next: 0,
        counters: Counters::default(),
    };
    let handle = reader.endpoint.handle();
    loop {
        while pushdown.asked.len() < reader.settings.requests.max(1) && pushdown.next < scan.segments.len() {
            pushdown.ask(reader.settings.segments_per_request.clamp(1, usize::from(u16::MAX))).await?;
        }
        let Some(asked) = pushdown.asked.front_mut() else { break };
        if let Some(record) = asked.records.pop_front() {
            if pushdown.deliver(&record, sink)?.is_break() {
                break;
            }
            continue;
        }
        if let Some(refusal) = asked.refusal {
            return Err(ScanError::Refused(refusal));
        }
        if asked.is_answered {
            let segments = asked.first..asked.segments.end;
            pushdown.counters.rows += segments.map(|segment| pushdown.stage.rows(segment) as u64).sum::<u64>();
            pushdown.asked.pop_front();
            continue;
        }
        let since_ns = handle.now_ns();
        let message = pushdown.line.receive().await?;
        pushdown.counters.waited_ns += handle.now_ns().saturating_sub(since_ns);
        pushdown.take(&message)?;
    }
    Ok(pushdown.counters)
}

impl Pushdown<'_> {
    /// Sends a request about the next segments, as many as lie on one node and fit into a message.
    async fn ask(&mut self, segments_max: usize) -> Result<(), ScanError> {
        let room = MESSAGE_BYTES_MAX - self.head.len() - 2;
        let segments_max = segments_max.min(room / request::segment_bytes(self.needed.len()));
        let start = self.next;
        let (mut node, mut segments) = (None, Vec::new());
        while self.next < self.stage.scan.segments.len() && segments.len() < segments_max {
            let chunks = self.stage.chunks(self.next, &self.needed)?;
            let home = self.home_of(self.next, &chunks)?;
            if *node.get_or_insert(home) != home {
                break;
            }
            segments.push((self.stage.rows(self.next) as u32, chunks));
            self.next += 1;
        }
        let number = self.line.number();
        let message = request::put(&self.head, number, &segments);
        self.counters.reads += 1;
        self.line.send(node.expect("a segment at least"), &message).await?;
        self.asked.push_back(Asked {
            number,
            segments: start..self.next,
            first: start,
            sequence: 0,
            record: Vec::new(),
            records: VecDeque::new(),
            is_answered: false,
            refusal: None,
        });
        Ok(())
    }

    /// The node of a segment. One that needs no column is asked for all the same: a pin may keep a node's segments, not their rows.
    fn home_of(&self, segment: usize, chunks: &[FarChunk]) -> Result<NodeId, ScanError> {
        let any = chunks.first().or(self.stage.scan.segments[segment].chunks.first());
        let Some(any) = any else {
            return Err(ScanError::Segment { segment, what: "it has no chunk" });
        };
        let node = any.at.node();
        if chunks.iter().all(|chunk| chunk.at.node() == node) {
            Ok(node)
        } else {
            Err(ScanError::Unusable { path: PATH.name, why: Why::Scattered { segment } })
        }
    }

    /// Takes a message of a reply.
    fn take(&mut self, message: &[u8]) -> Result<(), ScanError> {
        let reply = Reply::read(message)?;
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.number == reply.number) else {
            // Of a scan that was given up.
            return Ok(());
        };
        self.counters.bytes_moved += message.len() as u64;
        if reply.sequence != asked.sequence || asked.is_answered || asked.refusal.is_some() {
            return Err(WireError::Wrong("a message of it is missing, or one too many").into());
        }
        asked.sequence += 1;
        match reply.kind {
            Kind::More | Kind::RecordEnd => {
                if asked.record.len() + reply.bytes.len() > RECORD_BYTES_MAX {
                    return Err(WireError::Wrong("a segment of it is too long").into());
                }
                asked.record.extend_from_slice(reply.bytes);
                if reply.kind == Kind::RecordEnd {
                    asked.records.push_back(std::mem::take(&mut asked.record));
                }
            }
            Kind::Answered if !asked.record.is_empty() => return Err(WireError::Short("the end of a segment").into()),
            Kind::Answered => asked.is_answered = true,
            Kind::Refused => asked.refusal = Some(Refusal::read(reply.bytes, asked.first)?),
        }
        Ok(())
    }

    /// Gives the sink a segment of the first request.
    fn deliver(&mut self, record: &[u8], sink: &mut Sink<'_>) -> Result<ControlFlow<()>, ScanError> {
        let asked = self.asked.front_mut().expect("a request with a record");
        let (first, segments) = (asked.first, asked.segments.clone());
        // Segments come in order, each once.
        let rows_of = |number: usize| {
            let segment = first + number;
            segments.contains(&segment).then(|| self.stage.rows(segment))
        };
        let Record { passed, values } = Record::read(record, first, rows_of)?;
        asked.segments.start = passed.segment + 1;
        let (segment, schema) = (passed.segment, self.stage.scan.schema);
        self.counters.rows_passing += passed.passing as u64;
        self.counters.result_bytes += size_of_val(passed.bits.as_slice()) as u64;
        self.counters.result_bytes += values.iter().map(|value| value.len() as u64).sum::<u64>();
        let mut found = Found {
            segment,
            rows: passed.rows,
            passing: passed.passing,
            bits: &passed.bits,
            values: Values::OfPassing(&[]),
        };
        let count = match self.stage.scan.wanted {
            Wanted::Columns(columns) => columns.len(),
            Wanted::Aggregates(aggregates) => aggregates.len(),
        };
        if values.len() != count {
            return Err(WireError::Wrong("it has not as many values as are wanted").into());
        }
        match self.stage.scan.wanted {
            Wanted::Columns(columns) => {
                let mut chunks = Vec::with_capacity(columns.len());
                for (&column, &bytes) in columns.iter().zip(&values) {
                    let chunk = Chunk::open_for(schema.columns()[column].data_type, passed.passing, bytes);
                    chunks.push(chunk.map_err(|source| ScanError::Chunk { segment, column, source })?);
                }
                found.values = Values::OfPassing(&chunks);
                Ok(sink(&found))
            }
            Wanted::Aggregates(aggregates) => {
                let read = |(aggregate, bytes): (&_, &&[u8])| read_value(bytes, *aggregate, schema);
                let values: Vec<Value> = aggregates.iter().zip(&values).map(read).collect::<Result<_, _>>()?;
                found.values = Values::Aggregates(&values);
                Ok(sink(&found))
            }
        }
    }
}
