//! Lists, as array literals, and records as text.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use super::text::is_blank;
use crate::{SqlError, SqlState};

/// PostgreSQL's limit on dimensions. DataFusion's types nest as the arrays do, and 72 levels need more stack than a
/// thread has.
pub(crate) const DIMENSIONS_MAX: usize = 6;

/// Writes a list as an array literal, `{1,NULL,"a b"}`; `put` writes an element other than NULL.
pub(crate) fn put_list(elements: &ArrayRef, out: &mut Vec<u8>, put: &mut dyn FnMut(&ArrayRef, usize, &mut Vec<u8>)) {
    out.push(b'{');
    for index in 0..elements.len() {
        if index > 0 {
            out.push(b',');
        }
        if elements.is_null(index) || elements.data_type() == &DataType::Null {
            out.extend_from_slice(b"NULL");
            continue;
        }
        let start = out.len();
        put(elements, index, out);
        if !elements.data_type().is_list() {
            quote_element(start, out);
        }
    }
    out.push(b'}');
}

/// Writes a record, `(1,,"a b")`: NULL is written as nothing; an empty field, or one with special characters, is
/// quoted.
pub(crate) fn put_record<'a>(fields: impl Iterator<Item = Option<&'a str>>, out: &mut Vec<u8>) {
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | b'(' | b')' | b',') || is_blank(char::from(*byte));
    out.push(b'(');
    for (index, field) in fields.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let Some(field) = field else { continue };
        if !field.is_empty() && !field.as_bytes().iter().any(special) {
            out.extend_from_slice(field.as_bytes());
            continue;
        }
        out.push(b'"');
        for &byte in field.as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                out.push(byte);
            }
            out.push(byte);
        }
        out.push(b'"');
    }
    out.push(b')');
}

/// Quotes the element of an array literal that begins at `start`, if necessary.
fn quote_element(start: usize, out: &mut Vec<u8>) {
    let element = &out[start..];
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | b'{' | b'}' | b',') || is_blank(char::from(*byte));
    if !element.is_empty() && !element.iter().any(special) && !element.eq_ignore_ascii_case(b"null") {
        return;
    }
    let element = element.to_vec();
    out.truncate(start);
    out.push(b'"');
    for byte in element {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// The error of more than [`DIMENSIONS_MAX`] dimensions.
pub(crate) fn too_many_dimensions() -> SqlError {
    let message = format!("number of array dimensions exceeds the maximum allowed ({DIMENSIONS_MAX})");
    SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)
}

/// Parses the text of a list, `{a, "b c", NULL}`: its elements, including those of nested lists, where `None` is NULL,
/// and the number of dimensions.
///
/// # Errors
/// 22P02, 0A000 for explicit bounds, 54000 for too many dimensions.
pub(crate) fn read_list(text: &str) -> Result<(Vec<Option<String>>, usize), SqlError> {
    let malformed = || SqlError::new(SqlState::INVALID_TEXT, format!("malformed array literal: \"{text}\""));
    if text.trim_start_matches(is_blank).starts_with('[') {
        return Err(SqlError::unsupported("an array literal with explicit bounds"));
    }
    let mut reader = Reader { rest: text.chars().peekable(), elements: Vec::new(), lengths: Vec::new() };
    reader.skip_blanks();
    reader.rest.next_if_eq(&'{').ok_or_else(malformed)?;
    reader.array(0, &malformed)?;
    reader.skip_blanks();
    match reader.rest.next() {
        None => Ok((reader.elements, reader.lengths.len())),
        Some(_) => Err(malformed()),
    }
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    elements: Vec<Option<String>>,
    /// The number of elements of the arrays on each level, and whether these are arrays.
    lengths: Vec<Option<(usize, bool)>>,
}

