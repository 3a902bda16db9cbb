//! Estimates the nesting depth of a text from its tokens, before it is parsed.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::super::error;
use super::DEPTH_MAX;
use crate::engine::dialect::Dialect;
use crate::{SqlError, SqlState};

/// The limit on operators of an expression: the parser builds the tree before its levels can be counted.
const OPERATORS_MAX: usize = 10_000;

/// Shorter texts cannot exceed the limit on operators, nor nest more CASE than the parser does; nor can they nest too
/// deeply if they have few brackets.
const SHORT_BYTES: usize = 4_000;

/// The limit on levels of an expression; a chain of operators has a level for each. PostgreSQL's limit depends on
/// `max_stack_depth` and is some thousand levels.
pub(super) const LEVELS_MAX: usize = 2_000;

/// The limit on open brackets. It is above the parser's own limit, which the parser enforces everywhere except in
/// types.
const BRACKETS_MAX: usize = 250;

/// The limit on nested CASE: at its own depth limit the parser takes the word for a column name.
const CASES_MAX: usize = DEPTH_MAX - 10;

/// The limit on UNION, INTERSECT and EXCEPT of a statement. Each is a level of the plan. 2,000 levels needed more stack
/// than a thread has, and the time grows with the square: without optimisation, 500 were planned in 2 s and 1,000 in 7
/// s.
pub(crate) const SET_OPERATIONS_MAX: usize = 500;

/// Refuses expressions so deep that walking them needs more stack than a thread has, such as a very long
/// `1 + 1 + 1 + …`. The parser limits parentheses, but neither chains of operators, each of which is a level of the
/// tree, nor nested types.
pub(super) fn check_depth(sql: &str) -> Result<(), SqlError> {
    let few_brackets = || sql.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'<')).count() <= BRACKETS_MAX;
    if sql.len() <= SHORT_BYTES && few_brackets() {
        return Ok(());
    }
    let tokens = Tokenizer::new(&Dialect::new(sql), sql).tokenize().map_err(|e| SqlError::syntax(e.to_string()))?;
    // Operators since the last comma: within the innermost brackets, within each pair around them, and the sum of all.
    let (mut depth, mut around, mut all) = (0_usize, Vec::new(), 0_usize);
    let mut set_operations = 0;
    let mut cases = 0_usize;
    // `ARRAY<`, which PostgreSQL does not have.
    let mut angles = 0_usize;
    // Whether only a number has followed the last `[`: `int[][3]` is an array of arrays.
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
                operators = usize::from(takes_left_operand(word.keyword));
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
            let message = format!("at most {SET_OPERATIONS_MAX} set operations are allowed in a statement");
            let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message);
            return Err(error.with_hint("Use VALUES for constant rows."));
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

/// Whether the word takes the text before it as an operand. BETWEEN is counted by its AND.
fn takes_left_operand(word: Keyword) -> bool {
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

/// Whether the word links two queries. All these words are reserved except MINUS, which PostgreSQL does not have.
fn links_queries(word: Keyword) -> bool {
    matches!(word, Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::MINUS)
}
