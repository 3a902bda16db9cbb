//! The users file: one `name:secret` per line.
//!
//! A secret is a SCRAM verifier in PostgreSQL's form (as in `SELECT rolpassword FROM pg_authid`) or, for trials, the
//! password itself, which is turned into a verifier when the file is read. Empty lines and lines that begin with `#`
//! are skipped.

use std::collections::HashMap;
use std::path::Path;

use super::Verifier;

/// The users who may connect, with their verifiers.
#[derive(Clone, Debug, Default)]
pub struct Users {
    verifiers: HashMap<String, Verifier>,
}

/// Why a users file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("cannot read the users file: {0}")]
    Unreadable(std::io::Error),
    /// A line is not `name:secret`; lines count from 1.
    #[error("line {line} of the users file is not name:password or name:verifier")]
    Malformed {
        /// The line.
        line: usize,
    },
    /// The file has no users, so no client could connect.
    #[error("the users file names no user")]
    Empty,
}

impl Users {
    /// One user.
    #[must_use]
    pub fn single(name: &str, secret: &str) -> Self {
        let mut users = Self::default();
        users.add(name, secret);
        users
    }

    /// Adds a user, or replaces a user's secret. `secret` is a verifier or a password.
    pub fn add(&mut self, name: &str, secret: &str) {
        let verifier = Verifier::parse(secret).unwrap_or_else(|| Verifier::from_password(secret));
        self.verifiers.insert(name.to_owned(), verifier);
    }

    /// Reads a users file.
    ///
    /// # Errors
    /// The file cannot be read, has a malformed line, or has no users.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        Self::parse(&std::fs::read_to_string(path).map_err(UsersError::Unreadable)?)
    }

    fn parse(text: &str) -> Result<Self, UsersError> {
        let mut users = Self::default();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once(':') {
                Some((name, secret)) if !name.is_empty() && !secret.is_empty() => users.add(name, secret),
                _ => return Err(UsersError::Malformed { line: index + 1 }),
            }
        }
        if users.verifiers.is_empty() { Err(UsersError::Empty) } else { Ok(users) }
    }

    /// The verifier of `user`.
    #[must_use]
    pub fn verifier(&self, user: &str) -> Option<&Verifier> {
        self.verifiers.get(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_secrets() {
        let stored = Verifier::from_password("secret");
        let users = Users::parse(&format!("# people\n\nann:{stored}\nbob:pass:word\n")).unwrap();
        assert_eq!(users.verifier("ann"), Some(&stored));
        assert!(users.verifier("bob").is_some());
        assert!(users.verifier("cid").is_none());
    }

    #[test]
    fn a_bad_line_is_named() {
        assert!(matches!(Users::parse("ann:x\nbob\n"), Err(UsersError::Malformed { line: 2 })));
        assert!(matches!(Users::parse(":x"), Err(UsersError::Malformed { line: 1 })));
        assert!(matches!(Users::parse("# nobody\n"), Err(UsersError::Empty)));
    }
}
