//! Three hosts: network namespaces with a switch between them, each with one process, one node and a directory of its own.
//!
//! ```text
//!   farhold-P-0 ── veth ──┐
//!   farhold-P-1 ── veth ──┼── bridge in farhold-P-hub          10.77.0.1, .2, .3
//!   farhold-P-2 ── veth ──┘
//! ```
//!
//! The nodes find each other by their bootstrap ports. The test starts itself again as each process and sends it commands, one a
//! line. It needs root and `ip` (iproute2).
#![cfg(feature = "libfabric")]

use farhold_fabric::provider::libfabric::{Config, Rendezvous, Secret};
use farhold_fabric::{
    Address, Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, Meta, NodeId, RegionId, Version, object,
};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;

const CHILD: &str = "FARHOLD_HOSTS_CHILD";
const DIR: &str = "FARHOLD_HOSTS_DIR";
const TEST: &str = "three_hosts";
const REGION: RegionId = RegionId(1);
const BYTES: u64 = 4 << 20;
const PORT: u16 = 7400;
const NODES: u8 = 3;
/// Longer than a process waits for its turn on a third of a processor.
const TIMEOUT_NS: u64 = 4_000_000_000;
/// A host that is cut off is reported within the provider's time-outs; on a paused machine it may take longer.
const IN_TIME_NS: u64 = 60_000_000_000;

// ---------------------------------------------------------------------------------------------------------------------
// A process

fn at_host(node: u8) -> String {
    format!("10.77.0.{}:{PORT}", node + 1)
}

fn at(node: u8, offset: u64) -> FarPtr {
    FarPtr::new(NodeId(node), REGION, offset)
}

struct Host {
    node: u8,
    executor: Executor,
    endpoint: Endpoint,
    _fabric: Fabric,
}

impl Host {
    fn start(node: u8, dir: &Path) -> Self {
        let peers = (0..NODES).filter(|peer| *peer != node).map(|peer| (NodeId(peer), at_host(peer))).collect();
        let config = Config {
            rendezvous: Rendezvous::Hosts { listen: at_host(node), peers },
            connect_timeout_ns: TIMEOUT_NS,
            request_timeout_ns: TIMEOUT_NS,
            ..Config::new("tcp;ofi_rxm", Secret::new(b"a secret of three hosts").unwrap())
        };
        let fabric = Fabric::join_libfabric(dir, NodeId(node), config).expect("the fabric");
        let memory = fabric.create_region(REGION, BYTES).expect("a region");
        memory.copy_in(256 + object::PAYLOAD, &[node; 1000]).expect("inside");
        let word = |offset| memory.word(256 + offset).expect("inside");
        word(object::META).store(Meta::new(1, Meta::ROW, 4, 1000).0, Ordering::SeqCst);
        word(object::VERSION).store(Version::of_epoch(u32::from(node) + 1).0, Ordering::SeqCst);
        let executor = Executor::real(u64::from(node));
        let endpoint = fabric.endpoint(&executor.handle()).expect("an endpoint");
        Self { node, executor, endpoint, _fabric: fabric }
    }

    fn run(&self, fill: impl FnOnce(&mut Batch)) -> Result<Batch, FabricError> {
        let mut batch = Batch::new();
        fill(&mut batch);
        let batch = self.executor.run(self.endpoint.submit(batch));
        batch.all_done().map(|()| batch)
    }

    fn word(&self, add: impl FnOnce(&mut Batch) -> farhold_fabric::Slot) -> Result<u64, FabricError> {
        let mut slot = None;
        let batch = self.run(|batch| slot = Some(add(batch)))?;
        batch.word(slot.expect("added"))
    }