impl Reader<'_> {
    fn skip_blanks(&mut self) {
        while self.rest.next_if(|character| is_blank(*character)).is_some() {}
    }

    /// Parses an array from behind its opening brace through its closing one.
    fn array(&mut self, level: usize, malformed: &dyn Fn() -> SqlError) -> Result<(), SqlError> {
        if level >= DIMENSIONS_MAX {
            return Err(too_many_dimensions());
        }
        if self.lengths.len() == level {
            self.lengths.push(None);
        }
        let (mut count, mut has_arrays) = (0, false);
        self.skip_blanks();
        if self.rest.next_if_eq(&'}').is_none() {
            loop {
                self.skip_blanks();
                let is_array = self.rest.next_if_eq(&'{').is_some();
                if is_array {
                    self.array(level + 1, malformed)?;
                } else {
                    let element = self.element(malformed)?;
                    self.elements.push(element);
                }
                if count > 0 && is_array != has_arrays {
                    return Err(malformed());
                }
                has_arrays = is_array;
                count += 1;
                self.skip_blanks();
                match self.rest.next() {
                    Some(',') => {}
                    Some('}') => break,
                    _ => return Err(malformed()),
                }
            }
        }
        // All arrays of one level must have the same shape.
        match self.lengths[level].replace((count, has_arrays)) {
            Some(before) if before != (count, has_arrays) => Err(malformed()),
            _ => Ok(()),
        }
    }

    /// Parses an element, up to the comma or brace after it.
    fn element(&mut self, malformed: &dyn Fn() -> SqlError) -> Result<Option<String>, SqlError> {
        let mut element = String::new();
        if self.rest.next_if_eq(&'"').is_some() {
            loop {
                match self.rest.next().ok_or_else(malformed)? {
                    '"' => return Ok(Some(element)),
                    '\\' => element.push(self.rest.next().ok_or_else(malformed)?),
                    other => element.push(other),
                }
            }
        }
        // The position after the last character that is not a blank, or is an escaped one.
        let (mut end, mut is_plain) = (0, true);
        while let Some(next) = self.rest.next_if(|character| !matches!(character, ',' | '}')) {
            match next {
                '{' | '"' => return Err(malformed()),
                '\\' => {
                    element.push(self.rest.next().ok_or_else(malformed)?);
                    (end, is_plain) = (element.len(), false);
                }
                other => {
                    element.push(other);
                    if !is_blank(other) {
                        end = element.len();
                    }
                }
            }
        }
        element.truncate(end);
        if element.is_empty() {
            return Err(malformed());
        }
        let is_null = is_plain && element.eq_ignore_ascii_case("null");
        Ok((!is_null).then_some(element))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, StringArray};

    use super::*;
    use crate::value::written;

    /// The results are those of PostgreSQL 15.
    #[test]
    fn texts_are_lists() {
        let some = |elements: &[&str]| elements.iter().map(|e| Some((*e).to_owned())).collect::<Vec<_>>();
        for (text, elements) in [
            ("{}", &[][..]),
            (" {{}, {}} ", &[]),
            (" { 1, 2 } ", &["1", "2"]),
            (r#"{"a,b", "NULL", "say \"x\"", a b , "" , \ c\  }"#, &["a,b", "NULL", "say \"x\"", "a b", "", " c "]),
            ("{{1,2},{3,4}}", &["1", "2", "3", "4"]),
            ("{{{a}},{{b}}}", &["a", "b"]),
            ("{n\\ull}", &["null"]),
        ] {
            assert_eq!(read_list(text).unwrap().0, some(elements), "{text}");
        }
        assert_eq!(read_list("{1,NULL, null }").unwrap(), (vec![Some("1".to_owned()), None, None], 1));
        let state = |text: &str| read_list(text).err().map(|e| e.state.code());
        for text in [
            "",
            "1, 2",
            "{1,}",
            "{,1}",
            "{1",
            "{\"a}",
            "{\"a\" b}",
            "{a\"b\"}",
            "{a\\",
            "{1} 2",
            "{{1},2}",
            "{1,{2}}",
            "{{1},{2,3}}",
            "{{1},{{2}}}",
            "{{1},{}}",
            "}",
        ] {
            assert_eq!(state(text), Some("22P02"), "{text}");
        }
        assert_eq!(state("{{{{{{1}}}}}}"), None);
        assert_eq!(state("{{{{{{{1}}}}}}}"), Some("54000"));
        assert_eq!(state("[0:1]={1,2}"), Some("0A000"));
    }

    /// What the reader skips as blanks, a vertical tab among them, is quoted.
    #[test]
    fn blanks_survive() {
        let texts = ["a\u{b}", "\u{c}", " ", "b"].map(|text| Some(text.to_owned()));
        let array: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        let put = |array: &ArrayRef, row, out: &mut Vec<u8>| {
            out.extend_from_slice(array.as_string::<i32>().value(row).as_bytes());
        };
        let list = written(|out| put_list(&array, out, &mut &put));
        assert_eq!(list, "{\"a\u{b}\",\"\u{c}\",\" \",b}");
        assert_eq!(read_list(&list).unwrap().0, texts);
        assert_eq!(written(|out| put_record([Some("a\u{b}"), None].into_iter(), out)), "(\"a\u{b}\",)");
    }
}
