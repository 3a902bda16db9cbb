//! The processor of each thread of a measurement: the thread allocation orders of Dreseler et al. (ADMS 2017, section 4).
//!
//! `natural` fills the first socket, its cores first and then their sibling threads, and goes on with the next socket;
//! `interleaved` deals the threads round the sockets, in the same order within each; `custom` is a list of the caller's.

use std::path::Path;

use farhold_fabric::processor::usable;

/// A hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number, as the kernel counts.
    pub number: usize,
    /// Its socket.
    pub socket: usize,
    /// Its core, within the socket.
    pub core: usize,
}

/// How threads are laid onto processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Socket by socket.
    Natural,
    /// Round the sockets.
    Interleaved,
    /// These processors, one after the other.
    Custom(Vec<usize>),
}

impl Order {
    /// Its name in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::Interleaved => "interleaved",
            Self::Custom(_) => "custom",
        }
    }

    /// The processors in the order in which threads take them. A custom order's unknown processors are left out.
    #[must_use]
    pub fn processors(&self, machine: &[Processor]) -> Vec<usize> {
        match self {
            Self::Natural => sockets(machine).concat(),
            Self::Interleaved => {
                let sockets = sockets(machine);
                let longest = sockets.iter().map(Vec::len).max().unwrap_or(0);
                let turn = |place: usize| sockets.iter().filter_map(move |socket| socket.get(place).copied());
                (0..longest).flat_map(turn).collect()
            }
            Self::Custom(list) => {
                list.iter().copied().filter(|number| machine.iter().any(|known| known.number == *number)).collect()
            }
        }
    }
}

/// The processors of each socket: one of each core, then their siblings.
fn sockets(machine: &[Processor]) -> Vec<Vec<usize>> {
    let mut names: Vec<usize> = machine.iter().map(|processor| processor.socket).collect();
    names.sort_unstable();
    names.dedup();
    let of = |socket: usize| {
        let mut own: Vec<&Processor> = machine.iter().filter(|processor| processor.socket == socket).collect();
        own.sort_by_key(|processor| processor.number);
        let sibling = |at: usize| own[..at].iter().filter(|earlier| earlier.core == own[at].core).count();
        let mut ranked: Vec<(usize, usize, usize)> =
            (0..own.len()).map(|at| (sibling(at), own[at].core, own[at].number)).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., number)| number).collect()
    };
    names.into_iter().map(of).collect()
}

/// The processors that this process may use. A machine that does not report sockets counts as one socket.
#[must_use]
pub fn machine() -> Vec<Processor> {
    let base = Path::new("/sys/devices/system/cpu");
    let read = |number: usize, what: &str| {
        let text = std::fs::read_to_string(base.join(format!("cpu{number}/topology/{what}"))).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let usable = Some(usable()).filter(|all| !all.is_empty()).unwrap_or_else(|| vec![0]);
    usable
        .into_iter()
        .map(|number| Processor {
            number,
            socket: read(number, "physical_package_id").unwrap_or(0),
            core: read(number, "core_id").unwrap_or(number),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two cores with two threads each, numbered as Linux does: first threads of all cores first.
    fn two_sockets() -> Vec<Processor> {
        (0..8).map(|number| Processor { number, socket: number / 2 % 2, core: number % 2 }).collect()
    }

    #[test]
    fn orders_are_those_of_the_paper() {
        let machine = two_sockets();
        assert_eq!(Order::Natural.processors(&machine), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(Order::Interleaved.processors(&machine), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(Order::Custom(vec![7, 9, 1]).processors(&machine), [7, 1]);
    }

    #[test]
    fn this_machine_has_processors() {
        let machine = machine();
        assert!(!machine.is_empty());
        for order in [Order::Natural, Order::Interleaved] {
            let mut numbers = order.processors(&machine);
            numbers.sort_unstable();
            assert!(numbers.iter().eq(machine.iter().map(|processor| &processor.number)), "each once");
        }
    }
}
