//! A state as bytes without its runs of zeroes. Functions keep arrays and large numbers in their
//! states, and most of these bytes are zero.
//!
//! ```text
//! length of the runs in bytes, as a number
//! run: zeroes before it (15: a number follows, add it) << 4 | its bytes, at most 15 │ its bytes
//! ```
//!
//! Zeroes fill the state behind the last run. A number takes seven bits a byte, the low ones first.

use crate::codec::{Malformed, Reader};

/// The highest number in the half of a byte.
const HALF: usize = 15;

/// Writes a state without its zeroes.
pub fn put_state(into: &mut Vec<u8>, state: &[u8]) {
    let begin = into.len();
    into.push(0);
    let (mut at, mut zeroes_from) = (0, 0);
    while let Some(next) = state[at..].iter().position(|&byte| byte != 0) {
        at += next;
        let end = run_end(state, at);
        let zeroes = at - zeroes_from;
        into.push((zeroes.min(HALF) << 4 | (end - at)) as u8);
        if zeroes >= HALF {
            put_number(into, zeroes - HALF);
        }
        into.extend_from_slice(&state[at..end]);
        (at, zeroes_from) = (end, end);
    }
    let length = into.len() - begin - 1;
    into[begin] = length as u8;
    if length > 0x7f {
        into[begin] = length as u8 | 0x80;
        into.insert(begin + 1, (length >> 7) as u8);
    }
}

/// Returns the end of the run that begins at `from`. A zero between two other bytes stays in it:
/// another run would be as long.
fn run_end(state: &[u8], from: usize) -> usize {
    let mut end = from + 1;
    for (at, &byte) in state.iter().enumerate().skip(end).take(HALF - 1) {
        if byte != 0 {
            end = at + 1;
        } else if at > end {
            break;
        }
    }
    end
}

fn put_number(into: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

impl<'a> Reader<'a> {
    /// Reads a number of at most two bytes: a state has few bytes.
    fn number(&mut self) -> Result<usize, Malformed> {
        let low = usize::from(self.u8()?);
        if low < 0x80 {
            return Ok(low);
        }
        let high = usize::from(self.u8()?);
        if high < 0x80 { Ok(low & 0x7f | high << 7) } else { Err(Malformed) }
    }

    fn runs(&mut self) -> Result<Reader<'a>, Malformed> {
        let length = self.number()?;
        self.bytes(length).map(Reader)
    }

    /// Reads a state from [`put_state`] into a stage's state.
    pub fn state(&mut self, into: &mut [u8]) -> Result<(), Malformed> {
        let mut runs = self.runs()?;
        into.fill(0);
        let mut rest = into;
        while !runs.0.is_empty() {
            let head = usize::from(runs.u8()?);
            let mut zeroes = head >> 4;
            if zeroes == HALF {
                zeroes += runs.number()?;
            }
            let bytes = runs.bytes(head & HALF)?;
            let behind = rest.split_at_mut_checked(zeroes).ok_or(Malformed)?.1;
            let (run, behind) = behind.split_at_mut_checked(bytes.len()).ok_or(Malformed)?;
            run.copy_from_slice(bytes);
            rest = behind;
        }
        Ok(())
    }

    /// Skips a state from [`put_state`].
    pub fn skip_state(&mut self) -> Result<(), Malformed> {
        self.runs().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(state: &[u8]) -> usize {
        let mut bytes = Vec::new();
        put_state(&mut bytes, state);
        let mut read = vec![0xee; state.len()];
        assert_eq!(Reader(&bytes).state(&mut read), Ok(()));
        assert_eq!(read, state);
        bytes.len()
    }

    /// A run costs a byte more than it has. Zeroes cost nothing behind it, and at most two bytes in
    /// front of it.
    #[test]
    fn a_state_is_as_long_as_what_is_in_it() {
        assert_eq!(bytes(&[]), 1);
        assert_eq!(bytes(&[0; 4096]), 1);
        assert_eq!(bytes(&[1, 2, 3, 0, 0, 0]), 1 + 4);
        assert_eq!(bytes(&[1, 0, 3, 0, 4]), 1 + 6);
        assert_eq!(bytes(&[1, 0, 0, 3]), 1 + 4);
        assert_eq!(bytes(&[&[0; 14][..], &[1]].concat()), 1 + 2);
        assert_eq!(bytes(&[&[0; 15][..], &[1]].concat()), 1 + 3);
        assert_eq!(bytes(&[&[0; 143][..], &[1]].concat()), 1 + 4);
        assert_eq!(bytes(&[7; 15]), 1 + 16);
        assert_eq!(bytes(&[7; 16]), 1 + 18);
        assert_eq!(bytes(&[7; 4096]), 2 + 4096 + 274);
        let place = |n: u8| [n, n, n, n, n, 0, 0, 0, n, 0, 0, 0];
        let places: Vec<u8> = (1..9).flat_map(place).collect();
        assert_eq!(bytes(&[&places, &[0; 132][..]].concat()), 1 + 8 * 8);
    }
}
