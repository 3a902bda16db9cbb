//! Every kind of join and every type of key, in SQL.

use super::bed::{Bed, MIB, Table, config, keys, on_runtime, plain, rows};

/// A query for each kind of join: `{on}` is the condition on keys, `{and}` a further one.
pub const KINDS: [(&str, &str); 12] = [
    ("inner", "SELECT l.id, r.id, r.pad FROM l JOIN r ON {on}{and}"),
    ("left", "SELECT l.id, r.id FROM l LEFT JOIN r ON {on}{and}"),
    ("right", "SELECT l.pad, r.id FROM l RIGHT JOIN r ON {on}{and}"),
    ("full", "SELECT l.id, r.id, l.k64, r.k64 FROM l FULL JOIN r ON {on}{and}"),
    ("semi", "SELECT l.id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE {on}{and})"),
    ("anti", "SELECT l.id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE {on}{and})"),
    ("right semi", "SELECT r.id FROM l RIGHT SEMI JOIN r ON {on}{and}"),
    ("right anti", "SELECT r.id FROM l RIGHT ANTI JOIN r ON {on}{and}"),
    ("mark", "SELECT l.id FROM l WHERE l.id % 3 = 0 OR EXISTS (SELECT 1 FROM r WHERE {on}{and})"),
    ("not in", "SELECT l.id FROM l WHERE l.k64 NOT IN (SELECT r.k64 FROM r WHERE r.id % 5 > 1)"),
    ("not in without null", "SELECT l.id FROM l WHERE l.k64 NOT IN (SELECT r.k64 FROM r WHERE r.k64 IS NOT NULL)"),
    ("count", "SELECT count(*), sum(l.id) FROM l JOIN r ON {on}{and}"),
];

/// Conditions on keys.
pub const KEYS: [&str; 12] = [
    "l.k64 = r.k64",
    "l.k32 = r.k32",
    "l.text = r.text",
    "l.view = r.view",
    "l.day = r.day",
    "l.price = r.price",
    "l.real = r.real",
    "l.word = r.word",
    "l.k32 = r.k32 AND l.text = r.text AND l.day = r.day",
    "l.k64 + 1 = r.k64",
    "(l.k64 IS NOT DISTINCT FROM r.k64)",
    "(l.text IS NOT DISTINCT FROM r.text) AND (l.k32 IS NOT DISTINCT FROM r.k32)",
];

/// Further conditions.
pub const CONDITIONS: [&str; 2] = ["", " AND (l.id + r.id) % 3 <> 0"];

pub fn query(kind: &str, on: &str, and: &str) -> String {
    kind.replace("{on}", on).replace("{and}", and)
}

fn sides() -> Vec<(&'static str, Vec<Table>)> {
    let table = |name, keys| Table { name, keys, text_bytes: 8, partitions: 3 };
    vec![
        (
            "duplicates and nulls",
            vec![
                table("l", keys(400, 1, 11, |random| random % 150)),
                table("r", keys(900, 2, 13, |random| random % 200)),
            ],
        ),
        ("no left row", vec![table("l", vec![]), table("r", keys(50, 3, 0, |random| random % 9))]),
        ("no right row", vec![table("l", keys(50, 4, 7, |random| random % 9)), table("r", vec![])]),
        ("nulls only", vec![table("l", vec![None; 5]), table("r", vec![None; 6])]),
        ("one key", vec![table("l", vec![Some(3); 40]), table("r", vec![Some(3); 70])]),
    ]
}

#[test]
fn every_kind_and_key_gives_the_rows_of_plain_datafusion() {
    on_runtime(async {
        for (name, tables) in sides() {
            let plain = plain(&tables, 3);
            for partitioning in ["shared", "partitioned", "single"] {
                let bed = Bed::new(&tables, 3, None, config(partitioning, "auto"));
                for (kind, text) in KINDS {
                    for on in KEYS {
                        for and in CONDITIONS {
                            let query = query(text, on, and);
                            let expected = rows(&plain, &query).await.unwrap();
                            let answer = bed.rows(&query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
                            assert!(answer == expected, "{name}, {partitioning}, {kind}: {query}");
                            if !text.contains("{on}") {
                                break;
                            }
                        }
                    }
                }
                bed.assert_clean();
            }
        }
    });
}

#[test]
fn every_budget_gives_the_same_rows() {
    let table = |name, seed| Table {
        name,
        keys: keys(12_000, seed, 17, |random| if random % 50 == 0 { 7 } else { random % 20_000 }),
        text_bytes: 150,
        partitions: 4,
    };
    let tables = [table("l", 5), table("r", 6)];
    on_runtime(async {
        let plain = plain(&tables, 4);
        let bed = Bed::new(&tables, 4, Some(3 * MIB), config("auto", "auto"));
        let spilled = bed.explain("ANALYZE SELECT l.pad, l.text, r.pad FROM l JOIN r ON l.k64 = r.k64").await;
        assert!(spilled.contains("actual=[") && !spilled.contains(" 0 bytes spilled"), "{spilled}");
        for (kind, text) in KINDS {
            for and in CONDITIONS {
                let query = query(&text.replace("SELECT", "SELECT l.pad AS lp, r.pad AS rp,"), "l.k64 = r.k64", and);
                let query = if kind == "inner" || kind == "full" {
                    query
                } else {
                    super::queries::query(text, "l.k64 = r.k64", and)
                };
                let expected = rows(&plain, &query).await.unwrap();
                for (budget, partitioning) in
                    [(MIB, "auto"), (3 * MIB, "shared"), (8 * MIB, "partitioned"), (64 * MIB, "auto")]
                {
                    let bed = Bed::new(&tables, 4, Some(budget), config(partitioning, "auto"));
                    let answer = bed.rows(&query).await.unwrap_or_else(|error| panic!("{budget}, {query}: {error}"));
                    assert!(answer == expected, "{budget} bytes, {partitioning}, {kind}: {query}");
                    bed.assert_clean();
                }
            }
        }
    });
}
