//! The PostgreSQL wire protocol, version 3.
//!
//! ```text
//!              acceptor (one thread)
//!        counts connections, picks the thread with the fewest
//!          |                |                 |
//!     front end 0      front end 1       front end n      one thread each: a current-thread runtime,
//!     Worker, LocalSet Worker, LocalSet  Worker, LocalSet a Worker, its connections' sessions
//!          |
//!     connection:  Input -> message -> Session (engine) -> Output -> one write when the input is used up
//! ```
//! A session never leaves its thread. A point statement runs on it from read to write without a thread switch. Slower
//! statements are futures on that thread, while the query threads do the work.
//!
//! Output is written when the client waits for it: after the last complete message received, if those included a Sync,
//! a Flush or a simple query. So a pipeline of a hundred statements costs one write.
//!
//! Cursors (`DECLARE`) and SQL's `PREPARE` belong to this module rather than to the engine, because they share their
//! names with the protocol's portals and prepared statements.

mod acceptor;
mod auth;
mod cancel;
mod config;
mod connection;
mod front_end;
mod openings;
mod rows;
mod tls;

mod wire;

pub use acceptor::{Server, ServerHandle};
pub use auth::{Users, UsersError, Verifier};
pub use config::{Authentication, Limits, ServerConfig, ServerError};
pub use tls::{Tls, TlsError};
