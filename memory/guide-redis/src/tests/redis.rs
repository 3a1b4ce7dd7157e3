//! A Redis and a pager for tests of the guide: the functions that the guide calls, over objects in
//! the layout of a chosen release. Each thread has its own.

use crate::api::{Ptr, Range, load_pager, load_redis};
use crate::{COUNT_AT, LIST, PACK_END, QUICKLIST, RAW, STRING, STRINGS, on_command};
use libc::{c_char, c_int, c_longlong};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// The state of one thread's Redis.
#[derive(Default)]
pub struct Redis {
    /// The object of each key.
    pub keys: HashMap<Vec<u8>, usize>,
    /// Open keys, and strings that were made and not freed.
    pub open: isize,
    pub strings: isize,
    /// The calls of the pager: ranges of each prefetch, and requests.
    pub rounds: Vec<Vec<(usize, usize)>>,
    pub requests: usize,
    /// Lengths that the pager has recorded, by address.
    pub extents: HashMap<usize, usize>,
    /// The offset of counts in nodes, and the elements of a node, for lists that the guide makes.
    pub count_at: usize,
    pub fill: u16,
}

thread_local! {
    pub static REDIS: RefCell<Redis> = RefCell::default();
}

/// Returns zeroed memory of this many bytes, which is never freed.
pub fn memory(bytes: usize) -> *mut u8 {
    Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()).as_mut_ptr().cast()
}

/// Makes an object of a type and an encoding with this address.
pub fn object_of(kind: u8, encoding: u8, at: usize) -> usize {
    let object = memory(16);
    unsafe {
        object.write(kind | encoding << 4);
        object.add(8).cast::<usize>().write(at);
    }
    object as usize
}

/// Makes a string with a head of 3, 5 or 9 bytes; returns the address of its text.
pub fn sds(text: &[u8]) -> usize {
    let (kind, head, width) = match text.len() {
        0..256 => (1u8, 3, 1),
        256..65536 => (2, 5, 2),
        _ => (3, 9, 4),
    };
    unsafe {
        let at = memory(32 + text.len()).add(17);
        at.copy_from_nonoverlapping(text.as_ptr(), text.len());
        at.sub(1).write(kind);
        at.sub(head).copy_from_nonoverlapping(text.len().to_le_bytes().as_ptr(), width);
        at as usize
    }
}

/// Makes a listpack of this many bytes.
pub fn pack(bytes: usize) -> usize {
    let at = memory(bytes.max(8));
    unsafe {
        at.cast::<u32>().write(bytes as u32);
        at.add(bytes - 1).write(PACK_END);
    }
    at as usize
}

/// Makes a quicklist of nodes with these counts; each element takes `each` bytes. Returns it with
/// the entry of each node.
pub fn quicklist(count_at: usize, held: &[u16], each: usize) -> (usize, Vec<(usize, usize)>) {
    let nodes: Vec<*mut u8> = held.iter().map(|_| memory(64)).collect();
    let mut entries = vec![];
    let at = |i: Option<usize>| i.and_then(|i| nodes.get(i)).map_or(0, |n| *n as usize);
    for (i, (&node, &n)) in nodes.iter().zip(held).enumerate() {
        let bytes = n as usize * each + 7;
        let entry = pack(bytes);
        unsafe {
            node.cast::<usize>().write(at(i.checked_sub(1)));
            node.add(8).cast::<usize>().write(at(Some(i + 1)));
            node.add(16).cast::<usize>().write(entry);
            node.add(24).cast::<u32>().write(bytes as u32);
            node.add(count_at).cast::<u16>().write(n);
        }
        entries.push((entry, bytes));
    }
    let list = memory(48).cast::<usize>();
    unsafe {
        list.write(at(Some(0)));
        list.add(1).write(at(held.len().checked_sub(1)));
        list.add(2).write(held.iter().map(|&n| n as usize).sum());
    }
    (list as usize, entries)
}

unsafe extern "C" fn no_attributes(_: Ptr, _: *const c_char, _: c_int, _: c_int) {}

unsafe extern "C" fn no_filter(_: Ptr, _: unsafe extern "C" fn(Ptr), _: c_int) -> Ptr {
    std::ptr::null_mut()
}

unsafe extern "C" fn context(_: Ptr) -> Ptr {
    std::ptr::null_mut()
}

/// A filter is a vector of string objects here.
unsafe extern "C" fn args_count(filter: Ptr) -> c_int {
    unsafe { (*filter.cast::<Vec<usize>>()).len() as c_int }
}

unsafe extern "C" fn arg_get(filter: Ptr, i: c_int) -> Ptr {
    unsafe { (&(*filter.cast::<Vec<usize>>()))[i as usize] as Ptr }
}

unsafe extern "C" fn string_ptr_len(string: Ptr, len: *mut usize) -> *const u8 {
    unsafe {
        let at = string.cast::<usize>().add(1).read() as *const u8;
        len.write(crate::sds_bytes(at));
        at
    }
}

unsafe fn text(string: Ptr) -> Vec<u8> {
    unsafe {
        let mut len = 0;
        let at = string_ptr_len(string, &mut len);
        std::slice::from_raw_parts(at, len).to_vec()
    }
}

unsafe extern "C" fn to_number(string: Ptr, out: *mut c_longlong) -> c_int {
    match String::from_utf8(unsafe { text(string) }).ok().and_then(|t| t.parse().ok()) {
        Some(n) => {
            unsafe { out.write(n) };
            0
        }
        None => 1,
    }
}

