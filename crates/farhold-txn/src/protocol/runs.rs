//! Runs of pages, as nodes name them to each other for scans.

use crate::base::error::TxnError;
use crate::base::wire::{GARBAGE, Reader, Writer};
use crate::node::parts::Part;
use farhold_fabric::RegionMemory;
use farhold_store::object::size_class::{self, SizeClass};
use farhold_store::slab::{PageKind, Run};
use farhold_store::{Meta, Object, TableId};

/// The number of slots of a run without the free slots at its end. A transaction that takes one of the free slots from
/// now on reads its commit's epoch later, so a snapshot that is already open does not contain the row.
pub(super) fn used_slots(memory: &RegionMemory, run: &Run) -> u32 {
    let free = run.slots().rev().take_while(|offset| Object::at(memory, *offset).meta().state() == Meta::FREE);
    run.slot_count() - free.count() as u32
}

/// The start count of the node that has noted a snapshot.
pub(super) fn read_incarnation(r: &mut Reader<'_>) -> Result<u16, TxnError> {
    r.u16()
}

/// Runs of pages of another node, each with the slots to look at.
pub(crate) fn read_runs(r: &mut Reader<'_>) -> Result<Vec<Part>, TxnError> {
    r.list(|r| {
        let (page, pages, table, class, slots) = (r.u32()?, r.u32()?, TableId(r.u32()?), r.u8()?, r.u32()?);
        if usize::from(class) >= size_class::COUNT {
            return Err(GARBAGE);
        }
        Ok(Part { run: Run { page, pages, table, class: SizeClass(class), kind: PageKind::Slots }, slots })
    })
}

/// Most runs in one answer to [`Request::Pages`]: 42 KiB of the 64 that a message carries.
pub(crate) const RUNS_MAX: usize = 2048;

/// The runs from a page on, in the order of their pages, as many as an answer takes.
pub(crate) fn first_runs(mut runs: Vec<Run>, from_page: u32) -> Vec<Run> {
    runs.retain(|run| run.page >= from_page);
    runs.sort_unstable_by_key(|run| run.page);
    runs.truncate(RUNS_MAX);
    runs
}

/// The answer to [`Request::Pages`], by this start of the node that has them in `memory`.
pub(crate) fn write_runs(memory: &RegionMemory, incarnation: u16, runs: &[Run], w: &mut Writer) {
    w.u16(incarnation).list(runs, |w, run| put_run(w, run, used_slots(memory, run)));
}

fn put_run(w: &mut Writer, run: &Run, used_slots: u32) {
    w.u32(run.page).u32(run.pages).u32(run.table.0).u8(run.class.0).u32(used_slots);
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::provider::MESSAGE_BYTES_MAX;

    /// A table of a gigabyte has more runs than a message carries: asked for part by part all come, once and in order, and each part fits.
    #[test]
    fn runs_come_in_as_many_answers_as_it_takes() {
        let run = |page: u32| Run { page, pages: 2, table: TableId(7), class: SizeClass(0), kind: PageKind::Slots };
        // Not in order, as tables grow.
        let all: Vec<Run> = (0..5 * RUNS_MAX as u32 / 2).rev().map(|number| run(3 * number + 1)).collect();
        let (mut got, mut from_page, mut answers) = (Vec::new(), 0, 0);
        loop {
            let first = first_runs(all.clone(), from_page);
            let mut w = Writer::default();
            w.list(&first, |w, run| put_run(w, run, 0));
            assert!(w.0.len() + 64 < MESSAGE_BYTES_MAX, "{} bytes", w.0.len());
            let parts = read_runs(&mut Reader(&w.0)).unwrap();
            answers += 1;
            got.extend(parts.iter().map(|part| part.run.page));
            let Some(last) = parts.last().filter(|_| parts.len() == RUNS_MAX) else { break };
            from_page = last.run.page + last.run.pages;
        }
        assert_eq!(answers, 3);
        assert_eq!(got, (0..5 * RUNS_MAX as u32 / 2).map(|number| 3 * number + 1).collect::<Vec<_>>());
    }
}
