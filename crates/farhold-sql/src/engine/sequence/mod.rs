//! Sequences: `CREATE SEQUENCE`, `nextval`, serial and identity columns.
//!
//! ```text
//!   session     currval, lastval
//!      │
//!   engine      the node's block of numbers: one process gives them out in order
//!      │ empty
//!   counter     one fetch-and-add of a word in a row: the next block (`farhold_txn::RowCounter`)
//! ```
//!
//! A sequence is a table in the system table. Its single row is the counter, and its definition is in the table's
//! attributes. So every node has it, it survives restarts, and DROP works as for any table. No statement reads or
//! writes that table. Numbers are unique over all nodes. Each node returns its numbers in order, but from its own
//! blocks. A rollback does not return numbers, and the rest of a block is lost when its process ends: both leave gaps.

mod call;
mod definition;
mod numbers;
mod text;

pub(crate) use call::{Call, SequenceCall, bind, out_of_place};
pub(crate) use definition::{Owner, SequenceDef, SequenceInfo};
pub(crate) use numbers::{Numbers, Sequences, SessionNumbers};
pub(crate) use text::{Restart, in_order, restart};
