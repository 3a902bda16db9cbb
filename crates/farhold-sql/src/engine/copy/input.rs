//! COPY … FROM STDIN.

use std::rc::Rc;
use std::sync::Arc;

use farhold_txn::{Txn, Worker};

use super::CopyFormat;
use super::reader::{Fields, LineReader};
use crate::engine::cancel::{Armed, Pace};
use crate::engine::catalog::TableInfo;
use crate::engine::direct::{Insert, OnConflict, Writer, default_row};
use crate::engine::scalar::{Parameters, Times};
use crate::engine::sequence::SessionNumbers;
use crate::engine::session::{CopyReturn, Loan, durable_error, unless_doomed};
use crate::engine::{CancelHandle, CommandTag, Datum, Engine, error};
use crate::value::{Zone, parse_stored};
use crate::{SqlError, SqlState};

/// The transaction of a COPY.
pub(crate) enum CopyTxn {
    /// The session's; it is given back when the COPY ends.
    Borrowed(Txn, Rc<Loan>),
    /// The COPY's own: all rows or none, or chunks that commit one by one.
    Own {
        txn: Txn,
        /// 0 means one transaction.
        chunk_rows: u64,
    },
    /// The COPY has ended.
    Gone,
}

/// A COPY … FROM STDIN that waits for data.
///
/// In a transaction block it is part of the transaction. Outside of one, it is one transaction: all rows or none. With
/// the setting `farhold.copy_chunk_rows` it commits after every so many rows, which takes less memory; after an error
/// the committed chunks stay.
pub struct CopyIn {
    /// The number of columns of a line.
    pub columns: usize,
    engine: Arc<Engine>,
    worker: Rc<Worker>,
    targets: Vec<usize>,
    insert: Insert,
    reader: LineReader,
    txn: CopyTxn,
    pace: Pace,
    numbers: Rc<SessionNumbers>,
    times: Times,
    zone: Zone,
    /// Keeps the statement armed until the COPY ends, unless the caller's span does.
    armed: Option<Armed>,
    rows: u64,
    committed: u64,
}

