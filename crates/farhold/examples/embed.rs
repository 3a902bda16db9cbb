//! A database inside of a program: one table, two accounts, a transfer.

use farhold::{Column, ColumnType, Config, Database, Placement, Retry, Schema, TableDef};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = Database::open(&Config::in_memory().memory_bytes(64 << 20))?;
    database.run(async |worker, _handle| {
        let columns = vec![
            Column { name: "id".into(), data_type: ColumnType::BigInt, nullable: false },
            Column { name: "balance".into(), data_type: ColumnType::BigInt, nullable: false },
        ];
        let accounts = worker
            .create_table(TableDef {
                name: "account".into(),
                schema: Schema::new(columns, vec![0])?,
                placement: Placement::ByHash,
                hash: true,
                indexes: vec![],
                attributes: vec![],
            })
            .await?;
        let key = |id: i64| (id.cast_unsigned() ^ 1 << 63).to_be_bytes();
        worker
            .run(Retry::default(), async |txn| {
                txn.insert(&accounts, &key(1), &100_i64.to_le_bytes()).await?;
                txn.insert(&accounts, &key(2), &50_i64.to_le_bytes()).await
            })
            .await?;
        // Moves 10 from account 1 to account 2, or does nothing; runs again if another transaction was quicker.
        worker
            .run(Retry::default(), async |txn| {
                for (id, amount) in [(1, -10), (2, 10)] {
                    let row = txn.get(&accounts, &key(id)).await?.expect("the account is there");
                    let balance = txn.value_mut(row);
                    let sum = i64::from_le_bytes(balance.try_into().expect("eight bytes")) + amount;
                    balance.copy_from_slice(&sum.to_le_bytes());
                }
                Ok(())
            })
            .await?;
        let mut txn = worker.begin_read_only();
        let row = txn.get(&accounts, &key(2)).await?.expect("the account is there");
        assert_eq!(txn.value(row), 60_i64.to_le_bytes());
        txn.commit().await?;
        Ok(())
    })?
}
