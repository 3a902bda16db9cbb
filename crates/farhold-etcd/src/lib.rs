//! The register of a cluster of many hosts, in etcd.
//!
//! ```text
//!   PREFIX/configuration   number │ configuration │ checksum     changed by compare-and-set of its revision
//!   PREFIX/settled         number
//!   PREFIX/renewals/N      count of renewals of node N, and the nodes that N does not hear
//!   PREFIX/told/N          the state that node N reports, for operators
//! ```
//!
//! etcd is linearizable, and keeps what it has acknowledged as long as most of its own nodes have their disks. This register does
//! not use etcd's leases, because the shortest takes seconds. Every member counts its renewals here, and the others judge the
//! counts by their own clocks, as with any register. So a lease must be longer than a few writes of etcd take: some 10 ms on an
//! SSD.
//!
//! The calls run on a thread of their own with its own tokio runtime, which the rest of the program does not use. A call that is
//! not answered in time is [`RegisterError::Unavailable`]. It may still take effect later, which every caller of a register
//! expects.
#![deny(missing_docs)]

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue, KvClient, TlsOptions, Txn,
    TxnOp,
};
use farhold_txn::{Configuration, NodeId, Register, RegisterError, RegisterFuture, Registered, Renewals};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot};

const MAGIC: [u8; 8] = *b"FARHETC3";

/// The place of a register, and how to reach it: `etcd://HOST:PORT[,HOST:PORT...]/PREFIX` in the clear, or
/// `etcds://[USER@]HOST:PORT[,HOST:PORT...]/PREFIX?ca-file=PATH` over TLS, with `&cert-file=PATH&key-file=PATH` if etcd requires
/// certificates of its clients, and `&password-file=PATH` for the user. The files are read at each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl {
    /// `http://HOST:PORT`, or `https://`, of each member of etcd.
    pub endpoints: Vec<String>,
    /// The prefix of all keys.
    pub prefix: String,
    /// TLS settings; `None`: in the clear.
    pub tls: Option<EtcdTls>,
}

/// TLS settings for an etcd. Files are in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTls {
    /// The certificate of the authority that signed etcd's certificates.
    pub ca_file: PathBuf,
    /// Certificate and key of this client.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// A user of etcd, and the file with the password; the line end in it is not part of the password.
    pub user: Option<(String, PathBuf)>,
}

impl EtcdUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// What is wrong with the URL, in words.
    pub fn parse(url: &str) -> Result<Self, String> {
        let form =
            "etcd://HOST:PORT[,HOST:PORT...]/PREFIX or etcds://[USER@]HOST:PORT[,HOST:PORT...]/PREFIX?ca-file=PATH";
        let (scheme, rest) = match (url.strip_prefix("etcd://"), url.strip_prefix("etcds://")) {
            (Some(rest), _) => ("http", rest),
            (_, Some(rest)) => ("https", rest),
            _ => return Err(format!("\"{url}\" is not of the form {form}")),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() {
            return Err(format!("\"{url}\" names no prefix, which tells clusters apart: {form}"));
        }
        let (user, hosts) = match hosts.split_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, hosts),
        };
        let has_port = |host: &str| {
            host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(host) = hosts.split(',').find(|host| !has_port(host)) {
            return Err(format!("\"{host}\" in \"{url}\" is not HOST:PORT: {form}"));
        }
        let endpoints = hosts.split(',').map(|host| format!("{scheme}://{host}")).collect();
        let tls = EtcdTls::parse(user, query).map_err(|wrong| format!("\"{url}\": {wrong}"))?;
        match (scheme, &tls) {
            ("http", Some(_)) => Err(format!("\"{url}\": users and files are for TLS, by etcds://")),
            ("https", None) => {
                Err(format!("\"{url}\" needs ca-file=PATH, the certificate that etcd's are signed with"))
            }
            _ => Ok(Self { endpoints, prefix: prefix.to_owned(), tls }),
        }
    }
}

