//! Modules that tests compile, and the packets that tests send.
#![allow(dead_code)] // each test uses its part

use std::path::PathBuf;
use std::process::Command;

/// A module in its own directory, which is removed with it.
pub struct Built {
    pub wasm: PathBuf,
    directory: PathBuf,
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("pando-twins-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Compiles C against the SDK.
pub fn build(name: &str, source: &str) -> Built {
    let directory = scratch(name);
    let (c, wasm) = (directory.join("module.c"), directory.join("module.wasm"));
    std::fs::write(&c, source).unwrap();
    let sdk = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/function/c");
    let flags = [
        "--target=wasm32",
        "-O2",
        "-nostdlib",
        "-ffreestanding",
        "-mbulk-memory",
        "-Wl,--no-entry",
        "-Wl,--stack-first",
    ];
    let status = Command::new("clang")
        .args(flags)
        .args(["-Wl,-z,stack-size=16384", "-I", sdk])
        .arg(&c)
        .arg("-o")
        .arg(&wasm)
        .status();
    assert!(status.expect("clang is installed (deploy/deps test)").success());
    Built { wasm, directory }
}

/// Returns a UDP packet of flow `flow` with a valid IP checksum and no UDP checksum.
pub fn udp(flow: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = flow.to_be_bytes();
    let total = 28 + payload.len() as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, a, b, c, 192, 0, 2, 9]);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame.extend((1024 + (flow % 60000) as u16).to_be_bytes());
    frame.extend([0, 53]);
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}
