//! COPY: many rows in, or out, as lines of text.

mod format;
mod input;
mod output;
mod reader;

pub(crate) use format::{CopyFormat, plain_booleans};
pub use input::CopyIn;
pub(crate) use input::CopyTxn;
pub use output::CopyOut;
