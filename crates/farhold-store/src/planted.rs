//! Planted defects, and threads that stop on purpose, for the mutation tests.
//!
//! Only with the feature `planted`; without it nothing here costs anything. Defects of transactions are in `farhold-txn`.

/// A defect in a node's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Defect {
    /// Older copies of rows are freed although a snapshot is open.
    CopiesNotHeld = 1,
    /// A worker takes slots for a table from its stock for a dropped one.
    StaleCache,
    /// A run of pages is given up although one of its slots is in use.
    PagesInUse,
}

/// A shaken thread stops at one of this many places, on average; a transaction passes some ten.
#[cfg(feature = "planted")]
const PLACES_PER_STOP: u64 = 64;
/// Of this many stops one is long.
#[cfg(feature = "planted")]
const STOPS_PER_LONG_STOP: u64 = 32;
/// The kernel adds some 50 µs, in which others do ten transactions.
#[cfg(feature = "planted")]
const STOP_NS_MAX: u64 = 50_000;
/// A time slice: how long a thread waits on a machine with more threads than processors.
#[cfg(feature = "planted")]
const LONG_STOP_NS_MAX: u64 = 4_000_000;

#[cfg(feature = "planted")]
std::thread_local! {
    static PLANTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    static SHAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    static WATCH: std::cell::Cell<Option<fn()>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread calls `look` at the places where a [shaken](shake) one stops, to see what a process leaves if it ends
/// there.
#[cfg(feature = "planted")]
pub fn watch(look: Option<fn()>) {
    WATCH.set(look);
}

/// Switches a defect on for this thread, or all off.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<Defect>) {
    PLANTED.set(defect.map_or(0, |defect| defect as u32));
}

/// From now on this thread stops, now and then, at places where other threads can interfere: those where a defect may be planted,
/// and some more. 0: it stops no more.
#[cfg(feature = "planted")]
pub fn shake(seed: u64) {
    SHAKEN.set(seed);
}

/// The next random number of a shaken thread, 0 of another.
#[cfg(feature = "planted")]
fn next_random() -> u64 {
    let mut random = SHAKEN.get();
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    SHAKEN.set(random);
    random
}

/// A place where other threads can interfere: a [shaken](shake) thread stops here now and then.
#[cfg(feature = "planted")]
pub fn may_stop() {
    if let Some(look) = WATCH.get() {
        look();
    }
    if SHAKEN.get() == 0 {
        return;
    }
    let random = next_random();
    if random.is_multiple_of(PLACES_PER_STOP) {
        let stop = random / PLACES_PER_STOP;
        let ns_max = if stop.is_multiple_of(STOPS_PER_LONG_STOP) { LONG_STOP_NS_MAX } else { STOP_NS_MAX };
        #[expect(clippy::disallowed_methods, reason = "real threads alone are shaken")]
        std::thread::sleep(std::time::Duration::from_nanos((random >> 32) % ns_max));
    }
}

/// No thread is shaken.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub fn may_stop() {}

/// A thread that this thread starts must call it: it then has the same defect, and is shaken if this thread is.
#[cfg(feature = "planted")]
pub fn hand_on() -> impl FnOnce() + Send + 'static {
    // An odd factor: another sequence, and never 0 of a thread that is shaken.
    let (planted, shaken) = (PLANTED.get(), next_random().wrapping_mul(0x9e37_79b9_7f4a_7c15));
    move || {
        PLANTED.set(planted);
        SHAKEN.set(shaken);
    }
}

/// Is it switched on?
#[cfg(feature = "planted")]
pub(crate) fn is(defect: Defect) -> bool {
    PLANTED.get() == defect as u32
}

/// Nothing is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}
