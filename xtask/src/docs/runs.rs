//! What the pages about compatibility and releases say was *run*: each suite, test and machine that they name is there.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use crate::virtual_machine::ALL;

/// What is after *run* in a cell, and after a further mark no more.
static RUN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\*run\*([^|*]*)").expect("a constant expression"));
/// `suite::module::test`.
static TEST: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`(\w+(?:::\w+)+)`").expect("a constant expression"));
/// The suites `a`, `b`.
static SUITES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"suites? (`\w+`(?:(?:, | and )`\w+`)*)").expect("a constant expression")
});
/// The machines of `cargo xtask test --kernel a,b`.
static KERNELS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"--kernel ([\w.,-]+)").expect("a constant expression"));
/// What else can be looked up or run again: a page, a command.
static ELSE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\.md[#)]|`cargo xtask ").expect("a constant expression"));

/// The pages that say what was run.
pub(super) const PAGES: [&str; 2] = ["docs/compatibility.md", "docs/releases.md"];

/// A sentence for each name that no suite has. `suites`: their sources without white space.
pub(super) fn faults(path: &str, page: &str, suites: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let names = named(line).into_iter().filter(|name| !is_there(name, suites));
        faults.extend(names.map(|name| {
            let kind = match name.starts_with(KERNEL) {
                true => "",
                false if name.contains("::") => "test ",
                false => "suite ",
            };
            format!("{path}:{number}: there is no {kind}{name}, which is said to be run")
        }));
    }
    faults
}

/// How the name of a machine begins, in what [`named`] returns.
const KERNEL: &str = "kernel ";

/// The suites, tests and machines that a line says were run.
pub(crate) fn named(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for run in RUN.captures_iter(line) {
        for suites in SUITES.captures_iter(&run[1]) {
            names.extend(suites[1].split('`').skip(1).step_by(2).map(str::to_owned));
        }
        names.extend(TEST.captures_iter(&run[1]).map(|test| test[1].to_owned()));
        for machines in KERNELS.captures_iter(&run[1]) {
            names.extend(machines[1].split(',').map(|name| format!("{KERNEL}{name}")));
        }
    }
    names
}

/// A sentence for each row of a page's tables that says neither *run*, *read* nor *unknown*, or does not say what
/// was run.
pub(crate) fn without_a_run(path: &str, page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines: Vec<&str> = page.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("| ")) {
        if lines.get(at + 1).is_some_and(|next| next.starts_with("|--")) {
            continue;
        }
        let mut fault = |what: &str| faults.push(format!("{path}:{}: {what}", at + 1));
        if !["*run*", "*read*", "*unknown*"].iter().any(|mark| line.contains(mark)) {
            fault("the row says neither *run*, *read* nor *unknown*");
        }
        for run in RUN.captures_iter(line) {
            if ![&*SUITES, &*TEST, &*ELSE].iter().any(|it| it.is_match(&run[1])) {
                fault("the row does not name what was run");
            }
        }
    }
    faults
}

/// Whether there is a suite or a machine of this name, or a test of a suite with the modules before it.
pub(crate) fn is_there(name: &str, suites: &BTreeMap<String, String>) -> bool {
    if let Some(machine) = name.strip_prefix(KERNEL) {
        return ALL.iter().any(|it| it.name == machine);
    }
    let mut parts: Vec<&str> = name.split("::").collect();
    let source = suites.get(parts.remove(0));
    let Some(test) = parts.pop() else { return source.is_some() };
    // A test may have further attributes: `#[ignore = …]`.
    let is_test = |source: &str| {
        let before = source.split_once(&format!("fn{test}(")).map(|(before, _)| before);
        before.is_some_and(|before| {
            before.rsplit_once("#[test]").is_some_and(|(_, rest)| {
                rest.is_empty() || rest.starts_with("#[") && rest.ends_with(']')
            })
        })
    };
    source.is_some_and(|source| {
        parts.iter().all(|module| source.contains(&format!("mod{module};"))) && is_test(source)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{commands, page};
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn what_is_said_to_be_run_is_in_the_suites() {
        let workspace = Workspace::find().unwrap();
        let (pages, suites) =
            (page::all(&workspace).unwrap(), commands::suites(&workspace).unwrap());
        for (path, tests) in PAGES.into_iter().zip([20, 2]) {
            let text = &pages[path].text;
            let faults = faults(path, text, &suites);
            assert!(faults.is_empty(), "{}", faults.join("\n"));
            assert!(TEST.find_iter(text).count() > tests, "{path} names no tests any more");
        }
    }

    #[test]
    fn a_name_without_a_suite_module_or_test_is_a_fault() {
        let source = "modcni;#[test]fnptp(){}#[test]#[ignore=\"slow\"]fnlate(){}fnneither(){}";
        let suites = BTreeMap::from([
            ("neighbours".to_owned(), source.to_owned()),
            ("dns".to_owned(), String::new()),
        ]);
        for (cell, wanted) in [
            ("*run*: `neighbours::cni::ptp`; suites `dns`, `neighbours`", ""),
            ("*run*: `neighbours::cni::late`", ""),
            ("*run*: `neighbours::cni::neither`", "there is no test neighbours::cni::neither"),
            ("*run*: suites `dns` and `gone`", "there is no suite gone"),
            ("*run*: suite `gone`", "there is no suite gone"),
            ("*run*: `neighbours::cni::gone`", "there is no test neighbours::cni::gone"),
            ("*run*: `neighbours::gone::ptp`", "there is no test neighbours::gone::ptp"),
            ("*run*: `gone::ptp`", "there is no test gone::ptp"),
            ("*run*: `cargo xtask test --kernel 5.10,no-ipv6`", ""),
            ("*run*: `cargo xtask test --kernel 5.10,gone`", "there is no kernel gone"),
            ("*read*: `gone::ptp`, suite `gone`", ""),
            ("*run*: suite `dns`; the rest *unknown*: `gone::ptp`", ""),
        ] {
            let said = faults("a.md", &format!("| x | {cell} | `other::thing` |"), &suites);
            let said = said.join("\n");
            assert!(
                said.contains(wanted) && said.is_empty() == wanted.is_empty(),
                "{cell}: {said}"
            );
        }
    }

    #[test]
    fn a_row_without_a_mark_or_without_what_was_run_is_a_fault() {
        for (cell, wanted) in [
            ("*run*: suite `dns`", ""),
            ("*run* in an emulator: `cargo xtask test --kernel arm64`", ""),
            ("*run*: [every program](reliability.md#kernels)", ""),
            ("*read*: its documentation", ""),
            ("it goes", "a.md:3: the row says neither"),
            ("*run* by us", "a.md:3: the row does not name what was run"),
            ("*run*: suite `dns`; also *run* elsewhere", "a.md:3: the row does not name"),
        ] {
            let page = format!("| with | seen |\n|---|---|\n| x | {cell} |\n");
            let said = without_a_run("a.md", &page).join("\n");
            assert!(
                said.starts_with(wanted) && said.is_empty() == wanted.is_empty(),
                "{cell}: {said}"
            );
        }
    }
}
