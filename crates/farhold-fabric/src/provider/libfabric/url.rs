//! A configuration in one line, for command lines and files.
//!
//! ```text
//!   tcp;ofi_rxm                                                         one host; nodes meet in the cluster's directory
//!   tcp;ofi_rxm?listen=10.0.0.1:7470&peer=1@10.0.0.2:7470&peer=2@10.0.0.3:7470&secret-file=/etc/farhold/secret
//! ```
//!
//! `listen`: where others learn this node's address, and the local address of its endpoints; then each other node is a `peer`.
//! `secret-file`: `secret` in the cluster's directory otherwise. `timeout-ms`: of requests and of hellos. `agent`: `sleeps` while
//! it has no requests, or `spins`.

use super::{Config, Rendezvous, Secret};
use crate::address::NodeId;
use crate::error::FabricError;
use crate::provider::shm;
use std::path::Path;

impl Config {
    /// Of a line as above. A secret's file is made if it is not there.
    ///
    /// # Errors
    /// [`FabricError::ProviderUnfit`] says what cannot be parsed; also any error of the secret's file.
    pub fn of_url(url: &str, cluster: &Path) -> Result<Self, FabricError> {
        let (provider, query) = url.split_once('?').unwrap_or((url, ""));
        let wrong = |what: String| FabricError::unfit_provider(&format!("libfabric:{url}"), what);
        let (mut listen, mut peers, mut secret, mut timeout_ns, mut agent_spins) =
            (None, Vec::new(), None, None, false);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("listen", at)) => listen = Some(at.to_owned()),
                Some(("peer", peer)) => {
                    let read =
                        peer.split_once('@').and_then(|(node, at)| Some((NodeId(node.parse().ok()?), at.to_owned())));
                    peers.push(read.ok_or_else(|| wrong(format!("`{pair}` is not peer=NODE@HOST:PORT")))?);
                }
                Some(("secret-file", path)) => secret = Some(Secret::of_file(Path::new(path))?),
                Some(("timeout-ms", ms)) => {
                    let read: Option<u64> = ms.parse().ok().filter(|ms| (1..=3_600_000).contains(ms));
                    timeout_ns = Some(read.ok_or_else(|| wrong(format!("`{pair}`: from 1 to 3600000")))? * 1_000_000);
                }
                Some(("agent", how @ ("sleeps" | "spins"))) => agent_spins = how == "spins",
                Some(("agent", _)) => return Err(wrong(format!("`{pair}`: an agent sleeps or spins"))),
                _ => return Err(wrong(format!("`{pair}` is none of listen, peer, secret-file, timeout-ms, agent"))),
            }
        }
        let secret = secret.map_or_else(|| Secret::of_file(&cluster.join(shm::SECRET)), Ok)?;
        let mut config = Self { agent_spins, ..Self::new(provider, secret) };
        config.rendezvous = match listen {
            Some(listen) => Rendezvous::Hosts { listen, peers },
            None if peers.is_empty() => Rendezvous::Directory,
            None => return Err(wrong("peers without listen: how would they find this node?".into())),
        };
        if let Some(timeout_ns) = timeout_ns {
            (config.request_timeout_ns, config.connect_timeout_ns) = (timeout_ns, timeout_ns);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_rubbish_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let read = |url: &str| Config::of_url(url, dir.path());
        let one_host = read("tcp;ofi_rxm").unwrap();
        assert_eq!((&*one_host.provider, &one_host.rendezvous), ("tcp;ofi_rxm", &Rendezvous::Directory));
        let file = dir.path().join("other");
        let three = read(&format!(
            "efa?listen=a:1&peer=1@b:2&peer=2@c:3&secret-file={}&timeout-ms=7&agent=spins",
            file.display()
        ));
        let three = three.unwrap();
        let peers = vec![(NodeId(1), "b:2".to_owned()), (NodeId(2), "c:3".to_owned())];
        assert_eq!(three.rendezvous, Rendezvous::Hosts { listen: "a:1".into(), peers });
        assert_eq!((three.request_timeout_ns, three.connect_timeout_ns), (7_000_000, 7_000_000));
        assert!(three.agent_spins && !one_host.agent_spins);
        assert!(file.exists(), "a secret of its own");
        for (url, complaint) in [
            ("tcp?listen=a:1&peer=b:2", "peer=NODE@HOST:PORT"),
            ("tcp?peer=1@b:2", "without listen"),
            ("tcp?timeout-ms=0", "from 1"),
            ("tcp?speed=high", "none of listen"),
            ("tcp?agent=dozes", "sleeps or spins"),
        ] {
            let error = read(url).unwrap_err();
            assert!(matches!(error, FabricError::ProviderUnfit(_)), "{error:?}");
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
