//! What a journal's files say: all of a segment, and the end of a start's.

use super::{
    BATCH, BATCH_HEADER, Closing, GRANULE, HEADER_BYTES, Item, MAGIC, MARK_AT, Standing, TAIL, VERSION, items,
    segment_name, segments,
};
use crate::durable::files::{Directory, DurableFile};
use crate::durable::{DurableError, Identity, check_words, unseal, word};
use crate::log::record::hash;
use farhold_fabric::NodeId;

/// Takes the items of a batch, or says what is wrong with them.
pub type Visit<'v> = dyn FnMut(&[u8], Closing) -> Result<(), &'static str> + 'v;

/// What is known of the end of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The last epoch closed.
    pub closed: u32,
    /// The latest epoch of any record, including epochs that are not closed.
    pub epoch_max: u32,
    /// The lsn of the last batch, 0 if there is none.
    pub last: u64,
    /// What the first batch says about the one before it.
    pub previous: u64,
    /// The configuration of the last batch.
    pub configuration: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Of a [journal](last) without a batch: the number of its first segment. Those before it have been removed.
    pub segments_gone: u32,
}

/// Bytes of a segment's file.
///
/// # Errors
/// [`DurableError::Io`].
pub fn segment_bytes(
    directory: &dyn Directory,
    node: NodeId,
    (start, number): (u32, u32),
) -> Result<u64, DurableError> {
    let name = segment_name(node, start, number);
    let len = directory.open(&name).and_then(|file| file.len());
    len.map_err(|error| DurableError::io(&format!("open {name}"), &error))
}

/// Reads one segment: every batch of it, in order.
///
/// # Errors
/// [`DurableError::Damaged`], [`DurableError::Foreign`], [`DurableError::Io`].
pub fn read_segment(
    directory: &dyn Directory,
    identity: &Identity,
    (start, number): (u32, u32),
    visit: &mut Visit<'_>,
) -> Result<Found, DurableError> {
    let name = segment_name(identity.node, start, number);
    let file = directory.open(&name).map_err(|error| DurableError::io(&format!("read {name}"), &error))?;
    let bytes = read_whole(&*file, &name)?;
    scan(&name, &bytes, identity, (start, number), visit)
}

/// The bytes of a segment whose file has the length that its header says; of another file the header alone.
fn read_whole(file: &dyn DurableFile, name: &str) -> Result<Vec<u8>, DurableError> {
    let io = |error: std::io::Error| DurableError::io(&format!("read {name}"), &error);
    let len = file.len().map_err(io)?;
    let mut bytes = vec![0; len.min(HEADER_BYTES) as usize];
    file.read_at(0, &mut bytes).map_err(io)?;
    if len > HEADER_BYTES
        && let Some(words) = unseal::<8>(&bytes)
    {
        // Before there is memory for it: a damaged file system may say anything.
        check_words(name, &words[7..], &[("length", len)])?;
        bytes.resize(len as usize, 0);
        file.read_at(0, &mut bytes).map_err(io)?;
    }
    Ok(bytes)
}

pub(super) fn scan(
    name: &str,
    bytes: &[u8],
    identity: &Identity,
    (start, number): (u32, u32),
    visit: &mut Visit<'_>,
) -> Result<Found, DurableError> {
    let damaged = |at: u64, what| Err(DurableError::damaged(name, at, what));
    let head = bytes.get(..HEADER_BYTES as usize).unwrap_or(bytes);
    check_header(name, head, identity, (start, number), bytes.len() as u64)?;
    let segment_bytes = bytes.len() as u64;
    // A mark that is itself half written does not count.
    let mark = unseal::<1>(&head[MARK_AT as usize..]).map_or(0, |mark| mark[0]);
    let lsn = |at: usize| u64::from(number) * segment_bytes + at as u64;
    let mut found = Found { file_bytes: segment_bytes, ..Found::default() };
    let mut at = HEADER_BYTES as usize;
    while let Some((size, words)) = batch(bytes, at, lsn(at), start) {
        if found.last == 0 {
            found.previous = words[2];
        } else if words[2] != found.last {
            return damaged(at as u64, "a batch before it is missing");
        }
        let closing = Closing::of(&words);
        let body = &bytes[at + BATCH_HEADER..at + size];
        visit(body, closing).map_err(|what| DurableError::damaged(name, at as u64, what))?;
        found.closed = found.closed.max(closing.closed);
        found.epoch_max = found.epoch_max.max(closing.epoch_max);
        found.configuration = closing.configuration;
        found.last = lsn(at);
        at += size;
    }
    if (at as u64) < mark {
        return damaged(at as u64, "a batch that was durable is not whole");
    }
    let mut behind = (at + GRANULE..bytes.len().saturating_sub(BATCH_HEADER)).step_by(GRANULE);
    if behind.any(|later| batch(bytes, later, lsn(later), start).is_some()) {
        return damaged(at as u64, "a batch is not whole and a later one is");
    }
    Ok(found)
}

