//! Many threads at once: nothing lost, nothing twice, scans in order, and phantoms noticed.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread;

use super::{all, insert_new, key, mix, put, rows, rows_rev, shapes, shuffled, steps};
use crate::{Insert, KeyShape, OrderedIndex};

const THREADS: u64 = 4;

#[test]
fn every_key_of_every_thread_is_there() {
    for shape in shapes() {
        let (index, each) = (OrderedIndex::new(shape), steps(10_000, 40));
        thread::scope(|scope| {
            for mine in 0..THREADS {
                let index = &index;
                scope.spawn(move || {
                    for number in shuffled(each, mine) {
                        let key = key(shape, number * THREADS + mine);
                        put(index, &key, number);
                        assert_eq!(index.get(&key).value, Some(number));
                    }
                });
            }
        });
        let expected: Vec<_> = (0..each * THREADS).map(|number| (key(shape, number), number / THREADS)).collect();
        assert!(all(&index) == expected, "{shape:?}");
    }
}

#[test]
fn of_racing_inserts_one_wins() {
    let (index, count) = (OrderedIndex::new(KeyShape::Short), steps(20_000, 80));
    let wins: u64 = thread::scope(|scope| {
        let race = |mine: u64| {
            let index = &index;
            scope.spawn(move || {
                let won = |number: &u64| {
                    matches!(index.insert(&key(KeyShape::Short, *number), mine), Insert::Inserted { .. })
                };
                (0..count).filter(won).count() as u64
            })
        };
        let racers: Vec<_> = (0..THREADS).map(race).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).sum()
    });
    assert_eq!((wins, index.len() as u64), (count, count));
}

/// Every third number stays throughout; the other thirds are inserted and removed by their writers, so that leaves
/// split, merge and are used again under the readers.
#[test]
fn readers_find_what_stays_while_writers_churn() {
    for shape in shapes() {
        let (index, count) = (OrderedIndex::new(shape), steps(3000, 60));
        (0..count).for_each(|number| put(&index, &key(shape, 3 * number), number));
        let writers_left = AtomicU64::new(2);
        thread::scope(|scope| {
            for mine in 1..3 {
                let (index, writers_left) = (&index, &writers_left);
                scope.spawn(move || {
                    for round in 0..steps(12, 1) {
                        for number in shuffled(count, round) {
                            put(index, &key(shape, 3 * number + mine), number);
                        }
                        for number in shuffled(count, round + 100) {
                            index.remove(&key(shape, 3 * number + mine), number).unwrap();
                        }
                    }
                    writers_left.fetch_sub(1, SeqCst);
                });
            }
            scope.spawn(|| {
                while writers_left.load(SeqCst) > 0 {
                    for number in (0..count).step_by(7) {
                        assert_eq!(index.get(&key(shape, 3 * number)).value, Some(number));
                    }
                }
            });
            scope.spawn(|| {
                let mut round = 0;
                while writers_left.load(SeqCst) > 0 {
                    round += 1;
                    check_scan(&index, shape, count, mix(round) % count);
                }
            });
        });
        let expected: Vec<_> = (0..count).map(|number| (key(shape, 3 * number), number)).collect();
        assert!(all(&index) == expected, "{shape:?}");
    }
}

/// What is scanned is sorted, without duplicates, and has all that stays.
fn check_scan(index: &OrderedIndex, shape: KeyShape, count: u64, from: u64) {
    let (lo, hi) = (key(shape, 3 * from), key(shape, 3 * (from + steps(500, 20)).min(count)));
    let (found, _) = rows(index, Included(&lo), Excluded(&hi));
    let (mut back, _) = rows_rev(index, Included(&lo), Excluded(&hi));
    back.reverse();
    for found in [found, back] {
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{shape:?}: not ascending");
        let expected = (from..count).map(|number| (key(shape, 3 * number), number)).take_while(|(key, _)| *key < hi);
        let mut found = found.into_iter();
        for row in expected {
            assert!(found.any(|other| other == row), "{shape:?}: {row:?} is missing");
        }
    }
}

/// Transactions that scan a range, and insert into it only if it is empty. If stamps notice every insert, no two inserts of the
/// same round both validate.
///
/// Each thread scans the round's range, inserts its own key into it if the range is empty, carries its stamps over that, and
/// validates. A thread whose stamps are invalid takes its key out again. That is Silo's protocol for a predicate lock; two
/// winners of one round are a phantom.
#[test]
fn of_transactions_that_found_a_range_empty_at_most_one_commits() {
    for shape in shapes() {
        let (index, rounds) = (OrderedIndex::new(shape), steps(3000, 30));
        let winners: Vec<AtomicU64> = (0..rounds).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for mine in 0..THREADS {
                let (index, winners) = (&index, &winners);
                scope.spawn(move || {
                    for round in shuffled(rounds, 9) {
                        let (lo, hi) = (key(shape, 8 * round), key(shape, 8 * round + 8));
                        let (found, mut stamps) = rows(index, Included(&lo), Excluded(&hi));
                        if !found.is_empty() {
                            continue;
                        }
                        let own = key(shape, 8 * round + mine);
                        insert_new(index, &own, mine).apply(&mut stamps);
                        if stamps.iter().all(|&stamp| index.validate(stamp)) {
                            winners[usize::try_from(round).unwrap()].fetch_add(1, Relaxed);
                        } else {
                            index.remove(&own, mine).unwrap();
                        }
                    }
                });
            }
        });
        let most = winners.iter().map(|winners| winners.load(Relaxed)).max();
        assert!(most <= Some(1), "{shape:?}: {most:?} winners of one round");
        let won: u64 = winners.iter().map(|winners| winners.load(Relaxed)).sum();
        assert_eq!(rows(&index, Unbounded, Unbounded).0.len() as u64, won, "{shape:?}");
    }
}
