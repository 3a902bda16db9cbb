//! Nodes keep columns of their rows while they die, pause and come back, and clients compare these with rows at snapshots that stay open for a
//! while.

use crate::seeds;
use farhold_sim::failover::{Compared, Failover, run};

#[test]
fn columns_show_the_rows_of_their_snapshots() {
    let mut all = Compared::default();
    for seed in 0..24 {
        let aftermath = run(&Failover::with_columns(seed));
        aftermath.check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{}", aftermath.story.join("\n")));
        all += &aftermath.compared;
    }
    println!("{all:?}");
    // At its end each seed compares a dozen views. Most of these are while clients run and nodes die.
    let Compared { own, far, far_segments, outlived, with_rows, .. } = all;
    assert!(own > 900 && far > 900 && far_segments > 2_000, "{own} {far} {far_segments}");
    assert!(outlived > 40 && with_rows > 1_500, "{outlived} {with_rows}");
}

#[test]
fn a_seed_with_columns_is_the_same_again() {
    seeds::are_the_same_again(seeds::TWICE, Failover::with_columns);
    for seed in seeds::TWICE {
        let [once, again] = [(); 2].map(|()| run(&Failover::with_columns(seed)));
        assert_eq!(once.compared, again.compared, "seed {seed}");
    }
}
