//! The parent's side of a cluster of node processes on this host: starting, commanding, listening, cleaning up.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::thread::JoinHandle;

use clap::ValueEnum;
use farhold_fabric::ephemeral::Ephemeral;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::args::{ColumnsLevel, DurabilityArgs, ReplicaArgs};
use super::event::{Command, Event};

/// The settings with which every node of a cluster is started.
#[derive(Debug, Clone)]
pub struct ClusterPlan {
    /// Node processes.
    pub nodes: u8,
    /// Workers of each.
    pub workers: u8,
    /// Warehouses in all.
    pub warehouses: u32,
    /// Transactions in flight on a worker.
    pub in_flight: u16,
    /// Bytes of a node's region.
    pub memory: u64,
    /// How much of that memory the system provides at the start, and as much for each mirror.
    pub populate: u64,
    /// Percentage of items from another warehouse.
    pub remote_item_percent: u8,
    /// Percentage of payments by a customer of another warehouse.
    pub remote_payment_percent: u8,
    /// Seed.
    pub seed: u64,
    /// Bind worker n of the cluster to processor n.
    pub pin: bool,
    /// Node 0 answers the PostgreSQL protocol here.
    pub listen: Option<std::net::SocketAddr>,
    /// Load the CH-benCHmark tables too.
    pub ch: bool,
    /// A rule around the joins that plans are made without.
    pub without: Option<String>,
    /// How nodes reach each other.
    pub provider: String,
    /// Copies of rows on other nodes.
    pub replicas: ReplicaArgs,
    /// What a commit survives.
    pub durability: DurabilityArgs,
    /// How nodes answer queries.
    pub queries: QueryPlan,
}

/// How the nodes of a cluster answer queries.
#[derive(Debug, Clone, Copy)]
pub struct QueryPlan {
    /// Which CH-benCHmark tables are kept as columns; on several nodes, if they have journals.
    pub columns: ColumnsLevel,
    /// Bytes that columns may use.
    pub column_memory: u64,
    /// Threads; 0 = one a processor.
    pub threads: u16,
}

impl QueryPlan {
    /// As a server has it without flags.
    pub const DEFAULT: Self = Self { columns: ColumnsLevel::Auto, column_memory: 1 << 30, threads: 0 };
}

/// Running node processes. Dropping it ends them and removes their files.
pub struct Cluster {
    plan: ClusterPlan,
    program: PathBuf,
    nodes: Vec<NodeProcess>,
    /// Of the regions; removed when the nodes have ended.
    dir: Ephemeral,
    /// Given to the readers of nodes.
    sender: UnboundedSender<(usize, Event)>,
    events: UnboundedReceiver<(usize, Event)>,
}

struct NodeProcess {
    /// It has not been killed on purpose.
    wanted: bool,
    child: Child,
    stdin: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts the processes; they are not ready yet.
    pub fn start(plan: &ClusterPlan) -> Result<Self, String> {
        let dir = Ephemeral::new().map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let (sender, events) = unbounded_channel();
        let mut cluster = Self { plan: plan.clone(), program, dir, nodes: Vec::new(), sender, events };
        for node in 0..plan.nodes {
            let process = spawn_node(&cluster.program, cluster.dir(), plan, node, cluster.sender.clone())?;
            cluster.nodes.push(process);
        }
        Ok(cluster)
    }

    /// The directory of the regions.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// How many nodes it has.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Kills a node as `kill -9` does. From here on nothing is expected of it.
    pub fn kill(&mut self, node: usize) -> Result<(), String> {
        let process = &mut self.nodes[node];
        process.wanted = false;
        process.child.kill().map_err(|error| format!("node {node} cannot be killed: {error}"))?;
        process.child.wait().map_err(|error| format!("node {node}: {error}"))?;
        Ok(())
    }

