//! The most pending jumps that the verifier has at the same time in a program. It does not report
//! them, but refuses a program with too many: the more jumps it still accepts in front of a program,
//! the fewer the program has.

use anyhow::{Context as _, Result};
use aya::Btf;
use aya::programs::ProgramError;

use super::{JUMP_LIMIT, Serving, load, pending, prepare};
use crate::packets::object;

/// The verifier's words for too many pending jumps (`push_stack`, kernel/bpf/verifier.c).
const REFUSAL: &str = "jumps is too complex";
/// Its words for more than a million instructions. The jumps in front of all functions may be as many: then
/// functions get them in turns.
const TOO_LARGE: &str = "program is too large";
const MOST_PARTS: usize = 8;

/// The most pending jumps at the same time, in a program and the functions that it calls. A wrong
/// guess only takes longer.
///
/// # Errors
/// The object is not built, or the verifier refuses the program for another reason.
pub fn peak_jumps(program: &str, guess: u16) -> Result<u16> {
    let object = object()?;
    let btf = Btf::from_sys_fs().context("the kernel has no BTF")?;
    let (mut search, mut parts) = (Search::new(guess), 1);
    'peaks: while let Some(peak) = search.next() {
        let mut is_accepted = true;
        for part in 0..parts {
            let padded = pending::before(&object, program, JUMP_LIMIT - peak, (part, parts))?;
            let mut ebpf = prepare(&padded, Serving::MOST)?;
            let program = ebpf.program_mut(program).with_context(|| format!("no {program}"))?;
            let Err(error) = load(program, &btf) else { continue };
            let log = match &error {
                ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
                _ => String::new(),
            };
            if log.contains(TOO_LARGE) && parts < MOST_PARTS {
                parts *= 2;
                continue 'peaks;
            }
            if !log.contains(REFUSAL) {
                return Err(error).context("the verifier refuses it for another reason");
            }
            is_accepted = false;
            break;
        }
        search.narrow(peak, is_accepted);
    }
    Ok(search.high)
}

/// The search for a program's peak, which is at least `low` and at most `high`. It begins at a guess,
/// and goes away from there in steps that double, until the peak is between two tried numbers.
#[derive(Debug)]
struct Search {
    guess: u16,
    low: u16,
    high: u16,
    step: u16,
}

impl Search {
    fn new(guess: u16) -> Self {
        Self { guess, low: 0, high: JUMP_LIMIT, step: 1 }
    }

    /// The number to try next; `None` if the peak is known.
    fn next(&self) -> Option<u16> {
        let next = match (self.low > 0, self.high < JUMP_LIMIT) {
            (false, false) => self.guess,
            (false, true) => self.high.saturating_sub(self.step),
            (true, false) => self.low.saturating_add(self.step - 1),
            (true, true) => self.low.midpoint(self.high),
        };
        (self.low < self.high).then(|| next.clamp(self.low, self.high - 1))
    }

    /// Takes note of whether the peak is at most `tried`.
    fn narrow(&mut self, tried: u16, is_at_most: bool) {
        if self.low > 0 || self.high < JUMP_LIMIT {
            self.step = self.step.saturating_mul(2);
        }
        *(if is_at_most { &mut self.high } else { &mut self.low }) = tried + u16::from(!is_at_most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of tries until the peak is found.
    fn tries(guess: u16, peak: u16) -> usize {
        let mut search = Search::new(guess);
        let mut count = 0;
        while let Some(tried) = search.next() {
            search.narrow(tried, peak <= tried);
            count += 1;
        }
        assert_eq!(search.high, peak, "with the guess {guess}");
        count
    }

    #[test]
    fn every_peak_is_found_from_every_guess() {
        for guess in [0, 1, 70, 8_191, JUMP_LIMIT, u16::MAX] {
            for peak in 0..=JUMP_LIMIT {
                assert!(tries(guess, peak) <= 28, "{peak} with the guess {guess}");
            }
        }
    }

    #[test]
    fn a_right_guess_takes_two_tries() {
        assert_eq!(tries(70, 70), 2);
        assert_eq!(tries(70, 71), 2);
        assert!(tries(70, 60) <= 9);
    }
}
