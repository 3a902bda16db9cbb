//! The specification of a join: keys, kind, residual condition.

use std::fmt;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;

use crate::JoinError;

/// The kind of a join. Left is the build side, right the probe side, as in `DataFusion`'s hash join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and build rows without one.
    Left,
    /// Pairs, and probe rows without one.
    Right,
    /// Pairs, and rows of either side without one.
    Full,
    /// Build rows that have a pair, once each.
    LeftSemi,
    /// Probe rows that have a pair, once each.
    RightSemi,
    /// Build rows that have no pair.
    LeftAnti,
    /// Probe rows that have no pair.
    RightAnti,
    /// Build rows, and a column that says whether they have a pair.
    LeftMark,
    /// Probe rows, and a column that says whether they have a pair.
    RightMark,
}

/// The fate of a side's rows beyond pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    Matched,
    Unmatched,
    Marked,
}

/// The origin of an output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Build(usize),
    Probe(usize),
    Mark,
}

impl JoinKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Inner,
        Self::Left,
        Self::Right,
        Self::Full,
        Self::LeftSemi,
        Self::RightSemi,
        Self::LeftAnti,
        Self::RightAnti,
        Self::LeftMark,
        Self::RightMark,
    ];

    pub(crate) fn emits_pairs(self) -> bool {
        matches!(self, Self::Inner | Self::Left | Self::Right | Self::Full)
    }

    pub(crate) fn keep_build(self) -> Keep {
        match self {
            Self::Left | Self::Full | Self::LeftAnti => Keep::Unmatched,
            Self::LeftSemi => Keep::Matched,
            Self::LeftMark => Keep::Marked,
            _ => Keep::Nothing,
        }
    }

    pub(crate) fn keep_probe(self) -> Keep {
        match self {
            Self::Right | Self::Full | Self::RightAnti => Keep::Unmatched,
            Self::RightSemi => Keep::Matched,
            Self::RightMark => Keep::Marked,
            _ => Keep::Nothing,
        }
    }
}

/// Decides which candidate pairs (rows in parallel) are matches: true keeps a pair, false and null drop it.
pub type Evaluate = dyn Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + Send + Sync;

/// A condition beyond equal keys.
#[derive(Clone)]
pub struct Residual {
    /// Columns of the build side that the condition reads. They come first in its batch.
    pub build_columns: Vec<usize>,
    /// Columns of the probe side that it reads. They come after those of the build side.
    pub probe_columns: Vec<usize>,
    /// The condition.
    pub evaluate: Arc<Evaluate>,
}

impl fmt::Debug for Residual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Residual {{ build_columns: {:?}, probe_columns: {:?} }}", self.build_columns, self.probe_columns)
    }
}

/// A join's inputs and condition.
#[derive(Debug, Clone)]
pub struct JoinSpec {
    /// Columns of the build side.
    pub build: SchemaRef,
    /// Columns of the probe side.
    pub probe: SchemaRef,
    /// Key columns of build and probe side, at least one pair. The types of a pair must be equal.
    pub on: Vec<(usize, usize)>,
    /// The kind.
    pub kind: JoinKind,
    /// Whether null keys equal null keys (`IS NOT DISTINCT FROM`); otherwise a null equals nothing.
    pub null_equals_null: bool,
    /// A further condition.
    pub residual: Option<Residual>,
    /// The wanted columns of the output, in this order; none: all. Other columns are not copied.
    pub projection: Option<Vec<usize>>,
}

impl JoinSpec {
    /// A join without residual condition in which nulls equal nothing.
    pub fn new(build: SchemaRef, probe: SchemaRef, on: Vec<(usize, usize)>, kind: JoinKind) -> Self {
        Self { build, probe, on, kind, null_equals_null: false, residual: None, projection: None }
    }

