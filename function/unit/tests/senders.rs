//! Ordinary programs on both sides of a unit: Linux TCP with all of its device offloads. Needs root
//! and Go; without root the tests report that and skip.

mod bed;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bed::group::{Bench, bench, run};
use pando_flow::checksum;

const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const NAT: &str = "address=203.0.113.7";
const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace next to this thread's, with one of its devices. It ends with this process.
struct Host(Child);

impl Host {
    fn new(device: &str, address: &str) -> Host {
        let mut holder = Command::new("unshare");
        let holder = holder
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut host = Host(holder.spawn().unwrap());
        host.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        run(Command::new("ip").args(["link", "set", device, "netns", &host.0.id().to_string()]));
        host.ip(&format!("address add {address} dev {device}"));
        host.ip(&format!("link set {device} up"));
        host
    }

    fn ip(&self, arguments: &str) -> String {
        let output = run(Command::new("nsenter")
            .arg(format!("--net={}", self.net().display()))
            .arg("ip")
            .args(arguments.split(' ')));
        String::from_utf8(output.stdout).unwrap()
    }

    fn net(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }

    fn mac(&self, device: &str) -> String {
        let link = self.ip(&format!("link show {device}"));
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
    }

    /// Runs a closure on a thread of this host. A socket opened there stays there.
    fn there<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let net = std::fs::File::open(self.net()).unwrap();
        let entered = move || {
            // SAFETY: the descriptor is open, and the thread is this call's own.
            assert_eq!(unsafe { libc::setns(net.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
            what()
        };
        std::thread::scope(|scope| scope.spawn(entered).join().unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Returns a client and a server with a wire for a unit between them, and a bench for the unit.
fn ends(name: &str) -> Option<(Bench, Host, Host)> {
    let bench = bench(name, &[])?;
    let client = Host::new("inner", "10.0.0.2/24");
    let server = Host::new("outer", "203.0.113.9/24");
    client.ip("route add default via 10.0.0.1");
    client.ip(&format!("neighbor add 10.0.0.1 lladdr {} dev inner", server.mac("outer")));
    server.ip(&format!("neighbor add 203.0.113.7 lladdr {} dev outer", client.mac("inner")));
    Some((bench, client, server))
}

fn start(bench: &Bench, more: &[&str]) -> Output {
    let nat = Path::new(env!("CARGO_MANIFEST_DIR")).join("../functions/nat/nat.wasm");
    let wire = [
        "--iface",
        "inner1",
        "--out",
        "outer1",
        "--name",
        "g",
        "--detach",
        "--ring-frames",
        "4096",
        "--set",
        NAT,
    ];
    let output = bench.pando(&[&["run", nat.to_str().unwrap()], &wire[..], more].concat());
    assert!(output.status.success(), "{output:?}");
    output
}

/// Accepts connections for the whole test. Each reads lines and writes as many bytes as a line
/// requests; for "-N" it reads N bytes.
fn serve(server: &Host) {
    let listener = server.there(|| TcpListener::bind((SERVER, 80)).unwrap());
    std::thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| drop(std::thread::spawn(move || answer(stream))))
    });
}

fn answer(mut stream: TcpStream) {
    let mut line = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        if byte[0] != b'\n' {
            line.push(byte[0]);
            continue;
        }
        let asked: i64 = String::from_utf8(std::mem::take(&mut line)).unwrap().parse().unwrap();
        let bytes = match asked {
            0.. => content(asked as usize),
            _ => {
                let mut came = vec![0; -asked as usize];
                if stream.read_exact(&mut came).is_err() {
                    return;
                }
                vec![u8::from(came == content(came.len())); 1]
            }
        };
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n ^ n >> 8 ^ n >> 16) as u8).collect()
}

