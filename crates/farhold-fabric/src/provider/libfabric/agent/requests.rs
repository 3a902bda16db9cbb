//! Executes and answers requests: batches of instructions, by the CPU next to the memory, and questions.

use super::regions::{check_member, learn, open_to_nic};
use super::{Home, Place};
use crate::address::{Address, FarPtr, NodeId, RegionId};
use crate::batch::{Op, OpKind, put_header};
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::object::HEADER_BYTES;
use crate::provider::libfabric::admission::Standing;
use crate::provider::libfabric::frame::{self, Header, Kind, Reader, Tag, WireOp};

impl Home {
    pub(super) fn request(&mut self, place: &Place<'_>, header: &Header, part: &[u8]) {
        let index = header.session as usize;
        let Some(session) = self.sessions[index].as_mut() else { return };
        let mut assembly = std::mem::take(&mut session.request);
        if let Some(body) = assembly.add(header, part) {
            let mut answer = std::mem::take(&mut self.answer);
            answer.clear();
            if self.carry_out(place, index, body, &mut answer).is_some() {
                let token = self.sessions[index].as_ref().map_or(0, |session| session.token);
                let head = Header::new(Kind::Answer, header.session, token, header.number, answer.len());
                self.say(place.channel, index, head, &answer);
            }
            self.answer = answer;
        }
        if let Some(session) = self.sessions[index].as_mut() {
            session.request = assembly;
        }
    }

    /// `None` for an invalid request, which gets no answer.
    fn carry_out(&mut self, place: &Place<'_>, index: usize, body: &[u8], answer: &mut Vec<u8>) -> Option<()> {
        let mut reader = Reader(body);
        let tag = Tag::of(reader.u32()?)?;
        reader.u32()?;
        let standing = self.sessions[index].as_mut()?.standing(place.shared);
        if tag == Tag::Ops {
            return self.operate(place, standing, reader, answer);
        }
        let (a, b) = (reader.u32()?, reader.u32()?);
        let session = self.sessions[index].as_mut()?;
        match tag {
            Tag::Ops => {}
            Tag::Learn => {
                let region = RegionId(u8::try_from(a).ok()?);
                put_result(answer, learn(place, standing, region).as_deref());
            }
            Tag::Lane => {
                let (port, from) = (u16::try_from(a).ok()?, u16::try_from(b).ok()?);
                put_result(answer, session.open_lane(place, port, from).as_deref());
            }
            Tag::Taken => put_result(answer, session.taken(place, u64::from(a)).as_deref()),
            Tag::Closed => {
                place.shared.closings.note(Address { node: session.node, port: u16::try_from(a).ok()? });
                frame::put_done(answer, &[]);
            }
        }
        Some(())
    }

    fn operate(
        &mut self,
        place: &Place<'_>,
        standing: Standing,
        mut reader: Reader<'_>,
        answer: &mut Vec<u8>,
    ) -> Option<()> {
        let mut room = frame::TOTAL_MAX;
        while !reader.0.is_empty() {
            let op = WireOp::take(&mut reader)?;
            room = room.checked_sub(op.answer_bytes_max())?;
            let bytes = if op.kind == OpKind::Write { reader.padded(op.len as usize)? } else { &[] };
            let node = place.shared.node();
            let start = answer.len();
            let allowed = check_member(place, standing);
            let done = allowed.and_then(|()| self.memory(place, &op)).and_then(|memory| match op.kind {
                OpKind::Flush if op.a == frame::NIC_KEY => open_to_nic(place, &op, memory, answer),
                _ => execute(&op, node, memory, bytes, answer),
            });
            if let Err(error) = done {
                answer.truncate(start);
                frame::put_error(answer, &error);
            }
        }
        Some(())
    }
}

fn put_result(answer: &mut Vec<u8>, result: Result<&[u8], &FabricError>) {
    match result {
        Ok(bytes) => frame::put_done(answer, bytes),
        Err(error) => frame::put_error(answer, error),
    }
}

/// Does one instruction with the CPU.
fn execute(
    op: &WireOp,
    node: NodeId,
    memory: &RegionMemory,
    bytes: &[u8],
    answer: &mut Vec<u8>,
) -> Result<(), FabricError> {
    match op.kind {
        OpKind::Read => {
            memory.check(op.offset, u64::from(op.len))?;
            memory.copy_out(op.offset, frame::put_room(answer, op.len as usize))
        }
        OpKind::Write => {
            memory.copy_in(op.offset, bytes)?;
            frame::put_done(answer, &[]);
            Ok(())
        }
        OpKind::ReadObject => {
            // The length is known after the read: at most the length asked for.
            let start = answer.len();
            let room = frame::put_room(answer, HEADER_BYTES + op.len as usize);
            let (head, payload) = room.split_at_mut(HEADER_BYTES);
            let header = memory.read_object(op.offset, payload)?;
            put_header(&header, head);
            let len = HEADER_BYTES + header.meta.payload_len();
            answer[start + 4..start + 8].copy_from_slice(&(len as u32).to_le_bytes());
            answer.truncate(start + 8 + len.next_multiple_of(8));
            Ok(())
        }
        OpKind::Flush => {
            memory.flush(op.offset, u64::from(op.len))?;
            frame::put_done(answer, &[]);
            Ok(())
        }
        _ => {
            let word = memory.word(op.offset)?;
            let at = FarPtr::new(node, op.region, op.offset);
            let old = Op::word(op.kind, at, op.a, op.b).execute_word(word);
            frame::put_done(answer, &old.to_le_bytes());
            Ok(())
        }
    }
}
