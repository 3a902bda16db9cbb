//! The events so far, as a number and, if requested, in words.

/// What an event of the trace is.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Join,
    Kill,
    Crash,
    PowerCut,
    Pause,
    Fence,
    Step,
    Done,
    Deliver,
}

/// The events so far.
#[derive(Default)]
pub(super) struct Trace {
    pub hash: u64,
    pub count: u64,
    pub lines: Option<Vec<String>>,
}

impl Trace {
    #[inline]
    pub fn event<const N: usize>(&mut self, now_ns: u64, what: What, numbers: [u64; N]) {
        self.count += 1;
        for word in [what as u64, now_ns].into_iter().chain(numbers) {
            self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now_ns:>10} {what:?} {numbers:x?}"));
        }
    }
}
