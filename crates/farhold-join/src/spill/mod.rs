//! Spill files: batches of one schema in Arrow's IPC stream format, in files without a name.
//!
//! ```text
//!   Writer ── push ──▶ batches of at most `chunk_bytes` ──▶ file        finish ──▶ SpillFile
//!   SpillFile ── read ──▶ a thread that decodes one batch ahead ──▶ Reader (an iterator), any number of times
//! ```
//!
//! A file is unlinked when it is made, so that the disk has it back when the last handle closes: at the end of the join, on
//! an error, a panic, a cancellation, or the end of the process.

mod flags;

pub use flags::{FlagReader, FlagWriter};

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use crate::JoinError;

/// Bytes of a file's write and read buffers.
const BUFFER_BYTES: usize = 8 << 10;

/// A file without a name in `directory`.
fn unnamed_file(directory: &Path) -> Result<File, JoinError> {
    tempfile::tempfile_in(directory).map_err(JoinError::Spill)
}

/// Arrow wraps the errors of the disk; they are the disk's all the same.
fn from_ipc(error: ArrowError) -> JoinError {
    match error {
        ArrowError::IoError(_, error) => JoinError::Spill(error),
        other => JoinError::Arrow(other),
    }
}

/// A spill file being written.
pub struct Writer {
    stream: StreamWriter<BufWriter<Counted>>,
    rows: u64,
}

struct Counted {
    file: File,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Writer {
    pub fn create(directory: &Path, schema: &SchemaRef) -> Result<Self, JoinError> {
        let file = Counted { file: unnamed_file(directory)?, bytes: 0 };
        let stream = StreamWriter::try_new(BufWriter::with_capacity(BUFFER_BYTES, file), schema).map_err(from_ipc)?;
        Ok(Self { stream, rows: 0 })
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), JoinError> {
        self.rows += batch.num_rows() as u64;
        self.stream.write(batch).map_err(from_ipc)
    }

    pub fn finish(mut self) -> Result<SpillFile, JoinError> {
        self.stream.finish().map_err(from_ipc)?;
        let buffered = self.stream.into_inner().map_err(from_ipc)?;
        let counted = buffered.into_inner().map_err(|error| JoinError::Spill(error.into_error()))?;
        Ok(SpillFile { file: Arc::new(counted.file), rows: self.rows, bytes: counted.bytes })
    }
}

/// A spill file that has been written.
#[derive(Debug, Clone)]
pub struct SpillFile {
    file: Arc<File>,
    pub rows: u64,
    pub bytes: u64,
}

struct At {
    file: Arc<File>,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl SpillFile {
    /// Reads from the start, one batch ahead of the caller.
    pub fn read(&self) -> Result<Reader, JoinError> {
        let (sender, batches) = mpsc::sync_channel(1);
        let from = At { file: Arc::clone(&self.file), offset: 0 };
        let ahead = thread::Builder::new().name("join-read-ahead".into()).spawn(move || {
            // A send fails once the reader has gone: then nobody wants the rest.
            match StreamReader::try_new(BufReader::with_capacity(BUFFER_BYTES, from), None) {
                Ok(stream) => stream.map(|batch| batch.map_err(from_ipc)).all(|batch| sender.send(batch).is_ok()),
                Err(error) => sender.send(Err(from_ipc(error))).is_ok(),
            }
        });
        let ahead = ahead.map_err(JoinError::Spill)?;
        Ok(Reader { batches: Some(batches), ahead: Some(ahead) })
    }
}

/// Reads several files one after the other.
pub fn read_all(files: Vec<SpillFile>) -> Readers {
    Readers { rest: files.into_iter(), now: None }
}

/// Batches of several spill files.
pub struct Readers {
    rest: std::vec::IntoIter<SpillFile>,
    now: Option<Reader>,
}

impl Iterator for Readers {
    type Item = Result<RecordBatch, JoinError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.now.as_mut().and_then(Reader::next) {
                return Some(batch);
            }
            match self.rest.next()?.read() {
                Ok(reader) => self.now = Some(reader),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Batches of a spill file, in the order they were written.
pub struct Reader {
    batches: Option<Receiver<Result<RecordBatch, JoinError>>>,
    ahead: Option<JoinHandle<bool>>,
}

impl Iterator for Reader {
    type Item = Result<RecordBatch, JoinError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(batch) = self.batches.as_ref()?.recv() {
            return Some(batch);
        }
        self.batches = None;
        let panicked = self.ahead.take()?.join().is_err();
        panicked.then(|| Err(JoinError::WorkerPanicked("reading a spill file ahead".into())))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The thread's next send fails, so that it ends.
        self.batches = None;
        let _ = self.ahead.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringViewArray};

    fn batch(from: i64) -> RecordBatch {
        let numbers: ArrayRef = Arc::new((from..from + 100).map(|n| (n % 3 > 0).then_some(n)).collect::<Int64Array>());
        let texts: ArrayRef =
            Arc::new(StringViewArray::from_iter_values((from..from + 100).map(|n| format!("the number {n} as text"))));
        RecordBatch::try_from_iter_with_nullable([("n", numbers, true), ("t", texts, false)]).unwrap()
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_leaves_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), &batch(0).schema()).unwrap();
        (0..20).for_each(|n| writer.push(&batch(n * 100)).unwrap());
        let file = writer.finish().unwrap();
        assert_eq!(file.rows, 2000);
        assert!(file.bytes > 2000 * 8);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let (mut one, two) = (file.read().unwrap(), file.read().unwrap());
        assert_eq!(one.next().unwrap().unwrap(), batch(0), "two readers do not disturb each other");
        for (n, read) in two.enumerate() {
            assert_eq!(read.unwrap(), batch(n as i64 * 100));
        }
        drop(one);
        drop(file);
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_spill_error() {
        let answer = Writer::create(Path::new("/nonexistent/directory"), &batch(0).schema());
        assert!(matches!(answer, Err(JoinError::Spill(_))));
    }
}
