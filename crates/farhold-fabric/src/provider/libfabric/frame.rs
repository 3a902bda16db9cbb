//! The messages between workers and home agents, byte by byte (little endian).
//!
//! ```text
//! frame    parcels, each of them but the last padded to 8
//! parcel   +0 magic:32 | version:16 | kind:8 | 0:8   +8 session:32 | total:32   +16 token:64   +24 number:64   +32 offset:32 | len:32
//!          +40 `len` bytes of a body of `total` bytes, from `offset` on
//! request  tag:32 | 0:32, then by tag:
//!   OPS       instructions: kind:8 | region:8 | 0:16 | len:32 | offset:64 | key:64 | a:64 | b:64, then a write's bytes padded to 8
//!   LEARN     region:64
//!   LANE      receiving port:32 | sending port:32
//!   TAKEN     lane:64
//!   CLOSED    port:64
//! hello    length of name:16 | name | node:8 | count of starts:64 | birth:64 | nonce:128 | proof:256
//! answer   code:32 | len:32 | that many bytes padded to 8; to OPS one for each instruction, in their order
//! message  (kind MESSAGE) its bytes; `number` is the lane
//! ```
//!
//! A body of a frame's length or less goes in one parcel. All parcels for one peer in one turn go in one frame, as far as there
//! is room: see [`super::packing`]. The first eight bytes of a frame, and the beginning of a HELLO's body 40 bytes from its
//! start, are the same in every version, so that two versions can tell each other apart.

use super::channel::FRAME_BYTES;
use super::secret::{Introduction, Proof};
use crate::address::{FarPtr, RegionId};
use crate::batch::{Op, OpKind};
use crate::error::FabricError;
use crate::object::HEADER_BYTES;

/// Version of everything here.
pub(super) const VERSION: u16 = 3;
const MAGIC: u32 = u32::from_le_bytes(*b"FHLF");
pub(super) const HEADER: usize = 40;
/// Most bytes of a body in one parcel.
pub(super) const BODY_MAX: usize = FRAME_BYTES - HEADER;
/// Longest body: an object of the largest length, with room.
pub(super) const TOTAL_MAX: usize = 4 << 20;

/// What a parcel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Welcome = 4,
    Refused = 5,
    Request = 6,
    Answer = 7,
    Message = 8,
    Bye = 9,
    /// `number` is the lane that is given back.
    Leave = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::Challenge,
    Kind::Proof,
    Kind::Welcome,
    Kind::Refused,
    Kind::Request,
    Kind::Answer,
    Kind::Message,
    Kind::Bye,
    Kind::Leave,
];

/// The start of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub version: u16,
    pub kind: Kind,
    pub session: u32,
    pub total: u32,
    pub token: u64,
    pub number: u64,
    pub offset: u32,
    /// Bytes of this parcel's part of the body.
    pub len: u32,
}

impl Header {
    pub fn new(kind: Kind, session: u32, token: u64, number: u64, total: usize) -> Self {
        Self { version: VERSION, kind, session, total: total as u32, token, number, offset: 0, len: total as u32 }
    }

    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6] = self.kind as u8;
        bytes[8..12].copy_from_slice(&self.session.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.total.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.token.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.offset.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The first parcel of some bytes: its header, its part of the body, and what follows. `None`: it is no parcel of this
    /// protocol. For other versions only version and kind are read, and everything else is the part.
    fn take(bytes: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (head, rest) = bytes.split_at_checked(HEADER)?;
        let mut reader = Reader(head);
        if reader.u32()? != MAGIC {
            return None;
        }
        let version = reader.u16()?;
        let kind = *KINDS.get(usize::from(reader.u8()?).checked_sub(1)?)?;
        reader.u8()?;
        let header = Self {
            version,
            kind,
            session: reader.u32()?,
            total: reader.u32()?,
            token: reader.u64()?,
            number: reader.u64()?,
            offset: reader.u32()?,
            len: reader.u32()?,
        };
        if version != VERSION {
            return Some((header, rest, &[]));
        }
        let (part, behind) = rest.split_at_checked(header.len as usize)?;
        let padding = part.len().next_multiple_of(8) - part.len();
        let fits = header.total as usize <= TOTAL_MAX && header.offset as usize + part.len() <= header.total as usize;
        fits.then(|| (header, part, behind.get(padding..).unwrap_or(&[])))
    }
}

/// The parcels of a frame, up to the first one that is not of this protocol.
pub(super) fn parcels(frame: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    let mut left = frame;
    std::iter::from_fn(move || {
        let (header, part, behind) = Header::take(left)?;
        left = behind;
        Some((header, part))
    })
}

