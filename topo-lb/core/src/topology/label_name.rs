//! Names and values of labels, as Kubernetes validates them
//! (k8s.io/apimachinery/pkg/util/validation/validation.go).

/// What is wrong with a label name (Kubernetes' `IsQualifiedName`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelFault {
    /// More than one `/`.
    #[error("it has more than one `/`; a label is NAME or PREFIX/NAME")]
    Slashes,
    /// Nothing after the `/`.
    #[error("nothing follows the `/`")]
    NoName,
    /// The name is too long.
    #[error("its name has more than 63 characters")]
    LongName,
    /// The name has invalid characters.
    #[error(
        "its name must be letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
    )]
    Name,
    /// Nothing before the `/`.
    #[error("nothing precedes the `/`")]
    NoPrefix,
    /// The prefix is too long.
    #[error("its prefix has more than 253 characters")]
    LongPrefix,
    /// The prefix is not a DNS name.
    #[error(
        "its prefix must be a DNS name: lower-case letters, digits, `-` and `.`, with a letter or \
         digit at both ends of every part"
    )]
    Prefix,
}

/// Whether `key` is a qualified name: `[PREFIX/]NAME`.
///
/// # Errors
/// What is wrong with it.
pub fn label_name(key: &str) -> Result<(), LabelFault> {
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((_, rest)) if rest.contains('/') => return Err(LabelFault::Slashes),
        Some((prefix, name)) => (Some(prefix), name),
    };
    match prefix {
        Some("") => return Err(LabelFault::NoPrefix),
        Some(prefix) if prefix.len() > 253 => return Err(LabelFault::LongPrefix),
        Some(prefix) if !prefix.split('.').all(is_dns_label) => return Err(LabelFault::Prefix),
        _ => {}
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() {
        Err(LabelFault::NoName)
    } else if name.len() > 63 {
        Err(LabelFault::LongName)
    } else if is_bounded(name, inner, |byte| byte.is_ascii_alphanumeric()) {
        Ok(())
    } else {
        Err(LabelFault::Name)
    }
}

/// Whether `value` is a label's value (Kubernetes' `IsValidLabelValue`) and not empty.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    value.len() <= 63 && is_bounded(value, inner, |byte| byte.is_ascii_alphanumeric())
}

/// Whether `name` is a DNS name, as those of namespaces and Pods are.
#[must_use]
pub fn is_dns_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_label)
}

fn is_dns_label(part: &str) -> bool {
    let outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    is_bounded(part, |byte| outer(byte) || byte == b'-', outer)
}

/// Whether all bytes of `text` are `inner`, and the first and last are `outer`.
fn is_bounded(text: &str, inner: impl Fn(u8) -> bool, outer: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|&byte| inner(byte))
        && bytes.first().is_some_and(|&byte| outer(byte))
        && bytes.last().is_some_and(|&byte| outer(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_names_are_labels() {
        for key in [
            "a",
            "A1",
            "rack",
            "kubernetes.io/hostname",
            "example.com/Rack_1.x-y",
            "1.2.3/4",
            "a-b.c-d/e",
        ] {
            assert_eq!(label_name(key), Ok(()), "{key}");
        }
        let longest = format!("{}/{}", ["a"; 127].join("."), "b".repeat(63));
        assert_eq!(label_name(&longest), Ok(()), "{longest}");
    }

    #[test]
    fn what_is_no_qualified_name_says_why() {
        use LabelFault::{LongName, LongPrefix, Name, NoName, NoPrefix, Prefix, Slashes};
        for (key, fault) in [
            ("", NoName),
            ("example.com/", NoName),
            ("/rack", NoPrefix),
            ("/", NoPrefix),
            ("a/b/c", Slashes),
            ("a//b", Slashes),
            ("-a", Name),
            ("a-", Name),
            ("a b", Name),
            ("räck", Name),
            ("a*", Name),
            ("a\0", Name),
            ("Example.com/a", Prefix),
            ("example..com/a", Prefix),
            (".com/a", Prefix),
            ("-x.com/a", Prefix),
            ("a_b/c", Prefix),
            (&"a".repeat(64), LongName),
            (&format!("{}/a", "a".repeat(254)), LongPrefix),
        ] {
            assert_eq!(label_name(key), Err(fault), "{key:?}");
        }
    }
}
