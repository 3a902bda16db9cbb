//! What nodes ask of each other, and the bodies of the answers.
//!
//! ```text
//!   'Q' │ version │ kind │ number u64 (0: no answer wanted) │ body
//! ```

use crate::base::error::TxnError;
use crate::base::table::Index;
use crate::base::wire::{GARBAGE, Reader, Writer};
use farhold_btree::{Changes, LeafStamp};
use farhold_fabric::NodeId;
use farhold_store::table::Occupant;
use farhold_store::{Moved, ObjectRef, TableId};
use std::ops::Bound;

const REQUEST: u8 = b'Q';
pub(super) const VERSION: u8 = 8;

/// What a node asks of the home of some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// Which object has this key in an ordered index? Answer: [`Found`].
    Lookup { table: TableId, index: u16, key: &'a [u8] },
    /// Which objects have keys in this range? Answer: [`Page`].
    Scan { table: TableId, index: u16, lo: Bound<&'a [u8]>, hi: Bound<&'a [u8]>, descending: bool, limit: u32 },
    /// Make an object for an insert by a node that is in this configuration (0: rows have one copy); `mine` are rows
    /// that the transaction deletes. Answer: [`Reserved`].
    Reserve { table: TableId, owner: u64, configuration: u64, key: &'a [u8], value: &'a [u8], mine: Vec<ObjectRef> },
    /// Take reservations back.
    Cancel { table: TableId, references: Vec<ObjectRef> },
    /// Take back all that this owner has reserved; the owner does not know which objects these are. Not `answered`: one of
    /// its requests may still arrive.
    Forget { owner: u64, answered: bool },
    /// These rows were deleted at this epoch.
    Remove { table: TableId, epoch: u32, references: Vec<ObjectRef> },
    /// Are these leaves as they were? Answer: a flag.
    Validate { table: TableId, index: u16, leaves: Vec<LeafStamp> },
    /// The sender holds these rows' locks and may write next: save older copies.
    SaveUndo { owner: u64, epoch: u32, rows: Vec<(TableId, ObjectRef)> },
    /// Create a table here.
    CreateTable { id: TableId, definition: &'a [u8] },
    /// Take a table out of use.
    DropTable { id: TableId },
    /// Add the index of this slot of the table's definition, empty and unreadable; `since` says which start of the sender creates
    /// it.
    AddIndex { table: TableId, slot: u16, since: u64, definition: &'a [u8] },
    /// Fill the index with the rows there are.
    FillIndex { table: TableId, slot: u16 },
    /// Is it filled? Answer: a flag.
    IsFilled { table: TableId, slot: u16 },
    /// Bring the index into another state.
    StepIndex { table: TableId, slot: u16, step: IndexStep },
    /// The definition of a table has changed in what is not its indexes: it is recorded.
    FollowDefinition { table: TableId },
    /// This node's transactions that have begun before it heard of this drop are over.
    Quiet { id: TableId, node: NodeId },
    /// The sender waits for [`Self::Quiet`] about this table.
    AskQuiet { id: TableId },
    /// How many rows? Answer: u64.
    Count { table: TableId },
    /// A node has started anew: locks and reservations of its earlier starts have no owner. Its rows reach up to this
    /// epoch. `birth` distinguishes this start from the node's others even if its memory has lost them.
    Hello { node: NodeId, incarnation: u16, birth: u64, epoch: u32 },
    /// A snapshot will be taken by this start of the sender, which is in this configuration: see `node/snapshots.rs`.
    Announce { incarnation: u16, configuration: u64, number: u64 },
    /// It has become this epoch's.
    Confirm { incarnation: u16, number: u64, epoch: u32 },
    /// Of the sender's snapshots with numbers from `first` up to but not including `next`, only these are open.
    StillOpen { incarnation: u16, first: u64, next: u64, open: Vec<u64> },
    /// The sender has committed and holds the locks of all these: swing the index entries of the `replaced`, rows that it deletes
    /// and reservations that it has given up, to the new rows.
    Publish { table: TableId, references: Vec<ObjectRef>, replaced: Vec<ObjectRef> },
    /// Which runs of pages hold the table's rows, from that page on? The first of them: see `protocol::runs::RUNS_MAX`.
    Pages { table: TableId, from_page: u32 },
    /// Where are these columns of the table's rows here, at the epoch of a snapshot that this start of the sender has open here, and that it
    /// has taken in this configuration? Answer: see `protocol/far_columns.rs`.
    ColumnView { incarnation: u16, table: TableId, epoch: u32, configuration: u64, columns: Vec<u16> },
    /// Scan columns that lie here, for a snapshot that this start of the sender has open here and has taken in this configuration; or,
    /// without a body, go on with the scan of this number. Answer: see `protocol/pushdown.rs`.
    ScanColumns { incarnation: u16, table: TableId, epoch: u32, configuration: u64, number: u64, body: &'a [u8] },
    /// Replication and recovery: see `rpc/recovery.rs`.
    Recovery { body: &'a [u8] },
}

/// The next state of an index. Each step names a state, not a change, so a step that is repeated, or done by two nodes
/// at once, has the same effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexStep {
    /// It may be read.
    Open = 0,
    /// No transaction reads it, and writers maintain it.
    Close = 1,
    /// Writers no longer maintain it.
    Drop = 2,
}

impl IndexStep {
    fn decode(r: &mut Reader<'_>) -> Result<Self, TxnError> {
        match r.u8()? {
            0 => Ok(Self::Open),
            1 => Ok(Self::Close),
            2 => Ok(Self::Drop),
            _ => Err(GARBAGE),
        }
    }
}

/// The answer to [`Request::Lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub reference: Option<ObjectRef>,
    pub leaf: LeafStamp,
}

/// The answer to [`Request::Scan`]: a part of the range, or its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub leaves: Vec<LeafStamp>,
    /// Object, and bytes of its payload, absent ones included.
    pub rows: Vec<(ObjectRef, u32)>,
    /// The last key looked at, if the range goes on.
    pub last: Option<Vec<u8>>,
}

/// The answer to [`Request::Reserve`].
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub outcome: Result<Made, Taken>,
    pub moved: Vec<Moved>,
}

