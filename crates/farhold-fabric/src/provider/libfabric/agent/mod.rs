//! The home agent: the thread that makes a node's memory and inboxes reachable.
//!
//! It admits workers of other nodes. It executes what a NIC cannot (words, whole objects, small copies) with the CPU next to the
//! memory, so an object is read whole in one round trip. It puts messages into this node's inboxes, and makes the progress that
//! providers want of a target.
//!
//! ```text
//!   frames ─┬─ hello, proof ──> entry ─────┬──> sending ──> frames
//!           ├─ request ───────> requests ──┘
//!           ├─ message ───────> lanes ────────> inboxes
//!           └─ bye ───────────> exit
//! ```
//!
//! The agent drops a frame without a session's token unread. The agent waits for no peer: it keeps what it cannot send at once,
//! up to a limit. What the agent keeps for others is bounded, and no peer takes another's share.

pub(super) mod entry;
mod exit;
mod lanes;
mod regions;
mod requests;
mod sending;
mod session;

use regions::Seen;
use session::{STRANGER_NS_MAX, Session, State};

use super::admission::Standing;
use super::channel::{Bell, Channel, Event, Peer, Size};
use super::frame::{self, Header, Kind};
use super::packing::{Packing, Unsent};
use super::{Clock, Shared};
use crate::provider::shm::Shm;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frames: many workers' requests may come at once.
pub(super) const SIZE: Size = Size { rx: 256, tx: 128, bulk: 0 };
/// Turns without a frame between two offers of the core to others.
const TURNS_PER_YIELD: u32 = 8;
/// How long it goes on looking after the last frame before it sleeps. A sleep and its end cost some 10 µs.
const LOOK_NS: u64 = 50_000;
/// The same where the provider cannot be waited for. The naps after it, there and while a frame waits for the provider.
const LOOK_NS_WITHOUT_WAIT: u64 = 500_000;
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
/// Longest sleep if the provider wakes the agent: this bounds the delay that a lost wake could cause.
const SLEEP_MAX: Duration = Duration::from_millis(5);

/// See the module.
pub(super) struct Agent {
    shared: Arc<Shared>,
    channel: Channel,
    near: Shm,
    home: Home,
}

/// All of the agent that frames change.
struct Home {
    sessions: Vec<Option<Session>>,
    /// The peers of workers, by name, with the number of sessions that use each.
    peers: HashMap<Vec<u8>, (Peer, usize)>,
    /// What this turn's answers are put into.
    packing: Packing,
    unsent: Unsent,
    seen: Box<[Seen]>,
    answer: Vec<u8>,
    next_check_ns: u64,
    /// Fencing orders that have been carried out.
    fences_seen: u64,
    /// Sessions so far.
    sessions_begun: u32,
}

/// Where a frame is handled.
struct Place<'a> {
    shared: &'a Shared,
    channel: &'a Channel,
    near: &'a Shm,
    now_ns: u64,
}

impl Agent {
    pub fn new(shared: Arc<Shared>, channel: Channel, near: Shm) -> Self {
        let home = Home {
            sessions: Vec::new(),
            peers: HashMap::new(),
            packing: Packing::default(),
            unsent: Unsent::default(),
            seen: vec![None; 256].into(),
            answer: Vec::new(),
            next_check_ns: 0,
            fences_seen: 0,
            sessions_begun: 0,
        };
        Self { shared, channel, near, home }
    }

    /// Serves until told to stop.
    pub fn run(mut self, bell: &Bell) {
        let clock = Clock::start();
        let (has_wait, spins) = (self.channel.traits().has_wait, self.shared.config.agent_spins);
        let look_ns = if has_wait { LOOK_NS } else { LOOK_NS_WITHOUT_WAIT };
        let (mut busy_ns, mut nap, mut empty) = (0, NAP_MIN, 0u32);
        while !self.shared.stop.load(Ordering::Acquire) {
            let now_ns = clock.now_ns();
            if self.turn(now_ns) {
                (busy_ns, nap) = (now_ns, NAP_MIN);
            } else if spins || now_ns - busy_ns < look_ns {
                empty = empty.wrapping_add(1);
                if empty.is_multiple_of(TURNS_PER_YIELD) {
                    std::thread::yield_now();
                }
            } else if has_wait && self.home.unsent.is_empty() {
                self.channel.wait(bell, SLEEP_MAX);
            } else {
                // Nothing may wake it for a frame that the provider would not take: its peer may be unreachable.
                self.channel.wait(bell, nap);
                nap = (nap * 2).min(NAP_MAX);
            }
        }
    }

    fn turn(&mut self, now_ns: u64) -> bool {
        let Self { shared, channel, near, home } = self;
        home.shut_out(shared, channel);
        let worked = channel.poll(|event| match event {
            Event::Received(frame) => home.take(&Place { shared, channel, near, now_ns }, frame),
            Event::Lost(tag) => home.lose(channel, tag),
            Event::Bulk { .. } => {}
        });
        home.send_packed(channel);
        home.send_kept(channel);
        if now_ns >= home.next_check_ns {
            home.next_check_ns = now_ns + STRANGER_NS_MAX / 8;
            home.show_out(channel, now_ns);
            home.let_go_stale(shared);
        }
        worked
    }
}

impl Home {
    fn take(&mut self, place: &Place<'_>, frame: &[u8]) {
        for (header, part) in frame::parcels(frame) {
            self.take_parcel(place, header, part);
        }
    }

    fn take_parcel(&mut self, place: &Place<'_>, header: Header, part: &[u8]) {
        if header.kind == Kind::Hello {
            self.hello(place, &header, part);
        } else if header.version == frame::VERSION {
            let index = header.session as usize;
            let Some(session) = self.sessions.get_mut(index).and_then(Option::as_mut) else { return };
            if header.kind == Kind::Proof {
                self.proof(place, &header, part);
            } else if matches!(session.state, State::Live) && session.token == header.token {
                if session.standing(place.shared) == Standing::Stranger {
                    return self.end(place.channel, index);
                }
                match header.kind {
                    Kind::Request => self.request(place, &header, part),
                    Kind::Message => session.message(place, &header, part),
                    Kind::Leave => session.close_lane(header.number),
                    Kind::Bye => self.end(place.channel, index),
                    _ => {}
                }
            }
        }
    }
}
