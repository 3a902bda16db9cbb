//! Bytes of messages: writing them, and reading them without trusting them.

use crate::base::error::TxnError;
use farhold_btree::{Change, LeafStamp};
use farhold_store::ObjectRef;
use farhold_store::index::hash::BucketStamp;
use std::ops::Bound;

/// The error for a message that no peer of this version sends.
pub(crate) const GARBAGE: TxnError = TxnError::Corrupt { what: "a message that is cut off or makes no sense" };

/// A message being written. All integers little-endian.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend(bytes);
        self
    }

    pub fn bound(&mut self, bound: Bound<&[u8]>) -> &mut Self {
        match bound {
            Bound::Unbounded => self.u8(0),
            Bound::Included(bytes) => self.u8(1).bytes(bytes),
            Bound::Excluded(bytes) => self.u8(2).bytes(bytes),
        }
    }

    pub fn reference(&mut self, reference: ObjectRef) -> &mut Self {
        self.u64(reference.to_bits())
    }

    pub fn leaf(&mut self, leaf: LeafStamp) -> &mut Self {
        self.u64(leaf.leaf).u64(leaf.version)
    }

    pub fn change(&mut self, change: &Change) -> &mut Self {
        self.leaf(change.before).leaf(change.after)
    }

    pub fn bucket(&mut self, bucket: BucketStamp) -> &mut Self {
        self.u64(bucket.offset).u64(bucket.word)
    }

    /// A list with its length in front.
    pub fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
        for item in items {
            write(self, item);
        }
        self
    }
}

/// [`Reader::flag`], for answers that are one.
pub(crate) fn read_flag(r: &mut Reader<'_>) -> Result<bool, TxnError> {
    r.flag()
}

/// [`Reader::u64`], for answers that are one.
pub(crate) fn read_u64(r: &mut Reader<'_>) -> Result<u64, TxnError> {
    r.u64()
}

/// A message being read. Every method fails rather than read past the end, and no length is trusted before the bytes are
/// there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], TxnError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(GARBAGE)?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, TxnError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn flag(&mut self) -> Result<bool, TxnError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(GARBAGE),
        }
    }

    pub fn u16(&mut self) -> Result<u16, TxnError> {
        self.take().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, TxnError> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, TxnError> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], TxnError> {
        let len = self.u32()? as usize;
        let (head, tail) = self.0.split_at_checked(len).ok_or(GARBAGE)?;
        self.0 = tail;
        Ok(head)
    }

    pub fn bound(&mut self) -> Result<Bound<&'a [u8]>, TxnError> {
        match self.u8()? {
            0 => Ok(Bound::Unbounded),
            1 => self.bytes().map(Bound::Included),
            2 => self.bytes().map(Bound::Excluded),
            _ => Err(GARBAGE),
        }
    }

    pub fn reference(&mut self) -> Result<ObjectRef, TxnError> {
        let bits = self.u64()?;
        if bits & !ObjectRef::BITS == 0 { Ok(ObjectRef::from_bits(bits)) } else { Err(GARBAGE) }
    }

    pub fn leaf(&mut self) -> Result<LeafStamp, TxnError> {
        Ok(LeafStamp { leaf: self.u64()?, version: self.u64()? })
    }

    pub fn change(&mut self) -> Result<Change, TxnError> {
        Ok(Change { before: self.leaf()?, after: self.leaf()? })
    }

    pub fn bucket(&mut self) -> Result<BucketStamp, TxnError> {
        Ok(BucketStamp { offset: self.u64()?, word: self.u64()? })
    }

    /// A list with its length in front. An item takes a byte at least, so a length above the rest of the message is
    /// invalid.
    pub fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, TxnError>) -> Result<Vec<T>, TxnError> {
        let count = self.u32()? as usize;
        if count > self.0.len() {
            return Err(GARBAGE);
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), TxnError> {
        if self.0.is_empty() { Ok(()) } else { Err(GARBAGE) }
    }
}
