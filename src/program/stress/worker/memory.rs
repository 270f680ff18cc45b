//! What a worker does with a block: take, fill, check, give back.

use std::sync::atomic::Ordering::Relaxed;

use super::cuda::{Failed, Hand};
use super::kind::Kind;
use super::pattern;
use super::random::Random;
use super::site::Site;
use crate::driver::{Access, Properties};
use crate::stress::fault::{Fault, Kind as FaultKind};

/// A live block.
#[derive(Debug)]
pub struct Block {
    pub kind: Kind,
    pub address: u64,
    /// Requested bytes, as the ledger counts them.
    requested: u64,
    /// Bytes that can be written.
    pub size: u64,
    pub word: u32,
    handle: u64,
}

/// Pitched memory has rows of at most so many bytes.
const MOST_ROW_BYTES: u64 = 64 << 10;
/// Blocks up to this size are read back as a whole, longer ones in windows.
const WHOLE_BYTES: u64 = 1 << 20;
const WINDOW_BYTES: u64 = 4 << 10;
const WINDOWS: u64 = 8;

/// What a call handed out.
#[derive(Default)]
struct Obtained {
    address: u64,
    requested: u64,
    size: u64,
    handle: u64,
}

impl Site {
    /// Takes a block with this word as its pattern. `None` if the worker may not hold it now, or the device has no room.
    pub fn take(
        &self,
        hand: &mut Hand,
        kind: Kind,
        bytes: u64,
        word: u32,
        stream: usize,
    ) -> Result<Option<Block>, Fault> {
        let bytes = match kind {
            Kind::Mapped => bytes.next_multiple_of(self.granule.max(1)),
            _ => bytes,
        };
        if !self.claim(bytes) {
            return Ok(None);
        }
        let obtained = match self.obtain(hand, kind, bytes, stream) {
            Ok(obtained) => obtained,
            Err(failed) => {
                self.unclaim(bytes);
                return self.refused(hand, failed).map(|()| None);
            }
        };
        // Rows are longer than asked for, and what was claimed is given back as it is.
        self.unclaim(bytes);
        self.add_live(obtained.size);
        self.enter(obtained.address, obtained.size, word, kind, obtained.requested)?;
        Ok(Some(Block {
            kind,
            address: obtained.address,
            requested: obtained.requested,
            size: obtained.size,
            word,
            handle: obtained.handle,
        }))
    }

    fn obtain(&self, hand: &mut Hand, kind: Kind, bytes: u64, stream: usize) -> Result<Obtained, Failed> {
        /// `CU_MEM_ATTACH_GLOBAL` (cuda.h)
        const GLOBAL: u32 = 1;
        let (cuda, size) = (&self.cuda, bytes as usize);
        let mut got = Obtained {
            requested: bytes,
            size: bytes,
            ..Obtained::default()
        };
        match kind {
            Kind::Linear => cuda.alloc(hand, bytes, &mut got.address, size)?,
            Kind::Managed => cuda.alloc_managed(hand, bytes, &mut got.address, size, GLOBAL)?,
            Kind::Async => cuda.alloc_async(hand, bytes, &mut got.address, size, stream)?,
            Kind::Pitched => {
                let width = bytes.min(MOST_ROW_BYTES);
                let height = bytes / width;
                let mut pitch = 0;
                let (wide, high) = (width as usize, height as usize);
                cuda.alloc_pitch(hand, bytes, &mut got.address, &mut pitch, wide, high, 4)?;
                got.requested = width * height;
                // The last row ends with its width.
                got.size = pitch as u64 * (height - 1) + width;
            }
            Kind::Mapped => self.map(hand, &mut got)?,
        }
        Ok(got)
    }

    fn map(&self, hand: &mut Hand, got: &mut Obtained) -> Result<(), Failed> {
        let (cuda, bytes, size) = (&self.cuda, got.size, got.size as usize);
        let location = self.location();
        let properties = Properties {
            kind: 1,
            location,
            ..Properties::default()
        };
        let access = Access { location, rights: 3 };
        cuda.create(hand, bytes, &mut got.handle, size, &properties, 0)?;
        let handle = got.handle;
        // Memory that another call refuses is given back, because a refusal is no fault while the device is full.
        let mapped = cuda
            .reserve(hand, bytes, &mut got.address, size, 0, 0, 0)
            .and_then(|()| {
                let address = got.address;
                let mapped = cuda.map(hand, bytes, address, size, 0, handle, 0).and_then(|()| {
                    let allowed = cuda.set_access(hand, bytes, address, size, &access, 1);
                    if allowed.is_err() {
                        cuda.unmap(hand, 0, address, size)?;
                    }
                    allowed
                });
                if mapped.is_err() {
                    cuda.unreserve(hand, 0, address, size)?;
                }
                mapped
            });
        if mapped.is_err() {
            cuda.release(hand, 0, handle)?;
        }
        mapped
    }

