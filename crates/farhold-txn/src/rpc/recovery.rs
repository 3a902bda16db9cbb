//! What members say to each other while the configuration changes. Carried by `Request::Recovery`.

use crate::base::error::TxnError;
use crate::base::wire::{GARBAGE, Reader, Writer};
use crate::cluster::configuration::Configuration;
use farhold_fabric::Version;
use farhold_fabric::provider::MESSAGE_BYTES_MAX;
use farhold_store::log::Entry;
use farhold_store::object::size_class::PAYLOAD_BYTES_MAX;
use farhold_store::{ObjectRef, TableId};
use std::sync::Arc;

/// A message.
#[derive(Clone, Debug)]
pub(crate) enum Message<'a> {
    /// There is something in your rings.
    Apply,
    /// Stop committing for this configuration. Answer: [`Frozen`].
    Freeze(Arc<Configuration>),
    /// What have dead nodes left at this member? From the entry with this number on. Answer: [`Left`].
    Pull { number: u64, from: u32 },
    /// These rows must have been written; write those that have not.
    Redo { number: u64, left: Vec<LeftEntry<'a>> },
    /// Everything has been redone: release everything else that dead nodes hold. The epoch is at least this. Answer: a
    /// flag, whether everything before it is in this node's journal.
    Settle { number: u64, epoch_min: u32 },
    /// Go on in this configuration.
    Install(Arc<Configuration>),
    /// Rows of the sender, for its mirror that has been wanted since this configuration.
    Copy { since: u64, rows: Vec<CopyRow<'a>> },
    /// Pages of the sender, for the same mirror, each with the version at or below which states of its slots belong to an
    /// earlier use.
    Floors { since: u64, pages: Vec<(u32, Version)> },
}

/// The answer to [`Message::Freeze`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frozen {
    /// No commit is on its way.
    pub quiet: bool,
    /// The highest epoch that a commit here has read.
    pub epoch_seen: u32,
}

/// A row of a record that a dead node has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftEntry<'a> {
    pub owner: u64,
    pub epoch: u32,
    pub entry: Entry<'a>,
}

/// The answer to [`Message::Pull`]: some of the entries, how many there are in all, and the highest epoch of a record in this node's rings.
#[derive(Clone, Debug)]
pub(crate) struct Left<'a> {
    pub count: u32,
    pub epoch_seen: u32,
    pub entries: Vec<LeftEntry<'a>>,
}

/// A row for a mirror.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRow<'a> {
    pub reference: ObjectRef,
    pub version: Version,
    pub table: TableId,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> LeftEntry<'a> {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.owner).u32(self.epoch);
        self.entry.encode(&mut w.0);
    }

    fn decode(r: &mut Reader<'a>) -> Result<Self, TxnError> {
        let (owner, epoch) = (r.u64()?, r.u32()?);
        let entry = Entry::decode(&mut r.0).map_err(|_| GARBAGE)?;
        Ok(Self { owner, epoch, entry })
    }

    /// As bytes, to be kept.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut w = Writer::default();
        self.encode(&mut w);
        w.0
    }

    /// Back from [`Self::to_bytes`].
    pub fn of_bytes(bytes: &'a [u8]) -> Result<Self, TxnError> {
        Self::decode(&mut Reader(bytes))
    }
}

impl<'a> Left<'a> {
    pub fn encode(&self, w: &mut Writer) {
        w.u32(self.count).u32(self.epoch_seen).list(&self.entries, |w, entry| entry.encode(w));
    }

    pub fn decode(r: &mut Reader<'a>) -> Result<Self, TxnError> {
        Ok(Self { count: r.u32()?, epoch_seen: r.u32()?, entries: r.list(LeftEntry::decode)? })
    }
}

