//! A guide for Redis 6 to 8, as an ordinary module: before a command runs, it names the memory that the command will
//! touch, and the pager fetches it in one round trip. It reads Redis' structures by their layout; which layout is tried
//! out on a list of its own at load, and without a match the guide does nothing. It never writes to anything of Redis.

mod api;

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

/// Where a quicklist node keeps the size of its entry, and its count of elements.
#[derive(Clone, Copy)]
struct Layout {
    size_bytes: usize,
    count_at: usize,
}
const LAYOUTS: [Layout; 2] = [Layout { size_bytes: 8, count_at: 32 }, Layout { size_bytes: 4, count_at: 28 }];
/// The layout that fits this Redis, + 1; 0: none.
static LAYOUT: AtomicUsize = AtomicUsize::new(0);
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

/// Ranges to prefetch.
struct Wanted {
    list: [Range; RANGES_MAX],
    len: usize,
}

impl Wanted {
    fn add(&mut self, start: *const u8, bytes: usize) {
        if self.len < RANGES_MAX && bytes > 0 && bytes < 1 << 32 {
            self.list[self.len] = Range { start, bytes };
            self.len += 1;
        }
    }

    /// The value of a key: `from..=to` are the elements of a list that are wanted.
    unsafe fn value(&mut self, object: *const u8, from: i64, to: i64) {
        let (kind, encoding, data) = (*object & 15, *object >> 4, word(object, 8) as *const u8);
        match (kind, encoding) {
            (LIST, QUICKLIST) => self.quicklist(data, from, to),
            // An SDS follows its header of 5, 9 or 17 bytes; the allocator knows how long it is without a look at it.
            (STRING, RAW) | (_, LISTPACK | ZIPLIST) => {
                let start = (data as usize & !15) as *const u8;
                self.add(start, libc::malloc_usable_size(start as Ptr));
            }
            _ => {}
        }
    }

    /// head, tail, count. Nodes are small and stay local; only their entries are far.
    unsafe fn quicklist(&mut self, list: *const u8, from: i64, to: i64) {
        let Some(layout) = LAYOUT.load(Relaxed).checked_sub(1).map(|i| LAYOUTS[i]) else { return };
        let count = word(list, 16) as i64;
        let index = |i: i64| if i < 0 { i + count } else { i };
        let (from, to) = (index(from).max(0), index(to).min(count - 1));
        let backwards = from > count / 2;
        let (mut node, mut at) = if backwards { (word(list, 8), count) } else { (word(list, 0), 0) };
        while node != 0 && self.len < RANGES_MAX && if backwards { at > from } else { at <= to } {
            let n = node as *const u8;
            let held = n.add(layout.count_at).cast::<u16>().read_unaligned() as i64;
            let first = if backwards { at - held } else { at };
            if first <= to && first + held > from {
                self.add(word(n, 16) as *const u8, size(n, layout));
            }
            at += if backwards { -held } else { held };
            node = word(n, if backwards { 0 } else { 8 });
        }
    }
}

unsafe fn size(node: *const u8, layout: Layout) -> usize {
    if layout.size_bytes == 8 {
        word(node, 24)
    } else {
        word(node, 24) & 0xffff_ffff
    }
}

/// The object behind an open key, which is the fourth word of the handle.
unsafe fn object(key: Ptr) -> *const u8 {
    word(key.cast(), 24) as *const u8
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

/// Makes a list and looks for a layout by which it reads as what it is.
unsafe fn try_layouts(context: Ptr) -> usize {
    const PUSHED: usize = 40;
    let text = |b: &[u8]| CreateString()(context, b.as_ptr(), b.len());
    let name = text(b"\0pando-guide-self-test");
    let key = OpenKey()(context, name, WRITE);
    let element = text(&[b'x'; 1000]);
    for _ in 0..PUSHED {
        ListPush()(key, -1, element);
    }
    let o = object(key);
    let mut found = 0;
    if !o.is_null() && *o & 15 == LIST && *o >> 4 == QUICKLIST && word(word(o, 8) as *const u8, 16) == PUSHED {
        found = (1..=LAYOUTS.len()).find(|&i| fits(word(o, 8) as *const u8, LAYOUTS[i - 1], PUSHED)).unwrap_or(0);
    }
    DeleteKey()(key);
    CloseKey()(key);
    FreeString()(context, element);
    FreeString()(context, name);
    found
}

/// Every entry says its own size in its first four bytes, and the counts add up.
unsafe fn fits(list: *const u8, layout: Layout, pushed: usize) -> bool {
    let (mut node, mut count, mut nodes) = (word(list, 0), 0, 0);
    while node != 0 && nodes < pushed {
        let n = node as *const u8;
        let entry = word(n, 16) as *const u8;
        if size(n, layout) != entry.cast::<u32>().read_unaligned() as usize {
            return false;
        }
        count += n.add(layout.count_at).cast::<u16>().read_unaligned() as usize;
        (node, nodes) = (word(n, 8), nodes + 1);
    }
    nodes > 1 && count == pushed
}

/// # Safety
/// Called by Redis with a module context.
#[no_mangle]
pub unsafe extern "C" fn RedisModule_OnLoad(context: Ptr, _argv: *mut Ptr, _argc: c_int) -> c_int {
    let get_api: unsafe extern "C" fn(*const c_char, *mut usize) -> c_int = std::mem::transmute(word(context.cast(), 0));
    macro_rules! load { ($($name:ident),*) => {$(
        let name = concat!("RedisModule_", stringify!($name), "\0").as_ptr();
        let mut at = 0;
        if get_api(name.cast(), &mut at) != 0 { return 1; }
        $name::AT.store(at, Relaxed);
    )*}; }
    load!(
        SetModuleAttribs,
        GetThreadSafeContext,
        RegisterCommandFilter,
        CommandFilterArgsCount,
        CommandFilterArgGet,
        StringPtrLen,
        StringToLongLong,
        CreateString,
        FreeString,
        OpenKey,
        CloseKey,
        DeleteKey,
        ListPush
    );
    SetModuleAttribs()(context, c"pandoguide".as_ptr(), 1, 1);
    macro_rules! find { ($($name:ident),*) => {$(
        $name::AT.store(libc::dlsym(libc::RTLD_DEFAULT, concat!(stringify!($name), "\0").as_ptr().cast()) as usize, Relaxed);
    )*}; }
    find!(pando_guide_abi, pando_guide_prefetch, pando_guide_request);
    if pando_guide_abi::AT.load(Relaxed) == 0 || pando_guide_abi()() != 1 {
        return 0; // no far memory here, or another ABI: an ordinary Redis
    }
    LAYOUT.store(try_layouts(context), Relaxed);
    CONTEXT.store(GetThreadSafeContext()(std::ptr::null_mut()) as usize, Relaxed);
    RegisterCommandFilter()(context, on_command, 0);
    0
}
