//! Actions of ordinary programs that must not change a byte of their memory: closing unknown
//! descriptors, sending without copying, running on small stacks. `probes CASE` prints its results,
//! which include `wrong 0` if all is well.

mod leaving;
mod promises;

use std::ffi::{c_int, c_void};
use std::io::Error;
use std::ptr::null_mut;

const PAGE: usize = 4096;
const BIG: usize = 48 << 20;
const SMALL_WRITES: usize = 1000;

fn pattern(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

unsafe fn map(bytes: usize) -> *mut u8 {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }
}

/// Memory with a pattern, more than stays local.
struct Big(*mut u8);

impl Big {
    unsafe fn new() -> Big {
        unsafe {
            let big = Big(map(BIG));
            for i in (0..BIG).step_by(PAGE) {
                big.0.add(i).cast::<u64>().write(pattern(i));
            }
            big
        }
    }

    unsafe fn wrong(&self) -> usize {
        unsafe {
            (0..BIG)
                .step_by(PAGE)
                .filter(|&i| self.0.add(i).cast::<u64>().read_volatile() != pattern(i))
                .count()
        }
    }

    /// Touches all of it, so that everything else leaves.
    unsafe fn sweep(&self) {
        unsafe {
            for i in (0..2 * BIG).step_by(PAGE) {
                let at = self.0.add((i + BIG / 2) % BIG + 64);
                at.write_volatile(at.read_volatile().wrapping_add(1));
            }
        }
    }

    /// Sweeps until none of a range is there.
    unsafe fn send_away(&self, at: *mut u8, bytes: usize) {
        unsafe {
            let mut there = vec![0u8; bytes / PAGE];
            for _ in 0..20 {
                self.sweep();
                libc::mincore(at.cast(), bytes, there.as_mut_ptr());
                if there.iter().all(|t| t & 1 == 0) {
                    return;
                }
            }
            panic!("{bytes} bytes do not leave");
        }
    }
}

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Two ends of a connection over TCP.
fn connection() -> [c_int; 2] {
    use std::os::fd::IntoRawFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [near.into_raw_fd(), listener.accept().unwrap().0.into_raw_fd()]
}

/// Receives data once the memory that it was sent from is away. Returns how many words differ from
/// the pattern.
unsafe fn received(fd: c_int, bytes: usize) -> usize {
    unsafe {
        let mut got = vec![0u64; bytes / 8];
        let (mut done, all) = (0, bytes / 8 * 8);
        while done < all {
            let n = libc::read(fd, got.as_mut_ptr().cast::<u8>().add(done).cast(), all - done);
            assert!(n > 0, "{}", Error::last_os_error());
            done += n as usize;
        }
        got.iter().enumerate().filter(|(i, word)| **word != pattern(*i)).count()
    }
}

unsafe fn zerocopy(big: &Big) -> String {
    unsafe {
        const BYTES: usize = 256 << 10;
        let ([near, far], on) = (connection(), 1);
        let (level, name, bytes) = (libc::SOL_SOCKET, libc::SO_ZEROCOPY, size_of::<c_int>());
        let mut refused = vec![];
        let buffer = 4 << 20;
        libc::setsockopt(near, level, libc::SO_SNDBUF, (&raw const buffer).cast(), bytes as u32);
        for past in [false, true] {
            let r = match past {
                false => {
                    libc::setsockopt(near, level, name, (&raw const on).cast(), bytes as u32) as i64
                }
                true => {
                    libc::syscall(libc::SYS_setsockopt, near, level, name, &raw const on, bytes)
                }
            };
            refused.push(if r < 0 { errno() } else { 0 });
        }
        let from = map(BYTES);
        (0..BYTES / 8).for_each(|i| from.cast::<u64>().add(i).write(pattern(i)));
        let sent = libc::send(near, from.cast(), BYTES, libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT);
        big.send_away(from, BYTES);
        format!("{refused:?} {} wrong {}", sent > 0, received(far, sent.max(0) as usize))
    }
}

