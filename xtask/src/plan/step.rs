//! A plan: what is done to a machine, and what a person has to do.

use crate::process::quoted;

/// What would make the machine ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What xtask can do, in this order.
    pub(crate) steps: Vec<Step>,
    /// What a person has to do; xtask does nothing before.
    pub(crate) missing: Vec<Missing>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What it does, for people.
    pub(crate) title: String,
    /// The name of its log.
    pub(crate) log: &'static str,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) command: Vec<String>,
    /// Continue after a failure: the next step shows whether it matters.
    pub(crate) may_fail: bool,
}

/// Something that xtask cannot install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// What is missing, and for what.
    pub(crate) what: String,
    /// The command that helps.
    pub(crate) command: String,
}

impl Step {
    pub(super) fn new(title: impl Into<String>, log: &'static str, command: &[&str]) -> Self {
        Self {
            title: title.into(),
            log,
            environment: Vec::new(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            may_fail: false,
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// The command as one would type it.
    pub(crate) fn display(&self) -> String {
        let settings = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let words = self.command.iter().map(|word| quoted(word));
        settings.chain(words).collect::<Vec<_>>().join(" ")
    }
}
