//! The transactions of one node and of several once more, over libfabric: this program starts itself,
//! with the provider in its environment.

use crate::common::PROVIDER;
use std::process::Command;

/// The files whose tests are about rows on several nodes, with the patience of `common`.
fn again_over(provider: &str) {
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["dropped::", "far::", "index::", "local::", "numbers::", "--test-threads", "1"]);
    let output = again.env(PROVIDER, provider).output().expect("it starts");
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "over {provider}: {}", output.status);
    assert!(!String::from_utf8_lossy(&output.stdout).contains(" 0 passed"), "nothing ran");
}

#[test]
fn over_shared_memory() {
    again_over("libfabric:shm?timeout-ms=60000");
}

#[test]
fn over_tcp() {
    again_over("libfabric:tcp;ofi_rxm?timeout-ms=60000");
}
