//! Membership of the cluster by a shared secret, and proofs of knowing it that are good for one session.
//!
//! ```text
//!   worker                                     home agent
//!     hello: name, node, start, nonce, proof ───>                HMAC-SHA256 over the nonces so far, both nodes, both names and the start
//!     <───────────  challenge: nonce, proof of the home
//!     proof of the worker  ─────────────────────>
//!     <─────────────────────────────────  welcome
//! ```
//!
//! The worker proves first: the agent keeps nothing for a hello without a proof, and answers nothing against which a guess of the
//! secret could be tried. A hello goes to the address that the node's record names. A program that can answer there can try
//! guesses against the hello, so a secret has at least [`SECRET_BYTES_MIN`] bytes and should be random.
//!
//! Both sides derive the session's token from the same values; every later frame carries it. The secret itself is never sent.
//! This keeps out programs that do not know the secret. Against an adversary who reads or changes packets on the way only the
//! network's own encryption helps (`IPsec`, `MACsec`, a private network), because a NIC that reads memory by itself encrypts
//! nothing.

use crate::error::FabricError;
use crate::private;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub(super) const NONCE_BYTES: usize = 16;
pub(super) const PROOF_BYTES: usize = 32;
const SECRET_BYTES: usize = 32;
/// Shortest secret: 128 bits, if they are random.
pub(super) const SECRET_BYTES_MIN: usize = 16;
/// Longest file that is taken for a secret.
const SECRET_BYTES_MAX: u64 = 4096;
const TOO_SHORT: &str = "a cluster's secret has at least 16 bytes";

pub(super) type Nonce = [u8; NONCE_BYTES];
pub(super) type Proof = [u8; PROOF_BYTES];

/// A secret that only the nodes of a cluster know.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret that is stored elsewhere: at least 16 bytes, which should be random.
    ///
    /// # Errors
    /// [`FabricError::ProviderUnfit`] if it is shorter.
    pub fn new(bytes: &[u8]) -> Result<Self, FabricError> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(FabricError::unfit_provider("libfabric", TOO_SHORT));
        }
        Ok(Self(bytes.to_vec()))
    }

    /// The secret in a file of this process's user that no other may read; made, of random bytes, if it is not there.
    ///
    /// # Errors
    /// [`FabricError::Io`], also if other users may read or write it; [`FabricError::BadFormat`] if it is shorter than 16 bytes.
    pub fn of_file(path: &Path) -> Result<Self, FabricError> {
        let failed = |error| FabricError::io("read or make the secret", path, &error);
        // A name of its own until it is complete: other processes must never read half a secret.
        let mut made = [0; SECRET_BYTES];
        random(&mut made);
        if !path.exists() {
            if let Some(directory) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
                private::directory(directory).map_err(failed)?;
            }
            let draft = path.with_extension(format!("{}-{:016x}", std::process::id(), random_u64()));
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
            file.write_all(&made).map_err(failed)?;
            // Fails if another node was first; its secret then counts.
            let _ = std::fs::hard_link(&draft, path);
            std::fs::remove_file(&draft).map_err(failed)?;
        }
        let file = std::fs::File::open(path).map_err(failed)?;
        file.metadata().and_then(|found| private::check_secret(&found)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(SECRET_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(FabricError::bad_format(path, TOO_SHORT));
        }
        Ok(Self(bytes))
    }

    fn mac(&self, what: &str, introduction: &Introduction<'_>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("every length is a key");
        let Introduction { version, worker_nonce, home_nonce, worker_node, home_node, start, worker_name, home_name } =
            introduction;
        for part in [
            what.as_bytes(),
            &version.to_le_bytes(),
            *worker_nonce,
            *home_nonce,
            &[*worker_node, *home_node],
            &start.0.to_le_bytes(),
            &start.1.to_le_bytes(),
            worker_name,
            home_name,
        ] {
            // With its length, so that no two introductions make the same bytes.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    pub(super) fn prove(&self, side: Side, introduction: &Introduction<'_>) -> Proof {
        self.mac(side.label(), introduction).finalize().into_bytes().into()
    }

    /// Compares in a time that does not depend on the content.
    pub(super) fn is_proof(&self, side: Side, introduction: &Introduction<'_>, proof: &[u8]) -> bool {
        self.mac(side.label(), introduction).verify_slice(proof).is_ok()
    }

    /// The word that every frame of the session carries; never zero.
    pub(super) fn token(&self, introduction: &Introduction<'_>) -> u64 {
        let bytes: Proof = self.mac("session", introduction).finalize().into_bytes().into();
        u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")).max(1)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The side that makes a proof.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// A worker's, in its hello: before it knows the home's nonce.
    Hello,
    Worker,
    Home,
}

impl Side {
    fn label(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Worker => "worker",
            Self::Home => "home",
        }
    }
}

