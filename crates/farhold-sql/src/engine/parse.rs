//! From text to statements.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::ops::ControlFlow;

use crate::engine::dialect::Dialect;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, FromTable, Function, FunctionArguments, Ident, JoinConstraint, ObjectName, ObjectNamePart,
    OrderByExpr, OrderByKind, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Statement,
    TableAlias, TableFactor, TableWithJoins, UpdateTableFromKind, Value, ValueWithSpan, VisitMut, Visitor, VisitorMut,
    WindowType,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::scalar::fold;
use super::{error, walk};
use crate::{SqlError, SqlState};

/// How the names of functions begin that stand for operators, which results have no name of.
pub(super) const OPERATOR_PREFIX: &str = "farhold_operator_";

/// How deeply expressions may nest.
const DEPTH_MAX: usize = 200;

/// The statements of a simple-query string, each as it stands in the text, without its semicolon. Blank ones are left out.
pub(crate) fn split(sql: &str) -> Result<Vec<String>, SqlError> {
    let bytes = sql.as_bytes();
    let mut statements = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut blank = true;
    let mut push = |from: usize, to: usize, blank: bool| {
        if !blank {
            statements.push(sql[from..to].trim().to_owned());
        }
    };
    while at < bytes.len() {
        if bytes[at] == b';' {
            push(start, at, blank);
            blank = true;
            start = at + 1;
            at += 1;
            continue;
        }
        let end = match opaque_end(sql, at)? {
            Some((end, Opaque::Comment)) => {
                at = end;
                continue;
            }
            Some((end, Opaque::Quoted)) => end,
            None => at + 1,
        };
        blank &= bytes[at..end].iter().all(u8::is_ascii_whitespace);
        at = end;
    }
    push(start, bytes.len(), blank);
    Ok(statements)
}

/// A part of a text whose characters mean nothing by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// A string or a quoted identifier.
    Quoted,
    /// A comment.
    Comment,
}

/// Behind the string, quoted identifier or comment that begins at the byte `at`; `None` when none does.
pub(crate) fn opaque_end(sql: &str, at: usize) -> Result<Option<(usize, Opaque)>, SqlError> {
    let bytes = sql.as_bytes();
    let quoted = |end: Option<usize>, what: &str| match end {
        Some(end) => Ok(Some((end, Opaque::Quoted))),
        None => Err(SqlError::syntax(format!("unterminated quoted {what}"))),
    };
    match bytes[at] {
        b'-' if bytes.get(at + 1) == Some(&b'-') => {
            Ok(Some((sql[at..].find('\n').map_or(bytes.len(), |n| at + n), Opaque::Comment)))
        }
        b'/' if bytes.get(at + 1) == Some(&b'*') => {
            let end = comment_end(bytes, at).ok_or_else(|| SqlError::syntax("unterminated /* comment"))?;
            Ok(Some((end, Opaque::Comment)))
        }
        b'\'' => {
            let escapes = at > 0 && matches!(bytes[at - 1], b'e' | b'E');
            quoted(string_end(bytes, at, escapes), "string")
        }
        b'"' => quoted(string_end(bytes, at, false), "identifier"),
        b'$' => Ok(dollar_end(sql, at)?.map(|end| (end, Opaque::Quoted))),
        _ => Ok(None),
    }
}

/// Behind a quoted thing: a doubled quote goes on, and a backslash takes the next byte if `escapes`.
fn string_end(bytes: &[u8], start: usize, escapes: bool) -> Option<usize> {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        if bytes[at] == b'\\' && escapes {
            at += 2;
        } else if bytes[at] == quote {
            if bytes.get(at + 1) != Some(&quote) {
                return Some(at + 1);
            }
            at += 2;
        } else {
            at += 1;
        }
    }
    None
}

/// Behind a block comment; they nest.
fn comment_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, start);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
    None
}

/// Behind a dollar-quoted string; `None` when it is none (a parameter).
fn dollar_end(sql: &str, start: usize) -> Result<Option<usize>, SqlError> {
    let rest = &sql[start + 1..];
    let Some(len) = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')) else { return Ok(None) };
    if !rest[len..].starts_with('$') || rest.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let tag = &sql[start..start + len + 2];
    let body = start + tag.len();
    match sql[body..].find(tag) {
        Some(n) => Ok(Some(body + n + tag.len())),
        None => Err(SqlError::syntax("unterminated dollar-quoted string")),
    }
}

/// The most operators of an expression: what a tree is built of before its levels can be counted.
const OPERATORS_MAX: usize = 10_000;
/// Texts up to here have no more operators, and no more CASE than the parser goes into; nor more levels, if they have few brackets.
const SHORT_BYTES: usize = 4_000;
/// The most levels of an expression, a chain of operators having one for each of them. PostgreSQL's limit depends on `max_stack_depth` and lies
/// at some thousand.
const LEVELS_MAX: usize = 2_000;
/// The most brackets that may be open at a time: more than the parser's own limit, which it keeps everywhere but in types.
const BRACKETS_MAX: usize = 250;

/// The most CASE within each other: where the parser goes no deeper, it takes the word for a column's name.
const CASES_MAX: usize = DEPTH_MAX - 10;

/// The most UNION, INTERSECT and EXCEPT of a statement. Each is a level of the plan, of which 2,000 took more stack than a thread has, and time
/// grows with the square: 500 were planned in 2 s, 1,000 in 7 s, without optimisation.
pub(crate) const SET_OPERATIONS_MAX: usize = 500;

