//! `farhold cluster status`: what the register and the nodes of a cluster report.

use std::path::Path;
use std::time::Duration;

use farhold_txn::{ColumnReport, Configuration, CopySize, FileRegister, NoColumns, NodeId, Serving, TableColumns};
use serde_json::{Value, json};

use super::args::StatusArgs;
use crate::database::register_of;

/// How long a register may take to answer.
#[cfg(feature = "etcd")]
const REGISTER_ANSWERS_IN: Duration = Duration::from_secs(5);

/// Runs the command; the error is for a person.
pub async fn run(args: &StatusArgs, json: bool) -> Result<(), String> {
    loop {
        show(args, json).await?;
        let Some(milliseconds) = args.watch else { return Ok(()) };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(milliseconds)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// The state that a node has reported.
#[derive(Default)]
struct Told {
    pid: Option<u32>,
    host: String,
    configuration: u64,
    state: String,
    lags: Vec<(NodeId, u64)>,
    doing: String,
    columns: ColumnReport,
}

impl Told {
    fn of(text: &str) -> Self {
        let mut told = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            match name {
                "pid" => told.pid = value.parse().ok(),
                "host" => value.clone_into(&mut told.host),
                "configuration" => told.configuration = value.parse().unwrap_or(0),
                "state" => value.clone_into(&mut told.state),
                "lag" => told.lags.extend(
                    value
                        .split_once(' ')
                        .and_then(|(holder, bytes)| Some((NodeId(holder.parse().ok()?), bytes.parse().ok()?))),
                ),
                "doing" => value.clone_into(&mut told.doing),
                _ => told.columns.add_line(name, value),
            }
        }
        told
    }

    /// From the directory of its host, if there is one; otherwise from the register.
    fn by(dir: Option<&Path>, node: NodeId, in_register: &[String]) -> Self {
        let here = dir.and_then(|dir| FileRegister::status(dir, node));
        let text = here.or_else(|| in_register.get(usize::from(node.0)).cloned());
        text.map(|text| Self::of(&text)).unwrap_or_default()
    }

    /// Whether its process still runs. Unknown for a node that has reported nothing, and for one on another host.
    fn is_running(&self) -> Option<bool> {
        let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let pid = self.pid.filter(|_| self.host == here.trim())?;
        Some(Path::new("/proc").join(pid.to_string()).exists())
    }
}

async fn show(args: &StatusArgs, json: bool) -> Result<(), String> {
    let dir = args.dir.as_deref();
    let (registered, place) = match (&args.register, dir) {
        (Some(url), _) => (peek(url).await, url.clone()),
        (None, Some(dir)) => (peek_file(dir), dir.display().to_string()),
        (None, None) => return Err("no cluster is named; give --dir DIRECTORY or --register URL".to_owned()),
    };
    let missing = || format!("{place}: no cluster with replicas has begun here");
    let RegisterView { configuration, settled, told } = match registered.and_then(|found| found.ok_or_else(missing)) {
        Ok(found) => found,
        Err(error) => {
            // The reports of this host's nodes are valid all the same.
            if let Some(dir) = dir {
                print_without_register(dir, json);
            }
            return Err(error);
        }
    };
    let nodes: Vec<(NodeId, Told)> = (0..configuration.births.len())
        .map(|number| NodeId(number as u8))
        .map(|node| (node, Told::by(dir, node, &told)))
        .collect();
    if json {
        println!("{}", as_json(&configuration, settled, &nodes));
    } else {
        print(&configuration, settled, &nodes);
    }
    Ok(())
}

fn print_without_register(dir: &Path, json: bool) {
    for node in (0..=u8::MAX).map(NodeId) {
        let Some(told) = FileRegister::status(dir, node).map(|text| Told::of(&text)) else { continue };
        let (running, pid) = (told.is_running(), told.pid);
        if json {
            let Told { configuration, state, doing, columns, .. } = &told;
            println!(
                "{}",
                json!({
                    "node": node.0, "running": running, "pid": pid, "configuration": configuration, "state": state,
                    "recovery": doing, "columns": columns_as_json(columns),
                })
            );
        } else if running == Some(true) {
            println!("node {}, process {}: {}", node.0, pid.unwrap_or(0), told.doing);
            print_columns(node, &told.columns);
        } else {
            println!("node {} does not run", node.0);
        }
    }
}

/// The content of a register.
struct RegisterView {
    configuration: Configuration,
    /// The number of the last configuration that all its nodes have installed.
    settled: u64,
    /// By node, the state that it reports in the register. With a directory as register, nodes report it in files elsewhere.
    told: Vec<String>,
}

fn peek_file(dir: &Path) -> Result<Option<RegisterView>, String> {
    let found = FileRegister::peek(&register_of(dir)).map_err(|error| error.to_string())?;
    Ok(found.map(|(configuration, settled)| RegisterView { configuration, settled, told: Vec::new() }))
}

/// The content of the register at this place.
async fn peek(url: &str) -> Result<Option<RegisterView>, String> {
    if let Some(dir) = url.strip_prefix("file://") {
        return peek_file(Path::new(dir));
    }
    if !crate::database::is_etcd(url) {
        return Err(crate::database::unknown_register(url));
    }
    peek_etcd(url).await
}

#[cfg(feature = "etcd")]
async fn peek_etcd(url: &str) -> Result<Option<RegisterView>, String> {
    use crate::database::{generation_name, generation_of};
    use farhold_etcd::{EtcdRegister, EtcdUrl};

    let mut url = EtcdUrl::parse(url)?;
    // With journals each generation has a register; the present one is the last.
    let prefixes = EtcdRegister::prefixes(url.clone(), REGISTER_ANSWERS_IN).await.map_err(|error| error.to_string())?;
    let below = |prefix: &str| generation_of(prefix.strip_prefix(&url.prefix)?.strip_prefix('/')?);
    if let Some(latest) = prefixes.iter().filter_map(|prefix| below(prefix)).max() {
        url.prefix = format!("{}/{}", url.prefix, generation_name(latest));
    }
    let found = EtcdRegister::peek(url, REGISTER_ANSWERS_IN).await.map_err(|error| error.to_string())?;
    Ok(found.map(|it| RegisterView { configuration: it.configuration, settled: it.settled, told: it.told }))
}

#[cfg(not(feature = "etcd"))]
fn peek_etcd(url: &str) -> impl Future<Output = Result<Option<RegisterView>, String>> {
    std::future::ready(Err(crate::database::without_etcd(url)))
}

/// The role of a node in a configuration, in one word.
fn role(configuration: &Configuration, node: NodeId) -> &'static str {
    if configuration.members.contains(&node) {
        "member"
    } else if configuration.joining.contains(&node) {
        "joining"
    } else {
        "gone"
    }
}

