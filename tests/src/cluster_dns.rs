//! The cluster DNS of the lab, a role of the program in pods: it answers whatever it is asked, with bytes
//! that only it sends.

/// The answer to a query: no DNS, but another one for every query.
#[must_use]
pub fn echoed(query: &[u8]) -> Vec<u8> {
    let mut answer = query.to_vec();
    if let Some(flags) = answer.get_mut(2) {
        *flags |= 1 << 7;
    }
    answer.extend(query.iter().rev());
    answer
}

/// A message as it is sent over TCP.
#[must_use]
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], message].concat()
}
