//! Facts about clients from Namespaces and Pods, for `lint` only.

use super::annotation::{Annotation, excludes};
use super::mesh::{Meshed, Pairs};

/// Facts from one Namespace or Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Set if it is in a mesh and not excluded.
    pub meshed: Option<Meshed>,
    /// Set if its exclusion annotation is invalid.
    pub unclear: Option<Unclear>,
}

/// A Pod with an annotation `topo-lb.io/exclude` that is neither `true` nor `false`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unclear {
    /// Its namespace.
    pub namespace: String,
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
    /// Pods with an invalid annotation.
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
        let meshed = || Meshed::of(namespace, pod, labels, annotations);
        let (Some(pod), Some(value)) = (pod, annotations.get(Annotation::Exclude.name())) else {
            return Self { meshed: meshed(), unclear: None };
        };
        match excludes(value) {
            Some(true) => Self::default(),
            Some(false) => Self { meshed: meshed(), unclear: None },
            None => {
                let (namespace, pod, value) = (namespace.to_owned(), pod.to_owned(), value.clone());
                Self { meshed: meshed(), unclear: Some(Unclear { namespace, value, pod }) }
            }
        }
    }
}