    /// The columns of the output: the build side's, the probe side's, or both, and `mark` for a mark join. Columns of a side
    /// that may be absent are nullable.
    pub fn output_schema(&self) -> SchemaRef {
        let fields = |schema: &Schema, nullable: bool| -> Vec<Field> {
            schema
                .fields()
                .iter()
                .map(|field| field.as_ref().clone().with_nullable(nullable || field.is_nullable()))
                .collect()
        };
        let mark = || Field::new("mark", DataType::Boolean, false);
        let (keep_build, keep_probe) = (self.kind.keep_build(), self.kind.keep_probe());
        let fields = if self.kind.emits_pairs() {
            let mut all = fields(&self.build, keep_probe == Keep::Unmatched);
            all.extend(fields(&self.probe, keep_build == Keep::Unmatched));
            all
        } else if keep_build == Keep::Nothing {
            let mut all = fields(&self.probe, false);
            all.extend((keep_probe == Keep::Marked).then(mark));
            all
        } else {
            let mut all = fields(&self.build, false);
            all.extend((keep_build == Keep::Marked).then(mark));
            all
        };
        let fields = match &self.projection {
            Some(wanted) => wanted.iter().filter_map(|&column| fields.get(column).cloned()).collect(),
            None => fields,
        };
        Arc::new(Schema::new(fields))
    }

    /// The origins of the output's columns, in order.
    pub(crate) fn output_columns(&self) -> Vec<Origin> {
        let build = (0..self.build.fields().len()).map(Origin::Build);
        let probe = (0..self.probe.fields().len()).map(Origin::Probe);
        let all: Vec<Origin> = if self.kind.emits_pairs() {
            build.chain(probe).collect()
        } else if self.kind.keep_build() == Keep::Nothing {
            probe.chain((self.kind.keep_probe() == Keep::Marked).then_some(Origin::Mark)).collect()
        } else {
            build.chain((self.kind.keep_build() == Keep::Marked).then_some(Origin::Mark)).collect()
        };
        match &self.projection {
            Some(wanted) => wanted.iter().map(|&column| all[column]).collect(),
            None => all,
        }
    }

    /// The types of the probe side's columns that pairs need: the wanted ones, and those that the residual condition
    /// reads.
    pub(crate) fn probe_columns_of_pairs(&self) -> impl Iterator<Item = &DataType> {
        let wanted = self.output_columns().into_iter().filter_map(|origin| match origin {
            Origin::Probe(column) => Some(column),
            Origin::Build(_) | Origin::Mark => None,
        });
        let read = self.residual.iter().flat_map(|residual| residual.probe_columns.iter().copied());
        wanted.chain(read).map(|column| self.probe.field(column).data_type())
    }

    pub(crate) fn check(&self) -> Result<(), JoinError> {
        if self.on.is_empty() {
            return Err(JoinError::Invalid("a join needs at least one key column".into()));
        }
        let in_range = |column: usize, schema: &Schema, side: &str| {
            let columns = schema.fields().len();
            let answer = if column < columns {
                Ok(())
            } else {
                Err(format!("column {column} of the {side} side, which has {columns}"))
            };
            answer.map_err(JoinError::Invalid)
        };
        for (position, &(build, probe)) in self.on.iter().enumerate() {
            in_range(build, &self.build, "build")?;
            in_range(probe, &self.probe, "probe")?;
            let (build, probe) = (self.build.field(build).data_type(), self.probe.field(probe).data_type());
            if build != probe {
                return Err(JoinError::KeyTypes { position, build: build.to_string(), probe: probe.to_string() });
            }
        }
        let all = Self { projection: None, ..self.clone() }.output_columns().len();
        if let Some(column) = self.projection.iter().flatten().find(|&&column| column >= all) {
            return Err(JoinError::Invalid(format!("column {column} of an output that has {all}")));
        }
        if let Some(residual) = &self.residual {
            residual.build_columns.iter().try_for_each(|&column| in_range(column, &self.build, "build"))?;
            residual.probe_columns.iter().try_for_each(|&column| in_range(column, &self.probe, "probe"))?;
        }
        Ok(())
    }
}
