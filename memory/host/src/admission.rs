//! Admission: the borrowers that a memory host serves, by the tokens that they prove.

use memory_core::wire::{Challenge, Hello, Status, TOKEN_BYTES};
use std::sync::RwLock;

/// A borrower with a token of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borrower {
    /// Its name, in messages and for its share of the memory.
    pub name: String,
    /// The token that it proves.
    pub token: [u8; TOKEN_BYTES],
}

/// The borrowers that a memory host admits.
pub enum Admission {
    /// All that prove one token. Each machine, or each user of this one, counts as one borrower.
    Shared([u8; TOKEN_BYTES]),
    /// Each by a token of its own. The list may change while the host runs.
    Each(RwLock<Vec<Borrower>>),
}

impl Admission {
    /// The most borrowers of a list. A greeting is tried with the token of each, a microsecond a
    /// token.
    pub const BORROWERS_MAX: usize = 256;

    /// Admits these borrowers from now on. A borrower that is no longer in the list opens no
    /// connection. Its open ones stay, because its program would end with them.
    pub fn replace(&self, borrowers: Vec<Borrower>) {
        if let Admission::Each(now) = self {
            *now.write().expect("borrowers") = borrowers;
        }
    }

    /// Reads a greeting. Returns it with the name of its borrower, or no name for a shared token.
    pub fn admit(
        &self,
        b: &[u8; Hello::BYTES],
        challenge: &Challenge,
    ) -> Result<(Hello, Option<String>), Status> {
        match self {
            Admission::Shared(token) => Ok((Hello::decode(b, challenge, token)?, None)),
            Admission::Each(borrowers) => {
                for borrower in borrowers.read().expect("borrowers").iter() {
                    match Hello::decode(b, challenge, &borrower.token) {
                        Err(Status::WrongToken) => continue,
                        hello => return Ok((hello?, Some(borrower.name.clone()))),
                    }
                }
                Err(Status::WrongToken)
            }
        }
    }
}
