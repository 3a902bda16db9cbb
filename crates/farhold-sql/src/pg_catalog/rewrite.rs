//! Rewrites catalog queries that DataFusion cannot plan and that no rule of `datafusion-pg-catalog` covers.
//!
//! All rewriting works on the text, and only on queries that read nothing but the catalog: the replaced parts are those
//! that known clients send, and some are no subtree (`JOIN … ON (…)`, a part of a select list).

use crate::engine::{Opaque, opaque_end};

/// Parts of clients' queries and their replacements. Any whitespace between words counts as one blank.
const REPLACED: &[(&str, &str)] = &[
    // psql's \dT checks whether a row type was created as a composite type. There are none.
    ("(SELECT c.relkind = 'c' FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid)", "false"),
    // psql's \d reads a column's default by a subquery, which the rules treat as one that cannot be planned.
    (
        "(SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) FROM pg_catalog.pg_attrdef d \
         WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.atthasdef)",
        "farhold_default(a.attrelid, a.attnum)",
    ),
    // JDBC: type information.
    ("typinput='pg_catalog.array_in'::regproc", "typinput = 'array_in'"),
    // JDBC: foreign keys.
    ("SELECT setting FROM pg_catalog.pg_settings WHERE name='max_index_keys'", "SELECT '32' AS setting"),
    // JDBC: procedures.
    ("NULL, NULL, NULL, d.description AS \"REMARKS\"", "NULL AS a, NULL AS b, NULL AS c, d.description AS \"REMARKS\""),
];

/// Replacements for queries that expand an array into rows within the select list: the rows are joined instead.
const EXPANDED: &[(&str, &str)] = &[
    // JDBC: primary keys.
    (
        "JOIN pg_catalog.pg_index i ON ( a.attrelid = i.indrelid)",
        "JOIN pg_catalog.pg_index i ON (a.attrelid = i.indrelid) \
         JOIN pg_catalog.farhold_index_columns x ON (x.indexrelid = i.indexrelid)",
    ),
    ("(information_schema._pg_expandarray(i.indkey)).n AS KEY_SEQ", "x.position AS KEY_SEQ"),
    ("information_schema._pg_expandarray(i.indkey) AS KEYS", "x.attnum AS KEYS"),
    ("(result.KEYS).x", "result.KEYS"),
    // JDBC: indexes.
    (
        "JOIN pg_catalog.pg_index i ON (ct.oid = i.indrelid)",
        "JOIN pg_catalog.pg_index i ON (ct.oid = i.indrelid) \
         JOIN pg_catalog.farhold_index_columns x ON (x.indexrelid = i.indexrelid)",
    ),
    ("(information_schema._pg_expandarray(i.indkey)).n AS ORDINAL_POSITION", "x.position AS ORDINAL_POSITION"),
    (
        "CASE tmp.AM_NAME WHEN 'btree' THEN CASE tmp.I_INDOPTION[tmp.ORDINAL_POSITION - 1] & 1::smallint WHEN 1 THEN 'D' \
         ELSE 'A' END ELSE NULL END",
        "'A'",
    ),
    // JDBC: the best row identifier.
    (
        "i.indisprimary, information_schema._pg_expandarray(i.indkey) AS keys FROM pg_catalog.pg_index i) i \
         ON (a.attnum = (i.keys).x",
        "i.indisprimary, x.attnum FROM pg_catalog.pg_index i \
         JOIN pg_catalog.farhold_index_columns x ON (x.indexrelid = i.indexrelid)) i ON (a.attnum = i.attnum",
    ),
];

/// A rewritten query.
pub(crate) struct Rewritten {
    pub(crate) text: String,
    /// Whether a part was replaced; otherwise only blanks and comments differ.
    pub(crate) has_replacements: bool,
}

/// The query with every known part replaced. Strings and quoted identifiers are unchanged.
pub(crate) fn rewrite(sql: &str) -> Rewritten {
    let squeezed = squeezed(sql);
    let text = replaced_in(squeezed.clone());
    Rewritten { has_replacements: text != squeezed, text }
}

fn replaced_in(mut sql: String) -> String {
    let expanded = if sql.contains("_pg_expandarray") { EXPANDED } else { &[] };
    for (from, to) in REPLACED.iter().chain(expanded) {
        if sql.contains(from) {
            sql = replaced(&sql, from, to);
        }
    }
    without_array_subqueries(sql)
}

/// Replaces `ARRAY(SELECT …)`, which DataFusion does not support. In the queries of known clients it collects
/// privileges, role memberships, storage options and the like, which do not exist here. So the array becomes empty, and
/// its `array_to_string` NULL.
fn without_array_subqueries(mut sql: String) -> String {
    const JOINED: &str = "array_to_string(";
    const GATHERED: &str = "array(";
    for (call, replacement, only_with_array) in [(JOINED, "CAST(NULL AS text)", true), (GATHERED, "'{}'", false)] {
        let mut from = 0;
        while let Some(start) = find_call(&sql, call, from) {
            let open = start + call.len() - 1;
            let Some(end) = closing(&sql, open) else { break };
            let arguments = &sql[open + 1..end];
            let concerned = if only_with_array {
                find_call(arguments, GATHERED, 0).is_some_and(|at| is_select(&arguments[at + GATHERED.len()..]))
            } else {
                is_select(arguments)
            };
            from = start + call.len();
            if concerned {
                let start = sql[..start].strip_suffix("pg_catalog.").map_or(start, str::len);
                sql.replace_range(start..=end, replacement);
                from = start + replacement.len();
            }
        }
    }
    sql
}

