//! Pages leave a program encrypted: neither the network nor a memory host sees their content.

mod far;

use far::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const SECRET: &[u8] = b"correct horse battery staple";
const KEYS: u64 = 600;
const VALUE_BYTES: usize = 40_000;

fn text(key: u64) -> Vec<u8> {
    let number = format!("{key} ").into_bytes();
    [number, SECRET.repeat(VALUE_BYTES / SECRET.len())].concat()
}

fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|w| w == SECRET)
}

/// Sends all bytes of one connection to another, and records them.
fn pass(mut from: TcpStream, mut to: TcpStream, heard: Arc<Mutex<Vec<u8>>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        heard.lock().unwrap().extend(&bytes[..n]);
        if to.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// A wire to a memory host; returns its address, and the bytes that it carries in both directions.
fn wire(host: &str) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, host) = (listener.local_addr().unwrap().to_string(), host.to_string());
    let heard = Arc::new(Mutex::new(vec![]));
    let record = heard.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&host) else { return };
            let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let [a, b] = [record.clone(), record.clone()];
            std::thread::spawn(move || pass(near, far, a));
            std::thread::spawn(move || pass(far2, near2, b));
        }
    });
    (address, heard)
}

/// Stores texts in a Redis on far memory, and reads all of them back.
fn store_and_read(name: &str, from: &str, encrypt: &[&str]) -> Redis {
    let args = [&["--local", "16MiB", "--far", "64MiB", "--from", from], encrypt].concat();
    let r = redis(name, &args, &[]);
    let mut c = r.client();
    let key = |k: u64| format!("k{k}").into_bytes();
    for k in 0..KEYS {
        assert_eq!(c.call(&[b"SET", &key(k), &text(k)]), Reply::Text(b"OK".into()));
    }
    for k in 0..KEYS {
        assert!(c.call(&[b"GET", &key(k)]) == Reply::Text(text(k)), "key {k} is wrong");
    }
    assert!(figure(r.pid(), "pages_fetched") > 1000);
    r
}

#[test]
fn no_byte_of_a_page_is_readable_on_the_wire() {
    let h = host(&["--size", "256MiB"]);
    for (args, readable) in [(&[][..], false), (&["--encrypt", "never"], true)] {
        let (address, heard) = wire(&h.address);
        drop(store_and_read("wire", &address, args));
        let heard = heard.lock().unwrap();
        assert!(heard.len() > 16 << 20, "{} bytes passed", heard.len());
        assert_eq!(has_secret(&heard), readable, "{args:?}");
    }
}

/// Whether the lent memory of a host has the secret.
fn holds_secret(h: &Host) -> bool {
    let fds = PathBuf::from(format!("/proc/{}/fd", h.process.0.id()));
    let files = std::fs::read_dir(fds).unwrap().flatten().map(|f| f.path());
    let memory = files.filter(|f| {
        std::fs::read_link(f).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"))
    });
    let found: Vec<bool> = memory.map(|f| has_secret(&std::fs::read(f).unwrap())).collect();
    assert!(!found.is_empty(), "the host has lent no memory");
    found.contains(&true)
}

#[test]
fn a_memory_host_has_only_encrypted_pages() {
    let folder = Folder::new("sealed");
    let at = format!("unix:{}", folder.path.join("host").display());
    let h = host(&["--size", "256MiB", "--listen", &at]);
    for (args, readable) in [(&["--encrypt", "always"][..], false), (&[], true)] {
        let r = store_and_read("shared", &at, args);
        assert_eq!(holds_secret(&h), readable, "{args:?}");
        drop(r);
        until("the lease is over", || {
            let mut fresh = std::process::Command::new(pando_mem());
            let args = ["run", "--local", "16MiB", "--far", "200MiB", "--from", &at, "--", "true"];
            fresh.args(args).output().unwrap().status.success()
        });
    }
}

#[test]
fn a_rebuild_of_encrypted_pages_shows_its_progress() {
    let mut hosts: [Host; 2] = std::array::from_fn(|_| host(&["--size", "256MiB"]));
    let from = format!("{},{}", hosts[0].address, hosts[1].address);
    let r = store_and_read("rebuilt", &from, &[]);
    let mut c = r.client();
    // An idle program notices no loss.
    let mut keys = (0..KEYS).cycle().map(|k| format!("k{k}").into_bytes());
    for h in &mut hosts {
        h.kill();
        // The answers are slow, so that the progress can be seen.
        *h = host(&["--size", "256MiB", "--delay-us", "6000", "--listen", &h.address]);
        let filling = || (1..100).contains(&figure(r.pid(), "filling_now"));
        until("a second copy is being filled", || {
            c.call(&[b"GET", &keys.next().unwrap()]);
            filling()
        });
        until("a second copy is whole again", || figure(r.pid(), "copies_now") == 2);
        until("nothing is being filled", || figure(r.pid(), "filling_now") == 0);
    }
    for k in 0..KEYS {
        let key = format!("k{k}").into_bytes();
        assert!(c.call(&[b"GET", &key]) == Reply::Text(text(k)), "key {k} is wrong");
    }
}
