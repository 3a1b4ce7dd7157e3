//! Calls of the C library and the kernel with memory that is away. The usual fault handling does
//! not work inside these calls. `calls CASE` prints the result of one case; `programs.rs` has the
//! expected results.

mod away;
mod events;
mod library;
mod memory;
mod processes;
mod threads;

use away::Big;

/// Makes one call, or a few, and returns the result as text.
type Case = unsafe fn(&Big) -> String;

const CASES: &[(&str, Case)] = &[
    ("output", library::output),
    ("passwd", library::passwd),
    ("names", library::names),
    ("closed", library::closed),
    ("blocked", events::blocked),
    ("alternate", events::alternate),
    ("timers", events::timers),
    ("messages", events::messages),
    ("asynchronous", events::asynchronous),
    ("system", processes::system),
    ("popen", processes::popen),
    ("spawn", processes::spawn),
    ("arguments", processes::arguments),
    ("streams", processes::streams),
    ("fork", processes::fork),
    ("clone", processes::clone),
    ("bare", processes::bare),
    ("vfork", processes::vforked),
    ("children", processes::children),
    ("cancel", threads::cancel),
    ("stack", threads::stack),
    ("root", threads::root),
    ("mutexes", memory::mutexes),
    ("objects", memory::objects),
    ("run", memory::run),
    ("growing", memory::growing),
    ("descriptors", memory::descriptors),
];

fn main() {
    let name = std::env::args().nth(1).expect("calls CASE");
    let (_, case) =
        CASES.iter().find(|(case, _)| *case == name).unwrap_or_else(|| panic!("no case {name}"));
    unsafe {
        let big = Big::new();
        // Afterwards, so that it can leave: programs that a case starts print it.
        libc::setenv(c"FAR".as_ptr(), c"away".as_ptr(), 1);
        println!("{}", case(&big));
    }
}
