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
    let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
    report.write(&file).expect("a file");
    let json = std::fs::read_to_string(&file).expect("written");
    assert!(json.contains("hash lookup"));
    assert!(json.lines().filter(|line| line.contains("\"table\": \"atomicity\"")).count() == 2 * 4 * 3);
}
