//! Opens a session: TLS, the start-up packet, authentication, the session's parameters.

use tokio::io::AsyncWriteExt as _;

use super::socket::Socket;
use super::wire::Wire;
use super::{Connection, Failure, Settings};
use crate::error::{SqlError, SqlState};
use crate::server::acceptor::Place;
use crate::server::auth::{Exchange, MECHANISM, Step, Users};
use crate::server::config::Authentication;
use crate::server::front_end::FrontEnd;
use crate::server::wire::backend::{Authentication as AuthenticationStep, Output, Severity};
use crate::server::wire::frontend::{self, Message};
use crate::server::wire::input::Input;
use crate::server::wire::startup::{NEWEST_MINOR, Opening, opening};
use crate::server::wire::{Fields, Malformed};

/// The contents of the start-up packet.
struct Request {
    minor: u16,
    user: String,
    /// Settings for the session, in their original order.
    settings: Vec<(String, String)>,
}

/// The message size limit before authentication. SCRAM messages have some hundred bytes.
const UNAUTHENTICATED_BYTES_MAX: usize = 4096;

/// Opens a connection; `None` if it has already ended: by a cancel request, a refusal, or a disconnect.
pub async fn open(front_end: &FrontEnd, socket: Socket, place: Place) -> Option<Connection> {
    let long_bytes_max = front_end.shared.config.limits.message_bytes_max;
    let message_bytes_max = UNAUTHENTICATED_BYTES_MAX.min(long_bytes_max);
    let mut wire = Wire { socket, input: Input::default(), output: Output::default(), message_bytes_max };
    let request = match greet(front_end, &mut wire).await {
        Ok(Some(request)) => request,
        Ok(None) => return None,
        Err(failure) => return refuse(wire, failure).await,
    };
    if place.is_above_limit() {
        let error = SqlError::new(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already");
        return refuse(wire, Failure::Fatal(error)).await;
    }
    if let Err(failure) = authenticate(front_end, &mut wire, &request.user).await {
        return refuse(wire, failure).await;
    }
    wire.message_bytes_max = long_bytes_max;
    establish(front_end, wire, &request, place).await
}

/// Sends the error and closes the connection.
async fn refuse(mut wire: Wire, failure: Failure) -> Option<Connection> {
    if let Failure::Statement(error) | Failure::Fatal(error) = failure {
        wire.output.report(Severity::Fatal, &error);
        close_gracefully(&mut wire).await;
    }
    None
}

/// Sends the remaining output and closes the connection in an orderly way. Further input is read and dropped: if a
/// socket is closed with unread bytes, the kernel resets the connection, and the client may lose the last messages.
pub async fn close_gracefully(wire: &mut Wire) {
    const PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);
    const DROPPED_BYTES_MAX: usize = 16 << 20;
    let closing = async {
        wire.flush().await.ok()?;
        wire.socket.shutdown().await.ok()?;
        let mut dropped = 0;
        while dropped < DROPPED_BYTES_MAX {
            wire.input.take(wire.input.pending().len());
            dropped += wire.input.fill(&mut wire.socket).await.ok().filter(|&count| count > 0)?;
        }
        Some(())
    };
    let _ = tokio::time::timeout(PATIENCE, closing).await;
}

async fn greet(front_end: &FrontEnd, wire: &mut Wire) -> Result<Option<Request>, Failure> {
    loop {
        let Some((found, length)) = opening(wire.input.pending())? else {
            wire.fill().await?;
            continue;
        };
        match found {
            Opening::Cancel { process, secret } => {
                front_end.shared.cancel.cancel(process, secret);
                return Ok(None);
            }
            Opening::GssEncryption => {
                wire.input.take(length);
                answer(wire, b"N").await?;
            }
            Opening::Tls => {
                wire.input.take(length);
                let Some(tls) = front_end.shared.config.tls.as_ref().filter(|_| wire.socket.takes_tls()) else {
                    answer(wire, b"N").await?;
                    continue;
                };
                // Bytes received before the TLS handshake must not be treated as encrypted ones (CVE-2021-23214).
                if !wire.input.pending().is_empty() {
                    return Err(Malformed("received unencrypted data after SSL request").into());
                }
                answer(wire, b"S").await?;
                upgrade(wire, tls).await?;
            }
            Opening::Session(request) => {
                let request = read_request(&request, &mut wire.output)?;
                wire.input.take(length);
                return Ok(Some(request));
            }
        }
    }
}

