//! The layouts and maps of connections, for both address families.

use core::ptr::NonNull;

use topo_lb_common::connection::{
    Connection4, Connection6, Fragment4, Fragment6, Translation4, Translation6, Tuple4, Tuple6,
};

use crate::family::{Family, V4, V6, bytes4, bytes6, words4, words6};
use crate::fast_path::FastPath;
use crate::maps::{self, Connections, Fragments};
use crate::packet::Client;
use crate::refuse::Refuse;
use crate::rewrite::{Says, Write};

/// The fields of a connection's entry that change, in place.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) last_used: *mut u64,
    pub(crate) source_port: *mut u16,
    pub(crate) service: *mut u32,
    pub(crate) revision: *mut u32,
    pub(crate) sequence: *mut u32,
    pub(crate) state: *mut u8,
    pub(crate) kind: *mut u8,
    pub(crate) asked: *mut u32,
}

/// What a new entry holds besides its tuples.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) now: u64,
    pub(crate) service: u32,
    pub(crate) revision: u32,
    pub(crate) sequence: u32,
    pub(crate) kind: u8,
}

/// An address family whose packets are translated.
pub(crate) trait Track: FastPath + Write + Client + Refuse {
    type Tuple: Copy;
    type Connection: Copy + 'static;
    type Fragment: Copy;
    type Translation: Copy + 'static;

    fn connections() -> &'static Connections<Self::Tuple, Self::Connection>;
    fn fragments() -> &'static Fragments<Self::Fragment, Self::Translation>;

    /// This CPU's place to put an entry together.
    fn draft() -> Option<NonNull<Self::Connection>>;

    /// A key, of what a packet says.
    fn tuple(says: &Says<Self>, protocol: u8, way: u8) -> Self::Tuple;
    fn entry(says: &Says<Self>, about: About) -> Self::Connection;
    /// What the packets of an entry become.
    ///
    /// # Safety
    ///
    /// A look-up's pointer, or one to a value.
    unsafe fn says(connection: *const Self::Connection) -> Says<Self>;
    fn held(connection: NonNull<Self::Connection>) -> Held;

    fn fragment(
        addresses: (Self::Address, Self::Address),
        identification: u32,
        protocol: u8,
        way: u8,
    ) -> Self::Fragment;
    fn translation(
        now: u64,
        addresses: (Self::Address, Self::Address),
        kind: u8,
    ) -> Self::Translation;
    /// When the first fragment came, what the later ones become, and the connection's kind.
    ///
    /// # Safety
    ///
    /// A look-up's pointer.
    unsafe fn translated(
        translation: *const Self::Translation,
    ) -> (u64, (Self::Address, Self::Address), u8);
}

macro_rules! track {
    ($tuple:ident, $connection:ident, $fragment:ident, $translation:ident,
     $connections:ident, $fragments:ident, $draft:ident, $bytes:ident, $words:ident) => {
        type Tuple = $tuple;
        type Connection = $connection;
        type Fragment = $fragment;
        type Translation = $translation;

        #[inline(always)]
        fn connections() -> &'static Connections<$tuple, $connection> {
            &maps::$connections
        }

        #[inline(always)]
        fn fragments() -> &'static Fragments<$fragment, $translation> {
            &maps::$fragments
        }

        #[inline(always)]
        fn draft() -> Option<NonNull<$connection>> {
            NonNull::new(maps::$draft.get_ptr_mut(0)?)
        }

        #[inline(always)]
        fn tuple(says: &Says<Self>, protocol: u8, way: u8) -> $tuple {
            $tuple {
                source: $bytes(says.source),
                destination: $bytes(says.destination),
                source_port: says.source_port,
                destination_port: says.destination_port,
                protocol,
                way,
                reserved: 0,
            }
        }

        #[inline(always)]
        fn entry(says: &Says<Self>, about: About) -> $connection {
            $connection {
                last_used: about.now,
                source: $bytes(says.source),
                destination: $bytes(says.destination),
                source_port: says.source_port,
                destination_port: says.destination_port,
                service: about.service,
                revision: about.revision,
                sequence: about.sequence,
                state: 0,
                kind: about.kind,
                reserved: 0,
                asked: 0,
            }
        }

        #[inline(always)]
        unsafe fn says(connection: *const $connection) -> Says<Self> {
            // SAFETY: the caller's pointer is to a whole value.
            unsafe {
                Says {
                    source: $words(&(*connection).source),
                    destination: $words(&(*connection).destination),
                    source_port: (*connection).source_port,
                    destination_port: (*connection).destination_port,
                }
            }
        }

        #[inline(always)]
        fn held(connection: NonNull<$connection>) -> Held {
            let connection = connection.as_ptr();
            // SAFETY: a pointer to a whole value; nothing is read.
            unsafe {
                Held {
                    last_used: &raw mut (*connection).last_used,
                    source_port: &raw mut (*connection).source_port,
                    service: &raw mut (*connection).service,
                    revision: &raw mut (*connection).revision,
                    sequence: &raw mut (*connection).sequence,
                    state: &raw mut (*connection).state,
                    kind: &raw mut (*connection).kind,
                    asked: &raw mut (*connection).asked,
                }
            }
        }

        #[inline(always)]
        fn fragment(
            (source, destination): (Self::Address, Self::Address),
            identification: u32,
            protocol: u8,
            way: u8,
        ) -> $fragment {
            let (source, destination) = ($bytes(source), $bytes(destination));
            $fragment { source, destination, identification, protocol, way, reserved: 0 }
        }

        #[inline(always)]
        fn translation(
            now: u64,
            (source, destination): (Self::Address, Self::Address),
            kind: u8,
        ) -> $translation {
            let (source, destination) = ($bytes(source), $bytes(destination));
            $translation { first_seen: now, source, destination, kind: kind.into(), reserved: 0 }
        }

        #[inline(always)]
        unsafe fn translated(
            translation: *const $translation,
        ) -> (u64, (Self::Address, Self::Address), u8) {
            // SAFETY: the caller's pointer is to a whole value.
            unsafe {
                let addresses =
                    ($words(&(*translation).source), $words(&(*translation).destination));
                ((*translation).first_seen, addresses, (*translation).kind as u8)
            }
        }
    };
}

impl Track for V4 {
    track!(
        Tuple4,
        Connection4,
        Fragment4,
        Translation4,
        CONNECTIONS4,
        FRAGMENTS4,
        DRAFT4,
        bytes4,
        words4
    );
}

impl Track for V6 {
    track!(
        Tuple6,
        Connection6,
        Fragment6,
        Translation6,
        CONNECTIONS6,
        FRAGMENTS6,
        DRAFT6,
        bytes6,
        words6
    );
}

/// What the answer to a packet says.
#[inline(always)]
pub(crate) fn turned<F: Family>(says: &Says<F>) -> Says<F> {
    Says {
        source: says.destination,
        destination: says.source,
        source_port: says.destination_port,
        destination_port: says.source_port,
    }
}