/// An insert's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub reference: ObjectRef,
    pub version: u64,
    pub replaces: bool,
}

/// What is in the way of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub index: Index,
    pub reference: ObjectRef,
    pub live: bool,
}

impl<'a> Request<'a> {
    /// The message.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(64));
        let w = &mut writer;
        w.u8(REQUEST).u8(VERSION).u8(self.kind()).u64(number);
        match self {
            Self::Lookup { table, index, key } => {
                w.u32(table.0).u16(*index).bytes(key);
            }

            Self::Scan { table, index, lo, hi, descending, limit } => {
                w.u32(table.0).u16(*index).bound(*lo).bound(*hi).u8(u8::from(*descending)).u32(*limit);
            }
            Self::Reserve { table, owner, configuration, key, value, mine } => {
                w.u32(table.0).u64(*owner).u64(*configuration).bytes(key).bytes(value).list(mine, |w, it| {
                    w.reference(*it);
                });
            }
            Self::Cancel { table, references } => {
                w.u32(table.0).list(references, |w, it| {
                    w.reference(*it);
                });
            }

            Self::Forget { owner, answered } => {
                w.u64(*owner).u8(u8::from(*answered));
            }

            Self::Remove { table, epoch, references } => {
                w.u32(table.0).u32(*epoch).list(references, |w, it| {
                    w.reference(*it);
                });
            }
            Self::Validate { table, index, leaves } => {
                w.u32(table.0).u16(*index).list(leaves, |w, it| {
                    w.leaf(*it);
                });
            }
            Self::SaveUndo { owner, epoch, rows } => {
                w.u64(*owner).u32(*epoch).list(rows, |w, (table, reference)| {
                    w.u32(table.0).reference(*reference);
                });
            }
            Self::Publish { table, references, replaced } => {
                w.u32(table.0);
                for list in [references, replaced] {
                    w.list(list, |w, it| {
                        w.reference(*it);
                    });
                }
            }
            Self::CreateTable { id, definition } => {
                w.u32(id.0).bytes(definition);
            }

            Self::Quiet { id, node } => {
                w.u32(id.0).u8(node.0);
            }
            Self::DropTable { id } | Self::AskQuiet { id } => {
                w.u32(id.0);
            }

            Self::AddIndex { table, slot, since, definition } => {
                w.u32(table.0).u16(*slot).u64(*since).bytes(definition);
            }
            Self::FillIndex { table, slot } | Self::IsFilled { table, slot } => {
                w.u32(table.0).u16(*slot);
            }

            Self::StepIndex { table, slot, step } => {
                w.u32(table.0).u16(*slot).u8(*step as u8);
            }

            Self::Announce { incarnation, configuration, number } => {
                w.u16(*incarnation).u64(*configuration).u64(*number);
            }
            Self::Recovery { body } => {
                w.bytes(body);
            }
            Self::ColumnView { incarnation, table, epoch, configuration, columns } => {
                w.u16(*incarnation).u32(table.0).u32(*epoch).u64(*configuration).list(columns, |w, column| {
                    w.u16(*column);
                });
            }
            Self::ScanColumns { incarnation, table, epoch, configuration, number, body } => {
                w.u16(*incarnation).u32(table.0).u32(*epoch).u64(*configuration).u64(*number).bytes(body);
            }
            Self::Count { table } | Self::FollowDefinition { table } => {
                w.u32(table.0);
            }
            Self::Pages { table, from_page } => {
                w.u32(table.0).u32(*from_page);
            }

            Self::Hello { node, incarnation, birth, epoch } => {
                w.u8(node.0).u16(*incarnation).u64(*birth).u32(*epoch);
            }

            Self::Confirm { incarnation, number, epoch } => {
                w.u16(*incarnation).u64(*number).u32(*epoch);
            }

            Self::StillOpen { incarnation, first, next, open } => {
                w.u16(*incarnation).u64(*first).u64(*next).list(open, |w, number| {
                    w.u64(*number);
                });
            }
        }
        writer.0
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Lookup { .. } => 1,
            Self::Scan { .. } => 2,
            Self::Reserve { .. } => 3,
            Self::Cancel { .. } => 4,
            Self::Forget { .. } => 5,
            Self::Remove { .. } => 6,
            Self::Validate { .. } => 7,
            Self::SaveUndo { .. } => 8,
            Self::CreateTable { .. } => 9,
            Self::DropTable { .. } => 10,
            Self::AddIndex { .. } => 11,
            Self::FillIndex { .. } => 12,
            Self::IsFilled { .. } => 13,
            Self::StepIndex { .. } => 14,
            Self::Quiet { .. } => 15,
            Self::AskQuiet { .. } => 16,
            Self::Count { .. } => 18,
            Self::Hello { .. } => 19,
            Self::Announce { .. } => 20,
            Self::Confirm { .. } => 21,
            Self::StillOpen { .. } => 22,
            Self::Pages { .. } => 23,
            Self::Publish { .. } => 24,
            Self::Recovery { .. } => 25,
            Self::FollowDefinition { .. } => 26,
            Self::ColumnView { .. } => 27,
            Self::ScanColumns { .. } => 28,
        }
    }

    /// Back from [`Self::encode`], with its number.
    pub fn decode(bytes: &'a [u8]) -> Result<(u64, Self), TxnError> {
        let mut r = Reader(bytes);
        if (r.u8()?, r.u8()?) != (REQUEST, VERSION) {
            return Err(GARBAGE);
        }
        let (kind, number) = (r.u8()?, r.u64()?);
        let table = |r: &mut Reader<'_>| r.u32().map(TableId);
        let request = match kind {
            1 => Self::Lookup { table: table(&mut r)?, index: r.u16()?, key: r.bytes()? },
            2 => Self::Scan {
                table: table(&mut r)?,
                index: r.u16()?,
                lo: r.bound()?,
                hi: r.bound()?,
                descending: r.flag()?,
                limit: r.u32()?,
            },
            3 => Self::Reserve {
                table: table(&mut r)?,
                owner: r.u64()?,
                configuration: r.u64()?,
                key: r.bytes()?,
                value: r.bytes()?,
                mine: r.list(Reader::reference)?,
            },
            4 => Self::Cancel { table: table(&mut r)?, references: r.list(Reader::reference)? },
            5 => Self::Forget { owner: r.u64()?, answered: r.flag()? },
            6 => Self::Remove { table: table(&mut r)?, epoch: r.u32()?, references: r.list(Reader::reference)? },
            7 => Self::Validate { table: table(&mut r)?, index: r.u16()?, leaves: r.list(Reader::leaf)? },
            8 => Self::SaveUndo {
                owner: r.u64()?,
                epoch: r.u32()?,
                rows: r.list(|r| Ok((TableId(r.u32()?), r.reference()?)))?,
            },
            9 => Self::CreateTable { id: table(&mut r)?, definition: r.bytes()? },
            10 => Self::DropTable { id: table(&mut r)? },
            11 => Self::AddIndex { table: table(&mut r)?, slot: r.u16()?, since: r.u64()?, definition: r.bytes()? },
            12 => Self::FillIndex { table: table(&mut r)?, slot: r.u16()? },
            13 => Self::IsFilled { table: table(&mut r)?, slot: r.u16()? },
            14 => Self::StepIndex { table: table(&mut r)?, slot: r.u16()?, step: IndexStep::decode(&mut r)? },
            15 => Self::Quiet { id: table(&mut r)?, node: NodeId(r.u8()?) },
            16 => Self::AskQuiet { id: table(&mut r)? },
            18 => Self::Count { table: table(&mut r)? },
            19 => Self::Hello { node: NodeId(r.u8()?), incarnation: r.u16()?, birth: r.u64()?, epoch: r.u32()? },
            20 => Self::Announce { incarnation: r.u16()?, configuration: r.u64()?, number: r.u64()? },
            21 => Self::Confirm { incarnation: r.u16()?, number: r.u64()?, epoch: r.u32()? },
            22 => {
                Self::StillOpen { incarnation: r.u16()?, first: r.u64()?, next: r.u64()?, open: r.list(Reader::u64)? }
            }
            23 => Self::Pages { table: table(&mut r)?, from_page: r.u32()? },
            24 => Self::Publish {
                table: table(&mut r)?,
                references: r.list(Reader::reference)?,
                replaced: r.list(Reader::reference)?,
            },
            25 => Self::Recovery { body: r.bytes()? },
            26 => Self::FollowDefinition { table: table(&mut r)? },
            27 => Self::ColumnView {
                incarnation: r.u16()?,
                table: table(&mut r)?,
                epoch: r.u32()?,
                configuration: r.u64()?,
                columns: r.list(Reader::u16)?,
            },
            28 => Self::ScanColumns {
                incarnation: r.u16()?,
                table: table(&mut r)?,
                epoch: r.u32()?,
                configuration: r.u64()?,
                number: r.u64()?,
                body: r.bytes()?,
            },
            _ => return Err(GARBAGE),
        };
        r.end()?;
        Ok((number, request))
    }
}

