//! Start-up, protocol versions, cancel requests, limits, and the end of clients and of the server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use farhold_sql::server::{Authentication, Users};

use crate::client::{Client, error, message, parse, query, startup, status, sync, tags};
use crate::node::{server, server_with};

const SLOW: &str =
    "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 100) c";

#[test]
fn versions_are_negotiated() {
    let server = server();
    let mut client = Client::open(server.local_addr());
    client.send(&startup(9999, &[("user", "test"), ("_pq_.new", "1")]));
    let answers = client.until_ready();
    assert_eq!(answers[0], (b'v', [&[0, 3, 0, 2, 0, 0, 0, 1][..], b"_pq_.new\0"].concat()));
    // A client of protocol 3.2 receives a long key.
    let key = answers.iter().find(|(tag, _)| *tag == b'K').unwrap();
    assert_eq!(key.1.len(), 4 + 32);

    let mut client = Client::open(server.local_addr());
    client.send_last(b"\0\0\0\x09\0\x02\0\0\0");
    assert_eq!(error(&client.until_end()).as_deref(), Some("0A000"));
}

#[test]
fn the_session_is_told_at_start() {
    let server = server();
    let mut client = Client::open(server.local_addr());
    client.send(&startup(
        0,
        &[("user", "ann"), ("application_name", "a test"), ("options", "-c statement_timeout=1234")],
    ));
    let answers = client.until_ready();
    let told: Vec<(String, String)> = answers
        .iter()
        .filter(|(tag, _)| *tag == b'S')
        .map(|(_, body)| {
            let mut parts = body.split(|&byte| byte == 0).map(|part| String::from_utf8(part.to_vec()).unwrap());
            (parts.next().unwrap(), parts.next().unwrap())
        })
        .collect();
    for (name, value) in [("application_name", "a test"), ("client_encoding", "UTF8"), ("integer_datetimes", "on")] {
        assert!(told.contains(&(name.to_owned(), value.to_owned())), "{told:?}");
    }
    assert!(told.iter().any(|(name, value)| name == "server_version" && value.starts_with("15")), "{told:?}");
    assert_eq!(client.rows("SHOW statement_timeout").concat().concat().trim_end_matches("ms"), "1234");
    // A change of a reported setting is sent to the client.
    let answers = client.ask(&query("SET application_name = 'other'"));
    assert_eq!(tags(&answers), b"SCZ");

    let mut client = Client::open(server.local_addr());
    client.send(&startup(0, &[("user", "ann"), ("client_encoding", "LATIN1")]));
    assert_eq!(error(&client.until_end()).as_deref(), Some("22023"));
    let mut client = Client::open(server.local_addr());
    client.send(&startup(0, &[("database", "x")]));
    assert_eq!(error(&client.until_end()).as_deref(), Some("28000"));
}

#[test]
fn a_statement_is_cancelled_by_its_key_alone() {
    let server = server();
    let mut client = Client::open(server.local_addr());
    client.send(&startup(0, &[("user", "test")]));
    let answers = client.until_ready();
    let key = answers.iter().find(|(tag, _)| *tag == b'K').unwrap().1.clone();
    let cancel = |key: &[u8]| {
        let mut other = Client::open(server.local_addr());
        let packet =
            [&(u32::try_from(key.len()).unwrap() + 8).to_be_bytes()[..], &0x04d2_162e_u32.to_be_bytes(), key].concat();
        other.send(&packet);
        // The server closes the connection without an answer in both cases.
        assert_eq!(other.until_end(), []);
    };
    // No statement runs: the request has no effect.
    cancel(&key);
    assert_eq!(client.rows("SELECT 1"), [["1"]]);

    client.send(&query(SLOW));
    let mut wrong = key.clone();
    wrong[7] ^= 1;
    cancel(&wrong);
    // The statement may not have started when the first request arrives: repeat until it ends.
    let watcher = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.until_ready());
        while !waiter.is_finished() {
            cancel(&key);
            std::thread::yield_now();
        }
        waiter.join().unwrap()
    });
    assert_eq!(error(&watcher).as_deref(), Some("57014"));
    assert_eq!(status(&watcher), b'I');
    assert_eq!(client.rows("SELECT 1"), [["1"]]);
}

#[test]
fn a_client_that_vanishes_during_a_statement_ends_it() {
    let server = server_with(|config| config.limits.connections_max = 1);
    let mut client = Client::connect(server.local_addr());
    client.send(&query(SLOW));
    drop(client);
    // The connection slot becomes free only when the statement has ended.
    loop {
        let mut next = Client::open(server.local_addr());
        next.send(&startup(0, &[("user", "test")]));
        let answers = next.until_ready();
        match error(&answers) {
            None => break,
            Some(state) => assert_eq!(state, "53300"),
        }
    }
}

