//! The input and output of a connection, and waiting for them.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::Failure;
use super::socket::Socket;
use crate::engine::CancelHandle;
use crate::error::{SqlError, SqlState};
use crate::server::front_end::Stopping;
use crate::server::wire::Malformed;
use crate::server::wire::backend::Output;
use crate::server::wire::frontend;
use crate::server::wire::input::{Frame, Input};

/// Output is sent when this much is buffered, even if the client does not wait for it yet.
const FLUSH_BYTES: usize = 64 << 10;
/// The limit on input that is read ahead while a statement runs; reading ahead detects that the client has
/// disconnected.
const READ_AHEAD_BYTES_MAX: usize = 1 << 20;

/// A connection's socket and its two buffers.
pub struct Wire {
    /// The byte stream.
    pub socket: Socket,
    /// Received bytes that have not been processed.
    pub input: Input,
    /// Buffered output.
    pub output: Output,
    /// The size limit of a message.
    pub message_bytes_max: usize,
}

impl Wire {
    /// The next complete message.
    pub fn frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let bytes_max = self.message_bytes_max;
        self.input.frame(|tag| frontend::body_bytes_max(tag, bytes_max))
    }

    /// Sends the buffered output.
    pub async fn flush(&mut self) -> Result<(), Failure> {
        if !self.output.bytes().is_empty() {
            self.socket.write_all(self.output.bytes()).await.map_err(|_| Failure::Gone)?;
            self.socket.flush().await.map_err(|_| Failure::Gone)?;
            self.output.sent();
        }
        Ok(())
    }

    /// Sends the buffered output if there is much of it.
    pub async fn flush_if_full(&mut self) -> Result<(), Failure> {
        if self.output.bytes().len() >= FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Reads more input; it is a failure if the client has disconnected.
    pub async fn fill(&mut self) -> Result<(), Failure> {
        match self.input.fill(&mut self.socket).await {
            Ok(0) | Err(_) => Err(Failure::Gone),
            Ok(_) => Ok(()),
        }
    }

    /// Waits for the next complete message. Used for COPY data, which is not read ahead.
    pub async fn next_frame(&mut self, stopping: &Stopping) -> Result<Frame, Failure> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(frame);
            }
            self.flush().await?;
            tokio::select! {
                biased;
                filled = self.fill() => filled?,
                () = stopping.stopped() => return Err(Failure::shutdown()),
            }
        }
    }

    /// Runs a part of a statement, and meanwhile watches the client, the statement's deadline and the server's
    /// shutdown. To stop the statement early it sets `cancel`. The future itself always runs to its end, so that a
    /// commit is never interrupted.
    pub async fn drive<T>(&mut self, watch: &Watch<'_>, work: impl Future<Output = T>) -> Result<T, Failure> {
        watch.drive(Some((&mut self.input, &mut self.socket)), work).await
    }
}

impl Watch<'_> {
    /// As [`Wire::drive`]. Without `client`, a disconnect is noticed only after the work has ended.
    pub async fn drive<T>(
        &self,
        mut client: Option<(&mut Input, &mut Socket)>,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        // The deadline also applies to a statement of many parts that each complete at once.
        if self.deadline.is_some_and(|deadline| tokio::time::Instant::now() >= deadline) {
            self.cancel.time_out();
        }
        let mut work = pin!(work);
        // Most statements complete at the first poll; then no timers and no reads are set up.
        if let Poll::Ready(done) = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
            return Ok(done);
        }
        let mut deadline = pin!(sleep_until(self.deadline));
        let mut stopped = pin!(self.stopping.grace_is_over());
        let (mut timed_out, mut cancelled, mut gone) = (false, false, false);
        loop {
            let listen =
                client.as_ref().is_some_and(|(input, _)| !gone && input.pending().len() < READ_AHEAD_BYTES_MAX);
            tokio::select! {
                biased;
                done = work.as_mut() => return if gone { Err(Failure::Gone) } else { Ok(done) },
                () = deadline.as_mut(), if !timed_out => {
                    timed_out = true;
                    self.cancel.time_out();
                }
                () = stopped.as_mut(), if !cancelled => {
                    cancelled = true;
                    self.cancel.cancel();
                }
                filled = fill(&mut client), if listen => {
                    if !matches!(filled, Ok(1..)) {
                        gone = true;
                        self.cancel.cancel();
                    }
                }
            }
        }
    }
}

/// The events that end a statement early.
pub struct Watch<'a> {
    /// The flag that stops the statement.
    pub cancel: &'a CancelHandle,
    /// The statement's deadline.
    pub deadline: Option<tokio::time::Instant>,
    /// The server's shutdown.
    pub stopping: &'a Stopping,
}

async fn fill(client: &mut Option<(&mut Input, &mut Socket)>) -> std::io::Result<usize> {
    match client {
        Some((input, socket)) => input.fill(&mut **socket).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The deadline of a time span that starts now; `None` without a limit.
pub fn deadline_after(span: Option<Duration>) -> Option<tokio::time::Instant> {
    span.and_then(|span| tokio::time::Instant::now().checked_add(span))
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Fatal(SqlError::new(SqlState::PROTOCOL_VIOLATION, malformed.0))
    }
}
