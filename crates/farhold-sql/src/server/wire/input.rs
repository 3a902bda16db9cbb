//! The bytes received from a client and not yet consumed, divided into frames.
//!
//! ```text
//! bytes:  [ read | frame | frame | half a fr.. |        spare        ]
//!                ^start                        ^bytes.len()          ^capacity
//! ```
//! A frame is `tag:u8 length:i32 body`; the length includes its own four bytes. The buffer grows with the bytes
//! received, not with the length in a header, so a client cannot make the server allocate memory by sending a header.

use std::io;
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::Malformed;

/// The minimum number of bytes to read at once: one page, which holds dozens of point statements.
const READ_BYTES_MIN: usize = 4096;
/// Once empty, a buffer larger than this is freed.
const KEEP_BYTES_MAX: usize = 64 << 10;

/// The input of a connection.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
}

/// One message in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The tag of the message.
    pub tag: u8,
    body: Range<usize>,
}

impl Input {
    /// The bytes not yet consumed.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Consumes the first `count` bytes.
    pub fn take(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.bytes.len());
        self.release();
    }

    /// Frees the consumed bytes if nothing else is in the buffer.
    pub fn release(&mut self) {
        if self.start == self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEEP_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }

    /// Consumes the next complete frame. Its body can be read with [`body`](Self::body) until the next
    /// [`fill`](Self::fill).
    ///
    /// `length_max` returns the maximum body length for a tag, or rejects the tag.
    pub fn frame(
        &mut self,
        length_max: impl FnOnce(u8) -> Result<usize, Malformed>,
    ) -> Result<Option<Frame>, Malformed> {
        let Some((&tag, rest)) = self.pending().split_first() else { return Ok(None) };
        let length_max = length_max(tag)?;
        let Some(length) = rest.first_chunk().map(|bytes| i32::from_be_bytes(*bytes)) else { return Ok(None) };
        let Some(body_length) = usize::try_from(length).ok().and_then(|length| length.checked_sub(4)) else {
            return Err(Malformed("invalid message length"));
        };
        if body_length > length_max {
            return Err(Malformed("message too long"));
        }
        if rest.len() < 4 + body_length {
            return Ok(None);
        }
        let start = self.start + 5;
        // Not released: the body has yet to be read.
        self.start = start + body_length;
        Ok(Some(Frame { tag, body: start..start + body_length }))
    }

    /// The body of the frame consumed last.
    pub fn body(&self, frame: &Frame) -> &[u8] {
        &self.bytes[frame.body.clone()]
    }

    /// The tag of the next frame, if it has arrived.
    pub fn next_tag(&self) -> Option<u8> {
        self.pending().first().copied()
    }

    /// Reads more bytes from `stream`; returns 0 at its end. Frames consumed before become invalid. Cancellation-safe:
    /// no bytes are lost if the future is dropped.
    pub async fn fill<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> io::Result<usize> {
        self.release();
        if self.bytes.capacity() - self.bytes.len() < READ_BYTES_MIN {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.bytes.reserve(READ_BYTES_MIN);
        }
        stream.read_buf(&mut self.bytes).await
    }
}