/// Refuses expressions so deep that walking them takes more stack than a thread has: `1 + 1 + 1 + …` for pages. The parser
/// limits parentheses, but not chains of operators, each of which is one level of the tree, and not types within types.
fn check_depth(sql: &str) -> Result<(), SqlError> {
    let few_brackets = || sql.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'<')).count() <= BRACKETS_MAX;
    if sql.len() <= SHORT_BYTES && few_brackets() {
        return Ok(());
    }
    let tokens = Tokenizer::new(&Dialect, sql).tokenize().map_err(|e| SqlError::syntax(e.to_string()))?;
    // Operators since the last comma: of the innermost brackets, of each pair around them, and of all.
    let (mut depth, mut around, mut all) = (0_usize, Vec::new(), 0_usize);
    let mut set_operations = 0;
    let mut cases = 0_usize;
    // `ARRAY<`, which PostgreSQL does not have.
    let mut angles = 0_usize;
    // Whether nothing but a number stands behind the last `[`: `int[][3]` is an array of arrays.
    let mut bare = false;
    let mut last_is_array = false;
    for token in &tokens {
        let mut operators = 0;
        let was_bare = bare;
        bare &= matches!(token, Token::Whitespace(_) | Token::Number(..));
        match token {
            Token::LParen | Token::LBracket => {
                around.push(std::mem::take(&mut depth));
                bare = *token == Token::LBracket;
            }
            Token::RParen | Token::RBracket => {
                if let Some(outer) = around.pop() {
                    all -= std::mem::replace(&mut depth, outer);
                }
                operators = usize::from(was_bare && *token == Token::RBracket);
            }
            Token::Comma | Token::SemiColon => all -= std::mem::take(&mut depth),
            Token::Word(word) => {
                operators = usize::from(goes_on(word.keyword));
                set_operations += usize::from(links_queries(word.keyword));
                cases += usize::from(word.keyword == Keyword::CASE);
                cases = cases.saturating_sub(usize::from(word.keyword == Keyword::END));
            }
            Token::Whitespace(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Placeholder(_)
            | Token::Period => {}
            Token::Lt => {
                angles += usize::from(last_is_array);
                operators = 1;
            }
            _ => operators = 1,
        }
        depth += operators;
        all += operators;
        if set_operations > SET_OPERATIONS_MAX {
            let message = format!("a statement has at most {SET_OPERATIONS_MAX} UNION, INTERSECT and EXCEPT");
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message);
            return Err(error.with_hint("Rows of constants are a VALUES list."));
        }
        if around.len() > BRACKETS_MAX || angles > BRACKETS_MAX || cases > CASES_MAX {
            return Err(error::too_deep());
        }
        if all > OPERATORS_MAX {
            return Err(error::too_deep().with_hint(format!("An expression has at most {OPERATORS_MAX} operators.")));
        }
        if !matches!(token, Token::Whitespace(_)) {
            last_is_array = matches!(token, Token::Word(word) if word.keyword == Keyword::ARRAY);
        }
    }
    Ok(())
}

/// Whether what stands before such a word may become a part of what the word begins. BETWEEN counts with its AND.
fn goes_on(word: Keyword) -> bool {
    matches!(
        word,
        Keyword::AND
            | Keyword::OR
            | Keyword::XOR
            | Keyword::NOT
            | Keyword::IS
            | Keyword::NOTNULL
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::SIMILAR
            | Keyword::RLIKE
            | Keyword::REGEXP
            | Keyword::MATCH
            | Keyword::MEMBER
            | Keyword::OVERLAPS
            | Keyword::OPERATOR
            | Keyword::DIV
            | Keyword::AT
            | Keyword::COLLATE
            | Keyword::CASE
            | Keyword::JOIN
            | Keyword::PIVOT
            | Keyword::UNPIVOT
    ) || links_queries(word)
}

/// Whether such a word stands between two queries. All of them are reserved, but MINUS, which PostgreSQL does not have.
fn links_queries(word: Keyword) -> bool {
    matches!(word, Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::MINUS)
}

/// The one statement of a text.
pub(crate) fn parse_one(sql: &str) -> Result<Statement, SqlError> {
    check_depth(sql)?;
    let trimmed = sql.trim().trim_end_matches(';').trim_end();
    let lower = first_words(trimmed);
    let text = match lower.as_str() {
        // Words that the parser does not know.
        word if word == "abort" || word.starts_with("abort ") => format!("ROLLBACK{}", &trimmed["abort".len()..]),
        // There is nothing to vacuum, whatever the options and tables.
        word if word.split([' ', '(']).next() == Some("vacuum") => "VACUUM".to_owned(),
        // The parser reads COPY's data behind a semicolon.
        word if word.starts_with("copy ") => format!("{};", super::copy::plain_booleans(trimmed)),
        _ => super::sequence::in_order(trimmed).into_owned(),
    };
    let mut statements = Parser::new(&Dialect)
        .with_recursion_limit(DEPTH_MAX)
        .try_with_sql(&text)
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|e| if excludes_rows(&text) { SqlError::unsupported("EXCLUDE") } else { error::from_parser(&e) })?;
    match (statements.pop(), statements.is_empty()) {
        (Some(mut statement), true) => {
            check(&statement)?;
            let _ = walk::change(&mut statement, &mut Positions);
            Ok(statement)
        }
        (None, _) => Err(SqlError::syntax("there is no statement")),
        _ => Err(SqlError::syntax("cannot insert multiple commands into a prepared statement")),
    }
}

/// Whether a text has the EXCLUDE of a frame, which the parser does not know.
fn excludes_rows(sql: &str) -> bool {
    let Ok(tokens) = Tokenizer::new(&Dialect, sql).tokenize() else { return false };
    let words = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).map(|token| match token {
        Token::Word(word) if word.quote_style.is_none() => word.value.to_ascii_lowercase(),
        _ => String::new(),
    });
    let words: Vec<String> = words.collect();
    words.windows(2).any(|pair| pair[0] == "exclude" && ["current", "group", "ties", "no"].contains(&pair[1].as_str()))
}