async fn answer(wire: &mut Wire, byte: &[u8; 1]) -> Result<(), Failure> {
    wire.socket.write_all(byte).await.map_err(|_| Failure::Gone)?;
    wire.socket.flush().await.map_err(|_| Failure::Gone)
}

async fn upgrade(wire: &mut Wire, tls: &crate::server::tls::Tls) -> Result<(), Failure> {
    // The handshake takes the socket by value; a placeholder replaces it meanwhile.
    let (stand_in, _) = tokio::net::UnixStream::pair().map_err(|_| Failure::Gone)?;
    let socket = std::mem::replace(&mut wire.socket, Socket::Unix(stand_in));
    wire.socket = socket.with_tls(tls).await.map_err(|_| Failure::Gone)?;
    Ok(())
}

fn read_request(
    request: &crate::server::wire::startup::SessionRequest<'_>,
    output: &mut Output,
) -> Result<Request, Failure> {
    let fatal = |state, message: String| Failure::Fatal(SqlError::new(state, message));
    if request.major != 3 {
        let message = format!(
            "unsupported frontend protocol {}.{}: server supports 3.0 to 3.{NEWEST_MINOR}",
            request.major, request.minor
        );
        return Err(fatal(SqlState::FEATURE_NOT_SUPPORTED, message));
    }
    let unknown: Vec<&str> =
        request.parameters.iter().map(|(name, _)| *name).filter(|name| name.starts_with("_pq_.")).collect();
    let minor = request.minor.min(NEWEST_MINOR);
    if request.minor > NEWEST_MINOR || !unknown.is_empty() {
        output.negotiate_protocol_version(minor, &unknown);
    }
    let mut user = None;
    let mut settings = Vec::new();
    for &(name, value) in &request.parameters {
        match name {
            "user" => user = Some(value.to_owned()),
            // A server has only one database, so any name is accepted.
            "database" => {}
            "replication" if matches!(value, "false" | "off" | "no" | "0") => {}
            "replication" => {
                return Err(Failure::Fatal(SqlError::unsupported("the replication protocol")));
            }
            "options" => settings.extend(command_line_settings(value)?),
            name if name.starts_with("_pq_.") => {}
            name => settings.push((name.to_owned(), value.to_owned())),
        }
    }
    let user = user.filter(|user| !user.is_empty()).ok_or_else(|| {
        fatal(SqlState::INVALID_AUTHORIZATION, "no PostgreSQL user name specified in startup packet".to_owned())
    })?;
    Ok(Request { minor, user, settings })
}

/// `-c name=value` and `--name=value`; a backslash escapes a space within a value.
fn command_line_settings(options: &str) -> Result<Vec<(String, String)>, Failure> {
    let mut words = vec![String::new()];
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => words.last_mut().expect("one word").extend(characters.next()),
            character if character.is_whitespace() => words.push(String::new()),
            character => words.last_mut().expect("one word").push(character),
        }
    }
    let mut settings = Vec::new();
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let assignment = match word.strip_prefix("-c") {
            Some("") => words.next(),
            Some(rest) => Some(rest.to_owned()),
            None => word.strip_prefix("--").map(|long| long.replacen('-', "_", usize::MAX)),
        };
        let setting = assignment.as_deref().and_then(|assignment| assignment.split_once('='));
        let Some((name, value)) = setting else {
            let message = format!("invalid command-line argument for server process: {word}");
            return Err(Failure::Fatal(SqlError::syntax(message)));
        };
        settings.push((name.to_owned(), value.to_owned()));
    }
    Ok(settings)
}

async fn authenticate(front_end: &FrontEnd, wire: &mut Wire, user: &str) -> Result<(), Failure> {
    match &front_end.shared.config.authentication {
        Authentication::Trust => Ok(()),
        Authentication::Passwords(users) => scram(front_end, wire, user, users).await,
    }
}

