//! The bench runs with tiny parameters, so that it cannot rot.
#![cfg(not(miri))]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "../benches/objects/atomicity.rs"]
mod atomicity;
#[path = "../benches/objects/rows.rs"]
mod rows;

#[test]
fn quick() {
    let mut report = farhold_report::Report::new(true);
    rows::run(&mut report);
    atomicity::run(&mut report);
    let file = std::env::temp_dir().join(format!("farhold-objects-{}.json", std::process::id()));
    report.write(&file).expect("a file");
    let json = std::fs::read_to_string(&file).expect("written");
    std::fs::remove_file(file).expect("removed");
    assert!(json.contains("hash lookup"));
    assert!(json.lines().filter(|line| line.contains("\"table\": \"atomicity\"")).count() == 2 * 4 * 3);
}