unsafe fn vmsplice(big: &Big) -> String {
    unsafe {
        const BYTES: usize = 32 << 10;
        let mut ends = [0; 2];
        libc::pipe(ends.as_mut_ptr());
        let from = map(1 << 20);
        (0..BYTES / 8).for_each(|i| from.cast::<u64>().add(i).write(pattern(i)));
        let piece = libc::iovec { iov_base: from.cast(), iov_len: BYTES };
        let (mut refused, mut wrong) = (vec![], 0);
        for past in [false, true] {
            let n = match past {
                false => libc::vmsplice(ends[1], &piece, 1, libc::SPLICE_F_NONBLOCK) as i64,
                true => libc::syscall(
                    libc::SYS_vmsplice,
                    ends[1],
                    &raw const piece,
                    1,
                    libc::SPLICE_F_NONBLOCK,
                ),
            };
            refused.push(if n < 0 { errno() } else { 0 });
            if n > 0 {
                big.send_away(from, BYTES);
                wrong += received(ends[0], n as usize);
            }
        }
        // Memory outside the region is spliced as usual.
        static STAYS: [u64; 512] = [7; 512];
        let piece = libc::iovec { iov_base: STAYS.as_ptr() as *mut c_void, iov_len: PAGE };
        format!(
            "{refused:?} {} wrong {wrong}",
            libc::vmsplice(ends[1], &piece, 1, libc::SPLICE_F_NONBLOCK)
        )
    }
}

/// Descriptors that a program may have: those of the pager are among the numbers.
const NUMBERS: std::ops::Range<c_int> = 3..4096;

/// A system call past the C library. Returns the kernel's result.
unsafe fn raw(nr: i64, a: i64, b: i64, c: i64) -> i64 {
    unsafe {
        let mut r = nr;
        std::arch::asm!(
            "syscall", inlateout("rax") r, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _,
        );
        r
    }
}

/// Closes or replaces all descriptors in one way.
unsafe fn close_all(how: &str) {
    unsafe {
        let other = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        let others = NUMBERS.filter(|&fd| fd != other);
        match how {
            "dup2" => others.for_each(|fd| _ = libc::dup2(other, fd)),
            "dup3" => others.for_each(|fd| _ = libc::dup3(other, fd, 0)),
            "syscall close" => others.for_each(|fd| _ = libc::syscall(libc::SYS_close, fd)),
            "syscall dup2" => others.for_each(|fd| _ = libc::syscall(libc::SYS_dup2, other, fd)),
            "syscall close_range" => _ = libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0),
            "raw close" => NUMBERS.for_each(|fd| _ = raw(libc::SYS_close, fd as i64, 0, 0)),
            "raw close_range" => _ = raw(libc::SYS_close_range, 3, u32::MAX as i64, 0),
            "raw dup2" => others.for_each(|fd| _ = raw(libc::SYS_dup2, other as i64, fd as i64, 0)),
            _ => panic!("no case {how}"),
        }
    }
}

/// All of them go again and again while the memory is read, also in a forked child.
unsafe fn closed_under_way(big: &Big) -> String {
    unsafe {
        let done = std::sync::atomic::AtomicBool::new(false);
        let wrong = std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    raw(libc::SYS_close_range, 3, u32::MAX as i64, 0);
                    libc::usleep(3000);
                }
            });
            let wrong: usize = (0..3).map(|_| big.wrong()).sum();
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            wrong
        });
        let child = libc::fork();
        if child == 0 {
            raw(libc::SYS_close_range, 3, u32::MAX as i64, 0);
            libc::_exit((big.wrong() > 0) as c_int);
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        format!("child {status} wrong {}", wrong + big.wrong())
    }
}