impl Found {
    pub fn encode(&self, w: &mut Writer) {
        w.reference(self.reference.unwrap_or(ObjectRef::NONE)).leaf(self.leaf);
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, TxnError> {
        let reference = r.reference()?;
        Ok(Self { reference: (!reference.is_none()).then_some(reference), leaf: r.leaf()? })
    }
}

impl Page {
    pub fn encode(&self, w: &mut Writer) {
        w.list(&self.leaves, |w, leaf| {
            w.leaf(*leaf);
        });
        w.list(&self.rows, |w, (reference, bytes)| {
            w.reference(*reference).u32(*bytes);
        });
        w.u8(u8::from(self.last.is_some())).bytes(self.last.as_deref().unwrap_or_default());
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, TxnError> {
        let (leaves, rows) = (r.list(Reader::leaf)?, r.list(|r| Ok((r.reference()?, r.u32()?)))?);
        let (more, last) = (r.flag()?, r.bytes()?);
        Ok(Self { leaves, rows, last: more.then(|| last.to_vec()) })
    }
}

impl Reserved {
    pub fn encode(outcome: Result<Made, (u16, ObjectRef, Occupant)>, moved: &[Moved], w: &mut Writer) {
        match outcome {
            Ok(made) => w.u8(0).reference(made.reference).u64(made.version).u8(u8::from(made.replaces)),
            Err((index, reference, occupant)) => {
                w.u8(1).u16(index).reference(reference).u8(u8::from(occupant == Occupant::Live))
            }
        };
        w.list(moved, |w, moved| match moved {
            Moved::Leaves { index, changes } => {
                w.u8(0).u16(*index).list(changes.as_slice(), |w, change| {
                    w.change(change);
                });
            }
            Moved::Bucket { before, after, half } => {
                w.u8(1).bucket(*before).bucket(*after).u8(u8::from(half.is_some()));
                if let Some(half) = half {
                    w.bucket(*half);
                }
            }
        });
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, TxnError> {
        let outcome = match r.u8()? {
            0 => Ok(Made { reference: r.reference()?, version: r.u64()?, replaces: r.flag()? }),
            1 => Err(Taken { index: Index::from_number(r.u16()?), reference: r.reference()?, live: r.flag()? }),
            _ => return Err(GARBAGE),
        };
        let moved = r.list(|r| match r.u8()? {
            0 => {
                let (index, steps) = (r.u16()?, r.list(Reader::change)?);
                Ok(Moved::Leaves { index, changes: Changes::from_steps(&steps).ok_or(GARBAGE)? })
            }
            1 => {
                let (before, after) = (r.bucket()?, r.bucket()?);
                let half = if r.flag()? { Some(r.bucket()?) } else { None };
                Ok(Moved::Bucket { before, after, half })
            }
            _ => Err(GARBAGE),
        })?;
        Ok(Self { outcome, moved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::reply::{decode_reply, encode_reply, error_of};

    fn examples() -> Vec<Request<'static>> {
        let (table, reference) = (TableId(7), ObjectRef::new(4096, 3));
        let leaf = LeafStamp { leaf: 5, version: 6 };
        vec![
            Request::Lookup { table, index: 0, key: b"key" },
            Request::Scan {
                table,
                index: 2,
                lo: Bound::Included(b"a"),
                hi: Bound::Unbounded,
                descending: true,
                limit: 9,
            },
            Request::Reserve {
                table,
                owner: 17,
                configuration: 5,
                key: b"key",
                value: b"value",
                mine: vec![reference; 2],
            },
            Request::Cancel { table, references: vec![reference] },
            Request::Forget { owner: 3, answered: false },
            Request::Remove { table, epoch: 4, references: vec![reference] },
            Request::Validate { table, index: 1, leaves: vec![leaf; 3] },
            Request::SaveUndo { owner: 17, epoch: 3, rows: vec![(table, reference); 2] },
            Request::Publish { table, references: vec![reference], replaced: vec![reference; 2] },
            Request::CreateTable { id: table, definition: b"definition" },
            Request::DropTable { id: table },
            Request::AddIndex { table, slot: 2, since: 7, definition: b"definition" },
            Request::FillIndex { table, slot: 1 },
            Request::IsFilled { table, slot: 1 },
            Request::StepIndex { table, slot: 1, step: IndexStep::Close },
            Request::Quiet { id: table, node: NodeId(1) },
            Request::AskQuiet { id: table },
            Request::Count { table },
            Request::Hello { node: NodeId(2), incarnation: 9, birth: 11, epoch: 4 },
            Request::Announce { incarnation: 2, configuration: 6, number: 3 },
            Request::Confirm { incarnation: 2, number: 3, epoch: 8 },
            Request::StillOpen { incarnation: 2, first: 3, next: 9, open: vec![3, 8] },
            Request::Pages { table, from_page: 77 },
            Request::FollowDefinition { table },
            Request::ColumnView { incarnation: 2, table, epoch: 8, configuration: 1 << 40, columns: vec![0, 5] },
            Request::ScanColumns { incarnation: 2, table, epoch: 8, configuration: 7, number: 1 << 40, body: b"scan" },
        ]
    }

    #[test]
    fn the_longest_scan_fits_a_message() {
        let body = vec![0; farhold_scan::access_path::pushdown::REQUEST_BYTES_MAX];
        let (table, epoch, configuration, number) = (TableId(u32::MAX), u32::MAX, u64::MAX, u64::MAX);
        let request = Request::ScanColumns { incarnation: u16::MAX, table, epoch, configuration, number, body: &body };
        let bytes = request.encode(u64::MAX).len();
        assert!(bytes <= farhold_fabric::provider::MESSAGE_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn requests_come_back() {
        for (i, request) in examples().into_iter().enumerate() {
            let bytes = request.encode(i as u64);
            assert_eq!(Request::decode(&bytes), Ok((i as u64, request)));
        }
    }

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        // Every example cut off everywhere and with every bit turned; and 100 000 strings of random bytes.
        for request in examples() {
            let bytes = request.encode(1);
            for len in 0..bytes.len() {
                Request::decode(&bytes[..len]).expect_err("cut off");
            }
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let _ = Request::decode(&other);
                let _ = decode_reply(&other);
            }
        }
        let mut random = fastrand::Rng::with_seed(1);
        let mut next = || random.u8(..);
        for round in 0..100_000 {
            let len = usize::from(next()) % 80;
            let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
            if len > 3 && round % 2 == 0 {
                bytes[..3].copy_from_slice(&[REQUEST, VERSION, 1 + next() % 28]);
            }
            let _ = Request::decode(&bytes);
            let _ = decode_reply(&bytes);
            let mut r = Reader(&bytes);
            let _ = (Found::decode(&mut r), Page::decode(&mut Reader(&bytes)), Reserved::decode(&mut Reader(&bytes)));
        }
    }

    #[test]
    fn errors_come_back_as_what_their_receiver_acts_on() {
        let node = NodeId(4);
        let same = [
            TxnError::Conflict,
            TxnError::SchemaChanged,
            TxnError::Recovering { node },
            TxnError::OutOfMemory { node },
            TxnError::NotFound { what: "table".into() },
            TxnError::DuplicateKey { table: TableId(5), index: Index::Secondary(2) },
        ];
        for error in same {
            let bytes = encode_reply(9, Err(error.clone()));
            let (number, body) = decode_reply(&bytes).expect("a reply");
            let (status, text) = body.expect_err("an error");
            assert_eq!((number, error_of(status, text, node)), (9, error));
        }
    }
}
