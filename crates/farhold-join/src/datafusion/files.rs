//! Local files, read directly if the kernel has them in memory.
//!
//! ```text
//!   get_ranges ── preadv2(RWF_NOWAIT) on the calling thread ──┬─ all was in the page cache
//!                                                             └─ the rest: a blocking thread, which may wait for the disk
//! ```
//!
//! `LocalFileSystem` hands every read to a blocking thread, which zeroes the memory before it reads into it. Where the
//! page cache has the bytes, the zeroing costs as much as the copy. The caller sleeps, and wakes on another processor
//! than the one that has the bytes in its cache. Everything except reads of ranges, and every error, is left to
//! `LocalFileSystem`.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use futures::stream::BoxStream;

/// Bytes of a file, as `ObjectStore` hands them out.
type Bytes = bytes::Bytes;

/// From now on, reads of this machine's files use this store, in all sessions of the environment. Nothing is changed
/// where the environment has another store for them than DataFusion's own.
pub fn install(environment: &RuntimeEnv) {
    let (url, theirs) = (ObjectStoreUrl::local_filesystem(), LocalFileSystem::new());
    let is_theirs = environment.object_store(&url).is_ok_and(|store| store.to_string() == theirs.to_string());
    if is_theirs {
        environment.register_object_store(url.as_ref(), Arc::new(LocalFiles { theirs }));
    }
}

/// See the module.
#[derive(Debug)]
struct LocalFiles {
    theirs: LocalFileSystem,
}

impl fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalFiles({})", self.theirs)
    }
}

/// Ranges of a file, of which some bytes have been read.
struct Reading {
    file: File,
    parts: Vec<Part>,
}

struct Part {
    offset: u64,
    length: usize,
    /// The bytes that have been read, from the range's start on.
    bytes: Vec<u8>,
}

impl Reading {
    fn of(path: &std::path::Path, ranges: &[Range<u64>]) -> io::Result<Self> {
        let part = |range: &Range<u64>| {
            let length = range.end.checked_sub(range.start).and_then(|length| usize::try_from(length).ok());
            let length = length.ok_or(io::ErrorKind::InvalidInput)?;
            Ok(Part { offset: range.start, length, bytes: Vec::with_capacity(length) })
        };
        let file = File::open(path)?;
        Ok(Self { file, parts: ranges.iter().map(part).collect::<io::Result<_>>()? })
    }

    /// Continues to read. `false`: the rest is not in memory, or this file system cannot tell.
    fn read(&mut self, flags: libc::c_int) -> io::Result<bool> {
        for part in &mut self.parts {
            while part.bytes.len() < part.length {
                let done = part.bytes.len();
                let room = &mut part.bytes.spare_capacity_mut()[..part.length - done];
                let vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
                let offset = libc::off_t::try_from(part.offset + done as u64).map_err(io::Error::other)?;
                // SAFETY: the vector is one piece of memory, which is borrowed mutably and as long as it says.
                let read = unsafe { libc::preadv2(self.file.as_raw_fd(), &raw const vector, 1, offset, flags) };
                match usize::try_from(read) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    // SAFETY: the kernel has written that many bytes behind the first `done`, and there was room for
                    // them.
                    Ok(read) => unsafe { part.bytes.set_len(done + read) },
                    Err(_) => match io::Error::last_os_error() {
                        error if error.kind() == io::ErrorKind::Interrupted => {}
                        error if flags != 0 && is_later(&error) => return Ok(false),
                        error => return Err(error),
                    },
                }
            }
        }
        Ok(true)
    }

    fn bytes(self) -> Vec<Bytes> {
        self.parts.into_iter().map(|part| part.bytes.into()).collect()
    }
}

/// Whether the same read may succeed when it is allowed to wait.
fn is_later(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS))
}

/// All ranges of a file.
async fn read(path: std::path::PathBuf, ranges: &[Range<u64>]) -> io::Result<Vec<Bytes>> {
    let mut reading = Reading::of(&path, ranges)?;
    if reading.read(libc::RWF_NOWAIT)? {
        return Ok(reading.bytes());
    }
    let rest = move || reading.read(0).map(|_| reading.bytes());
    SpawnedTask::spawn_blocking(rest).join().await.map_err(io::Error::other)?
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        match read(self.theirs.path_to_filesystem(location)?, ranges).await {
            Ok(bytes) => Ok(bytes),
            Err(_) => self.theirs.get_ranges(location, ranges).await,
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.theirs.get_opts(location, options).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.theirs.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.theirs.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.theirs.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.theirs.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.theirs.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.theirs.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.theirs.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.theirs.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    use datafusion::object_store::memory::InMemory;

    fn file(bytes: &[u8]) -> (tempfile::NamedTempFile, Path) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let path = Path::from_absolute_path(file.path()).unwrap();
        (file, path)
    }

    fn store() -> (RuntimeEnv, Arc<dyn ObjectStore>) {
        let environment = RuntimeEnv::default();
        install(&environment);
        let store = environment.object_store(ObjectStoreUrl::local_filesystem()).unwrap();
        (environment, store)
    }

    #[tokio::test]
    async fn ranges_are_what_the_file_has_there() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
        let (_file, path) = file(&bytes);
        let (_environment, store) = store();
        assert!(store.to_string().starts_with("LocalFiles("));
        let ranges = [0..1, 4095..4097, 7..7, 100_000..300_000, 0..300_000];
        let read = store.get_ranges(&path, &ranges).await.unwrap();
        for (read, range) in read.iter().zip(&ranges) {
            assert!(read[..] == bytes[range.start as usize..range.end as usize], "{range:?}");
        }
        assert_eq!(read.len(), ranges.len());
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_an_error_of_the_store() {
        let (_file, path) = file(b"twelve bytes");
        let (_environment, store) = store();
        let theirs = LocalFileSystem::new();
        for range in [4..13, 13..14] {
            let ranges = std::slice::from_ref(&range);
            let ours = store.get_ranges(&path, ranges).await.unwrap_err();
            assert_eq!(ours.to_string(), theirs.get_ranges(&path, ranges).await.unwrap_err().to_string());
        }
        let missing = Path::from("no/such/file");
        let error = store.get_ranges(&missing, std::slice::from_ref(&(0..1))).await.unwrap_err();
        assert!(matches!(error, datafusion::object_store::Error::NotFound { .. }), "{error}");
    }

    #[test]
    fn another_store_stays() {
        let environment = RuntimeEnv::default();
        let url = ObjectStoreUrl::local_filesystem();
        environment.register_object_store(url.as_ref(), Arc::new(InMemory::new()));
        install(&environment);
        assert_eq!(environment.object_store(&url).unwrap().to_string(), InMemory::new().to_string());
    }

    #[test]
    fn what_is_not_in_memory_is_read_where_it_may_wait() {
        let bytes = vec![7; 1 << 20];
        let (file, _) = file(&bytes);
        file.as_file().sync_all().unwrap();
        // SAFETY: advice about a file that is open.
        let advised = unsafe { libc::posix_fadvise(file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(advised, 0);
        let mut reading = Reading::of(file.path(), std::slice::from_ref(&(10..1 << 20))).unwrap();
        // The kernel decides whether to drop the pages. The second attempt continues where the first ended.
        let _ = reading.read(libc::RWF_NOWAIT).unwrap();
        assert!(reading.read(0).unwrap());
        assert!(reading.bytes()[0][..] == bytes[10..]);
    }
}
