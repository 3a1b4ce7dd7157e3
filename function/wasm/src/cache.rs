//! Compiled code, by the digest of its module, in a folder that only the user of the units can
//! access.
//!
//! The code is native and runs inside a unit's sandbox, so it is never read from a place that
//! another user can write to. The folder has a size limit: beyond it, the least recently used code
//! is removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// Bytes of all cached code.
const BYTES_MAX: u64 = 1 << 30;

/// The folder.
pub struct Cache {
    shown: PathBuf,
    folder: File,
    bytes_max: u64,
}

impl Cache {
    /// Opens the folder, and makes it if it is missing. Refuses a folder that another user owns or
    /// can write to.
    pub fn open(path: &Path) -> io::Result<Cache> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(named)?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(named(e)),
            _ => {}
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(named)?;
        let found = folder.metadata().map_err(named)?;
        if found.uid() != user() || found.mode() & 0o077 != 0 {
            let words = format!(
                "{} is not this user's alone: remove it, or name another folder by --data-dir",
                path.display()
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, words));
        }
        Ok(Cache { shown: path.into(), folder, bytes_max: BYTES_MAX })
    }

    /// Returns a path through the descriptor of the checked folder: its own path may lead elsewhere
    /// by now.
    fn at(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd()))
    }

    fn named(&self, e: io::Error) -> io::Error {
        io::Error::new(e.kind(), format!("{}: {e}", self.shown.display()))
    }

    /// Returns the code of `wasm`, if it is here and no other user can have written it.
    pub(super) fn find(&self, wasm: &[u8]) -> Option<File> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.at(&name(wasm)))
            .ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != user() || found.mode() & 0o022 != 0 {
            return None;
        }
        // A sign of use. Without it, the code is only removed sooner.
        let _ = file.set_modified(SystemTime::now());
        Some(file)
    }

    /// Stores `code` as the code of `wasm`. A crash leaves the whole code or none.
    pub(super) fn put(&self, wasm: &[u8], code: &[u8]) -> io::Result<()> {
        let draft = self.at(&format!("draft-{}", std::process::id()));
        let kept = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(code)?;
            file.sync_all()?;
            fs::rename(&draft, self.at(&name(wasm)))
        })();
        kept.inspect_err(|_| drop(fs::remove_file(&draft))).map_err(|e| self.named(e))?;
        self.shrink(&name(wasm)).map_err(|e| self.named(e))
    }

    /// Removes code until the rest fits, but never `newest`.
    fn shrink(&self, newest: &str) -> io::Result<()> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.at(""))? {
            let entry = entry?;
            // Another process may have removed it.
            if let Ok(found) = entry.metadata() {
                all.push((found.modified()?, found.len(), entry.file_name()));
            }
        }
        let mut bytes: u64 = all.iter().map(|(_, bytes, _)| bytes).sum();
        all.sort();
        for (_, size, name) in all.into_iter().filter(|(_, _, name)| name != newest) {
            if bytes <= self.bytes_max {
                break;
            }
            bytes -= size;
            match fs::remove_file(self.at("").join(name)) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

fn name(wasm: &[u8]) -> String {
    let digest: String = Sha256::digest(wasm).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digest}.cwasm")
}

/// Returns a digest of some parts, in their order.
pub(crate) fn digest(parts: &[&[u8]]) -> u64 {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update((part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    u64::from_le_bytes(*sum.finalize().first_chunk().expect("a sum has 32 bytes"))
}

fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("nf-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path.join("modules")
    }

    fn found(cache: &Cache, wasm: &[u8]) -> Option<Vec<u8>> {
        let mut code = Vec::new();
        cache.find(wasm).map(|mut file| file.read_to_end(&mut code).unwrap()).map(|_| code)
    }

    #[test]
    fn code_is_found_by_its_module_alone() {
        let path = scratch("found");
        let cache = Cache::open(&path).unwrap();
        assert_eq!(found(&cache, b"one"), None);
        cache.put(b"one", b"code of one").unwrap();
        assert_eq!(found(&cache, b"one").as_deref(), Some(&b"code of one"[..]));
        assert_eq!(found(&cache, b"two"), None);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "no draft stays");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_others_may_write_to_is_refused() {
        let path = scratch("others");
        let cache = Cache::open(&path).unwrap();
        cache.put(b"one", b"code").unwrap();
        let file = path.join(name(b"one"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(found(&cache, b"one"), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Cache::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains("is not this user's alone"), "{refused}");
        fs::remove_dir_all(&path).unwrap();
        std::os::unix::fs::symlink("/tmp", &path).unwrap();
        assert!(Cache::open(&path).is_err(), "a link leads to another's folder");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn it_has_a_bound() {
        let path = scratch("bound");
        let cache = Cache { bytes_max: 25, ..Cache::open(&path).unwrap() };
        for (n, module) in [b"one", b"two", b"six"].into_iter().enumerate() {
            cache.put(module, &[0; 10]).unwrap();
            let file = File::open(path.join(name(module))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(n as u64))
                .unwrap();
        }
        assert_eq!(
            [b"one", b"two", b"six"].map(|module| found(&cache, module).is_some()),
            [false, true, true]
        );
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
