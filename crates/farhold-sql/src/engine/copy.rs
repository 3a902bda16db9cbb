//! COPY … FROM STDIN.

use super::CommandTag;
use crate::SqlError;

/// A COPY … FROM STDIN that waits for data.
pub struct CopyIn {
    /// How many columns a line has.
    pub columns: usize,
}

impl CopyIn {
    /// Takes the next bytes, cut anywhere.
    ///
    /// # Errors
    /// A malformed line, a violated constraint; the COPY has failed then and the transaction with it.
    #[allow(clippy::unused_async)]
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), SqlError> {
        let _ = bytes;
        Err(SqlError::unsupported("COPY"))
    }

    /// All data is there.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[allow(clippy::unused_async)]
    pub async fn finish(self) -> Result<CommandTag, SqlError> {
        Err(SqlError::unsupported("COPY"))
    }

    /// The client gives up: nothing of the COPY stays.
    #[allow(clippy::unused_async)]
    pub async fn abort(self, message: &str) -> SqlError {
        SqlError::cancelled(format!("COPY from stdin failed: {message}"))
    }
}
