//! The register with a real etcd (`scripts/install-deps test` installs it): running, unreachable, slow, and with another
//! program's keys.

use farhold_etcd::{EtcdRegister, EtcdUrl, RegisterView};
use farhold_fabric::Executor;
use farhold_txn::{Configuration, NodeId, Register, RegisterError, Renewals};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// The time-out of calls that must fail.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time-out of calls that must succeed: an etcd writes to its disk, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long an etcd may take to start on a busy machine.
const START_NS_MAX: u64 = 60_000_000_000;
const SHORT: Duration = Duration::from_millis(300);

/// An etcd of this test's own.
struct Etcd {
    child: Child,
    port: u16,
    _dir: TempDir,
    /// The scheme of URLs, in place of `etcd`, and the query behind their prefix.
    scheme: &'static str,
    query: String,
}

fn has_etcd() -> bool {
    farhold_testkit::has_program("etcd")
}

impl Etcd {
    fn start() -> Option<Self> {
        Self::start_with("etcd", String::new(), &[])
    }

    fn start_with(scheme: &'static str, query: String, more: &[&str]) -> Option<Self> {
        has_etcd().then(|| {
            let free =
                || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
            let (port, peer) = (free(), free());
            let dir = tempfile::tempdir().expect("a directory");
            let http = if scheme == "etcd" { "http" } else { "https" };
            let (url, peer) = (format!("{http}://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
            let child = Command::new("etcd")
                .args(["--name", "test", "--data-dir"])
                .arg(dir.path())
                .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("test={peer}"), "--logger", "zap", "--log-level", "error"])
                .args(more)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("etcd starts");
            let this = Self { child, port, _dir: dir, scheme, query };
            // The first answered call shows that it is there.
            let register = this.register_in(TIMEOUT, "wait");
            let executor = Executor::real(1);
            let clock = executor.handle();
            let began_ns = clock.now_ns();
            while let Err(error) = executor.run(register.load()) {
                assert!(clock.now_ns() < began_ns + START_NS_MAX, "etcd does not answer: {error}");
                std::thread::park_timeout(Duration::from_millis(20));
            }
            this
        })
    }

    fn register(&self, prefix: &str) -> EtcdRegister {
        self.register_in(PATIENCE, prefix)
    }

    fn register_in(&self, timeout: Duration, prefix: &str) -> EtcdRegister {
        let Self { scheme, port, query, .. } = self;
        let url = EtcdUrl::parse(&format!("{scheme}://127.0.0.1:{port}/{prefix}{query}")).expect("a URL");
        EtcdRegister::new(url, 3, timeout).expect("a register")
    }
}

