//! `farhold serve`: one node, answering the PostgreSQL protocol until it is told to end.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use serde_json::json;

use farhold_bench::allocator;
use farhold_sql::engine::{Engine, EngineConfig};
use farhold_sql::server::{Authentication, Server, ServerConfig, ServerHandle, Tls, Users};
use farhold_txn::KeptColumns;

use super::args::{ColumnsLevel, DurabilityArgs, DurabilityLevel, ReplicaArgs, ServeArgs};
use super::{half_written, signal};
use crate::{Config, Database, Durability};

/// Between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Runs the command; the error is for a person.
pub fn run(args: &ServeArgs, json: bool) -> Result<(), String> {
    check(args)?;
    let ended = signal::ended()?;
    let mut config = args.dir.as_ref().map_or_else(Config::in_memory, Config::at);
    config = config
        .memory_bytes(args.memory)
        .populate_bytes(args.populate)
        .column_bytes(args.column_memory)
        .forget_half_written(args.forget_half_written)
        .node(args.node, args.nodes)
        .provider(&args.provider);
    config = replicated(config, &args.replicas).durability(durability(&args.durability));
    if let Some(url) = &args.register {
        config = config.register(url);
    }
    let server_config = server_config(args)?;
    if args.replicas.replicas > 1 {
        tell(
            json,
            &json!({ "event": "waiting" }),
            "waits for the other nodes, and for an earlier start of this node to end",
        );
    }
    let mut is_over = false;
    let database = open(&config, json, || ended.try_recv().is_ok())?;
    let node = database.node();
    if let Some((event, words)) = half_written::forgotten(node, &node.recovered().forgotten) {
        tell(json, &event, &words);
    }
    for (name, _, why) in node.recovered().unopened {
        let words = format!(
            "cannot open the table \"{name}\": {why}. Its rows stay where they are, and statements that name it fail"
        );
        tell(json, &json!({ "event": "unopened", "table": name, "why": why }), &words);
    }
    let mut damaged = 0;
    let server = start(&database, engine_config(args)?, server_config)?;
    let listen = server.local_addr();
    if json {
        println!("{}", json!({ "event": "listening", "listen": listen.to_string(), "dir": database.dir() }));
    } else {
        println!("farhold {} listens on {listen}", env!("CARGO_PKG_VERSION"));
        println!("  psql -h {} -p {} -U farhold farhold", listen.ip(), listen.port());
        match (&args.durability.journal, &args.dir) {
            (Some(journal), _) => println!("  rows come back from the journal in {}", journal.display()),
            (None, Some(dir)) => println!("  rows live in {} (provider {})", dir.display(), args.provider),
            (None, None) => println!("  rows live in shared memory until this process ends; keep them with --dir"),
        }
        println!("  Ctrl-C ends it");
    }
    let mut tell_damaged = || {
        let found = database.node().damaged_after(damaged);
        damaged += found.len();
        if let Some((event, words)) = half_written::found(database.node(), &found) {
            tell(json, &event, &words);
        }
    };
    tell_damaged();
    // An error other than a timeout means that the thread for signals is gone: end as well.
    while ended.recv_timeout(LOOK_AFTER) == Err(RecvTimeoutError::Timeout) {
        is_over = database.node().is_expelled();
        if is_over || database.node().refusal().is_some() {
            break;
        }
        tell_damaged();
        allocator::give_back();
    }
    server.shutdown();
    if let Some(reason) = database.node().journal_failure().filter(|_| args.replicas.replicas > 1) {
        return Err(format!("this node has left the cluster: {reason}"));
    }
    if let Some(reason) = database.node().refusal() {
        return Err(reason.to_string());
    }
    if is_over {
        return Err(EXPELLED.to_owned());
    }
    Ok(())
}

/// Flags that contradict each other, or would have no effect.
fn check(args: &ServeArgs) -> Result<(), String> {
    if args.node >= args.nodes {
        return Err(format!("--node {} of --nodes {}: nodes are numbered from 0", args.node, args.nodes));
    }
    let is_replicated = args.replicas.replicas > 1;
    // The provider's URL names the hosts of a network; each has a directory of its own.
    let names_hosts = args.provider.contains('?');
    if args.dir.is_none() && (is_replicated || args.nodes > 1 && !names_hosts) {
        return Err("several nodes need --dir DIRECTORY, the same for all: they find each other there".to_owned());
    }
    if args.register.is_some() && !is_replicated {
        return Err(
            "--register has no effect without --replicas 2 or more; add that or leave --register out".to_owned()
        );
    }
    let has_none = is_replicated || args.durability.level != DurabilityLevel::Memory;
    if args.forget_half_written && has_none {
        return Err("--forget-half-written has no effect with --replicas 2 or more, or with a journal: no row is half written there; leave it out".to_owned());
    }
    args.durability.check()
}

