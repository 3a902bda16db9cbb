//! The file in which a node keeps its model of scans.
//!
//! ```text
//!   "FHSCANMD" │ version │ columns │ fingerprint of the machine │ choices │ credit │ paths │ a record for each path │ CRC64
//!   record: name (16 bytes, zeros behind it) │ observations │ last observed │ drift │ shape │ weights │ moments │ sums (lower triangle)
//! ```
//!
//! Each number is 8 bytes, little-endian. All files therefore have the same length, and every state has exactly one file. A new file is written beside the old
//! one, made durable and renamed, so a crash leaves the old one or the new one. A file is validated when it is read: the checksum finds damage, and values that
//! no model can have are refused even if the checksum is right.

use super::features::{COLUMNS, Shape};
use super::{Model, ModelError, PATHS, PathKind, Settings};
use farhold_fabric::NodeId;
use farhold_store::durable::files::Directory;
use std::io;

/// The name of a node's file: all nodes of a cluster may have one directory.
#[must_use]
pub fn name(node: NodeId) -> String {
    format!("scan-model-{}", node.0)
}

const MAGIC: &[u8; 8] = b"FHSCANMD";
/// Changes with the format, and with the meaning of columns.
const VERSION: u64 = 2;
const NAME_LEN: usize = 16;
const HEADER_LEN: usize = 56;
const RECORD_LEN: usize = NAME_LEN + 8 * (7 + 2 * COLUMNS + COLUMNS * (COLUMNS + 1) / 2);
/// Bytes of the file.
pub const FILE_LEN: usize = HEADER_LEN + PATHS * RECORD_LEN + 8;

