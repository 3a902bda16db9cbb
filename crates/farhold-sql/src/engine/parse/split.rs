//! Splits a simple-query string into statements.

use crate::SqlError;

/// The statements of a simple-query string, each as written, without its semicolon. Blank ones are left out.
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

/// A part of a text whose characters are no syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// A string or a quoted identifier.
    Quoted,
    /// A comment.
    Comment,
}

/// The position after the string, quoted identifier or comment that begins at the byte `at`; `None` if none begins
/// there.
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

/// The position after a string or a quoted identifier: a doubled quote does not end it, and a backslash escapes the
/// next byte if `escapes`.
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

/// The position after a block comment; comments nest.
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

/// The position after a dollar-quoted string; `None` if it is a parameter instead.
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
