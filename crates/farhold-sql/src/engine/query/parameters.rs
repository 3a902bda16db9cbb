//! Parameters `$1`, `$2`, … of planned queries: their number, types and values.

use std::ops::ControlFlow;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ParamValues, ScalarValue};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{self, Distinct, ExprSchemable, LogicalPlan};
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, CharacterLength, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, JoinConstraint, LimitClause, Query, Select, SelectItem, SetExpr, TableFactor, TimezoneInfo,
    UnaryOperator, Value, Visitor, VisitorMut,
};

use super::added::{number_of_buckets, types_of_parameters};
use super::at_zone;
use super::coerce::{common_type, is_bare_in, is_char, is_untyped_literal, item_of};
use super::listed::value_of;
use super::multisets::is_set_operation;
use super::quantified::is_marked;
use super::results::parts_of;
use crate::SqlError;
use crate::engine::scalar::{ParameterTypes, built_in_name, fold, parameter_index};
use crate::engine::types::{from_arrow, from_field, from_sql, type_of_parameter};
use crate::engine::{ColumnType, error, walk};
use crate::value::ANY_LENGTH;

/// The number of the highest parameter of a statement.
pub(super) fn count(statement: &ast::Statement) -> usize {
    struct Highest(usize);
    impl Visitor for Highest {
        type Break = ();

        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            if let Some(index) = placeholder(expression) {
                self.0 = self.0.max(index + 1);
            }
            ControlFlow::Continue(())
        }
    }
    let mut highest = Highest(0);
    let _ = walk::visit(statement, &mut highest);
    highest.0
}

fn placeholder(expression: &Expr) -> Option<usize> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::Placeholder(text) => parameter_index(text).ok(),
            _ => None,
        },
        Expr::Nested(inner) => placeholder(inner),
        _ => None,
    }
}

/// Infers parameter types from a plan: from expressions whose operands have one type, and from the planner's own
/// inference. The first type found for a parameter stays. Returns whether the plan has set operations, each of which
/// may give types to the next one.
pub(super) fn infer(plan: &LogicalPlan, types: &mut [Option<ColumnType>]) -> bool {
    let mut has_sets = false;
    // Expressions without a type are skipped.
    let _ = plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                // This precedes the planner's inference, which gives the items of an IN list the type of the left
                // operand.
                for group in of_one_type(expr) {
                    let known = group.known(&schema);
                    for member in group.members {
                        found_in_plan(types, member, known);
                    }
                }
                if let logical_expr::Expr::Placeholder(placeholder) = expr {
                    found_by_name(
                        types,
                        &placeholder.id,
                        placeholder.field.as_ref().and_then(|field| known_field(field)),
                    );
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        match node {
            LogicalPlan::Values(values) => {
                for column in 0..values.schema.fields().len() {
                    let column = values.values.iter().filter_map(|row| value_of(row.get(column)?));
                    let group = Group::common(column);
                    let known = group.known(&schema);
                    group.members.into_iter().for_each(|value| found_in_plan(types, value, known));
                }
            }
            LogicalPlan::Union(union) => {
                has_sets = true;
                for column in 0..union.schema.fields().len() {
                    let columns: Vec<_> = union.inputs.iter().map(|input| (input.as_ref(), column)).collect();
                    of_one_column(types, &columns);
                }
            }
            // EXCEPT and INTERSECT.
            LogicalPlan::Join(join) if is_set_operation(join) => {
                has_sets = true;
                for (left, right) in &join.on {
                    let keys = [(&join.left, left), (&join.right, right)];
                    let columns: Vec<_> = keys.into_iter().filter_map(|(plan, key)| place_of(key, plan)).collect();
                    of_one_column(types, &columns);
                }
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    });
    has_sets
}

/// Infers from columns of plans that are combined to one column.
fn of_one_column(types: &mut [Option<ColumnType>], columns: &[(&LogicalPlan, usize)]) {
    let mut known = Vec::with_capacity(columns.len());
    for (plan, column) in columns {
        column_types(plan, *column, &mut known);
    }
    let common = common_type(&known);
    for item in columns.iter().filter_map(|(plan, column)| item_below(plan, *column)) {
        found_in_plan(types, item, common.as_ref().and_then(from_arrow));
    }
}

/// The known types of a plan's column, one per query of a set operation: until it is coerced, a union has the type of
/// its first query.
fn column_types(plan: &LogicalPlan, column: usize, known: &mut Vec<DataType>) {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => column_types(input, column, known),
        LogicalPlan::SubqueryAlias(alias) => column_types(&alias.input, column, known),
        LogicalPlan::Union(union) => {
            for input in &union.inputs {
                column_types(input, column, known);
            }
        }
        LogicalPlan::Join(join) if is_set_operation(join) => {
            column_types(&join.left, column, known);
            column_types(&join.right, column, known);
        }
        plan if is_bare_in(plan, column)
            || matches!(item_of(plan, column), Some(logical_expr::Expr::Placeholder(_))) => {}
        plan => {
            let data_type = plan.schema().field(column).data_type();
            known.extend((!data_type.is_null()).then(|| data_type.clone()));
        }
    }
}

