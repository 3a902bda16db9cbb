//! The conditions of CHECK constraints: what they may have, and the names of those without one.

use std::cell::RefCell;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, BinaryOperator, CheckConstraint, DataType, Expr, Function, Ident, Value, ValueWithSpan,
    VisitorMut,
};

use super::super::catalog::{Tables, columns_of};
use super::super::parse::{parse_expr, to_text};
use super::super::scalar::{BindError, Binder, ColumnRef, Scalar, built_in_name, fold};
use super::super::{ColumnType, error, walk};
use crate::value::{Zone, format_datum, parse_datum};
use crate::{SqlError, SqlState};

/// A CHECK constraint as a statement has it.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    pub(super) name: Option<Ident>,
    pub(super) expression: Expr,
}

impl Stated {
    /// `name`: before the constraint of a column.
    pub(super) fn new(name: Option<&Ident>, check: &CheckConstraint) -> Result<Self, SqlError> {
        if check.enforced.is_some() {
            return Err(SqlError::syntax("syntax error at or near \"ENFORCED\""));
        }
        Ok(Self { name: name.or(check.name.as_ref()).cloned(), expression: check.expr.as_ref().clone() })
    }
}

/// A condition that can be stored: each load of its table binds the text again, in no session's time zone.
pub(super) struct Condition {
    pub(super) text: String,
    /// The columns that it reads, ascending.
    columns: Vec<usize>,
}

impl Condition {
    /// Over the `columns` of its table, stated in a session of time zone `zone`. Literals of that zone are written with their offset.
    ///
    /// # Errors
    /// PostgreSQL's for what no CHECK may have; 0A000, with the part that is not supported.
    pub(super) fn new(expression: &Expr, columns: &[ColumnRef], zone: Zone) -> Result<Self, SqlError> {
        check_parts(expression)?;
        let mut plain = expression.clone();
        let _ = walk::change(&mut plain, &mut Lists);
        let bound = bind(&plain, columns, zone)?;
        let text = to_text(&plain);
        if text.len() > TEXT_BYTES_MAX {
            let bytes = text.len();
            let message = format!("a condition of {bytes} bytes in a CHECK constraint: the limit is {TEXT_BYTES_MAX}");
            return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
        }
        let meant = format!("{bound:?}");
        let is_meant_in = |text: &str, zone: Zone| {
            let again = parse_expr(text).ok().and_then(|read| bind(&read, columns, zone).ok());
            again.is_some_and(|again| format!("{again:?}") == meant)
        };
        let is_meant = |text: &str| {
            let changing = Zone::named("America/New_York").unwrap_or(Zone::UTC);
            is_meant_in(text, Zone::UTC) && is_meant_in(text, changing)
        };
        if is_meant(&text) {
            return Ok(Self { text, columns: columns_of(&bound) });
        }
        let text = to_text(&with_instants(plain, zone, |changed| is_meant_in(&to_text(changed), zone)));
        if is_meant(&text) {
            return Ok(Self { text, columns: columns_of(&bound) });
        }
        if is_meant_in(&text, zone) {
            let error = SqlError::unsupported("a constant in the session's time zone in a CHECK constraint");
            return Err(error.with_hint("Write its offset from UTC."));
        }
        Err(refused(&text))
    }

    /// The name of its only column.
    fn only_column<'c>(&self, columns: &'c [ColumnRef]) -> Option<&'c str> {
        match self.columns.as_slice() {
            [column] => columns.get(*column).map(|column| column.name.as_str()),
            _ => None,
        }
    }

    /// The name of a check on `table`: the given one, or the first of PostgreSQL's that is free.
    pub(super) fn name(
        &self,
        given: Option<&Ident>,
        table: &str,
        columns: &[ColumnRef],
        is_taken: impl Fn(&str) -> bool,
    ) -> String {
        if let Some(given) = given {
            return fold(given);
        }
        let column = self.only_column(columns);
        let mut label = "check".to_owned();
        for number in 1_u32.. {
            let name = object_name(table, column, &label);
            if !is_taken(&name) {
                return name;
            }
            label = format!("check{number}");
        }
        unreachable!("some number is free")
    }
}

/// Whether some constraint of the database has this name.
pub(super) fn is_constraint(tables: &Tables, name: &str) -> bool {
    tables.iter().any(|table| {
        table.checks.iter().any(|check| check.name == name)
            || table.indexes.iter().any(|index| index.unique && index.name == name)
            || (!table.hidden_row_number && table.primary_key_name == name)
    })
}

