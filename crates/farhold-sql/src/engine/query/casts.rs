//! Aggregates, windows and keys of GROUP BY that differ only in casts.
//!
//! DataFusion (55) gives a cast the name of its argument. So `sum(a)` and `sum(CAST(a AS NUMERIC))` have the same name,
//! and one plan must not contain both. Here such casts become arguments of an identity function whose second argument
//! is the type. Twins are found in whatever notation they are written.

use std::collections::{HashMap, HashSet};
use std::mem::Discriminant;
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr as PlanExpr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{
    CastKind, Distinct, Expr, Function, GroupByExpr, Ident, NamedWindowDefinition, NamedWindowExpr, ObjectNamePart,
    Select, SelectItem, Statement, Value, Visitor, VisitorMut, WindowSpec, WindowType,
};

use super::subqueries::{call, is_aggregate};
use crate::engine::scalar::fold;
use crate::engine::walk;

/// `farhold_cast(CAST(a AS t), 't')`
const CAST: &str = "farhold_cast";

/// Registers the function.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Named { signature: Signature::any(2, Volatility::Immutable) }));
}

/// Names the casts of a statement's aggregates, windows and keys that equal another one except for casts.
pub(super) fn name(statement: &mut Statement, aggregates: &HashSet<String>) {
    let mut columns = Columns { aggregates, alike: HashMap::new() };
    let _ = walk::visit(statement, &mut columns);
    let twins: HashSet<Expr> = columns.alike.into_values().filter(|alike| alike.len() > 1).flatten().collect();
    if !twins.is_empty() {
        let kinds = twins.iter().map(std::mem::discriminant).collect();
        let _ = walk::change(statement, &mut Namer { twins, kinds, depth: 0, named: None });
    }
}

/// Collects the expressions that become columns of aggregates and windows: their calls and their keys.
struct Columns<'a> {
    aggregates: &'a HashSet<String>,
    /// The expressions in the form of [`plain`], grouped by their form without casts.
    alike: HashMap<Expr, HashSet<Expr>>,
}

impl Columns<'_> {
    fn found(&mut self, expr: &Expr) {
        let plain = plain(expr);
        let mut bare = plain.clone();
        let _ = walk::change(&mut bare, &mut NoCasts);
        self.alike.entry(bare).or_default().insert(plain);
    }

    fn keys<'e>(&mut self, keys: impl IntoIterator<Item = &'e Expr>, items: &[SelectItem]) {
        for key in keys {
            match key {
                Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) => {
                    self.keys(sets.iter().flatten(), items);
                }
                key => self.found(item(key, items).unwrap_or(key)),
            }
        }
    }

    fn window(&mut self, window: &WindowSpec) {
        self.keys(&window.partition_by, &[]);
        self.keys(window.order_by.iter().map(|by| &by.expr), &[]);
    }
}

impl Visitor for Columns<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let items = &select.projection;
        if let GroupByExpr::Expressions(by, _) = &select.group_by {
            self.keys(by, items);
        }
        if let Some(Distinct::On(on)) = &select.distinct {
            self.keys(on, items);
        }
        for NamedWindowDefinition(_, window) in &select.named_window {
            if let NamedWindowExpr::WindowSpec(window) = window {
                self.window(window);
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && (function.over.is_some() || is_aggregate(function, self.aggregates))
        {
            self.found(expr);
            if let Some(WindowType::WindowSpec(window)) = &function.over {
                self.window(window);
            }
        }
        ControlFlow::Continue(())
    }
}

/// The select item to which a key refers by its number.
fn item<'i>(key: &Expr, items: &'i [SelectItem]) -> Option<&'i Expr> {
    let Expr::Value(value) = key else { return None };
    let Value::Number(number, _) = &value.value else { return None };
    match items.get(number.parse::<usize>().ok()?.checked_sub(1)?)? {
        SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. } => Some(item),
        _ => None,
    }
}

/// The canonical form of an expression: without parentheses, with function names in lower case, and with CAST for `::`.
fn plain(expr: &Expr) -> Expr {
    struct Plain;
    impl VisitorMut for Plain {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            match expr {
                Expr::Nested(inner) => *expr = inner.as_ref().clone(),
                Expr::Cast { kind: kind @ CastKind::DoubleColon, .. } => *kind = CastKind::Cast,
                Expr::Function(Function { name, .. }) => {
                    for part in &mut name.0 {
                        if let ObjectNamePart::Identifier(part) = part {
                            *part = Ident::new(fold(part));
                        }
                    }
                }
                _ => {}
            }
            ControlFlow::Continue(())
        }
    }
    let mut plain = expr.clone();
    let _ = walk::change(&mut plain, &mut Plain);
    plain
}

