//! Typed rows: every type of a column, every operation, and tables that do not fit.

use farhold::{
    Column, ColumnType, Config, Database, Date, Decimal, Placement, Retry, Row, RowError, Rows, Schema, TableDef,
    Timestamp, Timestamptz, TxnError,
};

farhold::row! {
    /// One of each type.
    struct Everything {
        key { place: i32, name: String }
        yes: bool,
        small: i16,
        large: i64,
        single: f32,
        double: f64,
        bytes: Vec<u8>,
        day: Date,
        moment: Timestamp,
        instant: Timestamptz,
        price: Decimal<12, 2>,
        /// May be NULL.
        note: Option<String>,
    }
}

farhold::row! {
    /// The same key, other columns.
    struct Short {
        key { place: i32, name: String }
    }
}

fn everything(place: i32, name: &str) -> Everything {
    Everything {
        place,
        name: name.into(),
        yes: true,
        small: i16::MIN,
        large: i64::MAX,
        single: -0.5,
        double: f64::MIN_POSITIVE,
        bytes: vec![0, 255, 0],
        day: Date(-1),
        moment: Timestamp(1),
        instant: Timestamptz(-1),
        price: Decimal(-1999),
        note: None,
    }
}

fn run<T>(body: impl AsyncFnOnce(farhold::Worker) -> Result<T, TxnError>) -> Result<T, TxnError> {
    let database = Database::open(&Config::in_memory().memory_bytes(64 << 20)).expect("a database");
    database.run(async |worker, _| body(worker).await).expect("a worker")
}

#[test]
fn what_goes_in_comes_out() {
    let rows = run(async |worker| {
        let rows = Rows::<Everything>::create(&worker, "everything").await?;
        let first = everything(-1, "");
        let second = Everything { note: Some("ä".into()), ..everything(2, "b") };
        worker
            .run(Retry::default(), async |txn| {
                rows.insert(txn, &second).await?;
                rows.put(txn, &first).await
            })
            .await?;
        let mut txn = worker.begin();
        assert_eq!(rows.get(&mut txn, (2, "b".to_owned())).await?, Some(second.clone()));
        assert_eq!(rows.get(&mut txn, (2, "c".to_owned())).await?, None);
        assert_eq!(rows.range(&mut txn, ..).await?, [first.clone(), second.clone()]);
        let from = (2, String::new());
        assert_eq!(rows.range(&mut txn, from.clone()..).await?, std::slice::from_ref(&second));
        assert_eq!(rows.range(&mut txn, ..from).await?, std::slice::from_ref(&first));
        assert!(matches!(rows.insert(&mut txn, &first).await, Err(TxnError::DuplicateKey { .. })));
        let changed = Everything { note: Some("longer than it was".into()), yes: false, ..first };
        rows.update(&mut txn, &changed).await?;
        rows.put(&mut txn, &Everything { small: 7, ..second.clone() }).await?;
        assert!(matches!(rows.update(&mut txn, &everything(9, "")).await, Err(TxnError::NotFound { .. })));
        assert!(rows.delete(&mut txn, (2, "b".to_owned())).await?);
        assert!(!rows.delete(&mut txn, (2, "b".to_owned())).await?);
        txn.commit().await?;
        let again = Rows::<Everything>::open(worker.node(), "everything")?;
        let mut txn = worker.begin_read_only();
        let left = again.range(&mut txn, ..).await?;
        assert_eq!(left, [changed]);
        Ok(left.len())
    });
    assert_eq!(rows, Ok(1));
}

#[test]
fn a_value_that_does_not_fit_is_refused() {
    let refused = run(async |worker| {
        let rows = Rows::<Everything>::create(&worker, "everything").await?;
        let mut txn = worker.begin();
        rows.insert(&mut txn, &Everything { price: Decimal(10_i128.pow(12)), ..everything(1, "") }).await
    });
    assert!(matches!(refused, Err(TxnError::Row(RowError::NumericOverflow { .. }))), "{refused:?}");
}

farhold::row! {
    /// A key in a column of limited length.
    struct Code {
        key { code: String }
    }
}

/// A key that no row can have finds no row: neither the row of a similar key, nor an error.
#[test]
fn a_key_that_no_row_can_have_finds_nothing() {
    let found = run(async |worker| {
        let code = Column { name: "code".into(), data_type: ColumnType::Varchar(3), nullable: false };
        worker.create_table(TableDef::new("codes", Schema::new(vec![code], vec![0])?)).await?;
        let rows = Rows::<Code>::open(worker.node(), "codes")?;
        worker
            .run(Retry::default(), async |txn| {
                rows.insert(txn, &Code { code: "abc".into() }).await?;
                assert_eq!(rows.range(txn, "ab".to_owned()..="abc".to_owned()).await?.len(), 1);
                for bound in ["abc  ", "abcd"] {
                    let refused = rows.range(txn, bound.to_owned()..).await;
                    assert!(matches!(refused, Err(TxnError::Row(RowError::NoSuchKey { .. }))), "{refused:?}");
                }
                let mut found = Vec::new();
                for key in ["abc", "abc  ", "abcd", &"a".repeat(70_000)] {
                    found.push((
                        rows.get(txn, key.to_owned()).await?.is_some(),
                        rows.delete(txn, key.to_owned()).await?,
                    ));
                }
                Ok(found)
            })
            .await
    });
    assert_eq!(found.expect("no error"), [(true, true), (false, false), (false, false), (false, false)]);
}

#[test]
fn a_table_with_other_columns_is_refused() {
    let reason = |error| {
        let TxnError::Row(RowError::InvalidSchema { reason }) = error else { panic!("{error:?}") };
        reason
    };
    let refused = run(async |worker| {
        Rows::<Everything>::create(&worker, "everything").await?;
        assert!(matches!(Rows::<Short>::open(worker.node(), "no such"), Err(TxnError::NotFound { .. })));
        Ok(Rows::<Short>::open(worker.node(), "everything").map(drop))
    });
    let expected = "table \"everything\" has other columns than its struct: 13 columns, 2 fields";
    assert_eq!(refused.expect("a table").map_err(reason), Err(expected.to_owned()));
    farhold::row! {
        struct Other { key { place: i32 } name: Option<i64>, }
    }
    let refused = run(async |worker| {
        let definition = TableDef { placement: Placement::ByInteger, ..Short::table("short")? };
        let short = Rows::<Short>::of(worker.create_table(definition).await?)?;
        assert_eq!(short.table().name(), "short");
        Ok(Rows::<Other>::open(worker.node(), "short").map(drop))
    });
    let expected = "table \"short\" has other columns than its struct: column name text NOT NULL, field name bigint";
    assert_eq!(refused.expect("a table").map_err(reason), Err(expected.to_owned()));
}