/// Takes the parentheses from the numbers of ORDER BY: PostgreSQL's grammar drops them, and `ORDER BY (1)` is by the
/// first item.
struct Positions;

impl VisitorMut for Positions {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Some(order) = &mut query.order_by
            && let OrderByKind::Expressions(by) = &mut order.kind
        {
            for OrderByExpr { expr, .. } in by {
                let number = match &*expr {
                    Expr::Nested(inner) => number(inner).cloned(),
                    _ => None,
                };
                if let Some(number) = number {
                    *expr = number;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// The number that an expression is but for parentheses.
fn number(expression: &Expr) -> Option<&Expr> {
    match expression {
        Expr::Nested(inner) => number(inner),
        Expr::Value(value) if matches!(value.value, Value::Number(..)) => Some(expression),
        _ => None,
    }
}

/// The one expression of a text.
pub(crate) fn parse_expr(text: &str) -> Result<Expr, SqlError> {
    let parsed = Parser::new(&Dialect).try_with_sql(text).and_then(|mut parser| parser.parse_expr());
    parsed.map_err(|e| error::from_parser(&e))
}

/// A text that reads as a statement or an expression does. The parser's own takes `''` and `\'` in a string, and `""`
/// and `\"` in a name, for what is escaped already, and puts two signs together, which begins a comment.
pub(crate) fn to_text<T: VisitMut + Clone + Display>(tree: &T) -> String {
    let mut tree = tree.clone();
    let _ = walk::change(&mut tree, &mut Plain);
    tree.to_string()
}

/// Doubles the quotes in strings and names. Visitors have no step for a name, so the places of names are listed.
struct Plain;

impl Plain {
    fn name(name: &mut Ident) {
        if name.quote_style == Some('"') && name.value.contains('"') {
            name.value = name.value.replace('"', "\"\"");
        }
    }

    fn path(path: &mut ObjectName) {
        for part in &mut path.0 {
            if let ObjectNamePart::Identifier(name) = part {
                Self::name(name);
            }
        }
    }

    fn alias(alias: Option<&mut TableAlias>) {
        let Some(alias) = alias else { return };
        Self::name(&mut alias.name);
        alias.columns.iter_mut().for_each(|column| Self::name(&mut column.name));
    }

    /// The columns of USING.
    fn joins(from: &mut TableWithJoins) {
        for join in &mut from.joins {
            if let Some(JoinConstraint::Using(columns)) = walk::constraint_mut(&mut join.join_operator) {
                columns.iter_mut().for_each(Self::path);
            }
        }
    }
}

impl VisitorMut for Plain {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        for cte in query.with.iter_mut().flat_map(|with| &mut with.cte_tables) {
            Self::alias(Some(&mut cte.alias));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            match item {
                SelectItem::ExprWithAlias { alias, .. } => Self::name(alias),
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(path), _) => Self::path(path),
                _ => {}
            }
        }
        select.from.iter_mut().for_each(Self::joins);
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        Self::path(relation);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias } => {
                Self::joins(table_with_joins);
                Self::alias(alias.as_mut());
            }
            TableFactor::Function { name, alias, .. } => {
                Self::path(name);
                Self::alias(alias.as_mut());
            }
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::UNNEST { alias, .. } => Self::alias(alias.as_mut()),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
        if let Value::SingleQuotedString(text) | Value::NationalStringLiteral(text) = &mut value.value {
            *text = text.replace('\'', "''");
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        match expression {
            Expr::Identifier(name) => Self::name(name),
            Expr::CompoundIdentifier(names) => names.iter_mut().for_each(Self::name),
            Expr::Function(function) => Self::path(&mut function.name),
            Expr::UnaryOp { expr: inner, .. } if matches!(**inner, Expr::UnaryOp { .. }) => {
                let signed = std::mem::replace(inner.as_mut(), Expr::value(Value::Null));
                **inner = Expr::Nested(Box::new(signed));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The beginning in lower case.
fn first_words(sql: &str) -> String {
    sql.chars().take(24).collect::<String>().to_ascii_lowercase()
}

/// How deeply subqueries may stand in each other's expressions. DataFusion checks what is in a subquery once for each one around
/// it, and within that again: 2^n looks, three times a plan. Twenty levels took 19 s, twelve take 0.1 s.
const SUBQUERY_DEPTH_MAX: u32 = 12;

/// PostgreSQL's most dimensions. DataFusion's types nest as the arrays do, and 72 levels take more stack than a thread has.
const DIMENSIONS_MAX: u32 = 6;

/// The most that is bound of expressions beside what is written: `a BETWEEN b AND c` is `a >= b AND a <= c`, with two `a`.
const COPIES_MAX: u64 = 250_000;

/// PostgreSQL's limit. The protocol counts columns in two bytes.
const COLUMNS_MAX: usize = 1664;

/// Refuses more columns than a query may have.
pub(crate) fn check_count(count: usize) -> Result<(), SqlError> {
    if count > COLUMNS_MAX {
        let message = format!("target lists can have at most {COLUMNS_MAX} entries");
        return Err(SqlError::new(SqlState::TOO_MANY_COLUMNS, message));
    }
    Ok(())
}

/// The most subqueries in the expressions of one SELECT. Each is a join of its plan: in a debug build 100 took 6 s to plan, 200 more than a minute.
pub(crate) const SUBQUERIES_MAX: usize = 100;

/// The most windows that differ from each other in one SELECT. Each is an operator above the others: in a debug build 200 took 3 s to plan,
/// 300 took 23 s.
const WINDOWS_MAX: usize = 200;

/// The most queries of WITH in a statement: a chain of them is one of operators.
const WITH_MAX: usize = 500;

/// The most relations of a statement where each query of WITH stands wherever it is named, as it does in a plan: when each names the one before
/// twice, their count doubles. In a debug build 2,000 took 7 s to plan.
const WRITTEN_OUT_MAX: u64 = 4_000;

/// The most relations of a FROM clause. A plan has a level for each, and each level the columns of all below: in a
/// debug build on a busy machine 100 relations took 5 s to plan, 200 took 82 s, and thousands are more than a thread's
/// stack has room for.
const RELATIONS_MAX: usize = 200;

/// Refuses more relations than a FROM clause may have.
fn check_relations(from: &[TableWithJoins]) -> Result<(), SqlError> {
    fn count(from: &TableWithJoins) -> usize {
        let of = |factor: &TableFactor| match factor {
            TableFactor::NestedJoin { table_with_joins, .. } => count(table_with_joins),
            _ => 1,
        };
        of(&from.relation) + from.joins.iter().map(|join| of(&join.relation)).sum::<usize>()
    }
    if from.iter().map(count).sum::<usize>() > RELATIONS_MAX {
        let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "a FROM clause has too many relations");
        return Err(error.with_hint(format!("It may have at most {RELATIONS_MAX}.")));
    }
    Ok(())
}

/// Refuses what the parser takes and no planner can do: lists of too many columns, which take minutes to plan, strings as names of items
/// (`SELECT 'a' 'b'`), QUALIFY, which PostgreSQL does not have, FOR UPDATE below the outermost query, FROM clauses of too many relations,
/// subqueries and arrays that nest too deeply, and expressions that double at each level in which they nest.
fn check(statement: &Statement) -> Result<(), SqlError> {
    let outermost = match statement {
        Statement::Explain { statement, .. } => statement.as_ref(),
        other => other,
    };
    match outermost {
        Statement::Update(update) => {
            if let Some(UpdateTableFromKind::BeforeSet(from) | UpdateTableFromKind::AfterSet(from)) = &update.from {
                check_relations(from)?;
            }
        }
        Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
            check_relations(from)?;
            check_relations(delete.using.as_deref().unwrap_or_default())?;
        }
        _ => {}
    }
    let queries = u32::from(!matches!(outermost, Statement::Query(_) | Statement::Copy { .. }));
    let selects = vec![InSelect::default()];
    match walk::visit(outermost, &mut Checks { queries, selects, relations: vec![0], ..Checks::default() }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

#[derive(Default)]
struct Checks {
    /// Queries around.
    queries: u32,
    /// Subqueries of expressions around.
    nested: u32,
    /// Arrays around.
    dimensions: u32,
    /// The sizes of the operands that have been visited of each expression around.
    around: Vec<Vec<u64>>,
    copies: u64,
    /// See [`joined`].
    joined: HashSet<*const Expr>,
    /// Of each SELECT around.
    selects: Vec<InSelect>,
    /// The relations of the statement so far, and those of each query of WITH around.
    relations: Vec<u64>,
    /// What the queries of WITH are called, as they begin.
    named: HashMap<*const Query, String>,
    /// The relations of the queries of WITH that have been visited and can be named.
    written_out: Vec<(String, u64)>,
    /// How many of them there were when each query around began.
    known: Vec<usize>,
    with: usize,
}

/// What a SELECT has of what makes its plan grow.
#[derive(Default)]
struct InSelect {
    subqueries: usize,
    windows: HashSet<WindowType>,
    /// It stands for the rows of a VALUES list, which are counted one by one.
    is_list: bool,
}

fn too_many(count: usize, what: &str) -> SqlError {
    SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, format!("at most {count} {what}"))
}

impl Checks {
    /// A query begins.
    fn begins(&mut self, query: &Query) -> Result<(), SqlError> {
        self.known.push(self.written_out.len());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.named.insert(std::ptr::from_ref(cte.query.as_ref()), fold(&cte.alias.name));
            self.with += 1;
        }
        if self.with > WITH_MAX {
            return Err(too_many(WITH_MAX, "queries of WITH may stand in a statement"));
        }
        if self.named.contains_key(&std::ptr::from_ref(query)) {
            self.relations.push(0);
        }
        if let SetExpr::Values(values) = query.body.as_ref() {
            self.selects.push(InSelect { is_list: true, ..InSelect::default() });
            if values.rows.iter().any(|row| subqueries_of(&row.content) > SUBQUERIES_MAX) {
                return Err(too_many(SUBQUERIES_MAX, "subqueries may stand in a row of VALUES"));
            }
        }
        Ok(())
    }

    /// A query ends.
    fn ends(&mut self, query: &Query) {
        if let SetExpr::Values(_) = query.body.as_ref() {
            self.selects.pop();
        }
        self.written_out.truncate(self.known.pop().unwrap_or_default());
        if let Some(name) = self.named.remove(&std::ptr::from_ref(query)) {
            let relations = self.relations.pop().unwrap_or_default();
            self.written_out.push((name, relations));
        }
    }

    /// A relation of FROM.
    fn relation(&mut self, name: &ObjectName) -> Result<(), SqlError> {
        let named = match name.0.as_slice() {
            [ObjectNamePart::Identifier(name)] => {
                let name = fold(name);
                self.written_out.iter().rev().find(|(known, _)| *known == name).map(|(_, relations)| *relations)
            }
            _ => None,
        };
        let Some(relations) = self.relations.last_mut() else { return Ok(()) };
        *relations = relations.saturating_add(named.unwrap_or(0).max(1));
        if *relations > WRITTEN_OUT_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "a statement has too many relations");
            let hint = format!(
                "It may have at most {WRITTEN_OUT_MAX}, and a query of WITH has all of its own wherever it is named."
            );
            return Err(error.with_hint(hint));
        }
        Ok(())
    }

    /// A part of the innermost SELECT.
    fn in_select(&mut self, expression: &Expr) -> Result<(), SqlError> {
        let Some(select) = self.selects.last_mut() else { return Ok(()) };
        select.subqueries += usize::from(asks(expression));
        if select.subqueries > SUBQUERIES_MAX && !select.is_list {
            return Err(too_many(SUBQUERIES_MAX, "subqueries may stand in the expressions of a SELECT"));
        }
        if let Expr::Function(Function { over: Some(window), .. }) = expression
            && !select.windows.contains(window)
        {
            select.windows.insert(window.clone());
            if select.windows.len() > WINDOWS_MAX {
                return Err(too_many(WINDOWS_MAX, "windows may differ from each other in a SELECT"));
            }
        }
        Ok(())
    }
}

/// The subqueries in the expressions of a row, those in them aside.
fn subqueries_of(row: &[Expr]) -> usize {
    let count = std::cell::Cell::new(0);
    for value in row {
        walk::exists_outside_queries(value, |expr| {
            count.set(count.get() + usize::from(asks(expr)));
            false
        });
    }
    count.get()
}

fn broken(outcome: Result<(), SqlError>) -> ControlFlow<SqlError> {
    outcome.map_or_else(ControlFlow::Break, ControlFlow::Continue)
}

impl Visitor for Checks {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<SqlError> {
        if self.queries > 0 && !query.locks.is_empty() {
            return ControlFlow::Break(SqlError::unsupported("FOR UPDATE in a subquery"));
        }
        self.queries += 1;
        broken(self.begins(query))
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<SqlError> {
        self.queries -= 1;
        self.ends(query);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<SqlError> {
        match factor {
            TableFactor::Table { name, .. } => broken(self.relation(name)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_select(&mut self, _: &Select) -> ControlFlow<SqlError> {
        self.selects.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<SqlError> {
        self.selects.push(InSelect::default());
        if let Err(error) = check_count(select.projection.len()).and_then(|()| check_relations(&select.from)) {
            return ControlFlow::Break(error);
        }
        if select.qualify.is_some() {
            return ControlFlow::Break(SqlError::syntax("syntax error at or near \"QUALIFY\""));
        }
        for condition in select.selection.iter().chain(&select.having) {
            joined(condition, &mut self.joined);
        }
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { alias, .. } = item
                && alias.quote_style == Some('\'')
            {
                return ControlFlow::Break(SqlError::syntax(format!("syntax error at or near \"{alias}\"")));
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<SqlError> {
        self.nested += u32::from(asks(expression));
        if self.nested > SUBQUERY_DEPTH_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "subqueries are nested too deeply");
            let hint = format!("At most {SUBQUERY_DEPTH_MAX} may stand in each other; name some by WITH.");
            return ControlFlow::Break(error.with_hint(hint));
        }
        self.dimensions += u32::from(is_array(expression));
        if self.dimensions > DIMENSIONS_MAX {
            let message = format!("number of array dimensions exceeds the maximum allowed ({DIMENSIONS_MAX})");
            return ControlFlow::Break(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
        }
        if columns_of_row(expression) > COLUMNS_MAX {
            let message = format!("ROW expressions can have at most {COLUMNS_MAX} entries");
            return ControlFlow::Break(SqlError::new(SqlState::TOO_MANY_COLUMNS, message));
        }
        self.around.push(Vec::new());
        if self.around.len() > LEVELS_MAX {
            let hint = format!("An expression has at most {LEVELS_MAX} levels, and each operator of a chain is one.");
            return ControlFlow::Break(error::too_deep().with_hint(hint));
        }
        broken(self.in_select(expression))
    }

    fn post_visit_expr(&mut self, expression: &Expr) -> ControlFlow<SqlError> {
        self.nested -= u32::from(asks(expression));
        self.dimensions -= u32::from(is_array(expression));
        let operands = self.around.pop().unwrap_or_default();
        let written = sum(&operands).saturating_add(1);
        let is_joined = self.joined.remove(&std::ptr::from_ref(expression));
        let copied = if is_joined { 0 } else { copies(expression, &operands, written) };
        self.copies = self.copies.saturating_add(copied);
        if let Some(operands) = self.around.last_mut() {
            operands.push(written.saturating_add(copied));
        }
        if self.copies > COPIES_MAX {
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "expressions are nested too deeply");
            return ControlFlow::Break(error.with_hint(
                "What stands before BETWEEN, IN or ANY, or behind CASE, is bound once for each value it is compared \
                 with, and what coalesce() has before its last argument twice.",
            ));
        }
        ControlFlow::Continue(())
    }
}

fn is_array(expression: &Expr) -> bool {
    match expression {
        Expr::Array(_) => true,
        Expr::Function(function) => function.name.to_string().eq_ignore_ascii_case("make_array"),
        _ => false,
    }
}

/// Whether an expression is one of a subquery.
pub(crate) fn asks(expression: &Expr) -> bool {
    matches!(expression, Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. })
}

/// Finds `x IN (SELECT …)` below nothing but AND and OR in a condition of WHERE or HAVING: those are joins, which have the query once. Of NOT IN that
/// is not known before names are.
fn joined(condition: &Expr, found: &mut HashSet<*const Expr>) {
    match condition {
        Expr::Nested(inner) => joined(inner, found),
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            joined(left, found);
            joined(right, found);
        }
        Expr::InSubquery { expr, negated: false, .. } if !walk::has_query(expr.as_ref()) => {
            found.insert(std::ptr::from_ref(condition));
        }
        _ => {}
    }
}

fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
}

/// What is bound of an expression beside what is written: `operands` are the sizes of its operands, `written` is that
/// of all.
fn copies(expression: &Expr, operands: &[u64], written: u64) -> u64 {
    let first = operands.first().copied().unwrap_or(0);
    let again = |times: usize| match first {
        // A column that stands before a long list takes no more than the list.
        0 | 1 => 0,
        first => first.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX)),
    };
    match expression {
        Expr::Between { .. } => again(1).saturating_mul(COPY_WEIGHT),
        Expr::InList { list, .. } if list.len() > WRITTEN_OUT_LIST => 0,
        Expr::InList { list, .. } => again(list.len().saturating_sub(1)).saturating_mul(COPY_WEIGHT),
        Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } => match elements(right) {
            Some(count) => again(count),
            None => written.saturating_mul(QUERY_COPIES),
        },
        Expr::InSubquery { expr, .. } if walk::has_query(expr.as_ref()) => written.saturating_mul(QUERY_COPIES),
        Expr::InSubquery { .. } => written.saturating_mul(MEMBER_COPIES * COPY_WEIGHT),
        Expr::Case { operand: Some(_), conditions, .. } => again(conditions.len().saturating_sub(1)),
        // Rows are compared column by column, most of them twice, and those of long rows once more each time that a row
        // is halved. A query is asked for each column.
        Expr::BinaryOp { left, op, right }
            if is_row(left) && !matches!(op, BinaryOperator::And | BinaryOperator::Or) =>
        {
            let columns = columns_of_row(unnested(left));
            let halvings = u64::from(columns.checked_ilog2().unwrap_or(0).max(1));
            written.saturating_mul(match unnested(right) {
                Expr::Subquery(_) if matches!(op, BinaryOperator::Eq | BinaryOperator::NotEq) => columns as u64,
                Expr::Subquery(_) => (halvings + 1).saturating_mul(columns as u64),
                _ => halvings,
            })
        }
        // DataFusion makes `CASE WHEN x IS NOT NULL THEN x ELSE y END` of `coalesce(x, y)`.
        Expr::Function(function) if is_coalesce(function) => match operands {
            [tested @ .., _] => sum(tested).saturating_mul(COPY_WEIGHT),
            [] => 0,
        },
        _ => 0,
    }
}

/// The longest list that DataFusion makes comparisons of, one for each element.
const WRITTEN_OUT_LIST: usize = 3;

/// How much more than its size a copy costs: 14 levels of `x IN (a, b)`, 16,000 copies of x, took 7 s to plan in a debug build, and ten of
/// `coalesce(x, a)`, whose NULLs are asked for several times at each level, 9 s.
const COPY_WEIGHT: u64 = 3;

/// How often the planner's form of `x < ANY (SELECT …)` has the query beside the first time.
const QUERY_COPIES: u64 = 3;

/// As that, of `x IN (SELECT …)` as a value, where x and what is looked in may be NULL.
const MEMBER_COPIES: u64 = 2;

/// The elements of what ANY and ALL compare with; `None` for a query.
fn elements(array: &Expr) -> Option<usize> {
    match array {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => elements(inner),
        Expr::Array(array) => Some(array.elem.len()),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.matches(',').count() + 1),
            _ => Some(1),
        },
        other => (!walk::has_query(other)).then_some(1),
    }
}

