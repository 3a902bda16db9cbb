//! Runs one seed and prints what it finds: `cargo run -p farhold-sim --example seed -- 10 [table key]`.

use farhold_sim::cluster::{Setup, run};
use farhold_sim::history::Key;

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let outcome = run(&Setup::small(numbers.first().copied().unwrap_or(0)));
    println!("{} committed, {:?}, trace {:x}", outcome.history.records.len(), outcome.statistics, outcome.trace_hash);
    if let [_, table, key] = numbers[..] {
        let key = Key { table: table as u32, key };
        let mut records = outcome.history.records.clone();
        records.sort_by_key(|record| record.serial);
        for record in &records {
            let reads = record.reads.iter().filter(|read| read.key == key);
            let writes = record.writes.iter().filter(|write| write.key == key);
            for what in reads.map(|it| format!("{:?}", it.saw)).chain(writes.map(|it| format!("writes {:?}", it.row))) {
                let (id, serial, epoch) = (record.id, record.serial, record.epoch);
                println!(
                    "T{id} serial {serial} epoch {epoch} {}..{} {what} {}",
                    record.began, record.ended, record.label
                );
            }
        }
    }
    outcome.left_behind.iter().for_each(|left| println!("left behind: {left}"));
    match outcome.check() {
        Ok(()) => println!("in order"),
        Err(what) => println!("{what}"),
    }
}
