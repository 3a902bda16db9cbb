//! PostgreSQL's messages: what the bytes between a client and a server mean.
//!
//! Messages from the client are borrowed from the input buffer ([`frontend`]), messages to it are written straight into the output
//! buffer ([`backend`]): a point statement moves no byte of the protocol through the heap. `pgwire`'s codec, which owns every string
//! of every message, is the oracle of the tests here.
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

/// Why the bytes of a client are no message. It ends the connection: after it nobody knows where the next message begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Reads the fields of one message body.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// The bytes that are left.
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

    /// A count of two bytes; PostgreSQL reads them unsigned.
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

    /// A string up to its zero byte.
    pub fn c_string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed("invalid string in message"))?;
        let (head, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(head)
    }

    /// A length of four bytes and so many bytes; -1 is null.
    pub fn value(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| Malformed("negative length of a value"))?;
                self.bytes(length).map(Some)
            }
        }
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("invalid message format")) }
    }
}
