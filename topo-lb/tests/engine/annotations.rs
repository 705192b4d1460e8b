//! Where each annotation counts.

use strum::IntoEnumIterator as _;
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Annotation, On};
use topo_lb_kube::source::object::{Object, parse};

#[test]
fn an_annotation_counts_where_the_table_says_and_nowhere_else() {
    for one in Annotation::iter() {
        for on in [On::Service, On::Namespace, On::Pod] {
            let object = serde_json::json!({"apiVersion": "v1", "kind": on.to_string(), "metadata":
                {"name": "a", "uid": "u", "annotations": {one.name(): "true"}}});
            let said = match parse(object).expect("an object") {
                Object::Service(service) => one.said(&service.policy).is_some(),
                Object::Namespace(namespace, _) => one.said(&namespace.policy).is_some(),
                Object::Client(_, pod) => pod.is_some_and(|pod| match one {
                    Annotation::Exclude => pod.exclude.is_some(),
                    _ => pod.steer.is_some(),
                }),
                other => panic!("{other:?}"),
            };
            // A Pod has nothing else to say.
            let counts = one.counts_on().contains(&on);
            assert_eq!(said, counts, "{one} on {on}");
            assert_eq!(Annotation::doubt(one.name(), on).is_none(), counts, "{one} on {on}");
        }
        let mut policy = PolicySources::default();
        one.say(&mut policy, Some("x".into()));
        let is_of_services = one.counts_on().contains(&On::Service);
        assert_eq!(one.said(&policy).is_some(), is_of_services, "{one}");
    }
}
