//! Encryption of pages: a memory host and the network see no byte of the program.
//!
//! AES-128 in XTS mode (IEEE 1619) with the slot as the tweak, as disks are encrypted. A page has
//! the same bytes every time it is stored in a slot, so an observer sees whether it has changed.
//! XTS authenticates nothing. The fingerprint of the page does: the pager keeps it, and the host
//! never has it.

use crate::PAGE_BYTES;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit, generic_array::GenericArray};
use aes::{Aes128, Block};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
const BLOCK_BYTES: usize = 16;
/// Blocks that the processor encrypts at once.
const BLOCKS: usize = 8;
/// The polynomial of the field of tweaks.
const POLYNOMIAL: u128 = 0x87;

/// The keys of one program.
pub struct Seal {
    data: Aes128,
    tweak: Aes128,
}

impl Seal {
    /// Returns the seal of a random key.
    pub fn new(key: &[u8; KEY_BYTES]) -> Seal {
        let [data, tweak] = [&key[..16], &key[16..]].map(|k| Aes128::new(k.into()));
        Seal { data, tweak }
    }

    /// Encrypts a page in place, for a slot.
    pub fn close(&self, slot: u32, page: &mut [u8; PAGE_BYTES]) {
        self.each(slot.into(), page, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts a page of a slot in place.
    pub fn open(&self, slot: u32, page: &mut [u8; PAGE_BYTES]) {
        self.each(slot.into(), page, |blocks| self.data.decrypt_blocks(blocks));
    }

    /// Runs the cipher over all blocks, each between two additions of its tweak.
    fn each(&self, unit: u128, bytes: &mut [u8], cipher: impl Fn(&mut [Block])) {
        let mut first = Block::from(unit.to_le_bytes());
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.into());
        let mut blocks = [GenericArray::default(); BLOCKS];
        for piece in bytes.chunks_mut(BLOCKS * BLOCK_BYTES) {
            let mut tweaks = [0; BLOCKS];
            for t in &mut tweaks {
                *t = tweak;
                tweak = (tweak << 1) ^ ((tweak >> 127) * POLYNOMIAL);
            }
            let n = piece.len() / BLOCK_BYTES;
            for ((block, bytes), t) in blocks.iter_mut().zip(piece.chunks(BLOCK_BYTES)).zip(tweaks)
            {
                *block = add(bytes, t);
            }
            cipher(&mut blocks[..n]);
            for ((block, bytes), t) in blocks.iter().zip(piece.chunks_mut(BLOCK_BYTES)).zip(tweaks)
            {
                bytes.copy_from_slice(&add(block, t));
            }
        }
    }
}

/// Adds a tweak to a block.
fn add(bytes: &[u8], tweak: u128) -> Block {
    let block = u128::from_le_bytes(bytes.try_into().expect("a block has 16 bytes"));
    (block ^ tweak).to_le_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first two vectors of IEEE 1619, annex B.
    #[test]
    fn the_vectors_of_the_standard() {
        let (mut key, mut text) = ([0; KEY_BYTES], [0; 32]);
        Seal::new(&key).each(0, &mut text, |_| ());
        assert_eq!(text, [0; 32], "the additions cancel out");
        let seal = Seal::new(&key);
        seal.each(0, &mut text, |blocks| seal.data.encrypt_blocks(blocks));
        let sealed = "917cf69ebd68b2ec9b9fe9a3eadda692cd43d2f59598ed858c02c2652fbf922e";
        assert_eq!(hex(&text), sealed);

        key[..16].fill(0x11);
        key[16..].fill(0x22);
        let (seal, mut text) = (Seal::new(&key), [0x44; 32]);
        seal.each(0x33_3333_3333, &mut text, |blocks| seal.data.encrypt_blocks(blocks));
        let sealed = "c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0";
        assert_eq!(hex(&text), sealed);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    proptest! {
        /// A page comes back from its slot, and from no other one.
        #[test]
        fn a_page_opens_in_its_slot(
            key in any::<[u8; KEY_BYTES]>(), slot in any::<u32>(), byte in any::<u8>(),
        ) {
            let (seal, was) = (Seal::new(&key), core::array::from_fn(|i| byte ^ (i / 7) as u8));
            let mut page = was;
            seal.close(slot, &mut page);
            prop_assert!(page.iter().zip(&was).filter(|(a, b)| a == b).count() < PAGE_BYTES / 50);
            let mut other = page;
            seal.open(slot ^ 1, &mut other);
            prop_assert_ne!(other, was);
            seal.open(slot, &mut page);
            prop_assert_eq!(page, was);
        }
    }
}
