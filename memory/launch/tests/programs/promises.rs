//! Calls on far memory that must do what they answer, or fail with an error of the kernel. Each
//! case prints what it saw, and `wrong N` words.

use super::{Big, PAGE, errno, map, pattern, raw};
use std::ffi::{c_int, c_void};

const BYTES: usize = 1 << 20;
const ADVICE: [c_int; 12] = [
    libc::MADV_NORMAL,
    libc::MADV_WILLNEED,
    libc::MADV_FREE,
    libc::MADV_DONTDUMP,
    libc::MADV_DOFORK,
    libc::MADV_KEEPONFORK,
    libc::MADV_REMOVE,
    libc::MADV_DONTFORK,
    libc::MADV_WIPEONFORK,
    102, // MADV_GUARD_INSTALL
    103, // MADV_GUARD_REMOVE
    9999,
];

/// All cases, in one process.
pub unsafe fn all(big: &Big) -> [String; 4] {
    unsafe { [advice(big), remaps(big), maps(big), rarer(big)] }
}

/// Makes areas with a pattern. They leave, because more than stays local is read after them.
unsafe fn filled<const N: usize>(big: &Big) -> [*mut u8; N] {
    unsafe {
        let areas = [(); N].map(|()| map(BYTES));
        for at in areas {
            (0..BYTES / 8).for_each(|i| at.cast::<u64>().add(i).write(pattern(i)));
        }
        assert_eq!(big.wrong(), 0);
        areas
    }
}

unsafe fn differs(at: *mut u8, bytes: usize, is: impl Fn(usize) -> u64) -> usize {
    unsafe { (0..bytes / 8).filter(|&i| at.cast::<u64>().add(i).read_volatile() != is(i)).count() }
}

fn error(failed: bool) -> i32 {
    if failed { errno() } else { 0 }
}

