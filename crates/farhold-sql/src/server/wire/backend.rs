//! The server's messages, written directly to the output buffer.
//!
//! A message is opened with its tag, its fields are appended, and closing it fills in the length; nothing is copied
//! twice.

use crate::error::SqlError;

/// A connection's output, buffered until it is flushed.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// The end of the last complete message.
    whole: usize,
}

/// A message being written: the position of its length.
#[must_use]
#[derive(Debug)]
pub struct Open(usize);

/// The status of `ReadyForQuery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Outside of a transaction block.
    Idle,
    /// In a transaction block.
    Open,
    /// In a failed transaction block.
    Failed,
}

/// The severity of an error or notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// An informational message.
    Notice,
    /// A warning.
    Warning,
    /// The statement has failed.
    Error,
    /// The connection ends.
    Fatal,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// A step of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// Authentication is complete.
    Ok,
    /// The SASL mechanisms to choose from.
    Sasl(&'a [&'a str]),
    /// A challenge.
    SaslContinue(&'a str),
    /// The server's proof.
    SaslFinal(&'a str),
}

impl Output {
    /// The buffered output.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties the buffer after it was sent. The allocation is kept, unless it has grown large.
    pub fn sent(&mut self) {
        const KEEP_BYTES_MAX: usize = 256 << 10;
        if self.bytes.capacity() > KEEP_BYTES_MAX {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
        self.whole = 0;
    }

    /// Removes a message that was opened last and will not be closed.
    pub fn drop_unfinished(&mut self) {
        self.bytes.truncate(self.whole);
    }

    /// The buffer, for the value encoders to append to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Opens a message.
    pub fn open(&mut self, tag: u8) -> Open {
        self.whole = self.bytes.len();
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&[0; 4]);
        Open(self.bytes.len() - 4)
    }

    /// The length of an open message in bytes.
    pub fn length_of(&self, message: &Open) -> usize {
        self.bytes.len() - message.0
    }

    /// Closes the message.
    pub fn close(&mut self, message: &Open) {
        let length = u32::try_from(self.bytes.len() - message.0).expect("a message below 4 GiB");
        self.bytes[message.0..message.0 + 4].copy_from_slice(&length.to_be_bytes());
        self.whole = self.bytes.len();
    }

    fn empty(&mut self, tag: u8) {
        self.bytes.extend_from_slice(&[tag, 0, 0, 0, 4]);
        self.whole = self.bytes.len();
    }

    /// A two-byte integer.
    pub fn i16(&mut self, value: i16) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// A two-byte count.
    pub fn count(&mut self, count: usize) {
        let count = u16::try_from(count).expect("fewer than 65536 columns");
        self.bytes.extend_from_slice(&count.to_be_bytes());
    }

    /// A four-byte integer.
    pub fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// An unsigned four-byte integer.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// A text and a zero byte; zero bytes within the text are left out.
    pub fn c_string(&mut self, text: &str) {
        self.bytes.extend(text.bytes().filter(|&byte| byte != 0));
        self.bytes.push(0);
    }

    /// `ParseComplete`.
    pub fn parse_complete(&mut self) {
        self.empty(b'1');
    }

    /// `BindComplete`.
    pub fn bind_complete(&mut self) {
        self.empty(b'2');
    }

    /// `CloseComplete`.
    pub fn close_complete(&mut self) {
        self.empty(b'3');
    }

    /// `NoData`.
    pub fn no_data(&mut self) {
        self.empty(b'n');
    }

    /// `PortalSuspended`.
    pub fn portal_suspended(&mut self) {
        self.empty(b's');
    }

    /// `EmptyQueryResponse`.
    pub fn empty_query(&mut self) {
        self.empty(b'I');
    }

    /// `CopyDone`.
    pub fn copy_done(&mut self) {
        self.empty(b'c');
    }

    /// `CommandComplete`.
    pub fn command_complete(&mut self, tag: impl std::fmt::Display) {
        use std::io::Write as _;
        let message = self.open(b'C');
        write!(self.bytes, "{tag}").expect("a vector takes everything");
        self.bytes.push(0);
        self.close(&message);
    }

    /// `ReadyForQuery`.
    pub fn ready_for_query(&mut self, status: Status) {
        let status = match status {
            Status::Idle => b'I',
            Status::Open => b'T',
            Status::Failed => b'E',
        };
        self.bytes.extend_from_slice(&[b'Z', 0, 0, 0, 5, status]);
        self.whole = self.bytes.len();
    }

    /// `ParameterStatus`.
    pub fn parameter_status(&mut self, name: &str, value: &str) {
        let message = self.open(b'S');
        self.c_string(name);
        self.c_string(value);
        self.close(&message);
    }

    /// `BackendKeyData`.
    pub fn backend_key_data(&mut self, process: i32, secret: &[u8]) {
        let message = self.open(b'K');
        self.i32(process);
        self.bytes.extend_from_slice(secret);
        self.close(&message);
    }

    /// `NegotiateProtocolVersion`.
    pub fn negotiate_protocol_version(&mut self, minor: u16, unknown_options: &[&str]) {
        let message = self.open(b'v');
        self.i32((3 << 16) | i32::from(minor));
        self.i32(i32::try_from(unknown_options.len()).expect("a start-up packet is small"));
        for option in unknown_options {
            self.c_string(option);
        }
        self.close(&message);
    }

    /// `Authentication…`.
    pub fn authentication(&mut self, step: Authentication<'_>) {
        let message = self.open(b'R');
        match step {
            Authentication::Ok => self.i32(0),
            Authentication::Sasl(mechanisms) => {
                self.i32(10);
                for mechanism in mechanisms {
                    self.c_string(mechanism);
                }
                self.bytes.push(0);
            }
            Authentication::SaslContinue(data) => {
                self.i32(11);
                self.bytes.extend_from_slice(data.as_bytes());
            }
            Authentication::SaslFinal(data) => {
                self.i32(12);
                self.bytes.extend_from_slice(data.as_bytes());
            }
        }
        self.close(&message);
    }

    /// `ParameterDescription`.
    pub fn parameter_description(&mut self, types: impl ExactSizeIterator<Item = u32>) {
        let message = self.open(b't');
        self.count(types.len());
        for oid in types {
            self.u32(oid);
        }
        self.close(&message);
    }

    /// `CopyInResponse` or `CopyOutResponse` (`tag` `G` or `H`) in text format.
    pub fn copy_response(&mut self, tag: u8, columns: usize) {
        let message = self.open(tag);
        self.bytes.push(0);
        self.count(columns);
        for _ in 0..columns {
            self.i16(0);
        }
        self.close(&message);
    }

    /// `CopyData`.
    pub fn copy_data(&mut self, data: &[u8]) {
        let message = self.open(b'd');
        self.bytes.extend_from_slice(data);
        self.close(&message);
    }

    /// `ErrorResponse` or `NoticeResponse`.
    pub fn report(&mut self, severity: Severity, error: &SqlError) {
        let tag = if matches!(severity, Severity::Error | Severity::Fatal) { b'E' } else { b'N' };
        let message = self.open(tag);
        self.report_field(b'S', severity.word());
        self.report_field(b'V', severity.word());
        self.report_field(b'C', error.state.code());
        self.report_field(b'M', &error.message);
        let optional = [(b'D', &error.detail), (b'H', &error.hint), (b't', &error.table), (b'n', &error.constraint)];
        for (tag, text) in optional {
            if let Some(text) = text {
                self.report_field(tag, text);
            }
        }
        if let Some(position) = error.position {
            self.report_field(b'P', &position.to_string());
        }
        self.bytes.push(0);
        self.close(&message);
    }

    fn report_field(&mut self, tag: u8, text: &str) {
        self.bytes.push(tag);
        self.c_string(text);
    }
}
