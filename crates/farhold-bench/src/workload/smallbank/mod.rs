//! `SmallBank`: customers with a savings and a checking account each, and six short transactions on them.
//!
//! ```text
//!   input       which transaction, which accounts
//!   procedure   the six transactions
//!   driver      terminals, and what they count
//!   run         a cluster of this process, loaded, measured and audited
//! ```
//!
//! Source: Alomari, Cahill, Fekete and Röhm, "The Cost of Serializability on Platforms That Use Snapshot Isolation" (ICDE
//! 2008), with the mix and the skew of DrTM+R (`EuroSys` 2016): 25 % send-payment and 15 % of each other; 100,000 accounts a
//! node, of which 4,000 are hot and get 90 % of the transactions. As there, the account's number is the key at once, without
//! a table of names.
//!
//! **Conservation**: only deposits, savings and checks bring or take money, and each transaction knows how much. So the sum of
//! all balances is the sum at the start plus what the committed transactions have added ([`audit`]).

pub mod driver;
pub mod input;
pub mod procedure;
pub mod run;

use farhold_store::row::{Column, ColumnType, Field, RowError, Schema, StackKey};
use farhold_txn::{Node, Placement, Table, TableDef, TxnError, Worker};
use std::ops::Range;

/// How large a bank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Nodes among which the accounts are spread.
    pub nodes: u8,
    /// Accounts of a node.
    pub accounts: u32,
    /// Of these, how many are hot.
    pub hot: u32,
}

impl Scale {
    /// The sources' bank.
    #[must_use]
    pub const fn full(nodes: u8) -> Self {
        Self { nodes, accounts: 100_000, hot: 4_000 }
    }

    /// A node's account by its number there: 1 is on node 0, 2 on node 1, and so on, as placement by integer has it.
    #[must_use]
    #[inline]
    pub fn account(&self, node: u8, number: u32) -> i64 {
        1 + i64::from(node) + i64::from(self.nodes) * i64::from(number)
    }

    /// What is in the bank at the start.
    #[must_use]
    pub fn money(&self) -> i64 {
        2 * START_BALANCE * i64::from(self.accounts) * i64::from(self.nodes)
    }
}

/// Cents on each account at the start.
pub const START_BALANCE: i64 = 1_000_000;

/// The two tables of accounts.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Savings.
    pub savings: Table,
    /// Checking.
    pub checking: Table,
    balance: Field<i64>,
}

const SAVINGS: &str = "savings";
const CHECKING: &str = "checking";

fn schema() -> Result<Schema, RowError> {
    let columns = vec![Column::new("customer", ColumnType::BigInt), Column::new("balance", ColumnType::BigInt)];
    Schema::new(columns, vec![0])
}

/// The key of an account.
#[inline]
#[must_use]
pub fn key(account: i64) -> StackKey<8> {
    StackKey::new().with(account)
}

impl Tables {
    /// Creates the tables on all nodes.
    ///
    /// # Errors
    /// As [`Worker::create_table`].
    pub async fn create(worker: &Worker) -> Result<Self, TxnError> {
        for name in [SAVINGS, CHECKING] {
            let schema = schema().map_err(TxnError::Row)?;
            let definition = TableDef { placement: Placement::ByInteger, hash: true, ..TableDef::new(name, schema) };
            worker.create_table(definition).await?;
        }
        Self::open(worker.node())
    }

    /// The tables as a node knows them.
    ///
    /// # Errors
    /// [`TxnError::NotFound`].
    pub fn open(node: &Node) -> Result<Self, TxnError> {
        let find =
            |name: &str| node.table(name).ok_or_else(|| TxnError::NotFound { what: format!("table {name}").into() });
        let (savings, checking) = (find(SAVINGS)?, find(CHECKING)?);
        let balance = savings.layout().field("balance").map_err(TxnError::Row)?;
        Ok(Self { savings, checking, balance })
    }

    /// Loads accounts of one node, by their numbers there.
    ///
    /// # Errors
    /// As [`farhold_txn::Txn::insert`].
    pub async fn load(&self, worker: &Worker, scale: Scale, node: u8, numbers: Range<u32>) -> Result<(), TxnError> {
        /// Rows of one transaction: its record fits a small ring.
        const ACCOUNTS_PER_TRANSACTION: usize = 16;
        let mut value = Vec::new();
        let mut builder = self.savings.layout().build(&mut value);
        builder.set(self.balance, START_BALANCE);
        let value = builder.finish().to_vec();
        for from in numbers.clone().step_by(ACCOUNTS_PER_TRANSACTION) {
            let to = numbers.end.min(from + ACCOUNTS_PER_TRANSACTION as u32);
            worker
                .run(farhold_txn::Retry::default(), async |txn| {
                    for number in from..to {
                        let key = key(scale.account(node, number));
                        txn.insert(&self.savings, key.as_slice(), &value).await?;
                        txn.insert(&self.checking, key.as_slice(), &value).await?;
                    }
                    Ok(())
                })
                .await?;
            worker.poll();
        }
        Ok(())
    }

    /// The balance in a row's value.
    #[inline]
    #[must_use]
    pub fn balance(&self, value: &[u8]) -> i64 {
        self.balance.get(value)
    }
}

/// All balances of one moment: (account, is savings, balance).
///
/// # Errors
/// An unavailable node.
pub async fn balances(worker: &Worker, tables: &Tables) -> Result<Vec<(i64, bool, i64)>, TxnError> {
    let snapshot = worker.snapshot().await?;
    let mut found = Vec::new();
    for (table, is_savings) in [(&tables.savings, true), (&tables.checking, false)] {
        for task in worker.snapshot_pages(&snapshot, table).await? {
            let mut visit = |key: &[u8], value: &[u8]| {
                let account = key.try_into().map_or(0, |key| (u64::from_be_bytes(key) ^ 1 << 63).cast_signed());
                found.push((account, is_savings, tables.balance(value)));
            };
            worker.scan_page(&snapshot, &task, &mut visit).await?;
        }
    }
    Ok(found)
}

/// Checks that the money is there: what was at the start and what transactions have `added`.
///
/// # Errors
/// The differences, in words; an unavailable node.
pub async fn audit(worker: &Worker, tables: &Tables, scale: Scale, added: i64) -> Result<(), String> {
    let found = balances(worker, tables).await.map_err(|error| error.to_string())?;
    let rows = 2 * scale.accounts as usize * usize::from(scale.nodes);
    if found.len() != rows {
        return Err(format!("{} accounts of {rows}", found.len()));
    }
    let (money, expected) = (found.iter().map(|(_, _, balance)| balance).sum::<i64>(), scale.money() + added);
    if money == expected { Ok(()) } else { Err(format!("{money} cents are in the bank, {expected} should be")) }
}

#[cfg(test)]
mod tests;