/// The length of PostgreSQL's names, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// `table_column_label`. The longer of the first two is cut until the whole is no longer than a name of PostgreSQL's.
fn object_name(table: &str, column: Option<&str>, label: &str) -> String {
    let mut parts = [table, column.unwrap_or_default()];
    let signs = 1 + usize::from(column.is_some());
    let room = NAME_BYTES_MAX.saturating_sub(label.len() + signs);
    while parts[0].len() + parts[1].len() > room {
        let longer = &mut parts[usize::from(parts[0].len() <= parts[1].len())];
        let Some((last, _)) = longer.char_indices().next_back() else { break };
        *longer = &longer[..last];
    }
    match column {
        Some(_) => format!("{}_{}_{label}", parts[0], parts[1]),
        None => format!("{}_{label}", parts[0]),
    }
}

/// Literals that may be replaced one by one.
const INSTANTS_MAX: usize = 64;
/// The length of a condition: all of a table have room in its record.
const TEXT_BYTES_MAX: usize = 32 << 10;

/// With the offset from UTC in each literal that is a timestamp in `zone`, where `is_same` holds of the condition with it.
fn with_instants(expression: Expr, zone: Zone, is_same: impl Fn(&Expr) -> bool) -> Expr {
    let replaced = |of: &Expr, wanted: &dyn Fn(usize) -> bool| {
        let mut changed = of.clone();
        let mut instants = Instants { zone, wanted, count: 0 };
        let _ = walk::change(&mut changed, &mut instants);
        (changed, instants.count)
    };
    let (all, count) = replaced(&expression, &|_| true);
    if is_same(&all) {
        return all;
    }
    // Some of them are texts.
    let mut kept = expression;
    for number in (0..count.min(INSTANTS_MAX)).rev() {
        let (one, _) = replaced(&kept, &|at| at == number);
        if is_same(&one) {
            kept = one;
        }
    }
    kept
}

/// Replaces literals that are timestamps without an offset, in a zone, by the same instant in UTC.
struct Instants<'a> {
    zone: Zone,
    /// Which of them, in the order of the condition.
    wanted: &'a dyn Fn(usize) -> bool,
    count: usize,
}

impl VisitorMut for Instants<'_> {
    type Break = ();

    fn post_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
        let Value::SingleQuotedString(text) = &mut value.value else { return ControlFlow::Continue(()) };
        let instant = |zone| parse_datum(text, ColumnType::Timestamptz, zone).ok();
        // With an offset or a zone it is the same instant in every session.
        let has_none = instant(Zone::UTC) != instant(Zone::ahead(1));
        let Some(meant) = instant(self.zone).filter(|_| has_none) else {
            return ControlFlow::Continue(());
        };
        if (self.wanted)(self.count)
            && let Some(in_utc) = format_datum(&meant, Zone::UTC)
        {
            *text = in_utc;
        }
        self.count += 1;
        ControlFlow::Continue(())
    }
}

fn bind(expression: &Expr, columns: &[ColumnRef], zone: Zone) -> Result<Scalar, SqlError> {
    let mut parameters = Vec::new();
    let mut binder = Binder { columns, parameters: &mut parameters, zone, is_kept: true };
    let scalar = match binder.bind_check(expression) {
        Ok(scalar) => scalar,
        Err(BindError::Wrong(error)) => return Err(error),
        Err(BindError::Complex) => return Err(refused(&smallest_part(expression, columns, zone))),
    };
    if !parameters.is_empty() {
        let message = format!("there is no parameter ${}", parameters.len());
        return Err(SqlError::new(SqlState::UNDEFINED_PARAMETER, message));
    }
    // Each of them waits for a number, and a check is evaluated at once.
    if scalar.calls_sequences() {
        return Err(refused("a function of sequences"));
    }
    Ok(scalar)
}

fn refused(part: &str) -> SqlError {
    SqlError::unsupported(format!("{part} in a CHECK constraint")).with_hint(
        "A condition may have columns, constants, comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS, CASE, arithmetic, casts, ||, AT \
         TIME ZONE, and the functions abs, coalesce, greatest, least, length, lower, now, nullif and upper.",
    )
}

/// The length of a condition in which the part that cannot be bound is looked for: each part is bound.
const SEARCHED_BYTES_MAX: usize = 4 << 10;

