//! A session: one worker's endpoint, as the home agent knows it.
//!
//! ```text
//!   HELLO ──> Entering ──PROOF──> Live ──BYE, lost frame, younger start of its node──> gone
//!     │           └──time──> gone
//!     └──refused──> Leaving ──time──> gone
//! ```
//!
//! A session that is live has proved that it knows the secret.

use super::lanes::Lane;
use crate::address::NodeId;
use crate::provider::libfabric::Shared;
use crate::provider::libfabric::admission::Standing;
use crate::provider::libfabric::channel::Peer;
use crate::provider::libfabric::frame::Assembly;
use crate::provider::libfabric::secret::Nonce;
use std::collections::BTreeMap;

/// Bit of the tags of frames to peers without a valid proof.
pub(super) const STRANGER: u64 = 1 << 31;
/// How long a session that is not live is kept.
pub(super) const STRANGER_NS_MAX: u64 = 2_000_000_000;

pub(super) struct Session {
    pub(super) state: State,
    /// Distinguishes this session from earlier sessions in its place, whose frames may still be under way.
    pub(super) count: u32,
    /// The worker's libfabric address, and the channel's number for it.
    pub(super) name: Vec<u8>,
    pub(super) peer: Peer,
    /// Whether it has proved that it knows the secret. Only then the other fields are true.
    pub(super) is_known: bool,
    pub(super) node: NodeId,
    /// Its node's count of starts.
    pub(super) incarnation: u64,
    pub(super) birth: u64,
    /// Its standing, and the count of changes of admission at that time.
    pub(super) standing: (u64, Standing),
    pub(super) token: u64,
    /// The lanes, by numbers that are never used twice: a message under way to a closed lane reaches no other.
    pub(super) lanes: BTreeMap<u64, Lane>,
    pub(super) lanes_opened: u64,
    pub(super) request: Assembly,
}

pub(super) enum State {
    /// Has to prove that it knows the secret, by then.
    Entering {
        until_ns: u64,
        worker_nonce: Nonce,
        home_nonce: Nonce,
    },
    Live,
    /// Was refused; known until its refusal is surely sent.
    Leaving {
        until_ns: u64,
    },
}

impl Session {
    /// The tag of its frames.
    pub(super) fn tag(&self, index: usize) -> u64 {
        u64::from(self.count) << 32 | index as u64 | if self.is_known { 0 } else { STRANGER }
    }

    /// What it may do now.
    pub(super) fn standing(&mut self, shared: &Shared) -> Standing {
        let changes = shared.admission.changes();
        if self.standing.0 != changes {
            self.standing = (changes, shared.admission.standing(self.node, self.birth));
        }
        self.standing.1
    }

    pub(super) fn is_live_of(&self, node: NodeId) -> bool {
        matches!(self.state, State::Live) && self.node == node
    }
}
