//! The first packets of a connection, which have no tag: `length:i32 code:i32 …`.

use super::{Fields, Malformed};

/// PostgreSQL's own limit.
const STARTUP_BYTES_MAX: usize = 10_000;
const SSL_REQUEST: u32 = 0x04d2_162f;
const GSS_ENCRYPTION_REQUEST: u32 = 0x04d2_1630;
const CANCEL_REQUEST: u32 = 0x04d2_162e;

/// The newest supported minor version of protocol 3.
pub const NEWEST_MINOR: u16 = 2;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening<'a> {
    /// Requests TLS.
    Tls,
    /// Requests GSSAPI encryption.
    GssEncryption,
    /// Cancels the statement of another connection.
    Cancel {
        /// The process ID of that connection.
        process: i32,
        /// The secret key of that connection.
        secret: &'a [u8],
    },
    /// Starts a session.
    Session(SessionRequest<'a>),
}

/// The `StartupMessage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest<'a> {
    /// The major version, 3.
    pub major: u16,
    /// The minor version requested.
    pub minor: u16,
    /// Names and values in the order of the packet.
    pub parameters: Vec<(&'a str, &'a str)>,
}

/// Parses the first packet from the start of `pending` and returns it with its length in bytes, or `None` if it is
/// incomplete.
pub fn opening(pending: &[u8]) -> Result<Option<(Opening<'_>, usize)>, Malformed> {
    let Some(length) = pending.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else { return Ok(None) };
    let length = usize::try_from(length).map_err(|_| Malformed("invalid length of startup packet"))?;
    if !(8..=STARTUP_BYTES_MAX).contains(&length) {
        return Err(Malformed("invalid length of startup packet"));
    }
    let Some(packet) = pending.get(4..length) else { return Ok(None) };
    let mut fields = Fields::new(packet);
    let opening = match fields.u32()? {
        SSL_REQUEST => Opening::Tls,
        GSS_ENCRYPTION_REQUEST => Opening::GssEncryption,
        CANCEL_REQUEST => Opening::Cancel { process: fields.i32()?, secret: fields.rest() },
        version => Opening::Session(session_request(version, fields)?),
    };
    Ok(Some((opening, length)))
}

fn session_request(version: u32, mut fields: Fields<'_>) -> Result<SessionRequest<'_>, Malformed> {
    const LAYOUT: Malformed = Malformed("invalid startup packet layout: expected terminator as last byte");
    let [major, minor] = [version >> 16, version & 0xffff].map(|half| u16::try_from(half).expect("16 bits"));
    let mut parameters = Vec::new();
    if major == 3 {
        loop {
            let name = text(fields.c_string().map_err(|_| LAYOUT)?)?;
            if name.is_empty() {
                break;
            }
            parameters.push((name, text(fields.c_string().map_err(|_| LAYOUT)?)?));
        }
        fields.end().map_err(|_| LAYOUT)?;
    }
    Ok(SessionRequest { major, minor, parameters })
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("invalid byte sequence in startup packet"))
}