    /// Pauses a node (SIGSTOP). From here on nothing is expected of it.
    pub fn freeze(&mut self, node: usize) -> Result<(), String> {
        let process = &mut self.nodes[node];
        process.wanted = false;
        let stopped = Process::new("kill").arg("-STOP").arg(process.child.id().to_string()).status();
        match stopped {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("node {node} cannot be stopped: {other:?}")),
        }
    }

    /// Starts a killed node again. It sends `Ready` when the others have admitted it.
    pub fn start_again(&mut self, node: usize) -> Result<(), String> {
        let number = u8::try_from(node).map_err(|_| format!("there is no node {node}"))?;
        let plan = ClusterPlan { listen: None, ..self.plan.clone() };
        self.nodes[node] = spawn_node(&self.program, self.dir(), &plan, number, self.sender.clone())?;
        Ok(())
    }

    /// Kills all nodes as `kill -9` does.
    pub fn kill_all(&mut self) -> Result<(), String> {
        (0..self.nodes.len()).try_for_each(|node| self.kill(node))
    }

    /// Starts all nodes again after [`kill_all`](Self::kill_all), without their old regions. Each sends `Ready` when its rows are
    /// restored from its journal.
    pub fn start_all_again(&mut self) -> Result<(), String> {
        self.dir.clear().map_err(|error| format!("{}: {error}", self.dir().display()))?;
        // An event of a dead process must not be taken for one of its successor.
        for reader in self.nodes.iter_mut().filter_map(|node| node.reader.take()) {
            let _ = reader.join(); // it only reads
        }
        while self.events.try_recv().is_ok() {}
        for (node, process) in (0..self.plan.nodes).zip(&mut self.nodes) {
            *process = spawn_node(&self.program, self.dir.path(), &self.plan, node, self.sender.clone())?;
        }
        Ok(())
    }

    /// Is something expected of a node?
    pub fn is_wanted(&self, node: usize) -> bool {
        self.nodes[node].wanted
    }

    /// Waits until every node is a member; returns the address of the SQL server, if a node runs one.
    pub async fn ready(&mut self) -> Result<Option<String>, String> {
        let pick = |event: &Event| if let Event::Ready { listen } = event { Some(listen.clone()) } else { None };
        Ok(self.all(pick, |_, _| {}).await?.into_iter().flatten().next())
    }

    /// Sends a command to one node.
    pub fn tell(&mut self, node: usize, command: &Command) -> Result<(), String> {
        let line = serde_json::to_string(command).map_err(|error| error.to_string())?;
        let Some(stdin) = &mut self.nodes[node].stdin else {
            return Err(format!("node {node} has ended, and takes no command"));
        };
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .map_err(|error| format!("node {node} takes no command: {error}"))
    }

    /// Sends a command to every node.
    pub fn tell_all(&mut self, command: &Command) -> Result<(), String> {
        (0..self.nodes.len()).try_for_each(|node| self.tell(node, command))
    }

    /// The next event of any node. A node that failed or died is an error.
    pub async fn next(&mut self) -> Result<(usize, Event), String> {
        loop {
            match self.events.recv().await {
                // It was killed on purpose, or another event reports how it ended.
                Some((node, Event::Failed { .. })) if !self.nodes[node].wanted => {}
                Some((node, Event::Failed { message })) => return Err(format!("node {node}: {message}")),
                Some(event) => return Ok(event),
                None => return Err("all node processes have ended".to_owned()),
            }
        }
    }

    /// Waits until every node has sent an event that `pick` takes; other events go to `see`.
    pub async fn all<T>(
        &mut self,
        mut pick: impl FnMut(&Event) -> Option<T>,
        mut see: impl FnMut(usize, &Event),
    ) -> Result<Vec<T>, String> {
        let mut answers: Vec<Option<T>> = self.nodes.iter().map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            let (node, event) = self.next().await?;
            match pick(&event) {
                Some(answer) => answers[node] = Some(answer),
                None => see(node, &event),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let quit = serde_json::to_string(&Command::Quit).unwrap_or_default();
        for node in &mut self.nodes {
            if !node.wanted {
                let _ = node.child.kill(); // one that stands still hears nothing
            }
            if let Some(mut stdin) = node.stdin.take() {
                let _ = writeln!(stdin, "{quit}"); // a dead node needs no command; closing the pipe says the same
            }
        }
        for node in &mut self.nodes {
            let _ = node.child.wait();
            if let Some(reader) = node.reader.take() {
                let _ = reader.join();
            }
        }
    }
}

fn spawn_node(
    program: &Path,
    dir: &Path,
    plan: &ClusterPlan,
    node: u8,
    events: UnboundedSender<(usize, Event)>,
) -> Result<NodeProcess, String> {
    let mut process = Process::new(program);
    process.arg("node").arg("--dir").arg(dir).arg("--provider").arg(&plan.provider);
    for (flag, value) in [
        ("--node", u64::from(node)),
        ("--nodes", u64::from(plan.nodes)),
        ("--memory", plan.memory),
        ("--populate", plan.populate),
        ("--workers", u64::from(plan.workers)),
        ("--warehouses", u64::from(plan.warehouses)),
        ("--in-flight", u64::from(plan.in_flight)),
        ("--remote-item-percent", u64::from(plan.remote_item_percent)),
        ("--remote-payment-percent", u64::from(plan.remote_payment_percent)),
        ("--seed", plan.seed),
        ("--replicas", u64::from(plan.replicas.replicas)),
        ("--lease-ms", plan.replicas.lease_ms),
        ("--column-memory", plan.queries.column_memory),
        ("--query-threads", u64::from(plan.queries.threads)),
    ] {
        process.arg(flag).arg(value.to_string());
    }
    if plan.replicas.pessimistic {
        process.arg("--pessimistic");
    }
    if let Some(journal) = &plan.durability.journal {
        let level = plan.durability.level.to_possible_value().ok_or("every level has a name")?;
        process.arg("--durability").arg(level.get_name()).arg("--journal").arg(journal);
        if plan.durability.assume_persistence {
            process.arg("--assume-persistence");
        }
    }
    let columns = plan.queries.columns.to_possible_value().ok_or("every level has a name")?;
    process.arg("--columns").arg(columns.get_name());
    if plan.pin {
        process.arg("--pin-from").arg((u32::from(node) * u32::from(plan.workers)).to_string());
    }
    if let (0, Some(listen)) = (node, plan.listen) {
        process.arg("--listen").arg(listen.to_string());
    }
    if plan.ch {
        process.arg("--ch");
    }
    if let Some(rule) = &plan.without {
        process.arg("--without").arg(rule);
    }
    let mut child = process
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("node {node} does not start: {error}"))?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take().ok_or("a piped child has a standard output")?;
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let event = serde_json::from_str(&line)
                .unwrap_or_else(|error| Event::Failed { message: format!("wrote `{line}`, no event: {error}") });
            if events.send((usize::from(node), event)).is_err() {
                return;
            }
        }
        // After a quit the receiver is closed; before it, this event reports that the process has died.
        let _ = events.send((usize::from(node), Event::Failed { message: "its process has ended".to_owned() }));
    });
    Ok(NodeProcess { wanted: true, child, stdin, reader: Some(reader) })
}
