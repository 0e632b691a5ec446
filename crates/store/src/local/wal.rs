//! Verification of the write-ahead log, before SQLite reads it.
//!
//! SQLite takes the first frame with a wrong checksum for the end of the log: after a crash, a frame that was damaged
//! later would silently end the history there. A frame that the crash left half written is in the last transaction,
//! because a transaction begins after the one before it was synchronized. Damage before that is reported instead.
//! The format is section 4 of <https://www.sqlite.org/fileformat.html>.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::OpenError;
use crate::LOG_TARGET;

/// Size of the log's header in bytes.
const HEADER_BYTES: usize = 32;

/// Size of the header of a frame in bytes; a page follows.
const FRAME_HEADER_BYTES: usize = 24;

/// First number of a log; one more means that checksums are of big-endian numbers.
const MAGIC: u32 = 0x377f_0682;

/// The log of a database file: `-wal` beside it.
pub(super) fn wal_path(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push("-wal");
    name.into()
}

/// Checks the log of the database `file`, if there is one, before it is opened. With `synchronizes`, what the log holds
/// is durable afterwards.
///
/// # Errors
/// [`OpenError::DamagedLog`] if SQLite would leave out transactions that were confirmed.
pub(super) fn verify_wal(file: &Path, synchronizes: bool) -> Result<(), OpenError> {
    let path = wal_path(file);
    let Some((log, state)) = read_log(&path)? else { return Ok(()) };
    if let LogState::Incomplete { frame } = state {
        let log = path.display();
        tracing::warn!(target: LOG_TARGET, "store log {log}: last transaction left out: frame {frame} was not written completely");
    }
    // A process that was killed may have left what no disk has yet, and from here on clients read it.
    if synchronizes { log.sync_all().map_err(|error| OpenError::io(&path, error)) } else { Ok(()) }
}

/// Checks the log of the database `file`, if there is one. Changes nothing.
///
/// # Errors
/// As of [`verify_wal`]; also if another process writes the log meanwhile.
pub(super) fn check_wal(file: &Path) -> Result<(), OpenError> {
    read_log(&wal_path(file)).map(drop)
}

/// A number that stays the same while the log of `file` is begun anew after checkpoints, and differs between logs; none
/// without a log that holds anything. SQLite adds one to the first salt whenever it adds one to the sequence number.
pub(super) fn wal_identity(file: &Path) -> io::Result<Option<u32>> {
    let mut log = match File::open(wal_path(file)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut header = [0; HEADER_BYTES];
    let is_whole = read_whole(&mut log, &mut header)? && has_valid_header(&header);
    Ok(is_whole.then(|| number_at(&header, 16).wrapping_sub(number_at(&header, 12))))
}

/// Whether a log begins with its magic number and the checksum of its header.
fn has_valid_header(header: &[u8; HEADER_BYTES]) -> bool {
    let read: ReadNumber = if number_at(header, 0) == MAGIC { u32::from_le_bytes } else { u32::from_be_bytes };
    let checksum = Checksum(0, 0).extend(&header[..24], read);
    number_at(header, 0) & !1 == MAGIC && checksum == Checksum::read(&header[24..])
}

fn read_log(path: &Path) -> Result<Option<(File, LogState)>, OpenError> {
    let io = |error: io::Error| OpenError::io(path, error);
    let log = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    match scan(BufReader::with_capacity(1 << 16, &log)).map_err(io)? {
        LogState::Damaged { frame } => Err(OpenError::DamagedLog { file: path.to_owned(), frame }),
        state => Ok(Some((log, state))),
    }
}

/// What a log holds.
#[derive(Debug, PartialEq, Eq)]
enum LogState {
    /// SQLite reads every transaction.
    Whole,
    /// The last transaction has a frame that may never have been written.
    Incomplete { frame: u64 },
    /// A frame was damaged after it was written; 0 is the header.
    Damaged { frame: u64 },
}

/// Two sums over pairs of numbers, which go on from frame to frame.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Checksum(u32, u32);

/// How the numbers are read that checksums are of.
type ReadNumber = fn([u8; 4]) -> u32;

impl Checksum {
    fn read(bytes: &[u8]) -> Checksum {
        Checksum(number_at(bytes, 0), number_at(bytes, 4))
    }

    fn extend(self, bytes: &[u8], read: ReadNumber) -> Checksum {
        let words = bytes.as_chunks::<8>().0.iter();
        words.fold(self, |Checksum(first, second), pair| {
            let [a, b, c, d, e, f, g, h] = *pair;
            let first = first.wrapping_add(read([a, b, c, d])).wrapping_add(second);
            Checksum(first, second.wrapping_add(read([e, f, g, h])).wrapping_add(first))
        })
    }
}

/// A frame of the log.
struct Frame<'a> {
    header: &'a [u8],
    page: &'a [u8],
}

