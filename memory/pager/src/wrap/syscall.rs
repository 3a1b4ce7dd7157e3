//! System calls by number. Calls that need care behave like the functions of the same name.

use super::signal::ours;
use super::{
    EFAULT, answer, descriptor, io, memory, path, process, promise, socket, vector, zerocopy,
};
use crate::pager::pager;
use crate::pin::{Pin, is_far};
use crate::{mode, sys};
use libc::{c_int, c_long, c_uint, size_t, socklen_t};

/// io_uring would meet EFAULT where the pager cannot help, or write into pages that the pager has
/// copied. It is refused, as in many containers,
/// and programs fall back to read and write.
///
/// # Safety
/// As syscall(2); the arguments are words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    nr: c_long,
    a: size_t,
    b: size_t,
    c: size_t,
    d: size_t,
    e: size_t,
    f: size_t,
) -> c_long {
    unsafe {
        if nr == libc::SYS_io_uring_setup && (ours() || pager().is_some() && !mode::moves()) {
            return answer(-(libc::ENOSYS as isize)) as c_long;
        }
        let arguments = [a, b, c, d, e, f];
        if let Some(r) = on_memory(nr, arguments).or_else(|| wrapped(nr, arguments)) {
            return r;
        }
        let mut r = sys::call(nr, arguments);
        if r == EFAULT && ours() {
            // The failed argument is not known, so every argument that points into far memory gets
            // its page pinned.
            let pins = arguments.map(|x| Pin::new(x as *const u8, 1));
            r = sys::call(nr, arguments);
            drop(pins);
        }
        answer(r) as c_long
    }
}

/// Makes a call on far memory, which the kernel does not manage, like the function of the same name.
/// Returns `None` for all other calls. A mapping without a fixed address stays the kernel's.
unsafe fn on_memory(nr: c_long, arguments: [size_t; 6]) -> Option<c_long> {
    unsafe {
        pager()?;
        let [a, b, c, d, e, f] = arguments;
        let fixed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
        let far = || is_far(a as *const u8, b);
        Some(match nr {
            libc::SYS_mmap if d as c_int & fixed != 0 && far() => {
                memory::mmap(a as _, b, c as _, d as _, e as _, f as _) as c_long
            }
            libc::SYS_munmap if far() => memory::munmap(a as _, b) as c_long,
            libc::SYS_mremap => memory::mremap(a as _, b, c, d as _, e as _) as c_long,
            libc::SYS_mprotect if far() => memory::mprotect(a as _, b, c as _) as c_long,
            libc::SYS_pkey_mprotect if far() => {
                memory::pkey_mprotect(a as _, b, c as _, d as _) as c_long
            }
            libc::SYS_madvise if far() => promise::madvise(a as _, b, c as _) as c_long,
            libc::SYS_process_madvise => {
                promise::process_madvise(a as _, b as _, c, d as _, e as _) as c_long
            }
            libc::SYS_mlock if far() => memory::mlock(a as _, b) as c_long,
            libc::SYS_mlock2 if far() => memory::mlock2(a as _, b, c as _) as c_long,
            libc::SYS_mlockall => memory::mlockall(a as _) as c_long,
            libc::SYS_remap_file_pages if far() => {
                promise::remap_file_pages(a as _, b, c as _, d, e as _) as c_long
            }
            libc::SYS_mseal if far() => promise::mseal(a as _, b, c as _) as c_long,
            libc::SYS_shmat => promise::shmat(a as _, b as _, c as _) as c_long,
            _ => return None,
        })
    }
}

/// Makes a call that needs care, like the function of the same name. Returns `None` for all other
/// calls.
unsafe fn wrapped(nr: c_long, arguments: [size_t; 6]) -> Option<c_long> {
    unsafe {
        let [a, b, c, d, e, f] = arguments;
        Some(match nr {
            libc::SYS_close => descriptor::close(a as _) as c_long,
            libc::SYS_close_range => descriptor::close_range(a as _, b as _, c as _) as c_long,
            libc::SYS_dup2 => descriptor::dup2(a as _, b as _) as c_long,
            libc::SYS_dup3 => descriptor::dup3(a as _, b as _, c as _) as c_long,
            libc::SYS_setsockopt => {
                zerocopy::setsockopt(a as _, b as _, c as _, d as _, e as socklen_t) as c_long
            }
            libc::SYS_open if path::is_refused(b as _) => {
                answer(-(libc::EINVAL as isize)) as c_long
            }
            libc::SYS_openat if path::is_refused(c as _) => {
                answer(-(libc::EINVAL as isize)) as c_long
            }
            libc::SYS_vmsplice => zerocopy::vmsplice(a as _, b as _, c, d as c_uint) as c_long,
            libc::SYS_sendto => {
                socket::sendto(a as _, b as _, c, d as _, e as _, f as socklen_t) as c_long
            }
            libc::SYS_sendmsg => socket::sendmsg(a as _, b as _, c as _) as c_long,
            libc::SYS_sendmmsg => zerocopy::sendmmsg(a as _, b as _, c as _, d as _) as c_long,
            libc::SYS_read if ours() => io::read(a as _, b as _, c) as c_long,
            libc::SYS_write if ours() => io::write(a as _, b as _, c) as c_long,
            libc::SYS_pread64 if ours() => io::pread(a as _, b as _, c, d as _) as c_long,
            libc::SYS_pwrite64 if ours() => io::pwrite(a as _, b as _, c, d as _) as c_long,
            libc::SYS_readv if ours() => vector::readv(a as _, b as _, c as _) as c_long,
            libc::SYS_writev if ours() => vector::writev(a as _, b as _, c as _) as c_long,
            libc::SYS_preadv if ours() => vector::preadv(a as _, b as _, c as _, d as _) as c_long,
            libc::SYS_pwritev if ours() => {
                vector::pwritev(a as _, b as _, c as _, d as _) as c_long
            }
            libc::SYS_getrandom if ours() => io::getrandom(a as _, b, c as _) as c_long,
            libc::SYS_recvfrom if ours() => {
                socket::recvfrom(a as _, b as _, c, d as _, e as _, f as _) as c_long
            }
            libc::SYS_recvmsg if ours() => socket::recvmsg(a as _, b as _, c as _) as c_long,
            // A child with its own memory is a fork, by any name.
            libc::SYS_fork => process::forked(|| sys!(nr)) as c_long,
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 => {
                process::forked(|| sys::call(nr, arguments)) as c_long
            }
            _ => return None,
        })
    }
}
