//! TPC-C in a simulation: the five transactions, and the checks of the shop at the end: the twelve consistency conditions of clause 3.3.2, and every
//! acknowledged order and payment.

use crate::cluster::is_expected;
use crate::workload::{Persistent, is_of_a_death};
use farhold_bench::measure::Counter;
use farhold_bench::random::Random;
use farhold_bench::workload::tpcc::check::check_in;
use farhold_bench::workload::tpcc::input::{Deck, Inputs, Kind, NewOrder, Payment, Shares};
use farhold_bench::workload::tpcc::load::Loader;
use farhold_bench::workload::tpcc::population::{Population, TableKind};
use farhold_bench::workload::tpcc::procedure::{self, Scratch};
use farhold_bench::workload::tpcc::{DISTRICTS, Scale, tables::Tables};
use farhold_store::row::StackKey;
use farhold_txn::{NodeId, Retry, ScanSpec, TxnError, Worker};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

/// A warehouse for each node; as few rows as the transactions can do with.
pub(super) const SCALE: Scale = Scale { warehouses: 3, items: 40, customers: 10 };
/// Much larger remote shares than the specification asks for.
const SHARES: Shares = Shares { remote_item_percent: 15, remote_payment_percent: 40 };
const POPULATION_SEED: u64 = 1;
/// Any date.
const NOW_US: i64 = 1_000_000_000_000_000;

/// The orders and payments that were acknowledged to the shop's terminals.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Warehouse, district and number of orders that were acknowledged.
    orders: Vec<(i32, i16, i32)>,
    /// Warehouse and number of payments that were.
    payments: Vec<(i32, i64)>,
    pub commits: u64,
    next_h_id: i64,
    pub broken: Vec<String>,
}

/// Creates the tables and fills them.
pub(super) async fn load(worker: &Worker) -> Result<(), TxnError> {
    Tables::create(worker).await?;
    let tables = Tables::open(worker.node())?;
    let (population, rows) = (Population::new(SCALE, POPULATION_SEED, NOW_US), Counter::default());
    let mut loader = Loader { worker, tables: &tables, population, rows: &rows };
    loader.items(SCALE).await?;
    for w_id in 1..=SCALE.warehouses {
        loader.warehouse(SCALE, w_id).await?;
    }
    Ok(())
}

impl Books {
    /// Checks that the shop is consistent, and that everything acknowledged is present.
    pub fn audit(&self, worker: &Worker) -> impl Future<Output = Result<(), String>> + use<> {
        let (worker, orders, payments) = (worker.clone(), self.orders.clone(), self.payments.clone());
        async move {
            let failed = |error: TxnError| format!("the audit: {error}");
            let tables = Tables::open(worker.node()).map_err(failed)?;
            let looked = worker.run(Retry::default(), async |txn| {
                let violations = check_in(txn, &tables).await?;
                for (w_id, d_id, o_id) in &orders {
                    let key = StackKey::<10>::new().with(*w_id).with(*d_id).with(*o_id);
                    if txn.get(tables.get(TableKind::Orders), key.as_slice()).await?.is_none() {
                        return Ok(Some(format!(
                            "order {o_id} of district {w_id}/{d_id} was acknowledged and is lost"
                        )));
                    }
                }
                let table = tables.get(TableKind::History);
                let history = txn.scan(table, ScanSpec::all()).await?;
                let found: std::collections::BTreeSet<Vec<u8>> =
                    history.iter().map(|row| txn.key(*row).to_vec()).collect();
                for (w_id, h_id) in &payments {
                    let key = StackKey::<12>::new().with(*w_id).with(*h_id);
                    if !found.contains(key.as_slice()) {
                        return Ok(Some(format!("payment {h_id} at warehouse {w_id} was acknowledged and is lost")));
                    }
                }
                Ok(violations.first().map(|violation| format!("TPC-C is not consistent: {violation}")))
            });
            looked.await.map_err(failed)?.map_or(Ok(()), Err)
        }
    }
}

/// What a terminal does next; the same until it commits.
pub(super) enum Asked {
    NewOrder(NewOrder),
    Payment(Payment, i64),
    Other(Kind),
}

