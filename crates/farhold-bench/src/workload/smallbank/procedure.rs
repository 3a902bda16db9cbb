//! The six transactions.

use super::input::{Input, Kind};
use super::{Tables, key};
use farhold_txn::{RowHandle, Table, Txn, TxnError};

/// What a transaction does to the bank, if it commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Cents onto (first customer's savings, first customer's checking, second customer's checking).
    pub changes: [i64; 3],
    /// It was refused for want of money, and changes nothing.
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

/// The error of a transaction that does not find an account. The account is missing only if the transaction, which has written nothing yet,
/// can be committed: until then a read may be of rows that are out of date.
pub const MISSING: TxnError = TxnError::Corrupt { what: "an account of SmallBank is missing" };

const REFUSED: Effect = Effect { changes: [0; 3], refused: true };

/// Cents for a check that is not covered.
const FEE: i64 = 100;

/// Does what `input` asks for in `txn`, which the caller begins and ends. (Which is to be aborted if it is refused.)
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

/// Of several rows, the first step of looking each up is begun before the first is waited for: with three copies a tenth more transactions a
/// second, without any difference otherwise. (The second step, [`Txn::prefetch_row`], costs rows as short as these more than it gains.)
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
