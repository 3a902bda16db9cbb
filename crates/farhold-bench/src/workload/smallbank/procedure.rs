//! The six transactions.

use super::input::{Input, Kind};
use super::{Tables, key};
use farhold_txn::{RowHandle, Table, Txn, TxnError};

/// The effect of a transaction on the bank, if it commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Cents onto (first customer's savings, first customer's checking, second customer's checking).
    pub changes: [i64; 3],
    /// It was refused because of too little money, and changes nothing.
    pub refused: bool,
}

impl Effect {
    fn of(changes: [i64; 3]) -> Self {
        Self { changes, refused: false }
    }

    /// Cents that it brings into the bank.
    #[must_use]
    pub fn added(&self) -> i64 {
        self.changes.iter().sum()
    }
}

/// The error of a transaction that does not find an account. The account is missing only if the transaction, which has written
/// nothing yet, can be committed: until then a read may have returned outdated rows.
pub const MISSING: TxnError = TxnError::Corrupt { what: "an account of SmallBank is missing" };

const REFUSED: Effect = Effect { changes: [0; 3], refused: true };

/// Cents for a check that is not covered.
const FEE: i64 = 100;

/// Executes `input` in `txn`, which the caller begins and ends. (If it is refused, the caller must abort.)
///
/// # Errors
/// As the transaction's operations.
#[inline]
pub async fn run(txn: &mut Txn, tables: &Tables, input: &Input) -> Result<Effect, TxnError> {
    let &Input { from, to, cents, .. } = input;
    let (savings, checking) = (&tables.savings, &tables.checking);
    match input.kind {
        Kind::Balance | Kind::WriteCheck => prefetch(txn, [(savings, from), (checking, from)]),
        Kind::SendPayment => prefetch(txn, [(checking, from), (checking, to)]),
        Kind::Amalgamate => prefetch(txn, [(savings, from), (checking, from), (checking, to)]),
        Kind::DepositChecking | Kind::TransactSavings => {}
    }
    match input.kind {
        Kind::Balance => {
            let rows = [row(txn, savings, from).await?, row(txn, checking, from).await?];
            let _ = rows.map(|row| tables.balance(txn.value(row)));
            Ok(Effect::default())
        }
        Kind::DepositChecking => {
            let row = row(txn, checking, from).await?;
            tables.add(txn, row, cents);
            Ok(Effect::of([0, cents, 0]))
        }
        Kind::TransactSavings => {
            let row = row(txn, savings, from).await?;
            if tables.balance(txn.value(row)) + cents < 0 {
                return Ok(REFUSED);
            }
            tables.add(txn, row, cents);
            Ok(Effect::of([cents, 0, 0]))
        }
        Kind::WriteCheck => {
            let (saved, row) = (row(txn, savings, from).await?, row(txn, checking, from).await?);
            let covered = tables.balance(txn.value(saved)) + tables.balance(txn.value(row)) >= cents;
            let taken = if covered { -cents } else { -cents - FEE };
            tables.add(txn, row, taken);
            Ok(Effect::of([0, taken, 0]))
        }
        Kind::SendPayment => {
            let (payer, payee) = (row(txn, checking, from).await?, row(txn, checking, to).await?);
            if tables.balance(txn.value(payer)) < cents {
                return Ok(REFUSED);
            }
            tables.add(txn, payer, -cents);
            tables.add(txn, payee, cents);
            Ok(Effect::of([0, -cents, cents]))
        }
        Kind::Amalgamate => {
            let rows = [row(txn, savings, from).await?, row(txn, checking, from).await?];
            let payee = row(txn, checking, to).await?;
            let found = rows.map(|row| tables.balance(txn.value(row)));
            for (row, balance) in rows.into_iter().zip(found) {
                tables.add(txn, row, -balance);
            }
            tables.add(txn, payee, found[0] + found[1]);
            Ok(Effect::of([-found[0], -found[1], found[0] + found[1]]))
        }
    }
}

/// If several rows are read, the first step of each look-up begins before the transaction waits for one: with three copies of
/// each row a tenth more transactions a second, without any difference otherwise. (The second step, [`Txn::prefetch_row`], costs
/// more than it gains for rows as short as these.)
#[inline]
fn prefetch<const N: usize>(txn: &Txn, rows: [(&Table, i64); N]) {
    for (table, account) in rows {
        txn.prefetch(table, key(account).as_slice());
    }
}

#[inline]
async fn row(txn: &mut Txn, table: &Table, account: i64) -> Result<RowHandle, TxnError> {
    let found = txn.get(table, key(account).as_slice()).await?;
    found.ok_or(MISSING)
}

impl Tables {
    #[inline]
    fn add(&self, txn: &mut Txn, row: RowHandle, cents: i64) {
        let value = txn.value_mut(row);
        self.balance.set(value, self.balance.get(value) + cents);
    }
}
