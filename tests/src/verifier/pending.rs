//! Pending jumps in front of a program: code that the verifier walks through while it puts a given
//! number of branches aside. It takes them up again only after it has walked through the program.

use std::cmp::Reverse;

use anyhow::{Context as _, Result, bail, ensure};
use object::build::elf::{Builder, SectionData, SectionId, SymbolId};
use object::elf::{STB_GLOBAL, STT_FUNC, STT_SECTION, STV_DEFAULT};

/// The size of `struct bpf_insn`.
const INSTRUCTION: usize = 8;

/// A field of a context, by its offset in bytes.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// Four bytes.
    Word(u8),
    /// Eight bytes, a pointer.
    Pointer(u8),
}

/// Code that adds this number of pending jumps, at least one (include/uapi/linux/bpf.h, `struct bpf_insn`). It
/// changes only r0, which is undefined when a program begins. `field` is a field of the context that the
/// program may read.
pub fn code(jumps: u16, field: Field) -> Result<Vec<[u8; INSTRUCTION]>> {
    // r0 = the field, whose value the verifier does not know.
    let mut code = vec![match field {
        Field::Word(offset) => [0x61, 0x10, offset, 0, 0, 0, 0, 0],
        Field::Pointer(offset) => [0x79, 0x10, offset, 0, 0, 0, 0, 0],
    }];
    for left in (1..=i16::try_from(jumps)?).rev() {
        // if r0 == 7 goto the last two instructions. The verifier goes on with the next one.
        let [low, high] = left.to_le_bytes();
        code.push([0x15, 0, low, high, 7, 0, 0, 0]);
    }
    // goto the program; r0 = 1; exit.
    code.extend([
        [0x05, 0, 2, 0, 0, 0, 0, 0],
        [0xb7, 0, 0, 0, 1, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ]);
    Ok(code)
}

/// The eBPF object, with this number of pending jumps in front of a program and of each global
/// function: the verifier checks these by themselves. Of so many parts of these, only one gets them: `(part, parts)`.
///
/// # Errors
/// The object lacks the program.
pub(super) fn before(
    object: &[u8],
    program: &str,
    jumps: u16,
    (part, parts): (usize, usize),
) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object).context("it is no ELF object")?;
    let functions = builder.symbols.iter().filter(|symbol| {
        let is_global = symbol.st_bind() == STB_GLOBAL && symbol.st_other == STV_DEFAULT;
        let section = symbol.section.map(|id| &builder.sections.get(id).name[..]);
        let is_step = is_global && symbol.st_type() == STT_FUNC && section == Some(b".text");
        is_step || symbol.name[..] == *program.as_bytes()
    });
    // What is inserted moves the places behind it.
    let mut places: Vec<_> = functions.filter_map(|it| Some((it.section?, it.st_value))).collect();
    places.sort_unstable_by_key(|(_, offset)| Reverse(*offset));
    ensure!(!places.is_empty(), "the object has no {program}");
    let field = match program {
        // May not read the first word (net/core/filter.c, `__sock_filter_check_attach_type`).
        "post_bind4" | "post_bind6" => Field::Word(4),
        // Have only pointers, of which this one may be null.
        "walk4" | "walk6" => Field::Pointer(24),
        _ => Field::Word(0),
    };
    let code = code(jumps, field)?.concat();
    for (section, offset) in places.into_iter().skip(part).step_by(parts) {
        insert(&mut builder, section, offset, &code)?;
    }
    let mut bytes = Vec::new();
    builder.write(&mut bytes).context("the object cannot be written")?;
    Ok(bytes)
}

/// Inserts code at the beginning of a function, which is at this offset (bytes) of a section.
fn insert(builder: &mut Builder<'_>, section: SectionId, at: u64, code: &[u8]) -> Result<()> {
    let length = code.len() as u64;
    let SectionData::Data(data) = &mut builder.sections.get_mut(section).data else {
        bail!("a section of programs has no code");
    };
    let place = usize::try_from(at)?;
    ensure!(place <= data.len(), "a program is outside its section");
    data.to_mut().splice(place..place, code.iter().copied());

    let mut section_symbol = None;
    for symbol in builder.symbols.iter_mut().filter(|it| it.section == Some(section)) {
        match symbol.st_type() {
            STT_SECTION => section_symbol = Some(symbol.id()),
            STT_FUNC if symbol.st_value == at => symbol.st_size += length,
            _ if symbol.st_value > at => symbol.st_value += length,
            _ => {}
        }
    }
    // .BTF.ext has offsets in the section, for functions and lines. Each has a relocation.
    let mut places = Vec::new();
    for other in &mut builder.sections {
        let SectionData::Relocation(relocations) = &mut other.data else { continue };
        if other.sh_info_section == Some(section) {
            let moved = relocations.iter_mut().filter(|it| it.r_offset >= at);
            moved.for_each(|it| it.r_offset += length);
        } else if other.name[..] == *b".rel.BTF.ext" {
            let here = relocations.iter().filter(|it| it.symbol == section_symbol);
            places.extend(here.map(|it| it.r_offset));
        }
    }
    move_calls(builder, section_symbol, at, length)?;
    let information = builder.sections.iter_mut().find(|it| it.name[..] == *b".BTF.ext");
    let Some(SectionData::Data(data)) = information.map(|it| &mut it.data) else {
        bail!("the object has no .BTF.ext");
    };
    for place in places {
        let rest = data.to_mut().get_mut(usize::try_from(place)?..);
        let offset = rest.and_then(<[u8]>::first_chunk_mut::<4>);
        let offset = offset.context("a relocation is outside .BTF.ext")?;
        let before = u32::from_le_bytes(*offset);
        if u64::from(before) > at {
            *offset = (before + u32::try_from(length)?).to_le_bytes();
        }
    }
    Ok(())
}

/// Moves the targets of calls to functions without a symbol of their own behind the place `at` (bytes) of
/// their section. Such a call has its target in words, without one, as the kernel counts from the next
/// instruction.
fn move_calls(
    builder: &mut Builder<'_>,
    section_symbol: Option<SymbolId>,
    at: u64,
    length: u64,
) -> Result<()> {
    let mut calls = Vec::new();
    for section in &builder.sections {
        if let SectionData::Relocation(relocations) = &section.data {
            let to_section = relocations.iter().filter(|it| it.symbol == section_symbol);
            calls.extend(to_section.map(|it| (section.sh_info_section, it.r_offset)));
        }
    }
    for (section, place) in calls {
        let Some(section) = section else { continue };
        let section = builder.sections.get_mut(section);
        let SectionData::Data(data) = &mut section.data else { continue };
        let instruction = data.to_mut().get_mut(usize::try_from(place)?..);
        let instruction = instruction.and_then(<[u8]>::first_chunk_mut::<INSTRUCTION>);
        // BPF_PSEUDO_CALL in the source register.
        if let Some(&mut [0x85, registers, _, _, ref mut target @ ..]) = instruction
            && registers >> 4 == 1
        {
            let before = i64::from(i32::from_le_bytes(*target)) + 1;
            if before * INSTRUCTION as i64 > i64::try_from(at)? {
                let after = before - 1 + i64::try_from(length)? / INSTRUCTION as i64;
                *target = i32::try_from(after)?.to_le_bytes();
            }
        }
    }
    Ok(())
}
