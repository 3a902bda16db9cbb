//! Ctrl-C and SIGTERM for processes without a tokio runtime on their main thread.

use std::sync::mpsc::{Receiver, channel};

/// Yields once when the process is told to end by Ctrl-C or SIGTERM. From then on the signals no longer kill it.
pub fn ended() -> Result<Receiver<()>, String> {
    let (sender, receiver) = channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime for signals: {error}"))?;
    // Registered here, not on the thread, so that a signal right after the start is not missed.
    let mut signals = {
        let _inside = runtime.enter();
        use tokio::signal::unix::{SignalKind, signal};
        [SignalKind::interrupt(), SignalKind::terminate()]
            .map(|kind| signal(kind).map_err(|error| format!("signals: {error}")))
    };
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let [interrupt, terminate] = &mut signals;
            let (Ok(interrupt), Ok(terminate)) = (interrupt, terminate) else { return };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            let _ = sender.send(()); // nobody waits any more: the process is ending anyway
        });
    });
    Ok(receiver)
}

/// Gives back what libraries have taken before `main`. PSM, which Debian's libfabric loads, handles the signals that end a process: Ctrl-C
/// ends it whatever is registered later, and a crash leaves a `.btr` file in the working directory instead of what the system does.
pub fn restore() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGABRT, libc::SIGBUS, libc::SIGILL, libc::SIGSEGV] {
        if is_handled_by_a_library(signal) {
            // SAFETY: a valid disposition for each of these signals, and this process has one thread.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Is the signal's handler code of a library? Those that Rust has put (of `SIGSEGV` and `SIGBUS`, to tell of full stacks) are in this program.
fn is_handled_by_a_library(signal: libc::c_int) -> bool {
    // SAFETY: all-zero bytes are a valid `sigaction` to be written to.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only asks; `now` lives through the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    let handler = now.sa_sigaction;
    asked == 0
        && ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler)
        && object_of(handler) != object_of(restore as *const () as usize)
}

/// Where the program or library is loaded whose code is at this address.
fn object_of(code: usize) -> Option<usize> {
    // SAFETY: all-zero bytes are a valid `Dl_info` to be written to.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; `info` lives through the call.
    let found = unsafe { libc::dladdr(std::ptr::without_provenance(code), &raw mut info) };
    (found != 0).then(|| info.dli_fbase.addr())
}

/// Leaves Ctrl-C to the parent: a terminal sends it to every process of the group.
pub fn ignore_interrupt() {
    // SAFETY: SIG_IGN is a valid disposition for SIGINT, and no Rust code runs in a handler.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
}
