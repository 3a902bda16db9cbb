//! The messages of a client after start-up. All data is borrowed from the input buffer.

use super::{Fields, Malformed};

/// The tags of messages with long bodies; the bodies of all others are limited to [`SMALL_BYTES_MAX`].
const LONG: &[u8] = b"QPBdF";
/// PostgreSQL's limit for short messages.
const SMALL_BYTES_MAX: usize = 10_000;

/// A message of a client. Strings are bytes: invalid UTF-8 has an SQLSTATE of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Statements with results in text format.
    Query(&'a [u8]),
    /// Creates a prepared statement.
    Parse(Parse<'a>),
    /// Creates a portal.
    Bind(Bind<'a>),
    /// Asks for the columns of a statement or portal.
    Describe(Target<'a>),
    /// Executes a portal.
    Execute {
        /// Its name.
        portal: &'a [u8],
        /// The maximum number of rows to send; 0: all.
        rows_max: i32,
    },
    /// Closes a statement or portal.
    Close(Target<'a>),
    /// Ends the batch.
    Sync,
    /// Asks for all pending output.
    Flush,
    /// COPY data.
    CopyData(&'a [u8]),
    /// The end of COPY data.
    CopyDone,
    /// Aborts the COPY.
    CopyFail(&'a [u8]),
    /// A step of authentication.
    Password(&'a [u8]),
    /// A function call, which is not supported.
    FunctionCall,
    /// Closes the connection.
    Terminate,
}

/// The Parse message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parse<'a> {
    /// The statement's name.
    pub statement: &'a [u8],
    /// The statement's text.
    pub sql: &'a [u8],
    /// The OIDs of the parameter types that the client states, four bytes each.
    types: &'a [u8],
}

/// The Bind message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind<'a> {
    /// The portal's name.
    pub portal: &'a [u8],
    /// The statement's name.
    pub statement: &'a [u8],
    /// The formats of the parameters.
    pub parameter_formats: Formats<'a>,
    /// The number of parameters.
    pub parameter_count: usize,
    values: Fields<'a>,
    /// The formats of the result's columns.
    pub result_formats: Formats<'a>,
}

/// Format codes: none (all text), one for all values, or one for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats<'a> {
    codes: &'a [u8],
}

/// The format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text, as psql shows it.
    Text,
    /// Binary, big-endian.
    Binary,
}

/// The target of Describe and Close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A prepared statement.
    Statement(&'a [u8]),
    /// A portal.
    Portal(&'a [u8]),
}

impl PartialEq for Fields<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rest() == other.rest()
    }
}
impl Eq for Fields<'_> {}

/// The maximum length of the body of a message; an unknown tag is rejected before its length is used.
pub fn body_bytes_max(tag: u8, long_bytes_max: usize) -> Result<usize, Malformed> {
    match tag {
        tag if LONG.contains(&tag) => Ok(long_bytes_max),
        b'D' | b'E' | b'C' | b'S' | b'H' | b'c' | b'f' | b'p' | b'X' => Ok(SMALL_BYTES_MAX.min(long_bytes_max)),
        _ => Err(Malformed("invalid frontend message type")),
    }
}

/// Parses one message.
pub fn message(tag: u8, body: &[u8]) -> Result<Message<'_>, Malformed> {
    let mut fields = Fields::new(body);
    let message = match tag {
        b'Q' => Message::Query(fields.c_string()?),
        b'P' => Message::Parse(parse(&mut fields)?),
        b'B' => Message::Bind(bind(&mut fields)?),
        b'D' => Message::Describe(target(&mut fields)?),
        b'E' => Message::Execute { portal: fields.c_string()?, rows_max: fields.i32()? },
        b'C' => Message::Close(target(&mut fields)?),
        b'S' => Message::Sync,
        b'H' => Message::Flush,
        b'c' => Message::CopyDone,
        b'f' => Message::CopyFail(fields.c_string()?),
        b'X' => Message::Terminate,
        // The body as a whole.
        b'd' => return Ok(Message::CopyData(body)),
        b'p' => return Ok(Message::Password(body)),
        b'F' => return Ok(Message::FunctionCall),
        _ => return Err(Malformed("invalid frontend message type")),
    };
    fields.end()?;
    Ok(message)
}

fn parse<'a>(fields: &mut Fields<'a>) -> Result<Parse<'a>, Malformed> {
    let statement = fields.c_string()?;
    let sql = fields.c_string()?;
    let count = fields.count()?;
    Ok(Parse { statement, sql, types: fields.bytes(4 * count)? })
}

fn bind<'a>(fields: &mut Fields<'a>) -> Result<Bind<'a>, Malformed> {
    let portal = fields.c_string()?;
    let statement = fields.c_string()?;
    let parameter_formats = formats(fields)?;
    let parameter_count = fields.count()?;
    let values = fields.clone();
    for _ in 0..parameter_count {
        fields.value()?;
    }
    let result_formats = formats(fields)?;
    Ok(Bind { portal, statement, parameter_formats, parameter_count, values, result_formats })
}

fn formats<'a>(fields: &mut Fields<'a>) -> Result<Formats<'a>, Malformed> {
    let count = fields.count()?;
    Ok(Formats { codes: fields.bytes(2 * count)? })
}

fn target<'a>(fields: &mut Fields<'a>) -> Result<Target<'a>, Malformed> {
    match fields.u8()? {
        b'S' => Ok(Target::Statement(fields.c_string()?)),
        b'P' => Ok(Target::Portal(fields.c_string()?)),
        _ => Err(Malformed("invalid subtype of a Describe or Close message")),
    }
}

impl<'a> Parse<'a> {
    /// The OIDs that the client states; 0: not stated.
    pub fn types(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.types.chunks_exact(4).map(|oid| u32::from_be_bytes(oid.try_into().expect("four bytes")))
    }
}

impl<'a> Bind<'a> {
    /// The parameters in order with their formats; `None` for NULL.
    pub fn parameters(&self) -> impl Iterator<Item = (Option<&'a [u8]>, Format)> {
        let mut values = self.values.clone();
        (0..self.parameter_count)
            .map(move |index| (values.value().expect("walked once by bind"), self.parameter_formats.of(index)))
    }
}

impl<'a> Formats<'a> {
    /// All values in text format, as in a simple query.
    pub const TEXT: Formats<'static> = Formats { codes: &[] };

    /// From format codes of two bytes each.
    pub fn of_codes(codes: &[u8]) -> Formats<'_> {
        Formats { codes }
    }

    /// The format codes, two bytes each.
    pub fn codes(self) -> &'a [u8] {
        self.codes
    }

    /// The number of format codes.
    pub fn count(&self) -> usize {
        self.codes.len() / 2
    }

    /// The first invalid format code.
    pub fn unsupported(&self) -> Option<i16> {
        let mut codes = self.codes.chunks_exact(2).map(|code| i16::from_be_bytes(code.try_into().expect("two bytes")));
        codes.find(|code| !matches!(code, 0 | 1))
    }

    /// The format of the value at `index`; text if there is no code for it.
    pub fn of(&self, index: usize) -> Format {
        let index = if self.count() == 1 { 0 } else { index };
        match self.codes.get(2 * index + 1) {
            Some(1) => Format::Binary,
            _ => Format::Text,
        }
    }
}

impl Format {
    /// The format code.
    pub fn code(self) -> i16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}