#[test]
fn one_connection_too_many_is_refused() {
    let server = server_with(|config| config.limits.connections_max = 2);
    let first = Client::connect(server.local_addr());
    let _second = Client::connect(server.local_addr());
    let mut third = Client::open(server.local_addr());
    third.send(&startup(0, &[("user", "test")]));
    assert_eq!(error(&third.until_end()).as_deref(), Some("53300"));
    drop(first);
    loop {
        let mut next = Client::open(server.local_addr());
        next.send(&startup(0, &[("user", "test")]));
        if error(&next.until_ready()).is_none() {
            break;
        }
    }
}

#[test]
fn long_messages_and_many_statements_are_refused() {
    let server = server_with(|config| {
        config.limits.message_bytes_max = 100_000;
        config.limits.statements_max = 3;
    });
    let mut client = Client::connect(server.local_addr());
    assert_eq!(error(&client.ask(&query(&format!("SELECT '{}'", "x".repeat(90_000))))), None);
    for number in 0..3 {
        assert_eq!(error(&client.ask(&[parse(&number.to_string(), "SELECT 1"), sync()].concat())), None);
    }
    assert_eq!(error(&client.ask(&[parse("3", "SELECT 1"), sync()].concat())).as_deref(), Some("54000"));
    client.send(&query(&"x".repeat(200_000)));
    assert_eq!(error(&client.until_end()).as_deref(), Some("08P01"));
}

/// Long messages of any kind are rejected before authentication.
#[test]
fn strangers_say_little() {
    let server =
        server_with(|config| config.authentication = Authentication::Passwords(Users::single("ada", "secret")));
    for tag in [b'Q', b'd', b'p'] {
        let mut stranger = Client::open(server.local_addr());
        stranger.send(&startup(0, &[("user", "ada")]));
        let asked = stranger.answer();
        assert_eq!(asked.map(|(tag, _)| tag), Some(b'R'));
        // A header alone: the server does not wait for the body.
        stranger.send(&[&[tag][..], &5000_u32.to_be_bytes()].concat());
        let answers = stranger.until_end();
        assert_eq!(error(&answers).as_deref(), Some("08P01"), "{}", char::from(tag));
    }
}

/// Unauthenticated connections that stay silent displace only each other, never an authenticated session.
#[test]
fn strangers_keep_nobody_out() {
    let server = server_with(|config| {
        config.limits.opening_max = 4;
        config.limits.opening_patience = Duration::ZERO;
        config.limits.startup_timeout = Duration::from_hours(1);
    });
    let mut strangers: Vec<Client> = (0..60).map(|_| Client::open(server.local_addr())).collect();
    // The oldest ones were closed without a message.
    for stranger in &mut strangers[..20] {
        assert_eq!(stranger.until_end(), []);
    }
    let mut client = Client::connect(server.local_addr());
    assert_eq!(client.rows("SELECT 1"), [["1"]]);
}

/// A connection that has exceeded its time keeps its slot as long as no other connection waits for one.
#[test]
fn a_place_is_kept_while_nobody_waits() {
    let server = server_with(|config| {
        config.limits.opening_max = 2;
        config.limits.opening_patience = Duration::ZERO;
    });
    let mut slow: Vec<Client> = (0..2).map(|_| Client::open(server.local_addr())).collect();
    // Each requests TLS first: once the answer has arrived, it has a slot.
    let asks_for_tls = [8_u32.to_be_bytes(), 80_877_103_u32.to_be_bytes()].concat();
    for client in &mut slow {
        client.send(&asks_for_tls);
        assert_eq!(client.byte(), b'N');
    }
    for client in &mut slow {
        client.send(&startup(0, &[("user", "test")]));
        assert_eq!(status(&client.until_ready()), b'I');
    }
}

/// Unauthenticated TCP connections must not block connections to the Unix socket.
#[test]
fn the_unix_socket_has_no_strangers() {
    let folder = std::env::temp_dir();
    let server = server_with(|config| {
        config.unix_socket_dir = Some(folder.clone());
        config.limits.opening_max = 1;
        config.limits.opening_patience = Duration::from_hours(1);
        config.limits.startup_timeout = Duration::from_hours(1);
    });
    // One has the slot, one waits for it.
    let _strangers: Vec<Client> = (0..2).map(|_| Client::open(server.local_addr())).collect();
    let path = folder.join(format!(".s.PGSQL.{}", server.local_addr().port()));
    let mut ours = UnixStream::connect(path).unwrap();
    ours.write_all(&startup(0, &[("user", "test")])).unwrap();
    let mut tag = [0];
    ours.read_exact(&mut tag).unwrap();
    assert_eq!(tag, *b"R");
}

