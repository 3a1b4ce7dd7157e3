//! Tokens from files of any content, and the last words of a memory host.

use super::*;
use std::path::Path;

/// A file with this content, in a folder of its own that is removed at the end.
struct Held(PathBuf);

impl Held {
    fn new(name: &str) -> Held {
        let dir = format!("pando-token-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        Held(dir.join("token"))
    }

    fn with(&self, bytes: &[u8]) -> &Path {
        std::fs::write(&self.0, bytes).unwrap();
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn padded(text: &str) -> [u8; TOKEN_BYTES] {
    let mut token = [0; TOKEN_BYTES];
    token[..text.len()].copy_from_slice(text.as_bytes());
    token
}

#[test]
fn a_token_is_the_text_of_its_file_without_the_end_of_the_line() {
    let file = Held::new("good");
    for (content, text) in [
        ("12345678", "12345678"),
        ("12345678\n", "12345678"),
        ("12345678\r\n\n ", "12345678"),
        (" leading", " leading"),
        ("two words", "two words"),
        ("zwölf Bytes", "zwölf Bytes"),
        ("0123456789abcdef0123456789abcdef\n", "0123456789abcdef0123456789abcdef"),
    ] {
        assert_eq!(token(Some(file.with(content.as_bytes()))), Ok(padded(text)), "{content:?}");
    }
    assert_eq!(token(None), Ok([0; TOKEN_BYTES]));
}

#[test]
fn a_token_that_admits_everybody_or_that_cannot_be_sent_is_refused() {
    let file = Held::new("bad");
    for content in [
        &b""[..],
        b"\n\n\n\n\n\n\n\n\n\n",
        b"1234567",
        b"0123456789abcdef0123456789abcdef0",
        // A token of zeros is the same as none on the wire.
        &[0; 8],
        &[0; TOKEN_BYTES],
        b"12345678\0",
        b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8",
        &[b'x'; 100_000],
        // A character that the limit of the file cuts.
        "ä".repeat(5000).as_bytes(),
    ] {
        let refusal = token(Some(file.with(content))).unwrap_err();
        assert_eq!(refusal.code, 3, "{}", refusal.words);
        assert!(refusal.words.contains(file.0.to_str().unwrap()), "{refusal}");
    }
    let missing = token(Some(&file.0.with_file_name("none"))).unwrap_err();
    assert!(missing.code == 4 && missing.words.contains("makes one"), "{missing}");
    assert_eq!(token(file.0.parent()).unwrap_err().code, 3, "a folder");
    assert_eq!(token(Some(Path::new("/dev/zero"))).unwrap_err().code, 3, "an endless file");
}

#[test]
fn a_host_that_ends_names_a_bounded_number_of_leases() {
    let loans = |n: u64| -> Vec<Loan> {
        (0..n)
            .map(|k| Loan {
                borrower: format!("b{k}"),
                slots: 256 * (k + 1),
                connections: k as usize,
            })
            .collect()
    };
    assert_eq!(lost(&loans(0)), "");
    for (n, lines) in [(1, 1), (20, 20), (21, 21), (100_000, 21)] {
        let text = lost(&loans(n));
        assert_eq!(text.lines().count(), lines);
        assert!(text.starts_with("pando-mem: ending with 1.0 MiB lent to b0, 0 connections\n"));
        let last = format!("pando-mem: and {} more leases\n", n.saturating_sub(20));
        assert_eq!(text.ends_with(&last), n > 20);
    }
    assert!(available_bytes() > 0 && available_bytes() < 1 << 50, "of this machine");
}
