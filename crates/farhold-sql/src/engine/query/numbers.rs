//! Sequence functions in planned queries.
//!
//! Only the session can provide the numbers: it keeps the last ones, and only its thread may wait for the fabric. So a
//! query thread requests the numbers of a batch from the session and blocks for the answer. The session answers while
//! it waits for the query's rows.

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion::prelude::SessionContext;
use farhold_txn::Worker;
use tokio::sync::{mpsc, oneshot};

use crate::SqlError;
use crate::engine::sequence::{Call, Numbers, SequenceCall, SessionNumbers};
use crate::engine::types::{datum_at, to_arrow};
use crate::engine::{Datum, Engine};
use crate::value::Zone;

/// The calls of one batch, in row order; `None` where an argument is NULL.
struct Request {
    calls: Vec<Option<SequenceCall>>,
    answer: oneshot::Sender<Result<Vec<Option<i64>>, SqlError>>,
}

/// The query threads' end of the request channel.
#[derive(Clone, Debug)]
pub(super) struct NumberRequests(mpsc::UnboundedSender<Request>);

/// The session that answers a query's requests.
#[derive(Clone)]
pub(crate) struct NumberSource {
    pub(crate) engine: Arc<Engine>,
    pub(crate) worker: Rc<Worker>,
    pub(crate) session: Rc<SessionNumbers>,
}

impl NumberSource {
    pub(crate) fn numbers(&self) -> Numbers<'_> {
        self.engine.numbers(&self.session, &self.worker)
    }
}

/// The session's end of the request channel.
pub(super) struct Requests {
    receiver: mpsc::UnboundedReceiver<Request>,
    number_source: NumberSource,
}

/// Makes both ends. When the second one is dropped, waiting query threads get an error.
pub(super) fn request_channel(number_source: NumberSource) -> (NumberRequests, Requests) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (NumberRequests(sender), Requests { receiver, number_source })
}

impl Requests {
    /// Waits for a future, and answers requests meanwhile.
    pub(super) async fn answer_until<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = std::pin::pin!(awaited);
        loop {
            tokio::select! {
                biased;
                Some(request) = self.receiver.recv() => self.answer(request).await,
                outcome = &mut awaited => return outcome,
            }
        }
    }

    async fn answer(&self, request: Request) {
        // A requester that no longer waits was cancelled.
        let _ = request.answer.send(take_numbers(self.number_source.numbers(), request.calls).await);
    }
}

async fn take_numbers(numbers: Numbers<'_>, calls: Vec<Option<SequenceCall>>) -> Result<Vec<Option<i64>>, SqlError> {
    let mut given = Vec::with_capacity(calls.len());
    for call in calls {
        given.push(match call {
            None => None,
            Some(asked) => Some(numbers.call(asked).await?),
        });
    }
    Ok(given)
}

/// A sequence function; in a running query, with the channel for its requests.
#[derive(Debug)]
struct SequenceFunction {
    call: Call,
    signature: Signature,
    number_requests: Option<NumberRequests>,
}

impl SequenceFunction {
    fn new(call: Call, number_requests: Option<NumberRequests>) -> Self {
        let forms = call.forms().iter().map(|types| match types {
            [] => TypeSignature::Nullary,
            types => TypeSignature::Exact(types.iter().map(|t| to_arrow(*t)).collect()),
        });
        Self { call, signature: Signature::one_of(forms.collect(), Volatility::Volatile), number_requests }
    }
}

// The planner compares functions; their channels must not matter.
impl PartialEq for SequenceFunction {
    fn eq(&self, other: &Self) -> bool {
        self.call == other.call
    }
}

impl Eq for SequenceFunction {}

impl std::hash::Hash for SequenceFunction {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.call.hash(state);
    }
}

impl ScalarUDFImpl for SequenceFunction {
    fn name(&self) -> &'static str {
        self.call.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let calls = calls(self.call, &args.args, args.number_rows).map_err(external)?;
        let Some(NumberRequests(sender)) = &self.number_requests else {
            return Err(external(SqlError::internal(format!("{} is not connected to a session", self.name()))));
        };
        let (answer, answered) = oneshot::channel();
        let gone = || external(SqlError::cancelled("the session no longer waits for the query"));
        sender.send(Request { calls, answer }).map_err(|_| gone())?;
        let numbers = tokio::task::block_in_place(|| answered.blocking_recv());
        let numbers = numbers.map_err(|_| gone())?.map_err(external)?;
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from(numbers))))
    }
}

/// The calls for `rows` rows.
fn calls(call: Call, arguments: &[ColumnarValue], rows: usize) -> Result<Vec<Option<SequenceCall>>, SqlError> {
    let internal = |e: DataFusionError| SqlError::internal(e.to_string());
    let alike = arguments.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
    let distinct = if alike { rows.min(1) } else { rows };
    let columns: Vec<ArrayRef> =
        arguments.iter().map(|argument| argument.to_array(distinct).map_err(internal)).collect::<Result<_, _>>()?;
    let mut calls = Vec::with_capacity(rows);
    for row in 0..distinct {
        let value = |column| datum_at(column, row, Zone::UTC);
        let values = columns.iter().map(value).collect::<Result<Vec<Datum>, _>>()?;
        calls.push(SequenceCall::of(call, &values)?);
    }
    if let [one] = calls.as_slice() {
        calls = vec![one.clone(); rows];
    }
    Ok(calls)
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Registers the functions.
pub(super) fn register(context: &SessionContext) {
    for call in Call::ALL {
        context.register_udf(ScalarUDF::from(SequenceFunction::new(call, None)));
    }
}

fn called(expression: &Expr) -> Option<Call> {
    match expression {
        Expr::ScalarFunction(function) => function.func.inner().downcast_ref::<SequenceFunction>().map(|f| f.call),
        _ => None,
    }
}

/// Gives every sequence function of a plan its request channel.
pub(super) fn attach(plan: LogicalPlan, number_requests: &NumberRequests) -> Result<LogicalPlan> {
    let attach_one = |mut expression: Expr| {
        let Some(call) = called(&expression) else { return Ok(Transformed::no(expression)) };
        if let Expr::ScalarFunction(function) = &mut expression {
            function.func = Arc::new(ScalarUDF::from(SequenceFunction::new(call, Some(number_requests.clone()))));
        }
        Ok(Transformed::yes(expression))
    };
    plan.transform_up_with_subqueries(|node| node.map_expressions(|e| e.transform_up(attach_one))).data()
}

/// Whether a query advances a sequence, which a read-only transaction must not do.
pub(super) fn takes_numbers(plan: &LogicalPlan) -> Result<bool> {
    let mut takes = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|e| {
            e.apply(|inner| {
                takes |= called(inner).is_some_and(Call::takes_numbers);
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(takes)
}