impl CopyIn {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        worker: &Rc<Worker>,
        (table, targets): (Arc<TableInfo>, Vec<usize>),
        format: CopyFormat,
        txn: CopyTxn,
        (cancel, numbers): (&CancelHandle, Rc<SessionNumbers>),
        (times, zone): (Times, Zone),
    ) -> Self {
        let rows = vec![default_row(&table)];
        Self {
            columns: targets.len(),
            engine: Arc::clone(engine),
            worker: Rc::clone(worker),
            targets,
            insert: Insert { table, rows, on_conflict: OnConflict::Fail, returning: None },
            reader: LineReader::new(format),
            txn,
            pace: Pace::new(cancel),
            numbers,
            times,
            zone,
            armed: None,
            rows: 0,
            committed: 0,
        }
    }

    /// Keeps the statement's span open until the COPY ends.
    pub(crate) fn hold(&mut self, armed: Armed) {
        self.armed = Some(armed);
    }

    /// The number of rows received so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Takes the next bytes, which may begin and end anywhere in a line.
    ///
    /// # Errors
    /// A malformed line, a violated constraint; then the COPY and its transaction have failed.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), SqlError> {
        self.reader.push(bytes);
        match self.take_lines(false).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.report_error(error).await),
        }
    }

    /// Ends the COPY: all data has been pushed.
    ///
    /// # Errors
    /// As [`push`](Self::push), and the errors of a commit.
    pub async fn finish(mut self) -> Result<CommandTag, SqlError> {
        if let Err(error) = self.take_lines(true).await {
            return Err(self.report_error(error).await);
        }
        match std::mem::replace(&mut self.txn, CopyTxn::Gone) {
            CopyTxn::Borrowed(txn, loan) => loan.give_back(CopyReturn::Whole(txn)),
            CopyTxn::Own { txn, chunk_rows } => {
                if let Err(error) = txn.commit().await {
                    let error = in_chunks(self.insert.table.explain(&error, None), chunk_rows);
                    return Err(self.report_error(error).await);
                }
            }
            CopyTxn::Gone => return Err(SqlError::internal("data after a failed COPY")),
        }
        Ok(CommandTag::rows("COPY", self.rows))
    }

    /// Handles an error of the COPY itself. Returns the error to report (as
    /// [`Session::report_error`](super::super::Session::report_error)) and gives the transaction back as failed.
    async fn report_error(&mut self, error: SqlError) -> SqlError {
        let error = match &mut self.txn {
            CopyTxn::Borrowed(txn, _) | CopyTxn::Own { txn, .. } => unless_doomed(error, txn).await,
            CopyTxn::Gone => error,
        };
        let error = durable_error(error, &self.worker).await;
        self.failed(error)
    }

    /// Ends the COPY because the client gives up. None of its rows stay, except committed chunks.
    pub fn abort(self, message: &str) -> SqlError {
        self.fail(SqlError::cancelled(format!("COPY from stdin failed: {message}")))
    }

    /// Ends the COPY with an error from elsewhere, such as one met while it waits for data. None of its rows stay,
    /// except committed chunks.
    pub fn fail(mut self, error: SqlError) -> SqlError {
        self.failed(error)
    }

    /// Gives the transaction back as failed after an error.
    fn failed(&mut self, error: SqlError) -> SqlError {
        match std::mem::replace(&mut self.txn, CopyTxn::Gone) {
            CopyTxn::Borrowed(txn, loan) => {
                let txn = error::txn_survives(&error).then_some(txn);
                loan.give_back(CopyReturn::Failed(txn));
            }
            CopyTxn::Own { .. } if self.committed > 0 => {
                let rows = self.committed;
                return error
                    .with_hint(format!("The first {rows} rows have been committed (farhold.copy_chunk_rows)."));
            }
            CopyTxn::Own { chunk_rows, .. } => return in_chunks(error, chunk_rows),
            CopyTxn::Gone => {}
        }
        error
    }

    async fn take_lines(&mut self, last: bool) -> Result<(), SqlError> {
        while let Some(fields) = self.reader.next(last)? {
            self.pace.step().await?;
            let mut row = self.row(fields).await?;
            self.write(&mut row).await.map_err(|e| self.located(e))?;
            self.rows += 1;
            if let CopyTxn::Own { txn, chunk_rows } = &mut self.txn
                && *chunk_rows > 0
                && self.rows - self.committed >= *chunk_rows
            {
                let full = std::mem::replace(txn, self.worker.begin());
                full.commit().await.map_err(|e| self.insert.table.explain(&e, None))?;
                self.committed = self.rows;
            }
        }
        Ok(())
    }

    /// Before the first row of a transaction: takes over changes of the table's definition since the COPY, or its last chunk, has
    /// begun, such as another check. The transaction begins anew, as one that has begun before a change does not commit.
    fn follow_definition(&mut self) {
        let CopyTxn::Own { txn, .. } = &mut self.txn else { return };
        if txn.has_writes() || self.insert.table.check_current().is_ok() {
            return;
        }
        *txn = self.worker.begin();
        let tables = self.engine.catalog.tables();
        if let Some(table) = tables.get(&self.insert.table.name)
            && table.table.id() == self.insert.table.table.id()
        {
            self.insert.table = Arc::clone(table);
        }
    }

    async fn row(&self, fields: Fields) -> Result<Vec<Datum>, SqlError> {
        if fields.len() != self.targets.len() {
            let message = if fields.len() > self.targets.len() {
                "extra data after last expected column".to_owned()
            } else {
                let missing = self.targets[fields.len()];
                format!("missing data for column \"{}\"", self.insert.table.columns()[missing].name)
            };
            return Err(self.located(SqlError::new(SqlState::BAD_COPY_FORMAT, message)));
        }
        let table = &self.insert.table;
        let mut row = Vec::with_capacity(table.columns().len());
        let numbers = self.engine.numbers(&self.numbers, &self.worker);
        for (column, default) in self.insert.rows[0].iter().enumerate() {
            let given = self.targets.contains(&column);
            row.push(if given { Datum::Null } else { numbers.evaluate(default, &[], self.parameters()).await? });
        }
        for (field, &target) in fields.into_iter().zip(&self.targets) {
            row[target] = match field {
                None => Datum::Null,
                Some(text) => {
                    parse_stored(&text, table.columns()[target].data_type, self.zone).map_err(|e| self.located(e))?
                }
            };
        }
        Ok(row)
    }

    async fn write(&mut self, row: &mut Vec<Datum>) -> Result<(), SqlError> {
        self.follow_definition();
        let (numbers, parameters) = (self.engine.numbers(&self.numbers, &self.worker), self.parameters());
        let txn = match &mut self.txn {
            CopyTxn::Borrowed(txn, _) | CopyTxn::Own { txn, .. } => txn,
            CopyTxn::Gone => return Err(SqlError::internal("data after a failed COPY")),
        };
        Writer::new(&self.insert, numbers).write(txn, row, parameters).await
    }

    /// Defaults use the statement's times, but no parameters.
    fn parameters(&self) -> Parameters<'static> {
        Parameters { values: &[], times: self.times, zone: self.zone }
    }

    fn located(&self, mut error: SqlError) -> SqlError {
        let place = format!("COPY {}, line {}", self.insert.table.name, self.reader.line());
        let detail = match error.detail.take() {
            Some(detail) => format!("{detail} {place}"),
            None => place,
        };
        error.with_detail(detail)
    }
}

/// Says how to load more than one transaction takes, after an error of a COPY that commits all of its rows at once.
fn in_chunks(error: SqlError, chunk_rows: u64) -> SqlError {
    if error.state == SqlState::PROGRAM_LIMIT_EXCEEDED && chunk_rows == 0 {
        return error.with_hint("SET farhold.copy_chunk_rows = 10000 commits after every so many rows.");
    }
    error
}
