//! The leases of this process: joined at its start, held while it runs, and ended with it.

use super::silence::Vain;
use super::{Hosts, SPARE, WHOLE};
use crate::lane::Ports;
use crate::port::Port;
use crate::sys;
use crate::transport::{LONG, SHORT};
use core::sync::atomic::Ordering::SeqCst;
use memory_core::wire::Hello;

impl Hosts {
    /// Ends the leases of this process. Without this, hosts keep them for some seconds after its
    /// end.
    pub fn part(&self) {
        for h in (0..self.config.hosts_len).filter(|&h| self.all[h].state() != SPARE) {
            let mut port = Port::default();
            port.patience = SHORT;
            let _ = port.open(
                &self.config.hosts[h],
                &Hello { last: true, ..self.hello(self.all[h].lease.load(SeqCst)) },
            );
            port.close();
        }
    }

    /// Joins the leases that the launcher opened. Maps the memory of hosts on unix sockets, and
    /// connects to the others. The connections stay open: a lease ends soon after its last one.
    pub unsafe fn attach(&self, ports: &mut Ports) {
        unsafe {
            for h in 0..self.config.hosts_len {
                if self.all[h].state() != WHOLE {
                    continue;
                }
                if self.config.hosts[h].family() != libc::AF_UNIX {
                    let mut vain = Vain::default();
                    while let Err(e) = self.port(ports, h, LONG) {
                        if vain.is_over(self, h, e) {
                            sys::die(format_args!(
                                "memory host {} does not take this program back ({e:?})",
                                h + 1
                            ));
                        }
                    }
                    self.all[h].answers(h);
                    continue;
                }
                let lease = self.all[h].lease.load(SeqCst);
                ports[h].patience = self.config.patience_ns;
                match ports[h]
                    .open(&self.config.hosts[h], &Hello { share: true, ..self.hello(lease) })
                {
                    Ok((w, fd)) if fd >= 0 && self.all[h].shared.map(fd, w.slots) => {}
                    e => sys::die(format_args!(
                        "memory host {} does not hand its memory over ({e:?})",
                        h + 1
                    )),
                }
            }
        }
    }

    /// Connects to every whole copy that these ports have no connection to. A lease ends soon after
    /// its last connection, even if a forked child outlives its parent. Readers retry a host that
    /// is gone, and the tender probes a suspect.
    pub fn hold(&self, ports: &mut Ports) {
        for h in 0..self.config.hosts_len {
            if self.all[h].state() == WHOLE
                && !self.all[h].shared.is_mapped()
                && !self.all[h].is_suspect()
            {
                let _ = self.port(ports, h, LONG);
            }
        }
    }
}
