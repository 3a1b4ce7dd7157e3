//! A guide for Redis 6 to 8, as an ordinary module: before a command runs, it names the memory that the command will
//! touch, and the pager fetches it in one round trip. It reads Redis' structures by their layout; which layout is tried
//! out on a list of its own at load, and without a match the guide says so and does nothing. It never writes to anything of Redis.

mod api;
#[cfg(test)]
mod tests;

use api::*;
use libc::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

type Ptr = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: *const u8,
    bytes: usize,
}

/// Where a quicklist node may keep its count of elements: in Redis 7 and 8, in Redis 6.
const COUNTS_AT: [usize; 2] = [32, 28];
/// Where it does; 0 until that is known.
static COUNT_AT: AtomicUsize = AtomicUsize::new(0);
static CONTEXT: AtomicUsize = AtomicUsize::new(0);

const READ: c_int = 1 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19; // and: do not touch, notify, count or expire
const WRITE: c_int = 3;
const RANGES_MAX: usize = 1024;
/// Types and encodings of an object.
const STRING: u8 = 0;
const LIST: u8 = 1;
const RAW: u8 = 0;
const ZIPLIST: u8 = 5;
const QUICKLIST: u8 = 9;
const LISTPACK: u8 = 11;

unsafe fn word(at: *const u8, offset: usize) -> usize {
    at.add(offset).cast::<usize>().read_unaligned()
}

/// The object behind an open key, which is the fourth word of the handle.
unsafe fn object(key: Ptr) -> *const u8 {
    word(key.cast(), 24) as *const u8
}

/// Ranges to prefetch.
struct Wanted {
    list: [Range; RANGES_MAX],
    len: usize,
}

impl Wanted {
    fn add(&mut self, start: usize, bytes: usize) {
        if self.len < RANGES_MAX {
            self.list[self.len] = Range { start: start as *const u8, bytes };
            self.len += 1;
        }
    }

    /// The value of a key: `from..=to` are the elements of a list that are wanted.
    unsafe fn value(&mut self, object: *const u8, from: i64, to: i64) {
        match (*object & 15, *object >> 4) {
            (LIST, QUICKLIST) => self.quicklist(word(object, 8) as *const u8, from, to),
            // A whole allocation: the allocator knows how long it is. An SDS follows its header of up to 17 bytes.
            (STRING, RAW) | (_, LISTPACK | ZIPLIST) => {
                self.add(word(object, 8) & !15, libc::malloc_usable_size((word(object, 8) & !15) as Ptr))
            }
            _ => {}
        }
    }

    /// head, tail, count. Nodes (previous, next, entry, its bytes …) are small and stay local; only their entries are far. The
    /// allocator is not asked for lengths here: its own table of them, a word per page, may be far, too.
    unsafe fn quicklist(&mut self, list: *const u8, from: i64, to: i64) {
        let count = word(list, 16) as i64;
        let index = |i: i64| if i < 0 { i + count } else { i };
        let (from, to) = (index(from).max(0), index(to).min(count - 1));
        let backwards = from > count / 2;
        let (mut node, mut at) = if backwards { (word(list, 8), count) } else { (word(list, 0), 0) };
        while node != 0 && self.len < RANGES_MAX && if backwards { at > from } else { at <= to } {
            let held = elements(node as *const u8, COUNT_AT.load(Relaxed)) as i64;
            let first = if backwards { at - held } else { at };
            if first <= to && first + held > from {
                self.add(word(node as *const u8, 16), word(node as *const u8, 24) as u32 as usize);
            }
            at += if backwards { -held } else { held };
            node = word(node as *const u8, if backwards { 0 } else { 8 });
        }
    }
}

unsafe fn elements(node: *const u8, count_at: usize) -> usize {
    node.add(count_at).cast::<u16>().read_unaligned() as usize
}