fn register(port: u16, prefix: &str, timeout: Duration) -> EtcdRegister {
    let url = EtcdUrl::parse(&format!("etcd://127.0.0.1:{port}/{prefix}")).expect("a URL");
    EtcdRegister::new(url, 3, timeout).expect("a register")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards connections to a port, or, while it is stalled, keeps every byte.
struct Proxy {
    port: u16,
    stalled: Arc<AtomicBool>,
    to: Arc<AtomicU16>,
    /// All connections so far, to be cut.
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let this = Self { port, stalled: Arc::default(), to: Arc::new(AtomicU16::new(to)), open: Arc::default() };
        let (stalled, to, open) = (this.stalled.clone(), this.to.clone(), this.open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().expect("a clone"), to.try_clone().expect("a clone"));
                    open.lock().expect("a lock").push(from.try_clone().expect("a clone"));
                    let stalled = stalled.clone();
                    std::thread::spawn(move || pass(from, to, &stalled));
                }
            }
        });
        this
    }

    fn cut(&self) {
        for stream in self.open.lock().expect("a lock").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, stalled: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count) = from.read(&mut bytes) {
        while stalled.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Certificates that the test's own CA has signed, in a directory.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().expect("a directory"));
        let (one_day, key) = (["-days", "1"], ["-newkey", "rsa:2048", "-nodes"]);
        let openssl = |arguments: &[&[&str]]| {
            let made = Command::new("openssl").args(arguments.concat()).current_dir(&this.0).output().expect("openssl");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        };
        openssl(&[&["req", "-x509"], &key, &one_day, &["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca"]]);
        std::fs::write(this.path("san"), "subjectAltName=IP:127.0.0.1").expect("a file");
        for name in ["server", "client"] {
            let [cert, key_file, request] = ["pem", "key", "csr"].map(|end| format!("{name}.{end}"));
            let subject = format!("/CN={name}");
            openssl(&[&["req"], &key, &["-keyout", &key_file, "-out", &request, "-subj", &subject]]);
            let by_ca = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san"];
            openssl(&[&["x509", "-req"], &one_day, &by_ca, &["-in", &request, "-out", &cert]]);
        }
        this
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// Over TLS, with a client certificate and a user's password; without one of them it is unreachable.
#[test]
fn it_is_reached_by_those_who_may() {
    if !has_etcd() {
        return;
    }
    let files = Certificates::new();
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name));
    let query = format!("?ca-file={ca}&cert-file={cert}&key-file={key}");
    let [server, server_key] = ["server.pem", "server.key"].map(|name| files.path(name));
    let more = ["--cert-file", &server, "--key-file", &server_key, "--trusted-ca-file", &ca, "--client-cert-auth"];
    let Some(etcd) = Etcd::start_with("etcds", query.clone(), &more) else { return };
    let executor = Executor::real(1);
    let reach_in = |timeout, user: &str, query: &str| {
        let url = format!("etcds://{user}127.0.0.1:{}/tls{query}", etcd.port);
        let register = EtcdRegister::new(EtcdUrl::parse(&url).expect("a URL"), 3, timeout).expect("a register");
        executor.run(register.load()).map(drop)
    };
    let reach = |user: &str, query: &str| reach_in(TIMEOUT, user, query);
    let is_away = |result: Result<(), RegisterError>| matches!(result, Err(RegisterError::Unavailable { .. }));
    assert_eq!(reach_in(PATIENCE, "", &query), Ok(()));
    assert!(is_away(reach("", &format!("?ca-file={ca}"))), "without a certificate");
    assert!(is_away(reach("", &query.replace("ca.pem", "server.pem"))), "another CA");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        use etcd_client::{Certificate, Client, ConnectOptions, Identity, PermissionType, TlsOptions};
        let read = |path: &str| std::fs::read(path).expect("a file");
        let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&ca)));
        let tls = tls.identity(Identity::from_pem(read(&cert), read(&key)));
        let url = format!("https://127.0.0.1:{}", etcd.port);
        let client = Client::connect([url], Some(ConnectOptions::new().with_tls(tls))).await.expect("a client");
        let mut auth = client.auth_client();
        let everything = etcd_client::Permission::new(PermissionType::Readwrite, "tls").with_prefix();
        auth.user_add("root", "secret of root", None).await.expect("a user");
        auth.user_grant_role("root", "root").await.expect("a role");
        auth.role_add("farhold").await.expect("a role");
        auth.role_grant_permission("farhold", everything).await.expect("a permission");
        auth.user_add("ada", "secret", None).await.expect("a user");
        auth.user_grant_role("ada", "farhold").await.expect("a role");
        auth.auth_enable().await.expect("authentication");
    });
    let password = files.path("password");
    let as_ada = |timeout| reach_in(timeout, "ada@", &format!("{query}&password-file={password}"));
    std::fs::write(&password, "secret\n").expect("a file");
    assert_eq!(as_ada(PATIENCE), Ok(()));
    std::fs::write(&password, "guess\n").expect("a file");
    assert!(is_away(as_ada(TIMEOUT)), "a wrong password");
    // The client's certificate names a user that etcd does not have.
    assert!(reach("", &query).is_err(), "no user");
}

#[test]
fn it_is_a_register() {
    let Some(etcd) = Etcd::start() else { return };
    let (one, other) = (etcd.register("a"), etcd.register("a"));
    let first = Configuration::first(3, 2);
    let second = first.without(&[NodeId(2)], NodeId(0));
    let third = second.led_by(NodeId(1));
    Executor::real(1).run(async {
        assert_eq!(
            one.load().await.map(|found| (found.configuration, found.renewals)),
            Ok((None, vec![Renewals::default(); 3]))
        );
        assert_eq!(one.compare_and_set(0, &first).await, Ok(true));
        assert_eq!(other.compare_and_set(0, &first).await, Ok(false), "somebody came first");
        assert_eq!(other.compare_and_set(1, &second).await, Ok(true));
        assert_eq!(one.compare_and_set(1, &third).await, Ok(false), "an old number");
        assert_eq!(one.settle(2).await, Ok(()));
        assert_eq!(other.settle(1).await, Ok(()), "said late");
        for _ in 0..3 {
            one.renew(NodeId(1), &[NodeId(2)]).await.expect("renewed");
        }
        let found = other.load().await.expect("found");
        let of_one = Renewals { count: 3, misses: vec![NodeId(2)] };
        let renewals = vec![Renewals::default(), of_one, Renewals::default()];
        assert_eq!((found.configuration, found.settled, found.renewals), (Some(second), 2, renewals));
        let elsewhere = etcd.register("b").load().await.expect("found");
        assert_eq!(elsewhere.configuration, None, "prefixes are clusters");
    });
}

#[test]
fn registers_below_a_prefix_are_found() {
    let Some(etcd) = Etcd::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = EtcdUrl::parse(&format!("etcd://127.0.0.1:{}/shop", etcd.port)).expect("a URL");
    let prefixes = || {
        let mut found = runtime.block_on(EtcdRegister::prefixes(url.clone(), PATIENCE)).expect("found");
        found.sort();
        found
    };
    assert_eq!(prefixes(), Vec::<String>::new());
    for prefix in ["shop", "shop/generation-2", "shop/generation-10", "shops"] {
        let register = etcd.register(prefix);
        let first = Configuration::first(3, 2);
        Executor::real(1).run(async { assert_eq!(register.compare_and_set(0, &first).await, Ok(true)) });
    }
    assert_eq!(prefixes(), ["shop", "shop/generation-10", "shop/generation-2"]);
}

