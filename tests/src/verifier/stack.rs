//! The stack that a program and the functions that it calls take together, as `check_max_stack_depth`
//! (kernel/bpf/verifier.c) sums it. It is read from the object, because a newer kernel rounds less up than Linux 5.10,
//! and accepts what that one refuses.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use object::elf::{STT_FUNC, STT_SECTION};
use object::read::elf::{ElfFile64, ElfSymbol64};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{RelocationTarget, SectionIndex};

/// The most that a program and the functions that it calls may take, in bytes (`MAX_BPF_STACK`,
/// include/linux/filter.h).
pub const STACK_LIMIT: u32 = 512;

/// A frame is rounded up to a multiple of this, in bytes. Newer kernels take 16 where they compile programs.
const GRANULARITY: u32 = 32;

/// The size of `struct bpf_insn`.
const INSTRUCTION: usize = 8;

/// Functions from a program to the last one that it calls, and what their frames take, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Each function with its own frame.
    pub frames: Vec<(String, u32)>,
    /// All together.
    pub bytes: u32,
}

/// The number of a section, and the offset (bytes) of a function in it.
type Address = (usize, u64);

struct Function {
    name: String,
    frame: u32,
    calls: Vec<Address>,
}

/// For each program of an object the chain of calls that takes most.
///
/// # Errors
/// It is no object of programs.
pub fn deepest(object: &[u8]) -> Result<BTreeMap<String, Chain>> {
    let file = ElfFile64::<Endianness>::parse(object).context("it is no ELF object")?;
    let mut functions = BTreeMap::new();
    for symbol in file.symbols().filter(|it| kind(it) == STT_FUNC) {
        let section = symbol.section_index().context("a function without code")?;
        let place = (section.0, symbol.address());
        functions.insert(place, function(&file, &symbol)?);
    }
    let mut chains = BTreeMap::new();
    for (&place, program) in &functions {
        // The other functions are in .text, and each program has a section of its own.
        if file.section_by_index(SectionIndex(place.0))?.name()? != ".text" {
            chains.insert(program.name.clone(), deepest_from(&functions, place, &mut vec![])?);
        }
    }
    ensure!(!chains.is_empty(), "it has no programs");
    Ok(chains)
}

fn kind(symbol: &ElfSymbol64<'_, '_>) -> u8 {
    symbol.elf_symbol().st_type()
}

fn function(file: &ElfFile64<'_>, symbol: &ElfSymbol64<'_, '_>) -> Result<Function> {
    let (index, begin) = (symbol.section_index().context("a section")?, symbol.address());
    let section = file.section_by_index(index)?;
    let range = usize::try_from(begin)?..usize::try_from(begin + symbol.size())?;
    let code = section.data()?.get(range).context("a function outside its section")?;
    let (code, _) = code.as_chunks::<INSTRUCTION>();
    let targets: BTreeMap<u64, Address> = section
        .relocations()
        .filter_map(|(offset, relocation)| match relocation.target() {
            RelocationTarget::Symbol(target) => Some((offset, file.symbol_by_index(target).ok()?)),
            _ => None,
        })
        .filter(|(_, target)| matches!(kind(target), STT_FUNC | STT_SECTION))
        .filter_map(|(offset, target)| {
            Some((offset, (target.section_index()?.0, target.address())))
        })
        .collect();
    let calls = (0..).zip(code).filter(|(_, it)| is_call(it)).map(|(at, instruction)| {
        // In instructions from the next one, or from the symbol's place.
        let offset = begin + at * INSTRUCTION as u64;
        let next = (i64::from(immediate(instruction)) + 1) * INSTRUCTION as i64;
        let (section, base) = targets.get(&offset).copied().unwrap_or((index.0, offset));
        Ok((section, base.checked_add_signed(next).context("a call outside its section")?))
    });
    Ok(Function {
        name: symbol.name()?.to_owned(),
        frame: frame(code),
        calls: calls.collect::<Result<_>>()?,
    })
}

/// The chain of calls from a function that takes most. `above`: the functions that lead there.
fn deepest_from(
    functions: &BTreeMap<Address, Function>,
    place: Address,
    above: &mut Vec<Address>,
) -> Result<Chain> {
    let function = functions.get(&place).context("a call to no function")?;
    ensure!(!above.contains(&place), "{} calls itself", function.name);
    above.push(place);
    let mut deepest = Chain::default();
    for call in &function.calls {
        let chain = deepest_from(functions, *call, above)?;
        if chain.bytes > deepest.bytes {
            deepest = chain;
        }
    }
    above.pop();
    deepest.frames.insert(0, (function.name.clone(), function.frame));
    deepest.bytes += function.frame.max(1).next_multiple_of(GRANULARITY);
    Ok(deepest)
}

