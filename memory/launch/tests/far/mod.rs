//! Memory hosts and programs on far memory for tests. They end with their scope.
#![allow(dead_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Returns the launcher that `make build` made.
pub fn pando_mem() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bin/pando-mem");
    assert!(path.exists(), "{} is missing: run deploy/build-mem first", path.display());
    path
}

/// Returns one of the programs in `tests/programs`, which cargo builds as examples.
pub fn example(name: &str) -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().unwrap().parent().unwrap().join("examples").join(name)
}

/// Has a process killed when its test ends, even by SIGKILL.
pub fn bound(command: &mut Command) -> &mut Command {
    unsafe {
        command.pre_exec(|| {
            (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0)
                .then_some(())
                .ok_or_else(Error::last_os_error)
        })
    }
}

/// A folder that is removed at the end. The next test removes those of killed tests, which have no
/// lock.
pub struct Folder {
    pub path: PathBuf,
    _lock: File,
}

impl Folder {
    pub fn new(name: &str) -> Folder {
        const BEGIN: &str = "pando-mem-test-";
        let base = std::env::temp_dir();
        for left in std::fs::read_dir(&base)
            .unwrap()
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with(BEGIN))
        {
            if File::open(left.path()).is_ok_and(|f| f.try_lock().is_ok()) {
                let _ = std::fs::remove_dir_all(left.path());
            }
        }
        let path = base.join(format!("{BEGIN}{}-{name}", std::process::id()));
        loop {
            std::fs::create_dir_all(&path).unwrap();
            // Another test may have removed it before it was locked.
            if let Ok(lock) = File::open(&path) {
                lock.lock().unwrap();
                if path.exists() {
                    return Folder { path, _lock: lock };
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A process that is killed at the end.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memory host; `address` is where it listens.
pub struct Host {
    pub process: Running,
    pub address: String,
}

pub fn host(args: &[&str]) -> Host {
    let listen = if args.contains(&"--listen") { vec![] } else { vec!["--listen", "127.0.0.1:0"] };
    let mut command = Command::new(pando_mem());
    let mut child =
        bound(command.arg("serve").args(listen).args(args)).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_string();
    assert!(line.starts_with("lending"), "{line}");
    Host { process: Running(child), address }
}

/// Runs `pando mem run` with these arguments, to its end.
pub fn run(args: &[&str]) -> Output {
    // A hang must fail the test.
    let seconds = 300 + times("PANDO_ACCESSES", 0) / 1000;
    Command::new("timeout")
        .args(["-s", "KILL", &seconds.to_string()])
        .arg(pando_mem())
        .arg("run")
        .args(args)
        .output()
        .unwrap()
}

/// Returns the number in the variable, or else one that fits into a test.
pub fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |n| n.parse().expect("a number"))
}

/// Waits for a condition; panics after half a minute.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::yield_now();
    }
}

impl Host {
    /// Kills the host, without a message of its end.
    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }
}

/// Whether a process exists and is not a zombie.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

/// Copies a program and adds the name of the io_uring library to its bytes, by which the launcher
/// detects its use.
pub fn with_io_uring(folder: &Folder) -> PathBuf {
    let program = folder.path.join("touch");
    let mut bytes = std::fs::read(example("touch")).unwrap();
    bytes.extend(b"liburing.so.2\0");
    std::fs::write(&program, bytes).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    program
}

/// Returns one figure of `pando mem top -o json`.
pub fn figure(pid: u32, name: &str) -> u64 {
    let out = Command::new(pando_mem())
        .args(["top", "--once", "-o", "json", "--pid", &pid.to_string()])
        .output()
        .unwrap();
    figure_in(&String::from_utf8(out.stdout).unwrap(), name)
}

/// Returns one figure of such output.
pub fn figure_in(text: &str, name: &str) -> u64 {
    let at = text.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {text:?}"));
    let rest = &text[at + name.len() + 3..];
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

/// A Redis on far memory, or an ordinary one without `run` arguments.
pub struct Redis {
    pub process: Running,
    pub dir: PathBuf,
    socket: PathBuf,
    _folder: Folder,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.0.kill();
        let _ = self.process.0.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
    }
}

/// A memory cgroup, removed at the end.
pub struct Group(PathBuf);

impl Group {
    pub fn new(name: &str, bytes: u64) -> Group {
        let base = Path::new("/sys/fs/cgroup");
        let (base, limit) = match base.join("memory") {
            v1 if v1.is_dir() => (v1, "memory.limit_in_bytes"),
            _ => (base.to_path_buf(), "memory.max"),
        };
        let group = Group(base.join(format!("pando-mem-{}-{name}", std::process::id())));
        std::fs::create_dir(&group.0).unwrap();
        std::fs::write(group.0.join(limit), bytes.to_string())
            .expect("the memory controller, and root");
        group
    }

