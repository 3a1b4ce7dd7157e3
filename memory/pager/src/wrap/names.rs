//! Second names of wrapped calls. The C library has most calls under several names, and programs
//! bind any of them. `../../calls.csv` lists all names of each call; a test compares it with the C
//! library.

use super::{
    descriptor, heap, io, memory, path, poll, process, signal, small, socket, stdio, sync, vector,
};

/// Defines names that jump to the wrapper of the same call.
macro_rules! same {
    ($($call:path: $($name:ident),*;)*) => {$($(
        /// # Safety
        /// As the call.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!("jmp {}", sym $call)
        }
    )*)*};
}

same! {
    descriptor::close: __close;
    descriptor::dup2: __dup2;
    heap::free: cfree;
    heap::strdup: __strdup;
    heap::strndup: __strndup;
    io::pread: __pread64;
    io::pwrite: __pwrite64;
    io::read: __read;
    io::write: __write;
    memory::mprotect: __mprotect;
    path::creat: creat64;
    path::fstat: fstat64;
    path::open: __open, __open64;
    path::openat: openat64;
    path::truncate: truncate64;
    poll::poll: __poll;
    process::vfork: __vfork;
    signal::sigaction: __sigaction;
    signal::signal: bsd_signal, ssignal;
    signal::sigsuspend: __sigsuspend;
    small::connect: __connect;
    small::nanosleep: __nanosleep;
    small::pipe: __pipe;
    small::select: __select;
    small::waitpid: __waitpid;
    socket::recv: __recv;
    socket::send: __send;
    stdio::fdopen: _IO_fdopen;
    stdio::fopen: _IO_fopen;
    stdio::fputs: _IO_fputs;
    stdio::fread: _IO_fread;
    stdio::fwrite: _IO_fwrite;
    stdio::popen: _IO_popen;
    stdio::setvbuf: _IO_setvbuf;
    stdio::tmpfile: tmpfile64;
    sync::pthread_mutex_lock: __pthread_mutex_lock;
    sync::pthread_once: __pthread_once;
    sync::pthread_rwlock_rdlock: __pthread_rwlock_rdlock;
    sync::pthread_rwlock_wrlock: __pthread_rwlock_wrlock;
    vector::preadv2: preadv64v2;
    vector::preadv: preadv64;
    vector::pwritev2: pwritev64v2;
    vector::pwritev: pwritev64;
}
