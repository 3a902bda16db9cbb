//! Messages to other nodes' home services, and answers.
//!
//! ```text
//!   a worker elsewhere ── line.rs ──► message ──► home inbox ──► any worker of the home, or its agent (`home/`)
//!                  ◄───────────────── reply  ◄── its own inbox
//! ```

pub(crate) mod line;
pub(crate) mod message;
pub(crate) mod recovery;
pub(crate) mod reply;