/// A terminal of the shop.
pub(super) struct Terminal {
    name: String,
    worker: Worker,
    w_id: i32,
    inputs: Inputs,
    deck: Deck,
    random: Random,
    scratch: Scratch,
    books: Rc<RefCell<Books>>,
}

impl Terminal {
    pub fn new(number: usize, node: NodeId, worker: &Worker, books: Rc<RefCell<Books>>) -> Self {
        let seed = worker.handle().random_u64();
        Self {
            name: format!("terminal {number} of {node}"),
            worker: worker.clone(),
            w_id: 1 + i32::from(node.0) % SCALE.warehouses,
            inputs: Inputs::new(SCALE, SHARES, POPULATION_SEED, seed),
            deck: Deck::default(),
            random: Random::new(seed),
            scratch: Scratch::default(),
            books,
        }
    }

    fn draw(&mut self) -> Asked {
        match self.deck.draw(&mut self.random) {
            Kind::NewOrder => Asked::NewOrder(self.inputs.new_order(&mut self.random, self.w_id)),
            Kind::Payment => {
                let mut books = self.books.borrow_mut();
                books.next_h_id += 1;
                // Above those of the population.
                Asked::Payment(self.inputs.payment(&mut self.random, self.w_id), (1 << 40) + books.next_h_id)
            }
            other => Asked::Other(other),
        }
    }

    async fn try_one(&mut self, asked: &Asked) -> Result<(), TxnError> {
        let tables = Tables::open(self.worker.node())?;
        let read_only = matches!(asked, Asked::Other(Kind::OrderStatus | Kind::StockLevel));
        let mut txn = if read_only { self.worker.begin_read_only() } else { self.worker.begin() };
        let Self { scratch, inputs, random, w_id, .. } = self;
        let mut order = None;
        match asked {
            Asked::NewOrder(input) => {
                let Some(ordered) = procedure::new_order(&mut txn, &tables, input, NOW_US, scratch).await? else {
                    txn.abort();
                    return Ok(());
                };
                order = Some((input.w_id, input.d_id, ordered.o_id));
            }
            Asked::Payment(input, h_id) => {
                procedure::payment(&mut txn, &tables, input, NOW_US, *h_id, scratch).await?;
            }
            Asked::Other(Kind::OrderStatus) => {
                let input = inputs.order_status(random, *w_id);
                procedure::order_status(&mut txn, &tables, &input, scratch).await?;
            }
            Asked::Other(Kind::StockLevel) => {
                let d_id = 1 + random.below(DISTRICTS as u64) as i16;
                let input = inputs.stock_level(random, *w_id, d_id);
                procedure::stock_level(&mut txn, &tables, &input, scratch).await?;
            }
            Asked::Other(_) => {
                let input = inputs.delivery(random, *w_id);
                procedure::delivery(&mut txn, &tables, &input, NOW_US, scratch).await?;
            }
        }
        txn.commit().await?;
        let mut books = self.books.borrow_mut();
        books.commits += 1;
        books.orders.extend(order);
        if let Asked::Payment(input, h_id) = asked {
            books.payments.push((input.w_id, *h_id));
        }
        Ok(())
    }
}

impl Persistent for Terminal {
    type Asked = Asked;

    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> &Worker {
        &self.worker
    }

    fn draw(&mut self) -> Asked {
        Self::draw(self)
    }

    async fn attempt(&mut self, asked: &Asked) -> Result<(), TxnError> {
        match self.try_one(asked).await {
            // Whether it has committed is unknown; it is not repeated.
            Err(TxnError::OutcomeUnknown | TxnError::NotDurable { committed: true, .. }) => Ok(()),
            tried => tried,
        }
    }

    /// If a transaction's reads are out of date, which its commit would detect, an order number may be taken, or a row
    /// may be missing.
    fn may_come_right(&self, error: &TxnError) -> bool {
        is_expected(error) || is_of_a_death(error) || procedure::is_missing(error)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn broken(&mut self, what: String) {
        self.books.borrow_mut().broken.push(what);
    }
}
