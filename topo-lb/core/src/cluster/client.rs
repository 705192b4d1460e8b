//! Facts about clients from Namespaces and Pods, for `lint` only.

use super::annotation::{Annotation, is_true};
use super::mesh::{Meshed, Pairs};

/// Facts from one Namespace or Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Set if it is in a mesh and not excluded.
    pub meshed: Option<Meshed>,
    /// Its annotations that are invalid.
    pub unclear: Vec<Unclear>,
}

/// A Pod with an annotation that is neither `true` nor `false`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unclear {
    /// Its namespace.
    pub namespace: String,
    /// The annotation.
    pub annotation: Annotation,
    /// The annotation's value.
    pub value: String,
    /// Its name.
    pub pod: String,
}

/// Facts from all Namespaces and Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Clients in a mesh.
    pub meshed: Vec<Meshed>,
    /// Invalid annotations of Pods.
    pub unclear: Vec<Unclear>,
}

impl Clients {
    /// Adds one client's facts.
    pub fn add(&mut self, client: Client) {
        self.meshed.extend(client.meshed);
        self.unclear.extend(client.unclear);
    }
}

impl Client {
    /// The namespace, or that Pod in it, with these labels and annotations.
    #[must_use]
    pub fn new(namespace: &str, pod: Option<&str>, labels: &Pairs, annotations: &Pairs) -> Self {
        let said = |annotation: Annotation| pod.zip(annotations.get(annotation.name()));
        let is_excluded = said(Annotation::Exclude).and_then(|(_, value)| is_true(value));
        let meshed = match is_excluded {
            Some(true) => None,
            _ => Meshed::of(namespace, pod, labels, annotations),
        };
        let unclear = |annotation| {
            let (pod, value) = said(annotation).filter(|(_, value)| is_true(value).is_none())?;
            let (namespace, pod, value) = (namespace.to_owned(), pod.to_owned(), value.clone());
            Some(Unclear { namespace, annotation, value, pod })
        };
        let unclear = [Annotation::Exclude, Annotation::Steer].into_iter().filter_map(unclear);
        Self { meshed, unclear: unclear.collect() }
    }
}
