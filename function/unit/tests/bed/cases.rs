//! The five functions, as a unit and as a chain in this process, and their packets.

use std::path::{Path, PathBuf};

use pando_chain::leases::Leases;
use pando_chain::{Chain, Policy, Stage};
use pando_rules as rules;
use pando_wasm::{Function, Limits, Runtime};

use super::frame;

/// A function with the arguments of its unit, and the same for a chain in this process.
pub struct Case {
    pub name: &'static str,
    pub settings: &'static [&'static str],
}

pub const RULES: &str = "alert ip any any -> any any (content:\"abca\"; sid:1;)\nalert udp any any \
    -> any any (content:\"cabb\"; sid:3;)\n";

pub const CASES: [Case; 5] = [
    Case { name: "nat", settings: &["address=203.0.113.7"] },
    Case { name: "policer", settings: &["rate=200000", "burst=3000"] },
    Case { name: "ids", settings: &[] },
    Case {
        name: "balancer",
        settings: &["service=192.0.2.9", "servers=10.1.0.1,10.1.0.2,10.1.0.3"],
    },
    Case { name: "whitelister", settings: &["inside=10.0.0.0/8"] },
];

impl Case {
    pub fn arguments(&self, rules: &Path) -> Vec<String> {
        std::fs::write(rules, RULES).unwrap();
        let settings = self.settings.iter().flat_map(|s| ["--set".to_owned(), s.to_string()]);
        let rules = ["--rules".to_owned(), rules.display().to_string()]
            .into_iter()
            .filter(|_| self.name == "ids");
        settings.chain(rules).collect()
    }

    pub fn function(&self) -> Function {
        let configuration = match self.name {
            "ids" => rules::compile(&{
                let mut patterns =
                    rules::parse(RULES, "test", &Default::default()).unwrap().patterns;
                patterns.sort();
                patterns
            })
            .unwrap(),
            _ => self.settings.iter().flat_map(|s| format!("{s}\n").into_bytes()).collect(),
        };
        Runtime::new(Limits::default(), 8).load(&self.module(), &configuration).unwrap()
    }

    pub fn module(&self) -> PathBuf {
        format!("{}/../functions/{1}/{1}.wasm", env!("CARGO_MANIFEST_DIR"), self.name).into()
    }

    pub fn chain(&self) -> Chain<Function> {
        Chain::new(vec![Stage::new(self.function(), Leases::new(32768..=65535))], Policy::default())
    }
}

/// Flows of a [`Traffic`].
pub const FLOWS: u32 = 48;

/// Packets of some flows, drawn from a seed. No two packets are equal.
pub struct Traffic {
    pub seed: u64,
    /// The first of the flows. A change starts new flows.
    pub first: u32,
    pub made: u32,
}

impl Traffic {
    pub fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    pub fn frame(&mut self) -> Vec<u8> {
        let flow = self.first + self.draw(FLOWS.into()) as u32;
        self.frame_of(flow)
    }

    /// Returns the next packet of a flow, in either direction.
    pub fn frame_of(&mut self, flow: u32) -> Vec<u8> {
        let mut f = frame(flow);
        self.made += 1;
        let words: Vec<u8> = (0..self.draw(60)).map(|_| b"abc"[self.draw(3) as usize]).collect();
        f.extend(&words);
        // The packet's number is in the source of the Ethernet header, which no function reads.
        f[8..12].copy_from_slice(&self.made.to_be_bytes());
        let (total, udp) = ((f.len() - 14) as u16, (f.len() - 34) as u16);
        f[16..18].copy_from_slice(&total.to_be_bytes());
        f[38..40].copy_from_slice(&udp.to_be_bytes());
        if self.draw(3) == 0 { turned(f) } else { f }
    }

    /// Returns the other end's answer to a packet.
    pub fn answer(&mut self, to: &[u8]) -> Vec<u8> {
        self.made += 1;
        let mut f = turned(to.to_vec());
        f[8..12].copy_from_slice(&self.made.to_be_bytes());
        f[22] = 64;
        f
    }
}

/// Returns the frame with its ends exchanged.
fn turned(mut f: Vec<u8>) -> Vec<u8> {
    for (a, b) in [(26, 30), (27, 31), (28, 32), (29, 33), (34, 36), (35, 37)] {
        f.swap(a, b);
    }
    f
}
