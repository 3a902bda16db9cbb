//! Splits COPY data, received in arbitrary pieces, into lines and fields.

use super::CopyFormat;
use crate::{SqlError, SqlState};

/// The length limit of a line.
const LINE_BYTES_MAX: usize = 1 << 26;

/// Finds lines in a stream of bytes and splits them into fields.
#[derive(Debug)]
pub(crate) struct LineReader {
    format: CopyFormat,
    /// The received bytes; those before `start` have been consumed. They are removed by the next [`push`](Self::push):
    /// removing each line by itself would move the rest of a long message once per line.
    pending: Vec<u8>,
    /// Where the first unconsumed line begins.
    start: usize,
    /// Whether `searched` lies inside quotes.
    quoted: bool,
    /// `pending` has been searched up to here; never less than `start`.
    searched: usize,
    line: u64,
    header_left: bool,
    ended: bool,
}

/// The fields of one line; `None` is NULL.
pub(crate) type Fields = Vec<Option<String>>;

impl LineReader {
    pub(crate) fn new(format: CopyFormat) -> Self {
        let header_left = format.header;
        Self { format, pending: Vec::new(), start: 0, quoted: false, searched: 0, line: 0, header_left, ended: false }
    }

    /// The number of the line that was consumed last, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        // Bytes after the end mark are ignored.
        if !self.ended {
            self.pending.extend_from_slice(bytes);
        }
    }

    /// The fields of the next line; `None` if it needs more bytes. With `last`, the remaining bytes form a line.
    pub(crate) fn next(&mut self, last: bool) -> Result<Option<Fields>, SqlError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let end = match self.find_end() {
                Some(end) => end,
                None if last && self.start < self.pending.len() => {
                    if self.quoted {
                        return Err(self.bad("unterminated CSV quoted field"));
                    }
                    self.pending.len()
                }
                None if self.pending.len() - self.start > LINE_BYTES_MAX => {
                    return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "a line of COPY data is too long"));
                }
                None => return Ok(None),
            };
            self.line += 1;
            let taken = self.start..end;
            self.start = (end + 1).min(self.pending.len());
            self.searched = self.start;
            if std::mem::take(&mut self.header_left) {
                continue;
            }
            let line = &self.pending[taken];
            let line = self.without_carriage_return(line);
            if line == b"\\." {
                self.ended = true;
                continue;
            }
            return self.fields(line).map(Some);
        }
    }

    /// A line that ends in CR LF, without the CR. A CR after a backslash is data.
    fn without_carriage_return<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        let Some(cut) = line.strip_suffix(b"\r") else { return line };
        let backslashes = cut.iter().rev().take_while(|byte| **byte == b'\\').count();
        if self.format.csv || backslashes % 2 == 0 { cut } else { line }
    }

    /// Where the first line ends.
    fn find_end(&mut self) -> Option<usize> {
        let (quote, escape) = (self.format.quote, self.format.escape);
        let mut at = self.searched;
        while let Some(&byte) = self.pending.get(at) {
            if self.format.csv {
                if self.quoted && byte == escape && escape != quote {
                    if at + 1 >= self.pending.len() {
                        break;
                    }
                    at += 2;
                    continue;
                }
                // A doubled quote closes and reopens the field, which has the same effect.
                if byte == quote {
                    self.quoted = !self.quoted;
                } else if byte == b'\n' && !self.quoted {
                    self.searched = at;
                    return Some(at);
                }
            } else if byte == b'\\' {
                if at + 1 >= self.pending.len() {
                    break;
                }
                at += 2;
                continue;
            } else if byte == b'\n' {
                self.searched = at;
                return Some(at);
            }
            at += 1;
        }
        self.searched = at.min(self.pending.len());
        None
    }

    fn bad(&self, message: &str) -> SqlError {
        SqlError::new(SqlState::BAD_COPY_FORMAT, message).with_detail(format!("COPY data, line {}", self.line + 1))
    }

    fn fields(&self, line: &[u8]) -> Result<Fields, SqlError> {
        if self.format.csv { self.csv_fields(line) } else { self.text_fields(line) }
    }

    fn csv_fields(&self, line: &[u8]) -> Result<Fields, SqlError> {
        let CopyFormat { delimiter, quote, escape, .. } = self.format;
        let mut fields = Vec::new();
        let mut field = Vec::new();
        let (mut quoted, mut was_quoted) = (false, false);
        let mut at = 0;
        loop {
            let byte = line.get(at).copied();
            match byte {
                Some(b) if quoted => {
                    if b == escape && line.get(at + 1).is_some_and(|n| *n == quote || *n == escape) {
                        field.push(line[at + 1]);
                        at += 1;
                    } else if b == quote {
                        quoted = false;
                    } else {
                        field.push(b);
                    }
                }
                Some(b) if b == quote => {
                    quoted = true;
                    was_quoted = true;
                }
                Some(b) if b != delimiter => field.push(b),
                ended => {
                    if quoted {
                        return Err(self.bad("unterminated CSV quoted field"));
                    }
                    let text = self.text(std::mem::take(&mut field))?;
                    fields.push(if !was_quoted && text == self.format.null { None } else { Some(text) });
                    was_quoted = false;
                    if ended.is_none() {
                        return Ok(fields);
                    }
                }
            }
            at += 1;
        }
    }

    fn text_fields(&self, line: &[u8]) -> Result<Fields, SqlError> {
        let mut fields = Vec::new();
        let mut start = 0;
        let mut at = 0;
        loop {
            match line.get(at) {
                Some(b'\\') => at += 2,
                Some(b) if *b != self.format.delimiter => at += 1,
                ended => {
                    let at_end = ended.is_none();
                    let raw = &line[start..at.min(line.len())];
                    fields.push(if raw == self.format.null.as_bytes() {
                        None
                    } else {
                        Some(self.text(unescape(raw))?)
                    });
                    if at_end {
                        return Ok(fields);
                    }
                    at += 1;
                    start = at;
                }
            }
        }
    }

    fn text(&self, bytes: Vec<u8>) -> Result<String, SqlError> {
        String::from_utf8(bytes).map_err(|_| {
            SqlError::new(SqlState::CHARACTER_NOT_IN_REPERTOIRE, "invalid byte sequence for encoding \"UTF8\"")
                .with_detail(format!("COPY data, line {}", self.line))
        })
    }
}

