//! What a program asks of the C library and the kernel with memory that is away. Each case is a call inside of which nobody
//! can handle a fault as usual: `calls CASE` prints what it should find.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::SeqCst};

const PAGE: usize = 4096;
const BIG: usize = 48 << 20;

extern "C" {
    static stdout: *mut libc::FILE;
    static environ: *const *mut c_char;
    fn _Fork() -> c_int;
    fn vfork() -> c_int;
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
    fn aio_write(block: *mut c_void) -> c_int;
    fn getaddrinfo_a(mode: c_int, list: *mut *mut c_void, count: c_int, event: *mut c_void) -> c_int;
    fn pthread_cancel(t: libc::pthread_t) -> c_int;
    fn pthread_attr_setstack(a: *mut libc::pthread_attr_t, at: *mut c_void, bytes: usize) -> c_int;
}

static FOUND: AtomicI32 = AtomicI32::new(-1);
static HELD: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Memory that is touched for others to leave.
struct Big(*mut u8);

impl Big {
    unsafe fn new() -> Big {
        // What the allocator took before there was a pager is always local: it is used up first, in every size.
        for size in (3..13).map(|n| 1usize << n).chain([552, 20_000]) {
            for _ in 0..(3 << 20) / size {
                libc::malloc(size).cast::<u8>().write_volatile(1);
            }
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Big(libc::mmap(null_mut(), BIG, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast())
    }

    unsafe fn sweep(&self) {
        for _ in 0..2 {
            for i in (0..BIG).step_by(PAGE) {
                *self.0.add(i) = self.0.add(i).read_volatile().wrapping_add(1);
            }
        }
    }

    /// Sweeps until a byte's page is away.
    unsafe fn send_away(&self, at: *const u8) {
        self.send_all_away(&[at]);
    }

    unsafe fn send_all_away(&self, places: &[*const u8]) {
        for _ in 0..20 {
            self.sweep();
            if !places.iter().any(|&at| is_there(at)) {
                return;
            }
        }
        panic!("{} of {} do not leave", places.iter().filter(|&&at| is_there(at)).count(), places.len());
    }
}

unsafe fn is_there(at: *const u8) -> bool {
    let mut there = 0u8;
    libc::mincore((at as usize / PAGE * PAGE) as *mut c_void, PAGE, &mut there);
    there & 1 != 0
}

/// A megabyte of sevens.
unsafe fn sevens() -> *mut u8 {
    let at = libc::malloc(1 << 20).cast::<u8>();
    at.write_bytes(7, 1 << 20);
    HELD.store(at, SeqCst);
    at
}

unsafe fn text(s: &CStr) -> *mut c_char {
    libc::strdup(s.as_ptr())
}

extern "C" fn on_signal(_: c_int) {
    FOUND.store(unsafe { *HELD.load(SeqCst).add(5000) } as i32, SeqCst);
}

extern "C" fn reads(fd: *mut c_void) -> *mut c_void {
    let mut b = 0u8;
    unsafe { libc::read(*fd.cast::<c_int>(), (&raw mut b).cast(), 1) };
    null_mut()
}

unsafe fn pipe() -> [c_int; 2] {
    let mut ends = [0; 2];
    libc::pipe(ends.as_mut_ptr());
    ends
}

/// Descriptors of pipes: those of the pager are gone once it has noticed that its children are.
fn pipes() -> usize {
    let is_pipe = |f: &std::fs::DirEntry| std::fs::read_link(f.path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"));
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_pipe).count()
}

unsafe fn ended(child: c_int) -> c_int {
    let mut status = -1;
    libc::waitpid(child, &mut status, 0);
    status
}

unsafe fn handle(big: &Big, flags: c_int, mask: unsafe extern "C" fn(*mut libc::sigset_t) -> c_int) -> String {
    let mut action: libc::sigaction = std::mem::zeroed();
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = flags;
    mask(&mut action.sa_mask);
    libc::sigaction(libc::SIGUSR1, &action, null_mut());
    big.send_away(sevens().add(5000));
    libc::raise(libc::SIGUSR1);
    format!("found {}", FOUND.load(SeqCst))
}

extern "C" fn on_event(at: *mut u8) {
    FOUND.fetch_add(unsafe { *at } as i32 + 1, SeqCst);
}

/// An event that is told by a thread, which is like `attributes` and reads what is at `read`.
unsafe fn told_by_thread(read: *mut u8, attributes: &mut libc::pthread_attr_t) -> libc::sigevent {
    let mut processors: libc::cpu_set_t = std::mem::zeroed();
    libc::sched_getaffinity(0, size_of_val(&processors), &mut processors);
    libc::pthread_attr_init(attributes);
    // More than fits into the structure.
    assert_eq!(libc::pthread_attr_setaffinity_np(attributes, size_of_val(&processors), &processors), 0);
    let mut event: libc::sigevent = std::mem::zeroed();
    event.sigev_notify = libc::SIGEV_THREAD;
    event.sigev_value.sival_ptr = read.cast();
    // Where the C library has the function to call and the attributes.
    let place = (&raw mut event.sigev_notify_thread_id).cast::<usize>();
    place.write_unaligned(on_event as *const () as usize);
    place.add(1).write_unaligned(attributes as *mut _ as usize);
    event
}

/// Waits for that thread once what it reads is away, and the neighbours of what the C library has noted of it.
unsafe fn await_thread(big: &Big, read: *mut u8, begin: impl FnOnce()) {
    let noted = [size_of::<libc::pthread_attr_t>(), size_of::<libc::cpu_set_t>(), 152].map(|bytes| {
        let at = libc::malloc(bytes).cast::<u8>();
        at.write(1);
        at
    });
    // More that is small than has its place in local memory.
    for _ in 0..(4 << 20) / 160 {
        libc::malloc(160).cast::<u8>().write_volatile(1);
    }
    let before = FOUND.load(SeqCst);
    big.send_all_away(&[noted[0], noted[1], noted[2], read]);
    begin();
    while FOUND.load(SeqCst) == before {
        std::thread::yield_now();
    }
}

unsafe fn timers(big: &Big) -> String {
    let (read, mut attributes) = (sevens().add(5000), std::mem::zeroed());
    let timers = [0, 1].map(|_| {
        let (mut event, mut timer) = (told_by_thread(read, &mut attributes), null_mut());
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        timer
    });
    let at_once = libc::itimerspec { it_interval: std::mem::zeroed(), it_value: libc::timespec { tv_sec: 0, tv_nsec: 1 } };
    for timer in timers {
        await_thread(big, read, || assert_eq!(libc::timer_settime(timer, 0, &at_once, null_mut()), 0));
    }
    timers.iter().for_each(|&timer| assert_eq!(libc::timer_delete(timer), 0));
    format!("found {}", FOUND.load(SeqCst))
}

/// Messages of which a thread tells, from and to memory that is away.
unsafe fn messages(big: &Big) -> String {
    let (read, mut attributes) = (sevens().add(5000), std::mem::zeroed());
    let mut like: libc::mq_attr = std::mem::zeroed();
    (like.mq_maxmsg, like.mq_msgsize) = (1, 100);
    let name = CString::new(format!("/pando-calls-{}", std::process::id())).unwrap();
    let queue = libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600, &mut like as *mut libc::mq_attr);
    assert!(queue >= 0 && libc::mq_unlink(name.as_ptr()) == 0);
    let to = read.add(100_000);
    let got = [0, 1].map(|_| {
        // Also as the one that was asked before is forgotten.
        for _ in 0..2 {
            libc::mq_notify(queue, null());
            assert_eq!(libc::mq_notify(queue, &told_by_thread(read, &mut attributes)), 0);
        }
        to.write_bytes(0, 100);
        big.send_away(to);
        await_thread(big, read, || assert_eq!(libc::mq_send(queue, read.cast(), 100, 0), 0));
        big.send_away(to);
        let got = libc::mq_receive(queue, to.cast(), 100, null_mut());
        got + to.add(99).read() as isize
    });
    format!("found {} {got:?}", FOUND.load(SeqCst))
}

unsafe fn spawn(big: &Big) -> String {
    let list = libc::malloc(1 << 16).cast::<*mut c_char>();
    list.write(text(c"sh"));
    list.add(1).write(text(c"-c"));
    list.add(2).write(text(c"read line <&5; echo $FAR $line"));
    list.add(3).write(null_mut());
    let actions = libc::malloc(size_of::<libc::posix_spawn_file_actions_t>()).cast::<libc::posix_spawn_file_actions_t>();
    libc::posix_spawn_file_actions_init(actions);
    libc::posix_spawn_file_actions_addopen(actions, 5, text(c"/proc/self/comm"), 0, 0);
    big.send_away(list.cast());
    let mut child = 0;
    let r = libc::posix_spawnp(&mut child, c"sh".as_ptr(), actions, null(), list, environ);
    format!("{r} {}", ended(child))
}

/// Objects of a page each with a mutex in it, which was taken and given back: they leave like any others.
unsafe fn mutexes(big: &Big) -> String {
    let at: Vec<*mut libc::pthread_mutex_t> = (0..12_000).map(|_| libc::malloc(PAGE).cast()).collect();
    for &m in &at {
        libc::pthread_mutex_init(m, null());
        libc::pthread_mutex_lock(m);
        libc::pthread_mutex_unlock(m);
    }
    // One that is waited for meanwhile stays until it is had.
    extern "C" fn takes(m: *mut c_void) -> *mut c_void {
        unsafe { libc::pthread_mutex_lock(m.cast()) as usize as *mut c_void }
    }
    let (mut t, mut r) = (0, null_mut());
    libc::pthread_mutex_lock(at[0]);
    libc::pthread_create(&mut t, null(), takes, at[0].cast());
    let resident = || at.iter().filter(|&&m| is_there(m.cast())).count();
    let left = (0..20).any(|_| {
        big.sweep();
        resident() < at.len() / 2
    });
    libc::pthread_mutex_unlock(at[0]);
    libc::pthread_join(t, &mut r);
    format!("{left} {}", r as usize)
}

/// Objects of 16 pages from each function that gives memory: with the first page, the last one comes along.
unsafe fn objects(big: &Big) -> String {
    const BYTES: usize = 16 * PAGE;
    let new = libc::dlsym(libc::RTLD_DEFAULT, c"_Znwm".as_ptr());
    assert!(!new.is_null());
    let new: extern "C" fn(usize) -> *mut u8 = std::mem::transmute(new);
    let given: [&dyn Fn() -> *mut u8; 3] = [&|| new(BYTES), &|| libc::calloc(1, BYTES).cast(), &|| libc::memalign(PAGE, BYTES).cast()];
    let come = given.map(|give| {
        let all: Vec<*mut u8> = (0..64).map(|_| give()).collect();
        all.iter().for_each(|at| at.write_bytes(7, BYTES));
        // On a busy machine room may be short, which cuts a fetch: then it is tried again.
        (0..10).any(|_| {
            (0..4).for_each(|_| big.sweep());
            // What the allocator had before there was a pager is never away.
            let away: Vec<_> = all.iter().filter(|at| !is_there(**at) && !is_there(at.add(BYTES - 1))).collect();
            let come = away.iter().filter(|at| at.read_volatile() == 7 && is_there(at.add(BYTES - 1))).count();
            away.len() > 40 && come * 2 > away.len()
        })
    });
    come.map(|all| all.to_string()).join(" ")
}

/// The users and groups of all threads, each combination once.
fn identities() -> std::collections::BTreeSet<String> {
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let lines = status.lines().filter(|l| ["Uid:", "Gid:", "Groups:"].iter().any(|name| l.starts_with(name)));
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().map(of).collect()
}

unsafe fn run(case: &str, big: &Big) -> String {
    libc::setenv(c"FAR".as_ptr(), c"away".as_ptr(), 1);
    match case {
        "output" => {
            libc::printf(c"first ".as_ptr());
            big.sweep();
            libc::printf(c"second\n".as_ptr());
            big.sweep();
            libc::fflush(stdout);
            "third".into()
        }
        "passwd" => {
            big.sweep();
            let user = libc::getpwnam(c"root".as_ptr());
            format!("{}", !user.is_null() && CStr::from_ptr((*user).pw_name) == c"root")
        }
        "names" => {
            big.sweep();
            let mut found = null_mut();
            format!("{}", libc::getaddrinfo(c"localhost".as_ptr(), c"80".as_ptr(), null(), &mut found))
        }
        "blocked" => handle(big, 0, libc::sigfillset),
        "timers" => timers(big),
        "messages" => messages(big),
        "asynchronous" => {
            let (mut block, mut list) = ([0u64; 64], [null_mut(); 1]);
            let written = aio_write(block.as_mut_ptr().cast());
            format!(
                "{written} {} {}",
                std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS),
                getaddrinfo_a(0, list.as_mut_ptr(), 1, null_mut())
            )
        }
        "alternate" => {
            let stack = libc::stack_t { ss_sp: libc::malloc(1 << 17), ss_flags: 0, ss_size: 1 << 17 };
            libc::sigaltstack(&stack, null_mut());
            handle(big, libc::SA_ONSTACK, libc::sigemptyset)
        }
        "system" => {
            let command = text(c"echo $FAR");
            big.sweep();
            format!("{}", libc::system(command))
        }
        "popen" => {
            let command = text(c"echo $FAR");
            big.sweep();
            let f = libc::popen(command, c"r".as_ptr());
            big.sweep();
            let mut line = [0 as c_char; 100];
            libc::fgets(line.as_mut_ptr(), 100, f);
            format!("{} {}", CStr::from_ptr(line.as_ptr()).to_string_lossy().trim(), libc::pclose(f))
        }
        "spawn" => spawn(big),
        "streams" => {
            // A program with threads and open files forks.
            let (ends, mut t) = (pipe(), 0);
            libc::pthread_create(&mut t, null(), reads, ends.as_ptr() as *mut c_void);
            for _ in 0..100 {
                libc::fopen(c"/etc/passwd".as_ptr(), c"r".as_ptr());
            }
            big.sweep();
            let child = libc::fork();
            if child == 0 {
                libc::_exit(3);
            }
            format!("{:x}", ended(child))
        }
        "closed" => {
            // What so many open streams were read through is away some time after they are closed.
            let opened = std::array::from_fn::<_, 700, _>(|_| libc::fopen(c"/etc/passwd".as_ptr(), c"r".as_ptr()));
            let read = opened.iter().filter(|&&f| !f.is_null() && libc::fgetc(f) > 0).count();
            // The stream itself, and its buffer.
            let places: Vec<*const u8> = opened.iter().flat_map(|&f| [f.cast(), *f.cast::<*const u8>().add(7)]).collect();
            for f in opened {
                libc::fclose(f);
            }
            big.send_all_away(&places);
            format!("{read}")
        }
        "cancel" => {
            let (ends, mut t, mut r) = (pipe(), 0, null_mut());
            libc::pthread_create(&mut t, null(), reads, ends.as_ptr() as *mut c_void);
            pthread_cancel(t);
            libc::pthread_join(t, &mut r);
            format!("{}", r as isize)
        }
        "fork" | "clone" | "bare" => {
            let at = sevens();
            big.send_away(at.add(5000));
            let child = match case {
                "fork" => libc::syscall(libc::SYS_fork) as c_int,
                "clone" => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as c_int,
                _ => _Fork(),
            };
            if child == 0 {
                libc::_exit(*at.add(5000) as c_int);
            }
            format!("{:x}", ended(child))
        }
        "children" => {
            // More at once than there are pipes that tell of their ends, and each sees the moment of its fork.
            let (at, early, late, before) = (sevens().add(5000), pipe(), pipe(), pipes());
            let born = |gate: [c_int; 2]| {
                let child = libc::fork();
                if child == 0 {
                    reads(gate.as_ptr() as *mut c_void);
                    libc::_exit(at.read() as c_int);
                }
                child
            };
            let open = |gate: [c_int; 2], of: &[c_int]| {
                libc::write(gate[1], [0u8; 64].as_ptr().cast(), of.len());
                of.iter().map(|&child| ended(child) >> 8).sum::<c_int>()
            };
            big.send_away(at);
            let first: Vec<c_int> = (0..40).map(|i| born(if i % 2 == 0 { early } else { late })).collect();
            at.write(8);
            big.send_away(at);
            let gone = open(early, &first.iter().copied().step_by(2).collect::<Vec<_>>());
            let mut rest: Vec<c_int> = first.into_iter().skip(1).step_by(2).collect();
            rest.push(born(late));
            let gone = [gone, open(late, &rest)];
            let noticed = (0..10_000).any(|_| {
                libc::usleep(1000);
                pipes() == before
            });
            format!("{gone:?} {noticed}")
        }
        "arguments" => {
            // More than are short, so that they leave; the program tells how many it got.
            let list = libc::malloc(1 << 16).cast::<*mut c_char>();
            list.write(text(c"sh"));
            list.add(1).write(text(c"-c"));
            list.add(2).write(text(c"echo $#"));
            for i in 3..3000 {
                let long = libc::malloc(400).cast::<c_char>();
                long.write_bytes(b'x', 399);
                long.add(399).write(0);
                list.add(i).write(long);
            }
            list.add(3000).write(null_mut());
            let places = std::slice::from_raw_parts(list.cast::<*const u8>(), 3000);
            let far: Vec<*const u8> = places[3..].to_vec();
            big.send_all_away(&far);
            let child = libc::fork();
            if child == 0 {
                libc::execv(c"/bin/sh".as_ptr(), list.cast());
                libc::_exit(9);
            }
            let exec = ended(child);
            big.send_all_away(&far);
            let mut child = 0;
            let r = libc::posix_spawn(&mut child, c"/bin/sh".as_ptr(), null(), null(), list, environ);
            format!("{exec} {r} {}", ended(child))
        }
        "vfork" => {
            let at = sevens().add(5000);
            big.send_away(at);
            let child = vfork();
            if child == 0 {
                let found = at.read();
                at.write(8);
                libc::_exit(found as c_int);
            }
            format!("{:x} {}", ended(child), at.read())
        }
        "stack" => {
            let (ends, mut t, bytes) = (pipe(), 0, 1 << 19);
            let stack = libc::memalign(PAGE, bytes);
            stack.write_bytes(0, bytes);
            big.send_away(stack.cast::<u8>().add(bytes - 3 * PAGE));
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            pthread_attr_setstack(&mut attributes, stack, bytes);
            big.sweep();
            libc::write(ends[1], c"x".as_ptr().cast(), 1);
            let r = libc::pthread_create(&mut t, &attributes, reads, ends.as_ptr() as *mut c_void);
            format!("{r} {}", libc::pthread_join(t, null_mut()))
        }
        "descriptors" => {
            let at = sevens();
            for fd in 3..2000 {
                libc::close(fd);
            }
            close_range(3, u32::MAX, 0);
            big.send_away(at.add(5000));
            format!("{}", *at.add(5000))
        }
        "mutexes" => mutexes(big),
        "objects" => objects(big),
        "run" => {
            // No allocator has told of these pages.
            let (flags, pages) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 2048);
            let at = libc::mmap(null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>();
            (0..pages).for_each(|i| at.add(i * PAGE).write(7));
            (0..4).for_each(|_| big.sweep());
            let away: Vec<*mut u8> = (0..pages).map(|i| at.add(i * PAGE)).filter(|&page| !is_there(page)).collect();
            let ahead = away.iter().filter(|&&page| is_there(page) & (page.read_volatile() == 7)).count();
            format!("{}", away.len() > pages / 2 && ahead * 4 > away.len() * 3)
        }
        "root" => {
            let at = sevens();
            libc::setgroups(1, [1234].as_ptr());
            libc::setgid(1235);
            libc::setuid(1236);
            big.send_away(at.add(5000));
            format!("{} {:?}", *at.add(5000), identities())
        }
        "growing" => {
            // Most of it was never touched, and must not be because it moves.
            let (flags, bytes) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 100 << 20);
            let at = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>();
            at.add(50 << 20).write_bytes(7, PAGE * 2);
            big.send_away(at.add(50 << 20));
            let at = libc::mremap(at.cast(), bytes, bytes + (50 << 20), libc::MREMAP_MAYMOVE).cast::<u8>();
            format!("{} {} {}", *at, *at.add((50 << 20) + 5000), *at.add(bytes + 5))
        }
        _ => panic!("no case {case}"),
    }
}

fn main() {
    let case = std::env::args().nth(1).expect("calls CASE");
    println!("{}", unsafe { run(&case, &Big::new()) });
}