    /// Every instruction on a node, on words that differ for each caller.
    fn everything(&self, node: u8) -> Result<(), FabricError> {
        let base = 8192 + u64::from(self.node) * (1 << 20);
        let word = at(node, base);
        self.word(|b| b.swap(word, 5))?;
        assert_eq!(self.word(|b| b.fetch_add(word, 7))?, 5);
        assert_eq!(self.word(|b| b.compare_swap(word, 12, 0b10_1100))?, 12);
        assert_eq!(self.word(|b| b.compare_swap(word, 12, 99))?, 0b10_1100);
        assert_eq!(self.word(|b| b.and(word, 0b0110))?, 0b10_1100);
        assert_eq!(self.word(|b| b.or(word, 0b0011))?, 0b0100);
        assert_eq!(self.word(|b| b.xor(word, 0b0101))?, 0b0111);
        assert_eq!(self.word(|b| b.clear_word(word))?, 0b0010);
        for len in [1, 100, 20_000, 1 << 19] {
            let bytes: Vec<u8> = (0..len).map(|index| (index * 7 + usize::from(self.node)) as u8).collect();
            self.run(|b| _ = b.write(at(node, base + 13), &bytes))?;
            self.run(|b| _ = b.flush(at(node, base + 13), len))?;
            let mut slot = None;
            let batch = self.run(|b| slot = Some(b.read(at(node, base + 13), len)))?;
            assert_eq!(batch.bytes(slot.expect("added")).expect("read"), bytes);
        }
        let mut slot = None;
        let batch = self.run(|b| slot = Some(b.read_object(at(node, 256), 1000)))?;
        let seen = batch.object(slot.expect("added")).expect("read");
        assert_eq!((seen.version >> 32, seen.payload), (u64::from(node) + 1, &[node; 1000][..]));
        self.endpoint.send(Address::home(NodeId(node)), &[self.node])
    }

    /// All messages that other processes have sent here.
    fn heard(&self) -> Vec<u8> {
        let mut heard = Vec::new();
        while heard.len() < usize::from(NODES) - 1 {
            if self.endpoint.wait(IN_TIME_NS)
                && let Some(message) = self.endpoint.try_recv_home()
            {
                assert_eq!(message.bytes, [message.from.node.0]);
                heard.push(message.from.node.0);
            }
        }
        heard.sort_unstable();
        heard
    }

    /// Executes the command in a line; returns the answer as a line.
    fn obey(&self, line: &str) -> String {
        let (what, node) = line.split_once(' ').unwrap_or((line, "0"));
        let node: u8 = node.parse().expect("a node");
        match what {
            "everything" => match self.everything(node) {
                Ok(()) => "ok".into(),
                Err(error) => {
                    let again: Vec<_> = (0..3).map(|_| self.everything(node)).collect();
                    let s = self.endpoint.send(Address::home(NodeId(node)), b"x");
                    format!("{error} {again:?} {s:?}")
                }
            },
            "reach" => {
                let handle = self.executor.handle();
                let until_ns = handle.now_ns() + IN_TIME_NS;
                loop {
                    match self.run(|b| _ = b.read(at(node, 0), 8)) {
                        Ok(_) => return "ok".into(),
                        Err(error) if handle.now_ns() > until_ns => return error.to_string(),
                        // Not there yet, or registered anew.
                        Err(FabricError::StaleKey { .. }) => _ = self.endpoint.refresh(NodeId(node), REGION),
                        Err(_) => self.executor.run(handle.sleep_ns(10_000_000)),
                    }
                }
            }
            "lose" => {
                let handle = self.executor.handle();
                let before_ns = handle.now_ns();
                let failed = self.run(|b| {
                    b.write(at(node, 8192 + 1024), &vec![1; 1 << 19]);
                    b.fetch_add(at(node, 0), 0);
                });
                let waited_ns = handle.now_ns() - before_ns;
                match failed.err() {
                    Some(FabricError::NodeUnavailable { node: NodeId(lost) })
                        if lost == node && waited_ns < IN_TIME_NS =>
                    {
                        "ok".into()
                    }
                    other => format!("{other:?} after {waited_ns} ns"),
                }
            }
            "heard" => format!("{:?}", self.heard()),
            _ => "what?".into(),
        }
    }
}

fn as_host() -> bool {
    let Ok(node) = std::env::var(CHILD) else { return false };
    let host = Host::start(node.parse().expect("a node"), &PathBuf::from(std::env::var_os(DIR).expect("a directory")));
    println!("> started");
    for line in std::io::stdin().lines() {
        println!("> {}", host.obey(&line.expect("a line")));
    }
    true
}

// ---------------------------------------------------------------------------------------------------------------------
// The hosts

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split(' ')).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Namespaces with a switch; gone afterwards.
struct Network(String);

