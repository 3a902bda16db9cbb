//! The starts of nodes that may use this node's regions: those that belong to the cluster's present configuration.
//!
//! A session shows that its node knows the secret. That does not suffice: a node that was expelled while it was cut off also
//! knows the secret, and a node that has started since then has never [fenced](super::fence) it. Therefore the keeper of the
//! cluster's configuration says here which starts belong to it. All others get no key, and none of their instructions is
//! executed.
//!
//! ```text
//!   named with this birth ──> member: everything        named with another birth ──> stranger: no session
//!   not named             ──> guest: messages alone, by which a node that starts asks to be let in
//! ```

use super::lock;
use crate::address::NodeId;
use crate::fabric::Admitted;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

/// What a start of a node may do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Member,
    Guest,
    Stranger,
}

/// See the module.
pub(super) struct Admission {
    /// Changes so far.
    changes: AtomicU64,
    latest: Mutex<(u64, Admitted)>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { changes: AtomicU64::new(0), latest: Mutex::new((0, Admitted::Everybody)) }
    }
}

impl Admission {
    /// See [`crate::Fabric::admit`].
    pub fn change(&self, number: u64, admitted: Admitted) {
        let mut latest = lock(&self.latest);
        if number >= latest.0 {
            *latest = (number, admitted);
            self.changes.fetch_add(1, Release);
        }
    }

    /// Grows with each change.
    pub fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    pub fn standing(&self, node: NodeId, birth: u64) -> Standing {
        match &lock(&self.latest).1 {
            Admitted::Everybody => Standing::Member,
            Admitted::Births(births) => match births.iter().find(|(named, _)| *named == node) {
                Some((_, named)) if *named == birth => Standing::Member,
                Some(_) => Standing::Stranger,
                None => Standing::Guest,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_numbers_count_and_births_tell_starts_apart() {
        let admission = Admission::default();
        let (one, two) = (NodeId(1), NodeId(2));
        assert_eq!(admission.standing(one, 5), Standing::Member);
        admission.change(3, Admitted::Births(vec![(one, 5)]));
        let of = |node, birth| admission.standing(node, birth);
        assert_eq!([of(one, 5), of(one, 6), of(two, 5)], [Standing::Member, Standing::Stranger, Standing::Guest]);
        let changes = admission.changes();
        admission.change(2, Admitted::Everybody);
        assert_eq!((of(two, 5), admission.changes()), (Standing::Guest, changes), "an older one that comes late");
    }
}
