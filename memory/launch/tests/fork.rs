//! Forked children read their snapshot or end with a message. None of them waits for ever.

mod far;

use far::*;

const KEYS: u64 = 1200; // 50 MB

fn key(k: u64) -> Vec<u8> {
    format!("k{k}").into_bytes()
}

/// A Redis with two copies and a child that writes a slow snapshot.
fn saving(name: &str, hosts: &[Host], delay_us: &str) -> Redis {
    let from = format!("{},{}", hosts[0].address, hosts[1].address);
    let r = redis(
        name,
        &["--local", "20MiB", "--far", "128MiB", "--from", &from],
        &["--rdb-key-save-delay", delay_us],
    );
    let mut c = r.client();
    for k in 0..KEYS {
        assert_eq!(c.call(&[b"SET", &key(k), &value(k, 0)]), Reply::Text(b"OK".into()));
    }
    assert!(matches!(c.call(&[b"BGSAVE"]), Reply::Text(_)));
    until("the child saves", || r.child().is_some());
    r
}

fn two() -> [Host; 2] {
    std::array::from_fn(|_| host(&["--size", "256MiB"]))
}

#[test]
fn a_child_ends_with_a_sentence_when_parent_and_hosts_are_gone() {
    let mut hosts = two();
    let mut r = saving("orphan", &hosts, "1000");
    let child = Orphan(r.child().unwrap());
    hosts.iter_mut().for_each(Host::kill);
    r.process.0.kill().unwrap();
    r.process.0.wait().unwrap();
    until("the child ends", || !lives(child.0));
    assert!(r.said().contains("The forked child is stopped"), "{:?}", r.said());
}

#[test]
fn a_child_finishes_on_hosts_that_came_back() {
    let mut hosts = two();
    let r = saving("back", &hosts, "2500");
    let mut c = r.client();
    for h in &mut hosts {
        h.kill();
        *h = host(&["--size", "256MiB", "--listen", &h.address]);
        // These writes must not reach the snapshot.
        for k in (0..KEYS).step_by(3) {
            c.call(&[b"SET", &key(k), &value(k, 1)]);
        }
        until("a second copy is whole again", || figure(r.pid(), "copies_now") == 2);
    }
    assert!(r.child().is_some(), "the child was done too early to have met both losses");
    until("the snapshot is written", || match c.call(&[b"INFO", b"persistence"]) {
        Reply::Text(t) => String::from_utf8_lossy(&t).contains("rdb_bgsave_in_progress:0"),
        other => panic!("{other:?}"),
    });
    let plain = redis("back-plain", &[], &["--dir", r.dir.to_str().unwrap()]);
    let (mut before, mut now) = (plain.client(), c);
    for k in 0..KEYS {
        assert!(
            before.call(&[b"GET", &key(k)]) == Reply::Text(value(k, 0)),
            "key {k} of the snapshot is wrong"
        );
        assert!(
            now.call(&[b"GET", &key(k)]) == Reply::Text(value(k, (k % 3 == 0) as u64)),
            "key {k} is wrong"
        );
    }
}

/// Returns the messages of a program without those about the growth of its children, which hold
/// more than the budget in these tests.
fn unexpected(messages: &str) -> String {
    let grown = |line: &&str| {
        line.starts_with("pando-mem: outside far memory: ")
            && line.contains(" MiB of a forked child, ")
    };
    messages.lines().filter(|line| !grown(line)).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_child_that_outlives_its_parent_reads_and_writes_more_than_its_share() {
    let h = host(&["--size", "256MiB"]);
    let folder = Folder::new("outlive");
    let file = folder.path.join("child");
    // It sleeps for longer than a lease lasts without a connection, and then holds the whole of it
    // twice.
    let code = format!(
        "import os,time,hashlib\nb=[os.urandom(1<<20) for _ in range(48)]\n\
         s=lambda:hashlib.sha256(b''.join(b)).hexdigest()\nwas=s()\nif os.fork(): os._exit(0)\n\
         open('{0}','w').write(str(os.getpid()))\ntime.sleep(12)\n\
         open('{0}.is','w').write('same.' if s()==was else 'other')",
        file.display()
    );
    let said = std::fs::File::create(file.with_extension("said")).unwrap();
    let mut parent = std::process::Command::new(pando_mem());
    parent.args([
        "run",
        "--local",
        "16MiB",
        "--from",
        &h.address,
        "--",
        "/usr/bin/python3",
        "-c",
        &code,
    ]);
    assert!(parent.stderr(said).status().unwrap().success());
    let read = |extension: &str| {
        std::fs::read_to_string(file.with_extension(extension)).unwrap_or_default()
    };
    until("the child lives", || !read("").is_empty());
    let child = Orphan(read("").parse().unwrap());
    until("the child ends", || !lives(child.0));
    assert_eq!((read("is").as_str(), unexpected(&read("said")).as_str()), ("same.", ""));
}

#[test]
fn a_program_without_a_free_descriptor_forks() {
    let h = host(&["--size", "256MiB"]);
    let code = "import os,hashlib
b = [os.urandom(1 << 20) for _ in range(48)]
look = lambda: hashlib.sha256(b''.join(b)).hexdigest()
def fork():
    was, pid = look(), os.fork()
    if pid == 0:
        os._exit(look() != was)
    return pid
def wait(pids):
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
wait([fork()])
held = []
try:
    while True:
        held.append(os.open('/dev/null', os.O_RDONLY))
except OSError:
    pass
for n in 1, 1, 3:
    children = []
    for i in range(n):
        children.append(fork())
        b[7 * i] = os.urandom(1 << 20)
    wait(children)
for fd in held:
    os.close(fd)
wait([fork(), fork()])
print('forked')";
    let mut limited = std::process::Command::new("prlimit");
    limited.arg("--nofile=256:256").arg(pando_mem()).args([
        "run",
        "--local",
        "16MiB",
        "--from",
        &h.address,
        "--",
        "/usr/bin/python3",
        "-c",
        code,
    ]);
    let out = limited.output().unwrap();
    let why = unexpected(&String::from_utf8_lossy(&out.stderr));
    assert_eq!((String::from_utf8_lossy(&out.stdout).trim(), why.as_str()), ("forked", ""));
}

/// A process without a living parent.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        unsafe { libc::kill(self.0 as i32, libc::SIGKILL) };
    }
}
