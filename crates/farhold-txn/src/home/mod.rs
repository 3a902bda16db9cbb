//! The home service: what a node does for transactions of other nodes.
//!
//! ```text
//!   a worker elsewhere ── rpc/line ──► message ──► home inbox ──► any worker of the home (`Worker::poll`), or the agent
//!                  ◄───────────────── reply  ◄── its own inbox     service.rs
//! ```
//!
//! The thread that finds a request answers it at once and waits for nothing, so two nodes that wait for each other's
//! answers serve each other meanwhile. A request that takes long (filling an index) is begun, and the caller asks about
//! it later. An answer that does not fit its inbox is kept (`node/unsent.rs`); no answer to a living caller is dropped.

pub(crate) mod agent;
pub(crate) mod service;
