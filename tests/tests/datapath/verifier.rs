//! The kernel's verifier accepts every program, and none is near a limit.

use std::collections::BTreeMap;
use std::env;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS;
use fs_err as fs;
use topo_lb_kernel::datapath::host::syscall;
use topo_lb_tests::packets::object_path;
use topo_lb_tests::requirements;
use topo_lb_tests::verifier::pending::{self, Field};
use topo_lb_tests::verifier::stack::{STACK_LIMIT, deepest};
use topo_lb_tests::verifier::{INSTRUCTION_LIMIT, JUMP_LIMIT, Serving, instructions, peak_jumps};

/// What `cargo xtask test --bless` has written.
const KNOWN: &str = include_str!("../../verifier.tsv");

/// If `true`, the pending jumps of every program are searched, and programs are loaded with all flags of
/// the agent. `cargo xtask test` sets it for kernels that are named.
const ALL_OF_VERIFIER: &str = "TOPO_LB_ALL_OF_VERIFIER";

fn all_of_verifier() -> bool {
    env::var(ALL_OF_VERIFIER).as_deref() == Ok("true")
}

/// Detects growth before a kernel refuses a program.
const ENOUGH_INSTRUCTIONS: u32 = INSTRUCTION_LIMIT / 10 * 9;
const ENOUGH_JUMPS: u16 = JUMP_LIMIT / 10 * 9;

/// The tests take turns: [`instructions`] takes the descriptors of the whole process away.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn every_program_is_far_from_the_verifier_s_limits() -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let instructions = instructions(Serving::MOST)?;
    // Two of accounting and the walk take atomic instructions.
    let all = match requirements::walks() {
        true => 18,
        false if requirements::kernel() < (5, 12) => 15,
        false => 16,
    };
    // And those of XDP, of which one takes frames in several buffers.
    let all = all + if requirements::kernel() < (5, 18) { 1 } else { 2 };
    ensure!(instructions.len() == all, "{instructions:?}");
    // `cargo xtask test` reads these lines, and those of jumps below. The first must not follow the name
    // of the test, which libtest leaves without an end of line.
    println!();
    for (program, count) in &instructions {
        println!("verified {program} instructions {count}");
    }
    // The verifier is deterministic: a program with as many instructions as before has as many pending
    // jumps as before. To search them takes minutes in a virtual machine.
    let known = Known::read(!all_of_verifier())?;
    let (same, other): (BTreeMap<_, _>, BTreeMap<_, _>) =
        instructions.iter().partition(|(program, count)| known.is_same(program, **count));
    let mut jumps = known.jumps(same.into_keys());
    println!("pending jumps: {} known, {} to search", jumps.len(), other.len());
    for (program, guess) in known.jumps(other.into_keys()) {
        let peak = peak_jumps(&program, guess)?;
        jumps.insert(program, peak);
    }
    for (program, count) in &jumps {
        println!("verified {program} jumps {count}");
    }
    ensure_few(&instructions)?;
    for (program, count) in jumps {
        ensure!(
            count <= ENOUGH_JUMPS,
            "the verifier puts {count} branches of {program} aside, and refuses more than \
             {JUMP_LIMIT}: make its paths shorter before it grows"
        );
    }
    Ok(())
}

fn ensure_few(instructions: &BTreeMap<String, u32>) -> Result<()> {
    for (program, count) in instructions {
        ensure!(
            *count <= ENOUGH_INSTRUCTIONS,
            "the verifier looks at {count} instructions of {program}, and refuses more than \
             {INSTRUCTION_LIMIT}: make its paths fewer before it grows"
        );
    }
    Ok(())
}

/// Also on a kernel that accepts more.
#[test]
fn no_chain_of_calls_takes_more_stack_than_linux_5_10_has() -> Result<()> {
    for (program, chain) in deepest(&fs::read(object_path())?)? {
        println!("stack {program} bytes {}", chain.bytes);
        ensure!(
            chain.bytes <= STACK_LIMIT,
            "{program} and what it calls take {} bytes of stack, and Linux 5.10 has {STACK_LIMIT}: \
             {:?}",
            chain.bytes,
            chain.frames
        );
    }
    Ok(())
}

/// A program that is accepted with most of its paths can be refused with fewer: the frames that
/// remain may be deeper together.
#[test]
fn every_program_is_accepted_whatever_the_agent_s_flags_are() -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let ways = if all_of_verifier() { Serving::all() } else { Serving::corners().into() };
    for serving in ways {
        let instructions = instructions(serving).with_context(|| format!("{serving:?}"))?;
        ensure_few(&instructions).with_context(|| format!("{serving:?}"))?;
    }
    Ok(())
}

/// The repository's counts of this kernel or, as guesses, of the newest one.
struct Known {
    counts: BTreeMap<(&'static str, &'static str), u32>,
    /// Whether the counts are of this kernel, and may be relied on.
    are_its: bool,
}

impl Known {
    fn read(may_rely: bool) -> Result<Self> {
        let mut rows = KNOWN.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let head = rows.find(|row| row[0] == "program").context("no first line")?;
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let is_this = |kernel: &&str| release.starts_with(&format!("{kernel}."));
        let column = head.iter().position(is_this);
        let place = column.unwrap_or(head.len() - 1);
        let counts = rows.filter_map(|row| Some(((row[0], row[1]), row.get(place)?.parse().ok()?)));
        Ok(Self { counts: counts.collect(), are_its: may_rely && column.is_some() })
    }

    fn is_same(&self, program: &str, instructions: u32) -> bool {
        self.are_its
            && self.counts.get(&(program, "instructions")) == Some(&instructions)
            && self.counts.contains_key(&(program, "jumps"))
    }

    /// The pending jumps of programs, or a guess.
    fn jumps<'a>(&self, programs: impl Iterator<Item = &'a String>) -> BTreeMap<String, u16> {
        let jumps = |program: &str| u16::try_from(*self.counts.get(&(program, "jumps"))?).ok();
        programs.map(|it| (it.clone(), jumps(it).unwrap_or(100))).collect()
    }
}

/// The jumps in front of a program stay pending while the verifier walks through it, and count with
/// the program's own.
#[test]
fn the_kernel_refuses_one_pending_jump_too_many() -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for own in [1, 200] {
        for (in_front, is_accepted) in [(JUMP_LIMIT - own, true), (JUMP_LIMIT - own + 1, false)] {
            let exit = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
            let code = [
                pending::code(in_front, Field::Word(0))?,
                pending::code(own, Field::Word(0))?,
                exit.to_vec(),
            ]
            .concat();
            let loaded = syscall::load(BPF_PROG_TYPE_SCHED_CLS, "pending", &code, 0);
            ensure!(loaded.is_ok() == is_accepted, "{in_front} and {own} jumps: {loaded:?}");
        }
    }
    Ok(())
}
