//! Who can be sent to: a channel's own name, and its peers by theirs.

use super::Channel;
use super::shim::{failure, farhold_forget, farhold_meet, farhold_name, reason};
use crate::error::FabricError;

const NAME_BYTES_MAX: usize = 256;
/// Peers of a channel that is never closed before unused ones are removed. libfabric's `shm` does not survive the removal of a
/// peer while something for that peer is under way: peers are removed only when the table, of 256, gets full.
const PEERS_MAX: usize = 200;

/// A destination, by libfabric's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::provider::libfabric) struct Peer(pub(super) u64);

#[cfg(test)]
impl Peer {
    /// For tests that send nothing.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

impl Channel {
    /// What peers must know to send here.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let (mut name, mut len) = (vec![0; NAME_BYTES_MAX], NAME_BYTES_MAX);
        // SAFETY: `name` has `len` bytes.
        let done = unsafe { farhold_name(self.open.raw.channel.as_ptr(), name.as_mut_ptr(), &raw mut len) };
        if done < 0 {
            return Err(failure(&self.open.traits.provider, "fi_getname", &reason(done.into())));
        }
        name.truncate(len);
        Ok(name)
    }

    /// Learns a peer by its name. No connection is made before the first frame.
    pub fn meet(&self, name: &[u8]) -> Result<Peer, FabricError> {
        if !self.is_never_closed() {
            return self.insert(name);
        }
        if let Some(known) = self.open.peers.borrow().get(name) {
            self.open.forgotten.borrow_mut().retain(|forgotten| forgotten != name);
            return Ok(*known);
        }
        if self.open.peers.borrow().len() >= PEERS_MAX {
            let oldest = self.open.forgotten.borrow_mut().pop_front();
            let peer = oldest.and_then(|name| self.open.peers.borrow_mut().remove(&name));
            if let Some(peer) = peer {
                self.remove(peer);
            }
        }
        let peer = self.insert(name)?;
        self.open.peers.borrow_mut().insert(name.to_vec(), peer);
        Ok(peer)
    }

    /// Ends the use of a peer.
    pub fn forget(&self, peer: Peer) {
        if !self.is_never_closed() {
            return self.remove(peer);
        }
        let peers = self.open.peers.borrow();
        let name = peers.iter().find(|(_, known)| **known == peer).map(|(name, _)| name.clone());
        self.open.forgotten.borrow_mut().extend(name);
    }

    fn insert(&self, name: &[u8]) -> Result<Peer, FabricError> {
        // Longer than any address format, zeroed behind the name: the provider reads as much as its format has.
        let mut padded = [0; NAME_BYTES_MAX];
        let len = name.len().min(NAME_BYTES_MAX - 1);
        padded[..len].copy_from_slice(&name[..len]);
        let mut peer = 0;
        // SAFETY: `padded` is longer than every address of every provider, and a terminated string if it is one.
        let done = unsafe { farhold_meet(self.open.raw.channel.as_ptr(), padded.as_ptr(), &raw mut peer) };
        if done < 0 {
            return Err(failure(&self.open.traits.provider, "fi_av_insert", &reason(done.into())));
        }
        Ok(Peer(peer))
    }

    fn remove(&self, peer: Peer) {
        // SAFETY: a peer that `insert` gave; one that is known no more is an error, not a danger.
        unsafe { farhold_forget(self.open.raw.channel.as_ptr(), peer.0) };
    }
}
