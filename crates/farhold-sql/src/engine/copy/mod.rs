//! COPY: many rows in or out, as lines of text.

mod columns;
mod format;
mod input;
mod output;
mod reader;

pub(crate) use columns::{csv_names, csv_types};
pub(crate) use format::{CopyFormat, plain_booleans};
pub use input::CopyIn;
pub(crate) use input::CopyTxn;
pub use output::CopyOut;
