use super::*;
use arrow::array::Int64Array;
use arrow::datatypes::Field;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{ConstExpr, PhysicalSortExpr};
use datafusion::physical_plan::collect;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};

/// An operator whose promises and rows the test chooses.
#[derive(Debug)]
struct Speaker {
    parts: Vec<RecordBatch>,
    properties: Arc<PlanProperties>,
    rows: Precision<usize>,
    fetch: Option<usize>,
}

impl Speaker {
    /// Two partitions of the columns `a` and `b`.
    fn new(parts: [[Vec<Option<i64>>; 2]; 2]) -> Self {
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let parts = parts.map(|columns| {
            let columns = columns.map(|column| Arc::new(Int64Array::from(column)) as ArrayRef);
            RecordBatch::try_new(Arc::clone(&schema), columns.to_vec()).unwrap()
        });
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(2),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let (properties, rows, fetch) = (Arc::new(properties), Precision::Absent, None);
        Self { parts: parts.to_vec(), properties, rows, fetch }
    }

    fn with(mut self, change: impl FnOnce(&mut PlanProperties)) -> Self {
        let mut properties = PlanProperties::clone(&self.properties);
        change(&mut properties);
        self.properties = Arc::new(properties);
        self
    }

    fn with_equivalences(self, change: impl FnOnce(&mut EquivalenceProperties)) -> Self {
        self.with(|properties| {
            let mut equivalences = properties.eq_properties.clone();
            change(&mut equivalences);
            properties.set_eq_properties(equivalences);
        })
    }

    fn column(&self, name: &str) -> PhysicalExprRef {
        col(name, &self.schema()).unwrap()
    }

    /// The error that the check reports.
    fn heard(self) -> Option<String> {
        let plan = PromisesRule.optimize(Arc::new(self), &ConfigOptions::default()).unwrap();
        assert!(plan.is::<Speaker>(), "it passes for the operator");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(collect(plan, Arc::default())).err().map(|error| error.to_string())
    }
}

impl DisplayAs for Speaker {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Speaker")
    }
}

impl ExecutionPlan for Speaker {
    fn name(&self) -> &'static str {
        "Speaker"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&PhysicalExprRef) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = stream::iter([Ok(self.parts[partition].clone())]);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        if args.partition().is_none() {
            statistics.num_rows = self.rows;
        }
        Ok(Arc::new(statistics))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }
}

fn numbers(numbers: impl IntoIterator<Item = i64>) -> Vec<Option<i64>> {
    numbers.into_iter().map(Some).collect()
}

fn some() -> Speaker {
    Speaker::new([[numbers(0..40), numbers(0..40)], [numbers(40..80), numbers((40..80).rev())]])
}

#[track_caller]
fn assert_heard(speaker: Speaker, wanted: &str) {
    let heard = speaker.heard().expect("a broken promise is noticed");
    assert!(heard.contains(wanted) && heard.contains("Speaker"), "{heard}");
}

#[test]
fn who_promises_nothing_or_keeps_it_is_not_spoken_against() {
    assert_eq!(some().heard(), None);
    let speaker = some();
    let (a, b) = (speaker.column("a"), speaker.column("b"));
    let mut kept = speaker.with_equivalences(|of| of.add_orderings([[PhysicalSortExpr::new_default(a)]]));
    (kept.rows, kept.fetch) = (Precision::Exact(80), Some(40));
    assert_eq!(kept.heard(), None);
    assert_eq!(Speaker { rows: Precision::Exact(100), fetch: Some(40), ..some() }.heard(), None);
    let one = || Speaker::new([[numbers([1, 1]), numbers([5, 5])], [numbers([2]), numbers([5])]]);
    let constants = [
        ConstExpr::new(Arc::clone(&b), AcrossPartitions::Uniform(Some(ScalarValue::Int64(Some(5))))),
        ConstExpr::new(one().column("a"), AcrossPartitions::Heterogeneous),
    ];
    assert_eq!(one().with_equivalences(|of| of.add_constants(constants).unwrap()).heard(), None);
}

#[test]
fn every_broken_promise_is_heard_of() {
    let by = vec![some().column("a")];
    assert_heard(some().with(|of| of.partitioning = Partitioning::Hash(by, 2)), "by Hash");

    let by = PhysicalSortExpr::new_default(some().column("b"));
    assert_heard(some().with_equivalences(|of| of.add_orderings([[by]])), "ordered by b");

    let (a, b) = (some().column("a"), some().column("b"));
    assert_heard(some().with_equivalences(|of| of.add_equal_conditions(a, b).unwrap()), "equals");

    let one = || Speaker::new([[numbers([1, 1]), numbers([5, 6])], [numbers([2]), numbers([5])]]);
    let constant = |name, across| {
        let constant = ConstExpr::new(one().column(name), across);
        one().with_equivalences(|of| of.add_constants([constant]).unwrap())
    };
    assert_heard(constant("b", AcrossPartitions::Heterogeneous), "b@1 is one value");
    assert_heard(constant("a", AcrossPartitions::Uniform(None)), "a@0 is one value in all partitions");
    let two = AcrossPartitions::Uniform(Some(ScalarValue::Int64(Some(2))));
    assert_heard(constant("a", two), "a@0 is one value");

    assert_heard(Speaker { rows: Precision::Exact(79), ..some() }, "79 rows exactly");
    assert_heard(Speaker { rows: Precision::Exact(79), fetch: Some(40), ..some() }, "79 rows exactly");
    assert_heard(Speaker { fetch: Some(39), ..some() }, "more than 39 rows");

    let strict =
        Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Int32, true)]));
    let nulls = Speaker::new([[vec![None], vec![None]], [vec![], vec![]]]);
    let of_schema = |of: &mut PlanProperties| of.set_eq_properties(EquivalenceProperties::new(strict));
    assert_heard(nulls.with(of_schema.clone()), "null in column a");
    let numbers = Speaker::new([[numbers([1]), numbers([1])], [vec![], vec![]]]);
    assert_heard(numbers.with(of_schema), "is of type Int64");
}
