//! `SmallBank` in a simulation: the balances that the accounts must have at the end.

use crate::workload::{CutShort, Persistent};
use farhold_bench::random::Random;
use farhold_bench::workload::smallbank::input::{Input, Inputs, Kind};
use farhold_bench::workload::smallbank::procedure::{self, Effect};
use farhold_bench::workload::smallbank::{START_BALANCE, Scale, Tables, balances};
use farhold_txn::{TxnError, Worker};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

/// (Account, is it savings?)
type Account = (i64, bool);

/// The knowledge of the bank's clients.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Cents onto each account by transactions that have committed.
    sure: BTreeMap<Account, i64>,
    /// Changes of transactions of which it is not known whether they have committed.
    doubts: Vec<BTreeMap<Account, i64>>,
    pub commits: u64,
    pub broken: Vec<String>,
}

fn changes(input: &Input, effect: &Effect) -> BTreeMap<Account, i64> {
    let accounts = [(input.from, true), (input.from, false), (input.to, false)];
    let mut changes = BTreeMap::new();
    for (account, cents) in accounts.into_iter().zip(effect.changes) {
        *changes.entry(account).or_default() += cents;
    }
    changes.retain(|_, cents| *cents != 0);
    changes
}

impl Ledger {
    /// Checks that the accounts have the acknowledged changes, and all or none of the changes of each transaction in doubt.
    pub fn audit(&self, worker: &Worker, scale: Scale) -> impl Future<Output = Result<(), String>> + use<> {
        let (worker, sure, doubts) = (worker.clone(), self.sure.clone(), self.doubts.clone());
        async move {
            let tables = Tables::open(worker.node()).map_err(|error| error.to_string())?;
            let found = balances(&worker, &tables).await.map_err(|error| format!("the audit: {error}"))?;
            let accounts = 2 * scale.accounts as usize * usize::from(scale.nodes);
            if found.len() != accounts {
                return Err(format!("{} accounts of {accounts}", found.len()));
            }
            let mut left: BTreeMap<Account, i64> = found
                .into_iter()
                .map(|(account, is_savings, balance)| ((account, is_savings), balance - START_BALANCE))
                .collect();
            for (account, cents) in sure {
                *left.entry(account).or_default() -= cents;
            }
            left.retain(|_, cents| *cents != 0);
            if is_sum_of(&left, &doubts) {
                return Ok(());
            }
            Err(format!("money that no committed transaction explains: {left:?}; in doubt were {doubts:?}"))
        }
    }
}

/// Is there a choice of `doubts` whose sum is `left`?
fn is_sum_of(left: &BTreeMap<Account, i64>, doubts: &[BTreeMap<Account, i64>]) -> bool {
    let Some((first, rest)) = doubts.split_first() else { return left.is_empty() };
    if is_sum_of(left, rest) {
        return true;
    }
    let mut without = left.clone();
    for (account, cents) in first {
        *without.entry(*account).or_default() -= cents;
    }
    without.retain(|_, cents| *cents != 0);
    is_sum_of(&without, rest)
}

/// A client of the bank.
pub(super) struct Teller {
    name: String,
    worker: Worker,
    inputs: Inputs,
    random: Random,
    ledger: Rc<RefCell<Ledger>>,
    cut_short: CutShort,
}

impl Teller {
    pub fn new(number: usize, node: u8, worker: &Worker, scale: Scale, ledger: Rc<RefCell<Ledger>>) -> Self {
        Self {
            name: format!("teller {number} of node {node}"),
            worker: worker.clone(),
            inputs: Inputs { scale, node, distributed_percent: 60, hot_percent: 60 },
            random: Random::new(worker.handle().random_u64()),
            ledger,
            cut_short: CutShort::default(),
        }
    }

    /// The outcome of commits that miss a node; a bank has no half commits.
    pub fn with_cut_short(self, cut_short: CutShort) -> Self {
        Self { cut_short, ..self }
    }

    async fn try_one(&self, input: &Input) -> Result<(), TxnError> {
        let tables = Tables::open(self.worker.node())?;
        let mut txn = if input.kind == Kind::Balance { self.worker.begin_read_only() } else { self.worker.begin() };
        let effect = match procedure::run(&mut txn, &tables, input).await {
            Ok(effect) => effect,
            // The session of an expelled node may read a later start of a node, which is still empty. Its commit is refused.
            Err(error) if error == procedure::MISSING => return txn.commit().await.and(Err(error)),
            Err(error) => return Err(error),
        };
        if effect.refused {
            txn.abort();
            return Ok(());
        }
        let changes = changes(input, &effect);
        let committed = txn.commit().await;
        let is_late = self.cut_short == CutShort::Late;
        match committed {
            Err(TxnError::NodeUnavailable { committed: true, .. }) if !is_late => {
                self.ledger.borrow_mut().doubts.push(changes);
                Ok(())
            }
            Err(TxnError::OutcomeUnknown | TxnError::NotDurable { committed: true, .. }) => {
                self.ledger.borrow_mut().doubts.push(changes);
                Ok(())
            }
            Ok(_) | Err(TxnError::NodeUnavailable { committed: true, .. }) => {
                let mut ledger = self.ledger.borrow_mut();
                ledger.commits += 1;
                for (account, cents) in changes {
                    *ledger.sure.entry(account).or_default() += cents;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Persistent for Teller {
    type Asked = Input;

    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }

    fn draw(&mut self) -> Input {
        self.inputs.draw(&mut self.random)
    }

    async fn attempt(&mut self, asked: &Input) -> Result<(), TxnError> {
        self.try_one(asked).await
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn broken(&mut self, what: String) {
        self.ledger.borrow_mut().broken.push(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
    use farhold_fabric::{Executor, NodeId};
    use farhold_txn::{Node, NodeConfig};

    /// A transaction that finds an account missing is committed, to determine whether the account is lost. In this case it is.
    #[test]
    fn an_account_that_is_not_there_is_missing() {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        let fabric = Sim::new(&handle, Rdma, Faults::default()).join(NodeId(0)).expect("a node");
        let config = NodeConfig { region_bytes: 12 << 20, ..NodeConfig::default() };
        let worker = Node::open(fabric, config).and_then(|node| node.worker(&handle)).expect("a worker");
        let scale = Scale { nodes: 1, accounts: 4, hot: 1 };
        let found = executor.run(async move {
            let tables = Tables::create(&worker).await.expect("the tables");
            tables.load(&worker, scale, 0, 0..scale.accounts - 1).await.expect("all accounts but one");
            let mut teller = Teller::new(0, 0, &worker, scale, Rc::default());
            let mut found = Vec::new();
            for _ in 0..100 {
                let input = teller.draw();
                found.extend(teller.attempt(&input).await.err());
            }
            found
        });
        assert!(found.len() > 5 && found.iter().all(|error| *error == procedure::MISSING), "{found:?}");
    }
}
