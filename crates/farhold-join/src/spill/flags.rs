//! Flags in a file, which of the probe rows have had a match so far: one pass over the probe side writes them for the
//! next.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::{BUFFER_BYTES, unnamed_file};
use crate::JoinError;
use crate::bits::Bits;

/// Writes the flags of batch after batch.
pub struct FlagWriter(BufWriter<File>);

impl FlagWriter {
    pub fn create(directory: &Path) -> Result<Self, JoinError> {
        Ok(Self(BufWriter::with_capacity(BUFFER_BYTES, unnamed_file(directory)?)))
    }

    pub fn push(&mut self, flags: &Bits) -> Result<(), JoinError> {
        self.0.write_all(&flags.to_bytes()).map_err(JoinError::Spill)
    }

    pub fn finish(self) -> Result<FlagReader, JoinError> {
        let mut file = self.0.into_inner().map_err(|error| JoinError::Spill(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(JoinError::Spill)?;
        Ok(FlagReader(BufReader::with_capacity(BUFFER_BYTES, file)))
    }
}

/// Reads the flags, for batches of the same lengths in the same order.
pub struct FlagReader(BufReader<File>);

impl FlagReader {
    pub fn next(&mut self, rows: usize) -> Result<Bits, JoinError> {
        let mut bytes = vec![0; rows.div_ceil(8)];
        self.0.read_exact(&mut bytes).map_err(JoinError::Spill)?;
        Ok(Bits::from_bytes(&bytes, rows))
    }
}
