//! Checks: the request, the expected result, the result. Other people's scripts read this JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;
use topo_lb_tests::traffic::{Tally, Via};

use crate::bytes::Account;

/// Requests per check.
pub(crate) const REQUESTS: u32 = 200;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// In the order of execution.
    pub(crate) checks: Vec<Check>,
    /// How much of what the pods moved stayed in its zone; `null` if the kernel cannot count it.
    pub(crate) bytes: Option<Account>,
}

impl Report {
    pub(crate) fn is_ok(&self) -> bool {
        let is_exact = self.bytes.as_ref().is_none_or(Account::is_exact);
        is_exact && self.checks.iter().all(|check| check.ok)
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Check {
    /// What it shows.
    pub(crate) name: String,
    /// `namespace/name`.
    pub(crate) service: String,
    /// The pod that called, or `outside`.
    pub(crate) from: String,
    /// How many requests it sent.
    pub(crate) requests: u32,
    /// Answers by pod.
    pub(crate) replies: BTreeMap<String, u32>,
    /// How many requests were refused.
    pub(crate) refused: u32,
    /// The expected result.
    pub(crate) expected: Expected,
    /// Whether the result is the expected one.
    pub(crate) ok: bool,
}

/// The expected result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Expected {
    /// Each of these pods answers, and no other.
    pub(crate) pods: Vec<String>,
    /// How many requests are refused.
    pub(crate) refused: u32,
}

impl Expected {
    /// All of `pods` answer. With no pods, every request is refused.
    pub(crate) fn of(pods: &[&str]) -> Self {
        let refused = if pods.is_empty() { REQUESTS } else { 0 };
        Self { pods: pods.iter().map(|&pod| pod.into()).collect(), refused }
    }

    /// Whether a tally of any size has the expected result.
    pub(crate) fn fits(&self, tally: &Tally) -> bool {
        tally.is_of(&self.pods.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The request of a check.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    /// What the result shows.
    pub(crate) name: &'a str,
    /// The pod that calls, or [`OUTSIDE`](crate::stage::OUTSIDE).
    pub(crate) from: &'a str,
    /// The Service's name, in `default`.
    pub(crate) service: &'a str,
    /// The address to dial.
    pub(crate) to: SocketAddr,
    pub(crate) via: Via,
    /// The node that is dialled, for a client outside of the cluster.
    pub(crate) node: Option<&'a str>,
    /// The pods that should answer; empty if requests should be refused.
    pub(crate) pods: &'a [&'a str],
}

#[cfg(test)]
mod tests {
    use crate::bytes::Bytes;

    use super::*;

    fn tally(replies: &[(&str, u32)], refused: u32) -> Tally {
        let requests = replies.iter().map(|(_, count)| count).sum::<u32>() + refused;
        let replies = replies.iter().map(|&(pod, count)| (pod.to_owned(), count)).collect();
        Tally { requests, replies, refused, ..Tally::default() }
    }

    #[test]
    fn every_expected_pod_must_answer_and_no_other() {
        let expected = Expected::of(&["a", "b"]);
        assert!(expected.fits(&tally(&[("a", 120), ("b", 80)], 0)));
        assert!(!expected.fits(&tally(&[("a", 200)], 0)));
        assert!(!expected.fits(&tally(&[("a", 100), ("b", 99), ("c", 1)], 0)));
        assert!(!expected.fits(&tally(&[("a", 100), ("b", 99)], 1)));
    }

    #[test]
    fn a_refusal_is_a_refusal_of_all() {
        let expected = Expected::of(&[]);
        assert!(expected.fits(&tally(&[], 200)));
        assert!(!expected.fits(&tally(&[("a", 1)], 199)));
    }

    #[test]
    fn counts_that_differ_are_a_failure_and_a_kernel_that_cannot_count_is_none() {
        let [one, other] = [5, 6].map(|kept| Bytes { kept, crossed: 7 });
        let is_ok = |bytes| Report { checks: Vec::new(), bytes }.is_ok();
        let account = |counted, moved| Some(Account { counted, moved, ..Account::default() });
        assert!(is_ok(None) && is_ok(account(one, one)) && !is_ok(account(one, other)));
    }

    #[test]
    fn the_json_is_the_one_that_scripts_read() {
        let check = Check {
            name: "name".into(),
            service: "default/web".into(),
            from: "client".into(),
            requests: 200,
            replies: BTreeMap::from([("a".to_owned(), 200)]),
            refused: 0,
            expected: Expected::of(&["a"]),
            ok: true,
        };
        let counted = Bytes { kept: 5, crossed: 7 };
        let bytes = Some(Account { counted, moved: counted, ..Account::default() });
        let report = Report { checks: vec![check], bytes };
        let json = serde_json::to_string(&report).expect("it is JSON");
        assert_eq!(
            json,
            "{\"checks\":[{\"name\":\"name\",\"service\":\"default/web\",\"from\":\"client\",\
             \"requests\":200,\"replies\":{\"a\":200},\"refused\":0,\
             \"expected\":{\"pods\":[\"a\"],\"refused\":0},\"ok\":true}],\
             \"bytes\":{\"counted\":{\"kept\":5,\"crossed\":7},\"moved\":{\"kept\":5,\"crossed\":7}}}"
        );
    }
}
