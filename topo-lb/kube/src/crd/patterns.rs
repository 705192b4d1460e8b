//! The forms of texts in a policy, as regular expressions for the API server.

/// A label name. The length of its prefix is limited apart.
macro_rules! label {
    () => {
        r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
    };
}

/// The value of a label.
macro_rules! own_value {
    () => {
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
    };
}

/// The value of a label, or `*`.
macro_rules! value {
    () => {
        concat!(r"(\*|", own_value!(), r")")
    };
}

/// A number from 1 to 65535, or a percentage from 1 to 100.
macro_rules! least {
    () => {
        r"(([1-9][0-9]?|100)%|[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
    };
}

/// A label name, or `*`.
pub(super) const KEY: &str = concat!(r"^(\*|", label!(), r")$");

/// One to 16 numbers from 1 to 65535, or percentages from 1 to 100, separated by commas.
pub(super) const NUMBERS: &str = concat!("^", least!(), "(, *", least!(), "){0,15}$");

/// A percentage of at most two decimals.
pub(super) const SHARE: &str = r"^(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)%$";

/// The same, or `auto`.
pub(super) const SPILL: &str = r"^(auto|(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)%)$";

/// `KEY: WEIGHT, KEY: WEIGHT` with weights from 1, or `LABEL: VALUE=WEIGHT, VALUE=WEIGHT` with weights from 0,
/// both to 1000.
pub(super) const WEIGHTS: &str = concat!(
    r"^(",
    label!(),
    r" *: *",
    value!(),
    r" *= *(0|[1-9][0-9]{0,2}|1000)( *, *",
    value!(),
    r" *= *(0|[1-9][0-9]{0,2}|1000))*|(\*|",
    label!(),
    r") *: *([1-9][0-9]{0,2}|1000)( *, *(\*|",
    label!(),
    r") *: *([1-9][0-9]{0,2}|1000))*)$"
);

/// `LABEL=VALUE` up to 16 times, separated by commas; then options, each after a `;`.
pub(super) const EVACUATE: &str = concat!(
    r"^",
    label!(),
    r" *= *",
    own_value!(),
    r"( *, *",
    label!(),
    r" *= *",
    own_value!(),
    r"){0,15}( *; *(until *= *[-0-9]{10}[Tt ][0-9:.]{8,18}([Zz]|[-+][0-9]{2}:[0-9]{2})|ramp *= *[0-9]{1,5}[smh]|allow-strict *= *(\*|",
    label!(),
    r")|force *= *(true|false)))* *;?$"
);

/// Failures in a row (1–15), a time of 1 s to 10 min, and a percentage; the last two may be absent.
pub(super) const EJECTION: &str =
    r"^([1-9]|1[0-5])(, *(([1-9][0-9]?|[1-5][0-9]{2}|600)s|([1-9]|10)m)(, *([1-9][0-9]?|100)%)?)?$";

/// A time of 10 s to 1 h, or `off`.
pub(super) const SLOW_START: &str =
    r"^(off|([1-9][0-9]{1,2}|[1-2][0-9]{3}|3[0-5][0-9]{2}|3600)s|([1-9]|[1-5][0-9]|60)m|1h)$";

/// A time of 5 s to 24 h, or `off`.
pub(super) const RETURN: &str = concat!(
    r"^(off|([5-9]|[1-9][0-9]{1,3}|[1-7][0-9]{4}|8[0-5][0-9]{3}|86[0-3][0-9]{2}|86400)s|",
    r"([1-9][0-9]{0,2}|1[0-3][0-9]{2}|14[0-3][0-9]|1440)m|([1-9]|1[0-9]|2[0-4])h)$"
);
