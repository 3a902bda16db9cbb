//! Cardinalities and distributions of clause 4.3.3, counted over decoded rows.

use super::*;
use farhold_store::row::Datum;
use std::collections::{BTreeMap, HashMap, HashSet};

/// One warehouse and the items, decoded; by table.
fn population(scale: Scale, seed: u64) -> HashMap<TableKind, Vec<HashMap<String, Datum>>> {
    let mut population = Population::new(scale, seed, 1_700_000_000_000_000);
    let schemas = TABLES.map(|t| t.schema());
    let mut tables: HashMap<TableKind, Vec<HashMap<String, Datum>>> = HashMap::new();
    let mut last_key: HashMap<TableKind, Vec<u8>> = HashMap::new();
    for unit in item_units(scale).chain((1..=scale.warehouses).flat_map(|w| warehouse_units(scale, w))) {
        for (table, key, value) in population.rows(unit).iter() {
            let schema = &schemas[table as usize];
            let mut row = Vec::new();
            schema.decode_row(key, value, &mut row).unwrap();
            let (mut encoded_key, mut encoded_value) = (Vec::new(), Vec::new());
            schema.encode_key(&row, &mut encoded_key).unwrap();
            schema.encode_value(&row, &mut encoded_value).unwrap();
            assert_eq!((encoded_key.as_slice(), encoded_value.as_slice()), (key, value), "limits hold in {table:?}");
            let last = last_key.insert(table, key.to_vec());
            assert!(last.is_none_or(|last| last.as_slice() < key), "{table:?} is loaded in key order");
            let named = schema.columns().iter().map(|c| c.name.clone()).zip(row).collect();
            tables.entry(table).or_default().push(named);
        }
    }
    tables
}

fn int(row: &HashMap<String, Datum>, column: &str) -> i64 {
    match &row[column] {
        Datum::SmallInt(v) => i64::from(*v),
        Datum::Int(v) => i64::from(*v),
        Datum::BigInt(v) | Datum::Timestamp(v) => *v,
        Datum::Decimal { unscaled, .. } => *unscaled as i64,
        other => panic!("{column} is {other:?}"),
    }
}

fn text<'a>(row: &'a HashMap<String, Datum>, column: &str) -> &'a str {
    let Datum::Text(text) = &row[column] else { panic!("{column} is {:?}", row[column]) };
    text
}

fn share(rows: &[HashMap<String, Datum>], of: impl Fn(&HashMap<String, Datum>) -> bool) -> f64 {
    rows.iter().filter(|r| of(r)).count() as f64 / rows.len() as f64
}

#[test]
fn a_full_warehouse_has_the_specified_cardinalities_and_distributions() {
    let scale = Scale::full(1);
    let tables = population(scale, 42);
    let count = |table| tables[&table].len();
    assert_eq!(count(TableKind::Warehouse), 1);
    assert_eq!(count(TableKind::District), 10);
    assert_eq!(count(TableKind::Customer), 30_000);
    assert_eq!(count(TableKind::History), 30_000);
    assert_eq!(count(TableKind::Orders) as u64, super::super::ORDERS_PER_WAREHOUSE);
    assert_eq!(count(TableKind::NewOrder), 9_000);
    assert_eq!(count(TableKind::Item), 100_000);
    assert_eq!(count(TableKind::Stock), 100_000);
    let lines = count(TableKind::OrderLine);
    assert!((298_000..302_000).contains(&lines), "{lines} order lines, 300,000 expected");
    let rows: usize = TABLES
        .iter()
        .zip(0..)
        .filter(|(t, _)| t.name != "item")
        .map(|(_, i)| tables.iter().find(|(k, _)| **k as usize == i).unwrap().1.len())
        .sum();
    assert!(rows.abs_diff(scale.rows_per_warehouse() as usize) < 2_000);

    let items = &tables[&TableKind::Item];
    let original = |column: &'static str| move |r: &HashMap<String, Datum>| text(r, column).contains("ORIGINAL");
    let near = |share: f64, expected: f64| assert!((share - expected).abs() < 0.01, "{share}, expected {expected}");
    near(share(items, original("i_data")), 0.1);
    near(share(&tables[&TableKind::Stock], original("s_data")), 0.1);
    near(share(&tables[&TableKind::Customer], |r| text(r, "c_credit") == "BC"), 0.1);
    assert!(
        items
            .iter()
            .all(|r| (100..=10_000).contains(&int(r, "i_price")) && (26..=50).contains(&text(r, "i_data").len()))
    );
    assert!(tables[&TableKind::Stock].iter().all(|r| (10..=100).contains(&int(r, "s_quantity"))));

    // Last names: the first thousand customers of a district have one each, the others are drawn non-uniformly.
    let mut names: BTreeMap<(i64, &str), u32> = BTreeMap::new();
    for row in &tables[&TableKind::Customer] {
        *names.entry((int(row, "c_d_id"), text(row, "c_last"))).or_default() += 1;
    }
    assert_eq!(names.len(), 10 * 1000);
    assert!(*names.values().max().unwrap() > 12, "three customers a name on average, but skewed");
    let states: HashSet<u8> = tables[&TableKind::Customer].iter().map(|r| text(r, "c_state").as_bytes()[0]).collect();
    assert_eq!(states.len(), 62, "each of CH-benCHmark's nations has customers");

    // Orders: customers permuted; a carrier and a delivery date exactly for the delivered.
    for d_id in 1..=10 {
        let orders: Vec<_> = tables[&TableKind::Orders].iter().filter(|r| int(r, "o_d_id") == d_id).collect();
        let customers: HashSet<i64> = orders.iter().map(|r| int(r, "o_c_id")).collect();
        assert_eq!(customers.len(), 3_000);
        assert!(orders.iter().any(|r| int(r, "o_c_id") != int(r, "o_id")));
    }
    for row in &tables[&TableKind::Orders] {
        assert_eq!(row["o_carrier_id"].is_null(), int(row, "o_id") > 2100);
        assert!((5..=15).contains(&int(row, "o_ol_cnt")));
    }
    for row in &tables[&TableKind::OrderLine] {
        let delivered = int(row, "ol_o_id") <= 2100;
        assert_eq!(row["ol_delivery_d"].is_null(), !delivered);
        assert_eq!(int(row, "ol_amount") == 0, delivered);
    }
    assert!(tables[&TableKind::NewOrder].iter().all(|r| int(r, "no_o_id") > 2100));
    assert_eq!(int(&tables[&TableKind::Warehouse][0], "w_ytd"), 30_000_000);
    assert!(tables[&TableKind::District].iter().all(|r| int(r, "d_ytd") == 3_000_000 && int(r, "d_next_o_id") == 3001));
}

#[test]
fn units_depend_on_the_seed_and_themselves_alone() {
    let scale = Scale::tiny(3);
    let unit = Unit::Customers { w_id: 2, d_id: 7 };
    let dump = |population: &mut Population| {
        population.rows(unit).iter().map(|(t, k, v)| (t, k.to_vec(), v.to_vec())).collect::<Vec<_>>()
    };
    let mut a = Population::new(scale, 5, 1);
    let mut b = Population::new(scale, 5, 1);
    a.rows(Unit::Orders { w_id: 1, d_id: 1 });
    assert_eq!(dump(&mut a), dump(&mut b));
    assert_ne!(dump(&mut a), dump(&mut Population::new(scale, 6, 1)));
}
