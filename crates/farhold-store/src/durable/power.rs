//! A directory in memory with a power supply that can be cut: what was not made durable is lost, piece by piece, at random.
//!
//! For tests. It is as hostile as a disk or persistent memory may be: each unsynced sector, or unflushed cache line, is old, new,
//! or torn in the middle. Of the changes of names since the last sync, a first part has happened.

use super::files::{Directory, DurableFile};
use super::pages::Pages;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the bytes are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Sectors of 512 bytes, torn anywhere.
    Disk,
    /// Cache lines of 64 bytes, torn between two words.
    Nvm,
}

impl Medium {
    /// The unit of bytes that survives or does not, and the unit that is never torn.
    const fn pieces(self) -> (usize, usize) {
        match self {
            Self::Disk => (512, 1),
            Self::Nvm => (64, 8),
        }
    }
}

/// The directory. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Volatile {
    inner: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    medium: Medium,
    names: BTreeMap<String, Arc<VolatileFile>>,
    /// The names at the last sync, and after each change since.
    past_names: Vec<BTreeMap<String, Arc<VolatileFile>>>,
    locks: BTreeSet<String>,
    /// Bytes that all files together may have; 0: any number.
    bytes_max: u64,
    /// No file can be removed.
    keeps: bool,
    /// Operations until the power is cut, and the seed that decides what then survives.
    fuse: Option<(u64, u64)>,
    survivor: Option<Volatile>,
}

#[derive(Debug)]
struct VolatileFile {
    medium: Medium,
    bytes: Mutex<Bytes>,
    directory: std::sync::Weak<Mutex<State>>,
    /// Its syncs fail.
    is_broken: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct Bytes {
    now: Pages,
    durable: Pages,
    /// Pieces written since the last sync, in the order of the writes.
    dirty: Vec<Range<usize>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Volatile {
    fn default() -> Self {
        Self::on(Medium::Disk)
    }
}

impl Volatile {
    /// An empty one.
    #[must_use]
    pub fn on(medium: Medium) -> Self {
        let state = State {
            medium,
            names: BTreeMap::new(),
            past_names: vec![BTreeMap::new()],
            locks: BTreeSet::new(),
            bytes_max: 0,
            keeps: false,
            fuse: None,
            survivor: None,
        };
        Self { inner: Arc::new(Mutex::new(state)) }
    }

    /// Limits the bytes of all files together (0: no limit).
    pub fn limit(&self, bytes_max: u64) {
        held(&self.inner).bytes_max = bytes_max;
    }

    /// Lets removals fail, or not any more.
    pub fn keep_files(&self, keeps: bool) {
        held(&self.inner).keeps = keeps;
    }

    /// Makes syncs of a file fail, or succeed again.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn break_file(&self, name: &str, is_broken: bool) {
        held(&self.inner).names[name].is_broken.store(is_broken, SeqCst);
    }

    /// Flips bits of a byte that is durable.
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn flip(&self, name: &str, at: usize, bits: u8) {
        let state = held(&self.inner);
        let mut bytes = held(&state.names[name].bytes);
        let Bytes { now, durable, .. } = &mut *bytes;
        for bytes in [now, durable] {
            let mut byte = [0];
            bytes.read(at, &mut byte).expect("there is such a byte");
            bytes.write(at, &[byte[0] ^ bits]);
        }
    }

    /// The bytes of a file.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let file = held(&self.inner).names[name].clone();
        let now = &held(&file.bytes).now;
        let mut bytes = vec![0; now.len()];
        now.read(0, &mut bytes).expect("all of it");
        bytes
    }

    /// Cuts the power in the middle of the work, after `operations` more operations. What survives is [`Self::survivor`]. This
    /// directory goes on, unnoticed by its writers.
    pub fn cut_after(&self, operations: u64, seed: u64) {
        held(&self.inner).fuse = Some((operations, seed));
    }

    /// What has survived the cut, if it has come.
    #[must_use]
    pub fn survivor(&self) -> Option<Self> {
        held(&self.inner).survivor.clone()
    }

