//! Batched gets by one-sided reads: the location cache, or else the far hash index, then the objects.
//!
//! ```text
//!  key ──cache knows──▶ object ──is the row──▶ done
//!   │                     │ torn: again; another row or none: the cache forgets
//!   └──────▶ index: [directory, chunk: the first time] bucket ──▶ candidates ──▶ object ...
//! ```
//! All keys of a batch take their steps together, one submitted batch a round.

use super::KvError;
use farhold_fabric::{Batch, Endpoint, FabricError, FarPtr, Meta, NodeId, RegionId, Slot, Version};
use farhold_store::index::hash::{Directory, FarIndex, FarLookup, FarStep, LocationCache, hash_key};
use farhold_store::{ObjectRef, TableId};
use std::cell::RefCell;
use std::rc::Rc;

/// The region of a node where the database keeps its rows.
const DATA: RegionId = RegionId(0);

/// A reader of one far table with a hash index and 8-byte keys.
pub struct Reader {
    table: Rc<FarTable>,
    batch: Batch,
    gets: Vec<Get>,
}

/// What the readers of a thread share.
struct FarTable {
    endpoint: Endpoint,
    home: NodeId,
    id: TableId,
    payload_len_max: usize,
    locations: RefCell<LocationCache>,
    /// `None` until the first caller has asked for it.
    index: RefCell<Option<FarIndex>>,
}

/// What a call did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// A key that has no row, if there is one.
    pub missing: Option<usize>,
    /// Object reads that met a writer.
    pub torn: u64,
    /// Reads of the index.
    pub index_reads: u64,
}

/// One get on its way.
struct Get {
    nth: usize,
    key: [u8; 8],
    hash: u64,
    step: Step,
    slot: Option<Slot>,
}

enum Step {
    /// Read this object, which the cache remembered.
    Known(ObjectRef),
    /// Read these bytes of the index.
    Look(FarLookup, FarPtr, usize),
    /// Read the last of these objects, which the index names.
    Try(FarLookup, Vec<ObjectRef>),
    Done,
    Missing,
    /// The index is not what was known of it.
    Gone,
}

/// What an object is to a get.
enum Row {
    Found,
    Torn,
    Other,
}

impl Reader {
    /// A reader of a table at `home`, with room in the cache for `rows` rows, and values of `value_bytes` bytes.
    #[must_use]
    pub fn new(endpoint: Endpoint, home: NodeId, table: TableId, rows: usize, value_bytes: usize) -> Self {
        let table = FarTable {
            endpoint,
            home,
            id: table,
            payload_len_max: value_bytes + 16,
            // Twice as many places as rows: two rows share a pair of places less often.
            locations: RefCell::new(LocationCache::new(2 * rows)),
            index: RefCell::default(),
        };
        Self { table: Rc::new(table), batch: Batch::new(), gets: Vec::new() }
    }

    /// Another reader of the same thread, which may be under way at the same time.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { table: self.table.clone(), batch: Batch::new(), gets: Vec::new() }
    }

    /// Gets all these keys. `visit` is called once for each that has a row, with its place in `keys` and its encoded value.
    ///
    /// # Errors
    /// What the fabric refuses.
    pub async fn get_many(&mut self, keys: &[[u8; 8]], mut visit: impl FnMut(usize, &[u8])) -> Result<Got, KvError> {
        let mut got = Got::default();
        if self.table.index.borrow().is_none() {
            self.learn_index(&mut got).await?;
        }
        let mut gets = std::mem::take(&mut self.gets);
        gets.clear();
        for (nth, key) in keys.iter().enumerate() {
            let hash = hash_key(key);
            let step = match self.table.known(hash) {
                Some(reference) => Step::Known(reference),
                None => self.table.look_up(hash),
            };
            gets.push(Get { nth, key: *key, hash, step, slot: None });
        }
        while !gets.is_empty() {
            let mut batch = std::mem::take(&mut self.batch);
            batch.clear();
            for get in &mut gets {
                get.slot = Some(self.table.post(&mut batch, &get.step, &mut got));
            }
            let batch = self.table.endpoint.submit(batch).await;
            for get in &mut gets {
                self.table.judge(get, &batch, &mut got, &mut visit)?;
            }
            self.batch = batch;
            if gets.iter().any(|get| matches!(get.step, Step::Gone)) {
                self.learn_index(&mut got).await?;
            }
            gets.retain_mut(|get| match get.step {
                Step::Done => false,
                Step::Missing => {
                    got.missing = Some(get.nth);
                    false
                }
                Step::Gone => {
                    get.step = self.table.look_up(get.hash);
                    true
                }
                _ => true,
            });
        }
        self.gets = gets;
        Ok(got)
    }

    /// Finds the table's index in its home's directory.
    async fn learn_index(&mut self, got: &mut Got) -> Result<(), KvError> {
        let mut directory = Directory::new(self.table.home, DATA, self.table.id);
        while let Some((at, bytes)) = directory.next() {
            got.index_reads += 1;
            let mut batch = std::mem::take(&mut self.batch);
            batch.clear();
            let slot = batch.read(at, bytes);
            let batch = self.table.endpoint.submit(batch).await;
            let found = directory.learn(batch.bytes(slot)?);
            self.batch = batch;
            if found.is_some() {
                *self.table.index.borrow_mut() = found;
                return Ok(());
            }
        }
        Err(KvError::Txn(farhold_txn::TxnError::SchemaChanged))
    }
}

