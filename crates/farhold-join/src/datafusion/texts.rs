//! Comparisons of texts with a constant for equality.
//!
//! A text of a view array is 16 bytes: its length, its first four bytes, and the rest of a short text or the place of a long one. A short constant can
//! therefore be compared with a view as a number of 128 bits, whereas Arrow first reads each row's length. For a long constant, the first half is compared in
//! this way. Columns that come from a dictionary have few different views. The last equal view, and the last unequal view with the same beginning, are
//! therefore recognised again without reading the text.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, StringViewArray, make_view};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};

use super::JoinConfig;
use super::held::with_promises_of;

/// The most bytes of a text that lies in its view.
const INLINE_BYTES_MAX: usize = 12;

/// Replaces equalities of texts and constants in filters. It belongs behind all rules that look for a `BinaryExpr`;
/// [`with_joins`](super::with_joins) puts it there.
#[derive(Debug, Default)]
pub struct TextsRule;

impl PhysicalOptimizerRule for TextsRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, options: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if options.extensions.get::<JoinConfig>().is_some_and(|config| !config.enabled || !config.texts) {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(Transformed::no(node)) };
            let schema = filter.input().schema();
            let predicate = swapped(filter.predicate(), &schema)?;
            if !predicate.transformed {
                return Ok(Transformed::no(node));
            }
            let new = FilterExecBuilder::from(filter).with_predicate(predicate.data).build()?;
            Ok(Transformed::yes(with_promises_of(&node, Arc::new(new))))
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "farhold_texts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn swapped(expression: &PhysicalExprRef, schema: &Schema) -> Result<Transformed<PhysicalExprRef>> {
    Arc::clone(expression).transform_up(|expression| {
        Ok(match SameText::of(&expression, schema) {
            Some(same) => Transformed::yes(Arc::new(same)),
            None => Transformed::no(expression),
        })
    })
}

/// A [`BinaryExpr`] whose left side is texts and whose right side is a constant.
#[derive(Debug)]
struct SameText {
    binary: PhysicalExprRef,
    text: String,
    is_equal: bool,
}

impl SameText {
    /// `None` if it is something else.
    fn of(expression: &PhysicalExprRef, schema: &Schema) -> Option<Self> {
        let binary = expression.downcast_ref::<BinaryExpr>()?;
        let is_equal = match binary.op() {
            Operator::Eq => true,
            Operator::NotEq => false,
            _ => return None,
        };
        let ScalarValue::Utf8View(Some(text)) = binary.right().downcast_ref::<Literal>()?.value() else { return None };
        let is_text = binary.left().data_type(schema).ok()? == DataType::Utf8View;
        is_text.then(|| Self { binary: Arc::clone(expression), text: text.clone(), is_equal })
    }

    fn texts(&self) -> &PhysicalExprRef {
        self.binary.downcast_ref::<BinaryExpr>().expect("made of one").left()
    }
}

/// A bit for every row: whether its text is the constant.
#[expect(
    clippy::needless_bitwise_bool,
    reason = "one branch that is rarely taken, in place of three that are sometimes taken"
)]
fn same(texts: &StringViewArray, text: &str) -> BooleanBuffer {
    let views = texts.views();
    let wanted = make_view(text.as_bytes(), 0, 0);
    if text.len() <= INLINE_BYTES_MAX {
        return BooleanBuffer::collect_bool(views.len(), |row| views[row] == wanted);
    }
    // No text has one of these views, because no text is that long. (Zero is the view of the empty text.)
    let (mut equal, mut other) = (u128::MAX, u128::MAX);
    BooleanBuffer::collect_bool(views.len(), |row| {
        let view = views[row];
        let is_equal = view == equal;
        if !is_equal & (view as u64 == wanted as u64) & (view != other) && !texts.is_null(row) {
            if texts.value(row) == text {
                equal = view;
                return true;
            }
            other = view;
        }
        is_equal
    })
}

