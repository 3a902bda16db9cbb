//! What a client says once its session stands. Everything is borrowed from the input.

use super::{Fields, Malformed};

/// Bodies of these kinds may be long; all others stay below [`SMALL_BYTES_MAX`].
const LONG: &[u8] = b"QPBdF";
/// PostgreSQL's own limit for messages that have no reason to be long.
const SMALL_BYTES_MAX: usize = 10_000;

/// A message of a client. Strings are bytes: whether they are UTF-8 is a question with an SQLSTATE of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Statements, and their answer in text.
    Query(&'a [u8]),
    /// Make a prepared statement.
    Parse(Parse<'a>),
    /// Make a portal.
    Bind(Bind<'a>),
    /// Tell the shape of a statement or portal.
    Describe(Target<'a>),
    /// Run a portal; at most so many rows, 0 = all.
    Execute {
        /// Its name.
        portal: &'a [u8],
        /// The most rows to send; 0 = all.
        rows_max: i32,
    },
    /// Forget a statement or portal.
    Close(Target<'a>),
    /// The batch ends here.
    Sync,
    /// Send what you have.
    Flush,
    /// COPY data.
    CopyData(&'a [u8]),
    /// The end of COPY data.
    CopyDone,
    /// Give the COPY up.
    CopyFail(&'a [u8]),
    /// A step of authentication.
    Password(&'a [u8]),
    /// The fast path that nobody uses.
    FunctionCall,
    /// Good-bye.
    Terminate,
}

/// Parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parse<'a> {
    /// The statement's name.
    pub statement: &'a [u8],
    /// Its text.
    pub sql: &'a [u8],
    /// The types that the client states, four bytes each.
    types: &'a [u8],
}

/// Bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind<'a> {
    /// The portal's name.
    pub portal: &'a [u8],
    /// The statement's name.
    pub statement: &'a [u8],
    /// The formats of the parameters.
    pub parameter_formats: Formats<'a>,
    /// How many parameters there are.
    pub parameter_count: usize,
    values: Fields<'a>,
    /// The formats of the result's columns.
    pub result_formats: Formats<'a>,
}

/// Format codes: none (all text), one for all, or one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats<'a> {
    codes: &'a [u8],
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As in a psql table.
    Text,
    /// Big-endian.
    Binary,
}

/// What Describe and Close speak of.
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

/// The longest body that a message of `tag` may have; an unknown tag is refused before its length is believed.
pub fn body_bytes_max(tag: u8, long_bytes_max: usize) -> Result<usize, Malformed> {
    match tag {
        tag if LONG.contains(&tag) => Ok(long_bytes_max),
        b'D' | b'E' | b'C' | b'S' | b'H' | b'c' | b'f' | b'p' | b'X' => Ok(SMALL_BYTES_MAX.min(long_bytes_max)),
        _ => Err(Malformed("invalid frontend message type")),
    }
}

/// Reads one message.
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
        // These three are taken whole.
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
    /// The OIDs that the client states, 0 = not stated.
    pub fn types(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.types.chunks_exact(4).map(|oid| u32::from_be_bytes(oid.try_into().expect("four bytes")))
    }
}

impl<'a> Bind<'a> {
    /// The parameters in order, null as `None`, each with its format.
    pub fn parameters(&self) -> impl Iterator<Item = (Option<&'a [u8]>, Format)> {
        let mut values = self.values.clone();
        (0..self.parameter_count)
            .map(move |index| (values.value().expect("walked once by bind"), self.parameter_formats.of(index)))
    }
}

impl<'a> Formats<'a> {
    /// All text, as in a simple query.
    pub const TEXT: Formats<'static> = Formats { codes: &[] };

    /// These codes, two bytes each.
    pub fn of_codes(codes: &[u8]) -> Formats<'_> {
        Formats { codes }
    }

    /// The codes, two bytes each.
    pub fn codes(self) -> &'a [u8] {
        self.codes
    }

    /// How many codes there are.
    pub fn count(&self) -> usize {
        self.codes.len() / 2
    }

    /// The first code that is none of a format.
    pub fn unsupported(&self) -> Option<i16> {
        let mut codes = self.codes.chunks_exact(2).map(|code| i16::from_be_bytes(code.try_into().expect("two bytes")));
        codes.find(|code| !matches!(code, 0 | 1))
    }

    /// The format of the value at `index`; text beyond the end.
    pub fn of(&self, index: usize) -> Format {
        let index = if self.count() == 1 { 0 } else { index };
        match self.codes.get(2 * index + 1) {
            Some(1) => Format::Binary,
            _ => Format::Text,
        }
    }
}

impl Format {
    /// Its code.
    pub fn code(self) -> i16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}
