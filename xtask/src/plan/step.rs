//! A plan: the steps for xtask, and the tasks for a person.

use crate::process::quoted;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// xtask's steps, in order.
    pub(crate) steps: Vec<Step>,
    /// A person's tasks; xtask does nothing before they are done.
    pub(crate) missing: Vec<Missing>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// A description for people.
    pub(crate) title: String,
    pub(crate) log: &'static str,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) command: Vec<String>,
    /// Continues after a failure: the next step shows whether it matters.
    pub(crate) may_fail: bool,
}

/// Something that xtask cannot install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// What is missing, and its purpose.
    pub(crate) what: String,
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

    /// The command as typed in a shell.
    pub(crate) fn display(&self) -> String {
        let settings = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let words = self.command.iter().map(|word| quoted(word));
        settings.chain(words).collect::<Vec<_>>().join(" ")
    }
}
