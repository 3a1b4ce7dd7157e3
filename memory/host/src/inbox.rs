//! Receives the requests of a borrower from its connection. One call takes a whole request, not one
//! for its header and one for its slots. The thread polls for a while, because the next request
//! mostly arrives soon.

use memory_core::BATCH_PAGES_MAX;
use memory_core::poll::Poll;
use memory_core::wire::{Request, Status};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long a thread polls for the next request. It yields to other threads meanwhile.
const POLL: Duration = Duration::from_micros(200);

pub struct Inbox {
    socket: RawFd,
    poll: Poll,
    bytes: Box<[u8; Request::BYTES + 4 * BATCH_PAGES_MAX]>,
    len: usize,
    /// Bytes of the last request.
    taken: usize,
}

impl Inbox {
    pub fn new(socket: RawFd) -> Inbox {
        Inbox { socket, poll: Poll::default(), bytes: Box::new([0; _]), len: 0, taken: 0 }
    }

    /// Returns the next request and its slots. The inner error is the fault in the request.
    pub fn next(&mut self, slots: &mut [u32]) -> io::Result<Result<Request, Status>> {
        self.bytes.copy_within(self.taken..self.len, 0);
        self.len -= self.taken;
        self.taken = 0;
        self.fill(Request::BYTES)?;
        let request =
            match Request::decode(self.bytes[..Request::BYTES].try_into().expect("so long")) {
                Ok(request) => request,
                Err(status) => return Ok(Err(status)),
            };
        self.taken = Request::BYTES + 4 * request.count as usize;
        self.fill(self.taken)?;
        for (slot, b) in
            slots.iter_mut().zip(self.bytes[Request::BYTES..self.taken].chunks_exact(4))
        {
            *slot = u32::from_le_bytes(b.try_into().expect("four"));
        }
        Ok(Ok(request))
    }

    /// Returns at most `bytes` bytes that arrived together with the last request.
    pub fn more(&mut self, bytes: usize) -> &[u8] {
        let from = self.taken;
        self.taken = self.len.min(from + bytes);
        &self.bytes[from..self.taken]
    }

    /// Receives until there are at least `bytes` bytes.
    fn fill(&mut self, bytes: usize) -> io::Result<()> {
        let mut awake_since = (self.len < bytes && self.poll.now()).then(Instant::now);
        while self.len < bytes {
            let room = &mut self.bytes[self.len..];
            let flags = if awake_since.is_some() { libc::MSG_DONTWAIT } else { 0 };
            let n = unsafe { libc::recv(self.socket, room.as_mut_ptr().cast(), room.len(), flags) };
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if n > 0 {
                self.len += n as usize;
                continue;
            }
            let e = io::Error::last_os_error();
            match (e.kind(), awake_since) {
                (io::ErrorKind::Interrupted, _) => {}
                (io::ErrorKind::WouldBlock, Some(since)) if since.elapsed() < POLL => {
                    std::thread::yield_now()
                }
                (io::ErrorKind::WouldBlock, Some(since)) => {
                    self.poll.lost(since.elapsed().as_nanos() as u64);
                    awake_since = None;
                }
                _ => return Err(e),
            }
        }
        match awake_since.map(|since| since.elapsed()) {
            Some(took) if took > POLL => self.poll.lost(took.as_nanos() as u64),
            Some(_) => self.poll.came(),
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_core::wire::Op;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn requests_arrive_whole_however_they_are_cut() {
        let mut sent = vec![];
        for (serial, count) in [(1u64, 1u32), (2, 512), (3, 7)] {
            sent.extend(Request { op: Op::Write, count, serial }.encode());
            sent.extend((0..count).flat_map(|s| (s * 3).to_le_bytes()));
            sent.extend([serial as u8; 100]);
        }
        for cut in [1, 15, 17, 1000, sent.len()] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let mut inbox = Inbox::new(theirs.as_raw_fd());
            let bytes = sent.clone();
            let sender = std::thread::spawn(move || {
                for piece in bytes.chunks(cut) {
                    ours.write_all(piece).unwrap();
                }
            });
            let mut slots = [0; BATCH_PAGES_MAX];
            for (serial, count) in [(1, 1), (2, 512), (3, 7)] {
                assert_eq!(
                    inbox.next(&mut slots).unwrap(),
                    Ok(Request { op: Op::Write, count, serial })
                );
                assert!((0..count).all(|k| slots[k as usize] == k * 3));
                let mut data = inbox.more(100).to_vec();
                let mut rest = vec![0; 100 - data.len()];
                std::io::Read::read_exact(&mut &theirs, &mut rest).unwrap();
                data.extend(rest);
                assert_eq!(data, [serial as u8; 100], "cut at {cut}");
            }
            sender.join().unwrap();
            assert_eq!(inbox.next(&mut slots).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
