//! A guide for Redis 6 to 8, as an ordinary module. Before a command runs, it names the memory that
//! the command will touch, and the pager fetches it in one round trip. It reads Redis' structures
//! by their layout, which it finds at load with a list of its own. Without a match it prints a
//! message and does nothing. It never writes to memory of Redis.

#![warn(missing_docs)]

mod api;
#[cfg(test)]
mod tests;

use api::*;
use libc::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Possible offsets of the count of elements in a quicklist node: Redis 7 and 8, then Redis 6.
const COUNTS_AT: [usize; 2] = [32, 28];
/// The actual offset. 0 = not found yet.
static COUNT_AT: AtomicUsize = AtomicUsize::new(0);
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
/// Whether strings have the layout that the guide can read.
static STRINGS: AtomicBool = AtomicBool::new(false);

// The flags: read; do not touch, notify, count or expire.
const READ: c_int = 1 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19;
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
    unsafe { at.add(offset).cast::<usize>().read_unaligned() }
}

/// Returns the object of an open key, which is the fourth word of the handle.
unsafe fn object(key: Ptr) -> *const u8 {
    unsafe { word(key.cast(), 24) as *const u8 }
}

/// Reads the length of a value from its head.
type Length = unsafe fn(*const u8) -> usize;

/// Returns the length of an SDS. The byte before the text has the type of its head, one of five
/// (`sds.h`).
unsafe fn sds_bytes(at: *const u8) -> usize {
    unsafe {
        match *at.sub(1) & 7 {
            0 => (*at.sub(1) >> 3) as usize,
            1 => *at.sub(3) as usize,
            2 => at.sub(5).cast::<u16>().read_unaligned() as usize,
            3 => at.sub(9).cast::<u32>().read_unaligned() as usize,
            4 => at.sub(17).cast::<u64>().read_unaligned() as usize,
            _ => 0,
        }
    }
}

/// Returns the length of a listpack or a ziplist, which begins with it.
unsafe fn pack_bytes(at: *const u8) -> usize {
    unsafe { at.cast::<u32>().read_unaligned() as usize }
}

/// The head of an SDS has up to 17 bytes before the text; the head of a listpack has 4 inside it.
const HEAD_BYTES: usize = 17;
/// Most values of unknown length that one command fetches. Faults fetch the rest.
const UNKNOWN_MAX: usize = 128;

/// Ranges to prefetch.
struct Wanted {
    list: [Range; RANGES_MAX],
    len: usize,
    /// Values with a length that must be fetched first.
    unknown: [(usize, Length); UNKNOWN_MAX],
    unknown_len: usize,
}

impl Wanted {
    fn new() -> Wanted {
        let nothing = Range { start: std::ptr::null(), bytes: 0 };
        Wanted {
            list: [nothing; RANGES_MAX],
            len: 0,
            unknown: [(0, pack_bytes as Length); UNKNOWN_MAX],
            unknown_len: 0,
        }
    }

    fn add(&mut self, start: usize, bytes: usize) {
        if self.len < RANGES_MAX {
            self.list[self.len] = Range { start: start as *const u8, bytes };
            self.len += 1;
        }
    }

    /// Adds the value of a key. `from..=to` are the needed elements of a list.
    unsafe fn value(&mut self, object: *const u8, from: i64, to: i64) {
        unsafe {
            match (*object & 15, *object >> 4) {
                (LIST, QUICKLIST) => self.quicklist(word(object, 8) as *const u8, from, to),
                (STRING, RAW) if STRINGS.load(Relaxed) => self.whole(word(object, 8), sds_bytes),
                (_, LISTPACK | ZIPLIST) => self.whole(word(object, 8), pack_bytes),
                _ => {}
            }
        }
    }

    /// Adds a value in one allocation. Its length comes from the pager. If the allocator is not
    /// wrapped, it comes from the value itself. The guide never calls the allocator, because Redis
    /// may have been built with one of its own. Pages with such lengths are fetched first, all of
    /// them in one round.
    unsafe fn whole(&mut self, at: usize, length: Length) {
        unsafe {
            match pando_guide_extent()(at as *const u8) {
                0 if self.unknown_len < UNKNOWN_MAX => {
                    self.unknown[self.unknown_len] = (at, length);
                    self.unknown_len += 1;
                }
                0 => {}
                bytes => self.add(at, bytes),
            }
        }
    }

    /// Fetches all ranges. A second round is needed only for values of unknown length.
    unsafe fn fetch(&mut self) {
        unsafe {
            let heads = self.unknown_len.min(RANGES_MAX - self.len);
            for i in 0..heads {
                let (at, _) = self.unknown[i];
                self.add(at - HEAD_BYTES, 2 * HEAD_BYTES);
            }
            pando_guide_prefetch()(self.list.as_ptr(), self.len);
            self.len = 0;
            for (at, length) in self.unknown[..heads].iter().copied() {
                let bytes = length(at as *const u8);
                if bytes > 0 && self.len < RANGES_MAX {
                    self.list[self.len] = Range { start: at as *const u8, bytes };
                    self.len += 1;
                }
            }
            if self.len > 0 {
                pando_guide_prefetch()(self.list.as_ptr(), self.len);
            }
        }
    }

