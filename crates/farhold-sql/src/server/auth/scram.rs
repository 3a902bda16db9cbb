//! The server's side of SCRAM-SHA-256 (RFC 5802, RFC 7677).
//!
//! ```text
//! client                                   server
//!   n,,n=,r=<client nonce>            ->
//!                                     <-   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
//!   c=biws,r=<both nonces>,p=<proof>  ->
//!                                     <-   v=<server's signature>
//! ```
//! The server stores no password: `StoredKey` authenticates the client, `ServerKey` authenticates the server. Channel
//! binding (SCRAM-SHA-256-PLUS) is not offered. Like PostgreSQL, it takes the user's name from the start-up packet, not
//! from `n=`.

use std::fmt;
use std::num::NonZero;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::{digest, hmac, pbkdf2, rand};

const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 18;
/// PostgreSQL's default (`scram_iterations`).
const ITERATIONS: u32 = 4096;
const PREFIX: &str = "SCRAM-SHA-256";

type Key = [u8; KEY_BYTES];

/// The server's record of a password, in PostgreSQL's form:
/// `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

impl Verifier {
    /// The verifier of `password` with a fresh salt.
    #[must_use]
    pub fn from_password(password: &str) -> Self {
        Self::derive(password, &random::<SALT_BYTES>(), ITERATIONS)
    }

    fn derive(password: &str, salt: &[u8], iterations: u32) -> Self {
        // As in PostgreSQL and libpq, a password that SASLprep rejects is used unchanged.
        let password = stringprep::saslprep(password).unwrap_or(password.into());
        let rounds = NonZero::new(iterations).expect("at least one iteration");
        let mut salted = [0; KEY_BYTES];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, password.as_bytes(), &mut salted);
        Self {
            iterations,
            salt: salt.to_vec(),
            stored_key: sha256(&sign(&salted, b"Client Key")),
            server_key: sign(&salted, b"Server Key"),
        }
    }

    /// A verifier that no password matches. It is always the same for one user and one server, so that a client cannot
    /// tell an unknown user from a wrong password.
    fn of_unknown(user: &str, server_secret: &Key) -> Self {
        let salt = sign(server_secret, user.as_bytes());
        let nobody = sign(server_secret, b"nobody");
        Self { iterations: ITERATIONS, salt: salt[..SALT_BYTES].to_vec(), stored_key: nobody, server_key: nobody }
    }

    /// Parses PostgreSQL's form; `None` if `text` has another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (head, keys) = text.strip_prefix(PREFIX)?.strip_prefix('$')?.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let key = |text: &str| BASE64_STANDARD.decode(text).ok()?.try_into().ok();
        Some(Self {
            iterations: iterations.parse().ok().filter(|&iterations| iterations > 0)?,
            salt: BASE64_STANDARD.decode(salt).ok()?,
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
        })
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [salt, stored, server] =
            [&self.salt[..], &self.stored_key, &self.server_key].map(|bytes| BASE64_STANDARD.encode(bytes));
        write!(f, "{PREFIX}${}:{salt}${stored}:{server}", self.iterations)
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(…)")
    }
}

/// The exchange of one connection.
#[derive(Debug)]
pub struct Exchange {
    verifier: Verifier,
    server_nonce: String,
    state: State,
}

#[derive(Debug)]
enum State {
    First,
    /// Waiting for the proof of `<client-first-bare>,<server-first>`.
    Proof {
        gs2_header: String,
        nonce: String,
        signed: String,
    },
}

/// The reaction to a client's message.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this challenge and continue.
    Continue(String),
    /// The client is authenticated; send this message.
    Accept(String),
    /// Authentication has failed.
    Reject,
    /// The message is not SCRAM.
    Malformed(&'static str),
}

impl Exchange {
    /// An exchange for `user`, who is unknown without a `verifier`.
    pub fn new(user: &str, verifier: Option<&Verifier>, server_secret: &Key) -> Self {
        Self {
            verifier: verifier.cloned().unwrap_or_else(|| Verifier::of_unknown(user, server_secret)),
            server_nonce: BASE64_STANDARD.encode(random::<NONCE_BYTES>()),
            state: State::First,
        }
    }

    /// Processes the client's next message.
    pub fn step(&mut self, message: &[u8]) -> Step {
        let Ok(message) = std::str::from_utf8(message) else { return Step::Malformed("malformed SCRAM message") };
        let next = match &self.state {
            State::First => self.first(message),
            State::Proof { gs2_header, nonce, signed } => self.proof(message, gs2_header, nonce, signed),
        };
        match next {
            Ok((step, Some(state))) => {
                self.state = state;
                step
            }
            Ok((step, None)) => step,
            Err(why) => Step::Malformed(why),
        }
    }

