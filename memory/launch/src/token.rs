//! Tokens: of a file for all borrowers, or of a list with one for each.

use crate::refusal::{self, Refusal};
use memory_core::wire::TOKEN_BYTES;
use memory_host::{Admission, Borrower};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A longer file is read only up to this size: its token is too long in any case.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;
/// A list of the most borrowers is smaller.
const LIST_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 64;

/// Returns the token of a file in its wire form. Without a file, zeros.
pub fn token(path: Option<&Path>) -> Result<[u8; TOKEN_BYTES], Refusal> {
    let Some(path) = path else { return Ok([0; TOKEN_BYTES]) };
    let text = text(path, TOKEN_FILE_BYTES_MAX).map_err(|e| {
        let next = match e.kind() {
            ErrorKind::NotFound => {
                format!(
                    "; `head -c 24 /dev/urandom | base64 >{}` makes one, the same for both sides",
                    path.display()
                )
            }
            _ => String::new(),
        };
        refusal::of(&e, format!("cannot read the token file {}: {e}{next}", path.display()))
    })?;
    let text = text.trim_end();
    if text.len() as u64 > TOKEN_FILE_BYTES_MAX / 2 {
        return Err(refusal::invalid(format!(
            "the token in {} has {} bytes or more; it wants 8 to {TOKEN_BYTES}",
            path.display(),
            text.len()
        )));
    }
    padded(text).map_err(|why| refusal::invalid(format!("the token in {} {why}", path.display())))
}

/// Returns the text of a file, up to a size: the path may name an endless file.
fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(bytes_max).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns a token in its wire form, padded with zeros. Err: why it is none.
fn padded(text: &str) -> Result<[u8; TOKEN_BYTES], String> {
    if !(8..=TOKEN_BYTES).contains(&text.len()) {
        return Err(format!("has {} bytes; it wants 8 to {TOKEN_BYTES}", text.len()));
    }
    // A token of zeros would be the same as none.
    if text.contains('\0') {
        return Err("has a zero byte; it wants text".into());
    }
    let mut token = [0; TOKEN_BYTES];
    token[..text.len()].copy_from_slice(text.as_bytes());
    Ok(token)
}

/// The file with the borrowers, and the list that was last read from it.
pub struct List {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
    pub now: Vec<Borrower>,
}

impl List {
    /// Reads a list. Each line has a name and a token. Empty lines and comments (`#`) do not count.
    pub fn read(path: &Path) -> Result<List, Refusal> {
        let mut list = List { path: path.into(), seen: None, now: Vec::new() };
        list.changed()?;
        Ok(list)
    }

    /// Reads the file again if it has another time or size. Returns its borrowers, or None if it is
    /// the same. A file that cannot be read is refused once, and leaves the list as it was.
    pub fn changed(&mut self) -> Result<Option<Vec<Borrower>>, Refusal> {
        let seen = std::fs::metadata(&self.path)
            .ok()
            .map(|m| (m.modified().unwrap_or(SystemTime::UNIX_EPOCH), m.len()));
        let first = self.now.is_empty();
        if seen == self.seen && !first {
            return Ok(None);
        }
        self.seen = seen;
        let path = self.path.display();
        let text = text(&self.path, LIST_BYTES_MAX).map_err(|e| {
            refusal::of(
                &e,
                format!(
                    "cannot read the borrowers of {path}: {e}; give it lines of a name and a token"
                ),
            )
        })?;
        let borrowers = match text.len() as u64 {
            LIST_BYTES_MAX.. => Err(format!("it has more than {} KiB", LIST_BYTES_MAX >> 10)),
            _ => parse(&text),
        };
        self.now = borrowers.map_err(|why| refusal::invalid(format!("{path}: {why}")))?;
        Ok(Some(self.now.clone()))
    }
}

/// Returns the borrowers of a list. Err: the line and its fault.
fn parse(text: &str) -> Result<Vec<Borrower>, String> {
    let mut all: Vec<Borrower> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fault = |why: String| format!("line {}: {why}", n + 1);
        let (name, token) = line.split_once(char::is_whitespace).ok_or_else(|| {
            fault("it wants a name and a token, with a space between them".into())
        })?;
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.len() > NAME_BYTES_MAX || !name.chars().all(legal) {
            return Err(fault(format!(
                "a name has letters, digits, \"-\", \"_\" and \".\", at most {NAME_BYTES_MAX}"
            )));
        }
        let token = padded(token.trim_start()).map_err(|why| fault(format!("the token {why}")))?;
        if let Some(other) = all.iter().find(|b| b.name == name || b.token == token) {
            return Err(fault(format!("{name} has the name or the token of {}", other.name)));
        }
        all.push(Borrower { name: name.into(), token });
    }
    match all.len() {
        0 => Err("it names no borrower; add a line with a name and a token".into()),
        n if n > Admission::BORROWERS_MAX => {
            Err(format!("{n} borrowers are more than {}", Admission::BORROWERS_MAX))
        }
        _ => Ok(all),
    }
}

#[cfg(test)]
mod tests;
