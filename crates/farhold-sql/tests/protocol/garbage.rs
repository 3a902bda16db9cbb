//! Seeded garbage: random bytes, and corrupted traffic of a real session. It may end its own connection, but must not
//! affect others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;

use crate::client::{Client, bind, describe, execute, message, parse, query, startup, sync};
use crate::node::server;

const SEED: u64 = 0x5eed;
const CASES: u32 = 4000;

fn bytes(random: &mut Rng, count_max: usize) -> Vec<u8> {
    let count = random.usize(..=count_max);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

/// The messages of a session that uses every kind of message.
fn traffic() -> Vec<Vec<u8>> {
    vec![
        query("SELECT 1"),
        query("BEGIN; SELECT i FROM g WHERE i = 1; COMMIT"),
        parse("s", "SELECT i FROM g WHERE i = $1"),
        describe(b'S', "s"),
        bind("p", "s", &["1"]),
        describe(b'P', "p"),
        execute("p", 1),
        execute("p", 0),
        message(b'C', b"Pp\0"),
        message(b'C', b"Ss\0"),
        message(b'H', b""),
        parse("", "UPDATE g SET i = i WHERE i = $1"),
        bind("", "", &["1"]),
        execute("", 0),
        sync(),
        query("COPY g FROM STDIN"),
        message(b'd', b"7\n8\n"),
        message(b'f', b"no\0"),
        query("DECLARE c CURSOR WITH HOLD FOR SELECT 1; FETCH ALL FROM c; CLOSE c"),
        message(b'p', b"password\0"),
        message(b'F', b"\0\0\0\0"),
        sync(),
    ]
}

fn bent(random: &mut Rng, traffic: &[Vec<u8>]) -> Vec<u8> {
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for _ in 0..=random.usize(..12) {
        messages.push(traffic[random.usize(..traffic.len())].clone());
    }
    for _ in 0..random.usize(..4) {
        let at = random.usize(..messages.len());
        let message = &mut messages[at];
        if message.is_empty() {
            continue;
        }
        let position = random.usize(..message.len());
        match random.usize(..6) {
            0 => message[position] ^= 1 << random.u8(..8),
            1 => message[position] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
            2 => message.truncate(position),
            3 => message.extend(bytes(random, 20)),
            // A body of another length with a matching header.
            4 if position > 5 => {
                message.truncate(position);
                let length = u32::try_from(position - 1).unwrap();
                message[1..5].copy_from_slice(&length.to_be_bytes());
            }
            _ => message[0] = random.u8(..),
        }
    }
    messages.concat()
}

/// Counts the panics of the server's threads, which are not visible otherwise: a panic ends one connection.
fn count_panics() -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let (counter, usual) = (Arc::clone(&count), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name().is_some_and(|name| name.starts_with("farhold-")) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        usual(panic);
    }));
    count
}

#[test]
fn garbage_ends_its_own_connection_at_most() {
    let panics = count_panics();
    let server = server();
    let mut witness = Client::connect(server.local_addr());
    witness.run("CREATE TABLE g (i int PRIMARY KEY)");
    witness.run("INSERT INTO g VALUES (1)");
    let traffic = traffic();
    let greeting = startup(0, &[("user", "test")]);
    let mut random = Rng::with_seed(SEED);
    for case in 0..CASES {
        let mut client = Client::open(server.local_addr());
        match random.usize(..8) {
            // Before the start of a session.
            0 => {
                let bytes = bytes(&mut random, 64);
                client.send_last(&bytes);
            }
            1 => {
                let mut packet = greeting.clone();
                let position = random.usize(..packet.len());
                packet[position] = random.u8(..);
                client.send_last(&packet);
            }
            // Within a session.
            2 => {
                let bytes = [&greeting[..], &bytes(&mut random, 256)].concat();
                client.send_last(&bytes);
            }
            _ => {
                let bytes = [&greeting[..], &bent(&mut random, &traffic)].concat();
                client.send_last(&bytes);
            }
        }
        // The server must end the connection.
        client.until_end();
        if case % 250 == 0 {
            assert_eq!(witness.rows("SELECT 1"), [["1"]], "case {case} of seed {SEED:#x}");
        }
    }
    assert_eq!(witness.rows("SELECT i FROM g WHERE i = 1"), [["1"]]);
    assert_eq!(Client::connect(server.local_addr()).rows("SELECT 1"), [["1"]]);
    assert_eq!(panics.load(Ordering::Relaxed), 0, "panics of the server");
}
