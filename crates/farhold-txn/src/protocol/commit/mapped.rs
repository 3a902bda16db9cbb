//! The commit of a transaction whose rows are all on this node and have copies on others, where this process has mapped the rings of
//! all holders. Synchronous: a record that is stored where its readers look is there, so there is nothing to wait for.
//!
//! ```text
//!   prepare ─► room in the rings ─► latch ─► epoch ─► validate ─► may I? ─► rows v|ODD, unlatch ─► bodies ─► marks ─► rows v
//! ```
//!
//! The order is `distributed.rs`'s, and so is the reason for it (`docs/design/0004-replication.md`). A ring without
//! room, or an odd row among those read, could make this commit wait. It is found before anything is locked, and sends
//! the transaction there.

use crate::base::error::TxnError;
use crate::base::planted::{next_serial, set_unknown};
use crate::cluster::view::{Moment, Passed};
use crate::protocol::commit::near::before_write;
use crate::protocol::commit::section::{Near, latch, settle, validate, write};
use crate::protocol::core::Core;
use crate::protocol::txn::{CommitInfo, Txn};
use crate::replication::mapped::MappedRings;
use crate::replication::{Replication, Writers};
use farhold_fabric::Version;

/// How often a row that another thread is about to make even is looked at: some 4 µs on Zen 3, several times what a record takes.
const SETTLING_LOOKS_MAX: u32 = 128;

impl Txn {
    /// Commits it, or leaves everything as it was. `None`: this commit cannot go this way, and nothing has happened.
    #[inline]
    pub(crate) fn commit_mapped(&mut self) -> Option<Result<CommitInfo, TxnError>> {
        let core = self.core.clone();
        if !self.odd_rows_settle(&core) {
            return None;
        }
        let replication = core.node.replication.as_deref()?;
        if self.state.writes == 0 {
            return Some(self.commit_mapped_reads(&core, replication));
        }
        if !core.endpoint.maps_others() {
            return None;
        }
        let mut rings = core.rings.borrow_mut();
        if !rings.is_of(self.indexes_version)
            && !rings.find(
                &core.endpoint,
                (core.me, core.slot.number()),
                replication,
                &core.node.catalog,
                self.indexes_version,
                &|node, region| core.look_again(node, region),
            )
        {
            return None;
        }
        if let Err(error) = self.prepare() {
            return Some(Err(error));
        }
        self.order_writes();
        let mut writers = match replication.writers(core.slot.number()) {
            Ok(writers) => writers,
            Err(error) => return Some(Err(error)),
        };
        if !rings.have_room(replication, &mut writers, self.record_bytes()) {
            return None;
        }
        Some(self.write_mapped(&core, replication, &mut rings, &mut writers))
    }

    /// Have the rows that were read odd become even? Their writers are other threads, about to store their records.
    #[inline]
    fn odd_rows_settle(&mut self, core: &Core) -> bool {
        self.state.rows.iter_mut().filter(|row| row.version.is_odd()).all(|row| {
            let object = core.node.store.object(row.ident.reference());
            let even = row.version.without(Version::ODD);
            for _ in 0..SETTLING_LOOKS_MAX {
                if object.version() != row.version {
                    row.version = even;
                    return true;
                }
                std::hint::spin_loop();
            }
            false
        })
    }

    fn commit_mapped_reads(&mut self, core: &Core, replication: &Replication) -> Result<CommitInfo, TxnError> {
        self.serial = next_serial();
        let near = self.all_near(core, 0);
        validate(&near).map_err(|refused| self.refused(refused))?;
        let is_current = core.node.catalog.indexes_version() == self.indexes_version;
        if !replication.view.is_settled(Moment::now(&core.handle)) || !is_current {
            return Err(TxnError::Recovering { node: core.me });
        }
        self.tidy_up(0);
        Ok(CommitInfo { serial: self.serial, ..CommitInfo::default() })
    }

    /// All from the first latch on; there is room in the rings.
    fn write_mapped(
        &mut self,
        core: &Core,
        replication: &Replication,
        rings: &mut MappedRings,
        writers: &mut Writers,
    ) -> Result<CommitInfo, TxnError> {
        let near = self.all_near(core, 0);
        latch::lock(&near).map_err(|refused| self.refused(refused))?;
        let serial = next_serial();
        let reached = self.reach_mapped(core, replication, rings, &near);
        let (epoch, admitted) = reached.inspect_err(|_| latch::unlock(&near))?;
        // The commit point.
        let odd = self.all_near(core, Version::ODD);
        let optimistic = replication.config.optimistic;
        if optimistic {
            if planted!(UnlockedBeforeWritten) {
                latch::unlock(&odd);
            }
            write(&odd, epoch);
            latch::unlock(&odd);
        }
        let mut record = core.record.borrow_mut();
        self.make_record(&mut record, rings.configuration(), epoch);
        rings.write(writers, &mut record);
        drop(record);
        drop(admitted);
        if replication.view.is_gone() {
            // Expelled meanwhile: others decide. Near rows stay as they are, and none of this node's transactions commits.
            set_unknown(serial, epoch);
            return Err(TxnError::OutcomeUnknown);
        }
        let near = self.all_near(core, 0);
        if optimistic {
            settle(&near, epoch);
        } else {
            write(&near, epoch);
            latch::unlock(&near);
        }
        self.tidy_up(epoch);
        Ok(CommitInfo { epoch, rows_written: self.state.writes, serial })
    }

    /// From the latches to the commit point.
    fn reach_mapped<'v>(
        &self,
        core: &Core,
        replication: &'v Replication,
        rings: &MappedRings,
        near: &Near<'_>,
    ) -> Result<(u32, Passed<'v>), TxnError> {
        let epoch = rings.epoch();
        replication.view.saw_epoch(epoch);
        validate(near).map_err(|refused| self.refused(refused))?;
        // The lease is not looked at: mapped memory cannot be revoked, so fencing kills the process, and what it marks
        // until then counts. Reading the clock would take a twentieth of the commit's time.
        let is_current = || core.node.catalog.indexes_version() == self.indexes_version;
        let admitted = replication.view.pass(core.slot.number(), || !replication.view.is_frozen() && is_current());
        let admitted = admitted.ok_or(TxnError::Recovering { node: core.me })?;
        before_write(core, near, self.indexes_version, epoch).map_err(|refused| self.refused(refused))?;
        Ok((epoch, admitted))
    }
}
