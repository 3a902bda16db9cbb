//! A database inside of a program: one table, two accounts, a transfer.

use farhold::{Config, Database, Retry, Rows};

farhold::row! {
    struct Account {
        key { id: i64 }
        balance: i64,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = Database::open(&Config::in_memory().memory_bytes(64 << 20))?;
    database.run(async |worker, _handle| {
        let accounts = Rows::<Account>::create(&worker, "account").await?;
        worker
            .run(Retry::default(), async |txn| {
                accounts.insert(txn, &Account { id: 1, balance: 100 }).await?;
                accounts.insert(txn, &Account { id: 2, balance: 50 }).await
            })
            .await?;
        // Moves 10 from account 1 to account 2, or does nothing; runs again after a conflict with another transaction.
        worker
            .run(Retry::default(), async |txn| {
                for (id, amount) in [(1, -10), (2, 10)] {
                    let mut account = accounts.get(txn, id).await?.expect("the account is there");
                    account.balance += amount;
                    accounts.update(txn, &account).await?;
                }
                Ok(())
            })
            .await?;
        let mut txn = worker.begin_read_only();
        assert_eq!(accounts.get(&mut txn, 2).await?, Some(Account { id: 2, balance: 60 }));
        txn.commit().await?;
        Ok(())
    })?
}