impl EtcdTls {
    fn parse(user: Option<&str>, query: &str) -> Result<Option<Self>, String> {
        let (mut ca, mut cert, mut key, mut password) = (None, None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let place = match pair.split_once('=') {
                Some(("ca-file", path)) => ca.replace(path),
                Some(("cert-file", path)) => cert.replace(path),
                Some(("key-file", path)) => key.replace(path),
                Some(("password-file", path)) => password.replace(path),
                _ => return Err(format!("`{pair}` is none of ca-file, cert-file, key-file, password-file")),
            };
            if place.is_some() {
                return Err(format!("`{pair}` is there twice"));
            }
        }
        let identity_files = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err("cert-file and key-file belong together".to_owned()),
        };
        let user = match (user, password) {
            (Some(user), Some(file)) => Some((user.to_owned(), file.into())),
            (None, None) => None,
            _ => return Err("USER@ and password-file belong together".to_owned()),
        };
        match ca {
            Some(ca) => Ok(Some(Self { ca_file: ca.into(), identity_files, user })),
            None if identity_files.is_some() || user.is_some() => Err("ca-file is missing".to_owned()),
            None => Ok(None),
        }
    }

    fn apply(&self, options: ConnectOptions) -> Result<ConnectOptions, RegisterError> {
        let read =
            |path: &Path| std::fs::read(path).map_err(|error| unavailable(format!("{}: {error}", path.display())));
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&self.ca_file)?));
        if let Some((cert, key)) = &self.identity_files {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        let options = options.with_tls(tls);
        let Some((name, file)) = &self.user else { return Ok(options) };
        let password =
            String::from_utf8(read(file)?).map_err(|error| unavailable(format!("{}: {error}", file.display())))?;
        Ok(options.with_user(name, password.trim_end_matches(['\r', '\n'])))
    }
}

/// A register in etcd.
#[derive(Debug)]
pub struct EtcdRegister {
    asks: Option<mpsc::UnboundedSender<Ask>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Ask {
    Load(oneshot::Sender<Result<Registered, RegisterError>>),
    Set { expected: u64, next: Box<Configuration>, answer: oneshot::Sender<Result<bool, RegisterError>> },
    Settle { number: u64, answer: oneshot::Sender<Result<(), RegisterError>> },
    Renew { node: NodeId, misses: Vec<NodeId>, answer: oneshot::Sender<Result<(), RegisterError>> },
    Tell { node: NodeId, words: String, answer: oneshot::Sender<Result<(), RegisterError>> },
}

/// The content of a register, for a reader that is not a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterView {
    /// The configuration.
    pub configuration: Configuration,
    /// The number of the last configuration that all its nodes have installed.
    pub settled: u64,
    /// The state that each node last reported, by node number. It may be old; it is empty if the node has reported nothing.
    pub told: Vec<String>,
}

#[allow(clippy::needless_pass_by_value, reason = "what map_err gives")]
fn unavailable(reason: impl ToString) -> RegisterError {
    RegisterError::Unavailable { reason: reason.to_string().into() }
}

#[allow(clippy::needless_pass_by_value, reason = "what map_err gives")]
fn foreign(reason: impl ToString) -> RegisterError {
    RegisterError::Foreign { reason: reason.to_string().into() }
}