unsafe extern "C" fn create_string(_: Ptr, at: *const u8, len: usize) -> Ptr {
    REDIS.with_borrow_mut(|r| r.strings += 1);
    object_of(STRING, RAW, sds(unsafe { std::slice::from_raw_parts(at, len) })) as Ptr
}

unsafe extern "C" fn free_string(_: Ptr, _: Ptr) {
    REDIS.with_borrow_mut(|r| r.strings -= 1);
}

/// A handle: its fourth word is the object, its first the name.
unsafe extern "C" fn open_key(_: Ptr, name: Ptr, mode: c_int) -> Ptr {
    let name = unsafe { text(name) };
    let (object, is_read) = REDIS.with_borrow(|r| (r.keys.get(&name).copied(), mode & 2 == 0));
    if is_read && object.is_none() {
        return std::ptr::null_mut();
    }
    REDIS.with_borrow_mut(|r| r.open += 1);
    let handle = memory(32).cast::<usize>();
    unsafe {
        handle.write(Box::into_raw(Box::new(name)) as usize);
        handle.add(3).write(object.unwrap_or(0));
    }
    handle.cast()
}

unsafe extern "C" fn close_key(_: Ptr) {
    REDIS.with_borrow_mut(|r| r.open -= 1);
}

unsafe fn name_of(key: Ptr) -> Vec<u8> {
    unsafe { (*(key.cast::<usize>().read() as *const Vec<u8>)).clone() }
}

unsafe extern "C" fn delete_key(key: Ptr) -> c_int {
    let name = unsafe { name_of(key) };
    REDIS.with_borrow_mut(|r| r.keys.remove(&name));
    0
}

/// Appends an element: makes the list of the key anew, with one element more.
unsafe extern "C" fn list_push(key: Ptr, _: c_int, element: Ptr) -> c_int {
    let (handle, name) = (key.cast::<usize>(), unsafe { name_of(key) });
    let (each, old) = unsafe { (text(element).len() + 3, handle.add(3).read()) };
    let pushed = match old {
        0 => 0,
        o => unsafe { crate::word(crate::word(o as *const u8, 8) as *const u8, 16) },
    };
    let (fill, count_at) = REDIS.with_borrow(|r| (r.fill as usize, r.count_at));
    let all = pushed + 1;
    let mut held = vec![fill as u16; all / fill];
    held.extend((!all.is_multiple_of(fill)).then_some((all % fill) as u16));
    let list = object_of(LIST, QUICKLIST, quicklist(count_at, &held, each).0);
    unsafe { handle.add(3).write(list) };
    REDIS.with_borrow_mut(|r| r.keys.insert(name, list));
    0
}

extern "C" fn abi() -> u32 {
    1
}

unsafe extern "C" fn prefetch(ranges: *const Range, n: usize) -> usize {
    let ranges = unsafe { std::slice::from_raw_parts(ranges, n) };
    let round = ranges.iter().map(|r| (r.start as usize, r.bytes)).collect();
    REDIS.with_borrow_mut(|r| r.rounds.push(round));
    n
}

extern "C" fn request() {
    REDIS.with_borrow_mut(|r| r.requests += 1);
}

unsafe extern "C" fn extent(at: *const u8) -> usize {
    REDIS.with_borrow(|r| r.extents.get(&(at as usize)).copied().unwrap_or(0))
}

/// Returns the function of a name, or 0.
pub fn find(name: &str) -> usize {
    match name.trim_end_matches('\0') {
        "SetModuleAttribs" => no_attributes as *const () as usize,
        "GetThreadSafeContext" => context as *const () as usize,
        "RegisterCommandFilter" => no_filter as *const () as usize,
        "CommandFilterArgsCount" => args_count as *const () as usize,
        "CommandFilterArgGet" => arg_get as *const () as usize,
        "StringPtrLen" => string_ptr_len as *const () as usize,
        "StringToLongLong" => to_number as *const () as usize,
        "CreateString" => create_string as *const () as usize,
        "FreeString" => free_string as *const () as usize,
        "OpenKey" => open_key as *const () as usize,
        "CloseKey" => close_key as *const () as usize,
        "DeleteKey" => delete_key as *const () as usize,
        "ListPush" => list_push as *const () as usize,
        "pando_guide_abi" => abi as *const () as usize,
        "pando_guide_prefetch" => prefetch as *const () as usize,
        "pando_guide_request" => request as *const () as usize,
        "pando_guide_extent" => extent as *const () as usize,
        _ => 0,
    }
}

/// Loads the guide into this thread's Redis, which becomes empty.
pub fn begin() {
    assert!(load_redis(find) && load_pager(find));
    COUNT_AT.store(32, Relaxed);
    STRINGS.store(true, Relaxed);
    REDIS.with_borrow_mut(|r| *r = Redis { count_at: 32, fill: 16, ..Redis::default() });
}

/// Sets a key to an object.
pub fn set(name: &str, object: usize) {
    REDIS.with_borrow_mut(|r| r.keys.insert(name.into(), object));
}

/// Runs a command; returns the ranges of each round that the guide requested.
pub fn command(words: &[&str]) -> Vec<Vec<(usize, usize)>> {
    let strings = words.iter().map(|w| object_of(STRING, RAW, sds(w.as_bytes())));
    let mut filter: Vec<usize> = strings.collect();
    unsafe { on_command((&raw mut filter).cast()) };
    REDIS.with_borrow_mut(|r| {
        assert_eq!(r.open, 0, "a key is left open");
        std::mem::take(&mut r.rounds)
    })
}
