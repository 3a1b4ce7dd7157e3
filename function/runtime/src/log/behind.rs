//! What a standby that follows a unit does not have yet: names of flows, of which the latest state is sent when it is due.
//!
//! A flow that changes with every packet is sent once for all of them, so a standby costs as much as there are flows to
//! tell of, not packets; and one that does not read holds nobody up: too many names are forgotten, and it begins anew.

use pando_protocol::FlowKey;

/// Names beyond twice as many as there are flows, after which all flows are sent instead.
const NAMES: usize = 4096;

/// Names of flows.
#[derive(Default)]
pub struct Behind {
    /// It has nothing that counts: all flows are to be sent.
    pub anew: bool,
    /// Flows that it has to forget, before it hears of any other: what they had may be another flow's now.
    pub gone: Vec<FlowKey>,
    /// Flows that changed, each once while it is there.
    pub changed: Vec<FlowKey>,
}

impl Behind {
    /// Of a standby that has nothing.
    pub fn all() -> Behind {
        Behind { anew: true, ..Behind::default() }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        !self.anew && self.gone.is_empty() && self.changed.is_empty()
    }

    /// A flow is gone.
    pub fn forget(&mut self, key: FlowKey, flows: usize) {
        if !self.anew {
            self.gone.push(key);
            self.bound(flows);
        }
    }

    /// A flow changed, and is not among those that did.
    pub fn note(&mut self, key: FlowKey, flows: usize) {
        if !self.anew {
            self.changed.push(key);
            self.bound(flows);
        }
    }

    fn bound(&mut self, flows: usize) {
        if self.gone.len() + self.changed.len() > 2 * flows + NAMES {
            *self = Behind::all();
        }
    }
}