    /// Adds a quicklist: head, tail, count. Nodes (previous, next, entry, its bytes …) are small
    /// and stay local; only their entries are far. The guide does not ask the allocator for
    /// lengths: its own table, a word for each page, may be far.
    unsafe fn quicklist(&mut self, list: *const u8, from: i64, to: i64) {
        unsafe {
            let count = word(list, 16) as i64;
            let index = |i: i64| if i < 0 { i + count } else { i };
            let (from, to) = (index(from).max(0), index(to).min(count - 1));
            let backwards = from > count / 2;
            let (mut node, mut at) =
                if backwards { (word(list, 8), count) } else { (word(list, 0), 0) };
            while node != 0 && self.len < RANGES_MAX && if backwards { at > from } else { at <= to }
            {
                let held = elements(node as *const u8, COUNT_AT.load(Relaxed)) as i64;
                let first = if backwards { at - held } else { at };
                if first <= to && first + held > from {
                    self.add(
                        word(node as *const u8, 16),
                        word(node as *const u8, 24) as u32 as usize,
                    );
                }
                at += if backwards { -held } else { held };
                node = word(node as *const u8, if backwards { 0 } else { 8 });
            }
        }
    }
}

unsafe fn elements(node: *const u8, count_at: usize) -> usize {
    unsafe { node.add(count_at).cast::<u16>().read_unaligned() as usize }
}

unsafe extern "C" fn on_command(filter: Ptr) {
    unsafe {
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
        let mut wanted = Wanted::new();
        for i in 1..=last {
            let key = OpenKey()(CONTEXT.load(Relaxed) as Ptr, arg(i), READ);
            if !key.is_null() {
                if !object(key).is_null() {
                    wanted.value(object(key), from, to);
                }
                CloseKey()(key);
            }
        }
        wanted.fetch();
    }
}

/// Makes a list, and returns the offset of the nodes' counts with which it reads correctly.
unsafe fn find_layout(context: Ptr) -> Option<usize> {
    unsafe {
        const PUSHED: usize = 40;
        let text = |b: &[u8]| CreateString()(context, b.as_ptr(), b.len());
        let (name, element) = (text(b"\0pando-guide-self-test"), text(&[b'x'; ELEMENT_BYTES]));
        let key = OpenKey()(context, name, WRITE);
        for _ in 0..PUSHED {
            ListPush()(key, -1, element);
        }
        let o = object(key);
        let is_list = !o.is_null()
            && *o & 15 == LIST
            && *o >> 4 == QUICKLIST
            && word(word(o, 8) as *const u8, 16) == PUSHED;
        let found =
            COUNTS_AT.into_iter().find(|&at| is_list && fits(word(o, 8) as *const u8, at, PUSHED));
        DeleteKey()(key);
        CloseKey()(key);
        FreeString()(context, element);
        FreeString()(context, name);
        found
    }
}

/// Bytes of the elements of the list of the self-test, and the most that its entries may take for
/// them.
const ELEMENT_BYTES: usize = 1000;
const ENTRY_BYTES_MAX: usize = 64 << 10;
/// The last byte of a listpack and of a ziplist.
const PACK_END: u8 = 0xff;

/// Whether a list has this layout. Each entry begins with its length, which its node repeats, and
/// ends with the mark of its kind. The counts add up, and the entries are as long as their elements
/// need. The allocator is not called.
unsafe fn fits(list: *const u8, count_at: usize, pushed: usize) -> bool {
    unsafe {
        let (mut node, mut count, mut nodes) = (word(list, 0) as *const u8, 0, 0);
        while !node.is_null() && nodes < pushed {
            let entry = word(node, 16) as *const u8;
            let (bytes, held) = (pack_bytes(entry), elements(node, count_at));
            if bytes != word(node, 24) as u32 as usize
                || bytes > ENTRY_BYTES_MAX
                || held > pushed
                || bytes < held * ELEMENT_BYTES
            {
                return false;
            }
            if *entry.add(bytes - 1) != PACK_END {
                return false;
            }
            count += held;
            (node, nodes) = (word(node, 8) as *const u8, nodes + 1);
        }
        nodes > 1 && count == pushed
    }
}

/// Whether a string of the guide's own is an SDS that the second word of its object points to.
unsafe fn knows_strings(context: Ptr) -> bool {
    unsafe {
        let text = [b'x'; ELEMENT_BYTES];
        let string = CreateString()(context, text.as_ptr(), text.len());
        let mut len = 0;
        let at = StringPtrLen()(string, &mut len);
        let object = string.cast::<u8>();
        let known = *object & 15 == STRING
            && *object >> 4 == RAW
            && word(object, 8) == at as usize
            && sds_bytes(at) == len;
        FreeString()(context, string);
        known
    }
}

/// # Safety
/// Called by Redis with a module context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(context: Ptr, _argv: *mut Ptr, _argc: c_int) -> c_int {
    unsafe {
        let get_api: unsafe extern "C" fn(*const c_char, *mut usize) -> c_int =
            std::mem::transmute(word(context.cast(), 0));
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
            eprintln!(
                "pando-mem: this Redis keeps its lists in a way that the guide does not know: it \
                 goes on without the guide"
            );
            return 0;
        };
        COUNT_AT.store(count_at, Relaxed);
        STRINGS.store(knows_strings(context), Relaxed);
        CONTEXT.store(GetThreadSafeContext()(std::ptr::null_mut()) as usize, Relaxed);
        RegisterCommandFilter()(context, on_command, 0);
        0
    }
}