/// The column to which a join key refers.
fn place_of<'p>(key: &logical_expr::Expr, plan: &'p LogicalPlan) -> Option<(&'p LogicalPlan, usize)> {
    let logical_expr::Expr::Column(column) = key else { return None };
    Some((plan, plan.schema().maybe_index_of_column(column)?))
}

/// The item of a plan's column, below nodes that only pass rows on.
fn item_below(plan: &LogicalPlan, column: usize) -> Option<&logical_expr::Expr> {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => item_below(input, column),
        LogicalPlan::SubqueryAlias(alias) => item_below(&alias.input, column),
        plan => item_of(plan, column),
    }
}

fn known_field(field: &Field) -> Option<ColumnType> {
    from_field(field).filter(|_| !field.data_type().is_null())
}

fn found_by_name(types: &mut [Option<ColumnType>], name: &str, data_type: Option<ColumnType>) {
    if let Some(slot @ None) = parameter_index(name).ok().and_then(|index| types.get_mut(index)) {
        *slot = data_type.map(type_of_parameter);
    }
}

fn found_in_plan(types: &mut [Option<ColumnType>], expr: &logical_expr::Expr, data_type: Option<ColumnType>) {
    if let logical_expr::Expr::Placeholder(placeholder) = expr {
        found_by_name(types, &placeholder.id, data_type);
    }
}

/// Operands of an expression that share a type.
struct Group<'e> {
    members: Vec<&'e logical_expr::Expr>,
    of: TypeOf,
}

/// The type of a parameter in a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TypeOf {
    /// That of the operand with which it is compared: the comparison is pairwise.
    Pairs,
    /// The common type.
    All,
    /// The type in which `width_bucket` calculates.
    Buckets,
}

impl<'e> Group<'e> {
    fn pairs(members: impl IntoIterator<Item = &'e logical_expr::Expr>) -> Self {
        Self { members: members.into_iter().collect(), of: TypeOf::Pairs }
    }

    fn common(members: impl IntoIterator<Item = &'e logical_expr::Expr>) -> Self {
        Self { members: members.into_iter().collect(), of: TypeOf::All }
    }

    fn known(&self, schema: &DFSchema) -> Option<ColumnType> {
        let data_type = self.known_in_arrow(schema)?;
        // Texts have the type of the first one; an array of untyped elements has the type TEXT[].
        let mut members = self.members.iter().filter(|member| own_type(member, schema).is_some());
        let is_first_char = members.next().is_some_and(|first| is_char(first, schema) && !is_marked(first));
        if data_type.is_string() && is_first_char {
            return Some(ColumnType::Char(ANY_LENGTH));
        }
        from_arrow(&data_type)
    }

    fn known_in_arrow(&self, schema: &DFSchema) -> Option<DataType> {
        let mut known = self.members.iter().filter_map(|member| own_type(member, schema));
        match self.of {
            TypeOf::Pairs => known.next(),
            TypeOf::All => common_type(&known.collect::<Vec<_>>()),
            TypeOf::Buckets => Some(number_of_buckets(&known.collect::<Vec<_>>())),
        }
    }
}