impl PhysicalExpr for SameText {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let texts = self.texts().evaluate(batch)?;
        let ColumnarValue::Array(array) = &texts else { return self.binary.evaluate(batch) };
        let Some(texts) = array.as_string_view_opt() else { return self.binary.evaluate(batch) };
        let same = same(texts, &self.text);
        let answer = if self.is_equal { same } else { !&same };
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::new(answer, texts.nulls().cloned()))))
    }

    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.binary.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.binary.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.binary.return_field(schema)
    }

    fn children(&self) -> Vec<&PhysicalExprRef> {
        self.binary.children()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<PhysicalExprRef>) -> Result<PhysicalExprRef> {
        let is_same_constant = children.get(1).is_some_and(|new| new.eq(self.binary.children()[1]));
        let binary = Arc::clone(&self.binary).with_new_children(children)?;
        if !is_same_constant {
            return Ok(binary);
        }
        Ok(Arc::new(Self { binary, text: self.text.clone(), is_equal: self.is_equal }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.binary.fmt_sql(f)
    }
}

impl fmt::Display for SameText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.binary.fmt(f)
    }
}

impl PartialEq for SameText {
    fn eq(&self, other: &Self) -> bool {
        self.binary.eq(&other.binary)
    }
}

impl Eq for SameText {}

impl Hash for SameText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.binary.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, StringViewBuilder};
    use datafusion::physical_expr::expressions::{col, lit};

    /// Short and long texts that begin alike and not, equal texts in several places, and nulls.
    fn texts() -> Vec<Option<&'static str>> {
        vec![
            Some(""),
            Some("AIR"),
            Some("AIR REG"),
            None,
            Some("twelve bytes"),
            Some("AIR"),
            Some("DELIVER IN PERSON"),
            Some("DELIVER IN PERSOX"),
            Some("DELIVER AT PERSON"),
            Some("DELIVER IN PERSON"),
            None,
            Some("DELIVER IN PERSON."),
            Some("DELIVER AT PERSON"),
            Some("AIR\0"),
        ]
    }

    /// Three batches one after another: the texts as they are, in reverse order, and as a dictionary's column has them.
    fn batches() -> Vec<RecordBatch> {
        let reversed = texts().into_iter().rev().collect::<Vec<_>>();
        let plain = [StringViewArray::from(texts()), StringViewArray::from(reversed)];
        let mut builder = StringViewBuilder::new().with_deduplicate_strings();
        texts().iter().cycle().take(100).for_each(|text| builder.append_option(*text));
        let all =
            plain.into_iter().chain([builder.finish()]).flat_map(|array| [array.slice(3, array.len() - 3), array]);
        all.map(|array| RecordBatch::try_from_iter_with_nullable([("t", Arc::new(array) as ArrayRef, true)]).unwrap())
            .collect()
    }

    #[test]
    fn answers_are_those_of_the_comparison() {
        let batches = batches();
        let schema = batches[0].schema();
        for operator in [Operator::Eq, Operator::NotEq] {
            for text in texts().into_iter().flatten().chain(["no such text of them", "none"]) {
                let constant = lit(ScalarValue::Utf8View(Some(text.to_owned())));
                let binary: PhysicalExprRef = Arc::new(BinaryExpr::new(col("t", &schema).unwrap(), operator, constant));
                let swapped = swapped(&binary, &schema).unwrap();
                assert!(swapped.transformed);
                for batch in &batches {
                    let answer = |expression: &PhysicalExprRef| {
                        let answer = expression.evaluate(batch).unwrap().into_array(batch.num_rows()).unwrap();
                        answer.as_boolean().iter().collect::<Vec<_>>()
                    };
                    assert_eq!(answer(&swapped.data), answer(&binary), "{binary}");
                }
            }
        }
    }

    #[test]
    fn what_is_something_else_stays() {
        let schema = batches()[0].schema();
        let column = || col("t", &schema).unwrap();
        let constant = lit(ScalarValue::Utf8View(Some("AIR".to_owned())));
        let null = lit(ScalarValue::Utf8View(None));
        for (left, operator, right) in [
            (column(), Operator::Lt, Arc::clone(&constant)),
            (column(), Operator::Eq, column()),
            (column(), Operator::Eq, null),
            (Arc::clone(&constant), Operator::Eq, column()),
        ] {
            let binary: PhysicalExprRef = Arc::new(BinaryExpr::new(left, operator, right));
            assert!(!swapped(&binary, &schema).unwrap().transformed, "{binary}");
        }
    }
}
