//! The bytes that a client has sent and nobody has read yet, cut into frames.
//!
//! ```text
//! bytes:  [ read | frame | frame | half a fr.. |        spare        ]
//!                ^start                        ^bytes.len()          ^capacity
//! ```
//! A frame is `tag:u8 length:i32 body`, the length counting itself. The buffer grows with what has arrived, never with what a
//! length promises, so a client cannot reserve memory by a header.

use std::io;
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::Malformed;

/// What a read asks for at least: one page, which holds some dozens of point statements.
const READ_BYTES_MIN: usize = 4096;
/// The buffer of a quiet connection is given back above this.
const KEEP_BYTES_MAX: usize = 64 << 10;

/// A connection's input.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
}

/// One message as it lies in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its first byte.
    pub tag: u8,
    body: Range<usize>,
}

impl Input {
    /// The bytes that nobody has taken.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Takes `count` bytes off the front.
    pub fn take(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.bytes.len());
        self.release();
    }

    /// The frame that was taken last is answered: its bytes may go.
    pub fn release(&mut self) {
        if self.start == self.bytes.len() {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEEP_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
    }

    /// Takes the next whole frame. Its body stays readable through [`body`](Self::body) until the next [`fill`](Self::fill).
    ///
    /// `length_max` gives the longest body that a tag may have, or refuses the tag.
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
        // Not released: the body is still to be read.
        self.start = start + body_length;
        Ok(Some(Frame { tag, body: start..start + body_length }))
    }

    /// The body of a frame that was just taken.
    pub fn body(&self, frame: &Frame) -> &[u8] {
        &self.bytes[frame.body.clone()]
    }

    /// The tag of the next frame, if its first byte has arrived.
    pub fn next_tag(&self) -> Option<u8> {
        self.pending().first().copied()
    }

    /// Reads more from `stream`; 0 is its end. Frames taken before are gone. Losing the future loses no byte.
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
