//! From one configuration to the next: what the dead have left is redone or undone, their rows find another node, and a
//! node that comes back gets what it needs.
//!
//! ```text
//!   lead.rs      freeze ─► drain ─► settle ─► install      (every member, led by one of them)
//!   answer.rs    what a member does for each of these
//!   promote.rs   the rows of a mirror become rows
//!   copy.rs      a new mirror gets the rows there are
//!   join.rs      a node comes (back)
//!   progress.rs  what of it is going on, for people
//! ```

mod answer;
mod copy;
mod join;
mod lead;
mod message;
mod progress;
mod promote;

pub(crate) use message::Message;
pub use progress::{Leading, Moving, Progress};
pub(crate) use promote::HELPERS_MAX;
