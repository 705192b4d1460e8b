//! Which names this server answers to. A page of somebody else can have its own name lead here (DNS
//! rebinding) and would then read what only this machine's user may read; a browser still sends that
//! name as `Host`.

use std::net::IpAddr;

use http::uri::Authority;

/// Whether a request with this `Host` was meant for this server: by an address, which no DNS leads here,
/// as `localhost`, or by one of `names`.
pub(super) fn is_meant(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    let is_address = address.parse::<IpAddr>().is_ok();
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    !host.contains('@') && (is_address || is("localhost") || names.iter().any(|it| is(it)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_localhost_and_given_names_are_meant() {
        let names = ["view.example".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]:80",
            "LocalHost:9",
            "view.example",
            "View.Example:1",
        ] {
            assert!(is_meant(host, &names), "{host}");
        }
        for host in
            ["", "evil.example", "127.0.0.1.evil.example", "a@127.0.0.1", "localhost.", "::1 "]
        {
            assert!(!is_meant(host, &names), "{host}");
        }
    }
}
