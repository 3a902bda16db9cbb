//! Frames that are being filled: what goes to one peer in one turn travels together.
//!
//! A frame costs its sender a trip through the system and its receiver another, some microseconds each over TCP, whatever is in
//! it. One more instruction in it costs a tenth of that. So the requests of many tasks of a thread share frames, and so do the
//! answers to them. The sender says when a frame is to leave: nothing here waits for time to pass.

use super::channel::{Channel, FRAME_BYTES, Peer, Refusal};
use super::frame::HEADER;
use std::collections::VecDeque;

/// A frame from which this much is missing is not filled further.
const REST_MAX: usize = 2048;
/// A tag has at most one of this many parts of the provider's frames.
const SHARES: usize = 4;
/// Frames' memory that is kept.
const SPARE_MAX: usize = 8;

/// A frame for a peer.
pub(super) struct Filled {
    pub peer: Peer,
    /// What it belongs to: see [`super::channel::Event::Lost`].
    pub tag: u64,
    pub frame: Vec<u8>,
}

/// See the module. At most one frame a tag is being filled.
#[derive(Default)]
pub(super) struct Packing {
    filling: Vec<Filled>,
    spare: Vec<Vec<u8>>,
}

impl Packing {
    /// Is nothing being filled?
    pub fn is_empty(&self) -> bool {
        self.filling.is_empty()
    }

    /// Adds a parcel. Returned frames are full and must be sent now, in this order.
    pub fn add(&mut self, peer: Peer, tag: u64, head: &[u8; HEADER], part: &[u8]) -> [Option<Filled>; 2] {
        let need = HEADER + part.len();
        assert!(need <= FRAME_BYTES, "a parcel of {need} bytes");
        let mut at = self.filling.iter().position(|it| it.tag == tag);
        let full = at.filter(|at| self.filling[*at].frame.len().next_multiple_of(8) + need > FRAME_BYTES);
        let full = full.map(|at| self.filling.swap_remove(at));
        if full.is_some() {
            at = None;
        }
        let at = at.unwrap_or_else(|| {
            let frame = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(FRAME_BYTES));
            self.filling.push(Filled { peer, tag, frame });
            self.filling.len() - 1
        });
        let frame = &mut self.filling[at].frame;
        frame.resize(frame.len().next_multiple_of(8), 0);
        frame.extend_from_slice(head);
        frame.extend_from_slice(part);
        let is_enough = frame.len() + REST_MAX > FRAME_BYTES;
        [full, is_enough.then(|| self.filling.swap_remove(at))]
    }

    /// A frame that is being filled, to be sent as it is.
    pub fn take(&mut self) -> Option<Filled> {
        self.filling.pop()
    }

    /// Sends a frame. A frame that is not sent is returned; the memory of a sent one is used again. A tag has at most a share of
    /// the provider's frames: if its peer takes nothing, they are not completed.
    pub fn send(&mut self, channel: &Channel, filled: Filled) -> Result<(), (Refusal, Filled)> {
        // Nor more than are left: many tags of one peer that takes nothing leave some for others, too.
        let left = channel.frames() - channel.count_sending(|_| true);
        if channel.count_sending(|tag| tag == filled.tag) >= left.min(channel.frames() / SHARES) {
            return Err((Refusal::Again, filled));
        }
        match channel.send(filled.peer, filled.tag, &filled.frame) {
            Ok(()) => {
                self.give_back(filled.frame);
                Ok(())
            }
            Err(refusal) => Err((refusal, filled)),
        }
    }

    /// The memory of a frame that has been sent.
    fn give_back(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            frame.clear();
            self.spare.push(frame);
        }
    }

    /// Drops what belongs to this tag.
    pub fn forget(&mut self, tag: u64) {
        self.filling.retain(|it| it.tag != tag);
    }
}

/// Frames that the provider did not take yet. Those of a tag stay in their order: another order loses or mixes up a body's
/// parcels, and messages. Tags do not wait for each other: the peer of one may be dead.
#[derive(Default)]
pub(super) struct Unsent {
    /// None is empty.
    queues: Vec<Queue>,
}

struct Queue {
    tag: u64,
    frames: VecDeque<Filled>,
    /// When the first of them was kept, or the one before it was sent.
    since_ns: u64,
}

