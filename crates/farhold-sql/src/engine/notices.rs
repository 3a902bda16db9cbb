//! The notices that a session sends besides the result of a statement.

use std::sync::{Arc, Mutex, PoisonError};

use crate::SqlError;

/// The notices of one session, the oldest first; its running queries share the list.
#[derive(Clone, Default)]
pub(crate) struct Notices(Arc<Mutex<Vec<SqlError>>>);

impl Notices {
    pub(crate) fn push(&self, notice: SqlError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
    }

    pub(crate) fn take(&self) -> Vec<SqlError> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
