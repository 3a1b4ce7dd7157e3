//! The meter of a unit records billed work (SNF §2.4: per packet, never per hour).
//!
//! Each unit has one file per epoch, which is a start of the unit. The unit maps the file. After
//! every batch, before any packet of the batch leaves, it writes its running totals. The page cache
//! holds the file, so it survives `kill -9` of the unit.
//!
//! A record is (unit, epoch, sequence, totals). Only the highest sequence of each (unit, epoch)
//! counts, so reading a record late or twice changes nothing. A power failure loses only totals
//! that the kernel had not yet written to disk.

pub mod latency;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pando_chain::Work;
use pando_chain::flows::STAGES_MAX;
use serde::{Deserialize, Serialize};

const MAGIC: u64 = u64::from_le_bytes(*b"pandomt1");
const FIELDS: usize = 4;
/// Sequence, totals of every stage, checksum.
const SLOT_WORDS: usize = 2 + STAGES_MAX * FIELDS;
const SLOTS: usize = 8;
const NAME_WORDS: usize = 64;
const FILE_WORDS: usize = 512;
/// Offset of two words after the slots: counts of unserved packets, which are not billed.
const UNSERVED_AT: usize = FILE_WORDS - 2;
const _: () = assert!(2 + NAME_WORDS + SLOTS * SLOT_WORDS <= UNSERVED_AT);

/// The meter that a unit writes.
pub struct Meter {
    words: *mut u64,
    sequence: u64,
    /// Start of the unit, from 1.
    pub epoch: u32,
    /// Stays open and locked, so that [`Meter::discard`] keeps the file.
    _locked: File,
}

// SAFETY: the mapping belongs to this value alone; other processes only read it.
unsafe impl Send for Meter {}

/// Contents of a meter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The tenant that pays.
    pub tenant: String,
    /// Name of the unit.
    pub unit: String,
    /// Start of the unit, from 1.
    pub epoch: u32,
    /// Number of batches so far.
    pub sequence: u64,
    /// Work of each function of the chain.
    pub functions: Vec<Billed>,
    /// Packets that are not billed.
    #[serde(flatten)]
    pub unserved: Unserved,
}

/// Packets that a unit could not serve, as counted before its death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unserved {
    /// Packets without room in the ring, because they arrived faster than the unit took them. In a
    /// group, also repeated packets and packets of another unit's flow.
    pub lost: u64,
    /// Packets that were processed and not taken by the device.
    pub unsent: u64,
}

/// Work of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Billed {
    /// Name of the function.
    pub function: String,
    /// Packets that the function processed.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Fuel that the function burnt.
    pub fuel: u64,
    /// Packets on which the function trapped. `packets` does not count them.
    pub trapped: u64,
}

fn directory(ledger: &Path, tenant: &str, unit: &str) -> PathBuf {
    ledger.join("meter").join(tenant).join(unit)
}

