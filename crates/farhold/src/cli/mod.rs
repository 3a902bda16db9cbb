//! The `farhold` binary: parses the command line, runs one command, and prints its error.

mod args;
mod bench;
mod check;
mod client;
mod clock;
mod cluster;
mod demo;
mod descriptors;
mod event;
mod fabric;
mod failure;
mod half_written;
mod htap;
mod import;
mod kv;
mod node;
mod plot;
mod processor;
mod serve;
mod signal;
mod smallbank;
mod sql;
mod status;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, ClusterCommand, Command, FabricCommand, Workload};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if let Some(missing) = processor::missing() {
        eprintln!(
            "farhold: this processor lacks {missing}; a program for it is made by `make release TARGET_CPU=x86-64`"
        );
        return ExitCode::FAILURE;
    }
    signal::restore();
    descriptors::raise();
    let cli = Cli::parse();
    let json = cli.json;
    let outcome = match &cli.command {
        Command::Demo(args) => client_runtime(demo::run(args, json)),
        Command::Sql(args) => client_runtime(sql::run(args, json)),
        Command::Import(args) => client_runtime(import::run(args, json)),
        Command::Check(args) => client_runtime(check::run(args, json)),
        Command::Bench(args) => match &args.workload {
            Workload::Tpcc(args) => client_runtime(bench::tpcc(args, json)),
            Workload::Ch(args) => client_runtime(bench::ch(args, json)),
            Workload::Htap(args) => client_runtime(htap::run(args, json)),
            Workload::Kv(args) => kv::run(args, json),
            Workload::Smallbank(args) => smallbank::run(args, json),
        },
        Command::Cluster(args) => match &args.command {
            ClusterCommand::Status(args) => client_runtime(status::run(args, json)),
        },
        Command::Fabric(args) => match &args.command {
            FabricCommand::Info(args) => {
                fabric::info(args, json);
                Ok(())
            }
        },
        Command::Serve(args) => serve::run(args, json),
        Command::Node(args) => node::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("farhold: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The client commands' runtime: one thread is plenty for a person or a script.
fn client_runtime(command: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime for the client: {error}"))?
        .block_on(command)
}
