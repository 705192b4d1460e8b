//! What nobody reads in the objects of a cluster, for `lint` only.

use super::annotation::{Annotation, Doubt, On};
use super::frontend::FrontendKind;

/// Something in an object that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unread {
    /// The object's kind.
    pub kind: String,
    /// Its namespace; empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: What,
}

/// What has no effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// An annotation of this key, on such an object.
    Annotation(String, On),
    /// A label of this key.
    Label(String),
    /// An Endpoints object: only its EndpointSlices are read.
    Endpoints,
    /// An EndpointSlice that names no Service.
    Slice,
    /// An address of a Service that is not served, and why.
    Address(FrontendKind, String, &'static str),
}

impl What {
    /// Why, of labels and annotations.
    #[must_use]
    pub fn doubt(&self) -> Option<Doubt> {
        match self {
            Self::Annotation(key, on) => Annotation::doubt(key, *on),
            Self::Label(key) => Annotation::doubt_of_label(key),
            Self::Endpoints | Self::Slice | Self::Address(..) => None,
        }
    }
}

impl Unread {
    /// What has no effect of the labels and annotations of these keys.
    pub fn in_metadata<'a>(
        kind: &str,
        namespace: &str,
        name: &str,
        labels: impl IntoIterator<Item = &'a String>,
        annotations: impl IntoIterator<Item = &'a String>,
    ) -> Vec<Self> {
        let on = match kind {
            "Service" => On::Service,
            "Namespace" => On::Namespace,
            "Pod" => On::Pod,
            _ => On::Other,
        };
        let annotations = annotations.into_iter().map(|key| What::Annotation(key.clone(), on));
        // Kubernetes copies labels of Services to their slices.
        let labels = labels.into_iter().filter(|_| on != On::Other);
        let all = annotations.chain(labels.map(|key| What::Label(key.clone())));
        let of = |what| {
            let (kind, namespace) = (kind.to_owned(), namespace.to_owned());
            Self { kind, namespace, name: name.to_owned(), what }
        };
        all.filter(|what| what.doubt().is_some()).map(of).collect()
    }
}