fn of_one_type(expr: &logical_expr::Expr) -> Vec<Group<'_>> {
    use logical_expr::Expr as E;
    match expr {
        // Other comparisons are inferred by the planner.
        E::BinaryExpr(binary) if is_marked(&binary.left) => vec![Group::pairs([&*binary.left, &*binary.right])],
        E::Between(between) => vec![Group::pairs([&*between.expr, &*between.low, &*between.high])],
        E::InList(list) => vec![Group::common(std::iter::once(list.expr.as_ref()).chain(&list.list))],
        E::ScalarFunction(call) if let Some((compared, results)) = parts_of(call) => {
            let compared = (!compared.is_empty()).then(|| Group::pairs(compared));
            compared.into_iter().chain([Group::common(results)]).collect()
        }
        E::ScalarFunction(call) if matches!(call.name(), "coalesce" | "greatest" | "least") => {
            vec![Group::common(&call.args)]
        }
        E::ScalarFunction(call) if call.name() == "nullif" => vec![Group::pairs(&call.args)],
        E::ScalarFunction(call) if matches!(call.name(), "gcd" | "lcm") => vec![Group::common(&call.args)],
        E::ScalarFunction(call) if call.name() == "width_bucket" => match call.args.as_slice() {
            [numbers @ .., _] => vec![Group { members: numbers.iter().collect(), of: TypeOf::Buckets }],
            [] => Vec::new(),
        },
        E::WindowFunction(call) => match (call.fun.name(), call.params.args.as_slice()) {
            ("lag" | "lead", [value, _, other]) => vec![Group::common([value, other])],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The type of an expression that is neither NULL, an untyped string literal nor a parameter. A parameter of known type
/// is inside a cast.
fn own_type(expr: &logical_expr::Expr, schema: &DFSchema) -> Option<DataType> {
    if matches!(expr, logical_expr::Expr::Placeholder(_)) {
        return None;
    }
    let data_type = expr.get_type(schema).ok()?;
    (!data_type.is_null() && !is_untyped_literal(expr)).then_some(data_type)
}

/// Casts the parameters whose types are known, so that the planner sees the types.
pub(super) fn cast_known(statement: &mut ast::Statement, types: &[Option<ColumnType>]) {
    struct Casts<'a>(&'a [Option<ColumnType>]);
    impl VisitorMut for Casts<'_> {
        type Break = ();

        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
            let Expr::Value(_) = expression else { return ControlFlow::Continue(()) };
            if let Some(data_type) = placeholder(expression).and_then(|index| *self.0.get(index)?) {
                let (expr, data_type) = (Box::new(expression.clone()), to_sql(data_type));
                *expression = Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None };
            }
            ControlFlow::Continue(())
        }
    }
    let _ = walk::change(statement, &mut Casts(types));
}

/// The types of parameters that the client has declared with a text type. The value of any other parameter becomes a
/// literal in the plan: a typed one, or for text an untyped string literal.
pub(super) fn stated_texts(types: &ParameterTypes) -> Vec<Option<ColumnType>> {
    let stated = types.known.iter().zip(&types.stated).map(|(known, is_stated)| known.filter(|_| *is_stated));
    stated.map(|known| known.filter(|known| known.is_text())).collect()
}

/// Infers types from the position of a parameter: `CAST($1 AS t)`, a condition, LIMIT, LIKE, a function of floats.
pub(super) fn infer_by_syntax(statement: &ast::Statement, types: &mut [Option<ColumnType>]) {
    let _ = walk::visit(statement, &mut Finder { types, by_literals: false });
}

/// Gives the type text to parameters that are columns of queries in FROM, if the statement cannot be planned without
/// their types.
pub(super) fn infer_by_columns(statement: &ast::Statement, types: &mut [Option<ColumnType>]) {
    let _ = walk::visit(statement, &mut Columns { types });
}

struct Columns<'a> {
    types: &'a mut [Option<ColumnType>],
}

impl Visitor for Columns<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Derived { subquery, .. } = table
            && let SetExpr::Select(select) = subquery.body.as_ref()
        {
            for item in &select.projection {
                if let SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. } = item
                    && let Some(slot @ None) = placeholder(item).and_then(|i| self.types.get_mut(i))
                {
                    *slot = Some(ColumnType::Text);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// Infers types from the literals beside a parameter.
pub(super) fn infer_by_literals(statement: &ast::Statement, types: &mut [Option<ColumnType>]) {
    let _ = walk::visit(statement, &mut Finder { types, by_literals: true });
}

struct Finder<'a> {
    types: &'a mut [Option<ColumnType>],
    by_literals: bool,
}

impl Finder<'_> {
    fn found(&mut self, expression: &Expr, data_type: ColumnType) {
        if let Some(slot @ None) = placeholder(expression).and_then(|i| self.types.get_mut(i)) {
            *slot = Some(type_of_parameter(data_type));
        }
    }

    /// PostgreSQL combines the elements of an IN list that are not columns to an array, so they share a type with the
    /// left operand.
    fn found_by_list(&mut self, sought: &Expr, list: &[Expr]) {
        let elements: Vec<&Expr> = list.iter().filter(|item| !has_columns(item)).collect();
        if elements.len() < 2 {
            return;
        }
        let is_decimal = |item: &&Expr| literal_type(item) == Some(ANY_NUMERIC);
        if elements.iter().all(|item| self.is_untyped(item)) && self.is_untyped(sought) {
            self.found(sought, ColumnType::Text);
            for item in elements {
                self.found(item, ColumnType::Text);
            }
        } else if elements.iter().any(is_decimal) {
            self.found(sought, ANY_NUMERIC);
            for item in elements {
                self.found(item, ANY_NUMERIC);
            }
        }
    }

    fn is_untyped(&self, expression: &Expr) -> bool {
        let is_bare = |value: &Value| matches!(value, Value::SingleQuotedString(_) | Value::Null);
        match placeholder(expression) {
            Some(i) => self.types.get(i) == Some(&None),
            None => matches!(expression, Expr::Value(value) if is_bare(&value.value)),
        }
    }

    fn found_by_function(&mut self, function: &Function) {
        let FunctionArguments::List(list) = &function.args else { return };
        let Some(name) = built_in_name(function).map(fold) else { return };
        for (place, argument) in list.args.iter().enumerate() {
            if let FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) = argument
                && let Some(data_type) = type_of_argument(&name, list.args.len(), place)
            {
                self.found(argument, data_type);
            }
        }
    }
}