    /// Writes the pattern of the block from an offset on, a multiple of 4, to its end. Returns before it is done.
    pub fn fill(&self, hand: &mut Hand, block: &Block, from: u64, stream: usize) -> Result<(), Fault> {
        let (words, rest) = pattern::parts(block.size - from);
        let start = block.address + from;
        if words > 0 {
            self.cuda
                .fill_words(hand, 0, start, block.word, words as usize, stream)?;
        }
        if rest > 0 {
            let (tail, byte) = (start + words * 4, block.word.to_le_bytes()[0]);
            self.cuda.fill_bytes(hand, 0, tail, byte, rest as usize, stream)?;
        }
        for offset in pattern::stamps(block.size).filter(|offset| *offset >= from) {
            let stamp = pattern::stamp(block.word, offset);
            self.cuda
                .fill_words(hand, 0, block.address + offset, stamp, 1, stream)?;
        }
        Ok(())
    }

    /// Reads the block back, all of it or parts of it, and compares it with its pattern.
    pub fn check(&self, hand: &mut Hand, block: &Block, random: &mut Random, stream: usize) -> Result<(), Fault> {
        let mut windows: Vec<(u64, u64)> = Vec::new();
        if block.size <= WHOLE_BYTES {
            windows.push((0, block.size));
        } else {
            let last = block.size - WINDOW_BYTES;
            windows.extend([(0, WINDOW_BYTES), (last, WINDOW_BYTES)]);
            windows.extend((0..WINDOWS).map(|_| (random.below(last), WINDOW_BYTES)));
            windows.extend(pattern::stamps(block.size).map(|offset| (offset, 64.min(block.size - offset))));
        }
        let all: u64 = windows.iter().map(|(_, length)| length).sum();
        let mut bytes = vec![0u8; all as usize];
        let mut at = bytes.as_mut_ptr();
        for (offset, length) in &windows {
            let copied = self
                .cuda
                .read(hand, 0, at, block.address + offset, *length as usize, stream);
            if let Err(failed) = copied {
                // Copies that began may still write.
                std::mem::forget(bytes);
                return Err(failed.into());
            }
            at = at.wrapping_add(*length as usize);
        }
        if let Err(failed) = self.cuda.wait_stream(hand, 0, stream) {
            std::mem::forget(bytes);
            return Err(failed.into());
        }
        self.bytes_checked.fetch_add(all, Relaxed);
        let mut rest = bytes.as_slice();
        for (offset, length) in windows {
            let (window, behind) = rest.split_at(length as usize);
            rest = behind;
            if let Some(at) = pattern::first_difference(block.word, block.size, offset, window) {
                return Err(self.changed(block, at, &window[(at - offset) as usize..]));
            }
        }
        Ok(())
    }

    fn changed(&self, block: &Block, at: u64, found: &[u8]) -> Fault {
        let found = &found[..found.len().min(4)];
        let word = found.try_into().ok().map(u32::from_le_bytes);
        let owner = word.and_then(|word| self.owner_of(word));
        let owner = owner.map_or_else(String::new, |owner| format!(", which is {owner}"));
        let words = format!(
            "the block {:#x} to {:#x} of {} lost what was written: at byte {at} is {found:02x?}, not {:02x?}{owner}",
            block.address,
            block.address + block.size,
            block.kind.call(),
            (at..at + found.len() as u64)
                .map(|at| pattern::byte(block.word, at))
                .collect::<Vec<u8>>(),
        );
        Fault::new(FaultKind::BytesChanged, words).in_call(block.kind.call(), block.requested)
    }

    /// Frees a block. Its work is on `stream`; a free of linear memory waits for this work, and all other calls here are
    /// made after it.
    pub fn give_back(&self, hand: &mut Hand, block: Block, stream: usize) -> Result<(), Fault> {
        let (cuda, bytes, size) = (&self.cuda, block.requested, block.size as usize);
        if block.kind == Kind::Mapped {
            cuda.wait_stream(hand, 0, stream)?;
        }
        self.leave(block.address, block.kind, block.requested);
        match block.kind {
            Kind::Linear | Kind::Pitched | Kind::Managed => cuda.free(hand, bytes, block.address)?,
            Kind::Async => cuda.free_async(hand, bytes, block.address, stream)?,
            Kind::Mapped => {
                cuda.unmap(hand, bytes, block.address, size)?;
                cuda.release(hand, bytes, block.handle)?;
                cuda.unreserve(hand, bytes, block.address, size)?;
            }
        }
        self.unclaim(block.size);
        Ok(())
    }
}
