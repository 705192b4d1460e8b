//! An Event object for the API server. Pure.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

/// Longest note that the API server accepts: 1 KiB.
const LONGEST_NOTE: usize = 1024;
const CONTROLLER: &str = "topo-lb";

/// A warning of the agent on `node`, in the namespace of `regarding`; without reason and action.
pub(super) fn warning(
    node: &str,
    name: &str,
    regarding: ObjectReference,
    note: &str,
    when: SystemTime,
) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        type_: Some("Warning".to_owned()),
        note: Some(shortened(note)),
        event_time: Some(micro(when)),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}

/// The count and last time of a repeated Event.
pub(super) fn series(last: SystemTime, times: u32) -> EventSeries {
    let count = i32::try_from(times).unwrap_or(i32::MAX);
    EventSeries { count, last_observed_time: micro(last) }
}

fn micro(when: SystemTime) -> MicroTime {
    MicroTime(Timestamp::try_from(when).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// A note that the API server accepts.
pub(super) fn shortened(text: &str) -> String {
    let mut note = text.to_owned();
    if note.len() > LONGEST_NOTE {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE - '…'.len_utf8()));
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_where_a_character_ends() {
        let cut = shortened(&"ü".repeat(1000));
        assert!(cut.len() <= LONGEST_NOTE, "{} bytes", cut.len());
        assert!(cut.starts_with('ü') && cut.ends_with("ü…"), "{cut}");
        assert_eq!(shortened("short"), "short");
    }
}
