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
//! A sequence is a table of the system table with one row, which is the counter, and with its definition in the table's
//! attributes; so it is known on every node, survives restarts and goes by DROP like any other. No statement reads or writes that
//! table. Numbers are unique over all nodes. On one node they come in order; other nodes give theirs from blocks of their own.
//! They are not given back by a rollback, and what is left of a block goes with its process: gaps.

mod call;
mod definition;
mod numbers;
mod text;

pub(crate) use call::{Asked, Call, bind, out_of_place};
pub(crate) use definition::{Owner, SequenceDef, SequenceInfo};
pub(crate) use numbers::{Numbers, Sequences, SessionNumbers};
pub(crate) use text::{Restart, in_order, restart};
