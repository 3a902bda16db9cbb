//! What does a batch hold? Records of commits, changes of the page table, and configurations of the cluster.

use super::GRANULE;
use crate::durable::word;
use crate::error::TableId;
use crate::object::size_class::SizeClass;
use crate::slab::{PageEvent, PageKind, Run};

const EVENT: u32 = u32::from_le_bytes(*b"FPAG");
const STANDING: u32 = u32::from_le_bytes(*b"FCFG");
const EVENT_BYTES: usize = 64;

/// An item of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A record's bytes.
    Record(&'a [u8]),
    /// A change of the page table.
    Page(PageEvent),
    /// A configuration's [`Standing`], encoded.
    Standing(&'a [u8]),
}

/// The items of a batch with a valid checksum.
pub fn items(mut body: &[u8]) -> impl Iterator<Item = Result<Item<'_>, &'static str>> {
    std::iter::from_fn(move || {
        if body.len() < GRANULE {
            return None;
        }
        let size = word(body, 8);
        let (len, magic) = (size as u32 as usize, (size >> 32) as u32);
        if len == 0 {
            // The rest holds the tail alone.
            return None;
        }
        let Some((item, rest)) = body.split_at_checked(len).filter(|_| len >= GRANULE && len.is_multiple_of(8)) else {
            body = &[];
            return Some(Err("an item is cut off"));
        };
        body = rest;
        match magic {
            EVENT => {}
            STANDING => return Some(Ok(Item::Standing(&item[16..]))),
            _ => return Some(Ok(Item::Record(item))),
        }
        let (low, high) = (|at: usize| word(item, at) as u32, |at: usize| (word(item, at) >> 32) as u32);
        let (class, table) = (SizeClass(high(40) as u8), TableId(low(40)));
        let run = Run { page: low(32), pages: high(32), table, class, kind: PageKind::Slots };
        Some(Ok(Item::Page(PageEvent { sequence: word(item, 16), epoch: low(24), taken: high(24) != 0, run })))
    })
}

/// An item: a page of the region has got another use.
pub(crate) fn push_event(event: &PageEvent, out: &mut Vec<u8>) {
    let run = &event.run;
    let words = [
        0,
        EVENT_BYTES as u64 | u64::from(EVENT) << 32,
        event.sequence,
        u64::from(event.epoch) | u64::from(event.taken) << 32,
        u64::from(run.page) | u64::from(run.pages) << 32,
        u64::from(run.table.0) | u64::from(run.class.0) << 32,
        0,
        0,
    ];
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// The journals that count together: a configuration of a cluster with replicas, as far as a restart has to know it.
///
/// ```text
///  item:  0 │ size u32, magic u32 │ words;   words:  number │ nodes u32, bytes u32 │ (start u32, rows since u32) a node │ bytes
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Grows with each configuration.
    pub number: u64,
    /// For each node, the start of it that belongs to the cluster; 0: none does.
    pub starts: Vec<u32>,
    /// For each node, the start in which its rows began, with nothing; 0: it has none that the cluster needs.
    pub rows_since: Vec<u32>,
    /// The configuration as the layer above writes it.
    pub bytes: Box<[u8]>,
}

impl Standing {
    /// As words.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.number.to_le_bytes().to_vec();
        out.extend((self.starts.len() as u64 | (self.bytes.len() as u64) << 32).to_le_bytes());
        for (start, since) in self.starts.iter().zip(&self.rows_since) {
            out.extend((u64::from(*start) | u64::from(*since) << 32).to_le_bytes());
        }
        out.extend_from_slice(&self.bytes);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    /// Back from [`Self::encode`]; bytes behind it are ignored.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(16)?;
        let (nodes, len) = (word(head, 8) as u32 as usize, (word(head, 8) >> 32) as usize);
        let (pairs, rest) = rest.split_at_checked(nodes * 8)?;
        let pairs = pairs.chunks_exact(8).map(|pair| (word(pair, 0) as u32, (word(pair, 0) >> 32) as u32));
        let (starts, rows_since) = pairs.unzip();
        Some(Self { number: word(head, 0), starts, rows_since, bytes: rest.get(..len)?.into() })
    }

    /// As an item of a batch.
    pub fn push(&self, out: &mut Vec<u8>) {
        let words = self.encode();
        let size = (16 + words.len()).next_multiple_of(GRANULE);
        let end = out.len() + size;
        out.extend([0; 8]);
        out.extend((size as u64 | u64::from(STANDING) << 32).to_le_bytes());
        out.extend_from_slice(&words);
        out.resize(end, 0);
    }
}
