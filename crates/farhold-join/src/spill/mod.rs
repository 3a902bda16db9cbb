//! Spill files: batches of one schema in Arrow's IPC stream format, in files without a name.
//!
//! ```text
//!   Writer ── push ──▶ batches of at most `chunk_bytes` ──▶ file        finish ──▶ SpillFile
//!   SpillFile ── read ──▶ a thread that decodes one batch ahead ──▶ Reader (an iterator), any number of times
//! ```
//!
//! The places of the stream's parts are kept in memory. So each part is read at once into the memory in which its batch
//! stays, and several writers may share a file. Creating a file is expensive where many have just been deleted (ext4
//! examines each file that was deleted in the last seconds).
//!
//! A file is unlinked when it is created. So the disk gets its space back when the last handle closes: at the end of
//! the join, on an error, a panic, a cancellation, or the end of the process.

mod flags;
mod open;

pub use flags::{FlagReader, FlagWriter};

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::iter;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;

use self::open::OpenFile;
use crate::JoinError;
use crate::pages::{Pages, buffer_of};

/// Bytes of a file's write and read buffers.
const BUFFER_BYTES: usize = 8 << 10;

/// A file without a name in `directory`.
fn unnamed_file(directory: &Path) -> Result<File, JoinError> {
    tempfile::tempfile_in(directory).map_err(JoinError::Spill)
}

/// Arrow wraps the errors of the disk; this unwraps them.
fn from_ipc(error: ArrowError) -> JoinError {
    match error {
        ArrowError::IoError(_, error) => JoinError::Spill(error),
        other => JoinError::Arrow(other),
    }
}

/// A file to which writers append one after the other. The first of them creates it; other files like this may share
/// it.
#[derive(Debug)]
pub struct SharedFile {
    directory: PathBuf,
    /// The batches that are read lie in pages of their own, and the kernel does not read ahead.
    gives_back: bool,
    file: OnceLock<Arc<OpenFile>>,
    /// The parts of the file that were written here.
    written: Mutex<Vec<Range<u64>>>,
}

impl SharedFile {
    pub fn new(directory: &Path, gives_back: bool) -> Arc<Self> {
        let (file, written) = (OnceLock::new(), Mutex::default());
        Arc::new(Self { directory: directory.into(), gives_back, file, written })
    }

    fn opened(&self) -> io::Result<&File> {
        let file = self.file.get().ok_or_else(|| io::Error::other("a file that nobody has written to"))?;
        Ok(&file.file)
    }

    /// The file, which is created if necessary.
    fn make(&self) -> Result<&OpenFile, JoinError> {
        if self.file.get().is_none() {
            // Another writer may have created one meanwhile; then this one is closed.
            let made = OpenFile::of(&self.directory, self.gives_back).map_err(JoinError::Spill)?;
            let _ = self.file.set(made);
        }
        self.file.get().map(Arc::as_ref).ok_or_else(|| JoinError::Spill(io::Error::other("a file that is not there")))
    }