#[test]
fn whoever_only_looks_finds_what_nodes_say_of_themselves() {
    let Some(etcd) = Etcd::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = EtcdUrl::parse(&format!("etcd://127.0.0.1:{}/a", etcd.port)).expect("a URL");
    let peek = || runtime.block_on(EtcdRegister::peek(url.clone(), PATIENCE)).expect("found");
    let (register, first) = (etcd.register("a"), Configuration::first(3, 2));
    let executor = Executor::real(1);
    executor.run(async { assert_eq!(register.tell(NodeId(1), "pid 7").await, Ok(())) });
    assert_eq!(peek(), None, "words alone are no cluster");
    executor.run(async {
        assert_eq!(register.compare_and_set(0, &first).await, Ok(true));
        assert_eq!(register.tell(NodeId(1), "pid 8\ndoing nothing\n").await, Ok(()));
    });
    let told = vec![String::new(), "pid 8\ndoing nothing\n".to_owned(), String::new()];
    assert_eq!(peek(), Some(RegisterView { configuration: first.clone(), settled: 0, told }));
    let found = executor.run(register.load()).expect("found");
    assert_eq!(found.configuration, Some(first), "words are nothing to the nodes");
}

#[test]
fn of_many_that_change_it_at_once_one_wins() {
    let Some(etcd) = Etcd::start() else { return };
    let first = Configuration::first(3, 2);
    Executor::real(1).run(async { assert_eq!(etcd.register("a").compare_and_set(0, &first).await, Ok(true)) });
    let threads: Vec<_> = (0..4)
        .map(|number: u8| {
            let register = etcd.register("a");
            std::thread::spawn(move || {
                let mut won = Vec::new();
                Executor::real(u64::from(number)).run(async {
                    while won.len() < 5 {
                        let now = register.load().await.expect("found").configuration.expect("there is one");
                        let next = now.led_by(NodeId(number % 3));
                        if register.compare_and_set(now.number, &next).await.expect("an answer") {
                            won.push(next.number);
                        }
                    }
                });
                won
            })
        })
        .collect();
    let mut numbers: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (2..22).collect::<Vec<_>>(), "each number was won once");
}

#[test]
fn an_etcd_that_is_away_or_slow_is_unavailable_and_then_it_is_not() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::start(etcd.port);
    let register = register(proxy.port, "a", SHORT);
    let executor = Executor::real(1);
    let unavailable = |outcome: Result<(), RegisterError>| match outcome {
        Err(error @ RegisterError::Unavailable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let again = || {
        let came_back = (0..100).any(|_| executor.run(register.renew(NodeId(0), &[])).is_ok());
        assert!(came_back, "it is used again when it is there again");
    };
    again();
    proxy.stalled.store(true, Ordering::SeqCst);
    let message = unavailable(executor.run(register.renew(NodeId(0), &[])));
    assert!(message.contains("did not answer in 300ms") || message.contains("imeout"), "{message}");
    proxy.stalled.store(false, Ordering::SeqCst);
    again();
    proxy.to.store(1, Ordering::SeqCst);
    proxy.cut();
    unavailable(executor.run(register.renew(NodeId(0), &[])));
    proxy.to.store(etcd.port, Ordering::SeqCst);
    again();
}

#[test]
fn an_etcd_that_was_never_there_is_unavailable() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let register = register(nobody, "a", SHORT);
    let found = Executor::real(1).run(register.load());
    assert!(matches!(&found, Err(RegisterError::Unavailable { reason }) if !reason.is_empty()), "{found:?}");
}

#[test]
fn another_cluster_s_prefix_is_refused() {
    let Some(etcd) = Etcd::start() else { return };
    let executor = Executor::real(1);
    executor.run(async {
        let five = EtcdUrl::parse(&format!("etcd://127.0.0.1:{}/a", etcd.port)).expect("a URL");
        let five = EtcdRegister::new(five, 5, PATIENCE).expect("a register");
        assert_eq!(five.compare_and_set(0, &Configuration::first(5, 2)).await, Ok(true));
        let error = etcd.register("a").load().await.expect_err("five nodes, not three");
        assert!(matches!(&error, RegisterError::Foreign { .. }) && error.to_string().contains("5 nodes"), "{error}");
        let before = five.load().await.expect("found");
        let refused = etcd.register("a").compare_and_set(1, &Configuration::first(3, 2)).await;
        assert!(matches!(refused, Err(RegisterError::Foreign { .. })), "{refused:?}");
        assert_eq!(five.load().await, Ok(before), "as it was");
    });
}
