//! The memory of an array map, shared with the programs.

use std::marker::PhantomData;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{MapData, MapError};
use memmap2::{MmapOptions, MmapRaw};

use super::error::OpenError;
use super::pinned;

/// Bytes that are mapped at once: the kernel counts a mapped page as memory of this process, and
/// most of a map is never used.
const CHUNK: usize = 1 << 18;

/// An array map with `BPF_F_MMAPABLE`. `V` consists of whole words of eight bytes.
pub(crate) struct Mapped<V> {
    map: MapData,
    entries: u32,
    /// The value at a chunk's end may continue in the next one, so each has a page more.
    chunks: Box<[OnceLock<MmapRaw>]>,
    values: PhantomData<V>,
}

impl<V: bytemuck::Pod> Mapped<V> {
    const WORDS: usize = {
        assert!(size_of::<V>().is_multiple_of(8), "the kernel pads a value to eight bytes");
        size_of::<V>() / 8
    };

    pub(crate) fn open(pin_dir: &Path, name: &'static str) -> Result<Self, OpenError> {
        Self::of(pinned::data(pin_dir, name)?)
            .map_err(|error| pinned::unusable(pin_dir, name, &error))
    }

    pub(crate) fn of(map: MapData) -> Result<Self, MapError> {
        let entries = map.info()?.max_entries();
        let chunks = (entries as usize * size_of::<V>()).div_ceil(CHUNK);
        let chunks = (0..chunks).map(|_| OnceLock::new()).collect();
        Ok(Self { map, entries, chunks, values: PhantomData })
    }

    /// Number of values.
    pub(crate) const fn entries(&self) -> u32 {
        self.entries
    }

    /// Reads a value word by word: of words that programs add to, each is whole.
    pub(crate) fn get(&self, index: u32) -> Result<V, MapError> {
        let mut value = V::zeroed();
        let words = bytemuck::cast_slice_mut::<u8, [u8; 8]>(bytemuck::bytes_of_mut(&mut value));
        for (to, from) in words.iter_mut().zip(self.words(index)?) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(value)
    }

    /// Writes a value word by word.
    pub(crate) fn set(&self, index: u32, value: &V) -> Result<(), MapError> {
        let words = bytemuck::cast_slice::<u8, [u8; 8]>(bytemuck::bytes_of(value));
        for (to, from) in self.words(index)?.iter().zip(words) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        Ok(())
    }

    fn words(&self, index: u32) -> Result<&[AtomicU64], MapError> {
        if index >= self.entries {
            return Err(MapError::OutOfBounds { index, max_entries: self.entries });
        }
        let at = index as usize * size_of::<V>();
        let chunk = &self.chunks[at / CHUNK];
        let memory = match chunk.get() {
            Some(memory) => memory,
            None => {
                let memory = self.map_chunk(at / CHUNK * CHUNK)?;
                chunk.get_or_init(|| memory)
            }
        };
        let first = memory.as_ptr().wrapping_add(at % CHUNK).cast();
        // SAFETY: the mapping has the whole value, begins at a page, and lives as long as `self`; the
        // value begins at a multiple of eight bytes, and any bytes are a word.
        Ok(unsafe { std::slice::from_raw_parts(first, Self::WORDS) })
    }

    fn map_chunk(&self, begin: usize) -> Result<MmapRaw, MapError> {
        let page = rustix::param::page_size();
        let all = (self.entries as usize * size_of::<V>()).next_multiple_of(page);
        let length = (CHUNK + page).min(all - begin);
        let fd = self.map.fd().as_fd();
        let memory = MmapOptions::new().offset(begin as u64).len(length).map_raw(&fd);
        memory.map_err(MapError::IoError)
    }
}
