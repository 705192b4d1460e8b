//! What the page about compatibility says was *run*: each suite, each test and each machine that it names is there.

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

/// A sentence for each name that no suite has. `suites`: their sources without white space.
pub(super) fn faults(page: &str, suites: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let mut fault = |what: &str| {
            faults.push(format!("docs/compatibility.md:{number}: {what}, which is said to be run"));
        };
        for run in RUN.captures_iter(line) {
            for named in SUITES.captures_iter(&run[1]) {
                let names = named[1].split('`').filter(|it| !it.is_empty());
                let names = names.filter(|it| ![", ", " and "].contains(it));
                names.filter(|it| !has_suite(it, suites)).for_each(|name| {
                    fault(&format!("there is no suite {name}"));
                });
            }
            for named in KERNELS.captures_iter(&run[1]) {
                let names = named[1].split(',').filter(|it| ALL.iter().all(|one| one.name != *it));
                names.for_each(|name| fault(&format!("there is no kernel {name}")));
            }
            for test in TEST.captures_iter(&run[1]) {
                if !has_test(&test[1], suites) {
                    fault(&format!("there is no test {}", &test[1]));
                }
            }
        }
    }
    faults
}

fn has_suite(name: &str, suites: &BTreeMap<String, String>) -> bool {
    suites.contains_key(name)
}

/// Whether a suite has this test, and the modules before it.
fn has_test(path: &str, suites: &BTreeMap<String, String>) -> bool {
    let parts: Vec<&str> = path.split("::").collect();
    let [suite, modules @ .., test] = &parts[..] else { return false };
    let Some(source) = suites.get(*suite) else { return false };
    modules.iter().all(|module| source.contains(&format!("mod{module};")))
        && source.contains(&format!("#[test]fn{test}("))
}

#[cfg(test)]
mod tests {
    use super::super::{commands, page};
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn what_is_said_to_be_run_is_in_the_suites() {
        let workspace = Workspace::find().unwrap();
        let pages = page::all(&workspace).unwrap();
        let text = &pages["docs/compatibility.md"].text;
        let faults = faults(text, &commands::suites(&workspace).unwrap());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(TEST.find_iter(text).count() > 20, "the page names no tests any more");
    }

    #[test]
    fn a_name_without_a_suite_module_or_test_is_a_fault() {
        let source = "modcni;#[test]fnptp(){}";
        let suites = BTreeMap::from([
            ("neighbours".to_owned(), source.to_owned()),
            ("dns".to_owned(), String::new()),
        ]);
        for (cell, wanted) in [
            ("*run*: `neighbours::cni::ptp`; suites `dns`, `neighbours`", ""),
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
            let said = faults(&format!("| x | {cell} | `other::thing` |"), &suites).join("\n");
            assert!(
                said.contains(wanted) && said.is_empty() == wanted.is_empty(),
                "{cell}: {said}"
            );
        }
    }
}