/// Checks the header of a segment whose file has so many bytes.
pub(super) fn check_header(
    name: &str,
    head: &[u8],
    identity: &Identity,
    (start, number): (u32, u32),
    file_bytes: u64,
) -> Result<(), DurableError> {
    let damaged = |at: u64, what| Err(DurableError::damaged(name, at, what));
    if head.len() < HEADER_BYTES as usize {
        return damaged(head.len() as u64, "it is cut off");
    }
    check_words(name, &[word(head, 0), word(head, 8)], &[("magic number", MAGIC), ("version", VERSION)])?;
    let Some(words) = unseal::<8>(head) else { return damaged(0, "its header's checksum is another") };
    let expected = [
        ("cluster", identity.cluster),
        ("node", u64::from(identity.node.0)),
        ("number of nodes", u64::from(identity.nodes)),
        ("start", u64::from(start)),
        ("number", u64::from(number)),
        ("length", file_bytes),
    ];
    check_words(name, &words[2..], &expected)
}

/// Whether a segment has a configuration. Its node may be writing it: what is not whole yet does not count, and is no damage.
///
/// # Errors
/// [`DurableError::Io`].
pub(in crate::durable) fn has_standing(
    directory: &dyn Directory,
    identity: &Identity,
    (start, number): (u32, u32),
) -> Result<bool, DurableError> {
    let name = segment_name(identity.node, start, number);
    let file = match directory.open(&name) {
        Ok(file) => file,
        // Forgotten since it was listed.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(DurableError::io(&format!("read {name}"), &error)),
    };
    let bytes = read_whole(&*file, &name)?;
    let lsn = |at: usize| u64::from(number) * bytes.len() as u64 + at as u64;
    let mut at = HEADER_BYTES as usize;
    while let Some((size, words)) = batch(&bytes, at, lsn(at), start) {
        if words[4] != 0 {
            return Ok(true);
        }
        at += size;
    }
    Ok(false)
}

/// The size of the batch at the beginning of `bytes`, of which the rest may not be there. It is not checked.
pub(super) fn batch_size(bytes: &[u8], lsn: u64) -> Option<u64> {
    let head = bytes.get(..BATCH_HEADER)?;
    let size = word(head, 0);
    ((size >> 32) as u32 == BATCH && word(head, 8) == lsn).then_some(size & u64::from(u32::MAX))
}

/// The batch at a position: its size and the words of its header.
pub(super) fn batch(bytes: &[u8], at: usize, lsn: u64, start: u32) -> Option<(usize, [u64; 7])> {
    let head = bytes.get(at..at + BATCH_HEADER)?;
    let size = word(head, 0);
    if (size >> 32) as u32 != BATCH || word(head, 8) != lsn || word(head, 40) as u32 != start {
        return None;
    }
    let words = unseal::<7>(head)?;
    let size = size as u32 as usize;
    let body = bytes.get(at + BATCH_HEADER..at.checked_add(size)?)?;
    let tail = size.is_multiple_of(GRANULE) && body.len() >= 8 && {
        word(body, body.len() - 8) == size as u64 | u64::from(TAIL) << 32
    };
    (tail && hash(lsn, body) == words[6]).then_some((size, words))
}

/// The end of the journal of a node's start, and the last [`Standing`] in it: each segment begins with the one that is known
/// then.
///
/// # Errors
/// Those of [`read_segment`].
pub fn last(
    directory: &dyn Directory,
    identity: &Identity,
    start: u32,
    names: &[String],
) -> Result<(Found, Option<Standing>), DurableError> {
    let (mut all, mut first) = (Found::default(), 0);
    // From the last on: an empty segment has no end to report.
    for (_, number) in segments(names, identity.node).into_iter().rev().filter(|(found, _)| *found == start) {
        let mut standing = None;
        first = number;
        all = read_segment(directory, identity, (start, number), &mut |body, _| {
            for item in items(body) {
                if let Item::Standing(words) = item? {
                    standing = Some(Standing::decode(words).ok_or("a standing makes no sense")?);
                }
            }
            Ok(())
        })?;
        if all.last != 0 {
            return Ok((all, standing));
        }
    }
    Ok((Found { segments_gone: first, ..all }, None))
}

/// Makes durable what is read of a start that has ended. Its process may have ended between a write and its sync, and a power
/// failure must not undo what later steps rely on. The last batch of its [end](last) is written once more: after a failed sync
/// the system may hold pages of it that it takes for durable.
///
/// # Errors
/// [`DurableError::Io`].
pub fn settle(directory: &dyn Directory, identity: &Identity, start: u32, found: &Found) -> Result<(), DurableError> {
    if found.last == 0 {
        return Ok(());
    }
    let (number, at) = ((found.last / found.file_bytes) as u32, found.last % found.file_bytes);
    let name = segment_name(identity.node, start, number);
    let io = |error: std::io::Error| DurableError::io(&format!("write the end of {name} again"), &error);
    let file = directory.open(&name).map_err(io)?;
    let mut head = [0; 8];
    file.read_at(at, &mut head).map_err(io)?;
    let mut bytes = vec![0; word(&head, 0) as u32 as usize];
    file.read_at(at, &mut bytes).map_err(io)?;
    file.write_at(at, &bytes).and_then(|()| file.sync()).map_err(io)
}

/// The epoch that the first batch of a start closed; what the start did itself is later. `None`: its first segment is gone, or
/// empty.
///
/// # Errors
/// Those of [`read_segment`].
pub fn first_closed(
    directory: &dyn Directory,
    identity: &Identity,
    start: u32,
    names: &[String],
) -> Result<Option<u32>, DurableError> {
    if !segments(names, identity.node).contains(&(start, 0)) {
        return Ok(None);
    }
    let mut first = None;
    read_segment(directory, identity, (start, 0), &mut |_, closing| {
        first.get_or_insert(closing.closed);
        Ok(())
    })?;
    Ok(first)
}
