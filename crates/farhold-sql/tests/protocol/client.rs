//! A client with full control over the bytes it sends.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// No test takes this long; a test that hangs fails here.
const TIMEOUT: Duration = Duration::from_mins(5);

/// A message of the server: its tag and its body.
pub type Answer = (u8, Vec<u8>);

/// A connection to a server.
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
}

/// A `StartupMessage` of protocol 3.`minor`.
pub fn startup(minor: u16, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = (3_u32 << 16 | u32::from(minor)).to_be_bytes().to_vec();
    for (name, value) in parameters {
        body.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    body.push(0);
    [&(u32::try_from(body.len()).unwrap() + 4).to_be_bytes()[..], &body].concat()
}

/// A message with a tag.
pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(u32::try_from(body.len()).unwrap() + 4).to_be_bytes(), body].concat()
}

/// The Query message.
pub fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

/// The Parse message.
pub fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat())
}

/// The Bind message with parameters and results in text format.
pub fn bind(portal: &str, statement: &str, parameters: &[&str]) -> Vec<u8> {
    let mut body = [portal.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\0"].concat();
    body.extend(u16::try_from(parameters.len()).unwrap().to_be_bytes());
    for parameter in parameters {
        body.extend(u32::try_from(parameter.len()).unwrap().to_be_bytes());
        body.extend(parameter.as_bytes());
    }
    body.extend([0, 0]);
    message(b'B', &body)
}

/// The Execute message.
pub fn execute(portal: &str, rows_max: u32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &rows_max.to_be_bytes()].concat())
}

/// The Describe message for a portal (`P`) or statement (`S`).
pub fn describe(kind: u8, name: &str) -> Vec<u8> {
    message(b'D', &[&[kind], name.as_bytes(), b"\0"].concat())
}

/// The Sync message.
pub fn sync() -> Vec<u8> {
    message(b'S', b"")
}

impl Client {
    /// Connects without sending anything.
    pub fn open(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, input: Vec::new() }
    }

    /// Connects and waits until the session is ready.
    pub fn connect(to: SocketAddr) -> Self {
        let mut client = Self::open(to);
        client.send(&startup(0, &[("user", "test"), ("database", "farhold")]));
        let answers = client.until_ready();
        assert_eq!(tags(&answers).last(), Some(&b'Z'), "{answers:?}");
        client
    }

    /// Sends bytes. The server may already have closed the connection, so errors are ignored.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The same connection, for sending while another thread reads.
    pub fn duplicate(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), input: Vec::new() }
    }

    /// Sends bytes and closes the sending direction.
    pub fn send_last(&mut self, bytes: &[u8]) {
        self.send(bytes);
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads one byte outside of any message: the answer to a request for TLS.
    pub fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// The next message; `None` at the end of the stream.
    pub fn answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(length) = self.input.get(1..5) {
                let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
                if self.input.len() > length {
                    let rest = self.input.split_off(length + 1);
                    let whole = std::mem::replace(&mut self.input, rest);
                    return Some((whole[0], whole[5..].to_vec()));
                }
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(count @ 1..) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    panic!("the server says nothing")
                }
                // The end of the stream, or a reset.
                _ => return None,
            }
        }
    }

    /// All messages up to the next `ReadyForQuery` or the end of the stream.
    pub fn until_ready(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(answer) = self.answer() {
            let is_ready = answer.0 == b'Z';
            answers.push(answer);
            if is_ready {
                break;
            }
        }
        answers
    }

    /// All messages up to the end of the stream.
    pub fn until_end(&mut self) -> Vec<Answer> {
        std::iter::from_fn(|| self.answer()).collect()
    }

    /// Sends bytes and waits until the server is ready again.
    pub fn ask(&mut self, bytes: &[u8]) -> Vec<Answer> {
        self.send(bytes);
        self.until_ready()
    }

    /// Runs statements with the simple protocol; none may fail.
    pub fn run(&mut self, sql: &str) {
        let answers = self.ask(&query(sql));
        assert!(error(&answers).is_none(), "{sql}: {answers:?}");
    }

    /// The values of a query's rows, as text.
    pub fn rows(&mut self, sql: &str) -> Vec<Vec<String>> {
        let answers = self.ask(&query(sql));
        assert!(error(&answers).is_none(), "{sql}: {answers:?}");
        rows(&answers)
    }
}

/// The tags of the messages.
pub fn tags(answers: &[Answer]) -> Vec<u8> {
    answers.iter().map(|(tag, _)| *tag).collect()
}

/// The SQLSTATE of the first error.
pub fn error(answers: &[Answer]) -> Option<String> {
    let (_, body) = answers.iter().find(|(tag, _)| *tag == b'E')?;
    let mut fields = body.split(|&byte| byte == 0);
    let state = fields.find_map(|field| field.strip_prefix(b"C"))?;
    Some(String::from_utf8(state.to_vec()).unwrap())
}

/// The transaction status of the last `ReadyForQuery`.
pub fn status(answers: &[Answer]) -> u8 {
    answers.iter().rfind(|(tag, _)| *tag == b'Z').expect("ready").1[0]
}

/// The values of rows in text format; NULL as `NULL`.
pub fn rows(answers: &[Answer]) -> Vec<Vec<String>> {
    let row = |body: &[u8]| {
        let mut rest = &body[2..];
        let mut values = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = usize::try_from(i32::from_be_bytes(*length));
            let (value, after) = after.split_at(length.unwrap_or(0));
            values.push(length.map_or("NULL".to_owned(), |_| String::from_utf8(value.to_vec()).unwrap()));
            rest = after;
        }
        values
    };
    answers.iter().filter(|(tag, _)| *tag == b'D').map(|(_, body)| row(body)).collect()
}
