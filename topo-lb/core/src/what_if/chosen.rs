//! Which Services are asked about: one by its name, or those of a namespace. Pure.

use std::fmt;
use std::str::FromStr;

use crate::cluster::ServiceId;
use crate::explain::shown;

/// A Service, written `NAMESPACE/NAME`, or all of a namespace, written `NAMESPACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    namespace: String,
    /// `None`: all of the namespace.
    name: Option<String>,
}

impl Chosen {
    /// Whether this Service is one of them.
    #[must_use]
    pub fn has(&self, id: &ServiceId) -> bool {
        *self.namespace == *id.namespace && self.name.as_ref().is_none_or(|name| **name == *id.name)
    }

    /// Whether this Service is one of `any`; all are if `any` is empty.
    #[must_use]
    pub fn any(any: &[Self], id: &ServiceId) -> bool {
        any.is_empty() || any.iter().any(|one| one.has(id))
    }
}

impl FromStr for Chosen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (namespace, Some(name.to_owned())),
            None => (text, None),
        };
        if namespace.is_empty() || name.as_ref().is_some_and(|it| it.is_empty() || it.contains('/'))
        {
            return Err("write a Service as NAMESPACE/NAME, or a NAMESPACE for all of it");
        }
        Ok(Self { namespace: namespace.to_owned(), name })
    }
}

/// As a sentence names it: `Service shop/cart`, or `Service in namespace shop`.
impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "Service {}/{}", shown(&self.namespace), shown(name)),
            None => write!(f, "Service in namespace {}", shown(&self.namespace)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_one_service_and_a_namespace_of_its_own() {
        let id = |namespace: &str, name: &str| ServiceId {
            namespace: namespace.into(),
            name: name.into(),
        };
        let chosen = |text: &str| text.parse::<Chosen>();
        for (text, has) in [
            ("shop", [true, true, false]),
            ("shop/cart", [true, false, false]),
            ("pay/cart", [false, false, true]),
        ] {
            let one = chosen(text).expect(text);
            let all = [id("shop", "cart"), id("shop", "web"), id("pay", "cart")];
            assert_eq!(all.map(|id| one.has(&id)), has, "{text}");
        }
        assert!(Chosen::any(&[], &id("shop", "cart")));
        for text in ["", "/", "shop/", "/cart", "shop/cart/http"] {
            assert!(chosen(text).is_err(), "{text}");
        }
        let said = ["shop", "shop/cart"].map(|text| chosen(text).expect(text).to_string());
        assert_eq!(said, ["Service in namespace shop", "Service shop/cart"]);
    }
}