impl Meter {
    /// Makes a meter for the next epoch of a unit. It becomes a bill when its functions have names,
    /// see [`Meter::name`].
    pub fn create(ledger: &Path, tenant: &str, unit: &str) -> io::Result<Meter> {
        let directory = directory(ledger, tenant, unit);
        // Only the user of the units and its group may read bills, which show the programs and
        // traffic of tenants.
        DirBuilder::new().recursive(true).mode(0o750).create(&directory)?;
        Meter::discard(ledger, tenant, unit)?;
        let mut epoch = 1 + epochs(&directory)?.last().copied().unwrap_or(0);
        let (file, path) = loop {
            let path = directory.join(epoch.to_string());
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o640).open(&path)
            {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => epoch += 1,
                file => break (file?, path),
            }
        };
        file.lock()?;
        allocate(&file).inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(Meter {
            words: map(&file, libc::PROT_READ | libc::PROT_WRITE)?,
            sequence: 0,
            epoch,
            _locked: file,
        })
    }

    /// Names the billed functions.
    pub fn name(&mut self, functions: &[&str]) -> io::Result<()> {
        let names: Vec<u8> = functions.join("\n").into_bytes();
        if names.len() > NAME_WORDS * 8 - 8 {
            return Err(io::Error::other("names of functions: at most 504 bytes together"));
        }
        for (n, chunk) in names.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(2 + n).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.word(1).store(names.len() as u64, Ordering::Relaxed);
        self.word(0).store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Removes the meters of a unit that never became bills, if their processes have ended.
    pub fn discard(ledger: &Path, tenant: &str, unit: &str) -> io::Result<()> {
        let directory = directory(ledger, tenant, unit);
        for epoch in epochs(&directory)? {
            let path = directory.join(epoch.to_string());
            let file = File::open(&path)?;
            let mut magic = [0; 8];
            let unused = file.try_lock().is_ok()
                && ((&file).read(&mut magic)? < magic.len() || magic == [0; 8]);
            if unused {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Raises the totals of an earlier epoch to those of the output log. Its unit died before it
    /// wrote them. Repeating this changes nothing.
    pub fn settle(
        ledger: &Path,
        tenant: &str,
        unit: &str,
        epoch: u32,
        totals: &[Work],
    ) -> io::Result<()> {
        let path = directory(ledger, tenant, unit).join(epoch.to_string());
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let (sequence, billed) =
            decode(&std::fs::read(&path)?).ok_or(io::ErrorKind::InvalidData)?;
        let behind = |(b, w): (&Billed, &Work)| b.packets < w.packets || b.trapped < w.trapped;
        if billed.iter().zip(totals).any(behind) {
            let mut meter = Meter {
                words: map(&file, libc::PROT_READ | libc::PROT_WRITE)?,
                sequence,
                epoch,
                _locked: file,
            };
            meter.commit(totals.iter().copied());
        }
        Ok(())
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < FILE_WORDS);
        // SAFETY: inside of the mapping, which is aligned to a page.
        unsafe { AtomicU64::from_ptr(self.words.add(n)) }
    }

    /// Writes the unserved packets so far.
    pub fn note(&self, unserved: Unserved) {
        self.word(UNSERVED_AT).store(unserved.lost, Ordering::Relaxed);
        self.word(UNSERVED_AT + 1).store(unserved.unsent, Ordering::Relaxed);
    }

    /// Writes `work` as the totals. A crash during the write leaves the totals of the batch before.
    pub fn commit(&mut self, work: impl Iterator<Item = Work>) {
        self.sequence += 1;
        let slot = 2 + NAME_WORDS + (self.sequence as usize % SLOTS) * SLOT_WORDS;
        let mut sum = self.sequence ^ MAGIC;
        self.word(slot).store(0, Ordering::Release);
        for (stage, w) in work.enumerate() {
            for (n, value) in [w.packets, w.bytes, w.fuel, w.trapped].into_iter().enumerate() {
                self.word(slot + 1 + stage * FIELDS + n).store(value, Ordering::Relaxed);
                sum = mix(sum, value);
            }
        }
        self.word(slot + SLOT_WORDS - 1).store(sum, Ordering::Relaxed);
        self.word(slot).store(self.sequence, Ordering::Release);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // SAFETY: mapped in create.
        unsafe { libc::munmap(self.words.cast(), FILE_WORDS * 8) };
    }
}

fn mix(sum: u64, value: u64) -> u64 {
    (sum.rotate_left(7) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Allocates the whole file now. Otherwise a full disk would later end the unit with SIGBUS.
fn allocate(file: &File) -> io::Result<()> {
    // SAFETY: no memory is involved.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, FILE_WORDS as libc::off_t * 8) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

fn map(file: &File, protection: libc::c_int) -> io::Result<*mut u64> {
    // SAFETY: a new mapping of a file of that size.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            FILE_WORDS * 8,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

fn epochs(directory: &Path) -> io::Result<Vec<u32>> {
    let mut epochs: Vec<u32> = std::fs::read_dir(directory)?
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// Returns every record below `ledger`, ordered by tenant, unit and epoch.
pub fn records(ledger: &Path) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    let names = |path: &Path| -> io::Result<Vec<String>> {
        let mut names: Vec<String> = std::fs::read_dir(path)?
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    };
    let root = ledger.join("meter");
    // No unit ran here if the folder is missing. A folder that cannot be read is no empty bill.
    match std::fs::metadata(&root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(records),
        known => known.map(drop)?,
    }
    for tenant in names(&root)? {
        for unit in names(&root.join(&tenant))? {
            let directory = directory(ledger, &tenant, &unit);
            for epoch in epochs(&directory)? {
                let bytes = std::fs::read(directory.join(epoch.to_string()))?;
                if let Some((sequence, functions)) = decode(&bytes) {
                    let word = |n: usize| {
                        bytes[n * 8..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
                    };
                    let unserved =
                        Unserved { lost: word(UNSERVED_AT), unsent: word(UNSERVED_AT + 1) };
                    records.push(Record {
                        tenant: tenant.clone(),
                        unit: unit.clone(),
                        epoch,
                        sequence,
                        functions,
                        unserved,
                    });
                }
            }
        }
    }
    Ok(records)
}

/// Returns the latest complete slot of a meter's bytes. Returns `None` if the file is not a meter.
fn decode(bytes: &[u8]) -> Option<(u64, Vec<Billed>)> {
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    if words.len() < FILE_WORDS || words[0] != MAGIC {
        return None;
    }
    let names = bytes.get(
        16..16usize.checked_add(words[1] as usize).filter(|&end| end <= 16 + NAME_WORDS * 8)?,
    )?;
    let names: Vec<&str> = str::from_utf8(names).ok()?.split('\n').collect();
    if names.len() > STAGES_MAX {
        return None;
    }
    let whole = |slot: &[u64]| {
        let values = &slot[1..1 + names.len() * FIELDS];
        slot[0] > 0
            && slot[SLOT_WORDS - 1] == values.iter().fold(slot[0] ^ MAGIC, |sum, &v| mix(sum, v))
    };
    let slots = words[2 + NAME_WORDS..].chunks_exact(SLOT_WORDS).take(SLOTS);
    let latest = slots.filter(|slot| whole(slot)).max_by_key(|slot| slot[0]);
    let billed = |(n, name): (usize, &&str)| match latest {
        Some(slot) => {
            let at = 1 + n * FIELDS;
            Billed {
                function: name.to_string(),
                packets: slot[at],
                bytes: slot[at + 1],
                fuel: slot[at + 2],
                trapped: slot[at + 3],
            }
        }
        None => Billed { function: name.to_string(), ..Billed::default() },
    };
    Some((latest.map_or(0, |slot| slot[0]), names.iter().enumerate().map(billed).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("meter-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn created(ledger: &Path, unit: &str, functions: &[&str]) -> Meter {
        let mut meter = Meter::create(ledger, "default", unit).unwrap();
        meter.name(functions).unwrap();
        meter
    }

    fn work(packets: u64) -> Work {
        Work { packets, bytes: packets * 100, fuel: packets * 7, trapped: 1 }
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_no_empty_bill() {
        let ledger = scratch("unread");
        assert_eq!(records(&ledger).unwrap().len(), 0, "no unit ran");
        std::fs::write(&ledger, "a file").unwrap();
        assert!(records(&ledger).is_err());
        std::fs::remove_file(&ledger).unwrap();
    }

    #[test]
    fn every_start_is_an_epoch_and_all_are_read() {
        let ledger = scratch("epochs");
        for packets in [5, 7] {
            let mut meter = created(&ledger, "nat-1", &["policer", "nat"]);
            for so_far in 1..=packets {
                meter.commit([work(so_far), work(so_far)].into_iter());
            }
            meter.note(Unserved { lost: packets, unsent: 1 });
        }
        let read = records(&ledger).unwrap();
        assert_eq!(
            read.iter().map(|r| (r.epoch, r.sequence, r.functions[1].packets)).collect::<Vec<_>>(),
            [(1, 5, 5), (2, 7, 7)]
        );
        assert_eq!(read[0].functions[0].function, "policer");
        assert_eq!(read[1].unserved, Unserved { lost: 7, unsent: 1 });
        std::fs::remove_dir_all(ledger).unwrap();
    }

    #[test]
    fn a_start_that_failed_leaves_no_bill() {
        let ledger = scratch("discard");
        drop(created(&ledger, "nat", &["nat"]));
        drop(Meter::create(&ledger, "default", "nat").unwrap());
        let mut starting = Meter::create(&ledger, "default", "nat").unwrap();
        Meter::discard(&ledger, "default", "nat").unwrap();
        starting.name(&["nat"]).unwrap();
        assert_eq!(records(&ledger).unwrap().iter().map(|r| r.epoch).collect::<Vec<_>>(), [1, 2]);
        std::fs::remove_dir_all(ledger).unwrap();
    }

    #[test]
    fn others_do_not_read_it() {
        use std::os::unix::fs::MetadataExt;
        let ledger = scratch("mode");
        let _meter = created(&ledger, "nat", &["nat"]);
        let modes = ["meter", "meter/default/nat", "meter/default/nat/1"]
            .map(|p| std::fs::metadata(ledger.join(p)).unwrap().mode() & 0o7);
        assert_eq!(modes, [0; 3]);
        std::fs::remove_dir_all(ledger).unwrap();
    }

    #[test]
    fn what_a_dead_unit_did_not_write_is_settled_once() {
        let ledger = scratch("settle");
        let mut meter = created(&ledger, "nat", &["nat"]);
        meter.commit([work(5)].into_iter());
        for _ in 0..2 {
            Meter::settle(&ledger, "default", "nat", 1, &[work(9)]).unwrap();
            Meter::settle(&ledger, "default", "nat", 1, &[work(5)]).unwrap();
        }
        let read = records(&ledger).unwrap();
        assert_eq!((read[0].sequence, read[0].functions[0].packets), (2, 9));
        std::fs::remove_dir_all(ledger).unwrap();
    }

    proptest! {
        /// If a crash tears any one word, the record is still that of a single batch, never a
        /// mixture.
        #[test]
        fn a_torn_write_is_not_read(
            batches in 1..20u64,
            word in 2 + NAME_WORDS..FILE_WORDS,
            value: u64,
        ) {
            let ledger = scratch("torn");
            let mut meter = created(&ledger, "nat", &["nat"]);
            (1..=batches).for_each(|n| meter.commit([work(n)].into_iter()));
            meter.word(word).store(value, Ordering::Release);
            let read = records(&ledger).unwrap().remove(0);
            let billed = &read.functions[0];
            prop_assert!(read.sequence <= batches && read.sequence + 1 >= batches);
            prop_assert_eq!(
                (billed.bytes, billed.fuel),
                (billed.packets * 100, billed.packets * 7)
            );
            drop(meter);
            std::fs::remove_dir_all(ledger).unwrap();
        }

        #[test]
        fn no_file_panics(bytes in proptest::collection::vec(any::<u8>(), 4096), names: u64) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&names.to_le_bytes());
            decode(&bytes);
        }
    }
}
