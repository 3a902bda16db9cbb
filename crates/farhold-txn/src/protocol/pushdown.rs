//! Scans of columns by the node that has them.
//!
//! ```text
//!   asker                                             home
//!   ScanColumns(snapshot, number, request) ─────────► the snapshot is open here; a view at its epoch has the chunks
//!                        ◄── a message of the reply ─ scans until it has one, or for a while
//!   ScanColumns(snapshot, number, nothing) ─────────► goes on
//! ```
//! The asker requests the reply message by message. The home therefore never waits for an asker, and keeps the passing rows of one segment for each scan.
//! Between two requests it serves others. An asker that abandons its scan sends no further request, so at most the request that is under way is useless work.
//! A scan is dropped once its snapshot is closed there, or if it has not been requested for twice the time that a request may take; the thread that frees
//! column memory looks for such scans.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::base::error::TxnError;
use crate::base::ident::COLUMNS;
use crate::base::wire::Writer;
use crate::node::column_scans::{ColumnScan, ScannedHome};
use crate::node::far_reads::Lines;
use crate::protocol::core::Core;
use crate::rpc::message::Request;
use farhold_fabric::executor::JoinHandle;
use farhold_fabric::{FabricError, FarPtr, NodeId};
use farhold_scan::access_path::pushdown::{Line, Serving, Step, Waiting, number_of_request};
use farhold_store::column::copy::PlacedChunks;
use farhold_store::{Holder, TableId};

/// How long the home scans for one request: its other work waits meanwhile. It does not stop within a step ([`Serving::next`]).
const SCAN_NS: u64 = 500_000;

impl Core {
    /// Answers [`Request::ScanColumns`]: with a message of the reply, or with nothing yet.
    pub fn scan_columns(
        &self,
        holder: Holder,
        (table, epoch, configuration): (TableId, u32, u64),
        number: u64,
        body: &[u8],
        w: &mut Writer,
    ) -> Result<(), TxnError> {
        let superblock = self.node.store.superblock();
        if !superblock.has_open(holder, epoch) {
            return Err(TxnError::Recovering { node: self.me });
        }
        let scans = &self.node.column_scans;
        let gone = || TxnError::NotFound { what: "the scan".into() };
        let mut scan = if body.is_empty() {
            let taken = scans.take(holder.node, number).ok_or_else(gone)?;
            (taken.holder == holder && taken.epoch == epoch).then_some(taken).ok_or_else(gone)?
        } else {
            let table = self.table_handle(table)?;
            let copy = self.node.column_copy_of(&table, configuration).ok();
            let view = copy.and_then(|(_, copy)| copy.view(epoch).ok());
            let chunks = PlacedChunks::new(&view.ok_or_else(gone)?);
            let home = ScannedHome { table, chunks, origin: FarPtr::new(self.me, COLUMNS, 0) };
            ColumnScan { holder, epoch, serving: Serving::new(body), home, asked_ns: 0 }
        };
        let now_ns = self.handle.now_ns();
        scan.asked_ns = self.handle.shared_now_ns();
        while let Some(step) = scan.serving.next(&scan.home) {
            match step {
                Step::Message(message) => {
                    w.0.extend(message);
                    break;
                }
                Step::Nothing if self.handle.now_ns() >= now_ns + SCAN_NS => break,
                Step::Nothing => {}
            }
        }
        if scan.serving.is_over() {
            return Ok(());
        }
        let asked_ns = scan.asked_ns;
        let stays = |it: &ColumnScan| it.is_wanted(superblock, asked_ns, self.node.config.request_timeout_ns);
        scans.keep(number, scan, stays)
    }
}

impl Lines for Core {
    fn line(&self, table: TableId, epoch: u32, configuration: u64, is_given_up: &Arc<AtomicBool>) -> Box<dyn Line> {
        Box::new(HomeLine {
            core: self.this.clone(),
            at: (table, epoch, configuration),
            is_given_up: is_given_up.clone(),
            number: Cell::new(self.handle.unrepeated_u64()),
            asked: RefCell::default(),
        })
    }
}

/// Requests of one scan, and their replies.
struct HomeLine {
    core: Weak<Core>,
    /// The table, and the epoch and the configuration of the snapshot.
    at: (TableId, u32, u64),
    is_given_up: Arc<AtomicBool>,
    number: Cell<u64>,
    /// By number: the home, and the request in flight.
    asked: RefCell<HashMap<u64, (NodeId, Option<Question>)>>,
}

type Question = JoinHandle<Result<Vec<u8>, FabricError>>;

impl HomeLine {
    fn ask(&self, node: NodeId, number: u64, body: Vec<u8>) -> Result<Question, FabricError> {
        if self.is_given_up.load(Relaxed) {
            return Err(FabricError::Unsupported { what: "a scan that was given up" });
        }
        let unavailable = FabricError::NodeUnavailable { node };
        let core = self.core.upgrade().ok_or(unavailable)?;
        let (table, epoch, configuration) = self.at;
        Ok(core.handle.clone().spawn(async move {
            let incarnation = core.node.store.incarnation();
            let request = Request::ScanColumns { incarnation, table, epoch, configuration, number, body: &body };
            core.call(node, &request).await.map_err(|error| match error {
                TxnError::NodeUnavailable { .. } => FabricError::NodeUnavailable { node },
                _ => FabricError::Unsupported { what: "a scan by the home node, which has refused it" },
            })
        }))
    }
}

impl Line for HomeLine {
    fn number(&self) -> u64 {
        self.number.set(self.number.get().wrapping_add(1));
        self.number.get()
    }

    fn send<'a>(&'a self, node: NodeId, request: &'a [u8]) -> Waiting<'a, ()> {
        let number = number_of_request(request);
        let asked = self.ask(node, number, request.to_vec());
        Box::pin(std::future::ready(asked.map(|question| {
            self.asked.borrow_mut().insert(number, (node, Some(question)));
        })))
    }

    fn receive(&self, number: u64) -> Waiting<'_, Vec<u8>> {
        Box::pin(async move {
            loop {
                let taken = self.asked.borrow_mut().get_mut(&number).map(|(node, question)| (*node, question.take()));
                let Some((node, question)) = taken else {
                    return Err(FabricError::Unsupported { what: "receiving a reply that was not asked for" });
                };
                let question = question.map_or_else(|| self.ask(node, number, Vec::new()), Ok)?;
                let message = question.await?;
                if !message.is_empty() {
                    return Ok(message);
                }
            }
        })
    }

    fn forget(&self, number: u64) {
        self.asked.borrow_mut().remove(&number);
    }
}
