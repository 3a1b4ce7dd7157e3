//! A guide that lies: `hints N SEED` asks for wild ranges (far, near, unmapped, overflowing, empty,
//! unaligned lists) while it checks far memory. Prints `hints N fetched N wrong N`; ends with 1 if
//! anything was wrong or there is no pager.

use std::ffi::c_void;

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: *const u8,
    bytes: usize,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

unsafe fn find<F: Copy>(name: &std::ffi::CStr) -> F {
    unsafe {
        let at = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        assert!(!at.is_null(), "no pager in this process");
        std::mem::transmute_copy::<*mut c_void, F>(&at)
    }
}

/// A callback that names arbitrary ranges.
unsafe extern "C" fn on_fault(_: *mut c_void, at: *const u8, out: *mut Range, max: usize) -> usize {
    unsafe {
        for i in 0..max {
            let x = mix(at as u64 ^ i as u64);
            *out.add(i) = Range {
                start: (at as u64 ^ x >> (x % 64)) as *const u8,
                bytes: (x >> (x >> 8 & 63)) as usize,
            };
        }
        // Returns more ranges than fit.
        max + (mix(at as u64) % 3) as usize
    }
}

/// A guide's function, which the pager calls with a page and room for ranges.
type Advise = unsafe extern "C" fn(*mut c_void, *const u8, *mut Range, usize) -> usize;

fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().expect("N SEED")).collect();
    let [n, seed] = a[..] else { panic!("hints N SEED") };
    let (prefetch, resident, register) = unsafe {
        (
            find::<unsafe extern "C" fn(*const Range, usize) -> usize>(c"pando_guide_prefetch"),
            find::<unsafe extern "C" fn(*const u8) -> i32>(c"pando_guide_is_resident"),
            find::<unsafe extern "C" fn(Option<Advise>, *mut c_void) -> u32>(
                c"pando_guide_register",
            ),
        )
    };
    let words = 6 << 20; // 48 MiB
    let mut far: Vec<u64> = (0..words).map(|i| mix(seed ^ i)).collect();
    // The list of ranges is far memory itself.
    let mut list = vec![Range { start: std::ptr::null(), bytes: 0 }; 40_000];
    let (mut wrong, mut fetched) = (0u64, 0);
    for k in 0..n {
        let x = mix(seed.wrapping_add(k).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if k == n / 2 {
            assert_eq!(unsafe { register(Some(on_fault), std::ptr::null_mut()) }, 1);
        }
        let count = (x % 40) as usize;
        let at = (x >> 8) as usize % (list.len() - 40);
        for (i, r) in list[at..at + count].iter_mut().enumerate() {
            let y = mix(x ^ i as u64);
            let inside = far.as_ptr() as usize + (y >> 4) as usize % (words as usize * 8);
            let start =
                [inside, y as usize, 0, usize::MAX - (y & 0xfff) as usize][(y & 3) as usize];
            *r = Range { start: start as *const u8, bytes: (y >> (y >> 5 & 63)) as usize };
        }
        unsafe {
            fetched += prefetch(list[at..].as_ptr(), count);
            if k % 64 == 0 {
                fetched += prefetch(list.as_ptr(), usize::MAX)
                    + prefetch(std::ptr::null(), 9)
                    + prefetch((list.as_ptr() as usize + 3) as *const Range, 2);
                resident(x as *const u8);
            }
        }
        let i = (x >> 20) as usize % words as usize;
        wrong += (far[i] != mix(seed ^ i as u64)) as u64;
        far[i] = mix(seed ^ i as u64);
    }
    wrong += far.iter().enumerate().filter(|(i, w)| **w != mix(seed ^ *i as u64)).count() as u64;
    println!("hints {n} fetched {fetched} wrong {wrong}");
    std::process::exit((wrong > 0) as i32);
}