/// The shortest part of a condition that cannot be bound, as text.
fn smallest_part(expression: &Expr, columns: &[ColumnRef], zone: Zone) -> String {
    let whole = to_text(expression);
    if whole.len() > SEARCHED_BYTES_MAX {
        return "a part of this condition".to_owned();
    }
    let smallest = RefCell::new(whole);
    walk::exists_outside_queries(expression, |part| {
        let mut parameters = Vec::new();
        let mut binder = Binder { columns, parameters: &mut parameters, zone, is_kept: true };
        if matches!(binder.bind(part), Err(BindError::Complex)) {
            let text = to_text(part);
            let mut smallest = smallest.borrow_mut();
            if text.len() < smallest.len() {
                *smallest = text;
            }
        }
        false
    });
    smallest.into_inner()
}

/// Refuses what no CHECK constraint may have.
fn check_parts(expression: &Expr) -> Result<(), SqlError> {
    let unsupported = |message: &str| Err(SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message));
    if walk::has_query(expression) {
        return unsupported("cannot use subquery in check constraint");
    }
    let calls = |is_one: &dyn Fn(&Function) -> bool| {
        walk::exists_outside_queries(expression, |part| matches!(part, Expr::Function(function) if is_one(function)))
    };
    if calls(&|function| function.over.is_some()) {
        return Err(error::windowing("window functions are not allowed in check constraints"));
    }
    let is_aggregate = |function: &Function| {
        function.filter.is_some() || !function.within_group.is_empty() || is_named(function, AGGREGATES)
    };
    if calls(&is_aggregate) {
        let message = "aggregate functions are not allowed in check constraints";
        return Err(SqlError::new(SqlState::GROUPING_ERROR, message));
    }
    if calls(&|function| is_named(function, SETS)) {
        return unsupported("set-returning functions are not allowed in check constraints");
    }
    Ok(())
}

fn is_named(function: &Function, names: &[&str]) -> bool {
    built_in_name(function).is_some_and(|name| names.contains(&fold(name).as_str()))
}

/// PostgreSQL's aggregates.
const AGGREGATES: &[&str] = &[
    "any_value",
    "array_agg",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar_pop",
    "covar_samp",
    "every",
    "json_agg",
    "json_object_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "max",
    "min",
    "mode",
    "percentile_cont",
    "percentile_disc",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
    "xmlagg",
];

/// Functions that return sets of rows.
const SETS: &[&str] = &["generate_series", "generate_subscripts", "regexp_matches", "regexp_split_to_table", "unnest"];

/// Writes `x = ANY (ARRAY[a, b])` as `x IN (a, b)`, and `x <> ALL (ARRAY[a, b])` as `x NOT IN (a, b)`: PostgreSQL shows IN in the
/// definitions of its checks in these forms, and so do dumps.
struct Lists;

impl VisitorMut for Lists {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        let (subject, array, negated) = match &*expression {
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (left, right, false),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (left, right, true),
            _ => return ControlFlow::Continue(()),
        };
        if let Some(list) = elements(array) {
            *expression = Expr::InList { expr: subject.clone(), list, negated };
        }
        ControlFlow::Continue(())
    }
}

