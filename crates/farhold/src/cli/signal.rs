//! The signals that tell a process to end: Ctrl-C, SIGTERM, and SIGHUP, which the end of its terminal sends.

use std::sync::mpsc::{Receiver, channel};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers for those signals. Once registered, the signals no longer kill the process.
pub struct Endings {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the process was started to outlive its terminal, as `nohup` does by ignoring SIGHUP.
    hang_up: Option<Signal>,
}

impl Endings {
    /// Registers them, inside a runtime.
    pub fn register() -> Result<Self, String> {
        let is_kept = disposition(libc::SIGHUP) == Some(libc::SIG_IGN);
        let register = |kind| signal(kind).map_err(|error| format!("no handler for signals: {error}"));
        Ok(Self {
            interrupt: register(SignalKind::interrupt())?,
            terminate: register(SignalKind::terminate())?,
            hang_up: if is_kept { None } else { Some(register(SignalKind::hangup())?) },
        })
    }

    /// Waits for one of them, and gives its name.
    pub async fn next(&mut self) -> &'static str {
        let Self { interrupt, terminate, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "Ctrl-C",
            _ = terminate.recv() => "SIGTERM",
            _ = hung_up => "SIGHUP",
        }
    }
}

/// Yields once when one of them comes, for a process without a tokio runtime on its main thread.
pub fn ended() -> Result<Receiver<()>, String> {
    let (sender, receiver) = channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime for signals: {error}"))?;
    // Registered here, not on the thread, so that a signal right after the start is not missed.
    let mut endings = {
        let _inside = runtime.enter();
        Endings::register()?
    };
    std::thread::spawn(move || {
        runtime.block_on(endings.next());
        let _ = sender.send(()); // no receiver: the process is ending anyway
    });
    Ok(receiver)
}

/// Restores the signal handlers that libraries have replaced before `main`. PSM, which Debian's libfabric loads, handles the
/// signals that end a process: Ctrl-C ends the process whatever is registered later, and a crash leaves a `.btr` file in the
/// working directory instead of what the system does.
pub fn restore() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGABRT, libc::SIGBUS, libc::SIGILL, libc::SIGSEGV]
    {
        if is_handled_by_a_library(signal) {
            // SAFETY: a valid disposition for each of these signals, and this process has one thread.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Whether the signal's handler is a library's code. The handlers that Rust has installed (for `SIGSEGV` and `SIGBUS`, to report
/// stack overflows) are in this program.
fn is_handled_by_a_library(signal: libc::c_int) -> bool {
    disposition(signal).is_some_and(|handler| {
        ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler)
            && object_of(handler) != object_of(restore as *const () as usize)
    })
}

/// The disposition of a signal: `SIG_DFL`, `SIG_IGN` or a handler.
fn disposition(signal: libc::c_int) -> Option<libc::sighandler_t> {
    // SAFETY: all-zero bytes are a valid `sigaction` to be written to.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only asks; `now` lives through the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    (asked == 0).then_some(now.sa_sigaction)
}

/// The load address of the program or library that has the code at this address.
fn object_of(code: usize) -> Option<usize> {
    // SAFETY: all-zero bytes are a valid `Dl_info` to be written to.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; `info` lives through the call.
    let found = unsafe { libc::dladdr(std::ptr::without_provenance(code), &raw mut info) };
    (found != 0).then(|| info.dli_fbase.addr())
}

/// Ignores the signals: the parent ends this process by its standard input. Terminals and service managers signal every process
/// of a group.
pub fn leave_to_parent() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: SIG_IGN is a valid disposition for each of these signals, and no Rust code runs in a handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