unsafe extern "C" fn on_command(filter: Ptr) {
    pando_guide_request()();
    let args = CommandFilterArgsCount()(filter);
    let arg = |i| CommandFilterArgGet()(filter, i);
    if args < 2 {
        return;
    }
    let mut len = 0;
    let name = StringPtrLen()(arg(0), &mut len);
    let name = std::slice::from_raw_parts(name, len);
    let number = |i: c_int, default: i64| {
        let mut n = default;
        if i < args {
            StringToLongLong()(arg(i), &mut n);
        }
        n
    };
    let is = |what: &str| name.eq_ignore_ascii_case(what.as_bytes());
    let (last, from, to) = if is("lrange") {
        (1, number(2, 0), number(3, -1))
    } else if is("lindex") {
        (1, number(2, 0), number(2, 0))
    } else if is("mget") {
        (args - 1, 0, -1)
    } else if is("get") || is("hgetall") || is("hget") || is("zrange") {
        (1, 0, -1)
    } else {
        return;
    };
    let mut wanted = Wanted { list: [Range { start: std::ptr::null(), bytes: 0 }; RANGES_MAX], len: 0 };
    for i in 1..=last {
        let key = OpenKey()(CONTEXT.load(Relaxed) as Ptr, arg(i), READ);
        if !key.is_null() {
            if !object(key).is_null() {
                wanted.value(object(key), from, to);
            }
            CloseKey()(key);
        }
    }
    pando_guide_prefetch()(wanted.list.as_ptr(), wanted.len);
}

/// Makes a list and looks where its nodes must keep their counts for it to read as what it is.
unsafe fn find_layout(context: Ptr) -> Option<usize> {
    const PUSHED: usize = 40;
    let text = |b: &[u8]| CreateString()(context, b.as_ptr(), b.len());
    let (name, element) = (text(b"\0pando-guide-self-test"), text(&[b'x'; 1000]));
    let key = OpenKey()(context, name, WRITE);
    for _ in 0..PUSHED {
        ListPush()(key, -1, element);
    }
    let o = object(key);
    let is_list = !o.is_null() && *o & 15 == LIST && *o >> 4 == QUICKLIST && word(word(o, 8) as *const u8, 16) == PUSHED;
    let found = COUNTS_AT.into_iter().find(|&at| is_list && fits(word(o, 8) as *const u8, at, PUSHED));
    DeleteKey()(key);
    CloseKey()(key);
    FreeString()(context, element);
    FreeString()(context, name);
    found
}

/// Every entry says in its first four bytes how long it is, as its node does; its allocation must hold that, and the counts add up.
unsafe fn fits(list: *const u8, count_at: usize, pushed: usize) -> bool {
    let (mut node, mut count, mut nodes) = (word(list, 0) as *const u8, 0, 0);
    while !node.is_null() && nodes < pushed {
        let entry = word(node, 16) as *mut u32;
        if entry.read_unaligned() != word(node, 24) as u32 || entry.read_unaligned() as usize > libc::malloc_usable_size(entry.cast()) {
            return false;
        }
        count += elements(node, count_at);
        (node, nodes) = (word(node, 8) as *const u8, nodes + 1);
    }
    nodes > 1 && count == pushed
}

/// # Safety
/// Called by Redis with a module context.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(context: Ptr, _argv: *mut Ptr, _argc: c_int) -> c_int {
    let get_api: unsafe extern "C" fn(*const c_char, *mut usize) -> c_int = std::mem::transmute(word(context.cast(), 0));
    let of_redis = |name: &str| {
        let mut at = 0;
        get_api(format!("RedisModule_{name}").as_ptr().cast(), &mut at);
        at
    };
    if !load_redis(of_redis) {
        return 1;
    }
    SetModuleAttribs()(context, c"pandoguide".as_ptr(), 1, 1);
    let of_pager = |name: &str| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast()) as usize;
    if !load_pager(of_pager) || pando_guide_abi()() != 1 {
        return 0; // no far memory here, or another ABI: an ordinary Redis
    }
    let Some(count_at) = find_layout(context) else {
        eprintln!("pando-mem: this Redis keeps its lists in a way that the guide does not know: it goes on without the guide");
        return 0;
    };
    COUNT_AT.store(count_at, Relaxed);
    CONTEXT.store(GetThreadSafeContext()(std::ptr::null_mut()) as usize, Relaxed);
    RegisterCommandFilter()(context, on_command, 0);
    0
}
