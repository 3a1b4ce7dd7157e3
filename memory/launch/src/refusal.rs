//! Why a command does nothing, and the exit code that says so to a script: those of `pando`.

use std::io::ErrorKind;

/// A cause in words, with the next step, and its exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub words: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

/// What was given makes no sense.
pub fn invalid(words: impl Into<String>) -> Refusal {
    Refusal { code: 3, words: words.into() }
}

/// There is no such file or program.
pub fn not_found(words: impl Into<String>) -> Refusal {
    Refusal { code: 4, words: words.into() }
}

/// A memory host, or the memory of this one, does not allow it.
pub fn refused(words: impl Into<String>) -> Refusal {
    Refusal { code: 5, words: words.into() }
}

/// The memory host does not run.
pub fn away(words: impl Into<String>) -> Refusal {
    Refusal { code: 8, words: words.into() }
}

/// The machine gives this user no right to it.
pub fn denied(words: impl Into<String>) -> Refusal {
    Refusal { code: 10, words: words.into() }
}

/// A program like this cannot run on far memory.
pub fn unsupported(words: impl Into<String>) -> Refusal {
    Refusal { code: 11, words: words.into() }
}

/// What an error of the system makes of it.
pub fn of(e: &std::io::Error, words: impl Into<String>) -> Refusal {
    let code = match e.kind() {
        ErrorKind::NotFound => 4,
        ErrorKind::AddrInUse => 6,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => 10,
        ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::AddrNotAvailable | ErrorKind::InvalidData => 3,
        _ => 1,
    };
    Refusal { code, words: words.into() }
}
