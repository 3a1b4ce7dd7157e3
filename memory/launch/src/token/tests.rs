//! Tokens from files of any content, and lists of borrowers.

use super::*;

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
        assert_eq!(
            token(Some(file.with(content.as_bytes()))),
            Ok(padded(text).unwrap()),
            "{content:?}"
        );
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

fn borrower(name: &str, token: &str) -> Borrower {
    Borrower { name: name.into(), token: padded(token).unwrap() }
}

#[test]
fn a_list_has_a_name_and_a_token_in_each_line() {
    let text = "# shops\nshop 12345678\r\n\n  bank-2\t two words \n";
    assert_eq!(
        parse(text),
        Ok(vec![borrower("shop", "12345678"), borrower("bank-2", "two words")])
    );
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    for (text, why) in [
        ("", "names no borrower"),
        ("# shop 12345678", "names no borrower"),
        ("shop", "line 1: it wants a name and a token"),
        ("\nshop 1234567", "line 2: the token has 7 bytes; it wants 8 to 32"),
        ("shop 12345678\0", "has a zero byte"),
        ("sh/op 12345678", "a name has letters"),
        (&format!("{long} 12345678"), "at most 64"),
        ("shop 12345678\nshop 87654321", "line 2: shop has the name or the token of shop"),
        ("shop 12345678\nbank 12345678", "line 2: bank has the name or the token of shop"),
    ] {
        let refused = parse(text).unwrap_err();
        assert!(refused.contains(why), "{text:?}: {refused}");
    }
    let many = |n: usize| (0..n).map(|k| format!("b{k} token-{k:08}\n")).collect::<String>();
    assert_eq!(parse(&many(256)).map(|all| all.len()), Ok(256));
    assert_eq!(parse(&many(257)), Err("257 borrowers are more than 256".into()));
}

#[test]
fn a_list_is_read_again_when_it_changes_and_stays_if_it_cannot_be_read() {
    let file = Held::new("list");
    let path = file.with(b"shop 12345678\n").to_path_buf();
    let mut list = List::read(&path).unwrap();
    assert_eq!(list.now, [borrower("shop", "12345678")]);
    assert_eq!(list.changed(), Ok(None));
    file.with(b"shop 12345678\nbank 87654321\n");
    assert_eq!(list.changed().unwrap().unwrap()[1], borrower("bank", "87654321"));
    for bad in [&b"shop"[..], &[b'#'; 65 << 10]] {
        file.with(bad);
        assert_eq!(list.changed().unwrap_err().code, 3);
        assert_eq!(list.changed(), Ok(None), "one warning for each change");
        assert_eq!(list.now.len(), 2);
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(list.changed().unwrap_err().code, 4);
    assert_eq!((list.changed(), list.now.len()), (Ok(None), 2));
    assert_eq!(List::read(&path).err().unwrap().code, 4);
}
