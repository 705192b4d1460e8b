//! The commands that read manifests and saved answers: what they print, and with what exit code.

mod closed_pipe;
mod evacuate;
mod explain_golden;
mod lint;
mod migrate;
mod plan;
mod remote;
mod run;
mod top;