/// The elements of an array that is written out, if it has any. A cast of the array becomes one of each element.
fn elements(array: &Expr) -> Option<Vec<Expr>> {
    match array {
        Expr::Nested(inner) => elements(inner),
        Expr::Array(array) if !array.elem.is_empty() => Some(array.elem.clone()),
        Expr::Cast { kind, expr, data_type: DataType::Array(ArrayElemTypeDef::SquareBracket(of, _)), .. } => {
            let cast = |element| Expr::Cast {
                kind: kind.clone(),
                expr: Box::new(element),
                data_type: of.as_ref().clone(),
                array: false,
                format: None,
            };
            elements(expr).map(|list| list.into_iter().map(cast).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 15 makes them.
    #[test]
    fn names_of_checks() {
        assert_eq!(object_name("t", Some("a"), "check"), "t_a_check");
        assert_eq!(object_name("t", None, "check1"), "t_check1");
        let (long, short) = ("x".repeat(60), "y".repeat(30));
        assert_eq!(object_name(&long, Some(&short), "check"), format!("{}_{}_check", &long[..28], &short[..28]));
        assert_eq!(object_name(&long, Some("y"), "check"), format!("{}_y_check", &long[..55]));
        assert_eq!(object_name(&long, None, "check"), format!("{}_check", &long[..57]));
    }

    #[test]
    fn conditions_name_the_part_that_is_not_supported() {
        let columns = [ColumnRef { qualifier: "t".into(), name: "a".into(), data_type: ColumnType::Text }];
        let new = |text: &str| {
            Condition::new(&parse_expr(text).unwrap(), &columns, Zone::UTC).map(|condition| condition.text)
        };
        let error = |text: &str| new(text).unwrap_err();
        assert_eq!(new("a = ANY (ARRAY['x', 'y'])").unwrap(), "a IN ('x', 'y')");
        assert_eq!(new("a <> ALL (ARRAY['x'::varchar]::text[])").unwrap(), "a NOT IN ('x'::VARCHAR::TEXT)");
        assert_eq!(new("a <> 'it''s'").unwrap(), "a <> 'it''s'");
        let unsupported = error("a > 'x' AND (a || repeat(a, 2) > 'y' OR a IS NULL)");
        assert_eq!(unsupported.message, "repeat(a, 2) in a CHECK constraint is not supported");
        for (text, code) in [
            ("(SELECT 1) > 0", "0A000"),
            ("a IN (SELECT 'x')", "0A000"),
            ("count(a) > 1", "42803"),
            ("max(a) OVER () > ''", "42P20"),
            ("nextval('s') > 1", "0A000"),
            ("b > 1", "42703"),
            ("u.a > ''", "42P01"),
            ("a", "42804"),
            ("a > $1", "42P02"),
        ] {
            assert_eq!(error(text).state.code(), code, "{text}");
        }
    }

    #[test]
    fn nested_conditions_are_stored() {
        let column = |name: &str, data_type| ColumnRef { qualifier: "t".into(), name: name.into(), data_type };
        let columns = [column("a", ColumnType::Int)];
        let new = |text: &str| Condition::new(&parse_expr(text).unwrap(), &columns, Zone::UTC).map(|new| new.text);
        for text in [
            format!("{}a > 0", "NOT ".repeat(60)),
            format!("{}a > 0{}", "NOT (".repeat(50), ")".repeat(50)),
            format!("{}a > 0{}", "(".repeat(60), ")".repeat(60)),
            format!("{}a > 0{}", "(a = 1 AND (a = 2 OR ".repeat(25), "))".repeat(25)),
            format!("{}a{} > 0", "(1 + ".repeat(40), ")".repeat(40)),
        ] {
            assert_eq!(new(&text).as_ref(), Ok(&text));
        }
        let long = format!("a IN ({})", vec!["1"; TEXT_BYTES_MAX].join(", "));
        assert_eq!(new(&long).unwrap_err().state.code(), "54000");
        let unknown = format!(
            "{} OR lpad('a', a) = ''",
            vec!["a IN (1000000000, 1000000001, 1000000002, 1000000003)"; 90].join(" OR ")
        );
        assert_eq!(
            new(&unknown).unwrap_err().message,
            "a part of this condition in a CHECK constraint is not supported"
        );
    }

    #[test]
    fn literals_of_the_sessions_time_zone_are_stored_with_their_offset() {
        let column = |name: &str, data_type| ColumnRef { qualifier: "t".into(), name: name.into(), data_type };
        let columns = [
            column("at", ColumnType::Timestamptz),
            column("local", ColumnType::Timestamp),
            column("name", ColumnType::Text),
        ];
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let in_zone = |text: &str, zone: Zone| {
            Condition::new(&parse_expr(text).unwrap(), &columns, zone).map(|condition| condition.text)
        };
        assert_eq!(in_zone("at > '2020-01-01'", Zone::UTC).unwrap(), "at > '2020-01-01 00:00:00+00'");
        assert_eq!(in_zone("at > '-infinity'", Zone::UTC).unwrap(), "at > '-infinity'");
        // Converted when a row is written, in the zone of its session.
        for zone in [Zone::UTC, Zone::ahead(7_200), berlin] {
            assert_eq!(in_zone("local <= now()", zone).unwrap(), "local <= now()");
        }
        let new = |text: &str| in_zone(text, berlin);
        assert_eq!(new("at > '2020-01-01'").unwrap(), "at > '2019-12-31 23:00:00+00'");
        assert_eq!(new("at > '2020-07-01 00:00+00'").unwrap(), "at > '2020-07-01 00:00+00'");
        assert_eq!(new("local > '2020-01-01'").unwrap(), "local > '2020-01-01'");
        let both =
            "name <> '2020-01-01' AND at > '2020-07-01' AND local < '2021-01-01' AND at < TIMESTAMPTZ '2021-01-01'";
        assert_eq!(
            new(both).unwrap(),
            "name <> '2020-01-01' AND at > '2020-06-30 22:00:00+00' AND local < '2021-01-01' AND at < TIMESTAMPTZ '2020-12-31 23:00:00+00'"
        );
        assert_eq!(new("local > TIMESTAMP '2020-01-01'::timestamptz").unwrap_err().state.code(), "0A000");
    }
}
