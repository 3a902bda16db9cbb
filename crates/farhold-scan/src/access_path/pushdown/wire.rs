//! Bytes of messages: written, and read with every length checked.

/// Why bytes are not a message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// They end too early.
    #[error("it ends before {0}")]
    Short(&'static str),
    /// A code has no meaning.
    #[error("it has {number} as {what}")]
    Unknown {
        /// What it should stand for.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// Two numbers contradict each other, or one is out of range.
    #[error("{0}")]
    Wrong(&'static str),
    /// There are bytes behind the end.
    #[error("{0} bytes follow its end")]
    Long(usize),
}

/// A reader of bytes, from the front.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(WireError::Short(what))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(WireError::Short(what))?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn i128(&mut self, what: &'static str) -> Result<i128, WireError> {
        self.array(what).map(i128::from_le_bytes)
    }

    /// Bytes with their length in front.
    pub(super) fn counted(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let len = self.u32(what)? as usize;
        self.bytes(len, what)
    }

    /// The number of items of at least `bytes_min` bytes that follow: never more than there are bytes for.
    pub(super) fn count(&mut self, bytes_min: usize, what: &'static str) -> Result<usize, WireError> {
        let count = usize::from(self.u16(what)?);
        if count * bytes_min <= self.rest.len() { Ok(count) } else { Err(WireError::Short(what)) }
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn end(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Long(self.rest.len())) }
    }
}

/// Appends bytes with their length in front.
pub(super) fn put_counted(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}
