//! Compares the codec with that of pgwire in both directions; truncated and invalid messages must be rejected without a
//! panic.

use bytes::{Bytes, BytesMut};
use pgwire::messages::data::{FieldDescription, RowDescription};
use pgwire::messages::extendedquery as pg;
use pgwire::messages::{
    DecodeContext, PgWireBackendMessage, PgWireFrontendMessage, ProtocolVersion, simplequery, terminate,
};

use super::backend::{Authentication, Output, Severity, Status};
use super::frontend::{Format, Message, Target, body_bytes_max, message};
use super::input::Input;
use super::startup::{Opening, opening};
use crate::error::{SqlError, SqlState};

fn context() -> DecodeContext {
    let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_0);
    context.awaiting_frontend_ssl = false;
    context.awaiting_frontend_startup = false;
    context
}

/// Every message that a client can send, encoded by pgwire.
fn client_messages() -> Vec<PgWireFrontendMessage> {
    use PgWireFrontendMessage as F;
    vec![
        F::Query(simplequery::Query::new("SELECT 1".to_owned())),
        F::Parse(pg::Parse::new(Some("s".to_owned()), "SELECT $1".to_owned(), vec![23, 0])),
        F::Bind(pg::Bind::new(
            Some("p".to_owned()),
            Some("s".to_owned()),
            vec![0, 1],
            vec![Some(Bytes::from_static(b"12")), None],
            vec![1],
        )),
        F::Describe(pg::Describe::new(b'S', Some("s".to_owned()))),
        F::Describe(pg::Describe::new(b'P', None)),
        F::Execute(pg::Execute::new(Some("p".to_owned()), 7)),
        F::Close(pg::Close::new(b'P', Some("p".to_owned()))),
        F::Flush(pg::Flush::new()),
        F::Sync(pg::Sync::new()),
        F::CopyData(pgwire::messages::copy::CopyData::new(Bytes::from_static(b"1\t2\n"))),
        F::CopyDone(pgwire::messages::copy::CopyDone::new()),
        F::CopyFail(pgwire::messages::copy::CopyFail::new("no".to_owned())),
        F::Terminate(terminate::Terminate::new()),
    ]
}

fn encoded(messages: &[PgWireFrontendMessage]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    for message in messages {
        message.encode(&mut bytes).unwrap();
    }
    bytes.to_vec()
}

fn input_of(bytes: &[u8]) -> Input {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut input = Input::default();
    let mut stream = bytes;
    while runtime.block_on(input.fill(&mut stream)).unwrap() > 0 {}
    input
}

