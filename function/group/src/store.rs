//! Keeps states in a Redis, as functions without own state do (StatelessNF). Measurements compare
//! with it.
//!
//! A batch costs one request for the states of all its flows and one message with the changed
//! states. The unit does not wait for the acknowledgement of that message. Flows have no owner: two
//! units with packets of one flow at once overwrite each other's state.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pando_abi::executor::Executor;
use pando_chain::Chain;
use pando_flow::FlowKey;
use pando_net::clock::now;

/// A connection to a Redis.
pub struct Store {
    stream: BufReader<UnixStream>,
    /// Acknowledgements that are still to be read.
    unread: usize,
}

impl Store {
    /// Connects to the Redis behind a Unix socket.
    pub fn connect(path: &Path) -> io::Result<Store> {
        Ok(Store {
            stream: BufReader::with_capacity(64 << 10, UnixStream::connect(path)?),
            unread: 0,
        })
    }

    /// Sets the flows to their states in the store. A flow that the store lacks stays as it is.
    pub fn fetch<E: Executor>(&mut self, keys: &[FlowKey], chain: &mut Chain<E>) -> io::Result<()> {
        let mut words = vec![b"MGET".as_slice()];
        words.extend(keys.iter().map(|key| key.as_bytes().as_slice()));
        self.say(&words)?;
        while self.unread > 0 {
            self.length(b'+')?;
            self.unread -= 1;
        }
        let (states, now_ns) = (self.length(b'*')?, now().as_nanos() as u64);
        if states != keys.len() as i64 {
            return Err(io::Error::other(format!("{states} states came for {} flows", keys.len())));
        }
        for key in keys {
            if let Ok(length) = usize::try_from(self.length(b'$')?) {
                let mut state = vec![0; length + 2];
                self.stream.read_exact(&mut state)?;
                chain.import(key, &state[..length], now_ns);
            }
        }
        Ok(())
    }

    /// Sends the states of flows.
    pub fn put<E: Executor>(&mut self, keys: &[FlowKey], chain: &Chain<E>) -> io::Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let states: Vec<Vec<u8>> = keys.iter().map(|key| chain.export(key)).collect();
        let mut words = vec![b"MSET".as_slice()];
        words.extend(
            keys.iter().zip(&states).flat_map(|(key, state)| [key.as_bytes().as_slice(), state]),
        );
        self.say(&words)?;
        self.unread += 1;
        Ok(())
    }

    fn say(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend(*word);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Reads the next line, which must be of this kind. Returns its number: a length, -1 for a
    /// missing value, or 0 for a status.
    fn length(&mut self, kind: u8) -> io::Result<i64> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.as_bytes().first() {
            Some(&first) if first == kind => Ok(line[1..].trim_end().parse().unwrap_or(0)),
            _ => Err(io::Error::other(format!("the store of states answers {line:?}"))),
        }
    }
}
