//! What a group's output log is told: the state of each flow after each batch, before the batch leaves.
//!
//! The log is a unit that gets no packets. To it, what it is told is a push like any other, so when an owner dies, whoever is
//! asked for the flow next finds its state there as with any unit that has a replica.

use crate::FlowKey;
use crate::handover::{Handover, States};
use crate::held::Role;
use crate::message::Message;

impl Handover {
    /// What the log has to know of a flow of which the packets with these clocks have just been processed; nothing of one
    /// that is not owned.
    pub fn keep(&mut self, key: &FlowKey, clocks: &[u64], states: &impl States) -> Option<Message> {
        let flow = self.flows.get_mut(key).filter(|flow| matches!(flow.role, Role::Owner))?;
        clocks.iter().for_each(|&clock| flow.done.insert(clock));
        let (clock, holes) = (flow.done.clock, flow.done.holes());
        Some(Message::Push { key: *key, epoch: flow.epoch, clock, holes, state: states.snapshot(key) })
    }

    /// The same of all flows that are owned, for a log that knows nothing yet.
    pub fn keep_all(&mut self, states: &impl States) -> Vec<Message> {
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.iter().filter_map(|key| self.keep(key, &[], states)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Snapshot;
    use crate::{Admission, Header, NO_UNIT, Timing};

    struct None;

    impl States for None {
        fn snapshot(&self, _: &FlowKey) -> Snapshot {
            Vec::new()
        }

        fn install(&mut self, _: &FlowKey, _: &[u8]) {}

        fn forget(&mut self, _: &FlowKey) {}
    }

    /// A packet that has not come, and one that waits in the queue, are in no state yet.
    #[test]
    fn the_log_is_told_what_its_state_lacks() {
        let mut unit = Handover::new(0, 0b11, Timing::default());
        let key = FlowKey::from_bytes([1; FlowKey::LENGTH_BYTES]);
        let mut told = |arrive: &[u64], processed: &[u64]| {
            for &clock in arrive {
                let (position, epoch) = (clock as u32 - 1, 1);
                let header = Header {
                    flowlet_starts: clock == 1,
                    ethertype: 0x800,
                    unit: 0,
                    previous: NO_UNIT,
                    epoch,
                    position,
                    clock,
                    replicas: 0,
                };
                assert_eq!(unit.arrive(0, &key, &header, &mut None), Admission::Run);
            }
            match unit.keep(&key, processed, &None) {
                Some(Message::Push { clock, holes, .. }) => (clock, holes),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(&[1, 3, 4], &[1, 3]), (3, 1));
        assert_eq!(told(&[2], &[4]), (4, 1));
        assert_eq!(told(&[], &[2]), (4, 0));
    }
}
