//! Measures processor time per packet in nanoseconds: each function as WebAssembly in batches,
//! against its twin on the host.
//!
//! The same code (`Chain`) copies packets and slots to both and reads the results back. So the
//! difference is the sandbox alone. Rounds are interleaved. Prints CSV: function, bytes, round,
//! series, nanoseconds per packet.

use pando_abi::executor::Executor;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Policy, Stage};
use pando_rules as rules;
use pando_twins::Twin;
use pando_wasm::{Limits, Runtime};

const FLOWS: usize = 1024;
const PACKETS: usize = 65_536;
const ROUNDS: usize = 7;

fn processor_ns() -> u64 {
    // SAFETY: a zeroed timespec is valid, and the call fills it.
    let time = unsafe {
        let mut time: libc_time::Timespec = std::mem::zeroed();
        libc_time::clock_gettime(3, &mut time);
        time
    };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

/// The only libc call that is needed.
mod libc_time {
    #[repr(C)]
    pub struct Timespec {
        pub seconds: i64,
        pub nanoseconds: i64,
    }

    unsafe extern "C" {
        pub fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    }
}

/// Returns TCP packets of `bytes` bytes, or UDP for functions that inspect each datagram. Flows go
/// from 10.0.0.0/8 to 192.0.2.9:80; the text matches no rule.
fn frames(bytes: usize, udp: bool) -> Vec<Vec<u8>> {
    let mut random = 12_345u64;
    let frame = |n: usize| {
        let mut f = vec![0u8; bytes];
        f[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        f[16..18].copy_from_slice(&((bytes - 14) as u16).to_be_bytes());
        (f[22], f[23]) = (64, if udp { 17 } else { 6 });
        f[26..34].copy_from_slice(&[10, 0, (n >> 8) as u8, n as u8, 192, 0, 2, 9]);
        f[34..38].copy_from_slice(&[(n >> 8) as u8 | 4, n as u8, 0, 80]);
        f[46] = 0x50;
        for byte in &mut f[54..] {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = 32 + (random >> 58) as u8;
        }
        f
    };
    (0..FLOWS).map(frame).collect()
}

fn chain_of<E: Executor>(executor: E) -> Chain<E> {
    Chain::new(vec![Stage::new(executor, Leases::new(1024..=65_535))], Policy::default())
}

fn measure<E: Executor>(chain: &mut Chain<E>, arrivals: &[Arrival]) -> f64 {
    let start = processor_ns();
    let (mut done, mut passed) = (0, 0usize);
    while done < PACKETS {
        let at = done % arrivals.len();
        let count = chain.process(&arrivals[at..]);
        passed += chain
            .outputs(&arrivals[at..])
            .flat_map(|(_, out)| out.iter())
            .map(<[u8]>::len)
            .sum::<usize>();
        done += count;
    }
    std::hint::black_box(passed);
    (processor_ns() - start) as f64 / done as f64
}

fn main() {
    let functions = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions");
    let files: Vec<String> = std::env::args().skip(1).collect();
    let mut patterns = Vec::new();
    for file in &files {
        let text = std::fs::read(file).expect("read the rules");
        patterns.extend(
            rules::parse(&String::from_utf8_lossy(&text), file, &Default::default())
                .expect("parse the rules")
                .patterns,
        );
    }
    let ids = rules::compile(&patterns).expect("compile the rules");
    let configured: [(&str, &[u8]); 5] = [
        ("nat", b"address=203.0.113.7\n"),
        ("policer", b"rate=90000000000\nburst=900000000\n"),
        ("ids", &ids),
        ("balancer", b"service=192.0.2.9\nservers=10.9.0.1,10.9.0.2,10.9.0.3\n"),
        ("whitelister", b"inside=10.0.0.0/8\n"),
    ];
    println!("function,bytes,round,what,ns_per_packet");
    for (name, configuration) in configured {
        let path = format!("{functions}/{name}/{name}.wasm");
        for bytes in [64, 368, 1434] {
            let frames = frames(bytes, matches!(name, "whitelister" | "ids"));
            let arrivals: Vec<Arrival> = frames
                .iter()
                .map(|frame| Arrival { frame, time_ns: 1, outer: false, steered: None })
                .collect();
            let mut wasm = chain_of(
                Runtime::new(Limits::default(), 2)
                    .load(path.as_ref(), configuration)
                    .expect("load"),
            );
            let mut native = chain_of(Twin::new(name, configuration));
            measure(&mut wasm, &arrivals);
            measure(&mut native, &arrivals);
            for round in 0..ROUNDS {
                println!("{name},{bytes},{round},wasm,{:.1}", measure(&mut wasm, &arrivals));
                println!("{name},{bytes},{round},native,{:.1}", measure(&mut native, &arrivals));
            }
        }
    }
}
