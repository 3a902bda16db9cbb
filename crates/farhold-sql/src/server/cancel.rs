//! `CancelRequest`: a separate connection asks to stop the statement of another one, possibly on another thread.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use super::auth::{is_same_secret, random};
use crate::engine::CancelHandle;

/// A key of protocol 3.0 has four bytes; those of later versions may be longer.
const SHORT_SECRET_BYTES: usize = 4;
const LONG_SECRET_BYTES: usize = 32;

/// The sessions that can be cancelled.
#[derive(Debug, Default)]
pub struct CancelRegistry {
    sessions: Mutex<HashMap<i32, Registered>>,
}

#[derive(Debug)]
struct Registered {
    secret: Vec<u8>,
    handle: CancelHandle,
}

/// One session's entry in the registry; dropping it removes the entry.
#[derive(Debug)]
pub struct Registration {
    registry: Arc<CancelRegistry>,
    /// The process id that the client sees.
    pub process: i32,
    /// The secret that proves that a request comes from the client.
    pub secret: Vec<u8>,
}

impl CancelRegistry {
    /// Registers a session.
    pub fn register(self: &Arc<Self>, handle: CancelHandle, minor_version: u16) -> Registration {
        let mut secret = random::<LONG_SECRET_BYTES>().to_vec();
        if minor_version < 2 {
            secret.truncate(SHORT_SECRET_BYTES);
        }
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        // Positive, like a process id, and not zero.
        let mut process = i32::from_ne_bytes(random()) & i32::MAX;
        loop {
            match sessions.entry(process.max(1)) {
                Entry::Vacant(vacant) => {
                    process = *vacant.key();
                    vacant.insert(Registered { secret: secret.clone(), handle });
                    break;
                }
                Entry::Occupied(_) => process = process.wrapping_add(1) & i32::MAX,
            }
        }
        drop(sessions);
        Registration { registry: Arc::clone(self), process, secret }
    }

    /// Stops the statement of `process`, if `secret` matches.
    pub fn cancel(&self, process: i32, secret: &[u8]) {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registered) = sessions.get(&process)
            && is_same_secret(&registered.secret, secret)
        {
            registered.handle.cancel();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.process);
    }
}