/// A forked child of a program that has dropped root gets no handler threads.
unsafe fn dropped(big: &Big) -> String {
    unsafe {
        libc::setgid(65534);
        libc::setuid(65534);
        let child = libc::fork();
        if child == 0 {
            let file = libc::memfd_create(c"probes".as_ptr(), 0);
            // A call of the kernel on memory that is away.
            let written = libc::write(file, big.0.add(PAGE).cast(), 4 * PAGE);
            libc::_exit((big.wrong() > 0 || written <= 0) as c_int);
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        format!("child {status} wrong {}", big.wrong())
    }
}

/// Marks pages that are away as lost by the machine, with the pager's own userfaultfd.
unsafe fn poisoned(big: &Big) -> String {
    unsafe {
        const UFFDIO_POISON: u64 = 3 << 30 | 32 << 16 | 0xaa << 8 | 8;
        let is_it = |fd: &c_int| {
            std::fs::read_link(format!("/proc/self/fd/{fd}"))
                .is_ok_and(|to| to.to_string_lossy().contains("userfaultfd"))
        };
        let fd = NUMBERS.into_iter().find(is_it).expect("sigbus mode has one");
        let (from, bytes) = (big.0, 16 * PAGE);
        let mut there = [1u8; 16];
        while there.iter().any(|t| t & 1 != 0) {
            big.sweep();
            libc::mincore(from.cast(), bytes, there.as_mut_ptr());
        }
        let mut given = [from as u64, bytes as u64, 0, 0];
        let r = libc::ioctl(fd, UFFDIO_POISON, given.as_mut_ptr());
        format!("{r} {} wrong {}", given[3], big.wrong())
    }
}

/// Bytes of the alternate stack, and below it up to which nothing may be written.
const SMALL: usize = 8 << 10;
const CANARY: u8 = 0x77;
static TOUCHED: std::sync::atomic::AtomicPtr<u8> = std::sync::atomic::AtomicPtr::new(null_mut());

extern "C" fn touches(_: c_int) {
    let at = TOUCHED.load(std::sync::atomic::Ordering::SeqCst);
    (0..BIG).step_by(61 * PAGE).for_each(|i| _ = unsafe { at.add(i).read_volatile() });
}

extern "C" fn touches_all(_: *mut c_void) -> *mut c_void {
    touches(0);
    null_mut()
}

/// A handler on a small alternate stack, and a thread on the smallest one, touch pages that are
/// away.
unsafe fn stacks(big: &Big) -> String {
    unsafe {
        TOUCHED.store(big.0, std::sync::atomic::Ordering::SeqCst);
        let mut area = vec![CANARY; 64 << 10];
        let below = area.len() / 2;
        let stack = libc::stack_t {
            ss_sp: area.as_mut_ptr().add(below).cast(),
            ss_flags: 0,
            ss_size: SMALL,
        };
        libc::sigaltstack(&stack, null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (touches as *const () as usize, libc::SA_ONSTACK);
        libc::sigaction(libc::SIGUSR1, &action, null_mut());
        for _ in 0..5 {
            big.sweep();
            libc::raise(libc::SIGUSR1);
        }
        let written =
            area[..below].iter().chain(&area[below + SMALL..]).filter(|&&b| b != CANARY).count();
        let (mut attributes, mut thread): (libc::pthread_attr_t, libc::pthread_t) =
            (std::mem::zeroed(), 0);
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, libc::PTHREAD_STACK_MIN);
        big.sweep();
        libc::pthread_create(&mut thread, &attributes, touches_all, null_mut());
        format!("{} wrong {written}", libc::pthread_join(thread, null_mut()))
    }
}

unsafe extern "C" {
    fn fread_unlocked(at: *mut c_void, size: usize, count: usize, f: *mut libc::FILE) -> usize;
    fn fwrite_unlocked(at: *const c_void, size: usize, count: usize, f: *mut libc::FILE) -> usize;
    fn __read_chk(fd: c_int, at: *mut c_void, bytes: usize, room: usize) -> isize;
}

/// The calls that [`files`] makes.
const WRITES: &str = "write pwrite writev pwritev pwritev2 place syscall fwrite_unlocked";
const READS: &str =
    "read pread readv preadv preadv64 preadv2 place syscall checked fread_unlocked getrandom";

/// Files are written and read whole, from memory that is away and into memory that was never
/// touched. Prints the calls that did less than all.
unsafe fn files(big: &Big) -> String {
    unsafe {
        const BYTES: usize = 3 << 20;
        let fd = libc::memfd_create(c"probes".as_ptr(), 0);
        let from = map(BYTES);
        (0..BYTES / 8).for_each(|i| from.cast::<u64>().add(i).write(pattern(i)));
        let (mut short, mut wrong) = (vec![], 0);
        let half = |at: *mut u8| {
            [0, BYTES / 2]
                .map(|skip| libc::iovec { iov_base: at.add(skip).cast(), iov_len: BYTES / 2 })
        };
        for name in WRITES.split(' ') {
            libc::ftruncate(fd, 0);
            libc::lseek(fd, 0, libc::SEEK_SET);
            big.send_away(from, BYTES);
            let done = match name {
                "write" => libc::write(fd, from.cast(), BYTES),
                "pwrite" => libc::pwrite(fd, from.cast(), BYTES, 0),
                "writev" => libc::writev(fd, half(from).as_ptr(), 2),
                "pwritev" => libc::pwritev(fd, half(from).as_ptr(), 2, 0),
                "pwritev2" => libc::pwritev2(fd, half(from).as_ptr(), 2, 0, 0),
                "place" => libc::pwritev2(fd, half(from).as_ptr(), 2, -1, 0),
                "syscall" => libc::syscall(libc::SYS_write, fd, from, BYTES) as isize,
                _ => {
                    let f = libc::fdopen(libc::dup(fd), c"w".as_ptr());
                    let done = fwrite_unlocked(from.cast(), 1, BYTES, f);
                    libc::fclose(f);
                    done as isize
                }
            };
            if done != BYTES as isize {
                short.push(name);
            }
        }
        for name in READS.split(' ') {
            libc::lseek(fd, 0, libc::SEEK_SET);
            let to = map(BYTES);
            let done = match name {
                "read" => libc::read(fd, to.cast(), BYTES),
                "pread" => libc::pread(fd, to.cast(), BYTES, 0),
                "readv" => libc::readv(fd, half(to).as_ptr(), 2),
                "preadv" => libc::preadv(fd, half(to).as_ptr(), 2, 0),
                "preadv64" => libc::preadv64(fd, half(to).as_ptr(), 2, 0),
                "preadv2" => libc::preadv2(fd, half(to).as_ptr(), 2, 0, 0),
                "place" => libc::preadv2(fd, half(to).as_ptr(), 2, -1, 0),
                "syscall" => libc::syscall(libc::SYS_read, fd, to, BYTES) as isize,
                "checked" => __read_chk(fd, to.cast(), BYTES, BYTES),
                "getrandom" => libc::syscall(libc::SYS_getrandom, to, BYTES, 0) as isize,
                _ => {
                    fread_unlocked(to.cast(), 1, BYTES, libc::fdopen(libc::dup(fd), c"r".as_ptr()))
                        as isize
                }
            };
            if done != BYTES as isize {
                short.push(name);
            }
            if name != "getrandom" {
                wrong += (0..BYTES / 8)
                    .filter(|&i| to.cast::<u64>().add(i).read() != pattern(i))
                    .count();
            }
            libc::munmap(to.cast(), BYTES);
        }
        format!("{short:?} wrong {wrong}")
    }
}

/// Makes small writes to a socket from a page that is here, and one from a page that is away. Then
/// it waits for its input, so that its counters can be read.
unsafe fn small_writes(big: &Big) -> String {
    unsafe {
        const BYTES: usize = 64;
        let ([near, far], from) = (connection(), map(1 << 20));
        let mut wrong = 0;
        for n in 0..=SMALL_WRITES {
            (0..BYTES / 8).for_each(|i| from.cast::<u64>().add(i).write(pattern(n + i)));
            if n == SMALL_WRITES {
                big.send_away(from, PAGE);
            }
            let mut got = [0u64; BYTES / 8]; // on the stack, which is not far
            let sent = libc::write(near, from.cast(), BYTES);
            let received = libc::read(far, got.as_mut_ptr().cast(), BYTES);
            let is_right = got.iter().enumerate().all(|(i, word)| *word == pattern(n + i));
            wrong += (sent != BYTES as isize || received != sent || !is_right) as usize;
        }
        println!("wrong {wrong}");
        libc::read(0, [0u8].as_mut_ptr().cast(), 1);
        String::new()
    }
}

/// Opens this program for direct reads, by every call; prints the errors.
unsafe fn direct() -> String {
    unsafe {
        let (path, flags) = (c"/proc/self/exe".as_ptr(), libc::O_RDONLY | libc::O_DIRECT);
        let opens: [&dyn Fn() -> i64; 4] = [
            &|| libc::open(path, flags) as i64,
            &|| libc::openat(libc::AT_FDCWD, path, flags) as i64,
            &|| libc::syscall(libc::SYS_open, path, flags, 0),
            &|| libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0),
        ];
        format!("{:?}", opens.map(|open| if open() < 0 { errno() } else { 0 }))
    }
}

