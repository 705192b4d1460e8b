//! The kernel's verifier accepts every program, and none is near a limit.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS;
use topo_lb::datapath::host::syscall;
use topo_lb_tests::verifier::pending;
use topo_lb_tests::verifier::{INSTRUCTION_LIMIT, JUMP_LIMIT, instructions, peak_jumps};

/// What `cargo xtask test --bless` has written.
const KNOWN: &str = include_str!("../verifier.tsv");

/// Detects growth before a kernel refuses a program.
const ENOUGH_INSTRUCTIONS: u32 = INSTRUCTION_LIMIT / 10 * 9;
const ENOUGH_JUMPS: u16 = JUMP_LIMIT / 10 * 9;

#[test]
fn every_program_is_far_from_the_verifier_s_limits() -> Result<()> {
    let instructions = instructions()?;
    ensure!(instructions.len() == 10, "{instructions:?}");
    let peak = |(program, guess): (String, u16)| {
        let jumps = peak_jumps(&program, guess)?;
        Ok((program, jumps))
    };
    let jumps = guesses(instructions.keys())?.into_iter().map(peak);
    let jumps = jumps.collect::<Result<BTreeMap<_, _>>>()?;
    println!();
    // `cargo xtask test` reads these lines.
    for (program, count) in &instructions {
        println!("verified {program} instructions {count}");
    }
    for (program, count) in &jumps {
        println!("verified {program} jumps {count}");
    }
    for (program, count) in instructions {
        ensure!(
            count <= ENOUGH_INSTRUCTIONS,
            "the verifier looks at {count} instructions of {program}, and refuses more than \
             {INSTRUCTION_LIMIT}: make its paths fewer before it grows"
        );
    }
    for (program, count) in jumps {
        ensure!(
            count <= ENOUGH_JUMPS,
            "the verifier puts {count} branches of {program} aside, and refuses more than \
             {JUMP_LIMIT}: make its paths shorter before it grows"
        );
    }
    Ok(())
}

/// The counts of this kernel, or of the newest one, as far as the repository has them.
fn guesses<'a>(programs: impl Iterator<Item = &'a String>) -> Result<BTreeMap<String, u16>> {
    let mut rows = KNOWN.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let head = rows.find(|row| row[0] == "program").context("no first line")?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let is_this = |kernel: &&str| release.starts_with(&format!("{kernel}."));
    let column = head.iter().position(is_this).unwrap_or(head.len() - 1);
    let known: BTreeMap<&str, u16> = rows
        .filter(|row| row[1] == "jumps")
        .filter_map(|row| Some((row[0], row.get(column)?.parse().ok()?)))
        .collect();
    let guess = |program: &'a String| (program.clone(), known.get(&**program).copied());
    Ok(programs.map(guess).map(|(name, known)| (name, known.unwrap_or(100))).collect())
}

/// The jumps in front of a program stay pending while the verifier walks through it, and count with
/// the program's own.
#[test]
fn the_kernel_refuses_one_pending_jump_too_many() -> Result<()> {
    for own in [1, 200] {
        for (in_front, is_accepted) in [(JUMP_LIMIT - own, true), (JUMP_LIMIT - own + 1, false)] {
            let exit = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
            let code = [pending::code(in_front)?, pending::code(own)?, exit.to_vec()].concat();
            let loaded = syscall::load(BPF_PROG_TYPE_SCHED_CLS, "pending", &code, 0);
            ensure!(loaded.is_ok() == is_accepted, "{in_front} and {own} jumps: {loaded:?}");
        }
    }
    Ok(())
}