    fn first(&self, message: &str) -> Result<(Step, Option<State>), &'static str> {
        const MALFORMED: &str = "malformed SCRAM message";
        let mut parts = message.splitn(3, ',');
        let flag = parts.next().ok_or(MALFORMED)?;
        let authorization = parts.next().ok_or(MALFORMED)?;
        let bare = parts.next().ok_or(MALFORMED)?;
        if flag != "n" && flag != "y" {
            return Err("channel binding is not supported");
        }
        if !authorization.is_empty() {
            return Err("the client uses an authorization identity, but it is not supported");
        }
        let mut attributes = bare.split(',');
        attributes.next().and_then(|user| user.strip_prefix("n=")).ok_or(MALFORMED)?;
        let client_nonce = attributes.next().and_then(|nonce| nonce.strip_prefix("r=")).ok_or(MALFORMED)?;
        if client_nonce.is_empty() || !client_nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("non-printable characters in SCRAM nonce");
        }
        let nonce = format!("{client_nonce}{}", self.server_nonce);
        let salt = BASE64_STANDARD.encode(&self.verifier.salt);
        let challenge = format!("r={nonce},s={salt},i={}", self.verifier.iterations);
        let signed = format!("{bare},{challenge}");
        Ok((Step::Continue(challenge), Some(State::Proof { gs2_header: format!("{flag},,"), nonce, signed })))
    }

    fn proof(
        &self,
        message: &str,
        gs2_header: &str,
        nonce: &str,
        signed: &str,
    ) -> Result<(Step, Option<State>), &'static str> {
        const MALFORMED: &str = "malformed SCRAM message";
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(MALFORMED)?;
        let mut attributes = without_proof.split(',');
        let binding = attributes.next().and_then(|binding| binding.strip_prefix("c=")).ok_or(MALFORMED)?;
        if BASE64_STANDARD.decode(binding).ok().as_deref() != Some(gs2_header.as_bytes()) {
            return Err("unexpected SCRAM channel-binding attribute in client-final-message");
        }
        if attributes.next().and_then(|echoed| echoed.strip_prefix("r=")) != Some(nonce) {
            return Err("invalid SCRAM response: nonce does not match");
        }
        let proof: Key = BASE64_STANDARD.decode(proof).ok().and_then(|proof| proof.try_into().ok()).ok_or(MALFORMED)?;

        let signed = format!("{signed},{without_proof}");
        let client_signature = sign(&self.verifier.stored_key, signed.as_bytes());
        let client_key: Key = std::array::from_fn(|index| proof[index] ^ client_signature[index]);
        if !is_same_secret(&sha256(&client_key), &self.verifier.stored_key) {
            return Ok((Step::Reject, None));
        }
        let signature = BASE64_STANDARD.encode(sign(&self.verifier.server_key, signed.as_bytes()));
        Ok((Step::Accept(format!("v={signature}")), None))
    }
}

/// The mechanism's name.
pub const MECHANISM: &str = PREFIX;

/// Fresh random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::SecureRandom::fill(&rand::SystemRandom::new(), &mut bytes).expect("the system gives random bytes");
    bytes
}

/// Compares secrets in constant time for each length.
pub fn is_same_secret(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    a.len() == b.len() && difference == 0
}

fn sign(key: &[u8], data: &[u8]) -> Key {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data);
    tag.as_ref().try_into().expect("32 bytes")
}

fn sha256(data: &[u8]) -> Key {
    digest::digest(&digest::SHA256, data).as_ref().try_into().expect("32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677, section 3.
    fn example() -> Exchange {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let mut exchange = Exchange::new("user", Some(&Verifier::derive("pencil", &salt, 4096)), &[0; KEY_BYTES]);
        exchange.server_nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".to_owned();
        exchange
    }

    const FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

    #[test]
    fn the_example_of_the_rfc() {
        let mut exchange = example();
        assert_eq!(exchange.step(FIRST), Step::Continue(format!("r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")));
        let last = format!("c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let server = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(exchange.step(last.as_bytes()), Step::Accept(server.to_owned()));
    }

    #[test]
    fn a_wrong_proof_or_nonce_or_binding_is_refused() {
        let wrong_proof = format!("c=biws,r={NONCE},p=eHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let wrong_nonce = "c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let wrong_binding = format!("c=eSws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        for (message, accepted_as_scram) in
            [(wrong_proof.as_str(), true), (wrong_nonce, false), (&wrong_binding, false)]
        {
            let mut exchange = example();
            exchange.step(FIRST);
            let step = exchange.step(message.as_bytes());
            assert_eq!(step == Step::Reject, accepted_as_scram, "{message}: {step:?}");
            assert_eq!(matches!(step, Step::Malformed(_)), !accepted_as_scram, "{message}");
        }
    }

    #[test]
    fn channel_binding_is_refused_and_so_is_garbage() {
        for message in
            ["p=tls-server-end-point,,n=,r=abc", "n,a=root,n=,r=abc", "n,,r=abc", "n,,n=,r=", "n,,n=", "", "\u{7f}"]
        {
            assert!(matches!(example().step(message.as_bytes()), Step::Malformed(_)), "{message}");
        }
        assert!(matches!(example().step(&[0xff, 0xfe]), Step::Malformed(_)));
    }

    #[test]
    fn a_verifier_survives_its_text() {
        let verifier = Verifier::from_password("gëheim");
        assert_eq!(Verifier::parse(&verifier.to_string()), Some(verifier));
        for text in ["", "md5abc", "SCRAM-SHA-256$0:AAAA$AAAA:AAAA", "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA"] {
            assert_eq!(Verifier::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_user_always_gets_the_same_salt() {
        let challenge = |user| match Exchange::new(user, None, &[7; KEY_BYTES]).step(b"n,,n=,r=abc") {
            Step::Continue(challenge) => challenge.split(',').nth(1).unwrap().to_owned(),
            step => panic!("{step:?}"),
        };
        assert_eq!(challenge("ann"), challenge("ann"));
        assert_ne!(challenge("ann"), challenge("bob"));
    }
}
