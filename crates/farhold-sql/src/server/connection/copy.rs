//! COPY … FROM STDIN and COPY … TO STDOUT.

use tokio::time::Instant;

use super::{Connection, Failure, Watch};
use crate::engine::{CommandTag, CopyIn, CopyOut};
use crate::error::{SqlError, SqlState};
use crate::server::wire::frontend::{Message, message};
use crate::value::binary::utf8;

impl Connection {
    /// Receives the data of a COPY from the client. After a failure, the connection's main loop skips the remaining
    /// data.
    pub async fn copy_in(&mut self, mut copy: CopyIn, deadline: Option<Instant>) -> Result<CommandTag, Failure> {
        self.wire.output.copy_response(b'G', copy.columns);
        self.wire.flush().await?;
        loop {
            let frame = match self.copy_frame(deadline).await {
                // If it is stopped while it waits, it returns the borrowed transaction: a savepoint may restore it.
                Err(Failure::Statement(error)) => return Err(copy.fail(error).into()),
                frame => frame?,
            };
            let watch = Watch { cancel: &self.cancel, deadline, stopping: &self.front_end.stopping };
            match message(frame.tag, self.wire.input.body(&frame))? {
                // The data is borrowed from the input buffer, so nothing may be read meanwhile.
                Message::CopyData(data) => watch.drive(None, copy.push(data)).await??,
                Message::CopyDone => {
                    return Ok(self.wire.drive(&watch, Box::pin(copy.finish())).await??);
                }
                Message::CopyFail(reason) => {
                    return Err(match utf8(reason) {
                        Ok(reason) => copy.abort(reason).into(),
                        Err(error) => copy.fail(error).into(),
                    });
                }
                // PostgreSQL ignores these, because some clients send them anyway.
                Message::Flush | Message::Sync => {}
                Message::Terminate => return Err(Failure::Gone),
                _ => {
                    let message = format!("unexpected message type 0x{:02X} during COPY from stdin", frame.tag);
                    return Err(Failure::Fatal(SqlError::new(SqlState::PROTOCOL_VIOLATION, message)));
                }
            }
            self.wire.input.release();
        }
    }

    /// The next message. While the client sends nothing, the COPY may be cancelled or time out.
    async fn copy_frame(&mut self, deadline: Option<Instant>) -> Result<crate::server::wire::input::Frame, Failure> {
        // This check also stops a client that always has data ready.
        self.cancel.check()?;
        if let Some(frame) = self.wire.frame()? {
            return Ok(frame);
        }
        let cancel = self.cancel.clone();
        let timeout = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(cancel.error().into()),
            () = timeout => {
                cancel.time_out();
                Err(cancel.error().into())
            }
            frame = self.wire.next_frame(&self.front_end.stopping) => frame,
        }
    }

    /// Sends the data of a COPY to the client.
    pub async fn copy_out(&mut self, mut copy: CopyOut, deadline: Option<Instant>) -> Result<CommandTag, Failure> {
        self.wire.output.copy_response(b'H', copy.columns);
        loop {
            let watch = Watch { cancel: &self.cancel, deadline, stopping: &self.front_end.stopping };
            let chunk = self.wire.drive(&watch, copy.next()).await?;
            self.cancel.check()?;
            match chunk {
                None => break,
                Some(lines) => {
                    let lines = lines?;
                    // Clients expect one row per message.
                    let mut start = 0;
                    for &end in copy.line_ends() {
                        self.wire.output.copy_data(&lines[start..end]);
                        self.wire.flush_if_full().await?;
                        start = end;
                    }
                }
            }
        }
        self.wire.output.copy_done();
        Ok(copy.tag())
    }
}
