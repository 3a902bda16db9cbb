//! The home service: what a node does for transactions of other nodes.
//!
//! ```text
//!   a worker elsewhere ── call.rs ──► message ──► home inbox ──► any worker of the home (`Worker::poll`), or the agent
//!                  ◄───────────────── reply  ◄── its own inbox     service.rs
//! ```
//!
//! Whatever a request asks for is done at once, by the thread that found it, without waiting for anybody: so two nodes that
//! wait for each other's answers serve each other meanwhile. Requests that take long (filling an index) are begun, and asked
//! about later. An answer that does not fit its inbox is kept (`unsent.rs`); no answer to a living caller is dropped.

pub(crate) mod agent;
pub(crate) mod service;