impl Network {
    fn new() -> Option<Self> {
        let this = Self(format!("farhold-{}", std::process::id()));
        let hub = this.space("hub");
        if !ip(&format!("netns add {hub}")) {
            return None;
        }
        let mut commands = vec![format!("-n {hub} link add hub type bridge"), format!("-n {hub} link set hub up")];
        for node in 0..NODES {
            let host = this.space(&node.to_string());
            commands.push(format!("netns add {host}"));
            commands.push(format!("-n {host} link add up0 type veth peer name port{node} netns {hub}"));
            commands.push(format!("-n {hub} link set port{node} master hub up"));
            commands.push(format!("-n {host} addr add 10.77.0.{}/24 dev up0", node + 1));
            commands.push(format!("-n {host} link set up0 up"));
            commands.push(format!("-n {host} link set lo up"));
        }
        commands.iter().all(|command| ip(command)).then_some(this)
    }

    fn space(&self, name: &str) -> String {
        format!("{}-{name}", self.0)
    }

    /// Cuts a host off, or joins it again.
    fn set_link(&self, node: u8, state: &str) {
        assert!(ip(&format!("-n {} link set port{node} {state}", self.space("hub"))));
    }

    fn process(&self, node: u8, dir: &Path) -> Process {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.space(&node.to_string())])
            .arg(std::env::current_exe().expect("this executable"))
            .args(["--exact", TEST, "--nocapture"])
            .env(CHILD, node.to_string())
            .env(DIR, dir.join(format!("host{node}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (to, from) = (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let mut process = Process { child, to, from };
        assert_eq!(process.line(), "started");
        process
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in ["hub", "0", "1", "2"] {
            ip(&format!("netns del {}", self.space(name)));
        }
    }
}

struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    /// Its next answer; the test harness's own lines are skipped.
    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).expect("a line") > 0, "the process has ended");
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").expect("it listens");
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.line()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn three_hosts() {
    if as_host() {
        return;
    }
    if !farhold_testkit::has_program("ip") {
        return;
    }
    let Some(network) = Network::new() else {
        farhold_testkit::skipped("making network namespaces is not permitted here (it takes root)");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let mut hosts: Vec<_> = (0..NODES).map(|node| network.process(node, dir.path())).collect();
    let pairs = || (0..NODES).flat_map(|from| (0..NODES).filter(move |to| *to != from).map(move |to| (from, to)));
    // Every process does everything to every other, all at the same time.
    for (from, to) in pairs() {
        assert_eq!(hosts[usize::from(from)].ask(&format!("reach {to}")), "ok");
    }
    for (from, to) in pairs() {
        hosts[usize::from(from)].tell(&format!("everything {to}"));
    }
    for (from, to) in pairs() {
        assert_eq!(hosts[usize::from(from)].line(), "ok", "{from} on {to}");
    }
    assert_eq!(hosts[0].ask("heard"), "[1, 2]");
    assert_eq!(hosts[1].ask("heard"), "[0, 2]");
    assert_eq!(hosts[2].ask("heard"), "[0, 1]");
    // A cut link: an error in time on both sides of it, and the others go on.
    network.set_link(2, "down");
    assert_eq!(hosts[0].ask("lose 2"), "ok");
    assert_eq!(hosts[2].ask("lose 1"), "ok");
    assert_eq!(hosts[0].ask("everything 1"), "ok");
    assert_eq!(hosts[1].ask("everything 0"), "ok");
    network.set_link(2, "up");
    for (from, to) in pairs() {
        assert_eq!(hosts[usize::from(from)].ask(&format!("reach {to}")), "ok", "{from} to {to}");
        assert_eq!(hosts[usize::from(from)].ask(&format!("everything {to}")), "ok", "{from} on {to}");
    }
    // A kill.
    drop(hosts.pop());
    assert_eq!(hosts[0].ask("lose 2"), "ok");
    assert_eq!(hosts[1].ask("lose 2"), "ok");
    assert_eq!(hosts[0].ask("everything 1"), "ok");
    assert_eq!(hosts[1].ask("everything 0"), "ok");
    // It comes back with a new region: the others learn that their knowledge of the old one is void.
    std::fs::remove_dir_all(dir.path().join("host2")).expect("its directory");
    hosts.push(network.process(2, dir.path()));
    assert_eq!(hosts[0].ask("reach 2"), "ok");
    assert_eq!(hosts[0].ask("everything 2"), "ok");
}
