//! Loses, repeats and reorders packets between steering and a unit, and messages between units.
//! Tests ask for it; a seed decides.

use super::service::Packet;

/// The percentage of each disturbance.
#[derive(Clone, Debug)]
pub struct Chaos {
    loss: u64,
    repetition: u64,
    disorder: u64,
    random: u64,
    /// Packets to deliver late.
    late: Vec<Packet>,
}

impl std::str::FromStr for Chaos {
    type Err = String;

    /// Reads LOSS,REPETITION,DISORDER,SEED: three percentages and a number.
    fn from_str(text: &str) -> Result<Chaos, String> {
        let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[loss, repetition, disorder, seed]) => {
                Ok(Chaos { loss, repetition, disorder, random: seed | 1, late: Vec::new() })
            }
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

    /// Returns how many copies of a message arrive.
    pub fn copies(&mut self) -> usize {
        if self.dice(self.loss) { 0 } else { 1 + usize::from(self.dice(self.repetition)) }
    }

    /// Returns the packets that arrive. A late packet follows those of the next call.
    pub fn packets(&mut self, packets: Vec<Packet>) -> Vec<Packet> {
        let mut late = std::mem::take(&mut self.late);
        let mut arrive = Vec::with_capacity(packets.len());
        for packet in packets {
            for _ in 0..self.copies() {
                if self.dice(self.disorder) {
                    self.late.push(packet.clone())
                } else {
                    arrive.push(packet.clone())
                }
            }
        }
        arrive.append(&mut late);
        arrive
    }
}
