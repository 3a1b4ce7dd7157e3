//! Losses, repetitions and disorder between steering and a unit, and between units: what tests ask for, by a seed.

use super::service::Packet;

/// How often what happens, in percent.
#[derive(Clone, Debug)]
pub struct Chaos {
    loss: u64,
    repetition: u64,
    disorder: u64,
    random: u64,
    /// Packets that come later than they should.
    late: Vec<Packet>,
}

impl std::str::FromStr for Chaos {
    type Err = String;

    /// LOSS,REPETITION,DISORDER,SEED: three percentages and a number.
    fn from_str(text: &str) -> Result<Chaos, String> {
        let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[loss, repetition, disorder, seed]) => Ok(Chaos { loss, repetition, disorder, random: seed | 1, late: Vec::new() }),
            _ => Err("LOSS,REPETITION,DISORDER,SEED: three percentages and a number".into()),
        }
    }
}

impl Chaos {
    fn dice(&mut self, percent: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 100 < percent
    }

    /// How many copies of a message arrive.
    pub fn copies(&mut self) -> usize {
        if self.dice(self.loss) { 0 } else { 1 + usize::from(self.dice(self.repetition)) }
    }

    /// What becomes of packets on their way. One that is late comes behind those of the next call.
    pub(super) fn packets(&mut self, packets: Vec<Packet>) -> Vec<Packet> {
        let mut late = std::mem::take(&mut self.late);
        let mut arrive = Vec::with_capacity(packets.len());
        for packet in packets {
            for _ in 0..self.copies() {
                if self.dice(self.disorder) { self.late.push(packet.clone()) } else { arrive.push(packet.clone()) }
            }
        }
        arrive.append(&mut late);
        arrive
    }
}
