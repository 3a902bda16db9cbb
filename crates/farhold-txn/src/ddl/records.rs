//! The records of tables, where each node's copy outlives the process that was writing all of them.
//!
//! Without replicas, a coordinator that dies in the middle of a commit leaves some copies written and others not. A node that dies in
//! the middle misses what the others have. These rules make the copies of a record alike again; they need no order of what has
//! happened:
//!
//! | copies of a record | all become |
//! |---|---|
//! | the last number given | the highest |
//! | of different numbers | that of the highest number |
//! | one says dropped | dropped; where all say so or have none, they are deleted |
//! | present and missing | present: a record is deleted only after every copy has said dropped |
//! | half written by the dead | that of the others |
//! | of different indexes | those that all copies have alike; the others are dropped |
//! | that keep different columns | those of one of them, whichever comes last in the order of [`KeptColumns`](crate::KeptColumns) |
//! | of different attributes | those of one of them, whichever comes last in the order of bytes |

use crate::base::definition::{Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::table::Table;
use crate::node::system;
use crate::protocol::txn::spec::ScanSpec;
use crate::protocol::txn::{RowHandle, Txn};
use crate::protocol::worker::{Retry, Worker};
use farhold_fabric::NodeId;
use farhold_store::TableId;
use farhold_store::row::SecondaryIndex;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The recorded name of a dropped index. A live index may have this name, too.
const DROPPED: &str = "-";

/// A table's number and definition; without a definition it is dropped, or this is the last number given.
type Record = (TableId, Vec<u8>);

/// Enters in a definition that an index is dropped. Only its number is kept: the definition is one row, with all
/// indexes that there ever were.
pub(crate) fn drop_index(definition: &mut TableDef, recorded: &mut [Recorded], slot: usize) -> Result<(), TxnError> {
    *recorded.get_mut(slot).ok_or(TxnError::SchemaChanged)? = Recorded::Dropped;
    let columns = definition.schema.key()[..1].to_vec();
    definition.indexes[slot] = SecondaryIndex { name: DROPPED.into(), columns, unique: false };
    Ok(())
}

/// What two copies of a record become.
fn joined(one: Record, other: &Record) -> Result<Record, TxnError> {
    if one.0 != other.0 {
        return Ok(if one.0 > other.0 { one } else { other.clone() });
    }
    if one.1 == other.1 || one.1.is_empty() {
        return Ok(one);
    }
    if other.1.is_empty() {
        return Ok(other.clone());
    }
    let both = (TableDef::decode(&one.1)?, TableDef::decode(&other.1)?);
    let ((mut definition, mut recorded), shorter) =
        if both.0.1.len() >= both.1.1.len() { both } else { (both.1, both.0) };
    definition.columns = definition.columns.max(shorter.0.columns.clone());
    definition.attributes = definition.attributes.max(shorter.0.attributes.clone());
    for slot in 0..recorded.len() {
        let is_alike =
            shorter.1.get(slot) == Some(&recorded[slot]) && shorter.0.indexes.get(slot) == definition.indexes.get(slot);
        if !is_alike {
            drop_index(&mut definition, &mut recorded, slot)?;
        }
    }
    Ok((one.0, definition.encode(&recorded)?))
}

/// What the copies of a record, one for each node, must become; none: the copy must be deleted there.
fn made_alike(copies: &[Option<Record>], is_counter: bool) -> Result<Vec<Option<Record>>, TxnError> {
    let is_known = |record: &&Record| record.1 != system::UNKNOWN;
    let mut found = copies.iter().flatten().filter(is_known);
    let Some(first) = found.next().cloned() else {
        // One that no commit has finished, as not all have it; of one that all have had, none would be left.
        let is_new = copies.iter().any(Option::is_none) && !is_counter;
        return Ok(if is_new { vec![None; copies.len()] } else { copies.to_vec() });
    };
    let best = found.try_fold(first, joined)?;
    let is_dropped = |record: &Record| record.1.is_empty() && !is_counter;
    if !is_dropped(&best) {
        return Ok(vec![Some(best); copies.len()]);
    }
    // It is deleted when all copies have said so before: a copy that is missing beside one that is not means that the
    // record is new.
    let all_say_so = copies.iter().flatten().all(is_dropped);
    Ok(copies.iter().map(|copy| copy.as_ref().filter(|_| !all_say_so).map(|_| best.clone())).collect())
}

impl Worker {
    /// Makes the nodes' copies of all records alike, or of that of one name. True: a copy was another.
    ///
    /// # Errors
    /// An unavailable node, a conflict that does not end.
    pub(crate) async fn make_records_alike(&self, name: Option<&str>) -> Result<bool, TxnError> {
        let system = self.node().table_by_id(system::ID).ok_or(TxnError::Corrupt { what: "no system table" })?;
        let key = name.map(|name| system::encode_row(system.schema(), name, TableId(0), &[])).transpose()?;
        let range = key.as_ref().map_or((Bound::Unbounded, Bound::Unbounded), |(key, _)| {
            (Bound::Included(&key[..]), Bound::Included(&key[..]))
        });
        let mut any = false;
        // Twice where a drop was not over: all copies say so first, and then go.
        while self.run(Retry::default(), async |txn| self.change_copies(txn, &system, range).await).await? {
            any = true;
        }
        Ok(any)
    }

    async fn change_copies(
        &self,
        txn: &mut Txn,
        system: &Table,
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<bool, TxnError> {
        txn.copying = true;
        let nodes: Vec<NodeId> = self.node().everybody().collect();
        let mut found: BTreeMap<Vec<u8>, Vec<Option<RowHandle>>> = BTreeMap::new();
        for (position, node) in nodes.iter().enumerate() {
            let spec = ScanSpec { lo, hi, ..ScanSpec::all() };
            for row in txn.scan(system, spec.on(*node)).await? {
                let copies = found.entry(txn.key(row).to_vec()).or_insert_with(|| vec![None; nodes.len()]);
                copies[position] = Some(row);
            }
        }
        for (key, rows) in found {
            let mut name = String::new();
            let mut copies = Vec::with_capacity(rows.len());
            for row in &rows {
                let Some(row) = *row else {
                    copies.push(None);
                    continue;
                };
                let record = system::decode_row(system.schema(), txn.key(row), txn.value(row))?;
                name = record.0;
                copies.push(Some((record.1, record.2)));
            }
            let alike = made_alike(&copies, name.is_empty())?;
            for (position, (before, after)) in copies.iter().zip(&alike).enumerate().filter(|(_, (a, b))| a != b) {
                let value = match after {
                    Some((id, definition)) => Some(system::encode_row(system.schema(), &name, *id, definition)?.1),
                    None => None,
                };
                match (rows[position].filter(|_| before.is_some()), value) {
                    (Some(row), Some(value)) => txn.update(row, &value)?,
                    (Some(row), None) => txn.delete(row)?,
                    (None, Some(value)) => _ = txn.insert_on(nodes[position], system, &key, &value).await?,
                    (None, None) => {}
                }
            }
        }
        Ok(txn.has_writes())
    }

    /// The last number that a table was given, according to all nodes' copies. Where a death has left the copies
    /// different, any of the numbers may have been given out.
    pub(crate) async fn last_id_anywhere(&self, txn: &mut Txn, system: &Table) -> Result<TableId, TxnError> {
        let (key, _) = system::encode_row(system.schema(), "", TableId(0), &[])?;
        let spec = ScanSpec { lo: Bound::Included(&key), hi: Bound::Included(&key), ..ScanSpec::all() };
        let mut last = TableId(0);
        for node in self.node().everybody() {
            for row in txn.scan(system, spec.on(node)).await? {
                last = last.max(system::decode_row(system.schema(), txn.key(row), txn.value(row))?.1);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_store::row::{Column, ColumnType, Schema};

    type Copies = Vec<Option<Record>>;

    /// A record of a table with indexes of which that has become.
    fn record(id: u32, indexes: &[(&str, Recorded)]) -> Record {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let index = |name: &str| SecondaryIndex { name: name.into(), columns: vec![1], unique: true };
        let mut definition = TableDef::new("people", schema);
        definition.indexes = indexes.iter().map(|(name, _)| index(name)).collect();
        let mut recorded: Vec<Recorded> = indexes.iter().map(|(_, recorded)| *recorded).collect();
        for slot in 0..recorded.len() {
            if recorded[slot] == Recorded::Dropped {
                drop_index(&mut definition, &mut recorded, slot).expect("there");
            }
        }
        (TableId(id), definition.encode(&recorded).expect("a definition"))
    }

    fn dropped(id: u32) -> Record {
        (TableId(id), Vec::new())
    }

    fn unknown() -> Record {
        (TableId(0), system::UNKNOWN.to_vec())
    }

    /// Copies become the same, and stay so, in whatever order they are compared.
    #[test]
    fn copies_become_alike_in_any_order() {
        use Recorded::{Begun, Dropped, Live};
        let (plain, later) = (record(17, &[]), record(18, &[]));
        let (begun, live) = (record(17, &[("a", Begun)]), record(17, &[("a", Live)]));
        let (two, gone) = (record(17, &[("a", Live), ("b", Begun)]), record(17, &[("-", Dropped)]));
        let both_gone = record(17, &[("-", Dropped), ("-", Dropped)]);
        let keeps = |columns: crate::KeptColumns| {
            let mut definition = TableDef::decode(&record(17, &[("a", Live)]).1).expect("a definition").0;
            definition.columns = columns;
            (TableId(17), definition.encode(&[Live]).expect("a definition"))
        };
        let (all, first) = (keeps(crate::KeptColumns::All), keeps(crate::KeptColumns::These(vec![0])));
        let with = |attributes: &[u8]| {
            let mut definition = TableDef::decode(&record(17, &[("a", Live)]).1).expect("a definition").0;
            definition.attributes = attributes.to_vec();
            (TableId(17), definition.encode(&[Live]).expect("a definition"))
        };
        let cases: [(Copies, Copies); 19] = [
            (vec![Some(with(&[1, 9])), Some(with(&[2])), Some(live.clone())], vec![Some(with(&[2])); 3]),
            (vec![Some(all), Some(first.clone()), Some(live.clone())], vec![Some(first); 3]),
            (vec![None, None], vec![None, None]),
            (vec![Some(plain.clone()), None], vec![Some(plain.clone()); 2]),
            (vec![Some(plain.clone()), Some(later.clone())], vec![Some(later.clone()); 2]),
            (vec![Some(plain.clone()), Some(dropped(17))], vec![Some(dropped(17)); 2]),
            (vec![Some(later.clone()), Some(dropped(17))], vec![Some(later.clone()); 2]),
            (vec![Some(dropped(17)), None], vec![None, None]),
            (vec![Some(unknown()), Some(plain.clone())], vec![Some(plain.clone()); 2]),
            (vec![Some(unknown()), Some(dropped(17))], vec![Some(dropped(17)); 2]),
            (vec![Some(unknown()), None], vec![None, None]),
            (vec![Some(unknown()), Some(unknown())], vec![Some(unknown()); 2]),
            (vec![Some(dropped(17)), Some(dropped(17))], vec![None, None]),
            (vec![Some(plain.clone()), Some(dropped(17)), None], vec![Some(dropped(17)), Some(dropped(17)), None]),
            (vec![Some(begun.clone()), Some(live.clone())], vec![Some(gone.clone()); 2]),
            (vec![Some(plain), Some(live.clone())], vec![Some(gone.clone()); 2]),
            (vec![Some(live.clone()), Some(live.clone())], vec![Some(live.clone()); 2]),
            (vec![Some(two.clone()), Some(live)], vec![Some(record(17, &[("a", Live), ("-", Dropped)])); 2]),
            (vec![Some(begun), Some(two)], vec![Some(both_gone); 2]),
        ];
        for (copies, expected) in cases {
            assert_eq!(made_alike(&copies, false), Ok(expected.clone()), "{copies:?}");
            let (mut turned, mut as_turned) = (copies.clone(), expected);
            turned.reverse();
            as_turned.reverse();
            assert_eq!(made_alike(&turned, false), Ok(as_turned), "{copies:?}, turned");
        }
        assert_eq!(made_alike(&[Some(dropped(17)), Some(unknown())], true), Ok(vec![Some(dropped(17)); 2]));
        assert_eq!(made_alike(&[Some(dropped(17)), None, Some(dropped(16))], true), Ok(vec![Some(dropped(17)); 3]));
    }
}
