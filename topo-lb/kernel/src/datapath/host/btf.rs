//! Where the fields of the kernel's structures are, by the kernel's own BTF
//! (Documentation/bpf/btf.rst). Reads no more than that takes: a kernel has 150,000 types.

use std::fs;
use std::io;
use std::path::Path;

/// The kernel's BTF (CONFIG_DEBUG_INFO_BTF).
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// The first two bytes, in the byte order of this machine.
const MAGIC: u16 = 0xEB9F;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// Bytes of a type without what follows it, and of a member of a structure.
const HEAD: usize = 12;

/// Why a field's place is not known.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// It cannot be read.
    #[error(
        "the kernel has no BTF of its own at {} (CONFIG_DEBUG_INFO_BTF): {error}",
        path.display()
    )]
    Unreadable {
        /// Where it should be.
        path: std::path::PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It does not follow the format.
    #[error("the kernel's BTF breaks off, or has a type of an unknown kind")]
    Malformed,
    /// A structure lacks a field.
    #[error("the kernel's structure {0} has no field {1}")]
    NoField(&'static str, &'static str),
}

/// A kernel's types.
pub struct Btf {
    data: Vec<u8>,
    /// Where each type is in `data`, by its id less one.
    types: Vec<usize>,
    strings: usize,
}

impl Btf {
    /// Reads a file of BTF in this machine's byte order.
    ///
    /// # Errors
    /// It cannot be read, or is malformed.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let data = fs::read(path)
            .map_err(|error| BtfError::Unreadable { path: path.to_owned(), error })?;
        Self::parse(data).ok_or(BtfError::Malformed)
    }

    fn parse(data: Vec<u8>) -> Option<Self> {
        if u16::from_ne_bytes(*data.first_chunk()?) != MAGIC {
            return None;
        }
        // Behind the magic: version, flags, length of the header, and where types and strings are.
        let at = |offset| word(&data, offset).map(|word| word as usize);
        let (header, types_at, types_length, strings) = (at(4)?, at(8)?, at(12)?, at(16)?);
        let mut place = header.checked_add(types_at)?;
        let end = place.checked_add(types_length)?;
        let mut types = Vec::new();
        while place < end {
            types.push(place);
            let info = word(&data, place + 4)?;
            place += HEAD + following(info >> 24 & 0x1f, info as usize & 0xffff)?;
        }
        let strings = header.checked_add(strings)?;
        Some(Self { data, types, strings })
    }

    /// The offset of a field in bytes; as [`bit_offset`](Self::bit_offset).
    ///
    /// # Errors
    /// There is no such structure or field.
    pub fn offset(&self, structure: &'static str, path: &[&'static str]) -> Result<u32, BtfError> {
        Ok(self.bit_offset(structure, path)? / 8)
    }

    /// The offset of a field, also of a bit field, in bits. `path` leads through structures within the structure; anonymous
    /// ones need no name.
    ///
    /// # Errors
    /// There is no such structure or field.
    pub fn bit_offset(
        &self,
        structure: &'static str,
        path: &[&'static str],
    ) -> Result<u32, BtfError> {
        let missing = || BtfError::NoField(structure, path.last().copied().unwrap_or_default());
        let named =
            |place: &&usize| self.kind(**place) == Some(STRUCT) && self.is(**place, structure);
        let mut place = *self.types.iter().find(named).ok_or_else(missing)?;
        let mut bits = 0;
        for name in path {
            let (offset, id) = self.member(place, name, 0).ok_or_else(missing)?;
            bits += offset;
            place = self.place(id).unwrap_or(place);
        }
        Ok(bits)
    }

    /// Offset in bits, and type, of a member.
    fn member(&self, structure: usize, name: &str, depth: u32) -> Option<(u32, u32)> {
        const DEEPEST: u32 = 8;
        let info = word(&self.data, structure + 4)?;
        for member in 0..info as usize & 0xffff {
            let at = structure + HEAD + member * HEAD;
            let (id, offset) = (word(&self.data, at + 4)?, word(&self.data, at + 8)?);
            // With bit fields, the highest byte is a size.
            let offset = if info >> 31 == 1 { offset & 0xff_ffff } else { offset };
            if self.is(at, name) {
                return Some((offset, id));
            }
            if self.is(at, "") && depth < DEEPEST {
                let inner = self.place(id).filter(|place| {
                    self.kind(*place).is_some_and(|kind| [STRUCT, UNION].contains(&kind))
                });
                let found = inner.and_then(|inner| self.member(inner, name, depth + 1));
                if let Some((inner, id)) = found {
                    return Some((offset + inner, id));
                }
            }
        }
        None
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.types.get((id as usize).checked_sub(1)?).copied()
    }

    fn kind(&self, place: usize) -> Option<u32> {
        Some(word(&self.data, place + 4)? >> 24 & 0x1f)
    }

    /// Whether a type or a member has this name.
    fn is(&self, place: usize, name: &str) -> bool {
        let text = word(&self.data, place)
            .and_then(|offset| self.data.get(self.strings.checked_add(offset as usize)?..));
        text.and_then(|text| text.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

/// Bytes that follow the head of a type of a kind (`BTF_KIND_*`, include/uapi/linux/btf.h).
const fn following(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Integer, variable, tag of a declaration.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Structure, union, section of data, enumeration of 64 bits.
        4 | 5 | 15 | 19 => 12 * count,
        // Enumeration, parameters of a function.
        6 | 13 => 8 * count,
        // Pointer, forward, typedef, volatile, const, restrict, function, float, tag of a type.
        2 | 7 | 8 | 9 | 10 | 11 | 12 | 16 | 18 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type, or a member of one.
    fn entry(name: u32, second: u32, third: u32) -> Vec<u8> {
        [name, second, third].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// `struct outer { int a; struct inner { int :8; union { long b; int c; }; } in; }`
    fn sample() -> Vec<u8> {
        let strings = b"\0outer\0inner\0a\0in\0b\0c\0";
        let (outer, inner, a, within, b, c) = (1, 7, 13, 15, 18, 20);
        let types = [
            // 1: int, with the word that follows an integer.
            [entry(0, 1 << 24, 4), 32_u32.to_ne_bytes().to_vec()].concat(),
            // 2: an anonymous union.
            [entry(0, UNION << 24 | 2, 8), entry(b, 1, 0), entry(c, 1, 0)].concat(),
            // 3: with a bit field.
            [entry(inner, 1 << 31 | STRUCT << 24 | 2, 16), entry(0, 1, 8 << 24), entry(0, 2, 64)]
                .concat(),
            // 4
            [entry(outer, STRUCT << 24 | 2, 24), entry(a, 1, 0), entry(within, 3, 64)].concat(),
        ]
        .concat();
        let header = [MAGIC.to_ne_bytes(), [1, 0]].concat();
        let length = types.len() as u32;
        let numbers = [24, 0, length, length, strings.len() as u32];
        let numbers = numbers.iter().flat_map(|number: &u32| number.to_ne_bytes()).collect();
        [header, numbers, types, strings.to_vec()].concat()
    }

    #[test]
    fn a_field_is_found_through_named_and_anonymous_structures() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.offset("outer", &["a"]).unwrap(), 0);
        assert_eq!(btf.offset("outer", &["in"]).unwrap(), 8);
        assert_eq!(btf.offset("outer", &["in", "c"]).unwrap(), 16);
        assert_eq!(btf.offset("inner", &["b"]).unwrap(), 8);
    }

    #[test]
    fn what_is_missing_is_named() {
        let btf = Btf::parse(sample()).unwrap();
        let error = btf.offset("outer", &["in", "d"]).unwrap_err().to_string();
        assert_eq!(error, "the kernel's structure outer has no field d");
        assert!(btf.offset("oute", &["a"]).is_err());
        let absent = Btf::read(Path::new("/nowhere")).map(drop).unwrap_err().to_string();
        assert!(absent.contains("/nowhere"), "{absent}");
    }

    #[test]
    fn btf_that_breaks_off_is_refused_wherever_that_is() {
        let whole = sample();
        for length in 0..whole.len() {
            let cut = Btf::parse(whole[..length].to_vec());
            // Without its strings, nothing has a name.
            assert!(cut.is_none_or(|btf| btf.offset("outer", &["in", "c"]).is_err()), "{length}");
        }
    }
}