/// Whether a node's report is of its present state: the last one of a node on another host that has left is not.
fn says_something(configuration: &Configuration, node: NodeId, told: &Told) -> bool {
    told.is_running().unwrap_or(role(configuration, node) != "gone" && told.pid.is_some())
}

/// Numbers of the partitions that a node serves.
fn served_by(configuration: &Configuration, node: NodeId) -> Vec<usize> {
    let served = configuration.partitions.iter().enumerate();
    served.filter(|(_, serving)| **serving == Serving::By(node)).map(|(partition, _)| partition).collect()
}

fn as_json(configuration: &Configuration, settled: u64, nodes: &[(NodeId, Told)]) -> Value {
    let of_node = |(node, told): &(NodeId, Told)| {
        let copies: Vec<Value> = configuration
            .mirrors
            .iter()
            .filter(|mirror| mirror.of == *node)
            .map(|mirror| json!({ "on": mirror.on.0, "whole": mirror.whole }))
            .collect();
        let lag: Vec<Value> =
            told.lags.iter().map(|(holder, bytes)| json!({ "on": holder.0, "bytes": bytes })).collect();
        json!({
            "node": node.0, "role": role(configuration, *node), "running": told.is_running(), "pid": told.pid,
            "host": if told.host.is_empty() { None } else { Some(&told.host) },
            "serves": served_by(configuration, *node), "copies": copies, "lag": lag,
            "configuration": told.configuration, "recovery": told.doing, "columns": columns_as_json(&told.columns),
        })
    };
    json!({
        "configuration": configuration.number, "settled": settled, "replicas": configuration.replicas,
        "epoch_keeper": configuration.keeper.0, "nodes": nodes.iter().map(of_node).collect::<Vec<_>>(),
    })
}

