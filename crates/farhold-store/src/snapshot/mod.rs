//! Reading at an epoch while other transactions write.
//!
//! Taking a snapshot announces it and raises the epoch from S to S + 1. The snapshot is the state made by all commits of epochs
//! up to S. A writer reads the epoch *while it holds all its locks*. So:
//!
//! - A row that the reader meets unlocked has no writer under way that could still commit at S or before: a writer that locks it
//!   later reads S + 1 at least. The reader waits for a locked row (the caller decides how: [`Blocked`]).
//! - If a row has a version newer than S, a writer has overwritten it that found the snapshot open, and saved the state before it
//!   first ([`TableStore::save_undo`]). The reader follows the links:
//!
//! ```text
//!   row: version epoch 9, prev ──▶ undo: state of epoch 7, prev ──▶ undo: state of epoch 4, prev = 0
//!                                        ▲ S = 8 reads this               ▲ S = 4..6;  S < 4: the row was not there
//! ```
//!
//! - A deleted row stays, `ABSENT` at the epoch of the delete, with its undo, until no snapshot is older than that. A row that
//!   moved is a deleted one and a new one, each judged by itself.
//! - Undo copies, and slots of deleted rows, are freed when no open snapshot is below the epoch that ended them
//!   (`garbage.rs`). A chain is cut only behind what any open snapshot may read.
//! - Nor is a slot freed while its row is copied for a commit of another node, which may have given the row up (`undo.rs`).

mod garbage;
mod open;
mod read;
mod undo;

pub(crate) use garbage::Garbage;
pub use open::Snapshot;
pub use read::{Blocked, RowAt, RunScan, Visit, read_at};
pub(crate) use undo::Copied;

#[allow(unused_imports, reason = "named in the text above")]
use crate::table::TableStore;
