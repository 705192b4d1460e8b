//! Leaves nothing behind after Ctrl-C and SIGTERM.

use std::process::{self, ExitCode};
use std::sync::Once;
use std::thread;

use anstyle::AnsiColor;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::permit::{forbid, permit};
use crate::{prefix, residue};

/// From now on SIGINT, SIGTERM and SIGHUP remove everything that this process has made, and end it
/// with 128 + the signal's number, as in shells.
pub fn arm() -> Result<()> {
    static ARMED: Once = Once::new();
    let mut outcome = Ok(());
    ARMED.call_once(|| outcome = listen());
    outcome
}

/// The exit code of a program with this result: 0 for `true`, otherwise 1. Prints an error. After a
/// signal this blocks, so that failures due to the sweep do not count.
pub fn exit_code(result: Result<bool>) -> ExitCode {
    let _not_interrupted = permit();
    if let Err(error) = &result {
        let red = AnsiColor::Red.on_default();
        anstream::eprintln!("{red}error:{red:#} {error:#}");
    }
    ExitCode::from(u8::from(!matches!(result, Ok(true))))
}

fn listen() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context("cannot listen for signals, so Ctrl-C could not clean up")?;
    thread::Builder::new()
        .name("interrupt".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                forbid();
                eprintln!("\ninterrupted: cleaning up");
                let me = process::id();
                if let Err(error) = residue::sweep(|name| prefix::owner(name) == Some(me)) {
                    eprintln!("{error:#}");
                }
                process::exit(128 + signal);
            }
        })
        .context("cannot start the thread that cleans up on Ctrl-C")?;
    Ok(())
}