/// Removes casts.
struct NoCasts;

impl VisitorMut for NoCasts {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr: inner, .. } = expr {
            *expr = inner.as_ref().clone();
        }
        ControlFlow::Continue(())
    }
}

/// Names the casts of the given expressions.
struct Namer {
    /// In the form of [`plain`].
    twins: HashSet<Expr>,
    kinds: HashSet<Discriminant<Expr>>,
    /// The number of enclosing expressions.
    depth: usize,
    /// The depth of the expression whose casts were named; expressions within it are skipped.
    named: Option<usize>,
}

impl VisitorMut for Namer {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.named.is_none()
            && self.kinds.contains(&std::mem::discriminant(expr))
            && self.twins.contains(&plain(expr))
        {
            self.named = Some(self.depth);
            let _ = walk::change(expr, &mut NamedCasts);
        }
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &mut Expr) -> ControlFlow<()> {
        self.depth -= 1;
        self.named = self.named.filter(|depth| *depth < self.depth);
        ControlFlow::Continue(())
    }
}

struct NamedCasts;

impl VisitorMut for NamedCasts {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { data_type, .. } = expr {
            let name = Expr::value(Value::SingleQuotedString(data_type.to_string()));
            *expr = call(CAST, vec![expr.clone(), name]);
        }
        ControlFlow::Continue(())
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    signature: Signature,
}

impl ScalarUDFImpl for Named {
    fn name(&self) -> &'static str {
        CAST
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(arguments.arg_fields[0].clone())
    }

    fn simplify(&self, mut arguments: Vec<PlanExpr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(ExprSimplifyResult::Simplified(arguments.swap_remove(0)))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.swap_remove(0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::engine::parse::parse_one;

    fn named(sql: &str) -> String {
        let mut statement = parse_one(sql).unwrap();
        name(&mut statement, &HashSet::from(["sum".to_owned(), "count".to_owned()]));
        statement.to_string()
    }

    #[test]
    fn casts_have_names_where_nothing_else_differs() {
        for (sql, expected) in [
            ("SELECT sum(a), sum(b::INT)", "SELECT sum(a), sum(b::INT)"),
            ("SELECT SUM(a), sum((a)::INT)", "SELECT SUM(a), sum(farhold_cast((a)::INT, 'INT'))"),
            ("SELECT a FROM t GROUP BY a, a::INT", "SELECT a FROM t GROUP BY a, farhold_cast(a::INT, 'INT')"),
            (
                "SELECT a, CAST(a AS INT) FROM t GROUP BY 1, 2",
                "SELECT a, farhold_cast(CAST(a AS INT), 'INT') FROM t GROUP BY 1, 2",
            ),
            (
                "SELECT sum(a) OVER (ORDER BY b), sum(a) OVER (ORDER BY b::INT)",
                "SELECT sum(a) OVER (ORDER BY b), sum(a) OVER (ORDER BY farhold_cast(b::INT, 'INT'))",
            ),
        ] {
            assert_eq!(named(sql), expected);
        }
    }

    /// This runs on the front end's thread, where no cancel is noticed. It took minutes when each expression was
    /// compared with all earlier ones.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "what takes long is the machine's own time")]
    fn many_aggregates_take_no_square() {
        let time_of = |aggregates: u32| {
            let calls: Vec<String> = (0..aggregates).map(|n| format!("sum(abs({n}))")).collect();
            let sql = format!("SELECT greatest({}, sum(abs(CAST(7 AS INT))))", calls.join(", "));
            let started = Instant::now();
            assert!(named(&sql).ends_with("sum(abs(farhold_cast(CAST(7 AS INT), 'INT'))))"));
            started.elapsed()
        };
        let least_of = |aggregates| (0..3).map(|_| time_of(aggregates)).min().unwrap();
        // Eight times as many take about eight times as long; with all pairs it would be 64 times.
        let (few, many) = (least_of(1_000), least_of(8_000));
        assert!(many < 32 * few, "{few:?} {many:?}");
    }
}