/// Whether a function is `coalesce`, under any of its names.
fn is_coalesce(function: &Function) -> bool {
    let name = function.name.0.last().and_then(ObjectNamePart::as_ident);
    name.is_some_and(|name| ["coalesce", "nvl", "ifnull"].iter().any(|known| name.value.eq_ignore_ascii_case(known)))
}

/// What is inside parentheses.
pub(crate) fn unnested(expression: &Expr) -> &Expr {
    match expression {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

/// Whether it is a row: `(a, b)` or `ROW(a, b)`.
fn is_row(expression: &Expr) -> bool {
    columns_of_row(unnested(expression)) > 0
}

/// The columns of a row.
fn columns_of_row(expression: &Expr) -> usize {
    match expression {
        Expr::Tuple(columns) => columns.len(),
        Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) => match name.0.as_slice() {
            [ObjectNamePart::Identifier(name)] if name.value.eq_ignore_ascii_case("row") => list.args.len(),
            _ => 0,
        },
        _ => 0,
    }
}

/// The name of a table or index, its schema and database checked.
pub(crate) fn table_name(name: &ObjectName) -> Result<String, SqlError> {
    let mut parts = Vec::with_capacity(3);
    for part in &name.0 {
        match part {
            ObjectNamePart::Identifier(ident) => parts.push(fold(ident)),
            ObjectNamePart::Function(_) => return Err(SqlError::syntax(format!("improper name: {name}"))),
        }
    }
    match parts.as_slice() {
        [table] => Ok(table.clone()),
        [schema, table] | [_, schema, table] if schema == "public" => Ok(table.clone()),
        [schema, _] | [_, schema, _] => {
            Err(SqlError::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{schema}\" does not exist"))
                .with_hint("There is one schema, public."))
        }
        _ => Err(SqlError::syntax(format!("improper qualified name (too many dotted names): {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_doubles_by_nesting_is_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        let nested = |levels: usize, open: &str, close: &str| {
            format!("select {}true{}", open.repeat(levels), close.repeat(levels))
        };
        for (open, close) in [
            ("(", " between false and true)"),
            ("(", " in (false, true))"),
            ("(case ", " when true then true when false then false end)"),
            ("((", ", 1) < (true, 1))"),
            ("(", " = any (array[false, true]))"),
            ("coalesce(", ", 1)"),
            ("nvl(", ", 1)"),
            ("IFNULL(", ", 1)"),
            ("(row(", ", 1) < (true, 1))"),
        ] {
            assert_eq!(state(&nested(8, open, close)), None, "{close}");
            assert_eq!(state(&nested(35, open, close)), Some("54001"), "{close}");
        }
        for open in [
            "1 < any (select 1 where ",
            "(select 1) in (select 1 where ",
            "a in (select ",
            "a not in (select 1 where ",
            "(a, b) = (select 1, 2 where ",
            "(1, 1, 1, 1, 1, 1, 1) = (select 1, 1, 1, 1, 1, 1, 1 where ",
        ] {
            assert_eq!(state(&format!("select {}true{}", open.repeat(4), ")".repeat(4))), None, "{open}");
            assert_eq!(state(&format!("select {}true{}", open.repeat(11), ")".repeat(11))), Some("54001"), "{open}");
        }
        // What is joined is there once.
        for (open, close) in
            [("a in (select 1 where ", ")"), ("a in (select 1 where b and a in (select 1 from t having c or ", "))")]
        {
            let sql = format!("select 1 where {}true{}", open.repeat(5), close.repeat(5));
            assert_eq!(state(&sql), None, "{open}");
        }
        // The last argument is there once.
        assert_eq!(state(&format!("select {}1{}", "coalesce(a, ".repeat(60), ")".repeat(60))), None);
        // Lists may be long.
        assert_eq!(state(&format!("select a in ({}1)", "1, ".repeat(300_000))), None);
        assert_eq!(state(&format!("select a + 1 in ({}1)", "1, ".repeat(50_000))), None);
    }

    #[test]
    fn rows_and_from_clauses_are_not_too_long() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for open in ["(", "row("] {
            let row = |columns: usize| format!("{open}{}1)", "1, ".repeat(columns - 1));
            assert_eq!(state(&format!("select {0} = {0}", row(1664))), None, "{open}");
            assert_eq!(state(&format!("select {0} < {0}", row(1664))), None, "{open}");
            assert_eq!(state(&format!("select {0} = {0}", row(1665))), Some("54011"), "{open}");
        }
        for before in ["select 1 from ", "explain select 1 from ", "delete from t using ", "update t set a = 1 from "] {
            for next in [", t", " cross join t", " join (t join t on true) on true"] {
                let from = |count: usize| format!("{before}t{}", next.repeat(count));
                let each = if next.contains('(') { 2 } else { 1 };
                assert_eq!(state(&from((RELATIONS_MAX - 1) / each)), None, "{before}{next}");
                assert_eq!(state(&from(RELATIONS_MAX / each + 1)), Some("54001"), "{before}{next}");
            }
        }
        // Each SELECT has its own.
        let select = format!("select 1 from t{}", ", t".repeat(150));
        assert_eq!(state(&format!("{select} union all {select}")), None);
    }

    #[test]
    fn numbers_of_order_by_have_no_parentheses() {
        for (sql, plain) in [
            ("select a from t order by (1), ((2)) desc", "select a from t order by 1, 2 desc"),
            ("select 1 union select 2 order by (1)", "select 1 union select 2 order by 1"),
            ("select (select b from u order by (1) limit 1)", "select (select b from u order by 1 limit 1)"),
        ] {
            assert_eq!(parse_one(sql).unwrap(), parse_one(plain).unwrap(), "{sql}");
        }
        let other = "select a from t order by (a), (1 + 1), -1";
        assert!(parse_one(other).unwrap().to_string().ends_with("ORDER BY (a), (1 + 1), -1"));
    }

    #[test]
    fn strings_are_no_aliases() {
        for sql in ["select 'foo' 'bar'", "select 1 as 'x'", "select a from (select 1 'a') x"] {
            assert_eq!(parse_one(sql).unwrap_err().state.code(), "42601", "{sql}");
        }
        assert!(parse_one("select 'foo'\n'bar' \"x\"").is_ok());
    }

    #[test]
    fn statements_are_told_apart() {
        let sql = "select ';', E'\\';', \"a;b\"; -- ;\n /* ; /* ; */ */ select $$;$$, $a$;$$;$a$, $1 ;; ; begin";
        assert_eq!(
            split(sql).unwrap(),
            ["select ';', E'\\';', \"a;b\"", "-- ;\n /* ; /* ; */ */ select $$;$$, $a$;$$;$a$, $1", "begin"]
        );
        assert_eq!(split(" ; -- nothing\n ;").unwrap(), Vec::<String>::new());
        assert!(split("select 'abc").is_err());
        assert!(split("select 1 /* ").is_err());
    }

    #[test]
    fn locks_inside() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        assert_eq!(state("select * from t for update"), None);
        assert_eq!(state("select * from (select * from t for update) x"), Some("0A000"));
        assert_eq!(state("update t set a = (select 1 from u for update)"), Some("0A000"));
        assert_eq!(state("copy (select * from t for update) to stdout"), None);
        assert_eq!(state("copy (select * from (select * from t for update) x) to stdout"), Some("0A000"));
        let nested = |levels: usize, open: &str| format!("{}1{}", open.repeat(levels), ")".repeat(levels));
        for open in ["(select 1 + ", "1 in (select 1 where ", "exists (select "] {
            assert_eq!(state(&format!("select {}", nested(12, open))), None, "{open}");
            assert_eq!(state(&format!("select {}", nested(13, open))), Some("54001"), "{open}");
        }
        // Those beside each other do not nest, nor do those of FROM.
        assert_eq!(state(&format!("select {}", vec!["(select 1)"; 30].join(" + "))), None);
        assert_eq!(state(&format!("select 1 from {} x", nested(20, "(select 1 from ").replace('1', "t"))), None);
    }

    /// Whatever links it, each link is a level that takes stack when the tree is dropped.
    #[test]
    fn long_chains_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for link in [
            " notnull",
            " is null",
            " not null",
            " in (true)",
            " between 1 and 2",
            " ilike 'a'",
            " similar to 'a'",
            " at time zone 'utc'",
            " xor true",
            " overlaps true",
            " operator(+) 1",
            " + 1",
        ] {
            assert_eq!(state(&format!("select 1{}", link.repeat(100_000))), Some("54001"), "{link}");
        }
        assert_eq!(state(&format!("select null::int{}", "[]".repeat(100_000))), Some("54001"));
        assert_eq!(state(&format!("select null::int{}", "[3]".repeat(100_000))), Some("54001"));
        // Items of lists hang on nothing.
        assert_eq!(state(&format!("select {}1", "array[1], a[1] is null, null::int[], ".repeat(500))), None);
        assert_eq!(state(&format!("select 1 in ({}1)", "(1 between 0 and 2) notnull, ".repeat(3_000))), None);
    }

    /// A comma ends a chain of operators, and no chain of queries.
    #[test]
    fn long_chains_of_queries_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for link in
            [" union all select 1, 2", " union select 1, 2", " except (select 1, 2)", " intersect all values (1, 2)"]
        {
            let chain = |links: usize| format!("select 1, 2{}", link.repeat(links));
            assert_eq!(state(&chain(SET_OPERATIONS_MAX)), None, "{link}");
            assert_eq!(state(&chain(SET_OPERATIONS_MAX + 1)), Some("54001"), "{link}");
            assert_eq!(state(&chain(100_000)), Some("54001"), "{link}");
            assert_eq!(state(&format!("insert into t {}", chain(100_000))), Some("54001"), "{link}");
        }
    }

    #[test]
    fn qualify_is_no_clause() {
        for sql in ["select a from t qualify a = 1", "select a from (select a from t qualify a = 1) x"] {
            assert_eq!(parse_one(sql).unwrap_err().state.code(), "42601", "{sql}");
        }
    }

    /// The parser does not count types within types, also in short texts.
    #[test]
    fn nested_types_are_refused() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        assert_eq!(state(&format!("select cast(1 as {}int", "array<".repeat(1_200))), Some("54001"));
        assert_eq!(state(&format!("select cast(1 as {}int", "table(a ".repeat(900))), Some("54001"));
    }

    #[test]
    fn a_million_brackets_are_refused_at_once() {
        for bracket in ["(", "[", "array["] {
            let refused = parse_one(&format!("select {}", bracket.repeat(1_000_000))).unwrap_err();
            assert_eq!(refused.state.code(), "54001", "{bracket}");
        }
    }

    /// Each level was parsed twice.
    #[test]
    fn nested_calls_are_parsed_once() {
        for call in ["abs(", "coalesce(", "f(x => ", "f(x := "] {
            assert!(parse_one(&format!("select {}1{}", call.repeat(60), ")".repeat(60))).is_ok(), "{call}");
        }
    }

    #[test]
    fn arrays_have_six_dimensions() {
        let state = |sql: &str| parse_one(sql).err().map(|e| e.state.code());
        for (open, close) in [("array[", "]"), ("make_array(", ")")] {
            let nested = |levels: usize| format!("select {}1{}", open.repeat(levels), close.repeat(levels));
            assert_eq!(state(&nested(6)), None, "{open}");
            assert_eq!(state(&nested(7)), Some("54000"), "{open}");
            assert_eq!(state(&nested(100)), Some("54000"), "{open}");
        }
    }

    #[test]
    fn texts_of_trees_read_as_they_do() {
        for sql in [
            "'a''''b'",
            "'\\'''",
            "'\\'",
            "''''",
            "- -1",
            "- - + 1",
            "-(-1)",
            "$$a'b$$",
            "E'a\\'b\\\\c\\n'",
            "'it''s' || 'x'''",
        ] {
            let tree = parse_expr(sql).unwrap();
            let text = to_text(&tree);
            let plain = |expr: &Expr| to_text(expr).replace(['(', ')'], "");
            assert_eq!(plain(&parse_expr(&text).unwrap()), plain(&tree), "{text}");
            if let Expr::Value(_) = tree {
                assert_eq!(parse_expr(&text).unwrap(), tree, "{text}");
            }
        }
        for sql in [
            r"select 'a''''b' from t where x = '\'''",
            r#"select "x\""y", "a""""b", t."c""" from t"#,
            r#"with "w""\""" ("c""") as (select 1) select "w""\"""."c""" as "d\""" from "w""\""" as "v""" ("e""""")"#,
            r#"select "f"""(1), "v""".* from "f"""(1) "v""", (select 1) "u\""" ("c""")"#,
            r#"select 1 from "s"""."t""" join (u join v using ("b\"""))  "w""" using ("a""""b")"#,
        ] {
            let query = parse_one(sql).unwrap();
            assert_eq!(parse_one(&to_text(&query)).unwrap(), query, "{sql}");
        }
    }

    #[test]
    fn one_statement_only() {
        assert_eq!(parse_one("select 1; select 2").unwrap_err().state.code(), "42601");
        assert_eq!(parse_one("selec 1").unwrap_err().state.code(), "42601");
        assert!(parse_one("abort work").is_ok());
        assert!(parse_one("copy t (a, b) from stdin with (format csv, header)").is_ok());
    }
}
