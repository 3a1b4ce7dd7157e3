//! Programs that are started beside this one. The C library does it in a process that has this one's memory and a fault of
//! which nobody would handle: all that it reads is brought in first and stays until it is done.

use crate::next;
use crate::pin::{is_far, pin_text, Pin};
use libc::{c_char, c_int, c_void, pid_t};

const TEXTS_MAX: usize = 256;

/// A list of texts and what it points to. Of more than so many far texts the rest is left to luck.
struct Texts {
    _pins: [Option<Pin>; TEXTS_MAX],
    _list: Option<Pin>,
}

impl Texts {
    unsafe fn pin(list: *const *const c_char) -> Texts {
        let mut pins = [const { None }; TEXTS_MAX];
        let (mut n, mut len) = (0, 0);
        while !list.is_null() && !(*list.add(len)).is_null() {
            if n < TEXTS_MAX {
                pins[n] = pin_text(*list.add(len));
                n += pins[n].is_some() as usize;
            }
            len += 1;
        }
        Texts { _pins: pins, _list: Pin::new(list.cast(), if list.is_null() { 0 } else { (len + 1) * size_of::<*const c_char>() }) }
    }
}

/// The environment.
pub struct Environment {
    _texts: Texts,
}

impl Environment {
    pub unsafe fn pin() -> Environment {
        extern "C" {
            static environ: *const *const c_char;
        }
        Environment { _texts: Texts::pin(environ) }
    }
}

/// What is to be done to the child's files: a list in memory of its own, whose words may point to names.
struct Actions {
    _pins: [Option<Pin>; TEXTS_MAX],
    _list: Option<Pin>,
    _head: Option<Pin>,
}

impl Actions {
    unsafe fn pin(actions: *const libc::posix_spawn_file_actions_t) -> Actions {
        let mut pins = [const { None }; TEXTS_MAX];
        if actions.is_null() {
            return Actions { _pins: pins, _list: None, _head: None };
        }
        // Two counts, then the list.
        let list = actions.cast::<*const usize>().add(1).read();
        let bytes = if list.is_null() { 0 } else { libc::malloc_usable_size(list as *mut c_void) };
        let mut n = 0;
        for i in 0..bytes / size_of::<usize>() {
            let word = list.add(i).read() as *const c_char;
            if n < TEXTS_MAX && is_far(word.cast(), 1) {
                pins[n] = pin_text(word);
                n += 1;
            }
        }
        let head = Pin::new(actions.cast(), size_of::<libc::posix_spawn_file_actions_t>());
        Actions { _pins: pins, _list: Pin::new(list.cast(), bytes), _head: head }
    }
}

/// Defines wrappers of the two that differ in how they find the program.
macro_rules! spawns {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[no_mangle]
        pub unsafe extern "C" fn $name(pid: *mut pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
            let _pins = (pin_text(path), Actions::pin(actions), Texts::pin(argv), Texts::pin(envp), Environment::pin());
            let _pin = Pin::new(attributes.cast(), if attributes.is_null() { 0 } else { size_of::<libc::posix_spawnattr_t>() });
            next!($name: fn(*mut pid_t, *const c_char, *const libc::posix_spawn_file_actions_t, *const libc::posix_spawnattr_t,
                *const *const c_char, *const *const c_char) -> c_int)(pid, path, actions, attributes, argv, envp)
        }
    )*};
}

spawns!(posix_spawn, posix_spawnp);

/// # Safety
/// As system(3).
#[no_mangle]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let _pins = (pin_text(command), Environment::pin());
    next!(system: fn(*const c_char) -> c_int)(command)
}
