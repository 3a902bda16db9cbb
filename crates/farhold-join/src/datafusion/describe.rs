//! Describes a hash join of DataFusion as a [`JoinSpec`]: keys, condition and output.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, make_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;

use super::error::to_arrow;
use crate::keys::is_supported;
use crate::{JoinKind, JoinSpec, Residual};

/// One side: its columns, followed by the keys that are not columns themselves.
#[derive(Debug, Clone)]
pub struct Side {
    pub schema: SchemaRef,
    computed: Vec<(PhysicalExprRef, DataType)>,
}

impl Side {
    fn new(input: &SchemaRef) -> Self {
        Self { schema: Arc::clone(input), computed: Vec::new() }
    }

    /// The column that holds a key in the form in which it is compared.
    fn key(&mut self, expression: &PhysicalExprRef, input: &Schema) -> Result<usize, String> {
        let kind = expression.data_type(input).map_err(|error| error.to_string())?;
        let compared = compared_as(&kind).ok_or_else(|| format!("keys of type {kind}"))?;
        if let Some(column) = expression.downcast_ref::<Column>().filter(|_| compared == kind) {
            return Ok(column.index());
        }
        let nullable = expression.nullable(input).unwrap_or(true);
        let mut fields: Vec<Arc<Field>> = self.schema.fields().to_vec();
        fields.push(Arc::new(Field::new(format!("key {}", self.computed.len()), compared.clone(), nullable)));
        self.schema = Arc::new(Schema::new(fields));
        self.computed.push((Arc::clone(expression), compared));
        Ok(self.schema.fields().len() - 1)
    }

    fn added(&self) -> usize {
        self.computed.len()
    }

    /// A batch of the input with the computed keys behind its columns.
    pub fn with_keys(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.computed.is_empty() {
            return Ok(batch);
        }
        let mut columns = batch.columns().to_vec();
        for (expression, compared) in &self.computed {
            let values = expression.evaluate(&batch)?.into_array(batch.num_rows())?;
            columns.push(comparable(&values, compared)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

/// The type in which keys of a type are compared. Floating-point numbers are equal when their bits are, as in Arrow's
/// kernels and therefore in DataFusion's join.
fn compared_as(kind: &DataType) -> Option<DataType> {
    match kind {
        DataType::Float16 => Some(DataType::UInt16),
        DataType::Float32 => Some(DataType::UInt32),
        DataType::Float64 => Some(DataType::UInt64),
        DataType::Dictionary(_, values) => compared_as(values),
        kind => is_supported(kind).then(|| kind.clone()),
    }
}

fn comparable(values: &ArrayRef, compared: &DataType) -> Result<ArrayRef> {
    let values = match values.data_type() {
        DataType::Dictionary(_, kind) => &cast(values, kind)?,
        _ => values,
    };
    if values.data_type().is_floating() {
        // The same bits, typed as an integer.
        return Ok(make_array(values.to_data().into_builder().data_type(compared.clone()).build()?));
    }
    if values.data_type() == compared { Ok(Arc::clone(values)) } else { Ok(cast(values, compared)?) }
}

/// A join that farhold-join can execute.
#[derive(Debug, Clone)]
pub struct Description {
    pub spec: JoinSpec,
    pub build: Side,
    pub probe: Side,
    /// `NOT IN`: the last column of the join's output is the build key, which is not in the plan's output.
    pub null_aware: bool,
}

/// The join as a [`Description`], or why it cannot be described.
pub fn describe(planned: &HashJoinExec) -> Result<Description, String> {
    let (left, right) = (planned.left().schema(), planned.right().schema());
    let (mut build, mut probe) = (Side::new(&left), Side::new(&right));
    let mut on = Vec::new();
    for (left_key, right_key) in planned.on() {
        let pair = (build.key(left_key, &left)?, probe.key(right_key, &right)?);
        let (one, other) = (build.schema.field(pair.0).data_type(), probe.schema.field(pair.1).data_type());
        if one != other {
            return Err(format!("keys of types {one} and {other}"));
        }
        on.push(pair);
    }
    let kind = kind_of(*planned.join_type());
    let mut spec = JoinSpec::new(Arc::clone(&build.schema), Arc::clone(&probe.schema), on, kind);
    spec.null_equals_null = planned.null_equality() == NullEquality::NullEqualsNull;
    spec.residual = planned.filter().map(residual_of);
    let null_aware = planned.null_aware;
    if null_aware && (kind != JoinKind::LeftAnti || spec.on.len() != 1 || spec.residual.is_some()) {
        return Err("NOT IN with a further condition".into());
    }
    let added = (build.added(), probe.added());
    if planned.projection.is_some() || added != (0, 0) || null_aware {
        let mut wanted = wanted_columns(planned, kind, left.fields().len(), right.fields().len(), added);
        wanted.extend(null_aware.then_some(spec.on[0].0));
        spec.projection = Some(wanted);
    }
    Ok(Description { spec, build, probe, null_aware })
}

/// The plan's output columns among the join's, which have the computed keys behind each side.
fn wanted_columns(
    planned: &HashJoinExec,
    kind: JoinKind,
    left: usize,
    right: usize,
    added: (usize, usize),
) -> Vec<usize> {
    let (first, first_added) = match kind {
        JoinKind::RightSemi | JoinKind::RightAnti | JoinKind::RightMark => (right, added.1),
        _ => (left, added.0),
    };
    let all = planned.join_schema().fields().len();
    let ours = |column: usize| if column < first { column } else { column + first_added };
    match &planned.projection {
        Some(projection) => projection.iter().map(|&column| ours(column)).collect(),
        None => (0..all).map(ours).collect(),
    }
}

fn kind_of(kind: JoinType) -> JoinKind {
    match kind {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::LeftMark => JoinKind::LeftMark,
        JoinType::RightMark => JoinKind::RightMark,
    }
}

/// A [`Residual`] reads the build side's columns first; DataFusion's filter has an order of its own.
fn residual_of(filter: &JoinFilter) -> Residual {
    let of_side = |side: JoinSide| filter.column_indices().iter().filter(move |column| column.side == side);
    let build_columns: Vec<usize> = of_side(JoinSide::Left).map(|column| column.index).collect();
    let probe_columns: Vec<usize> = of_side(JoinSide::Right).map(|column| column.index).collect();
    let (mut next_build, mut next_probe) = (0..build_columns.len(), build_columns.len()..);
    let order: Vec<usize> = filter
        .column_indices()
        .iter()
        .filter_map(|column| if column.side == JoinSide::Left { next_build.next() } else { next_probe.next() })
        .collect();
    let (expression, schema) = (Arc::clone(filter.expression()), Arc::clone(filter.schema()));
    let evaluate = move |pairs: &RecordBatch| {
        let columns = order.iter().map(|&column| Arc::clone(pairs.column(column))).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(pairs.num_rows()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
        let keep = expression.evaluate(&batch).and_then(|value| value.into_array(batch.num_rows()));
        Ok(keep.map_err(to_arrow)?.as_boolean().clone())
    };
    Residual { build_columns, probe_columns, evaluate: Arc::new(evaluate) }
}