fn columns_as_json(columns: &ColumnReport) -> Value {
    let of_table = |columns: &TableColumns| {
        let CopySize { segments, segment_rows, segment_bytes, delta_rows, delta_bytes } = columns.size;
        let (state, why) = state(columns);
        json!({
            "table": columns.table, "state": state, "why": why, "built_percent": columns.built_percent(),
            "table_rows": columns.table_rows, "segments": segments, "segment_rows": segment_rows,
            "segment_bytes": segment_bytes, "delta_rows": delta_rows, "delta_bytes": delta_bytes,
            "epochs_behind": columns.epochs_behind,
        })
    };
    json!({
        "waiting_bytes": columns.waiting_bytes, "losses": columns.losses, "left_out": columns.left_out,
        "tables": columns.tables.iter().map(of_table).collect::<Vec<_>>(),
    })
}

/// The state of a table's columns in one word, as in the view `farhold_columns`, and why there are none.
fn state(columns: &TableColumns) -> (&'static str, Option<String>) {
    match columns.reason {
        None => ("kept", None),
        Some(NoColumns::Building) => ("building", None),
        Some(reason) => ("none", Some(reason.to_string())),
    }
}

fn print_columns(node: NodeId, columns: &ColumnReport) {
    for line in columns_as_lines(node, columns) {
        println!("  {line}");
    }
}

/// The columns that a node keeps; empty if it keeps none.
fn columns_as_lines(node: NodeId, columns: &ColumnReport) -> Vec<String> {
    if *columns == ColumnReport::default() {
        return Vec::new();
    }
    let losses = match columns.losses {
        0 => String::new(),
        times => format!("; all were forgotten, since records were missing: {times} times"),
    };
    let waiting = columns.waiting_bytes;
    let first = format!("columns of node {}: {waiting} bytes of records wait to be taken{losses}", node.0);
    let width = columns.tables.iter().map(|columns| columns.table.chars().count()).max().unwrap_or(0);
    let of_table = |columns: &TableColumns| {
        let CopySize { segments, segment_rows, segment_bytes, delta_rows, delta_bytes } = columns.size;
        let rows = columns.table_rows;
        let state = match (state(columns), columns.built_percent()) {
            ((_, Some(why)), _) => format!("none: {why} ({rows} rows)"),
            (_, Some(percent)) => {
                format!(
                    "building: {percent} %, {segment_rows} of {rows} rows; delta: {delta_rows} rows, {delta_bytes} bytes"
                )
            }
            _ => format!(
                "kept: {segment_rows} rows in {segments} segments, {segment_bytes} bytes; delta: {delta_rows} rows, {delta_bytes} bytes; epochs behind: {}",
                columns.epochs_behind
            ),
        };
        format!("  {:<width$}  {state}", columns.table.replace(char::is_control, " "))
    };
    let left_out = (columns.left_out > 0).then(|| format!("  and {} more tables", columns.left_out));
    std::iter::once(first).chain(columns.tables.iter().map(of_table)).chain(left_out).collect()
}

