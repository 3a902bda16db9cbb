//! `farhold serve`: one node, answering the PostgreSQL protocol until it is told to end.

use serde_json::json;

use farhold_sql::engine::{Engine, EngineConfig};
use farhold_sql::server::{Authentication, Server, ServerConfig, ServerHandle, Tls, Users};

use super::args::ServeArgs;
use super::signal;
use crate::{Config, Database};

/// Runs the command; the error is for a person.
pub fn run(args: &ServeArgs, json: bool) -> Result<(), String> {
    if args.node >= args.nodes {
        return Err(format!("--node {} of --nodes {}: nodes are numbered from 0", args.node, args.nodes));
    }
    let ended = signal::ended()?;
    let mut config = args.dir.as_ref().map_or_else(Config::in_memory, Config::at);
    config = config.memory_bytes(args.memory).node(args.node, args.nodes).provider(&args.provider);
    let server_config = server_config(args)?;
    let database = Database::open(&config).map_err(|error| error.to_string())?;
    let server = start(&database, engine_config(args)?, server_config)?;
    let listen = server.local_addr();
    if json {
        println!("{}", json!({ "event": "listening", "listen": listen.to_string(), "dir": database.dir() }));
    } else {
        println!("farhold {} listens on {listen}", env!("CARGO_PKG_VERSION"));
        println!("  psql -h {} -p {} -U farhold farhold", listen.ip(), listen.port());
        match &args.dir {
            Some(dir) => println!("  rows live in {} (provider {})", dir.display(), args.provider),
            None => println!("  rows live in shared memory until this process ends; keep them with --dir"),
        }
        println!("  Ctrl-C ends it");
    }
    let _ = ended.recv(); // an error means that the thread for signals is gone: end as well
    server.shutdown();
    Ok(())
}

/// Starts the engine and the server of an open node.
pub fn start(database: &Database, engine: EngineConfig, config: ServerConfig) -> Result<ServerHandle, String> {
    let engine = database
        .run(async |worker, _| Engine::open(database.node().clone(), engine, &worker).await)
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    Server::start(engine, database.node(), config).map_err(|error| error.to_string())
}

fn engine_config(args: &ServeArgs) -> Result<EngineConfig, String> {
    let mut config = EngineConfig { query_memory_bytes: args.query_memory as usize, ..EngineConfig::default() };
    config.join_memory_bytes = args.join_memory.map(|bytes| bytes as usize);
    if let Some(directory) = &args.spill_dir {
        if !directory.is_dir() {
            return Err(format!("--spill-dir {}: no such directory", directory.display()));
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
        config.authentication = Authentication::Passwords(Users::read(path).map_err(|error| error.to_string())?);
    }
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        config.tls = Some(Tls::read(certificate, key).map_err(|error| error.to_string())?);
    }
    Ok(config)
}
