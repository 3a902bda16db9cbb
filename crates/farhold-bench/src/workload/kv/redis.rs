//! The same gets against a running Redis: its protocol over TCP, as many threads and clients (connections), and as many keys a
//! batch (pipelined). The clients are this program's and Redis's own `redis-benchmark`. For the comparison only.

use super::{KvError, Outcome, Plan, Zipf};
use crate::measure::Counter;
use crate::random::Random;
use farhold_fabric::latencies::{Latencies, LatencyRecorder};
use farhold_fabric::{Executor, processor};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection.
struct Client {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    value: Vec<u8>,
}

impl Client {
    fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::with_capacity(1 << 17, stream), out: Vec::new(), value: Vec::new() })
    }

    fn command(&mut self, parts: &[&[u8]]) {
        self.out.extend(format!("*{}\r\n", parts.len()).bytes());
        for part in parts {
            self.out.extend(format!("${}\r\n", part.len()).bytes());
            self.out.extend_from_slice(part);
            self.out.extend(b"\r\n");
        }
    }

    fn send(&mut self) -> std::io::Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// The next answer's bulk string into `value`; true if it was one.
    fn answer(&mut self) -> std::io::Result<bool> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line);
        match line.first() {
            Some(b'+' | b':') => Ok(false),
            Some(b'$') => {
                let len: i64 = text[1..].trim().parse().map_err(|_| Error::from(ErrorKind::InvalidData))?;
                let Ok(len) = usize::try_from(len) else { return Ok(false) };
                self.value.resize(len + 2, 0);
                self.stream.read_exact(&mut self.value)?;
                self.value.truncate(len);
                Ok(true)
            }
            _ => Err(Error::other(format!("the server answered {:?}", text.trim()))),
        }
    }
}

/// A key as `redis-benchmark` makes them.
fn name(number: u64) -> String {
    format!("key:{number:012}")
}

/// Binds the threads of the server at `port` to one processor, that of a home node, or lets them run on any. False: that is
/// impossible here.
///
/// # Errors
/// The server cannot be reached.
pub fn bind(port: u16, bound: bool) -> Result<bool, KvError> {
    let mut client = Client::connect(port)?;
    client.command(&[b"INFO", b"server"]);
    client.send()?;
    client.answer()?;
    let text = String::from_utf8_lossy(&client.value).into_owned();
    let process = text.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap_or("0");
    let usable = processor::usable();
    let processors = if bound { vec![super::home_processor()] } else { usable };
    let processors: Vec<String> = processors.iter().map(usize::to_string).collect();
    let done = Command::new("taskset").args(["-a", "-c", "-p", &processors.join(","), process.trim()]).output();
    Ok(done.is_ok_and(|done| done.status.success()))
}