fn is_select(text: &str) -> bool {
    text.trim_start().get(..6).is_some_and(|word| word.eq_ignore_ascii_case("select"))
}

/// The parts of a text, as start and end positions: quoted parts and comments as a whole, everything else character by
/// character.
fn parts(sql: &str) -> impl Iterator<Item = (usize, usize, Option<Opaque>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let character = sql[at..].chars().next()?;
        let start = at;
        // A text that parses has no unterminated part.
        let (end, opaque) = match opaque_end(sql, at) {
            Ok(Some((end, opaque))) => (end, Some(opaque)),
            _ => (at + character.len_utf8(), None),
        };
        at = end;
        Some((start, end, opaque))
    })
}

/// Replaces every `from` that begins outside of quotes.
fn replaced(sql: &str, from: &str, to: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut behind = 0;
    for (start, end, opaque) in parts(sql) {
        if start < behind {
            continue;
        }
        if opaque.is_none() && sql[start..].starts_with(from) {
            out.push_str(to);
            behind = start + from.len();
        } else {
            out.push_str(&sql[start..end]);
        }
    }
    out
}

/// The position of `call` (in lower case) as a separate word outside of quotes.
fn find_call(sql: &str, call: &str, from: usize) -> Option<usize> {
    let mut before = b' ';
    for (at, end, opaque) in parts(sql) {
        let begins = at >= from && opaque.is_none() && !before.is_ascii_alphanumeric() && before != b'_';
        if begins
            && sql.as_bytes()[at..].get(..call.len()).is_some_and(|word| word.eq_ignore_ascii_case(call.as_bytes()))
        {
            return Some(at);
        }
        before = sql.as_bytes()[end - 1];
    }
    None
}

/// The position of the parenthesis that closes the one at `open`.
fn closing(sql: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, _, opaque) in parts(sql).filter(|(at, ..)| *at >= open) {
        match sql.as_bytes()[at] {
            _ if opaque.is_some() => {}
            b'(' => depth += 1,
            b')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The text with all blanks and comments between words reduced to one space.
fn squeezed(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    for (start, end, opaque) in parts(sql) {
        let part = &sql[start..end];
        match opaque {
            Some(Opaque::Quoted) => out.push_str(part),
            None if !part.starts_with(|c: char| c.is_ascii_whitespace()) => out.push_str(part),
            _ if out.ends_with(' ') => {}
            _ => out.push(' '),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(sql: &str) -> String {
        super::rewrite(sql).text
    }

    #[test]
    fn arrays_of_subqueries_are_empty() {
        assert_eq!(rewrite("SELECT ARRAY(SELECT a FROM f(x)) AS b, 1"), "SELECT '{}' AS b, 1");
        assert_eq!(
            rewrite("SELECT pg_catalog.array_to_string(ARRAY(\n SELECT ')' || a), ', ') AS b"),
            "SELECT CAST(NULL AS text) AS b"
        );
        assert_eq!(rewrite("SELECT array_to_string(c || array(select 'x'), ', ')"), "SELECT CAST(NULL AS text)");
        for same in
            ["SELECT array_to_string(a, 'array(select')", "SELECT my_array(1), ARRAY[1]", "SELECT array_to_string(a"]
        {
            assert_eq!(rewrite(same), same);
        }
    }

    #[test]
    fn quoted_blanks_stay() {
        assert_eq!(rewrite("SELECT  'a  b'\n, \"c  d\""), "SELECT 'a  b' , \"c  d\"");
        assert_eq!(rewrite("SELECT 1 -- one\n, 2 /* two */"), "SELECT 1 , 2 ");
        for same in ["SELECT E'a\\'  b'", "SELECT $$a  b$$", "SELECT $q$ array(select 1)  $q$", "SELECT 'it''s  '"] {
            assert_eq!(rewrite(same), same);
        }
    }

    #[test]
    fn blanks_and_comments_are_no_replacements() {
        assert!(!super::rewrite("SELECT 1 -- one\n,  'a  b'").has_replacements);
        assert!(super::rewrite("SELECT array(SELECT 1)").has_replacements);
    }

    #[test]
    fn known_parts_in_quotes_stay() {
        let (from, to) = REPLACED[0];
        assert_eq!(rewrite(&format!("SELECT {from}")), format!("SELECT {to}"));
        let quoted = format!("SELECT $${from}$$");
        assert_eq!(rewrite(&quoted), quoted);
    }
}