    fn burn(&self) {
        let mut state = held(&self.inner);
        match &mut state.fuse {
            Some((0, seed)) => {
                let mut state_of_random = *seed;
                state.fuse = None;
                // Between the cut and its becoming known no operation reports that anything is durable.
                let survivor = state.cut(&mut || {
                    state_of_random =
                        state_of_random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    state_of_random >> 33
                });
                state.survivor = Some(survivor);
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
    }

    /// What would be there if the power failed now. This directory goes on unchanged.
    #[must_use]
    pub fn cut(&self, random: &mut dyn FnMut() -> u64) -> Self {
        held(&self.inner).cut(random)
    }
}

impl Bytes {
    fn survive(&self, medium: Medium, random: &mut dyn FnMut() -> u64) -> Pages {
        let (piece_bytes, whole_bytes) = medium.pieces();
        let mut bytes = self.durable.clone();
        let mut survived = vec![0; piece_bytes];
        for piece in self.dirty.iter().cloned().flatten().collect::<BTreeSet<_>>() {
            let (from, to) = (piece * piece_bytes, ((piece + 1) * piece_bytes).min(self.now.len()));
            let to = match random() % 8 {
                0..=2 => continue,
                // Torn: its first part alone.
                3 => from + ((to - from) as u64 * (random() % 64) / 64) as usize / whole_bytes * whole_bytes,
                _ => to,
            };
            if from >= to {
                continue;
            }
            let survived = &mut survived[..to - from];
            self.now.read(from, survived).expect("it was written");
            bytes.write(from, survived);
        }
        bytes
    }
}

impl State {
    fn cut(&self, random: &mut dyn FnMut() -> u64) -> Volatile {
        let names = &self.past_names[(random() % self.past_names.len() as u64) as usize];
        let after = Volatile::on(self.medium);
        let mut inside = held(&after.inner);
        let weak = Arc::downgrade(&after.inner);
        for (name, file) in names {
            let survived = held(&file.bytes).survive(self.medium, random);
            let bytes = Bytes { now: survived.clone(), durable: survived, dirty: Vec::new() };
            let (directory, is_broken) = (weak.clone(), AtomicBool::default());
            let file = VolatileFile { medium: self.medium, bytes: Mutex::new(bytes), directory, is_broken };
            inside.names.insert(name.clone(), Arc::new(file));
        }
        inside.past_names = vec![inside.names.clone()];
        drop(inside);
        after
    }

    fn changed(&mut self) {
        self.past_names.push(self.names.clone());
    }

    fn bytes(&self) -> u64 {
        self.names.values().map(|file| held(&file.bytes).now.len() as u64).sum()
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl Directory for Volatile {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(held(&self.inner).names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.burn();
        let directory = Arc::downgrade(&self.inner);
        let mut state = held(&self.inner);
        let file = Arc::new(VolatileFile {
            medium: state.medium,
            bytes: Mutex::default(),
            directory,
            is_broken: AtomicBool::default(),
        });
        state.names.insert(name.into(), file.clone());
        state.changed();
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        let file = held(&self.inner).names.get(name).cloned();
        file.map(|file| file as Arc<dyn DurableFile>).ok_or_else(|| missing(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.burn();
        let mut state = held(&self.inner);
        let file = state.names.remove(from).ok_or_else(|| missing(from))?;
        state.names.insert(to.into(), file);
        state.changed();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.burn();
        let mut state = held(&self.inner);
        if state.keeps {
            return Err(io::Error::other("the file stays"));
        }
        state.names.remove(name).ok_or_else(|| missing(name))?;
        state.changed();
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.burn();
        let mut state = held(&self.inner);
        state.past_names = vec![state.names.clone()];
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        struct Held(Arc<Mutex<State>>, String);
        impl Drop for Held {
            fn drop(&mut self) {
                held(&self.0).locks.remove(&self.1);
            }
        }
        let free = held(&self.inner).locks.insert(name.into());
        Ok(free.then(|| Box::new(Held(self.inner.clone(), name.into())) as Box<dyn Send + Sync>))
    }

    fn name(&self) -> String {
        match held(&self.inner).medium {
            Medium::Disk => "a simulated disk".into(),
            Medium::Nvm => "simulated persistent memory".into(),
        }
    }
}

impl VolatileFile {
    fn burn(&self) {
        if let Some(inner) = self.directory.upgrade() {
            Volatile { inner }.burn();
        }
    }
}

impl DurableFile for VolatileFile {
    fn len(&self) -> io::Result<u64> {
        Ok(held(&self.bytes).now.len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = held(&self.bytes);
        bytes.now.read(at as usize, into).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let (at, end) = (at as usize, at as usize + from.len());
        self.burn();
        if let Some(directory) = self.directory.upgrade() {
            let grows = end.saturating_sub(held(&self.bytes).now.len()) as u64;
            let state = held(&directory);
            if grows > 0 && state.bytes_max > 0 && state.bytes() + grows > state.bytes_max {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let mut bytes = held(&self.bytes);
        bytes.now.write(at, from);
        let (piece_bytes, _) = self.medium.pieces();
        bytes.dirty.push(at / piece_bytes..end.div_ceil(piece_bytes));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.burn();
        if self.is_broken.load(SeqCst) {
            return Err(io::Error::other("the disk reports an error"));
        }
        let mut bytes = held(&self.bytes);
        let Bytes { now, durable, dirty } = &mut *bytes;
        durable.grow(now.len());
        let (piece_bytes, _) = self.medium.pieces();
        for pieces in std::mem::take(dirty) {
            let (from, to) = (pieces.start * piece_bytes, (pieces.end * piece_bytes).min(now.len()));
            // What else is in these pages is durable, or becomes so now.
            durable.share(now, from..to);
        }
        Ok(())
    }
}