impl FarTable {
    /// Where the cache says that a row is.
    fn known(&self, hash: u64) -> Option<ObjectRef> {
        self.locations.borrow_mut().get(self.home, self.id, hash)
    }

    fn look_up(&self, hash: u64) -> Step {
        self.index.borrow().as_ref().map_or(Step::Gone, |index| start(index, hash))
    }

    fn post(&self, batch: &mut Batch, step: &Step, got: &mut Got) -> Slot {
        match step {
            Step::Known(reference) => batch.read_object(reference.far(self.home, DATA), self.payload_len_max),
            Step::Try(_, objects) => {
                let reference = objects.last().expect("a candidate is left");
                batch.read_object(reference.far(self.home, DATA), self.payload_len_max)
            }
            Step::Look(_, at, bytes) => {
                got.index_reads += 1;
                batch.read(*at, *bytes)
            }
            Step::Done | Step::Missing | Step::Gone => unreachable!("taken out before"),
        }
    }

    fn judge(
        &self,
        get: &mut Get,
        batch: &Batch,
        got: &mut Got,
        visit: &mut impl FnMut(usize, &[u8]),
    ) -> Result<(), KvError> {
        let mut index = self.index.borrow_mut();
        let Some(index) = index.as_mut() else {
            get.step = Step::Gone;
            return Ok(());
        };
        let slot = get.slot.take().expect("posted");
        let step = std::mem::replace(&mut get.step, Step::Done);
        get.step = match step {
            Step::Known(reference) => match row(batch, slot, reference, get, visit)? {
                Row::Found => Step::Done,
                Row::Torn => {
                    got.torn += 1;
                    Step::Known(reference)
                }
                Row::Other => {
                    self.locations.borrow_mut().forget(self.home, self.id, get.hash);
                    start(index, get.hash)
                }
            },
            Step::Try(mut lookup, mut objects) => {
                let reference = *objects.last().expect("a candidate was posted");
                match row(batch, slot, reference, get, visit)? {
                    Row::Found => {
                        self.locations.borrow_mut().put(self.home, self.id, get.hash, reference);
                        Step::Done
                    }
                    Row::Torn => {
                        got.torn += 1;
                        Step::Try(lookup, objects)
                    }
                    Row::Other => {
                        objects.pop();
                        if objects.is_empty() {
                            let step = lookup.no_match(index);
                            go_on(lookup, step)
                        } else {
                            Step::Try(lookup, objects)
                        }
                    }
                }
            }
            Step::Look(mut lookup, ..) => {
                let step = lookup.learn(index, batch.bytes(slot)?);
                go_on(lookup, step)
            }
            Step::Done | Step::Missing | Step::Gone => unreachable!("taken out before"),
        };
        Ok(())
    }
}

fn start(index: &FarIndex, hash: u64) -> Step {
    let (lookup, step) = FarLookup::start(index, hash);
    go_on(lookup, step)
}

fn go_on(lookup: FarLookup, step: FarStep) -> Step {
    match step {
        FarStep::Read { at, bytes } => Step::Look(lookup, at, bytes),
        FarStep::Matches(matches) => Step::Try(lookup, matches.iter().collect()),
        FarStep::Missing(_) => Step::Missing,
        FarStep::Gone => Step::Gone,
    }
}

/// Whether this object is the row that the get wants. If so, it has been visited.
fn row(
    batch: &Batch,
    slot: Slot,
    reference: ObjectRef,
    get: &Get,
    visit: &mut impl FnMut(usize, &[u8]),
) -> Result<Row, KvError> {
    let object = match batch.object(slot) {
        Ok(object) => object,
        Err(FabricError::Torn { .. }) => return Ok(Row::Torn),
        // Another row, of another table, has the slot by now.
        Err(FabricError::ObjectTooLong { .. }) => return Ok(Row::Other),
        Err(error) => return Err(error.into()),
    };
    let meta = Meta(object.meta);
    let is_it = meta.incarnation() == reference.incarnation()
        && !Version(object.version).is_absent()
        && object.payload.get(..meta.key_len()) == Some(&get.key[..]);
    if is_it {
        visit(get.nth, &object.payload[meta.key_len()..]);
    }
    Ok(if is_it { Row::Found } else { Row::Other })
}
