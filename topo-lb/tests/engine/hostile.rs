//! Hostile strings in objects: no panic, no effect on other Services, plain text as output.

use proptest::prelude::*;
use topo_lb_core::topology::Scope;
use topo_lb_core::{explain, lint};

use crate::made::{Cluster, Otherwise, asking, endpoint, id, node, service};

/// Any text, often almost valid.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => any::<String>(),
        8 => "[-a-z0-9./*,% _\u{0}\u{1b}\u{202e}\u{feff}]{0,40}",
        8 => "(\\*|rack|a/b|,| ){0,20}",
        8 => "[0-9]{0,30}(\\.[0-9]{0,4})?%?",
        1 => Just(",".repeat(20_000)),
        1 => Just("k".repeat(20_000)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_strings_at_all_are_explained_in_plain_text(
        keys in proptest::option::of(text()),
        openyurt in proptest::option::of(text()),
        field in proptest::collection::vec(text(), 0..3),
        least in proptest::option::of(text()),
        spill in proptest::option::of(text()),
        weights in proptest::option::of(text()),
        ejection in proptest::option::of(text()),
        after in proptest::option::of(text()),
        trial in proptest::option::of(text()),
        names_mode in any::<bool>(),
        names in proptest::array::uniform4(text()),
    ) {
        let [this_node, other_node, label, value] = names;
        let mut odd = asking(|policy| {
            policy.topology_keys = keys.map(Into::into);
            policy.openyurt = openyurt.map(Into::into);
            policy.spec_topology_keys = field.into_iter().map(Into::into).collect();
            policy.min_endpoints = least.map(Into::into);
            policy.spill = spill.map(Into::into);
            policy.weights = weights.map(Into::into);
            policy.ejection = ejection.map(Into::into);
            policy.return_after = after.map(Into::into);
            let trial = trial.map(Into::into);
            *(if names_mode { &mut policy.mode } else { &mut policy.ramp }) = trial;
        });
        odd.id.name = value.as_str().into();
        odd.ports[0].name = label.as_str().into();
        let labels = [(label.as_str(), value.as_str()), ("rack", value.as_str())];
        let nodes = vec![node(&this_node, &labels), node(&other_node, &labels)];
        let mut cluster = Cluster::of(nodes, service(), vec![
            endpoint("10.0.0.1", &this_node).carrying(&labels).for_zones(&[&value]),
            endpoint("10.0.0.2", &other_node).for_nodes(&[&other_node]),
            endpoint("10.0.0.3", &label).draining(),
        ]);
        // Gives both Services the same endpoints.
        let mut slice = cluster.slices[0].clone();
        slice.id.name = "odd".into();
        slice.service = Some(odd.id.clone());
        slice.ports[0].name = odd.ports[0].name.clone();
        cluster.slices.push(slice);
        let alone = cluster.routes(&this_node);
        if odd.id != id("svc") {
            cluster.services.push(odd);
            prop_assert_eq!(cluster.routes(&this_node), alone, "another Service was touched");
        }

        let state = cluster.state(&this_node);
        let report = explain::report(&state, &this_node, Scope::All, &[]);
        let findings = lint::findings(&state, Scope::All);
        let mut printed = explain::table(&report, false) + &lint::table(&findings, false);
        for id in state.services() {
            printed += &explain::spread_table(&explain::spread(&state, Scope::All, id), false);
        }
        let plain = |one: char| one == '\n' || !one.is_control() && one != '\u{202e}';
        prop_assert!(printed.chars().all(plain), "{:?}", printed);
        let longest = printed.lines().map(str::len).max().unwrap_or_default();
        prop_assert!(longest < 6_000, "a line of {} bytes", longest);
        prop_assert!(serde_json::to_string(&report).is_ok());
        prop_assert!(serde_json::to_string(&findings).is_ok());
    }
}