/// A call of another function of the object (`BPF_JMP | BPF_CALL` with `BPF_PSEUDO_CALL`).
fn is_call(instruction: &[u8; INSTRUCTION]) -> bool {
    let [code, registers, ..] = *instruction;
    code == 0x85 && registers >> 4 == 1
}

fn immediate(&[_, _, _, _, a, b, c, d]: &[u8; INSTRUCTION]) -> i32 {
    i32::from_le_bytes([a, b, c, d])
}

/// How far below r10 a function's code reads, writes or points to, in bytes. It is followed as it stands, without its
/// jumps: a pointer to the stack is made right before it is used.
fn frame(code: &[[u8; INSTRUCTION]]) -> u32 {
    /// Classes of instructions, their lowest three bits (include/uapi/linux/bpf.h, bpf_common.h).
    const LD: u8 = 0;
    const LDX: u8 = 1;
    const ST: u8 = 2;
    const STX: u8 = 3;
    const ALU: u8 = 4;
    const JMP: u8 = 5;
    const ALU64: u8 = 7;
    /// `BPF_ALU64 | BPF_MOV | BPF_X`, and `BPF_ALU64 | BPF_ADD | BPF_K`.
    const MOVE: u8 = 0xbf;
    const ADD: u8 = 0x07;
    const CALL: u8 = 0x85;
    // What each register is above r10, if it points to the stack.
    let mut above: [Option<i32>; 16] = [None; 16];
    above[10] = Some(0);
    let mut lowest = 0;
    for instruction in code {
        let [operation, registers, low, high, ..] = *instruction;
        let offset = i32::from(i16::from_le_bytes([low, high]));
        let (to, from) = (usize::from(registers & 0xf), usize::from(registers >> 4));
        let used = match operation & 7 {
            LDX => above[from].map(|base| base + offset),
            ST | STX => above[to].map(|base| base + offset),
            _ => None,
        };
        let becomes = match operation & 7 {
            _ if operation == MOVE => above[from],
            _ if operation == ADD => above[to].map(|base| base + immediate(instruction)),
            JMP if operation == CALL => {
                above[..6].fill(None);
                continue;
            }
            LD | LDX | ALU | ALU64 => None,
            _ => above[to],
        };
        lowest = lowest.min(used.unwrap_or_default()).min(becomes.unwrap_or_default());
        above[to] = becomes;
    }
    lowest.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reaches_to_the_lowest_place_that_is_used_or_pointed_to() {
        let store = [0x7b, 0x1a, 0xf0, 0xff, 0, 0, 0, 0]; // *(u64 *)(r10 - 16) = r1
        let copy = [0xbf, 0xa2, 0, 0, 0, 0, 0, 0]; // r2 = r10
        let lower = [0x07, 0x02, 0, 0, 0xd8, 0xff, 0xff, 0xff]; // r2 += -40
        let below = [0x7a, 0x02, 0xf8, 0xff, 0, 0, 0, 0]; // *(u64 *)(r2 - 8) = 0
        let other = [0xb7, 0x02, 0, 0, 0, 0, 0, 0]; // r2 = 0
        for (code, wanted) in [
            (&[][..], 0),
            (&[store], 16),
            (&[store, copy], 16),
            (&[store, copy, lower], 40),
            (&[store, copy, lower, below], 48),
            (&[copy, other, lower], 0),
        ] {
            assert_eq!(frame(code), wanted, "{code:02x?}");
        }
    }

    #[test]
    fn frames_of_a_chain_are_rounded_up_each() {
        let at = |offset| (1, offset);
        let function = |name: &str, frame, calls: &[u64]| Function {
            name: name.to_owned(),
            frame,
            calls: calls.iter().map(|offset| at(*offset)).collect(),
        };
        let functions = BTreeMap::from([
            (at(0), function("program", 8, &[8, 16])),
            (at(8), function("short", 64, &[])),
            (at(16), function("long", 0, &[24])),
            (at(24), function("last", 33, &[])),
        ]);
        let chain = deepest_from(&functions, at(0), &mut vec![]).unwrap();
        assert_eq!(chain.bytes, 32 + 32 + 64);
        let names: Vec<_> = chain.frames.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["program", "long", "last"]);
        let endless = BTreeMap::from([(at(0), function("program", 8, &[0]))]);
        assert!(deepest_from(&endless, at(0), &mut vec![]).is_err());
    }
}
