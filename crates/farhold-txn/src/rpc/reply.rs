//! What a node answers to a request: a body, or an error as a status and text.
//!
//! ```text
//!   'R' │ version │ status │ number u64 │ body or error
//! ```

use crate::base::error::TxnError;
use crate::base::table::Index;
use crate::base::wire::{GARBAGE, Reader, Writer};
use crate::rpc::message::VERSION;
use farhold_fabric::NodeId;
use farhold_store::TableId;
use farhold_store::row::RowError;

const REPLY: u8 = b'R';

/// A reply: `body` writes what the request asked for.
pub(crate) fn encode_reply(number: u64, outcome: Result<Writer, TxnError>) -> Vec<u8> {
    let mut w = Writer(Vec::with_capacity(64));
    w.u8(REPLY).u8(VERSION);
    match outcome {
        Ok(body) => {
            w.u8(0).u64(number);
            w.0.extend(body.0);
        }
        Err(error) => {
            let (status, text) = status_of(&error);
            w.u8(status).u64(number).bytes(text.as_bytes());
        }
    }
    w.0
}

/// The status of "the request was not executed, because too many answers to you wait to be sent: ask again".
pub(crate) const ASK_AGAIN: u8 = 12;

/// A reply with [`ASK_AGAIN`].
pub(crate) fn encode_ask_again(number: u64) -> Vec<u8> {
    let mut w = Writer::default();
    w.u8(REPLY).u8(VERSION).u8(ASK_AGAIN).u64(number).bytes(&[]);
    w.0
}

/// What came back: the body that the request asked for, or the status and the text of an error.
pub(crate) type Answer = Result<Vec<u8>, (u8, String)>;

/// The number of a reply, and its body or the error that its sender met.
pub(crate) fn decode_reply(bytes: &[u8]) -> Result<(u64, Answer), TxnError> {
    let mut r = Reader(bytes);
    if (r.u8()?, r.u8()?) != (REPLY, VERSION) {
        return Err(GARBAGE);
    }
    let (status, number) = (r.u8()?, r.u64()?);
    if status == 0 {
        return Ok((number, Ok(r.0.to_vec())));
    }
    let text = String::from_utf8_lossy(r.bytes()?).into_owned();
    r.end()?;
    Ok((number, Err((status, text))))
}

/// An error as a status and text. A new status only where the caller would act differently.
fn status_of(error: &TxnError) -> (u8, String) {
    match error {
        TxnError::Conflict => (1, String::new()),
        TxnError::SchemaChanged => (2, String::new()),
        TxnError::OutOfMemory { .. } => (3, String::new()),
        TxnError::NotFound { what } => (4, what.to_string()),
        TxnError::AlreadyExists { name } => (5, name.to_string()),
        TxnError::Row(error) => (6, error.to_string()),
        TxnError::TooLarge { what, bytes, bytes_max } => {
            (7, format!("{what}: {bytes} bytes, the limit is {bytes_max}"))
        }
        TxnError::DuplicateKey { table, index } => (8, format!("{} {}", table.0, index.number())),
        TxnError::TooMany { what, limit } => (9, format!("no more than {limit} {what}")),
        TxnError::Recovering { .. } => (11, String::new()),
        other => (10, other.to_string()),
    }
}

/// The error that a status means to the caller.
pub(crate) fn error_of(status: u8, text: String, node: NodeId) -> TxnError {
    match status {
        1 => TxnError::Conflict,
        2 => TxnError::SchemaChanged,
        3 => TxnError::OutOfMemory { node },
        4 => TxnError::NotFound { what: text.into() },
        5 => TxnError::AlreadyExists { name: text.into() },
        6 | 7 | 9 => TxnError::Row(RowError::InvalidSchema { reason: text }),
        8 => {
            let mut numbers = text.split(' ').map(|number| number.parse::<u32>().unwrap_or(0));
            let (table, index) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            TxnError::DuplicateKey { table: TableId(table), index: Index::from_number(index as u16) }
        }
        11 => TxnError::Recovering { node },
        _ => TxnError::Remote { node, reason: text.into() },
    }
}