#[test]
fn every_message_of_a_client_is_read_as_pgwire_wrote_it() {
    let mut input = input_of(&encoded(&client_messages()));
    let mut tags = Vec::new();
    while let Some(frame) = input.frame(|tag| body_bytes_max(tag, 1 << 20)).unwrap() {
        tags.push(frame.tag);
        match message(frame.tag, input.body(&frame)).unwrap() {
            Message::Query(sql) => assert_eq!(sql, b"SELECT 1"),
            Message::Parse(parse) => {
                assert_eq!((parse.statement, parse.sql), (&b"s"[..], &b"SELECT $1"[..]));
                assert_eq!(parse.types().collect::<Vec<_>>(), [23, 0]);
            }
            Message::Bind(bind) => {
                assert_eq!((bind.portal, bind.statement), (&b"p"[..], &b"s"[..]));
                let parameters: Vec<_> = bind.parameters().collect();
                assert_eq!(parameters, [(Some(&b"12"[..]), Format::Text), (None, Format::Binary)]);
                assert_eq!(bind.result_formats.of(5), Format::Binary);
            }
            Message::Describe(Target::Statement(name)) => assert_eq!(name, b"s"),
            Message::Describe(Target::Portal(name)) => assert_eq!(name, b""),
            Message::Execute { portal, rows_max } => assert_eq!((portal, rows_max), (&b"p"[..], 7)),
            Message::Close(target) => assert_eq!(target, Target::Portal(b"p")),
            Message::CopyData(data) => assert_eq!(data, b"1\t2\n"),
            Message::CopyFail(reason) => assert_eq!(reason, b"no"),
            Message::Sync | Message::Flush | Message::CopyDone | Message::Terminate => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tags, b"QPBDDECHSdcfX");
    assert!(input.pending().is_empty());
}

#[test]
fn a_message_cut_anywhere_is_waited_for_or_refused() {
    for message_of_client in client_messages() {
        let bytes = encoded(&[message_of_client]);
        for end in 0..bytes.len() {
            let mut input = input_of(&bytes[..end]);
            assert_eq!(input.frame(|tag| body_bytes_max(tag, 1 << 20)), Ok(None));
            // The same truncated message with a length that matches: its fields are incomplete.
            if end >= 5 {
                let mut cut = bytes[..end].to_vec();
                let length = u32::try_from(end - 1).unwrap();
                cut[1..5].copy_from_slice(&length.to_be_bytes());
                let whole = matches!(cut[0], b'd');
                assert_eq!(message(cut[0], &cut[5..]).is_ok(), whole, "{cut:?}");
            }
        }
    }
}

#[test]
fn lengths_are_not_believed() {
    for (bytes, why) in [
        (&b"Q\xff\xff\xff\xff"[..], "invalid message length"),
        (b"Q\0\0\0\x03", "invalid message length"),
        (b"Q\x7f\xff\xff\xff", "message too long"),
        (b"S\0\0\xff\xff", "message too long"),
        (b"?", "invalid frontend message type"),
    ] {
        assert_eq!(input_of(bytes).frame(|tag| body_bytes_max(tag, 1 << 20)).unwrap_err().0, why);
    }
}

#[test]
fn bent_binds_are_refused() {
    let bodies: [&[u8]; 3] = [
        b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0", // a length of -2
        b"\0\0\0\0\0\x01\0\0\0\x09abc\0\0",    // a value beyond the end
        b"\0\0\0\0\0\0\0\0more",               // something after the end
    ];
    for body in bodies {
        assert!(message(b'B', body).is_err(), "{body:?}");
    }
}

#[test]
fn openings() {
    let mut packet = vec![0, 0, 0, 0, 0, 3, 0, 0];
    packet.extend_from_slice(b"user\0ann\0database\0x\0\0");
    let length = u32::try_from(packet.len()).unwrap();
    packet[..4].copy_from_slice(&length.to_be_bytes());
    for end in 0..packet.len() {
        assert_eq!(opening(&packet[..end]), Ok(None));
    }
    let Ok(Some((Opening::Session(session), taken))) = opening(&packet) else { panic!("no session") };
    assert_eq!((session.major, session.minor, taken), (3, 0, packet.len()));
    assert_eq!(session.parameters, [("user", "ann"), ("database", "x")]);

    assert_eq!(opening(b"\0\0\0\x08\x04\xd2\x16\x2f"), Ok(Some((Opening::Tls, 8))));
    assert_eq!(opening(b"\0\0\0\x08\x04\xd2\x16\x30"), Ok(Some((Opening::GssEncryption, 8))));
    let cancel = opening(b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07abcd").unwrap().unwrap();
    assert_eq!(cancel.0, Opening::Cancel { process: 7, secret: b"abcd" });

    for garbage in
        [&b"GET / HTTP/1.1\r\n"[..], b"\0\0\0\x07\0\0\0", b"\0\0\0\x09\0\x03\0\0x", b"\0\0\0\x0a\0\x03\0\0x\0"]
    {
        assert!(opening(garbage).is_err(), "{garbage:?}");
    }
}

#[test]
fn pgwire_reads_what_is_written_here() {
    let mut output = Output::default();
    output.authentication(Authentication::Sasl(&["SCRAM-SHA-256"]));
    output.authentication(Authentication::SaslContinue("r=1"));
    output.authentication(Authentication::SaslFinal("v=1"));
    output.authentication(Authentication::Ok);
    output.parameter_status("client_encoding", "UTF8");
    output.backend_key_data(7, &[1, 2, 3, 4]);
    output.negotiate_protocol_version(2, &["_pq_.x"]);
    output.parse_complete();
    output.bind_complete();
    output.close_complete();
    output.no_data();
    output.portal_suspended();
    output.empty_query();
    output.parameter_description([23, 25].into_iter());
    output.command_complete("INSERT 0 1");
    output.copy_response(b'G', 2);
    output.copy_response(b'H', 2);
    output.copy_data(b"1\t2\n");
    output.copy_done();
    let mut error =
        SqlError::new(SqlState::UNIQUE_VIOLATION, "duplicate key").with_detail("Key (a)=(1)").with_hint("Do not.");
    error.position = Some(3);
    output.report(Severity::Error, &error);
    output.report(Severity::Warning, &error);
    output.ready_for_query(Status::Failed);

    let mut bytes = BytesMut::from(output.bytes());
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let message = PgWireBackendMessage::decode(&mut bytes, &context()).unwrap().expect("a whole message");
        if let PgWireBackendMessage::ErrorResponse(response) = &message {
            let field = |tag| response.fields.iter().find(|(found, _)| *found == tag).map(|(_, text)| text.as_str());
            assert_eq!([field(b'C'), field(b'D'), field(b'P')], [Some("23505"), Some("Key (a)=(1)"), Some("3")]);
        }
        kinds.push(format!("{message:?}").split(['(', ' ']).next().unwrap().to_owned());
    }
    assert_eq!(kinds.len(), 22);
}

#[test]
fn pgwire_reads_rows() {
    use crate::engine::{ColumnType, Datum, OutputColumn};
    let column = |name: &str, data_type, arrow_type| OutputColumn { name: name.to_owned(), data_type, arrow_type };
    let shape = crate::server::rows::Shape::new(&[
        column("a", ColumnType::Int, arrow::datatypes::DataType::Int32),
        column("b", ColumnType::Varchar(7), arrow::datatypes::DataType::Utf8View),
    ]);
    let mut output = Output::default();
    let codes = [0, 1, 0, 0];
    let formats = super::frontend::Formats::of_codes(&codes);
    shape.describe(formats, &mut output);
    shape.put_row(&[Datum::Int(258), Datum::Null], formats, crate::value::Zone::UTC, &mut output).unwrap();

    let mut bytes = BytesMut::from(output.bytes());
    let Ok(Some(PgWireBackendMessage::RowDescription(description))) =
        PgWireBackendMessage::decode(&mut bytes, &context())
    else {
        panic!("no RowDescription");
    };
    let expected = RowDescription::new(vec![
        FieldDescription::new("a".to_owned(), 0, 0, 23, 4, -1, 1),
        FieldDescription::new("b".to_owned(), 0, 0, 1043, -1, 11, 0),
    ]);
    assert_eq!(description, expected);
    let Ok(Some(PgWireBackendMessage::DataRow(row))) = PgWireBackendMessage::decode(&mut bytes, &context()) else {
        panic!("no DataRow");
    };
    assert_eq!(&row.data[..], [0, 0, 0, 4, 0, 0, 1, 2, 255, 255, 255, 255]);
    assert!(bytes.is_empty());
}