/// Functions of DataFusion for whose untyped argument PostgreSQL chooses double precision, with their number of arguments.
const OF_FLOATS: [(&str, usize); 12] = [
    ("abs", 1),
    ("atan2", 2),
    ("cbrt", 1),
    ("ceiling", 1),
    ("degrees", 1),
    ("exp", 1),
    ("ln", 1),
    ("power", 2),
    ("radians", 1),
    ("round", 1),
    ("sqrt", 1),
    ("trunc", 1),
];

/// The type of an untyped argument of a function with `count` arguments.
fn type_of_argument(name: &str, count: usize, place: usize) -> Option<ColumnType> {
    if let Some(types) = types_of_parameters(name) {
        return types(count, place);
    }
    match (name, place) {
        ("round" | "trunc", 0) if count == 2 => Some(ANY_NUMERIC),
        ("round" | "trunc" | "left" | "right" | "lpad" | "rpad" | "repeat" | "lag" | "lead" | "nth_value", 1)
        | ("substr", 1 | 2)
        | ("regexp_count" | "split_part", 2)
        | ("regexp_instr", 2..=4 | 6)
        | ("chr" | "ntile", 0)
        | ("make_date", _) => Some(ColumnType::Int),
        ("bool_and" | "bool_or" | "every", 0) => Some(ColumnType::Boolean),
        ("encode", 0) => Some(ColumnType::Bytea),
        ("date_trunc", 1) if count == 3 => Some(ColumnType::Timestamptz),
        (at_zone::NAME, 1) => Some(ColumnType::Timestamptz),
        _ => OF_FLOATS.contains(&(name, count)).then_some(ColumnType::Double),
    }
}

/// The type of a NUMERIC parameter; each value has its own precision and scale.
const ANY_NUMERIC: ColumnType = ColumnType::Decimal { precision: 38, scale: 16 };

fn literal_type(expression: &Expr) -> Option<ColumnType> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) if text.contains(['.', 'e', 'E']) => Some(ANY_NUMERIC),
            Value::Number(..) => Some(ColumnType::BigInt),
            Value::Boolean(_) => Some(ColumnType::Boolean),
            _ => None,
        },
        Expr::Cast { data_type, .. } => from_sql(data_type).ok(),
        Expr::TypedString(typed) => from_sql(&typed.data_type).ok(),
        Expr::Nested(inner) | Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr: inner } => {
            literal_type(inner)
        }
        Expr::BinaryOp { left, op, right } if is_arithmetic(op) => match (literal_type(left), literal_type(right)) {
            (Some(ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt) | None, Some(other)) => Some(other),
            (left, _) => left,
        },
        _ => None,
    }
}

fn has_columns(expression: &Expr) -> bool {
    let is_column = |e: &Expr| matches!(e, Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Subquery(_));
    walk::exists_outside_queries(expression, is_column)
}

fn is_arithmetic(op: &BinaryOperator) -> bool {
    use BinaryOperator as O;
    matches!(op, O::Plus | O::Minus | O::Multiply | O::Divide | O::Modulo)
}