/// Splits a body into parcels: the header and the part of each.
pub(super) fn split(header: Header, body: &[u8]) -> impl Iterator<Item = ([u8; HEADER], &[u8])> {
    let starts = std::iter::once(0).chain((BODY_MAX..body.len()).step_by(BODY_MAX));
    starts.map(move |start| {
        let part = &body[start..(start + BODY_MAX).min(body.len())];
        (Header { offset: start as u32, len: part.len() as u32, ..header }.to_bytes(), part)
    })
}

/// Puts a body together from its parcels, which come in order.
#[derive(Default)]
pub(super) struct Assembly(Vec<u8>);

impl Assembly {
    /// Adds a part. Returns the whole body when it is complete. A part out of order starts over, which drops a body that a sender
    /// has left unfinished.
    pub fn add<'a>(&'a mut self, header: &Header, part: &'a [u8]) -> Option<&'a [u8]> {
        if header.offset == 0 {
            self.0.clear();
            if part.len() == header.total as usize {
                return Some(part);
            }
        }
        if self.0.len() != header.offset as usize {
            self.0.clear();
            return None;
        }
        self.0.extend_from_slice(part);
        (self.0.len() == header.total as usize).then_some(&self.0[..])
    }

    /// What was put together last.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Reads numbers and bytes from the front; `None` if there is too little.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N).map(|bytes| bytes.try_into().expect("as many as asked for"))
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|it| it[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes that are padded to 8.
    pub fn padded(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes(len.checked_next_multiple_of(8)?)?;
        Some(&bytes[..len])
    }
}

pub(super) fn put_padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(bytes);
    body.resize(body.len().next_multiple_of(8), 0);
}

/// The body of a hello.
pub(super) fn hello(introduction: &Introduction<'_>, proof: &Proof) -> Vec<u8> {
    let Introduction { worker_nonce, worker_node, start, worker_name, .. } = introduction;
    let mut body = (worker_name.len() as u16).to_le_bytes().to_vec();
    body.extend_from_slice(worker_name);
    body.push(*worker_node);
    body.extend_from_slice(&start.0.to_le_bytes());
    body.extend_from_slice(&start.1.to_le_bytes());
    body.extend_from_slice(*worker_nonce);
    body.extend_from_slice(proof);
    body
}

/// What a worker asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Tag {
    Ops = 0,
    Learn = 1,
    Lane = 2,
    Taken = 3,
    Closed = 4,
}

impl Tag {
    pub fn of(number: u32) -> Option<Self> {
        [Self::Ops, Self::Learn, Self::Lane, Self::Taken, Self::Closed].into_iter().find(|tag| *tag as u32 == number)
    }
}

/// Bytes in front of a request's content.
pub(super) const TAG_BYTES: usize = 8;

/// A request that is made of up to two numbers.
pub(super) fn request(tag: Tag, a: u32, b: u32) -> Vec<u8> {
    let mut body = Vec::with_capacity(16);
    for word in [tag as u32, 0, a, b] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    body
}

/// The operand of a flush that asks for the NIC's key and base, too: two words, none if the NIC is not available.
pub(super) const NIC_KEY: u64 = 1;
/// Flags of the NIC in the answer to LEARN: it may read the region, and write it.
pub(super) const NIC_READS: u64 = 1;
pub(super) const NIC_WRITES: u64 = 2;
/// Bytes of an instruction in a request, without what it writes.
pub(super) const OP_BYTES: usize = 40;
const OP_KINDS: [OpKind; 11] = [
    OpKind::Read,
    OpKind::Write,
    OpKind::ReadObject,
    OpKind::FetchAdd,
    OpKind::CompareSwap,
    OpKind::Swap,
    OpKind::And,
    OpKind::Or,
    OpKind::Xor,
    OpKind::Clear,
    OpKind::Flush,
];

/// An instruction, or a part of a bulk one, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireOp {
    pub kind: OpKind,
    pub region: RegionId,
    pub len: u32,
    pub offset: u64,
    pub key: u64,
    pub a: u64,
    pub b: u64,
}

impl WireOp {
    pub fn of(op: &Op, key: u64) -> Self {
        // Others may have operands that mean nothing: a cancelled instruction is a flush with those that it had.
        let (a, b) = if op.kind.is_word() { op.operands() } else { (0, 0) };
        Self { kind: op.kind, region: op.at.region(), len: op.len, offset: op.at.offset(), key, a, b }
    }

