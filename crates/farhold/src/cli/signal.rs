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

/// Takes back what libraries have made of Ctrl-C and SIGTERM before `main`: handlers that are registered later call the earlier ones too,
/// and that of PSM, which Debian's libfabric loads, ends the process.
pub fn restore() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: both are valid dispositions for both signals, and this process has one thread.
        unsafe {
            if libc::signal(signal, libc::SIG_DFL) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// Leaves Ctrl-C to the parent: a terminal sends it to every process of the group.
pub fn ignore_interrupt() {
    // SAFETY: SIG_IGN is a valid disposition for SIGINT, and no Rust code runs in a handler.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
}