/// The text format's backslash sequences.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        // A backslash at the end has no meaning.
        let Some(&next) = raw.get(at) else { break };
        at += 1;
        let number = |digits: usize, radix: u32, from: usize| {
            let text = raw.get(from..)?;
            let len = text.iter().take(digits).take_while(|b| (**b as char).is_digit(radix)).count();
            let text = std::str::from_utf8(&text[..len]).ok()?;
            u32::from_str_radix(text, radix).ok().map(|v| ((v & 0xff) as u8, len))
        };
        match next {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'x' => match number(2, 16, at) {
                Some((value, len)) => {
                    out.push(value);
                    at += len;
                }
                None => out.push(b'x'),
            },
            b'0'..=b'7' => {
                if let Some((value, len)) = number(3, 8, at - 1) {
                    out.push(value);
                    at += len - 1;
                }
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the text in pieces of every size: the cuts must not matter.
    fn read(format: &CopyFormat, text: &str) -> Vec<Fields> {
        let mut first: Option<Vec<Fields>> = None;
        for piece in 1..=text.len().max(1) {
            let mut reader = LineReader::new(format.clone());
            let mut lines = Vec::new();
            for chunk in text.as_bytes().chunks(piece) {
                reader.push(chunk);
                while let Some(fields) = reader.next(false).unwrap() {
                    lines.push(fields);
                }
            }
            while let Some(fields) = reader.next(true).unwrap() {
                lines.push(fields);
            }
            match &first {
                None => first = Some(lines),
                Some(first) => assert_eq!(*first, lines, "in pieces of {piece}"),
            }
        }
        first.unwrap_or_default()
    }

    fn some(texts: &[&str]) -> Fields {
        texts.iter().map(|t| Some((*t).to_owned())).collect()
    }

    #[test]
    fn csv() {
        use datafusion::sql::sqlparser::ast::{CopyOption, Ident};
        let format = CopyFormat::new(&[CopyOption::Format(Ident::new("csv")), CopyOption::Header(true)]).unwrap();
        let text = "a,b\r\n1,x\r\n\"2\",\"a,\"\"b\"\"\nc\"\n3,\n4,\"\"\n5,é";
        let lines = read(&format, text);
        assert_eq!(lines[0], some(&["1", "x"]));
        assert_eq!(lines[1], some(&["2", "a,\"b\"\nc"]));
        assert_eq!(lines[2], vec![Some("3".to_owned()), None]);
        assert_eq!(lines[3], some(&["4", ""]));
        assert_eq!(lines[4], some(&["5", "é"]));
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn text() {
        let format = CopyFormat::new(&[]).unwrap();
        let lines = read(&format, "1\ta\\tb\\\\\n2\t\\N\n3\t\\x41\\102\\n\n\\.\n9\tnot any more\n");
        assert_eq!(lines[0], some(&["1", "a\tb\\"]));
        assert_eq!(lines[1], vec![Some("2".to_owned()), None]);
        assert_eq!(lines[2], some(&["3", "AB\n"]));
        assert_eq!(lines.len(), 3);
    }

    /// A backslash makes the line end after it part of the field, also at the end of the data.
    #[test]
    fn line_ends_behind_backslashes_are_data() {
        let format = CopyFormat::new(&[]).unwrap();
        let lines = read(&format, "1\tx\\\n\n2\ty\\\r\n3\tz\r\n4\tu\\\\\r\n5\tv\r\r\n6\tw\\\n7\tx\\");
        assert_eq!(lines[0], some(&["1", "x\n"]));
        assert_eq!(lines[1], some(&["2", "y\r"]));
        assert_eq!(lines[2], some(&["3", "z"]));
        assert_eq!(lines[3], some(&["4", "u\\"]));
        assert_eq!(lines[4], some(&["5", "v\r"]));
        // No character follows a backslash at the end of the data.
        assert_eq!(lines[5], some(&["6", "w\n7", "x"]));
        assert_eq!(lines.len(), 6);
    }

    /// A message of 4 MB took a minute when each consumed line moved all bytes after it.
    #[test]
    fn a_line_that_is_taken_moves_no_other() {
        let mut reader = LineReader::new(CopyFormat::new(&[]).unwrap());
        reader.push(&b"1\ta\n".repeat(1_000));
        let place = reader.pending.as_ptr_range();
        for _ in 0..1_000 {
            assert_eq!(reader.next(false).unwrap(), Some(some(&["1", "a"])));
            assert_eq!(reader.pending.as_ptr_range(), place);
        }
        assert_eq!(reader.next(false).unwrap(), None);
        // The next message removes the consumed bytes.
        reader.push(b"2");
        assert_eq!((reader.pending.as_slice(), reader.line()), (&b"2"[..], 1_000));
        reader.push(b"\tb\n\\.\n3\tc\n");
        assert_eq!(reader.next(false).unwrap(), Some(some(&["2", "b"])));
        assert_eq!(reader.next(false).unwrap(), None);
        let held = reader.pending.len();
        reader.push(&[b'x'; 1_000]);
        assert!(reader.pending.len() <= held);
        assert_eq!(reader.next(true).unwrap(), None);
    }

    #[test]
    fn what_is_no_line() {
        use datafusion::sql::sqlparser::ast::{CopyOption, Ident};
        let format = CopyFormat::new(&[CopyOption::Format(Ident::new("csv"))]).unwrap();
        let mut reader = LineReader::new(format);
        reader.push(b"1,\"open\n");
        assert_eq!(reader.next(true).unwrap_err().state.code(), "22P04");
    }
}