async fn scram(front_end: &FrontEnd, wire: &mut Wire, user: &str, users: &Users) -> Result<(), Failure> {
    let mut exchange = Exchange::new(user, users.verifier(user), &front_end.shared.secret);
    wire.output.authentication(AuthenticationStep::Sasl(&[MECHANISM]));
    let mut first = true;
    loop {
        let frame = wire.next_frame(&front_end.stopping).await?;
        let body = wire.input.body(&frame);
        let Message::Password(body) = frontend::message(frame.tag, body)? else {
            return Err(Malformed("expected SASL response").into());
        };
        let step = exchange.step(if first { initial_response(body)? } else { body });
        first = false;
        wire.input.release();
        match step {
            Step::Continue(challenge) => wire.output.authentication(AuthenticationStep::SaslContinue(&challenge)),
            Step::Accept(signature) => {
                wire.output.authentication(AuthenticationStep::SaslFinal(&signature));
                return Ok(());
            }
            Step::Reject => {
                let message = format!("password authentication failed for user \"{user}\"");
                return Err(Failure::Fatal(SqlError::new(SqlState::INVALID_PASSWORD, message)));
            }
            Step::Malformed(why) => return Err(Malformed(why).into()),
        }
    }
}

/// `mechanism, length, data`
fn initial_response(body: &[u8]) -> Result<&[u8], Malformed> {
    let mut fields = Fields::new(body);
    if fields.c_string()? != MECHANISM.as_bytes() {
        return Err(Malformed("client selected an invalid SASL authentication mechanism"));
    }
    let data = fields.value()?.ok_or(Malformed("SASL response without data"))?;
    fields.end()?;
    Ok(data)
}

/// Creates the session and reports that it is ready.
async fn establish(front_end: &FrontEnd, mut wire: Wire, request: &Request, place: Place) -> Option<Connection> {
    let shared = &front_end.shared;
    let mut session = shared.engine.session(std::rc::Rc::clone(&front_end.worker), &request.user);
    for (name, value) in &request.settings {
        if let Err(error) = session.set_parameter(name, value) {
            return refuse(wire, Failure::Fatal(error)).await;
        }
    }
    session.started();
    let cancel = session.cancel_handle();
    let registration = shared.cancel.register(cancel.clone(), request.minor);
    let output = &mut wire.output;
    output.authentication(AuthenticationStep::Ok);
    for (name, fallback) in REPORTED {
        let value = session.parameter(name);
        output.parameter_status(name, value.as_deref().unwrap_or(fallback));
    }
    // The loop above has already reported these changes.
    session.changed_parameters();
    output.backend_key_data(registration.process, &registration.secret);
    let (settings, settings_version) = (Settings::of(&session), session.settings_version());
    let mut connection = Connection {
        wire,
        front_end: front_end.clone(),
        session,
        cancel,
        statements: super::Statements::default(),
        portals: super::Portals::default(),
        skips_until_sync: false,
        is_batch: false,
        flush_wanted: false,
        settings,
        settings_version,
        _registration: registration,
        _place: place,
    };
    connection.tell_notices();
    connection.ready();
    Some(connection)
}

/// The settings reported at the start and after each change, with the value to report if the engine has none.
const REPORTED: [(&str, &str); 13] = [
    ("server_version", concat!("15.0 (Farhold ", env!("CARGO_PKG_VERSION"), ")")),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("application_name", ""),
    ("is_superuser", "on"),
    ("session_authorization", ""),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "Etc/UTC"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
    ("default_transaction_read_only", "off"),
    ("in_hot_standby", "off"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_settings() {
        let pairs = |options| {
            command_line_settings(options)
                .ok()
                .map(|settings| settings.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>())
        };
        assert_eq!(pairs(""), Some(vec![]));
        assert_eq!(
            pairs("-c a=1 -cb=2  --statement-timeout=5s -c c=x\\ y"),
            Some(vec!["a=1".into(), "b=2".into(), "statement_timeout=5s".into(), "c=x y".into()])
        );
        assert_eq!(pairs("-x"), None);
        assert_eq!(pairs("-c"), None);
    }
}