    /// Returns how many processes were killed because the group was full.
    pub fn kills(&self) -> u64 {
        let text = ["memory.events", "memory.oom_control"]
            .iter()
            .find_map(|f| std::fs::read_to_string(self.0.join(f)).ok())
            .unwrap();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = std::fs::remove_dir(&self.0);
            return;
        }
        // Its last process may take a moment to leave.
        until("the cgroup is empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

pub fn redis(name: &str, run: &[&str], args: &[&str]) -> Redis {
    redis_in(None, name, run, args)
}

pub fn redis_in(group: Option<&Group>, name: &str, run: &[&str], args: &[&str]) -> Redis {
    let folder = Folder::new(name);
    let dir = folder.path.clone();
    let socket = dir.join("redis.sock");
    let mut command =
        if run.is_empty() { Command::new("redis-server") } else { Command::new(pando_mem()) };
    if !run.is_empty() {
        command.arg("run").args(run).args(["--", "redis-server"]);
    }
    command
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--dir",
            dir.to_str().unwrap(),
            "--unixsocket",
            socket.to_str().unwrap(),
        ])
        .args(args);
    if let Some(procs) = group.map(|g| g.0.join("cgroup.procs")) {
        unsafe { command.pre_exec(move || std::fs::write(&procs, "0")) };
    }
    let said = std::fs::File::create(dir.join("said")).unwrap();
    let process = Running(bound(&mut command).stdout(Stdio::null()).stderr(said).spawn().unwrap());
    let mut redis = Redis { process, dir, socket, _folder: folder };
    until("redis answers", || {
        assert!(redis.process.0.try_wait().unwrap().is_none(), "redis ended early");
        std::os::unix::net::UnixStream::connect(&redis.socket).is_ok()
    });
    redis
}

impl Redis {
    /// Returns the standard error of Redis and its children.
    pub fn said(&self) -> String {
        // This also runs during a panic, when a second panic would end all tests without a message.
        std::fs::read(self.dir.join("said"))
            .map_or_else(|e| e.to_string(), |said| String::from_utf8_lossy(&said).into_owned())
    }

    /// Returns the living forked child, if any.
    pub fn child(&self) -> Option<u32> {
        let pid = self.pid();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap()
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn client(&self) -> Client<std::os::unix::net::UnixStream> {
        let s = std::os::unix::net::UnixStream::connect(&self.socket).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut c = Client { stream: BufReader::with_capacity(1 << 18, s) };
        until("redis has loaded", || !matches!(c.call(&[b"PING"]), Reply::Error(_)));
        c
    }
}

/// An answer of Redis.
#[derive(Debug, PartialEq)]
pub enum Reply {
    Nil,
    Number(i64),
    Text(Vec<u8>),
    Many(Vec<Reply>),
    Error(String),
}

pub struct Client<S: Read + Write> {
    stream: BufReader<S>,
}

impl<S: Read + Write> Client<S> {
    pub fn try_call(&mut self, args: &[&[u8]]) -> std::io::Result<Reply> {
        let mut out = format!("*{}\r\n", args.len()).into_bytes();
        for a in args {
            out.extend(format!("${}\r\n", a.len()).bytes());
            out.extend(*a);
            out.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&out)?;
        self.reply()
    }

    pub fn call(&mut self, args: &[&[u8]]) -> Reply {
        self.try_call(args).expect("redis answers")
    }

    fn reply(&mut self) -> std::io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        Ok(match kind {
            "$" if rest == "-1" => Reply::Nil,
            "$" => {
                let mut b = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut b)?;
                b.truncate(b.len() - 2);
                Reply::Text(b)
            }
            "*" => Reply::Many(
                (0..rest.parse().unwrap_or(0)).map(|_| self.reply()).collect::<Result<_, _>>()?,
            ),
            ":" => Reply::Number(rest.parse().unwrap()),
            "-" => Reply::Error(rest.into()),
            _ => Reply::Text(rest.as_bytes().to_vec()),
        })
    }
}

/// Returns `bytes` random-looking bytes for a key and a version, unlike those of its neighbours.
pub fn content(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut x = key << 32 ^ version ^ 0x9e37_79b9_7f4a_7c15;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend((z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Returns a value with one of the paper's sizes, in equal shares: 4 to 128 KB.
pub fn value(key: u64, version: u64) -> Vec<u8> {
    content(key, version, 4096 << (key % 6))
}
