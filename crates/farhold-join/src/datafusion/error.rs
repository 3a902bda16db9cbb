//! Conversion of errors between Arrow, DataFusion and the join.

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;

use crate::JoinError;

/// A limit on memory or disk becomes DataFusion's `ResourcesExhausted`. A failed expression becomes its original error. All other errors keep their type as an
/// external error.
pub fn to_datafusion(error: JoinError) -> DataFusionError {
    match error {
        JoinError::BudgetTooSmall { .. } | JoinError::OutOfMemory { .. } => {
            DataFusionError::ResourcesExhausted(error.to_string())
        }
        JoinError::Residual(ArrowError::ExternalError(inner)) => match inner.downcast::<DataFusionError>() {
            Ok(inner) => *inner,
            Err(inner) => DataFusionError::External(inner),
        },
        JoinError::Arrow(error) | JoinError::Residual(error) => DataFusionError::from(error),
        other => DataFusionError::External(Box::new(other)),
    }
}

/// For expressions that Arrow's kernels call.
pub fn to_arrow(error: DataFusionError) -> ArrowError {
    ArrowError::ExternalError(Box::new(error))
}
