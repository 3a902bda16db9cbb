//! Catalog queries in words that DataFusion plans, where no rule of `datafusion-pg-catalog` finds them.
//!
//! All of this works on the text, before it is parsed, and on queries of the catalog alone.

/// Parts of clients' queries and what stands for them, with all blanks between words taken as one.
const REPLACED: &[(&str, &str)] = &[
    // psql's \dT asks whether a row type is a composite type made as such. There are none.
    ("(SELECT c.relkind = 'c' FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid)", "false"),
    // psql's \d asks for a column's default in a subquery, which the rules take for one that cannot be planned.
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

/// The same where a client expands an array into rows within the select list: the rows are joined in its place.
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

/// The query with every known part replaced.
pub(crate) fn rewrite(sql: &str) -> String {
    let mut sql = squeezed(sql);
    let expanded = if sql.contains("_pg_expandarray") { EXPANDED } else { &[] };
    for (from, to) in REPLACED.iter().chain(expanded) {
        if sql.contains(from) {
            sql = sql.replace(from, to);
        }
    }
    without_array_subqueries(sql)
}

/// Replaces `ARRAY(SELECT …)`, which DataFusion does not have. In the queries of the known clients it gathers privileges, role
/// memberships, storage options and the like, of which there are none here: it is empty, and what it is joined into is NULL.
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

/// Where `call` (in lower case) stands as a word of its own, outside of quotes.
fn find_call(sql: &str, call: &str, from: usize) -> Option<usize> {
    let mut quoted = false;
    let mut before = b' ';
    for (at, byte) in sql.bytes().enumerate() {
        quoted ^= byte == b'\'';
        let begins = at >= from && !quoted && !before.is_ascii_alphanumeric() && before != b'_';
        if begins
            && sql.as_bytes()[at..].get(..call.len()).is_some_and(|word| word.eq_ignore_ascii_case(call.as_bytes()))
        {
            return Some(at);
        }
        before = byte;
    }
    None
}

/// The parenthesis that closes the one at `open`.
fn closing(sql: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quoted = false;
    for (at, byte) in sql.bytes().enumerate().skip(open) {
        match byte {
            b'\'' => quoted = !quoted,
            _ if quoted => {}
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

/// Blanks between words as one space; what is quoted, and every comment, stays as it is.
fn squeezed(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut quote = None;
    // A comment to the end of its line needs that end.
    let has_line_comment = sql.contains("--");
    for character in sql.chars() {
        match quote {
            Some(open) => {
                if character == open {
                    quote = None;
                }
                out.push(character);
            }
            None if character == '\'' || character == '"' => {
                quote = Some(character);
                out.push(character);
            }
            None if character.is_ascii_whitespace() && !has_line_comment => {
                if !out.ends_with(' ') {
                    out.push(' ');
                }
            }
            None => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(rewrite("SELECT 1 -- one\n, 2"), "SELECT 1 -- one\n, 2");
    }
}