/// All that both sides of a new session must agree on.
pub(super) struct Introduction<'a> {
    pub version: u16,
    pub worker_nonce: &'a Nonce,
    /// Zeros in a hello.
    pub home_nonce: &'a Nonce,
    pub worker_node: u8,
    pub home_node: u8,
    /// The worker's node's count of starts, and birth.
    pub start: (u64, u64),
    pub worker_name: &'a [u8],
    pub home_name: &'a [u8],
}

/// Bytes that an adversary cannot guess: from the operating system, not from an executor's seed.
pub(super) fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// As [`random`], as a word.
pub(super) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    random(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_introduction_alone() {
        let (ours, other) = (Secret::new(&[1; 16]).unwrap(), Secret::new(&[2; 16]).unwrap());
        let base = || Introduction {
            version: 1,
            worker_nonce: &[1; NONCE_BYTES],
            home_nonce: &[2; NONCE_BYTES],
            worker_node: 3,
            home_node: 4,
            start: (5, 6),
            worker_name: b"w",
            home_name: b"hh",
        };
        let proof = ours.prove(Side::Worker, &base());
        assert!(ours.is_proof(Side::Worker, &base(), &proof));
        assert!(!other.is_proof(Side::Worker, &base(), &proof));
        assert!(!ours.is_proof(Side::Home, &base(), &proof), "a home's proof is no worker's");
        assert!(!ours.is_proof(Side::Worker, &base(), &proof[..31]));
        for changed in [
            Introduction { version: 2, ..base() },
            Introduction { worker_nonce: &[9; NONCE_BYTES], ..base() },
            Introduction { home_nonce: &[9; NONCE_BYTES], ..base() },
            Introduction { worker_node: 9, ..base() },
            Introduction { home_node: 9, ..base() },
            Introduction { start: (6, 6), ..base() },
            Introduction { start: (5, 5), ..base() },
            Introduction { worker_name: b"wh", home_name: b"h", ..base() },
        ] {
            assert!(!ours.is_proof(Side::Worker, &changed, &proof));
            assert_ne!(ours.token(&changed), ours.token(&base()));
        }
    }

    #[test]
    fn a_file_keeps_the_first_secret() {
        let temporary = tempfile::tempdir().unwrap();
        // It is made with the secret.
        let directory = temporary.path().join("cluster");
        let path = directory.join("secret");
        let first = Secret::of_file(&path).unwrap();
        assert_eq!(first.0.len(), SECRET_BYTES);
        assert_eq!(Secret::of_file(&path).unwrap().0, first.0);
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no draft is left");
        for short in [&b""[..], &[7; SECRET_BYTES_MIN - 1]] {
            std::fs::write(&path, short).unwrap();
            assert!(matches!(Secret::of_file(&path), Err(FabricError::BadFormat(_))));
            assert!(Secret::new(short).is_err());
        }
        std::fs::write(&path, [7; SECRET_BYTES]).unwrap();
        for (mode, is_good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(Secret::of_file(&path).is_ok(), is_good, "{mode:o}");
        }
    }
}
