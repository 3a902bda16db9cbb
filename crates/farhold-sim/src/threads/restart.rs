//! Clusters that start again from the journals of one that ended in order, or whose power was cut at some moment.
//!
//! After an orderly end everything is there: the reads of the new cluster go into the history. After a cut, the state
//! must be what the transactions up to some epoch have left, including all that had been acknowledged before the cut.

use super::bank::Bank;
use super::{Cluster, Setup, tables};
use crate::history::{History, Key, Record, Saw};
use crate::workload::{Client, Recorder};
use farhold_store::durable::files::Directory;
use farhold_store::durable::power::Volatile;
use farhold_txn::Worker;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The content of a disk when its power failed.
pub(super) struct Cut {
    /// By the history's clock, a moment before: what had been acknowledged by then is there.
    pub at: u64,
    pub disk: Volatile,
}

/// Starts a cluster on this disk, and looks at everything that is there. The recorder records reads of the clients' tables.
///
/// # Panics
/// If it cannot be started.
fn look(setup: &Setup, disk: &Arc<dyn Directory>, recorder: Recorder) -> Recorder {
    let setup = &Setup { planted: None, shaken: false, ..setup.clone() };
    let cluster = Cluster::start_on(setup, Some(disk));
    let recorder = Rc::new(RefCell::new(recorder));
    cluster.on_one(async |worker: Worker| {
        Client::new(usize::MAX, &worker, &setup.workload, recorder.clone()).look_at_everything().await;
        let bank = Bank::of(&worker).look_now().await;
        let coming = tables::look_now(&worker).await;
        let wrong = [bank, coming].into_iter().filter_map(Result::err).map(|what| format!("after a restart: {what}"));
        recorder.borrow_mut().broken.extend(wrong);
    });
    let left = cluster.left_behind();
    let mut recorder = recorder.take();
    recorder.broken.extend(left.into_iter().map(|what| format!("after a restart: left behind: {what}")));
    recorder
}

/// After an orderly end: what is read goes into the history; what is wrong, in words.
pub(super) fn after_an_end(
    setup: &Setup,
    disk: &Arc<dyn Directory>,
    history: &mut History,
    recorder: Recorder,
) -> Vec<String> {
    let found = look(setup, disk, recorder);
    history.records.extend(found.history.records);
    found.broken
}

/// After a cut: what is wrong, in words.
pub(super) fn after_a_cut(setup: &Setup, cut: &Cut, history: &History, recorder: Recorder) -> Vec<String> {
    let disk: Arc<dyn Directory> = Arc::new(cut.disk.clone());
    let found = look(setup, &disk, recorder);
    let reads = found.history.records.iter().filter(|record| record.snapshot.is_none()).flat_map(|it| &it.reads);
    let rows: BTreeMap<Key, Saw> = reads.map(|read| (read.key, read.saw)).collect();
    let mut broken = found.broken;
    if let Err(what) = is_a_state(&rows, history, cut.at) {
        broken.push(what);
    }
    broken
}

/// Are these rows what the transactions up to some epoch have left, with all that were acknowledged before `at`?
fn is_a_state(rows: &BTreeMap<Key, Saw>, history: &History, at: u64) -> Result<(), String> {
    let mut writers: Vec<&Record> = history.records.iter().filter(|record| !record.writes.is_empty()).collect();
    writers.sort_by_key(|record| (record.epoch, record.serial));
    let acknowledged = writers.iter().filter(|record| record.ended < at).map(|record| record.epoch).max().unwrap_or(0);
    let mut state: BTreeMap<Key, Saw> = history.initial.iter().map(|(key, _)| (*key, Saw::Initial)).collect();
    let mut nearest = None;
    let mut epochs = writers.chunk_by(|one, other| one.epoch == other.epoch).peekable();
    loop {
        let is_late_enough = epochs.peek().is_none_or(|next| next[0].epoch > acknowledged);
        if is_late_enough {
            if state == *rows {
                return Ok(());
            }
            let differs = |key: &&Key| state.get(key) != rows.get(key);
            let keys = rows.keys().chain(state.keys().filter(|key| !rows.contains_key(key)));
            let wrong: Vec<String> = keys
                .filter(differs)
                .map(|key| format!("{key} is {:?}, not {:?}", rows.get(key), state.get(key)))
                .collect();
            if nearest.as_ref().is_none_or(|nearest: &Vec<String>| wrong.len() < nearest.len()) {
                nearest = Some(wrong);
            }
        }
        let Some(epoch) = epochs.next() else { break };
        for write in epoch.iter().flat_map(|record| record.writes.iter().map(move |write| (record.id, write))) {
            match write {
                (id, write) if write.row.is_some() => state.insert(write.key, Saw::By(id)),
                (_, write) => state.remove(&write.key),
            };
        }
    }
    Err(format!(
        "after a cut of the power: no state of epoch {acknowledged} or later; the nearest one differs in {}",
        nearest.unwrap_or_default().join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Write;

    const KEY: Key = Key { table: 1, key: 7 };

    fn writer(id: u64, epoch: u32, ended: u64, row: Option<i64>) -> Record {
        Record { id, serial: id, epoch, ended, writes: vec![Write { key: KEY, row }], ..Record::default() }
    }

    /// A row has three writers; the first was acknowledged before the cut.
    #[test]
    fn a_cut_keeps_what_was_acknowledged_and_a_beginning_of_the_rest() {
        let history = History {
            initial: vec![(KEY, 0)],
            records: vec![writer(1, 5, 10, Some(1)), writer(2, 6, 20, None), writer(3, 7, 30, Some(3))],
            ..History::default()
        };
        let found = |saw: Option<Saw>| is_a_state(&saw.map(|saw| (KEY, saw)).into_iter().collect(), &history, 15);
        assert_eq!(found(Some(Saw::By(1))), Ok(()));
        assert_eq!(found(None), Ok(()), "the second one as well");
        assert_eq!(found(Some(Saw::By(3))), Ok(()));
        assert!(found(Some(Saw::Initial)).is_err(), "the first one is lost");
        assert!(found(Some(Saw::By(4))).is_err(), "nobody wrote it");
    }
}