/// Why the file gives no model. In each case but [`Settings`](Self::Settings) the caller calibrates; it warns in each case but the
/// first.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no file.
    #[error("there is no file of it")]
    Absent,
    /// The file system failed.
    #[error("its file cannot be read")]
    Io(#[source] io::Error),
    /// This version cannot have written it.
    #[error("its file is damaged or of another version: {0}")]
    Damaged(&'static str),
    /// The settings cannot be used with any model.
    #[error(transparent)]
    Settings(#[from] ModelError),
    /// It was measured on another machine.
    #[error("its file was measured on another machine ({found:016x})")]
    OtherMachine {
        /// The fingerprint in the file.
        found: u64,
    },
}

/// Writes the model in place of an earlier one, and returns when it is durable.
///
/// # Errors
/// The file system's. The earlier file is then unchanged, or the new one is complete.
pub fn save(model: &Model, directory: &dyn Directory, node: NodeId, fingerprint: u64) -> io::Result<()> {
    let (name, fresh) = (name(node), format!("{}.fresh", name(node)));
    let file = directory.create(&fresh)?;
    file.write_at(0, &encode(model, fingerprint))?;
    file.sync()?;
    directory.rename(&fresh, &name)?;
    directory.sync()
}

/// Reads the model. `fingerprint` identifies everything that times depend on: processor, memory, provider, build.
///
/// # Errors
/// [`FileError`]
pub fn load(directory: &dyn Directory, node: NodeId, fingerprint: u64, settings: Settings) -> Result<Model, FileError> {
    let file = directory.open(&name(node)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileError::Absent,
        _ => FileError::Io(error),
    })?;
    if file.len().map_err(FileError::Io)? != FILE_LEN as u64 {
        return Err(FileError::Damaged("its length is wrong"));
    }
    let mut bytes = vec![0; FILE_LEN];
    file.read_at(0, &mut bytes).map_err(FileError::Io)?;
    decode(&bytes, fingerprint, settings)
}

/// The bytes of the file.
#[must_use]
pub fn encode(model: &Model, fingerprint: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE_LEN);
    bytes.extend_from_slice(MAGIC);
    for number in [VERSION, COLUMNS as u64, fingerprint, model.choices, model.credit_ns.to_bits(), PATHS as u64] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for path in PathKind::ALL {
        let mut name = [0; NAME_LEN];
        name[..path.name().len()].copy_from_slice(path.name().as_bytes());
        bytes.extend_from_slice(&name);
        let estimator = model.path(path);
        bytes.extend_from_slice(&estimator.observations.to_le_bytes());
        bytes.extend_from_slice(&model.observed_at[path.index()].to_le_bytes());
        let triangle = estimator.sums.iter().enumerate().flat_map(|(row, sums)| &sums[..=row]);
        let shape = estimator.shape;
        for value in [estimator.drift, shape.link_bytes_s, shape.knee_ns, shape.free_share, shape.scale] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        for value in estimator.weights.iter().chain(&estimator.moments).chain(triangle) {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    let checksum = checksum(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The model of a file's bytes.
///
/// # Errors
/// [`FileError::Damaged`], [`FileError::OtherMachine`], [`FileError::Settings`].
pub fn decode(bytes: &[u8], fingerprint: u64, settings: Settings) -> Result<Model, FileError> {
    let bad = FileError::Damaged;
    let (body, end) = bytes.split_last_chunk::<8>().ok_or(bad("it is too short"))?;
    if bytes.len() != FILE_LEN {
        return Err(bad("its length is wrong"));
    }
    if u64::from_le_bytes(*end) != checksum(body) {
        return Err(bad("its checksum is wrong"));
    }
    let mut reader = Reader(body);
    if reader.take() != *MAGIC {
        return Err(bad("it does not begin as a model does"));
    }
    if [reader.number(), reader.number()] != [VERSION, COLUMNS as u64] {
        return Err(bad("its version is another one"));
    }
    let found = reader.number();
    if found != fingerprint {
        return Err(FileError::OtherMachine { found });
    }
    let mut model = Model::new(settings)?;
    model.choices = reader.number();
    let credit_ns = reader.value();
    model.earn(credit_ns);
    if !credit_ns.is_finite() || model.choices > COUNT_MAX {
        return Err(bad("its counters are impossible"));
    }
    if reader.number() != PATHS as u64 {
        return Err(bad("it has other paths"));
    }
    for path in PathKind::ALL {
        read_path(&mut reader, path, &mut model)?;
    }
    Ok(model)
}

/// Greatest count of choices or observations: a billion a second for 30 years.
const COUNT_MAX: u64 = 1 << 60;

fn read_path(reader: &mut Reader<'_>, path: PathKind, model: &mut Model) -> Result<(), FileError> {
    let mut name = [0; NAME_LEN];
    name[..path.name().len()].copy_from_slice(path.name().as_bytes());
    if reader.take() != name {
        return Err(FileError::Damaged("it has other paths"));
    }
    let estimator = &mut model.paths[path.index()];
    estimator.observations = reader.number();
    model.observed_at[path.index()] = reader.number();
    estimator.drift = reader.value();
    let [link_bytes_s, knee_ns, free_share, scale] = std::array::from_fn(|_| reader.value());
    estimator.shape = Shape { link_bytes_s, knee_ns, free_share, scale };
    for value in estimator.weights.iter_mut().chain(&mut estimator.moments) {
        *value = reader.value();
    }
    for row in 0..COLUMNS {
        for column in 0..=row {
            let value = reader.value();
            (estimator.sums[row][column], estimator.sums[column][row]) = (value, value);
        }
    }
    let are_possible = estimator.observations <= COUNT_MAX && model.observed_at[path.index()] <= model.choices;
    if are_possible && estimator.is_sound() {
        Ok(())
    } else {
        Err(FileError::Damaged("it has values that no model has"))
    }
}

/// Reads numbers of bytes whose length has been checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const LEN: usize>(&mut self) -> [u8; LEN] {
        let (taken, rest) = self.0.split_first_chunk().expect("the length has been checked");
        self.0 = rest;
        *taken
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn value(&mut self) -> f64 {
        f64::from_bits(self.number())
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    digest.write(bytes);
    digest.sum64()
}
