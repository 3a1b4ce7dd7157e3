//! Inspects a program before its start: the pager can only be preloaded into a dynamically linked
//! one.

use crate::refusal::{self, Refusal};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The result of an inspection.
#[derive(Debug)]
pub struct Program {
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    /// The program has an allocator whose mappings can be interposed.
    pub own_allocator: bool,
    /// The program makes system calls that bypass the wrappers.
    pub raw_syscalls: bool,
}

/// Finds a program as a shell would. An error explains why it cannot run on far memory.
pub fn inspect(name: &str) -> Result<Program, Refusal> {
    let path = find(name).ok_or_else(|| missing(name))?;
    let unread = |e: std::io::Error| refusal::of(&e, format!("{}: {e}", path.display()));
    let meta = std::fs::metadata(&path).map_err(unread)?;
    if meta.mode() & 0o6000 != 0 {
        return Err(refusal::unsupported(format!(
            "{} is setuid or setgid, so the system preloads nothing into it: run a copy without \
             the bit, as the user it should run as",
            path.display()
        )));
    }
    let mut head = vec![];
    File::open(&path).and_then(|mut file| file.read_to_end(&mut head)).map_err(unread)?;
    if head.starts_with(b"#!") {
        return Err(refusal::unsupported(format!(
            "{} is a script: start its interpreter with the script as the argument",
            path.display()
        )));
    }
    if head.len() < 64 || !head.starts_with(b"\x7fELF\x02\x01") || head[18..20] != [62, 0] {
        return Err(refusal::unsupported(format!("{} is no 64-bit x86 program", path.display())));
    }
    if !has_interpreter(&head) {
        return Err(refusal::unsupported(format!(
            "{} is statically linked, so nothing can be preloaded into it: use a dynamically \
             linked build",
            path.display()
        )));
    }
    let has = |what: &[u8]| head.windows(what.len()).any(|w| w == what);
    let own_allocator =
        [&b"libjemalloc.so"[..], b"libtcmalloc", b"libmimalloc"].iter().any(|w| has(w));
    Ok(Program {
        device: meta.dev(),
        inode: meta.ino(),
        own_allocator,
        raw_syscalls: has(b"liburing.so") || has(b"io_uring_"),
        path,
    })
}

fn find(name: &str) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![name.into()]
    } else {
        std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(name)).collect()
    };
    // Keep the given name: many programs read it, and users search for it.
    candidates.into_iter().find(|p| is_executable(p))
}

/// Returns the reason why no program was found.
fn missing(name: &str) -> Refusal {
    match std::fs::metadata(name) {
        Ok(m) if name.contains('/') && m.is_dir() => {
            refusal::invalid(format!("{name:?} is a folder: name the program in it"))
        }
        Ok(_) if name.contains('/') => refusal::invalid(format!(
            "{name:?} may not be executed: `chmod +x` makes a program of it"
        )),
        Ok(m) if m.is_file() => refusal::not_found(format!(
            "there is no program {name:?} in the PATH; the one in this folder is \"./{name}\""
        )),
        _ => refusal::not_found(format!("there is no program {name:?}")),
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
}

/// Whether a program header names a dynamic linker (PT_INTERP).
fn has_interpreter(elf: &[u8]) -> bool {
    let word = |at: usize, n: usize| {
        elf.get(at..at + n).map_or(0, |b| b.iter().rev().fold(0usize, |v, &x| v << 8 | x as usize))
    };
    let (table, size, count) = (word(32, 8), word(54, 2), word(56, 2));
    (0..count)
        .any(|i| table.checked_add(i * size).is_some_and(|at| elf.len() > at && word(at, 4) == 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_program_and_others_are_not() {
        let me = std::env::current_exe().unwrap();
        assert!(inspect(me.to_str().unwrap()).is_ok());
        assert!(inspect("no-such-program-here").unwrap_err().words.contains("there is no program"));
        let dir = std::env::temp_dir().join(format!("pando-elf-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (bytes, why) in [
            (&b"#!/bin/sh\n"[..], "script"),
            (b"plain", "no 64-bit"),
            (b"\x7fELF\x02\x01", "no 64-bit"),
        ] {
            let p = dir.join("x");
            std::fs::write(&p, bytes).unwrap();
            std::fs::set_permissions(&p, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
            assert!(inspect(p.to_str().unwrap()).unwrap_err().words.contains(why));
        }
        // A header that points past its end must not be followed.
        let mut wild = vec![0u8; 64];
        wild[..6].copy_from_slice(b"\x7fELF\x02\x01");
        wild[18] = 62;
        wild[32..40].fill(0xff);
        wild[54..58].fill(0xff);
        let p = dir.join("x");
        std::fs::write(&p, &wild).unwrap();
        assert!(inspect(p.to_str().unwrap()).unwrap_err().words.contains("statically"));
        // The same holds for other malformed files.
        let head = std::fs::read(&me).unwrap()[..4096].to_vec();
        for i in 0..2000usize {
            let mut bytes = head[..head.len() - i].to_vec();
            for k in 0..4 {
                let at = (i * 31 + k * 7919) % if i % 2 == 0 { 64 } else { bytes.len() };
                bytes[at] = (i * 167 + k * 59) as u8;
            }
            std::fs::write(&p, &bytes).unwrap();
            assert!(
                inspect(p.to_str().unwrap())
                    .err()
                    .is_none_or(|why| why.words.contains(p.to_str().unwrap()))
            );
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Makes a program header table of these types at `table`, after an ELF header.
    fn program(table: u64, size: u16, types: &[u32]) -> Vec<u8> {
        let mut elf = vec![0u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 62;
        elf[32..40].copy_from_slice(&table.to_le_bytes());
        elf[54..56].copy_from_slice(&size.to_le_bytes());
        elf[56..58].copy_from_slice(&(types.len() as u16).to_le_bytes());
        for kind in types {
            elf.extend(kind.to_le_bytes());
            elf.resize(elf.len() + (size as usize).saturating_sub(4), 0);
        }
        elf
    }

    #[test]
    fn a_program_with_a_dynamic_linker_is_told_from_one_without() {
        assert!(has_interpreter(&program(64, 56, &[6, 1, 3, 1])));
        assert!(has_interpreter(&program(64, 56, &[3])));
        assert!(!has_interpreter(&program(64, 56, &[6, 1, 2, 1])));
        assert!(!has_interpreter(&program(64, 56, &[])));
        // A type that spans the end of the file, or lies beyond it, is none.
        let whole = program(64, 56, &[1, 3]);
        for cut in 64..64 + 56 + 4 {
            assert!(!has_interpreter(&whole[..cut]), "cut at {cut}");
        }
        for table in [u64::MAX, u64::MAX - 3, 1 << 63, 65] {
            assert!(!has_interpreter(&program(table, 56, &[3; 3])), "{table:x}");
        }
    }
}