fn connect(client: &Host) -> std::io::Result<TcpStream> {
    let stream = client.there(|| TcpStream::connect_timeout(&(SERVER, 80).into(), PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Requests bytes and compares them.
fn fetch(stream: &mut TcpStream, length: usize) -> std::io::Result<bool> {
    stream.write_all(format!("{length}\n").as_bytes())?;
    let mut came = vec![0; length];
    stream.read_exact(&mut came)?;
    Ok(came == content(length))
}

/// Sends bytes; the other side compares them.
fn send(stream: &mut TcpStream, length: usize) -> std::io::Result<bool> {
    stream.write_all(format!("-{length}\n").as_bytes())?;
    stream.write_all(&content(length))?;
    let mut equal = [0];
    stream.read_exact(&mut equal)?;
    Ok(equal == [1])
}

fn fate(status: &serde_json::Value, word: &str) -> u64 {
    let fates = status["fates"].as_array().unwrap();
    fates.iter().find(|fate| fate[0] == word).unwrap()[1].as_f64().unwrap() as u64
}

/// Partial checksums and packets of 64 KiB, as every veth delivers them.
#[test]
fn programs_talk_through_a_unit_with_offloads_as_they_are() {
    for units in [&[][..], &["--units", "1..4"]] {
        let Some((bench, client, server)) = ends("talk") else { return };
        start(&bench, units);
        serve(&server);
        for _ in 0..20 {
            assert!(fetch(&mut connect(&client).unwrap(), 100).unwrap());
        }
        const BYTES: usize = 20_000_000;
        let mut stream = connect(&client).unwrap();
        assert!(fetch(&mut stream, BYTES).unwrap() && send(&mut stream, BYTES).unwrap());
        let status = bench.status("g");
        assert_eq!((fate(&status, "too_long"), fate(&status, "no_room")), (0, 0), "{status}");
        // Fewer packets than segments: large ones passed through the function whole.
        assert!(fate(&status, "passed") < 2 * BYTES as u64 / 1448, "{status}");
        // UDP datagrams keep their length.
        let (from, to) = (
            client.there(|| UdpSocket::bind("10.0.0.2:0").unwrap()),
            server.there(|| UdpSocket::bind((SERVER, 53)).unwrap()),
        );
        for socket in [&from, &to] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let mut came = [0; 2000];
        for length in [1, 512, 1400] {
            from.send_to(&content(length), (SERVER, 53)).unwrap();
            let (count, peer) = to.recv_from(&mut came).unwrap();
            assert_eq!(
                (&came[..count], peer.ip()),
                (&content(length)[..], Ipv4Addr::new(203, 0, 113, 7).into())
            );
            to.send_to(&came[..count], peer).unwrap();
            assert_eq!(from.recv(&mut came).unwrap(), length);
        }
    }
}

/// One unit serves, one stands by. The standby takes over the connections of a dead unit.
#[test]
fn connections_outlive_the_only_active_unit_of_a_group() {
    let Some((bench, client, server)) = ends("outlive") else { return };
    start(&bench, &["--units", "1..4"]);
    serve(&server);
    let deadline = Instant::now() + PATIENCE;
    while bench.status("g")["group"]["units"].as_u64() < Some(2) {
        assert!(Instant::now() < deadline, "no spare: {}", bench.status("g"));
    }
    let mut streams: Vec<TcpStream> = (0..5).map(|_| connect(&client).unwrap()).collect();
    for _ in 0..3 {
        assert!(streams.iter_mut().all(|stream| fetch(stream, 10).unwrap()));
    }
    let deadline = Instant::now() + PATIENCE;
    while bench.status("g")["handover"]["pushes"].as_u64() < Some(5) {
        assert!(Instant::now() < deadline, "nothing is pushed: {}", bench.status("g"));
    }
    let units: serde_json::Value =
        serde_json::from_slice(&bench.pando(&["ls", "-o", "json"]).stdout).unwrap();
    let active = units
        .as_array()
        .unwrap()
        .iter()
        .filter(|u| u["name"] != "g")
        .max_by_key(|u| u["latency_ns"][0].as_u64())
        .unwrap();
    // SAFETY: a unit of this test's own group, which answered just now.
    assert_eq!(unsafe { libc::kill(active["pid"].as_i64().unwrap() as i32, libc::SIGKILL) }, 0);
    let lived = streams
        .iter_mut()
        .filter_map(|stream| fetch(stream, 10).ok())
        .filter(|equal| *equal)
        .count();
    assert_eq!(lived, 5, "{}", bench.status("g"));
    assert!(fetch(&mut connect(&client).unwrap(), 10).unwrap(), "a new one");
}

/// A single active unit of a group has the ports of the whole group, like a unit on its own.
#[test]
fn a_group_gives_out_all_its_ports() {
    let Some((bench, client, server)) = ends("ports") else { return };
    start(&bench, &["--units", "1..4", "--ports", "40000-40999"]);
    let from: Vec<UdpSocket> =
        client.there(|| (0..1000).map(|_| UdpSocket::bind("10.0.0.2:0").unwrap()).collect());
    let to = server.there(|| UdpSocket::bind((SERVER, 53)).unwrap());
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut ports = std::collections::BTreeSet::new();
    for socket in &from {
        socket.send_to(b"x", (SERVER, 53)).unwrap();
        let (_, peer) = to
            .recv_from(&mut [0; 8])
            .unwrap_or_else(|e| panic!("{e} after {} flows: {}", ports.len(), bench.status("g")));
        assert!((40_000..=40_999).contains(&peer.port()) && ports.insert(peer.port()), "{peer}");
    }
}

/// The last port of a NAT is free again soon after its connection closed or was reset.
#[test]
fn a_closed_connection_gives_its_port_back() {
    for units in [&[][..], &["--units", "1..4"]] {
        let Some((bench, client, server)) = ends("closed") else { return };
        start(&bench, &[units, &["--ports", "40000-40000"]].concat());
        serve(&server);
        for _ in 0..2 {
            let began = Instant::now();
            let mut stream = loop {
                // SYN is sent again until a port is free.
                match connect(&client) {
                    Ok(stream) => break stream,
                    Err(e) => assert!(began.elapsed() < 3 * PATIENCE, "{e}: {}", bench.status("g")),
                }
            };
            assert!(fetch(&mut stream, 10).unwrap());
        }
    }
}

/// The kernel forwards the packets of AF_PACKET as well, if it is a router.
#[test]
fn a_kernel_that_forwards_past_the_functions_is_named() {
    let Some((bench, _client, _server)) = ends("past") else { return };
    let forwarding = "/proc/sys/net/ipv4/conf/inner1/forwarding";
    std::fs::write("/proc/sys/net/ipv4/conf/all/forwarding", "0").unwrap();
    std::fs::write(forwarding, "1").unwrap();
    let said = String::from_utf8(start(&bench, &[]).stderr).unwrap();
    let next = "`sysctl -w net/ipv4/conf/inner1/forwarding=0` stops that";
    assert!(said.contains(next) && !said.contains("outer1"), "{said}");
    bench.pando(&["rm", "g"]);
    std::fs::write(forwarding, "0").unwrap();
    let said = String::from_utf8(start(&bench, &[]).stderr).unwrap();
    assert!(!said.contains("sysctl"), "{said}");
}

/// Returns how many sockets have made the ends of the wire promiscuous.
fn promiscuous() -> [u64; 2] {
    ["inner1", "outer1"].map(|device| {
        let shown = run(Command::new("ip").args(["-j", "-d", "link", "show", device]));
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown[0]["promiscuity"].as_u64().unwrap()
    })
}

/// A physical device passes packets for its own address only, unless it is promiscuous.
#[test]
fn both_ends_of_a_wire_pass_packets_for_all_addresses() {
    let Some((bench, _client, _server)) = ends("promiscuous") else { return };
    let ways =
        [&[][..], &["--restart"], &["--port", "xdp"], &["--durability", "log"], &["--units", "1"]];
    for more in ways {
        assert_eq!(promiscuous(), [0, 0], "before {more:?}");
        start(&bench, more);
        assert_eq!(promiscuous(), [1, 1], "{more:?}");
        bench.pando(&["rm", "g"]);
        let deadline = Instant::now() + PATIENCE;
        while promiscuous() != [0, 0] {
            assert!(Instant::now() < deadline, "{:?} after {more:?}", promiscuous());
        }
    }
}

/// Sends a ping and waits for its answer, past other messages.
fn ping(client: &Host) {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let raw = client.there(|| unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) });
    assert!(raw >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is this function's own; only the calls of all sockets are used.
    let socket = unsafe { UdpSocket::from_raw_fd(raw) };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut echo = [8, 0, 0, 0, 0x12, 0x34, 0, 1, b'p', b'i', b'n', b'g'];
    let sum = checksum::fold(checksum::sum_of(&echo));
    echo[2..4].copy_from_slice(&(!sum).to_be_bytes());
    socket.send_to(&echo, (SERVER, 0)).unwrap();
    let mut came = [0; 200];
    loop {
        let (length, from) = socket.recv_from(&mut came).expect("no answer");
        if from.ip() == SERVER && came[20] == 0 {
            assert_eq!(came[24..length], echo[4..]);
            return;
        }
    }
}

/// Waits for the error that an ICMP message leaves at a socket.
fn error_of(socket: &UdpSocket) -> i32 {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.recv(&mut [0; 8]).expect_err("only an error comes").raw_os_error().unwrap()
}

/// A NAT translates pings, and errors about its flows in both directions.
#[test]
fn pings_and_errors_find_the_hosts_behind_a_nat() {
    for units in [&[][..], &["--units", "1..4"]] {
        let Some((bench, client, server)) = ends("errors") else { return };
        start(&bench, units);
        ping(&client);
        // A closed port of the server: its error reaches the client that asked.
        let from = client.there(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        from.connect((SERVER, 9)).unwrap();
        from.send(b"x").unwrap();
        assert_eq!(error_of(&from), libc::ECONNREFUSED, "{}", bench.status("g"));
        // A closed port of the client: its error reaches the server that answered.
        let to = server.there(|| UdpSocket::bind((SERVER, 53)).unwrap());
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        let from = client.there(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        from.send_to(b"x", (SERVER, 53)).unwrap();
        let (_, peer) = to.recv_from(&mut [0; 8]).unwrap();
        drop(from);
        to.connect(peer).unwrap();
        to.send(b"x").unwrap();
        assert_eq!(error_of(&to), libc::ECONNREFUSED, "{}", bench.status("g"));
        // The server routes to a network with short frames, and reports the limit.
        server.ip("link add short mtu 1000 type veth peer name far mtu 1000");
        server.ip("link set short up");
        server.ip("link set far up");
        server.ip("route add 198.51.100.0/24 dev short");
        server.there(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        let from = client.there(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        from.connect("198.51.100.9:53").unwrap();
        let discover = libc::IP_PMTUDISC_DO;
        // SAFETY: the option is an int that lives during the call.
        let set = unsafe {
            libc::setsockopt(
                from.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                (&raw const discover).cast(),
                size_of_val(&discover) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        from.send(&[0; 1400]).unwrap();
        assert_eq!(error_of(&from), libc::EMSGSIZE, "{}", bench.status("g"));
    }
}