/// Maps memory where far memory is, without a right to replace it; prints the error.
unsafe fn taken(big: &Big) -> String {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = libc::mmap(big.0.cast(), PAGE, libc::PROT_READ, flags, -1, 0);
        format!("{} wrong {}", (at == libc::MAP_FAILED) as i32 * errno(), big.wrong())
    }
}

unsafe fn run(case: &str) -> String {
    unsafe {
        let big = Big::new();
        match case {
            "zerocopy" => zerocopy(&big),
            "vmsplice" => vmsplice(&big),
            "files" => files(&big),
            "counted" => format!("wrong {}", leaving::counted(&big)),
            "shared" => format!("leave {}", leaving::shared(&big)),
            "split" => format!("{} wrong {}", leaving::split(&big), big.wrong()),
            "direct" => direct(),
            "taken" => taken(&big),
            "promises" => promises::all(&big).join("; "),
            "closed" | "child" | "raw replaced" => promises::error_file(&big, case),
            "dropped" => dropped(&big),
            "poisoned" => poisoned(&big),
            "small writes" => small_writes(&big),
            "stacks" => stacks(&big),
            "under way" => closed_under_way(&big),
            how => {
                close_all(how);
                format!("wrong {}", big.wrong())
            }
        }
    }
}

fn main() {
    let case = std::env::args().nth(1).expect("probes CASE");
    println!("{}", unsafe { run(&case) });
}