impl EtcdRegister {
    /// The register at `url`, for a cluster of `nodes` nodes. It does not connect yet: if etcd is unreachable, each call returns
    /// that error.
    ///
    /// # Errors
    /// The system has no threads.
    pub fn new(url: EtcdUrl, nodes: u8, timeout: Duration) -> std::io::Result<Self> {
        let (asks, asked) = mpsc::unbounded_channel();
        let store = Store { url, nodes: Some(nodes), timeout, client: Arc::default() };
        let thread = std::thread::Builder::new().name("farhold-etcd".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(answer_all(store, asked)),
                // The end of this thread answers every call with an error.
                Err(error) => drop(error),
            }
        })?;
        Ok(Self { asks: Some(asks), thread: Some(thread) })
    }

    /// The content of the register at `url`; `None` if it has no configuration yet. For a reader that is not a member; it runs on
    /// the caller's own tokio runtime.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub async fn peek(url: EtcdUrl, timeout: Duration) -> Result<Option<RegisterView>, RegisterError> {
        let store = Store { url, nodes: None, timeout, client: Arc::default() };
        let look = async { store.find(&mut store.kv().await?).await };
        let Found { registered: Registered { configuration, settled, .. }, mut told, .. } = store.within(look).await?;
        Ok(configuration.map(|configuration| {
            told.resize(configuration.births.len(), String::new());
            RegisterView { configuration, settled, told }
        }))
    }

    /// The prefixes of all registers at this place and below it, in no order. A cluster with journals has one for each of its
    /// generations.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub async fn prefixes(url: EtcdUrl, timeout: Duration) -> Result<Vec<String>, RegisterError> {
        let store = Store { url, nodes: None, timeout, client: Arc::default() };
        store.within(store.prefixes()).await
    }

    fn ask<'a, T: 'a>(
        &'a self,
        make: impl FnOnce(oneshot::Sender<Result<T, RegisterError>>) -> Ask,
    ) -> RegisterFuture<'a, T> {
        let (sender, answer) = oneshot::channel();
        let sent = self.asks.as_ref().is_some_and(|asks| asks.send(make(sender)).is_ok());
        Box::pin(async move {
            let gone = || unavailable("its thread has ended");
            if !sent {
                return Err(gone());
            }
            answer.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

impl Drop for EtcdRegister {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Register for EtcdRegister {
    fn load(&self) -> RegisterFuture<'_, Registered> {
        self.ask(Ask::Load)
    }

    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool> {
        self.ask(|answer| Ask::Set { expected, next: Box::new(next.clone()), answer })
    }

    fn settle(&self, number: u64) -> RegisterFuture<'_, ()> {
        self.ask(|answer| Ask::Settle { number, answer })
    }

    fn renew<'a>(&'a self, node: NodeId, misses: &'a [NodeId]) -> RegisterFuture<'a, ()> {
        self.ask(|answer| Ask::Renew { node, misses: misses.to_vec(), answer })
    }

    fn tell<'a>(&'a self, node: NodeId, words: &'a str) -> RegisterFuture<'a, ()> {
        self.ask(|answer| Ask::Tell { node, words: words.to_owned(), answer })
    }
}

async fn answer_all(store: Store, mut asked: mpsc::UnboundedReceiver<Ask>) {
    while let Some(ask) = asked.recv().await {
        let store = store.clone();
        // A slow call does not delay the others. If the caller has stopped waiting, its answer is dropped.
        drop(tokio::spawn(async move {
            match ask {
                Ask::Load(answer) => drop(answer.send(store.within(store.load()).await)),
                Ask::Set { expected, next, answer } => {
                    let done = store.within(store.set(expected, &next)).await;
                    drop(answer.send(done));
                }
                Ask::Settle { number, answer } => drop(answer.send(store.within(store.settle(number)).await)),
                Ask::Renew { node, misses, answer } => {
                    drop(answer.send(store.within(store.renew(node, &misses)).await));
                }
                Ask::Tell { node, words, answer } => drop(answer.send(store.within(store.tell(node, words)).await)),
            }
        }));
    }
}

/// The keys below a prefix.
#[derive(Clone)]
struct Store {
    url: EtcdUrl,
    /// The number of nodes that the cluster must have, if the caller knows it.
    nodes: Option<u8>,
    timeout: Duration,
    client: Arc<Mutex<Option<Client>>>,
}

/// Everything that was found, as of one revision.
#[derive(Default)]
struct Found {
    registered: Registered,
    /// Of the configuration's key; 0: there is none.
    revision: i64,
    settled_revision: i64,
    /// The states that nodes report.
    told: Vec<String>,
}

impl Store {
    async fn within<T>(&self, work: impl Future<Output = Result<T, RegisterError>>) -> Result<T, RegisterError> {
        let late = |_| unavailable(format!("{} did not answer in {:?}", self.url.endpoints.join(", "), self.timeout));
        let done = tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|late_by| Err(late(late_by)));
        if matches!(done, Err(RegisterError::Unavailable { .. })) {
            // The next call connects again.
            if let Ok(mut client) = self.client.try_lock() {
                *client = None;
            }
        }
        done
    }

    async fn kv(&self) -> Result<KvClient, RegisterError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.kv_client());
        }
        let options = ConnectOptions::new().with_connect_timeout(self.timeout).with_timeout(self.timeout);
        let options = match &self.url.tls {
            Some(tls) => tls.apply(options)?,
            None => options,
        };
        let connected = Client::connect(&self.url.endpoints, Some(options)).await.map_err(unavailable)?;
        let kv = connected.kv_client();
        *client = Some(connected);
        Ok(kv)
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.url.prefix)
    }

    async fn find(&self, kv: &mut KvClient) -> Result<Found, RegisterError> {
        let everything = GetOptions::new().with_prefix();
        let got = kv.get(self.key(""), Some(everything)).await.map_err(unavailable)?;
        let mut found = Found::default();
        found.registered.renewals = vec![Renewals::default(); usize::from(self.nodes.unwrap_or(u8::MAX))];
        for pair in got.kvs() {
            let key = pair.key_str().map_err(foreign)?;
            let name = key.strip_prefix(&self.key("")).unwrap_or(key);
            let strange = || foreign(format!("the key {key} makes no sense"));
            if name == "configuration" {
                let configuration = decode(pair.value()).ok_or_else(strange)?;
                let found_nodes = configuration.births.len();
                if let Some(nodes) = self.nodes.filter(|nodes| usize::from(*nodes) != found_nodes) {
                    return Err(foreign(format!("the cluster at {key} has {found_nodes} nodes, not {nodes}")));
                }
                found.registered.configuration = Some(configuration);
                found.revision = pair.mod_revision();
            } else if name == "settled" {
                found.registered.settled = number(pair.value()).ok_or_else(strange)?;
                found.settled_revision = pair.mod_revision();
            } else if let Some(node) = name.strip_prefix("renewals/") {
                let place = found.registered.renewals.get_mut(node.parse::<usize>().map_err(|_| strange())?);
                *place.ok_or_else(strange)? = Renewals::decode(pair.value()).ok_or_else(strange)?;
            } else if let Some(node) = name.strip_prefix("told/") {
                let node = usize::from(node.parse::<u8>().map_err(|_| strange())?);
                found.told.resize(found.told.len().max(node + 1), String::new());
                found.told[node] = String::from_utf8_lossy(pair.value()).into_owned();
            }
        }
        Ok(found)
    }

    async fn load(&self) -> Result<Registered, RegisterError> {
        let mut kv = self.kv().await?;
        Ok(self.find(&mut kv).await?.registered)
    }

    async fn prefixes(&self) -> Result<Vec<String>, RegisterError> {
        let mut kv = self.kv().await?;
        let keys = GetOptions::new().with_prefix().with_keys_only();
        let got = kv.get(self.key(""), Some(keys)).await.map_err(unavailable)?;
        let mut found = Vec::new();
        for pair in got.kvs() {
            let key = pair.key_str().map_err(foreign)?;
            found.extend(key.strip_suffix("/configuration").map(str::to_owned));
        }
        Ok(found)
    }

    async fn set(&self, expected: u64, next: &Configuration) -> Result<bool, RegisterError> {
        let mut kv = self.kv().await?;
        let found = self.find(&mut kv).await?;
        let now = found.registered.configuration.as_ref().map_or(0, |now| now.number);
        if now != expected {
            return Ok(false);
        }
        let key = self.key("configuration");
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, found.revision);
        let change = Txn::new().when([unchanged]).and_then([TxnOp::put(key, encode(next), None)]);
        Ok(kv.txn(change).await.map_err(unavailable)?.succeeded())
    }

    async fn settle(&self, number: u64) -> Result<(), RegisterError> {
        let mut kv = self.kv().await?;
        loop {
            let found = self.find(&mut kv).await?;
            if found.registered.settled >= number {
                return Ok(());
            }
            let key = self.key("settled");
            let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, found.settled_revision);
            let change = Txn::new().when([unchanged]).and_then([TxnOp::put(key, number.to_be_bytes(), None)]);
            if kv.txn(change).await.map_err(unavailable)?.succeeded() {
                return Ok(());
            }
        }
    }

    /// Only the node itself writes its count. If a renewal takes effect twice, the node has renewed twice. A renewal that arrives
    /// after the next one has been written renews nothing, because writing it would set the count back.
    async fn renew(&self, node: NodeId, misses: &[NodeId]) -> Result<(), RegisterError> {
        let mut kv = self.kv().await?;
        let key = self.key(&format!("renewals/{}", node.0));
        let got = kv.get(key.clone(), None).await.map_err(unavailable)?;
        let found = got.kvs().first();
        let now = found.map_or_else(|| Some(Renewals::default()), |pair| Renewals::decode(pair.value()));
        let now = now.ok_or_else(|| foreign(format!("the key {key} makes no sense")))?;
        let revision = found.map_or(0, KeyValue::mod_revision);
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let change = Txn::new().when([unchanged]).and_then([TxnOp::put(key, now.next(misses).encode(), None)]);
        if kv.txn(change).await.map_err(unavailable)?.succeeded() {
            Ok(())
        } else {
            Err(RegisterError::Unavailable { reason: "another renewal came first".into() })
        }
    }

    async fn tell(&self, node: NodeId, words: String) -> Result<(), RegisterError> {
        let key = self.key(&format!("told/{}", node.0));
        self.kv().await?.put(key, words, None).await.map(drop).map_err(unavailable)
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

/// FNV-1a: etcd checks its own bytes, so this guards against another program's keys.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn encode(configuration: &Configuration) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(configuration.encode());
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Configuration> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    let is_whole = u64::from_le_bytes(*sum) == checksum(content);
    let body = content.strip_prefix(&MAGIC).filter(|_| is_whole)?;
    Configuration::decode(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_or_refused_in_words() {
        let url = EtcdUrl::parse("etcd://a:2379,b:2380/farhold/test/").expect("a URL");
        assert_eq!(url.endpoints, ["http://a:2379", "http://b:2380"]);
        assert_eq!((&*url.prefix, url.tls), ("farhold/test", None));
        let url =
            EtcdUrl::parse("etcds://ada@a:1,b:2/x?ca-file=c&cert-file=d&key-file=e&password-file=p").expect("a URL");
        assert_eq!(url.endpoints, ["https://a:1", "https://b:2"]);
        let tls = url.tls.expect("files");
        assert_eq!(tls.ca_file, Path::new("c"));
        assert_eq!(tls.identity_files, Some(("d".into(), "e".into())));
        assert_eq!(tls.user, Some(("ada".to_owned(), "p".into())));
        for (other, word) in [
            ("http://a:1/x", "form"),
            ("etcd://a:1", "prefix"),
            ("etcd://a:1/", "prefix"),
            ("etcd://a/x", "HOST:PORT"),
            ("etcd://:1/x", "HOST:PORT"),
            ("etcd://a:99999/x", "HOST:PORT"),
            ("etcds://a:1/x", "ca-file"),
            ("etcds://ada@a:1/x?ca-file=c", "password-file"),
            ("etcds://a:1/x?ca-file=c&password-file=p", "USER@"),
            ("etcds://a:1/x?ca-file=c&key-file=k", "cert-file"),
            ("etcds://a:1/x?ca-file=c&ca-file=d", "twice"),
            ("etcds://a:1/x?ca=c", "none of"),
            ("etcd://a:1/x?ca-file=c", "etcds://"),
            ("etcd://ada@a:1/x", "password-file"),
        ] {
            let error = EtcdUrl::parse(other).expect_err(other);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn other_bytes_are_no_configuration() {
        let configuration = Configuration::first(3, 2);
        let bytes = encode(&configuration);
        assert_eq!(decode(&bytes), Some(configuration));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x20;
            assert_eq!(decode(&other), None, "byte {at}");
            assert_eq!(decode(&bytes[..at]), None, "{at} bytes");
        }
    }
}