fn print(configuration: &Configuration, settled: u64, nodes: &[(NodeId, Told)]) {
    let change = if settled < configuration.number { ", not yet installed by all" } else { "" };
    println!(
        "configuration {}{change}: {} copies of each row, node {} keeps the epoch",
        configuration.number, configuration.replicas, configuration.keeper.0
    );
    println!("  node  role      pid      serves      replicas on (bytes not applied yet) recovery");
    for (node, told) in nodes {
        let role = if role(configuration, *node) != "gone" && told.is_running() == Some(false) {
            "dead?"
        } else {
            role(configuration, *node)
        };
        let serves: Vec<String> = served_by(configuration, *node).iter().map(ToString::to_string).collect();
        let copies: Vec<String> = configuration
            .mirrors
            .iter()
            .filter(|mirror| mirror.of == *node)
            .map(|mirror| {
                let lag = told.lags.iter().find(|(holder, _)| *holder == mirror.on);
                // A node that has reported its state has sent nothing to a holder that the report does not name.
                let lag = lag.map(|(_, bytes)| *bytes).or(told.pid.map(|_| 0));
                let lag = lag.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
                format!("{}{} ({lag})", mirror.on.0, if mirror.whole { "" } else { ", incomplete" })
            })
            .collect();
        println!(
            "  {:<5} {:<9} {:<8} {:<11} {:<35} {}",
            node.0,
            role,
            told.pid.map_or_else(
                || "-".to_owned(),
                |pid| match told.is_running() {
                    Some(_) => pid.to_string(),
                    None => format!("{pid} on {}", told.host),
                }
            ),
            if serves.is_empty() { "-".to_owned() } else { serves.join(",") },
            if copies.is_empty() { "-".to_owned() } else { copies.join("  ") },
            if says_something(configuration, *node, told) { told.doing.as_str() } else { "-" },
        );
    }
    for (node, told) in nodes {
        if says_something(configuration, *node, told) {
            print_columns(*node, &told.columns);
        }
    }
    if nodes.iter().all(|(_, told)| told.pid.is_none()) {
        println!("  no node has reported its state yet, here or in the register");
    }
    for gone in configuration.unserved() {
        match configuration.successor(gone) {
            Some(to) => println!("  the rows of node {} are being taken over by node {}", gone.0, to.0),
            None => println!("  the rows of node {} are lost: no complete replica of them is left", gone.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Told {
        let status = "pid 7\nhost here\nconfiguration 3\nstate member\nlag 1 20\ndoing nothing\n\
                      columns-all 4096 2 5\n\
                      columns 5:0 300000 0 131072 0 9 800 0 new orders\n\
                      columns 2:0 900000 0 0 0 0 0 0 large\n\
                      columns kept 500000 8 500010 4122592 12 700 1 lines\n";
        Told::of(status)
    }

    #[test]
    fn the_progress_of_columns_is_printed() {
        let told = told();
        assert_eq!((told.configuration, &*told.doing, &told.lags[..]), (3, "nothing", &[(NodeId(1), 20)][..]));
        let lines = columns_as_lines(NodeId(4), &told.columns);
        let expected = [
            "columns of node 4: 4096 bytes of records wait to be taken; all were forgotten, since records were missing: 2 times",
            "  new orders  building: 43 %, 131072 of 300000 rows; delta: 9 rows, 800 bytes",
            "  large       none: there is no room for them (900000 rows)",
            "  lines       kept: 500010 rows in 8 segments, 4122592 bytes; delta: 12 rows, 700 bytes; epochs behind: 1",
            "  and 5 more tables",
        ];
        assert_eq!(lines, expected);
        assert!(columns_as_lines(NodeId(4), &ColumnReport::default()).is_empty(), "a node without columns");
    }

    #[test]
    fn json_has_the_progress_of_columns() {
        let json = as_json(&Configuration::first(2, 2), 0, &[(NodeId(0), told()), (NodeId(1), Told::default())]);
        let nodes = &json["nodes"];
        assert_eq!(
            nodes[0]["columns"],
            json!({
                "waiting_bytes": 4096, "losses": 2, "left_out": 5,
                "tables": [
                    {
                        "table": "new orders", "state": "building", "why": null, "built_percent": 43,
                        "table_rows": 300_000, "segments": 0, "segment_rows": 131_072, "segment_bytes": 0,
                        "delta_rows": 9, "delta_bytes": 800, "epochs_behind": 0,
                    },
                    {
                        "table": "large", "state": "none", "why": "there is no room for them", "built_percent": null,
                        "table_rows": 900_000, "segments": 0, "segment_rows": 0, "segment_bytes": 0,
                        "delta_rows": 0, "delta_bytes": 0, "epochs_behind": 0,
                    },
                    {
                        "table": "lines", "state": "kept", "why": null, "built_percent": null,
                        "table_rows": 500_000, "segments": 8, "segment_rows": 500_010, "segment_bytes": 4_122_592,
                        "delta_rows": 12, "delta_bytes": 700, "epochs_behind": 1,
                    },
                ],
            })
        );
        assert_eq!(nodes[1]["columns"]["tables"], json!([]));
    }
}
