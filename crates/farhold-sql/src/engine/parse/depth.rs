//! How deeply a text nests, counted by its words before it is parsed.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::super::error;
use super::DEPTH_MAX;
use crate::engine::dialect::Dialect;
use crate::{SqlError, SqlState};

/// The most operators of an expression: what a tree is built of before its levels can be counted.
const OPERATORS_MAX: usize = 10_000;

/// Texts up to here have no more operators, and no more CASE than the parser goes into; nor more levels, if they have few brackets.
const SHORT_BYTES: usize = 4_000;

/// The most levels of an expression, a chain of operators having one for each of them. PostgreSQL's limit depends on `max_stack_depth` and lies
/// at some thousand.
pub(super) const LEVELS_MAX: usize = 2_000;

/// The most brackets that may be open at a time: more than the parser's own limit, which it keeps everywhere but in types.
const BRACKETS_MAX: usize = 250;

/// The most CASE within each other: where the parser goes no deeper, it takes the word for a column's name.
const CASES_MAX: usize = DEPTH_MAX - 10;

/// The most UNION, INTERSECT and EXCEPT of a statement. Each is a level of the plan, of which 2,000 took more stack than a thread has, and time
/// grows with the square: 500 were planned in 2 s, 1,000 in 7 s, without optimisation.
pub(crate) const SET_OPERATIONS_MAX: usize = 500;

/// Refuses expressions so deep that walking them takes more stack than a thread has: `1 + 1 + 1 + …` for pages. The parser
/// limits parentheses, but not chains of operators, each of which is one level of the tree, and not types within types.
pub(super) fn check_depth(sql: &str) -> Result<(), SqlError> {
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
