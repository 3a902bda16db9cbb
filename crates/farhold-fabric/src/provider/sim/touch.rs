//! The target's side of an instruction: its bytes, one 64-byte line at a time.

use crate::batch::{Content, OpKind, State, header_of, put_header};
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::object;

/// Bytes that are touched at one instant.
pub(super) const LINE_BYTES: u64 = 64;

/// Touches line `step` of an instruction's bytes. True: there is another line.
pub(super) fn touch(
    content: &mut Content,
    index: usize,
    memory: &RegionMemory,
    step: usize,
) -> Result<bool, FabricError> {
    let (ops, data, _) = content.parts();
    let op = &mut ops[index];
    let len = u64::from(op.len);
    let more = match op.kind {
        OpKind::Read | OpKind::Write => {
            let (from, to) = line(op.at.offset(), len, step as u64);
            let (at, start, part_len) =
                (op.at.offset() + from, op.start as usize + from as usize, (to - from) as usize);
            match op.kind {
                OpKind::Read => memory.copy_out(at, data.bytes_mut(start, part_len))?,
                _ => memory.copy_in(at, data.bytes(start, part_len))?,
            }
            to < len
        }
        OpKind::ReadObject => {
            let (header, payload) = data
                .bytes_mut(op.start as usize, object::HEADER_BYTES + op.len as usize)
                .split_at_mut(object::HEADER_BYTES);
            touch_object(op.at.offset(), header, payload, memory, step)?
        }
        _ => {
            op.execute(data, memory)?;
            false
        }
    };
    if !more {
        op.state = State::Done;
    }
    Ok(more)
}

/// The bytes `from..to` of `len` at `offset` that lie in the `step`th line.
fn line(offset: u64, len: u64, step: u64) -> (u64, u64) {
    let first = LINE_BYTES - offset % LINE_BYTES;
    let from = if step == 0 { 0 } else { first + (step - 1) * LINE_BYTES };
    (from.min(len), (first + step * LINE_BYTES).min(len))
}

/// `read_object`, line by line: the header first, then the payload, then the version again.
fn touch_object(
    at: u64,
    header: &mut [u8],
    payload: &mut [u8],
    memory: &RegionMemory,
    step: usize,
) -> Result<bool, FabricError> {
    if step == 0 {
        let found = memory.read_header(at)?;
        memory.payload_fits(at, found.meta.payload_len(), payload.len())?;
        put_header(&found, header);
    }
    let header = header_of(header);
    let (from, to) = line(at + object::PAYLOAD, header.meta.payload_len() as u64, step as u64);
    if from < to {
        memory.copy_out(at + object::PAYLOAD + from, &mut payload[from as usize..to as usize])?;
        return Ok(true);
    }
    memory.recheck_version(at, header.version)?;
    Ok(false)
}