/// Measures the server at `port` with `redis-benchmark`, on the plan's keys, which [`run`] has loaded, with the plan's threads,
/// clients and batches. Returns gets a second, for about `gets` gets. Keys are drawn uniformly, whatever the plan says. `None`:
/// there is no such program.
///
/// # Errors
/// The program fails or prints something else.
pub fn benchmark(plan: &Plan, port: u16, gets: u64) -> Result<Option<f64>, KvError> {
    let mut command = if plan.bound {
        let processors: Vec<String> =
            (0..plan.readers).map(|number| super::reader_processor(number).to_string()).collect();
        let mut bound = Command::new("taskset");
        bound.args(["-c", &processors.join(","), "redis-benchmark"]);
        bound
    } else {
        Command::new("redis-benchmark")
    };
    let clients = u32::from(plan.readers) * u32::from(plan.clients);
    let options = [("-p", u64::from(port)), ("-r", plan.keys), ("-P", plan.batch as u64), ("-n", gets)];
    command.args(options.iter().flat_map(|(option, value)| [(*option).to_owned(), value.to_string()]));
    command.args(["-c", &clients.to_string()]);
    if plan.readers > 1 {
        command.args(["--threads", &plan.readers.to_string()]);
    }
    let done = match command.args(["--csv", "GET", "key:__rand_int__"]).output() {
        Ok(done) => done,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let said = String::from_utf8_lossy(&done.stdout);
    let rate = said.lines().last().and_then(|line| line.split("\",\"").nth(1)).and_then(|rate| rate.parse().ok());
    rate.map(Some).ok_or_else(|| Error::other(format!("redis-benchmark says {said:?}")).into())
}

/// Loads the plan's keys into the server at `port` of this machine, then gets with the plan's readers and clients. The clients of
/// a thread ask together and are answered together: each has one batch under way. Writers and the way of putting are not used.
/// The keys stay there: use a server of your own.
///
/// # Errors
/// The server cannot be reached, or a key is not there.
pub fn run(plan: &Plan, port: u16) -> Result<Outcome, KvError> {
    let value = vec![7; plan.value_bytes];
    let mut loader = Client::connect(port)?;
    for from in (0..plan.keys).step_by(100) {
        let numbers = from..(from + 100).min(plan.keys);
        for number in numbers.clone() {
            loader.command(&[b"SET", name(number).as_bytes(), &value]);
        }
        loader.send()?;
        for _ in numbers {
            loader.answer()?;
        }
    }
    let zipf = Zipf::new(plan.spread, plan.keys);
    let (stop, start) = (AtomicBool::new(false), Barrier::new(usize::from(plan.readers) + 1));
    let counts: Vec<(Counter, LatencyRecorder)> = (0..plan.readers).map(|_| Default::default()).collect();
    let elapsed_ns = std::thread::scope(|scope| {
        let threads: Vec<_> = counts
            .iter()
            .zip(0_u64..)
            .map(|((done, latency), number)| {
                let (stop, start, zipf) = (&stop, &start, &zipf);
                scope.spawn(move || {
                    if plan.bound {
                        processor::bind_this_thread(super::reader_processor(number as u16));
                    }
                    let clients: std::io::Result<Vec<Client>> =
                        (0..plan.clients).map(|_| Client::connect(port)).collect();
                    start.wait();
                    let mut clients = clients?;
                    let clock = Executor::real(number).handle();
                    let mut random = Random::part(plan.seed, &[number]);
                    loop {
                        let before_ns = clock.now_ns();
                        for client in &mut clients {
                            for _ in 0..plan.batch {
                                client.command(&[b"GET", name(zipf.draw(&mut random)).as_bytes()]);
                            }
                            client.send()?;
                        }
                        for client in &mut clients {
                            for _ in 0..plan.batch {
                                if !client.answer()? || client.value.len() != plan.value_bytes {
                                    return Err(KvError::from(Error::other("a key that was loaded is not there")));
                                }
                            }
                            latency.record(clock.now_ns() - before_ns);
                            done.add(plan.batch as u64);
                        }
                        if stop.load(Ordering::Relaxed) {
                            return Ok(());
                        }
                    }
                })
            })
            .collect();
        start.wait();
        let clock = Executor::real(0).handle();
        let began_ns = clock.now_ns();
        let end_ns = began_ns + plan.span_ns;
        while clock.now_ns() < end_ns {
            std::thread::park_timeout(std::time::Duration::from_nanos(end_ns.saturating_sub(clock.now_ns())));
        }
        stop.store(true, Ordering::Relaxed);
        let elapsed_ns = clock.now_ns() - began_ns;
        threads.into_iter().try_for_each(|thread| thread.join().expect("a client's thread"))?;
        Ok::<u64, KvError>(elapsed_ns)
    })?;
    let mut batch_latency = Latencies::default();
    for (_, latency) in &counts {
        batch_latency.add(&latency.latencies());
    }
    let gets = counts.iter().map(|(done, _)| done.get()).sum();
    Ok(Outcome { seconds: elapsed_ns as f64 / 1e9, gets, batch_latency, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::kv::{Put, Spread};
    use std::collections::HashMap;
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    /// A server that knows SET and GET, enough to hold the client to the protocol.
    fn serve(listener: &TcpListener) {
        type Rows = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;
        fn one(stream: TcpStream, rows: &Rows) -> std::io::Result<()> {
            let mut stream = BufReader::new(stream);
            loop {
                let mut parts = Vec::new();
                let mut line = String::new();
                stream.read_line(&mut line)?;
                if line.is_empty() {
                    return Ok(());
                }
                let count: usize = line.trim_start_matches('*').trim().parse().expect("a count");
                for _ in 0..count {
                    line.clear();
                    stream.read_line(&mut line)?;
                    let len: usize = line.trim_start_matches('$').trim().parse().expect("a length");
                    let mut part = vec![0; len + 2];
                    stream.read_exact(&mut part)?;
                    part.truncate(len);
                    parts.push(part);
                }
                let mut rows = rows.lock().expect("the rows");
                let answer = match (parts[0].as_slice(), rows.get(&parts[1])) {
                    (b"SET", _) => {
                        rows.insert(parts[1].clone(), parts[2].clone());
                        b"+OK\r\n".to_vec()
                    }
                    (b"GET", Some(value)) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
                    (b"GET", None) => b"$-1\r\n".to_vec(),
                    _ => b"-ERR what?\r\n".to_vec(),
                };
                stream.get_mut().write_all(&answer)?;
            }
        }
        let rows = Rows::default();
        while let Ok((stream, _)) = listener.accept() {
            let rows = rows.clone();
            std::thread::spawn(move || one(stream, &rows));
        }
    }

    #[test]
    fn gets_what_it_has_set() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || serve(&listener));
        let plan = Plan {
            keys: 250,
            value_bytes: 128,
            readers: 2,
            clients: 3,
            writers: 0,
            batch: 4,
            spread: Spread::Uniform,
            put: Put::Message,
            span_ns: 30_000_000,
            seed: 1,
            provider: "shm".into(),
            bound: false,
        };
        let outcome = run(&plan, port).unwrap();
        assert!(outcome.gets > 0 && outcome.batch_latency.count() == outcome.gets / 4, "{outcome:?}");
        let mut client = Client::connect(port).unwrap();
        client.command(&[b"GET", b"nothing"]);
        client.command(&[b"FLY", b"me"]);
        client.send().unwrap();
        assert!(!client.answer().unwrap(), "a key that is not there");
        assert!(client.answer().unwrap_err().to_string().contains("what?"));
    }
}
