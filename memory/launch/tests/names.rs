//! The wrapped calls, in a table that is compared with the pager's library and with the C library.
//! A program binds a call by any of its names. A name without a wrapper fails with EFAULT, and only
//! when its memory is away.

mod far;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// One row of the table: a call.
struct Call {
    names: Vec<String>,
    /// Names that the pager leaves to the C library.
    left: Vec<String>,
}

/// Parses the table. A row that leaves a name has a reason.
fn parse(table: &str) -> Vec<Call> {
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let call = |row: &str| {
        let cells: Vec<&str> = row.splitn(3, ',').collect();
        assert!(cells.len() == 3, "{row:?} has no three columns");
        let call = Call { names: words(cells[0]), left: words(cells[1]) };
        assert!(!call.names.is_empty() && call.left.is_empty() == cells[2].is_empty(), "{row:?}");
        call
    };
    table.lines().skip(1).map(call).collect()
}

/// Returns the functions that a library exports, and the address of each.
fn exports(library: &Path) -> BTreeMap<String, String> {
    let out = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    parse_exports(&String::from_utf8(out.stdout).unwrap())
}

/// Parses the output of nm. Leaves out data, and the names that only parts of the C library use.
fn parse_exports(text: &str) -> BTreeMap<String, String> {
    let function = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, kind, name] = words[..] else { return None };
        let is_public = ["T", "W", "i"].contains(&kind) && !name.contains("@GLIBC_PRIVATE");
        is_public.then(|| (name.split('@').next().unwrap().to_string(), address.to_string()))
    };
    text.lines().filter_map(function).collect()
}

/// Returns the C library of this process.
fn c_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|l| l.split_whitespace().nth(5));
    files.find(|p| p.ends_with("/libc.so.6")).expect("glibc").to_string()
}

/// Returns the call that a name of the C library stands for: `read` for `__read_chk`, `open` for
/// `__open64_2`, `fstat` for `__fxstat`.
fn call_of(name: &str) -> String {
    let prefixes = ["__libc_", "_IO_", "__", "_"];
    let name = prefixes.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name);
    let name = ["_chk", "_2"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
    let name = name.replace("xstat", "stat").replace("64v2", "2");
    name.strip_suffix("64").unwrap_or(&name).to_string()
}

/// Returns the names of calls of the table that the C library has and the table lacks.
fn lacking(table: &[Call], library: &BTreeMap<String, String>) -> Vec<String> {
    let mut lacking = vec![];
    for call in table {
        let known: BTreeSet<&String> = call.names.iter().chain(&call.left).collect();
        let places: BTreeSet<&String> = known.iter().filter_map(|n| library.get(*n)).collect();
        let calls: BTreeSet<String> = known.iter().map(|n| call_of(n)).collect();
        for (name, place) in library {
            let is_same = places.contains(place) || calls.contains(&call_of(name));
            if is_same && !known.contains(name) {
                lacking.push(format!("{name} ({})", call.names[0]));
            }
        }
    }
    lacking
}

#[test]
fn every_name_of_a_wrapped_call_is_in_the_table() {
    let table = parse(include_str!("../../pager/calls.csv"));
    let library = exports(Path::new(&c_library()));
    assert!(table.len() > 100 && library.len() > 2000, "{} {}", table.len(), library.len());
    let lacking = lacking(&table, &library);
    assert!(lacking.is_empty(), "memory/pager/calls.csv lacks names of the C library: {lacking:?}");
}

#[test]
fn the_table_has_the_names_that_the_pager_exports() {
    let table = parse(include_str!("../../pager/calls.csv"));
    let listed: BTreeSet<String> = table.iter().flat_map(|c| c.names.clone()).collect();
    let pager = exports(&far::pando_mem().with_file_name("libpando_pager.so"));
    let calls = pager.into_keys().filter(|n| !n.starts_with("pando_"));
    let wrapped: BTreeSet<String> = calls.collect();
    let differ: Vec<_> = listed.symmetric_difference(&wrapped).collect();
    assert!(differ.is_empty(), "only one of memory/pager/calls.csv and the pager has {differ:?}");
}

#[test]
fn a_name_that_the_table_lacks_is_found() {
    let library = parse_exports(
        "10 T read@@GLIBC_2.2.5\n10 W __read@@GLIBC_2.2.5\n20 T __read_chk@@GLIBC_2.4\n\
         30 T pread64@@GLIBC_2.2.5\n30 W odd@@GLIBC_2.2.5\n40 T __xstat64@@GLIBC_2.2.5\n\
         50 T __libc_read@@GLIBC_PRIVATE\n60 D read_data@@GLIBC_2.2.5\n\
         70 T preadv64v2@@GLIBC_2.26\n80 T write@@GLIBC_2.2.5\n",
    );
    let table = parse("names,left,why\nread,,\npread,,\npread64,,\nstat,,\npreadv2,,\n");
    assert_eq!(
        lacking(&table, &library),
        [
            "__read (read)",
            "__read_chk (read)",
            "pread64 (pread)",
            "odd (pread64)",
            "__xstat64 (stat)",
            "preadv64v2 (preadv2)"
        ]
    );
    let table = parse("names,left,why\nread __read,__read_chk,a reason\n");
    assert_eq!(lacking(&table, &library), [""; 0]);
}