/// Connections that arrive together wait for each other: none loses a slot that it has just taken.
#[test]
fn those_who_open_wait_for_a_place() {
    const LONG: Duration = Duration::from_hours(1);
    let server = server_with(|config| {
        config.limits.opening_max = 2;
        config.limits.opening_patience = LONG;
        config.limits.startup_timeout = LONG;
    });
    let mut first: Vec<Client> = (0..2).map(|_| Client::open(server.local_addr())).collect();
    let address = server.local_addr();
    let others: Vec<_> =
        (0..20).map(|_| std::thread::spawn(move || Client::connect(address).rows("SELECT 1"))).collect();
    // A slot becomes free when this client has authenticated.
    let mut one = first.pop().expect("two");
    one.send(&startup(0, &[("user", "test")]));
    assert_eq!(status(&one.until_ready()), b'I');
    for other in others {
        assert_eq!(other.join().expect("it is served"), [["1"]]);
    }
    let mut other = first.pop().expect("two");
    other.send(&startup(0, &[("user", "test")]));
    assert_eq!(status(&other.until_ready()), b'I');
}

#[test]
fn silent_clients_are_sent_away() {
    // One server per limit: the clients for one limit may be slow, and must not exceed another limit.
    const SHORT: Duration = Duration::from_millis(50);
    let for_strangers = server_with(|config| config.limits.startup_timeout = SHORT);
    assert_eq!(Client::open(for_strangers.local_addr()).until_end(), []);
    let mut half = Client::open(for_strangers.local_addr());
    half.send(&startup(0, &[("user", "test")])[..9]);
    assert_eq!(half.until_end(), []);
    let for_the_idle = server_with(|config| config.limits.idle_timeout = Some(SHORT));
    let mut idle = Client::connect(for_the_idle.local_addr());
    assert_eq!(error(&idle.until_end()).as_deref(), Some("57P05"));
    // Within a transaction a limit of its own applies.
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.send(&query("SET idle_in_transaction_session_timeout = 50; BEGIN"));
    client.until_ready();
    assert_eq!(error(&client.until_end()).as_deref(), Some("25P03"));
}

#[test]
fn a_shutdown_lets_statements_finish_and_then_stops_them() {
    let quick = server();
    let mut idle = Client::connect(quick.local_addr());
    quick.shutdown();
    assert_eq!(error(&idle.until_end()).as_deref(), Some("57P01"));

    let server = server_with(|config| config.limits.shutdown_grace = Duration::from_millis(50));
    let mut busy = Client::connect(server.local_addr());
    busy.send(&query(&format!("SELECT 1; {SLOW}")));
    // The first statement's answer is not sent before the second one's; wait for what shows that the batch is running.
    server.shutdown();
    let answers = busy.until_end();
    assert!(matches!(error(&answers).as_deref(), Some("57014" | "57P01")), "{answers:?}");
}

#[test]
fn requests_for_encryption_get_their_one_byte() {
    let server = server();
    let mut client = Client::open(server.local_addr());
    client.send(b"\0\0\0\x08\x04\xd2\x16\x30");
    assert_eq!(client.byte(), b'N');
    client.send(b"\0\0\0\x08\x04\xd2\x16\x2f");
    assert_eq!(client.byte(), b'N');
    client.send(&startup(0, &[("user", "test")]));
    assert_eq!(status(&client.until_ready()), b'I');
    client.send_last(&message(b'X', b""));
    assert_eq!(client.until_end(), []);
}

/// Two threads for each of 128 processors: more than the number of worker IDs.
#[test]
fn a_server_with_many_processors_starts() {
    let server = server_with(|config| config.front_end_threads = 256);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(server.local_addr())).collect();
    clients[0].run("CREATE TABLE t (id INT PRIMARY KEY)");
    for (id, client) in clients.iter_mut().enumerate() {
        client.run(&format!("INSERT INTO t VALUES ({id})"));
    }
    assert_eq!(clients[0].rows("SELECT count(*) FROM t"), [["8".to_owned()]]);
    drop(clients);
    server.shutdown();
}
