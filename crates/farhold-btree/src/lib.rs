//! An ordered index for many threads. Its leaves carry versions, which transactions keep as stamps.
//!
//! ```text
//!                 [ inner: separators ]              version a node = lock + change count   version.rs
//!                /          |          \             the way down, root                     tree.rs
//!        [ inner ]      [ inner ]      [ inner ]     layout, moves in one node              node.rs, search.rs
//!        /   |   \                                   keys as words; long keys               key.rs, shape.rs, text.rs
//!   [leaf] [leaf] [leaf] ...                         insert and split                       insert.rs
//!     ^ versions handed out as `LeafStamp`s          remove and merge                       merge.rs
//!                                                    scans; stamps                          scan.rs, stamp.rs
//!                                                    node memory                            arena.rs
//! ```
//!
//! The idea: a B+-tree with optimistic lock coupling. Readers store nothing shared; they check versions. Writers lock one leaf,
//! and its parent when it splits or merges. The leaf's version serves a second purpose: a transaction keeps the versions of the
//! leaves that it has searched and asks at commit whether they are unchanged ([`OrderedIndex::validate`]). If they are, no key
//! has appeared in what it saw as empty (Silo, Tu et al., SOSP 2013, section 4.6).
//!
//! Invariants, each kept by the file named above:
//! - Every field that a reader may see changing is an atomic; what the reader loaded counts only if the version is unchanged.
//! - A version never comes back, and node memory stays node memory while the index lives.
//! - Every insert, removal, replacement, split and merge moves the version of every leaf whose keys it changes.
#![deny(missing_docs)]
#![warn(clippy::pedantic)]

mod arena;
mod counter;
mod frame;
mod index;
mod insert;
mod key;
mod lookup;
mod merge;
mod node;
mod rows;
mod scan;
mod search;
mod shape;
mod stamp;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod version;

pub use index::OrderedIndex;
pub use insert::Insert;
pub use lookup::Lookup;
pub use shape::KeyShape;
pub use stamp::{Change, Changes, LeafStamp};
