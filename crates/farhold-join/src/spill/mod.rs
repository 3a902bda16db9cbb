//! Spill files: batches of one schema in Arrow's IPC stream format, in files without a name.
//!
//! ```text
//!   Writer ── push ──▶ batches of at most `chunk_bytes` ──▶ file        finish ──▶ SpillFile
//!   SpillFile ── read ──▶ a thread that decodes one batch ahead ──▶ Reader (an iterator), any number of times
//! ```
//!
//! Where the parts of the stream begin is remembered, so that each is read at once into the memory in which its batch stays.
//!
//! A file is unlinked when it is made, so that the disk has it back when the last handle closes: at the end of the join, on
//! an error, a panic, a cancellation, or the end of the process.

mod flags;

pub use flags::{FlagReader, FlagWriter};

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;

use crate::JoinError;
use crate::pages::{Pages, buffer_of};

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
    stream: StreamWriter<Counted>,
    rows: u64,
    /// Where each part of the stream ends: the schema, the batches.
    ends: Vec<u64>,
    gives_back: bool,
}

struct Counted {
    file: BufWriter<File>,
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
    /// `gives_back`: the batches that are read are in pages of their own, and the kernel reads nothing ahead by itself.
    pub fn create(directory: &Path, schema: &SchemaRef, gives_back: bool) -> Result<Self, JoinError> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, unnamed_file(directory)?);
        let stream = StreamWriter::try_new(Counted { file, bytes: 0 }, schema).map_err(from_ipc)?;
        let ends = vec![stream.get_ref().bytes];
        Ok(Self { stream, rows: 0, ends, gives_back })
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), JoinError> {
        self.rows += batch.num_rows() as u64;
        self.stream.write(batch).map_err(from_ipc)?;
        self.ends.push(self.stream.get_ref().bytes);
        Ok(())
    }

    pub fn finish(mut self) -> Result<SpillFile, JoinError> {
        self.stream.finish().map_err(from_ipc)?;
        let Counted { file, bytes } = self.stream.into_inner().map_err(from_ipc)?;
        let file = file.into_inner().map_err(|error| JoinError::Spill(error.into_error()))?;
        self.ends.push(bytes);
        if self.gives_back {
            // The kernel reads ahead by megabytes, into pages that it cannot take back before the disk has answered: under a
            // limit of its own that ends processes. Each part is asked for at once, a part ahead of its reader.
            // SAFETY: advice about an open file; it touches no memory. It may be refused.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        }
        Ok(SpillFile {
            file: Arc::new(file),
            rows: self.rows,
            bytes,
            ends: self.ends.into(),
            gives_back: self.gives_back,
        })
    }
}

/// A spill file that has been written.
#[derive(Debug, Clone)]
pub struct SpillFile {
    file: Arc<File>,
    pub rows: u64,
    pub bytes: u64,
    ends: Arc<[u64]>,
    gives_back: bool,
}

impl SpillFile {
    /// Reads from the start, one batch ahead of the caller.
    pub fn read(&self) -> Result<Reader, JoinError> {
        let (sender, batches) = mpsc::sync_channel(1);
        let file = self.clone();
        let ahead = thread::Builder::new().name("join-read-ahead".into()).spawn(move || {
            let answer = file.decode(|batch| sender.send(Ok(batch)).is_ok());
            answer.or_else(|error| sender.send(Err(error))).is_ok()
        });
        let ahead = ahead.map_err(JoinError::Spill)?;
        Ok(Reader { batches: Some(batches), ahead: Some(ahead) })
    }

    /// Hands every batch to `each`, until that answers false: then nobody wants the rest.
    fn decode(&self, each: impl Fn(RecordBatch) -> bool) -> Result<(), JoinError> {
        let (mut decoder, mut start) = (StreamDecoder::new(), 0);
        for &end in &*self.ends {
            let length = (end - start) as usize;
            let words = length.div_ceil(8);
            let mut pages = if self.gives_back { Pages::<u64>::apart(words)? } else { Pages::<u64>::new(words)? };
            self.file.read_exact_at(&mut pages.bytes_mut()[..length], start).map_err(JoinError::Spill)?;
            start = end;
            let mut part = buffer_of(pages, length);
            // A batch of no bytes comes out with the next part; the last is the stream's end.
            while !part.is_empty() {
                if let Some(batch) = decoder.decode(&mut part).map_err(from_ipc)?
                    && !each(batch)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
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
        for gives_back in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let mut writer = Writer::create(directory.path(), &batch(0).schema(), gives_back).unwrap();
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
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_spill_error() {
        let answer = Writer::create(Path::new("/nonexistent/directory"), &batch(0).schema(), false);
        assert!(matches!(answer, Err(JoinError::Spill(_))));
    }
}
