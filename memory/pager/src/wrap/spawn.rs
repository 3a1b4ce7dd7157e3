//! Programs that are started beside this one. The C library does that in a process that shares this
//! memory, where faults cannot be handled. So everything that this process reads is fetched first
//! and stays until the start is done.

use crate::pin::{Pin, is_far, pin_text};
use crate::{next, sys};
use libc::{c_char, c_int, c_void, pid_t};

/// A list of any number of texts, and its pins.
pub struct Texts {
    pins: *mut Pin,
    len: usize,
    most: usize,
    _list: Option<Pin>,
}

impl Texts {
    /// Pins a list that ends with null. The list may itself be null.
    pub unsafe fn pin(list: *const *const c_char) -> Texts {
        unsafe {
            let mut most = 0;
            while !list.is_null() && !(*list.add(most)).is_null() {
                most += 1;
            }
            let words = if list.is_null() { 0 } else { most + 1 };
            let mut texts = Texts {
                pins: core::ptr::null_mut(),
                len: 0,
                most,
                _list: Pin::new(list.cast(), words * size_of::<usize>()),
            };
            for i in 0..most {
                texts.add(*list.add(i));
            }
            texts
        }
    }

    unsafe fn add(&mut self, text: *const c_char) {
        unsafe {
            // Most texts lie side by side in few pages.
            if self.len > 0
                && (*self.pins.add(self.len - 1)).covers(text.cast(), libc::strlen(text) + 1)
            {
                return;
            }
            let Some(pin) = pin_text(text) else { return };
            if self.pins.is_null() {
                self.pins = sys::reserve(self.most * size_of::<Pin>()).cast();
            }
            self.pins.add(self.len).write(pin);
            self.len += 1;
        }
    }
}

impl Drop for Texts {
    fn drop(&mut self) {
        for i in 0..self.len {
            unsafe { self.pins.add(i).drop_in_place() };
        }
        if !self.pins.is_null() {
            unsafe { sys!(libc::SYS_munmap, self.pins, self.most * size_of::<Pin>()) };
        }
    }
}

/// The pinned environment.
pub struct Environment {
    _texts: Texts,
}

impl Environment {
    pub unsafe fn pin() -> Environment {
        unsafe {
            unsafe extern "C" {
                static environ: *const *const c_char;
            }
            Environment { _texts: Texts::pin(environ) }
        }
    }
}

/// The file actions for the child: a list in separate memory, with pointers to names.
struct Actions {
    _names: Texts,
    _list: Option<Pin>,
    _head: Option<Pin>,
}

impl Actions {
    unsafe fn pin(actions: *const libc::posix_spawn_file_actions_t) -> Actions {
        unsafe {
            let mut names = Texts { pins: core::ptr::null_mut(), len: 0, most: 0, _list: None };
            if actions.is_null() {
                return Actions { _names: names, _list: None, _head: None };
            }
            // The structure begins with two counts, and then the list.
            let list = actions.cast::<*const usize>().add(1).read();
            let bytes =
                if list.is_null() { 0 } else { libc::malloc_usable_size(list as *mut c_void) };
            names.most = bytes / size_of::<usize>();
            for i in 0..names.most {
                let word = list.add(i).read() as *const c_char;
                if is_far(word.cast(), 1) {
                    names.add(word);
                }
            }
            let head = Pin::new(actions.cast(), size_of::<libc::posix_spawn_file_actions_t>());
            Actions { _names: names, _list: Pin::new(list.cast(), bytes), _head: head }
        }
    }
}

/// Defines wrappers of the two functions, which differ in how they find the program.
macro_rules! spawns {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t, argv: *const *const c_char,
            envp: *const *const c_char,
        ) -> c_int { unsafe {
            let _texts = (pin_text(path), Texts::pin(argv), Texts::pin(envp), Environment::pin());
            let _actions = Actions::pin(actions);
            let bytes =
                if attributes.is_null() { 0 } else { size_of::<libc::posix_spawnattr_t>() };
            let _pin = Pin::new(attributes.cast(), bytes);
            next!($name: fn(
                *mut pid_t, *const c_char, *const libc::posix_spawn_file_actions_t,
                *const libc::posix_spawnattr_t, *const *const c_char, *const *const c_char
            ) -> c_int)(pid, path, actions, attributes, argv, envp)
        }}
    )*};
}

spawns!(posix_spawn, posix_spawnp);

/// # Safety
/// As system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    unsafe {
        let _pins = (pin_text(command), Environment::pin());
        next!(system: fn(*const c_char) -> c_int)(command)
    }
}
