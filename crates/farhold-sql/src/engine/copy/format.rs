//! The format of a line of COPY data.

use datafusion::sql::sqlparser::ast::CopyOption;

use crate::engine::parse::{Opaque, opaque_end};
use crate::{SqlError, SqlState};

/// The options of a COPY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyFormat {
    pub(crate) csv: bool,
    pub(crate) header: bool,
    pub(crate) delimiter: u8,
    pub(crate) null: String,
    pub(crate) quote: u8,
    pub(crate) escape: u8,
}

impl CopyFormat {
    pub(crate) fn new(options: &[CopyOption]) -> Result<Self, SqlError> {
        let mut csv = false;
        for option in options {
            if let CopyOption::Format(name) = option {
                csv = match name.value.to_lowercase().as_str() {
                    "csv" => true,
                    "text" => false,
                    "binary" => return Err(SqlError::unsupported("COPY in binary format")),
                    other => {
                        let message = format!("COPY format \"{other}\" not recognized");
                        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
                    }
                };
            }
        }
        let mut format = Self {
            csv,
            header: false,
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { String::new() } else { "\\N".to_owned() },
            quote: b'"',
            escape: b'"',
        };
        let mut escape = None;
        for option in options {
            match option {
                // FREEZE has no effect on rows here.
                CopyOption::Format(_) | CopyOption::Freeze(_) => {}
                CopyOption::Header(header) => format.header = *header,
                CopyOption::Delimiter(c) => format.delimiter = one_byte(*c, "delimiter")?,
                CopyOption::Null(text) => format.null.clone_from(text),
                CopyOption::Quote(c) if csv => format.quote = one_byte(*c, "quote")?,
                CopyOption::Escape(c) if csv => escape = Some(one_byte(*c, "escape")?),
                CopyOption::Quote(_) | CopyOption::Escape(_) => {
                    return Err(SqlError::unsupported("QUOTE or ESCAPE outside of CSV"));
                }
                CopyOption::Encoding(name) => {
                    let name = name.to_lowercase();
                    if name != "utf8" && name != "utf-8" {
                        return Err(SqlError::unsupported(format!("COPY in the encoding {name}")));
                    }
                }
                other => return Err(SqlError::unsupported(format!("the COPY option {other}"))),
            }
        }
        format.escape = escape.unwrap_or(format.quote);
        // A backslash before one of these characters has another meaning.
        let is_taken = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'\\' | b'.');
        if !format.csv && is_taken(format.delimiter) {
            let message = format!("COPY delimiter cannot be \"{}\"", format.delimiter as char);
            return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
        }
        if format.csv && format.delimiter == format.quote {
            return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "COPY delimiter and quote must be different"));
        }
        Ok(format)
    }
}

/// A COPY in which `on`, `off`, `1` and `0` after FREEZE and HEADER are replaced by words that the parser accepts. Only
/// options are changed, which follow TO or FROM; before that come the names of a table or a query.
pub(crate) fn plain_booleans(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let (mut previous, mut at) = ("", 0);
    let (mut brackets, mut is_behind_target) = (0_usize, false);
    while at < sql.len() {
        // An unterminated string is left to the parser, which rejects it.
        if let Ok(Some((end, opaque))) = opaque_end(sql, at) {
            out.push_str(&sql[at..end]);
            at = end;
            if opaque == Opaque::Quoted {
                previous = "";
            }
            continue;
        }
        let rest = &sql[at..];
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        if length == 0 {
            let sign = rest.chars().next().unwrap_or_default();
            match sign {
                '(' => brackets += 1,
                ')' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            if !sign.is_whitespace() {
                previous = "";
            }
            out.push(sign);
            at += sign.len_utf8();
            continue;
        }
        let word = &rest[..length];
        is_behind_target |= brackets == 0 && (word.eq_ignore_ascii_case("to") || word.eq_ignore_ascii_case("from"));
        let is_option = previous.eq_ignore_ascii_case("freeze") || previous.eq_ignore_ascii_case("header");
        let behind = is_behind_target && is_option;
        out.push_str(match word.to_ascii_lowercase().as_str() {
            "on" | "1" if behind => "true",
            "off" | "0" if behind => "false",
            _ => word,
        });
        previous = word;
        at += length;
    }
    out
}

fn one_byte(c: char, what: &str) -> Result<u8, SqlError> {
    u8::try_from(c).ok().filter(|b| b.is_ascii() && !matches!(b, b'\n' | b'\r' | 0)).ok_or_else(|| {
        SqlError::new(SqlState::INVALID_PARAMETER_VALUE, format!("COPY {what} must be a single one-byte character"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_written_plainly() {
        for (sql, plain) in [
            ("copy t from stdin with (freeze on)", "copy t from stdin with (freeze true)"),
            (
                "COPY t (on1) FROM STDIN (FORMAT csv, HEADER OFF, NULL '0')",
                "COPY t (on1) FROM STDIN (FORMAT csv, HEADER false, NULL '0')",
            ),
            ("copy (select 1 from a join b on true) to stdout", "copy (select 1 from a join b on true) to stdout"),
            ("copy (select 'header 1', $$freeze on$$) to stdout", "copy (select 'header 1', $$freeze on$$) to stdout"),
            ("copy (select header, 1 from t) to stdout", "copy (select header, 1 from t) to stdout"),
            ("copy (select a header) to stdout (header 1)", "copy (select a header) to stdout (header true)"),
            ("copy (select header -- x\n 1) to stdout", "copy (select header -- x\n 1) to stdout"),
            ("copy t (freeze, off) from stdin (freeze, off)", "copy t (freeze, off) from stdin (freeze, off)"),
            ("copy t from stdin (header /* ) */ 1, null '')", "copy t from stdin (header /* ) */ true, null '')"),
        ] {
            assert_eq!(plain_booleans(sql), plain);
        }
    }
}
