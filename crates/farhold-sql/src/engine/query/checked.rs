//! DataFusion's scalar functions, wrapped in an additional check.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::prelude::SessionContext;

/// A check that may refuse a function's arguments or its result.
pub(super) trait Check: Clone + Debug + Send + Sync + 'static {
    /// Invokes the function, or returns an error. `rows` is 1 if all arguments are scalars.
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue>;
}

/// Replaces DataFusion's functions of these names by checked ones.
pub(super) fn register(context: &SessionContext, names: &[&str], check: &impl Check) {
    for name in names {
        if let Some(inner) = context.state().scalar_functions().get(*name).cloned() {
            context.register_udf(ScalarUDF::from(Checked { inner, check: check.clone() }));
        }
    }
}

/// The function, with another one inside if it is checked by a `C`.
pub(super) fn with_inner<C: Check>(
    function: Arc<ScalarUDF>,
    change: impl FnOnce(Arc<ScalarUDF>) -> Arc<ScalarUDF>,
) -> Arc<ScalarUDF> {
    match function.inner().downcast_ref::<Checked<C>>() {
        Some(Checked { inner, check }) => {
            Arc::new(ScalarUDF::from(Checked { inner: change(Arc::clone(inner)), check: check.clone() }))
        }
        None => function,
    }
}

#[derive(Debug)]
struct Checked<C> {
    inner: Arc<ScalarUDF>,
    check: C,
}

impl<C> PartialEq for Checked<C> {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl<C> Eq for Checked<C> {}

impl<C> Hash for Checked<C> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl<C: Check> ScalarUDFImpl for Checked<C> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(arguments)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arguments)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let alike = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if alike { 1 } else { arguments.number_rows };
        self.check.invoke(&self.inner, arguments, rows)
    }
}