    fn note(&self, part: &Range<u64>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => written.push(part.clone()),
        }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.get().filter(|file| Arc::strong_count(file) > 1) {
            file.free(self.written.get_mut().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Writes at a position.
struct At {
    file: Arc<SharedFile>,
    place: u64,
    /// A write has failed. The rest of a buffer must then not go where others write meanwhile.
    is_broken: bool,
}

impl Write for At {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_broken {
            return Err(io::Error::other("an earlier write has failed"));
        }
        let written = self.file.opened()?.write_at(bytes, self.place)?;
        self.place += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A spill file being written.
pub struct Writer {
    stream: StreamWriter<BufWriter<At>>,
    file: Arc<SharedFile>,
    rows: u64,
    /// The ranges of the stream's parts: the schema, the batches.
    parts: Vec<Range<u64>>,
}

impl Writer {
    /// A writer to a file that others may also write to.
    pub fn create(file: Arc<SharedFile>, schema: &SchemaRef) -> Result<Self, JoinError> {
        let mut end = file.make()?.end.lock().unwrap_or_else(PoisonError::into_inner);
        let at = BufWriter::with_capacity(BUFFER_BYTES, At { file: Arc::clone(&file), place: *end, is_broken: false });
        let mut stream = StreamWriter::try_new(at, schema).map_err(from_ipc)?;
        stream.get_mut().flush().map_err(JoinError::Spill)?;
        let start = mem::replace(&mut *end, stream.get_ref().get_ref().place);
        let schema = start..*end;
        drop(end);
        file.note(&schema);
        Ok(Self { stream, file, rows: 0, parts: iter::once(schema).collect() })
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), JoinError> {
        self.rows += batch.num_rows() as u64;
        self.append(|stream| stream.write(batch))
    }

    /// Appends a part of the stream at the file's end.
    fn append(
        &mut self,
        write: impl FnOnce(&mut StreamWriter<BufWriter<At>>) -> Result<(), ArrowError>,
    ) -> Result<(), JoinError> {
        let mut end = self.file.make()?.end.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.get_mut().get_mut().place = *end;
        let written = write(&mut self.stream).map_err(from_ipc);
        if let Err(error) = written.and_then(|()| self.stream.get_mut().flush().map_err(JoinError::Spill)) {
            self.stream.get_mut().get_mut().is_broken = true;
            return Err(error);
        }
        let start = mem::replace(&mut *end, self.stream.get_ref().get_ref().place);
        let part = start..*end;
        drop(end);
        self.file.note(&part);
        self.parts.push(part);
        Ok(())
    }

    pub fn finish(mut self) -> Result<SpillFile, JoinError> {
        self.append(StreamWriter::finish)?;
        let bytes = self.parts.iter().map(|part| part.end - part.start).sum();
        Ok(SpillFile { file: self.file, rows: self.rows, bytes, parts: self.parts.into() })
    }
}

/// A spill file that has been written, or its part of a shared file.
#[derive(Debug, Clone)]
pub struct SpillFile {
    file: Arc<SharedFile>,
    pub rows: u64,
    pub bytes: u64,
    parts: Arc<[Range<u64>]>,
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

    /// Hands every batch to `each`, until that returns false because the rest is not wanted.
    fn decode(&self, each: impl Fn(RecordBatch) -> bool) -> Result<(), JoinError> {
        let (mut decoder, file) = (StreamDecoder::new(), self.file.opened().map_err(JoinError::Spill)?);
        for Range { start, end } in self.parts.iter().cloned() {
            let length = (end - start) as usize;
            let words = length.div_ceil(8);
            let mut pages = if self.file.gives_back { Pages::<u64>::apart(words)? } else { Pages::<u64>::new(words)? };
            file.read_exact_at(&mut pages.bytes_mut()[..length], start).map_err(JoinError::Spill)?;
            let mut part = buffer_of(pages, length);
            // A batch of no bytes comes out with the next part; the last part is the stream's end.
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

/// Batches of a spill file, in the order in which they were written.
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
        // The thread's next send fails, so the thread ends.
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
    fn files_are_read_as_they_were_written_and_leave_no_name() {
        for gives_back in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let shared = SharedFile::new(directory.path(), gives_back);
            // In turn, so that the parts of one lie between those of the others.
            let mut writers = [0; 3].map(|_| Writer::create(Arc::clone(&shared), &batch(0).schema()).unwrap());
            for n in 0..20 {
                for (number, writer) in (0..).zip(&mut writers).filter(|(number, _)| n % (number + 1) == 0) {
                    writer.push(&batch(number * 10_000 + n * 100)).unwrap();
                }
            }
            let files = writers.map(|writer| writer.finish().unwrap());
            assert_eq!(files.each_ref().map(|file| file.rows), [2000, 1000, 700]);
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
            for (number, file) in (0..).zip(&files) {
                assert!(file.bytes > file.rows * 8);
                let (mut one, two) = (file.read().unwrap(), file.read().unwrap());
                assert_eq!(
                    one.next().unwrap().unwrap(),
                    batch(number * 10_000),
                    "two readers do not disturb each other"
                );
                for (n, read) in (0..20).filter(|n| n % (number + 1) == 0).zip(two) {
                    assert_eq!(read.unwrap(), batch(number * 10_000 + n * 100));
                }
            }
        }
    }

    #[test]
    fn several_threads_may_write_to_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let shared = SharedFile::new(directory.path(), false);
        let write = |number: i64| {
            let mut writer = Writer::create(Arc::clone(&shared), &batch(0).schema()).unwrap();
            (0..50).for_each(|n| writer.push(&batch(number * 10_000 + n * 100)).unwrap());
            writer.finish().unwrap()
        };
        let files = thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|number| scope.spawn(move || write(number)));
            threads.map(|thread| thread.join().unwrap())
        });
        for (number, file) in (0..).zip(files) {
            let read: Vec<RecordBatch> = file.read().unwrap().map(Result::unwrap).collect();
            assert!(read == (0..50).map(|n| batch(number * 10_000 + n * 100)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_spill_error() {
        let answer = Writer::create(SharedFile::new(Path::new("/nonexistent/directory"), false), &batch(0).schema());
        assert!(matches!(answer, Err(JoinError::Spill(_))));
    }
}