impl Unsent {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Frames of all tags.
    pub fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.frames.len()).sum()
    }

    /// Frames of a tag. While there are some, others of the tag must not be sent before them.
    pub fn count_of(&self, tag: u64) -> usize {
        self.queues.iter().find(|queue| queue.tag == tag).map_or(0, |queue| queue.frames.len())
    }

    /// Keeps a frame, behind the others of its tag.
    pub fn push(&mut self, filled: Filled, now_ns: u64) {
        match self.queues.iter_mut().find(|queue| queue.tag == filled.tag) {
            Some(queue) => queue.frames.push_back(filled),
            None => self.queues.push(Queue { tag: filled.tag, frames: VecDeque::from([filled]), since_ns: now_ns }),
        }
    }

    /// Drops what belongs to this tag.
    pub fn forget(&mut self, tag: u64) {
        self.queues.retain(|queue| queue.tag != tag);
    }

    /// Tries the frames again, those of each tag until one is refused. Returns the tags of peers that cannot be reached, and
    /// drops their frames.
    pub fn send_all(&mut self, now_ns: u64, mut send: impl FnMut(Filled) -> Result<(), (Refusal, Filled)>) -> Vec<u64> {
        let mut broken = Vec::new();
        for queue in &mut self.queues {
            while let Some(filled) = queue.frames.pop_front() {
                match send(filled) {
                    Ok(()) => queue.since_ns = now_ns,
                    Err((Refusal::Again, filled)) => {
                        queue.frames.push_front(filled);
                        break;
                    }
                    Err((Refusal::Broken, _)) => {
                        broken.push(queue.tag);
                        queue.frames.clear();
                    }
                }
            }
        }
        self.queues.retain(|queue| !queue.frames.is_empty());
        // The first tag may have taken all the room, so the next tag goes first next time.
        if !self.queues.is_empty() {
            self.queues.rotate_left(1);
        }
        broken
    }

    /// Tags, each with the time since when none of its frames was taken.
    pub fn waiting(&mut self) -> impl Iterator<Item = (u64, &mut u64)> {
        self.queues.iter_mut().map(|queue| (queue.tag, &mut queue.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel::{Event, Size};
    use super::super::frame::{self, BODY_MAX, Header, Kind};
    use super::*;

    const PEERS: [Peer; 2] = [Peer::numbered(1), Peer::numbered(2)];

    fn add(packing: &mut Packing, peer: usize, number: u64, body: &[u8]) -> Vec<Filled> {
        let header = Header::new(Kind::Request, 1, 2, number, body.len());
        let parcels = frame::split(header, body);
        parcels.flat_map(|(head, part)| packing.add(PEERS[peer], peer as u64, &head, part)).flatten().collect()
    }

    /// The numbers of the parcels of a frame, with their bytes.
    fn read(filled: &Filled) -> Vec<(u64, Vec<u8>)> {
        assert!(filled.frame.len() <= FRAME_BYTES);
        frame::parcels(&filled.frame).map(|(header, part)| (header.number, part.to_vec())).collect()
    }

    /// Whatever their lengths, parcels come out as they went in, in order, in frames of their own peer.
    #[test]
    fn parcels_come_out_as_they_went_in() {
        let mut packing = Packing::default();
        let (mut sent, mut wanted) = ([vec![], vec![]], [vec![], vec![]]);
        let mut frames = 0;
        for number in 0..3000u64 {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (peer, len_max) = ((mixed >> 63) as usize, if number % 8 == 0 { 2 * BODY_MAX } else { 100 });
            let body = vec![number as u8; (mixed >> 20) as usize % len_max];
            let parcels = frame::split(Header::new(Kind::Request, 1, 2, number, body.len()), &body);
            wanted[peer].extend(parcels.map(|(_, part)| (number, part.to_vec())));
            for full in add(&mut packing, peer, number, &body) {
                assert!(full.peer == PEERS[peer]);
                sent[peer].extend(read(&full));
                packing.give_back(full.frame);
                frames += 1;
            }
        }
        while let Some(last) = packing.take() {
            sent[last.tag as usize].extend(read(&last));
            frames += 1;
        }
        assert!(packing.is_empty() && frames < 1000, "{frames} frames");
        assert_eq!(sent, wanted);
    }

    /// Frames of a tag leave in the order in which they came, whatever is refused when, and a tag without progress delays no
    /// other.
    #[test]
    fn frames_of_a_tag_stay_in_order() {
        let frame = |tag: u64, number: u8| Filled { peer: PEERS[0], tag, frame: vec![number] };
        for refused in 0..128_u32 {
            let (mut unsent, mut sent, mut tries) = (Unsent::default(), [vec![], vec![], vec![]], 0);
            for number in 0..4 {
                for tag in 0..3 {
                    unsent.push(frame(tag, number), 0);
                }
            }
            assert_eq!((unsent.len(), unsent.count_of(1)), (12, 4));
            while !unsent.is_empty() {
                let broken = unsent.send_all(1, |filled| {
                    tries += 1;
                    if filled.tag == 2 && filled.frame[0] == 2 {
                        return Err((Refusal::Broken, filled));
                    }
                    if refused >> (tries - 1) & 1 == 1 {
                        return Err((Refusal::Again, filled));
                    }
                    sent[filled.tag as usize].push(filled.frame[0]);
                    Ok(())
                });
                assert!(broken.is_empty() || broken == [2], "{broken:?}");
            }
            assert_eq!(sent, [vec![0, 1, 2, 3], vec![0, 1, 2, 3], vec![0, 1]], "{refused:b}");
        }
        let mut unsent = Unsent::default();
        unsent.push(frame(0, 0), 5);
        unsent.push(frame(1, 1), 6);
        let sent = |filled: Filled| if filled.tag == 0 { Err((Refusal::Again, filled)) } else { Ok(()) };
        unsent.send_all(9, sent);
        assert_eq!((unsent.count_of(0), unsent.count_of(1)), (1, 0));
        assert_eq!(unsent.waiting().map(|(tag, since_ns)| (tag, *since_ns)).collect::<Vec<_>>(), [(0, 5)]);
    }

    /// A peer that takes nothing, also when the network holds no more for it, leaves frames to the others.
    #[test]
    fn a_deaf_peer_keeps_its_share_of_the_frames() {
        let open = || Channel::open("tcp;ofi_rxm", Some("127.0.0.1"), Size { rx: 8, tx: 8, bulk: 0 }, false).unwrap();
        let (sender, deaf, good) = (open(), open(), open());
        let [to_deaf, to_good] = [&deaf, &good].map(|it| sender.meet(&it.name().unwrap()).unwrap());
        let mut packing = Packing::default();
        let mut send = |peer, tag, len| {
            sender.poll(|_| {});
            packing.send(&sender, Filled { peer, tag, frame: vec![1; len] }).is_ok()
        };
        let mut has_come = false;
        good.poll(|_| {});
        while !has_come {
            send(to_good, 2, 8);
            good.poll(|event| has_come |= matches!(event, Event::Received(_)));
            std::thread::yield_now();
        }
        // Of one tag, and of as many as have a share of all frames together.
        let (mut sent, mut refused) = (0, 0);
        for tag in (10..10 + SHARES as u64).cycle() {
            (sent, refused) = if send(to_deaf, tag, FRAME_BYTES) { (sent + 1, 0) } else { (sent, refused + 1) };
            if refused == 20_000 {
                break;
            }
            std::thread::yield_now();
        }
        assert!(sent > 0);
        assert!((0..1000).any(|_| send(to_good, 2, 8)), "{sent} frames for the deaf one, and none left");
    }

    /// Many small ones share a frame, one that fills a frame goes at once, and what was dropped is not sent.
    #[test]
    fn a_frame_is_sent_when_it_is_full() {
        let mut packing = Packing::default();
        for number in 0..100 {
            assert!(add(&mut packing, 0, number, &[1; 90]).is_empty());
        }
        let full = add(&mut packing, 0, 100, &[2; BODY_MAX]);
        assert_eq!(full.iter().map(|it| read(it).len()).collect::<Vec<_>>(), [100, 1]);
        assert!(packing.is_empty());
        assert!(add(&mut packing, 0, 1, &[]).is_empty() && add(&mut packing, 1, 2, &[]).is_empty());
        packing.forget(0);
        assert_eq!(packing.take().map(|it| read(&it)), Some(vec![(2, vec![])]));
        assert!(packing.take().is_none());
    }

    /// A parcel that is cut off, or whose header states too great a length, ends a frame; the parcels before it count.
    #[test]
    fn rubbish_ends_a_frame() {
        let mut packing = Packing::default();
        add(&mut packing, 0, 1, b"one");
        add(&mut packing, 0, 2, b"two");
        let frame = packing.take().unwrap().frame;
        for len in 0..frame.len() {
            let whole = frame::parcels(&frame[..len]).count();
            assert_eq!(whole, usize::from(len >= 43), "{len}");
        }
        for (at, with) in [(48, 0), (54, 0), (54, 200), (60, 2), (80, 1), (84, 4), (84, 255)] {
            let mut broken = frame.clone();
            broken[at] = with;
            let parcels: Vec<_> = frame::parcels(&broken).map(|(_, part)| part.to_vec()).collect();
            assert_eq!(parcels, [b"one"], "byte {at}");
        }
        assert_eq!(frame::parcels(&frame).count(), 2);
    }
}
