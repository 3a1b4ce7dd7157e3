//! The keys that a unit proves to its log on another host: one for each tenant, in a file that both
//! hosts have.

use std::collections::HashMap;
use std::fmt::Write;

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;

/// A secret that both ends of a link have.
pub type Key = [u8; KEY_BYTES];

/// The keys of some tenants.
#[derive(Clone, Default)]
pub struct Keys(HashMap<String, Key>);

/// The reason why a file has no keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A line has another form.
    #[error("line {0} is not TENANT and {digits} hexadecimal digits", digits = 2 * KEY_BYTES)]
    Line(usize),
    /// A tenant has two keys.
    #[error("line {0} has a second key of tenant {1}")]
    Twice(usize, String),
    /// The file has no line.
    #[error("there is no key")]
    Empty,
}

impl Keys {
    /// Reads keys from text: a line for each tenant, with its name and the key in hexadecimal.
    /// Skips empty lines and those that begin with `#`.
    pub fn parse(text: &str) -> Result<Keys, BadKeys> {
        let mut keys = HashMap::new();
        for (n, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (tenant, key) = (words.next(), words.next().and_then(unhex::<KEY_BYTES>));
            let (Some(tenant), Some(key), None) = (tenant, key, words.next()) else {
                return Err(BadKeys::Line(n + 1));
            };
            if tenant.len() > TENANT_BYTES_MAX {
                return Err(BadKeys::Line(n + 1));
            }
            if keys.insert(tenant.to_owned(), key).is_some() {
                return Err(BadKeys::Twice(n + 1, tenant.to_owned()));
            }
        }
        if keys.is_empty() { Err(BadKeys::Empty) } else { Ok(Keys(keys)) }
    }

    /// Returns the key of a tenant.
    pub fn of(&self, tenant: &str) -> Option<&Key> {
        self.0.get(tenant)
    }

    /// Returns the number of tenants.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The longest name of a tenant.
pub const TENANT_BYTES_MAX: usize = 63;

/// Returns the line of a file with a tenant's key.
pub fn line(tenant: &str, key: &Key) -> String {
    format!("{tenant} {}", hex(key))
}

/// Writes bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text has room");
        text
    })
}

/// Reads exactly `N` bytes in hexadecimal.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    let digit = |at: usize| char::from(text[at]).to_digit(16).map(|d| d as u8);
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = digit(2 * n)? << 4 | digit(2 * n + 1)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_keys_is_read_as_it_was_written() {
        let (one, two) = ([7; KEY_BYTES], [0xab; KEY_BYTES]);
        let text = format!("# keys\n\n{}\n{}\n", line("default", &one), line("blue", &two));
        let keys = Keys::parse(&text).unwrap();
        assert_eq!((keys.of("default"), keys.of("blue")), (Some(&one), Some(&two)));
        assert_eq!((keys.of("red"), keys.len()), (None, 2));
    }

    #[test]
    fn a_file_that_has_no_keys_is_refused_with_its_line() {
        let whole = line("default", &[7; KEY_BYTES]);
        let read = |text: &str| Keys::parse(text).map(drop);
        assert_eq!(read("# none\n"), Err(BadKeys::Empty));
        assert_eq!(read(&whole[..whole.len() - 1]), Err(BadKeys::Line(1)));
        assert_eq!(read(&format!("\n{whole} x")), Err(BadKeys::Line(2)));
        assert_eq!(read(&whole.replace('7', "g")), Err(BadKeys::Line(1)));
        assert_eq!(
            read(&format!("{whole}\n{whole}")),
            Err(BadKeys::Twice(2, "default".to_owned()))
        );
        let long = line(&"t".repeat(TENANT_BYTES_MAX + 1), &[7; KEY_BYTES]);
        assert_eq!(read(&long), Err(BadKeys::Line(1)));
    }
}