    pub fn put(&self, body: &mut Vec<u8>) {
        let kind = OP_KINDS.iter().position(|kind| *kind == self.kind).expect("all are there") as u8;
        body.extend_from_slice(&[kind, self.region.0, 0, 0]);
        body.extend_from_slice(&self.len.to_le_bytes());
        for word in [self.offset, self.key, self.a, self.b] {
            body.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// The next instruction; `None` for invalid bytes.
    pub fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let kind = *OP_KINDS.get(usize::from(reader.u8()?))?;
        let region = RegionId(reader.u8()?);
        reader.u16()?;
        let (len, offset) = (reader.u32()?, reader.u64()?);
        let op = Self { kind, region, len, offset, key: reader.u64()?, a: reader.u64()?, b: reader.u64()? };
        // Word instructions are on eight bytes: there is no other size to ask for.
        let bytes_max = TOTAL_MAX as u64 / 2;
        let sound = offset <= FarPtr::OFFSET_MAX
            && if kind.is_word() { len == 8 } else { kind == OpKind::Flush || u64::from(len) <= bytes_max };
        sound.then_some(op)
    }

    /// Most bytes of its answer.
    pub fn answer_bytes_max(&self) -> usize {
        8 + match self.kind {
            OpKind::Read => (self.len as usize).next_multiple_of(8),
            OpKind::ReadObject => HEADER_BYTES + (self.len as usize).next_multiple_of(8),
            OpKind::Flush if self.a == NIC_KEY => 16,
            OpKind::Write | OpKind::Flush => 0,
            _ => 8,
        }
    }
}

/// How an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Code {
    Done = 0,
    OutOfBounds = 1,
    Misaligned = 2,
    StaleKey = 3,
    NoSuchRegion = 4,
    ObjectTooLong = 5,
    Torn = 6,
    NoSuchPort = 7,
    TooManySenders = 8,
    Unavailable = 9,
}

pub(super) fn put_done(body: &mut Vec<u8>, bytes: &[u8]) {
    put_answer(body, Code::Done, bytes.len());
    put_padded(body, bytes);
}

fn put_answer(body: &mut Vec<u8>, code: Code, len: usize) {
    body.extend_from_slice(&(code as u32).to_le_bytes());
    body.extend_from_slice(&(len as u32).to_le_bytes());
}

/// Room for a successful answer of that length, to be filled before the next is put.
pub(super) fn put_room(body: &mut Vec<u8>, len: usize) -> &mut [u8] {
    put_answer(body, Code::Done, len);
    let start = body.len();
    body.resize(start + len.next_multiple_of(8), 0);
    &mut body[start..start + len]
}

pub(super) fn put_error(body: &mut Vec<u8>, error: &FabricError) {
    let (code, a, b, c) = match *error {
        FabricError::OutOfBounds { at, bytes, region_bytes } => (Code::OutOfBounds, at.offset(), bytes, region_bytes),
        FabricError::Misaligned { at, align } => (Code::Misaligned, at.offset(), align, 0),
        FabricError::StaleKey { .. } => (Code::StaleKey, 0, 0, 0),
        FabricError::NoSuchRegion { .. } => (Code::NoSuchRegion, 0, 0, 0),
        FabricError::ObjectTooLong { payload_len, payload_len_max, .. } => {
            (Code::ObjectTooLong, payload_len as u64, payload_len_max as u64, 0)
        }
        FabricError::Torn { .. } => (Code::Torn, 0, 0, 0),
        FabricError::NoSuchPort { .. } => (Code::NoSuchPort, 0, 0, 0),
        FabricError::TooManySenders { .. } => (Code::TooManySenders, 0, 0, 0),
        _ => (Code::Unavailable, 0, 0, 0),
    };
    put_answer(body, code, 24);
    for word in [a, b, c] {
        body.extend_from_slice(&word.to_le_bytes());
    }
}

/// What an answer says: its bytes, or an error about `at` (of messages: about `to`).
pub(super) fn take_answer<'a>(
    reader: &mut Reader<'a>,
    at: FarPtr,
    to: crate::Address,
) -> Option<Result<&'a [u8], FabricError>> {
    let (code, len) = (reader.u32()?, reader.u32()?);
    let bytes = reader.padded(len as usize)?;
    if code == Code::Done as u32 {
        return Some(Ok(bytes));
    }
    let mut detail = Reader(bytes);
    let (a, b, c) = (detail.u64()?, detail.u64()?, detail.u64()?);
    let (node, region) = (at.node(), at.region());
    let there = |offset: u64| FarPtr::new(node, region, offset.min(FarPtr::OFFSET_MAX));
    let error = match code {
        1 => FabricError::OutOfBounds { at: there(a), bytes: b, region_bytes: c },
        2 => FabricError::Misaligned { at: there(a), align: b },
        3 => FabricError::StaleKey { node, region },
        4 => FabricError::NoSuchRegion { node, region },
        5 => FabricError::ObjectTooLong { at, payload_len: a as usize, payload_len_max: b as usize },
        6 => FabricError::Torn { at },
        7 => FabricError::NoSuchPort { to },
        8 => FabricError::TooManySenders { to },
        _ => FabricError::NodeUnavailable { node },
    };
    Some(Err(error))
}

/// Why a hello or a proof was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Refusal {
    /// Followed by the refuser's version.
    Version = 1,
    NotAdmitted = 2,
    /// More workers than the agent takes.
    TooMany = 3,
    /// The worker's node is fenced until it starts again.
    ShutOut = 4,
}
