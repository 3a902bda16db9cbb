//! The messages of PostgreSQL's wire protocol.
//!
//! Messages from the client borrow from the input buffer ([`frontend`]), and messages to the client are written
//! directly to the output buffer ([`backend`]): a point statement needs no heap allocation for the protocol. The tests
//! compare with the codec of `pgwire`, which allocates every string of every message.
//!
//! ```text
//! socket -> Input (frames) -> frontend::Message -> connection -> backend::Output -> socket
//! ```

pub mod backend;
pub mod frontend;
pub mod input;
pub mod startup;

#[cfg(test)]
mod tests;

use std::fmt;

/// An invalid message of a client. It ends the connection, since the start of the next message is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A reader for the fields of a message body.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// The bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(Malformed("insufficient data left in message"))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed("insufficient data left in message"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A count of two bytes; unsigned, as in PostgreSQL.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        self.array().map(u16::from_be_bytes).map(usize::from)
    }

    /// Four bytes.
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    /// Four bytes, unsigned.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A null-terminated string.
    pub fn c_string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed("invalid string in message"))?;
        let (head, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(head)
    }

    /// A value: its length in four bytes and its bytes. A length of -1 means NULL.
    pub fn value(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| Malformed("negative length of a value"))?;
                self.bytes(length).map(Some)
            }
        }
    }

    /// Fails if bytes are left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("invalid message format")) }
    }
}