impl<'a> Message<'a> {
    /// Is it a step of a change of the configuration?
    pub fn is_step(&self) -> bool {
        match self {
            Self::Freeze(_) | Self::Pull { .. } | Self::Redo { .. } | Self::Settle { .. } | Self::Install(_) => true,
            Self::Apply | Self::Copy { .. } | Self::Floors { .. } => false,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Apply => drop(w.u8(1)),
            Self::Freeze(configuration) => drop(w.u8(2).bytes(&configuration.encode())),
            Self::Pull { number, from } => drop(w.u8(3).u64(*number).u32(*from)),
            Self::Redo { number, left } => drop(w.u8(4).u64(*number).list(left, |w, entry| entry.encode(w))),
            Self::Settle { number, epoch_min } => drop(w.u8(5).u64(*number).u32(*epoch_min)),
            Self::Install(configuration) => drop(w.u8(6).bytes(&configuration.encode())),
            Self::Copy { since, rows } => {
                w.u8(7).u64(*since).list(rows, |w, row| {
                    w.reference(row.reference).u64(row.version.0).u32(row.table.0).bytes(row.key).bytes(row.value);
                });
            }
            Self::Floors { since, pages } => {
                w.u8(8).u64(*since).list(pages, |w, (page, floor)| {
                    w.u32(*page).u64(floor.0);
                });
            }
        }
        w.0
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Self, TxnError> {
        let mut r = Reader(bytes);
        let configuration = |r: &mut Reader<'a>| Configuration::decode(r.bytes()?).map(Arc::new);
        let message = match r.u8()? {
            1 => Self::Apply,
            2 => Self::Freeze(configuration(&mut r)?),
            3 => Self::Pull { number: r.u64()?, from: r.u32()? },
            4 => Self::Redo { number: r.u64()?, left: r.list(LeftEntry::decode)? },
            5 => Self::Settle { number: r.u64()?, epoch_min: r.u32()? },
            6 => Self::Install(configuration(&mut r)?),
            7 => Self::Copy {
                since: r.u64()?,
                rows: r.list(|r| {
                    let (reference, version, table) = (r.reference()?, Version(r.u64()?), TableId(r.u32()?));
                    Ok(CopyRow { reference, version, table, key: r.bytes()?, value: r.bytes()? })
                })?,
            },
            8 => Self::Floors { since: r.u64()?, pages: r.list(|r| Ok((r.u32()?, Version(r.u64()?))))? },
            _ => return Err(GARBAGE),
        };
        r.end()?;
        Ok(message)
    }
}

impl Frozen {
    pub fn encode(self, w: &mut Writer) {
        w.u8(u8::from(self.quiet)).u32(self.epoch_seen);
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, TxnError> {
        Ok(Self { quiet: r.flag()?, epoch_seen: r.u32()? })
    }
}

/// Bytes of entries or rows in one message; a row above it goes alone, and the longest one fits (asserted below).
pub(crate) const MESSAGE_BYTES: usize = 16 << 10;
/// Floors of pages in one message.
pub(crate) const FLOORS_PER_MESSAGE: usize = MESSAGE_BYTES / 12;
/// An upper bound for the bytes of a row or an entry beside key and value.
pub(crate) const ROW_BYTES: usize = 64;
/// An upper bound for the bytes of a message beside its rows.
const ENVELOPE_BYTES: usize = 64;
const _: () = assert!(PAYLOAD_BYTES_MAX + ROW_BYTES + ENVELOPE_BYTES <= MESSAGE_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::message::Request;
    use farhold_fabric::NodeId;
    use farhold_store::log::Change;

    /// A row of the greatest length fits each message that carries rows, alone.
    #[test]
    fn the_longest_row_fits_each_message() {
        let payload = vec![7; PAYLOAD_BYTES_MAX];
        let (key, value) = payload.split_at(100);
        let (reference, table) = (ObjectRef::new(4096, 3), TableId(7));
        let entry = Entry {
            node: NodeId(1),
            change: Change::Insert,
            mirrored: true,
            table,
            reference,
            old: Version(1),
            new: Version(2),
            key,
            value,
        };
        let left = LeftEntry { owner: 1, epoch: 2, entry };
        let copied = CopyRow { reference, version: Version(1), table, key, value };
        let floors = Message::Floors { since: 1, pages: vec![(u32::MAX, Version(u64::MAX)); FLOORS_PER_MESSAGE] };
        let redo = Message::Redo { number: 9, left: vec![left] };
        for message in [redo, Message::Copy { since: 1, rows: vec![copied] }, floors] {
            let bytes = Request::Recovery { body: &message.encode() }.encode(u64::MAX);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes: {:?}", bytes.len(), message.encode()[0]);
        }
        let mut w = Writer::default();
        Left { count: 1, epoch_seen: 2, entries: vec![left] }.encode(&mut w);
        assert!(crate::rpc::reply::encode_reply(u64::MAX, Ok(w)).len() <= MESSAGE_BYTES_MAX);
        let reserve = Request::Reserve { table, owner: 1, configuration: 0, key, value, mine: vec![reference] };
        assert!(reserve.encode(u64::MAX).len() <= MESSAGE_BYTES_MAX);
    }
}
