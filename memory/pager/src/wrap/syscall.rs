//! System calls by number. Calls that need care behave like the functions of the same name.

use super::signal::ours;
use super::{EFAULT, answer, descriptor, io, memory, process, zerocopy};
use crate::pin::{Pin, is_far};
use crate::sys;
use libc::{c_int, c_long, c_uint, c_void, size_t, socklen_t};

/// io_uring would meet EFAULT where the pager cannot help. It is refused, as in many containers,
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
        if nr == libc::SYS_io_uring_setup && ours() {
            return answer(-(libc::ENOSYS as isize)) as c_long;
        }
        match nr {
            libc::SYS_munmap if is_far(a as *const u8, b) => {
                return memory::munmap(a as *mut c_void, b) as c_long;
            }
            libc::SYS_madvise if is_far(a as *const u8, b) => {
                return memory::madvise(a as *mut c_void, b, c as c_int) as c_long;
            }
            libc::SYS_close => return descriptor::close(a as _) as c_long,
            libc::SYS_close_range => {
                return descriptor::close_range(a as _, b as _, c as _) as c_long;
            }
            libc::SYS_dup2 => return descriptor::dup2(a as _, b as _) as c_long,
            libc::SYS_dup3 => return descriptor::dup3(a as _, b as _, c as _) as c_long,
            libc::SYS_setsockopt => {
                return zerocopy::setsockopt(a as _, b as _, c as _, d as _, e as socklen_t)
                    as c_long;
            }
            libc::SYS_vmsplice => {
                return zerocopy::vmsplice(a as _, b as _, c, d as c_uint) as c_long;
            }
            libc::SYS_sendto => {
                return io::sendto(a as _, b as _, c, d as _, e as _, f as socklen_t) as c_long;
            }
            libc::SYS_sendmsg => return io::sendmsg(a as _, b as _, c as _) as c_long,
            libc::SYS_sendmmsg => {
                return zerocopy::sendmmsg(a as _, b as _, c as _, d as _) as c_long;
            }
            libc::SYS_read if ours() => return io::read(a as _, b as _, c) as c_long,
            libc::SYS_write if ours() => return io::write(a as _, b as _, c) as c_long,
            libc::SYS_pread64 if ours() => return io::pread(a as _, b as _, c, d as _) as c_long,
            libc::SYS_pwrite64 if ours() => return io::pwrite(a as _, b as _, c, d as _) as c_long,
            libc::SYS_readv if ours() => return io::readv(a as _, b as _, c as _) as c_long,
            libc::SYS_writev if ours() => return io::writev(a as _, b as _, c as _) as c_long,
            libc::SYS_preadv if ours() => {
                return io::preadv(a as _, b as _, c as _, d as _) as c_long;
            }
            libc::SYS_pwritev if ours() => {
                return io::pwritev(a as _, b as _, c as _, d as _) as c_long;
            }
            libc::SYS_getrandom if ours() => return io::getrandom(a as _, b, c as _) as c_long,
            libc::SYS_recvfrom if ours() => {
                return io::recvfrom(a as _, b as _, c, d as _, e as _, f as _) as c_long;
            }
            libc::SYS_recvmsg if ours() => return io::recvmsg(a as _, b as _, c as _) as c_long,
            // A child with its own memory is a fork, by any name.
            libc::SYS_fork => return process::forked(|| sys!(nr)) as c_long,
            libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 => {
                return process::forked(|| sys::call(nr, [a, b, c, d, e, f])) as c_long;
            }
            _ => {}
        }
        let mut r = sys::call(nr, [a, b, c, d, e, f]);
        if r == EFAULT && ours() {
            // The failed argument is not known, so every argument that points into far memory gets its
            // page pinned.
            let pins = [a, b, c, d, e, f].map(|x| Pin::new(x as *const u8, 1));
            r = sys::call(nr, [a, b, c, d, e, f]);
            drop(pins);
        }
        answer(r) as c_long
    }
}
