//! The costs of objects: `cargo bench -p farhold-store --bench objects -- [rows|atomicity] [--quick] [--json FILE]`
//!
//! `rows`: the hot paths of the store. `atomicity`: the four mechanisms of atomic reads beside each other. Without a name,
//! both. `--quick` runs each part briefly; its figures mean nothing.
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

mod atomicity;
mod rows;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().position(|arg| arg == "--json").map(|at| args.get(at + 1).expect("--json FILE").clone());
    let only = args.iter().find(|arg| ["rows", "atomicity"].contains(&arg.as_str()));
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let mut report = farhold_report::Report::new(args.iter().any(|arg| arg == "--quick" || arg == "--test"));
    if wanted("rows") {
        rows::run(&mut report);
    }
    if wanted("atomicity") {
        atomicity::run(&mut report);
    }
    if let Some(path) = json {
        report.write(path.as_ref()).expect("write the figures");
    }
}