/// Gives all kinds of advice, by name, by number, and for the whole process; prints the errors.
unsafe fn advice(big: &Big) -> String {
    unsafe {
        let named =
            ADVICE.map(|advice| error(libc::madvise(map(BYTES).cast(), BYTES, advice) != 0));
        let numbered = ADVICE
            .map(|advice| error(libc::syscall(libc::SYS_madvise, map(BYTES), BYTES, advice) != 0));
        let [at] = filled(big);
        let me = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        let piece = libc::iovec { iov_base: at.cast(), iov_len: BYTES };
        let call = libc::SYS_process_madvise;
        let process = [libc::MADV_DONTNEED, 102]
            .map(|advice| error(libc::syscall(call, me, &raw const piece, 1, advice, 0) < 0));
        // Memory that is shared, with its flags checked, is never anonymous.
        let (shared, rw) = (libc::MAP_SHARED_VALIDATE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = shared | libc::MAP_ANONYMOUS;
        let mapped = libc::mmap(std::ptr::null_mut(), BYTES, rw, flags, -1, 0);
        let process = [process[0], process[1], error(mapped == libc::MAP_FAILED)];
        let posix = libc::posix_madvise(at.cast(), BYTES, 9999);
        let wrong = differs(at, BYTES, pattern);
        format!("{named:?} {} {process:?} {posix} wrong {wrong}", numbered == named)
    }
}

/// Moves memory by name and by number, with each flag; prints the errors, and 0 for what was done.
unsafe fn remaps(big: &Big) -> String {
    unsafe {
        let (moves, fixed, stays) =
            (libc::MREMAP_MAYMOVE, libc::MREMAP_FIXED, libc::MREMAP_DONTUNMAP);
        let kinds = [moves, moves | stays, stays, moves | fixed, moves | 64];
        let (areas, to) = (filled::<10>(big), map(2 * BYTES));
        let mut now = areas;
        let said: Vec<_> = (0..areas.len())
            .map(|i| {
                let (flags, from) = (kinds[i / 2], areas[i]);
                let bytes = if flags & stays != 0 { BYTES } else { 2 * BYTES };
                let got = match i % 2 {
                    0 => libc::mremap(from.cast(), BYTES, bytes, flags, to),
                    _ => libc::syscall(libc::SYS_mremap, from, BYTES, bytes, flags, to)
                        as *mut c_void,
                };
                if got != libc::MAP_FAILED {
                    now[i] = got.cast();
                }
                error(got == libc::MAP_FAILED)
            })
            .collect();
        let mut wrong: usize = big.wrong();
        wrong += now.iter().map(|at| differs(*at, BYTES, pattern)).sum::<usize>();
        for i in (0..areas.len()).filter(|i| kinds[i / 2] == moves | stays) {
            wrong += (now[i] == areas[i]) as usize + differs(areas[i], BYTES, |_| 0);
        }
        format!("{said:?} wrong {wrong}")
    }
}

/// Maps over far memory by name and by number; prints the errors.
unsafe fn maps(big: &Big) -> String {
    unsafe {
        let file = libc::memfd_create(c"probes".as_ptr(), 0);
        libc::ftruncate(file, BYTES as i64);
        let (anonymous, fixed) = (libc::MAP_ANONYMOUS, libc::MAP_FIXED);
        let (private, shared) = (libc::MAP_PRIVATE, libc::MAP_SHARED);
        let kinds = [
            (private | anonymous | fixed, -1),
            (private | anonymous | libc::MAP_FIXED_NOREPLACE, -1),
            (shared | anonymous | fixed, -1),
            (shared | fixed, file),
        ];
        let (areas, prot) = (filled::<8>(big), libc::PROT_READ | libc::PROT_WRITE);
        let said: Vec<_> = (0..areas.len())
            .map(|i| {
                let (at, (flags, fd)) = (areas[i], kinds[i / 2]);
                let got = match i % 2 {
                    0 => libc::mmap(at.cast(), BYTES, prot, flags, fd, 0),
                    _ => libc::syscall(libc::SYS_mmap, at, BYTES, prot, flags, fd as i64, 0usize)
                        as *mut c_void,
                };
                error(got == libc::MAP_FAILED)
            })
            .collect();
        let wrong = big.wrong();
        let holds =
            |i: usize| differs(areas[i], BYTES, |w| if said[i] == 0 { 0 } else { pattern(w) });
        format!("{said:?} wrong {}", wrong + (0..areas.len()).map(holds).sum::<usize>())
    }
}

/// Locks, protects and replaces far memory in rarer ways; prints the errors.
unsafe fn rarer(big: &Big) -> String {
    unsafe {
        let [at] = filled(big);
        let (r, rw) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        let id = libc::shmget(libc::IPC_PRIVATE, 4 * PAGE, 0o600 | libc::IPC_CREAT);
        let calls: [&dyn Fn() -> i64; 11] = [
            &|| libc::mlock2(at.cast(), BYTES, 0) as i64,
            &|| libc::syscall(libc::SYS_mlock, at, BYTES),
            &|| libc::syscall(libc::SYS_mlock2, at, BYTES, 1),
            &|| libc::syscall(libc::SYS_mlockall, libc::MCL_CURRENT),
            &|| libc::syscall(libc::SYS_mprotect, at, BYTES, rw | libc::PROT_EXEC),
            &|| libc::syscall(libc::SYS_pkey_mprotect, at, BYTES, rw, -1i64),
            &|| libc::syscall(libc::SYS_pkey_mprotect, at, BYTES, r, 1i64),
            &|| libc::syscall(libc::SYS_remap_file_pages, at, BYTES, 0, 0, 0),
            &|| libc::syscall(libc::SYS_mseal, at, BYTES, 0),
            &|| libc::shmat(id, at.cast(), libc::SHM_REMAP) as i64,
            &|| libc::syscall(libc::SYS_shmat, id, at, libc::SHM_REMAP),
        ];
        let said = calls.map(|call| error(call() == -1));
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        format!("{said:?} wrong {}", big.wrong() + differs(at, BYTES, pattern))
    }
}

/// Opens a file as number 2, then loses the far memory. `how` says who replaces standard error.
pub unsafe fn error_file(big: &Big, how: &str) -> String {
    unsafe {
        let path = std::env::args().nth(2).expect("probes CASE FILE");
        let path = std::ffi::CString::new(path).unwrap();
        let file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        match how {
            "closed" => {
                libc::close(2);
                assert_eq!(libc::dup(file), 2);
            }
            "child" => {
                let child = libc::fork();
                if child > 0 {
                    let mut status = -1;
                    libc::waitpid(child, &mut status, 0);
                    libc::_exit(libc::WEXITSTATUS(status));
                }
                assert_eq!(libc::dup2(file, 2), 2);
            }
            _ => {
                for fd in (900..1024).chain(2..3) {
                    raw(libc::SYS_dup2, file as i64, fd, 0);
                }
            }
        }
        println!("ready");
        libc::read(0, [0u8].as_mut_ptr().cast(), 1);
        format!("wrong {}", big.wrong())
    }
}