impl Frame<'_> {
    /// The page number and the size of the database after a commit.
    fn checked_header(&self) -> &[u8] {
        &self.header[..8]
    }

    fn is_commit(&self) -> bool {
        number_at(self.header, 4) != 0
    }

    fn salts(&self) -> u64 {
        salts_at(self.header, 8)
    }

    fn stored_checksum(&self) -> Checksum {
        Checksum::read(&self.header[16..])
    }

    fn checksum(&self, previous: Checksum, read: ReadNumber) -> Checksum {
        previous.extend(self.checked_header(), read).extend(self.page, read)
    }

    /// Whether one flipped bit is all that is wrong. A frame that was never written does not look like that.
    fn has_flipped_bit(&self, salts: u64, previous: Checksum, read: ReadNumber) -> bool {
        let (found, stored) = (self.checksum(previous, read), self.stored_checksum());
        if found == stored {
            return (self.salts() ^ salts).count_ones() == 1;
        }
        if self.salts() != salts {
            return false;
        }
        if (found.0 ^ stored.0).count_ones() + (found.1 ^ stored.1).count_ones() == 1 {
            return true;
        }
        let missing = (stored.0.wrapping_sub(found.0), stored.1.wrapping_sub(found.1));
        // What one more in a number adds to the sums at the end: for the numbers of the last pair, then of those before.
        let (mut of_first, mut of_second) = ((1u32, 1u32), (0u32, 1u32));
        let earlier = |(first, second): (u32, u32)| {
            let first = first.wrapping_add(second);
            (first, second.wrapping_add(first))
        };
        let pairs = self.page.as_chunks::<8>().0.iter().rev().chain(self.checked_header().as_chunks::<8>().0);
        for [a, b, c, d, e, f, g, h] in pairs {
            for (number, added) in [(read([*a, *b, *c, *d]), of_first), (read([*e, *f, *g, *h]), of_second)] {
                let corrects = |bit: u32| {
                    let change = (number ^ (1 << bit)).wrapping_sub(number);
                    (added.0.wrapping_mul(change), added.1.wrapping_mul(change)) == missing
                };
                if (0..u32::BITS).any(corrects) {
                    return true;
                }
            }
            (of_first, of_second) = (earlier(of_first), earlier(of_second));
        }
        false
    }
}

/// Reads a log to its end.
fn scan(mut log: impl Read) -> io::Result<LogState> {
    let mut header = [0; HEADER_BYTES];
    if !read_whole(&mut log, &mut header)? {
        return Ok(LogState::Whole);
    }
    let read: ReadNumber = if number_at(&header, 0) == MAGIC { u32::from_le_bytes } else { u32::from_be_bytes };
    let page_bytes = number_at(&header, 8);
    let mut previous = Checksum(0, 0).extend(&header[..24], read);
    let is_valid = number_at(&header, 0) & !1 == MAGIC
        && previous == Checksum::read(&header[24..])
        && page_bytes.is_power_of_two()
        && (512..=65_536).contains(&page_bytes);
    if !is_valid {
        // The header is synchronized before the first frame is written.
        let has_frames = read_whole(&mut log, &mut [0])?;
        return Ok(if has_frames { LogState::Damaged { frame: 0 } } else { LogState::Whole });
    }
    let salts = salts_at(&header, 16);
    let mut bytes = vec![0; FRAME_HEADER_BYTES + page_bytes as usize];
    let mut first_invalid = None;
    let mut has_commit = false;
    let mut follows_commit = false;
    for number in 1.. {
        if !read_whole(&mut log, &mut bytes)? {
            break;
        }
        let (header, page) = bytes.split_at(FRAME_HEADER_BYTES);
        let frame = Frame { header, page };
        let is_of_log = frame.salts() == salts;
        // Whether it was written after the frame before it, whatever became of that.
        let is_next = is_of_log && frame.checksum(previous, read) == frame.stored_checksum();
        match first_invalid {
            None if is_next => {}
            None if frame.has_flipped_bit(salts, previous, read) => return Ok(LogState::Damaged { frame: number }),
            None => first_invalid = Some(number),
            Some(frame) if is_next && follows_commit => return Ok(LogState::Damaged { frame }),
            Some(_) => {}
        }
        has_commit |= first_invalid.is_some() && is_of_log && frame.is_commit();
        follows_commit = frame.is_commit();
        previous = frame.stored_checksum();
    }
    // Other frames behind the end are of a log that was copied into the database, or of a rollback.
    Ok(first_invalid.filter(|_| has_commit).map_or(LogState::Whole, |frame| LogState::Incomplete { frame }))
}

/// Fills `buffer`; false at the end of the file.
fn read_whole(log: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The big-endian number at an offset; 0 beyond the end.
fn number_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn salts_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(number_at(bytes, at)) << 32 | u64::from(number_at(bytes, at + 4))
}
