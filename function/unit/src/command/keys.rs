//! The files with the keys of output logs.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pando_outlog::keys::{self, KEY_BYTES, Keys};

use super::failure::Failure;

/// Reads a file of keys, which its owner alone may read.
pub fn read(file: &Path) -> Result<Keys, Failure> {
    let failed = |e: std::io::Error| match Failure::of_file("read", file, &e) {
        Failure::NotFound(words) => Failure::NotFound(format!(
            "{words}: `(umask 077; pando fn log --new-key default >> {})` makes it",
            file.display()
        )),
        other => other,
    };
    let known = std::fs::metadata(file).map_err(failed)?;
    if known.is_dir() {
        return Err(Failure::Invalid(format!(
            "{} is a folder: name the file with the keys",
            file.display()
        )));
    }
    let mode = known.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::Denied(format!(
            "{} has keys, and others than its owner may read it: `chmod 600 {0}`",
            file.display()
        )));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Keys::parse(&text).map_err(|e| {
        Failure::Invalid(format!(
            "{}: {e}; `pando fn log --new-key TENANT` prints a line",
            file.display()
        ))
    })
}

/// Returns a line with a new key of a tenant.
pub fn new(tenant: &str) -> Result<String, Failure> {
    Ok(keys::line(tenant, &random::<KEY_BYTES>()?))
}

/// Returns random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|e| Failure::Internal(format!("read /dev/urandom: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_no_file_of_keys() {
        let told = match read(&std::env::temp_dir()) {
            Err(Failure::Invalid(words)) => words,
            other => panic!("{:?}", other.map(drop)),
        };
        assert!(told.contains("is a folder"), "{told}");
    }

    #[test]
    fn a_file_of_keys_belongs_to_its_owner_alone() {
        let file = std::env::temp_dir().join(format!("pando-keys-{}", std::process::id()));
        let text = [new("default").unwrap(), new("blue").unwrap()].join("\n");
        std::fs::write(&file, &text).unwrap();
        let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o640);
        let refused = read(&file).map(drop).unwrap_err();
        assert!(matches!(&refused, Failure::Denied(w) if w.contains("chmod 600")), "{refused}");
        mode(0o600);
        let keys = read(&file).unwrap();
        assert_eq!(keys.len(), 2);
        assert_ne!(keys.of("default"), keys.of("blue"));
        std::fs::write(&file, "default x").unwrap();
        let refused = read(&file).map(drop).unwrap_err();
        assert!(refused.to_string().contains("line 1 is not TENANT and 64"), "{refused}");
        std::fs::remove_file(&file).unwrap();
        let refused = read(&file).map(drop).unwrap_err();
        assert!(matches!(&refused, Failure::NotFound(w) if w.contains("--new-key")), "{refused}");
    }
}