impl Visitor for Finder<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause {
            for expression in limit.iter().chain(offset.as_ref().map(|o| &o.value)) {
                self.found(expression, ColumnType::BigInt);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let joins = select.from.iter().flat_map(|from| &from.joins);
        let on = joins.filter_map(|join| match walk::constraint(&join.join_operator) {
            Some(JoinConstraint::On(condition)) => Some(condition),
            _ => None,
        });
        on.chain(&select.selection)
            .chain(&select.having)
            .for_each(|condition| self.found(condition, ColumnType::Boolean));
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        match expression {
            Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
                self.found(left, ColumnType::Boolean);
                self.found(right, ColumnType::Boolean);
            }
            Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right }
                if self.is_untyped(left) && self.is_untyped(right) =>
            {
                self.found(left, ColumnType::Text);
                self.found(right, ColumnType::Text);
            }
            Expr::BinaryOp { left, right, .. } if self.by_literals => {
                if let Some(t) = literal_type(right) {
                    self.found(left, t);
                }
                if let Some(t) = literal_type(left) {
                    self.found(right, t);
                }
            }
            Expr::InList { expr, list, .. } => self.found_by_list(expr, list),
            // PostgreSQL resolves the comparison with the lower bound first.
            Expr::Between { expr, low, .. } if self.is_untyped(expr) && self.is_untyped(low) => {
                self.found(expr, ColumnType::Text);
                self.found(low, ColumnType::Text);
            }
            Expr::Case { operand: None, conditions, .. } => {
                for when in conditions {
                    self.found(&when.condition, ColumnType::Boolean);
                }
            }
            Expr::UnaryOp { op: UnaryOperator::Not, expr }
            | Expr::IsTrue(expr)
            | Expr::IsNotTrue(expr)
            | Expr::IsFalse(expr)
            | Expr::IsNotFalse(expr)
            | Expr::IsUnknown(expr)
            | Expr::IsNotUnknown(expr) => self.found(expr, ColumnType::Boolean),
            Expr::Function(function) => {
                function.filter.iter().for_each(|condition| self.found(condition, ColumnType::Boolean));
                self.found_by_function(function);
            }
            Expr::Ceil { expr, .. } | Expr::Floor { expr, .. } => self.found(expr, ColumnType::Double),
            // SUBSTRING with untyped arguments is another function, which takes patterns.
            Expr::Substring { substring_from, substring_for, shorthand: true, .. } => {
                let counts = substring_from.iter().chain(substring_for);
                counts.for_each(|count| self.found(count, ColumnType::Int));
            }
            Expr::Overlay { overlay_from, overlay_for, .. } => {
                self.found(overlay_from, ColumnType::Int);
                if let Some(count) = overlay_for {
                    self.found(count, ColumnType::Int);
                }
            }
            Expr::Cast { expr, data_type, .. } => {
                if let Ok(data_type) = from_sql(data_type) {
                    self.found(expr, data_type);
                }
            }
            Expr::Like { expr, pattern, .. } | Expr::ILike { expr, pattern, .. } => {
                self.found(expr, ColumnType::Text);
                self.found(pattern, ColumnType::Text);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The planner's name of a type.
pub(crate) fn to_sql(data_type: ColumnType) -> ast::DataType {
    use ast::DataType as T;
    match data_type {
        ColumnType::Boolean => T::Boolean,
        ColumnType::SmallInt => T::SmallInt(None),
        ColumnType::Int => T::Int(None),
        ColumnType::BigInt => T::BigInt(None),
        ColumnType::Real => T::Real,
        ColumnType::Double => T::DoublePrecision,
        ColumnType::Decimal { precision, scale } => {
            T::Numeric(ExactNumberInfo::PrecisionAndScale(u64::from(precision), i64::from(scale)))
        }
        ColumnType::Char(_) => T::Custom(vec![ast::Ident::new("bpchar")].into(), Vec::new()),
        ColumnType::Varchar(_) => {
            T::Varchar(Some(CharacterLength::IntegerLength { length: u64::from(ANY_LENGTH), unit: None }))
        }
        ColumnType::Text => T::Text,
        ColumnType::Bytea => T::Bytea,
        ColumnType::Date => T::Date,
        ColumnType::Timestamp => T::Timestamp(Some(6), TimezoneInfo::None),
        ColumnType::Timestamptz => T::Timestamp(Some(6), TimezoneInfo::WithTimeZone),
    }
}

/// Replaces parameters by values.
pub(super) fn bind_values(plan: LogicalPlan, values: Vec<ScalarValue>) -> Result<LogicalPlan, SqlError> {
    let values = ParamValues::from(values);
    plan.replace_params_with_values(&values).map_err(|e| error::from_datafusion(&e))
}