/// What a commit survives, by the command line.
pub fn durability(args: &DurabilityArgs) -> Durability {
    let path = args.journal.clone().unwrap_or_default(); // clap asks for it where it is used
    match args.level {
        DurabilityLevel::Memory => Durability::Memory,
        DurabilityLevel::Nvm if args.assume_persistence => Durability::NvmAssumed(path),
        DurabilityLevel::Nvm => Durability::Nvm(path),
        DurabilityLevel::Disk => Durability::Disk(path),
    }
}

/// Opens the database, and reports the progress while it restores rows.
fn open(config: &Config, json: bool, give_up: impl Fn() -> bool) -> Result<Database, String> {
    let progress = config.progress();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let shower = std::thread::spawn(move || {
        while waiting.recv_timeout(PROGRESS_EVERY) == Err(RecvTimeoutError::Timeout) {
            let (bytes, total) = (progress.bytes.load(Relaxed), progress.bytes_total.load(Relaxed));
            if total == 0 {
                continue;
            }
            let (rows, percent) = (progress.rows.load(Relaxed), bytes * 100 / total);
            let event = json!({ "event": "restoring", "bytes": bytes, "bytes_total": total, "rows": rows });
            tell(json, &event, &format!("restores: {percent} % of {} MiB, {rows} rows", total >> 20));
        }
    });
    let database = Database::open_unless(config, give_up).map_err(|error| error.to_string());
    drop(done);
    let _ = shower.join(); // it only prints
    let (progress, database) = (config.progress(), database?);
    let (rows, bytes) = (progress.rows.load(Relaxed), progress.bytes.load(Relaxed));
    if rows > 0 {
        let event = json!({ "event": "restored", "bytes": bytes, "rows": rows });
        tell(json, &event, &format!("has restored {rows} rows from {} MiB", bytes >> 20));
    }
    Ok(database)
}

/// The error of a node that must be started again.
pub const EXPELLED: &str = "the cluster goes on without this node: it was silent for longer than its lease, or the others could not reach it; start it again";

/// How often a node checks whether it is still a member.
pub const LOOK_AFTER: Duration = Duration::from_millis(20);

/// A node's settings with those of replication.
pub fn replicated(config: Config, args: &ReplicaArgs) -> Config {
    config.replicas(args.replicas).lease(Duration::from_millis(args.lease_ms)).optimistic(!args.pessimistic)
}

fn tell(json: bool, event: &serde_json::Value, words: &str) {
    if json {
        println!("{event}");
    } else {
        println!("farhold {} {words}", env!("CARGO_PKG_VERSION"));
    }
}

/// Starts the engine and the server of an open node.
pub fn start(database: &Database, engine: EngineConfig, config: ServerConfig) -> Result<ServerHandle, String> {
    let engine = database
        .run(async |worker, _| Engine::open(database.node().clone(), engine, &worker).await)
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    if let Some(warning) = engine.warning() {
        eprintln!("farhold: {warning}");
    }
    Server::start(engine, database.node(), config).map_err(|error| error.to_string())
}

/// Which columns tables are kept as, by the command line.
pub fn kept_columns(level: ColumnsLevel) -> KeptColumns {
    match level {
        ColumnsLevel::Auto => KeptColumns::Auto,
        ColumnsLevel::All => KeptColumns::All,
        ColumnsLevel::None => KeptColumns::None,
    }
}

fn engine_config(args: &ServeArgs) -> Result<EngineConfig, String> {
    let mut config = EngineConfig {
        query_memory_bytes: args.query_memory as usize,
        without_rules: args.without.iter().cloned().collect(),
        ..EngineConfig::default()
    };
    config.columns = kept_columns(args.columns);
    config.join_memory_bytes = args.join_memory.map(|bytes| bytes as usize);
    if let Some(directory) = &args.spill_dir {
        if !directory.is_dir() {
            return Err(format!("--spill-dir {}: no such directory; make it, or name another", directory.display()));
        }
        config.spill_directory.clone_from(directory);
    }
    Ok(config)
}

fn server_config(args: &ServeArgs) -> Result<ServerConfig, String> {
    let unix_socket_dir = args.unix_socket_dir.clone();
    let mut config =
        ServerConfig { listen: args.listen, unix_socket_dir, pin_front_ends: args.pin, ..ServerConfig::default() };
    if args.threads > 0 {
        config.front_end_threads = args.threads;
    }
    if let Some(path) = &args.password_file {
        config.authentication =
            Authentication::Passwords(Users::read(path).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        config.tls = Some(Tls::read(certificate, key).map_err(|error| error.to_string())?);
    }
    Ok(config)
}
