//! `packets`: what tc did with the packets of each hook, and XDP with those it did not leave to tc, counted per CPU.

/// The index of XDP's counts; before it are tc's.
pub const XDP: u32 = 2;

/// Defines each outcome once: as an [`Outcome`], as a field of [`Packets`], and by name.
macro_rules! outcomes {
    ($($(#[$doc:meta])* $outcome:ident $field:ident $label:literal,)*) => {
        /// What tc did with a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Outcome {
            $($(#[$doc])* $outcome,)*
        }

        /// Packets of one tc hook on one CPU, by [`Outcome`]: value of `packets`.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
        pub struct Packets {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Outcome {
            /// All, in the order of the fields of [`Packets`].
            pub const ALL: [Self; size_of::<Packets>() / size_of::<u64>()] =
                [$(Self::$outcome,)*];

            /// The outcome's field in [`Packets`], and its key in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$outcome => stringify!($field),)* }
            }

            /// The outcome's label in metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$outcome => $label,)* }
            }
        }

        impl Packets {
            /// Packets with this outcome.
            #[inline(always)]
            #[must_use]
            pub const fn of(&self, outcome: Outcome) -> u64 {
                match outcome { $(Outcome::$outcome => self.$field,)* }
            }

            /// The counter of this outcome.
            #[inline(always)]
            pub const fn at(&mut self, outcome: Outcome) -> &mut u64 {
                match outcome { $(Outcome::$outcome => &mut self.$field,)* }
            }
        }
    };
}

outcomes! {
    /// Not to a Service, and of no translated connection.
    Untouched untouched "untouched",
    /// Translated, including the first packet of each connection.
    Translated translated "translated",
    /// Opened a connection; also counted as translated.
    Opened opened "opened",
    /// Sent on to the node of its endpoint as it came (direct return).
    SentOn sent_on "sent-on",
    /// Refused by a RST or an ICMP error.
    Refused refused "refused",
    /// Refused without an answer, because there were too many to answer.
    Unanswered unanswered "unanswered",
    /// To a Service, but of no known connection: untouched.
    Unknown unknown "unknown",
    /// Its headers contradict each other or end too early: untouched. On ingress, only packets that
    /// may be to a frontend, or are too short to say, are checked for this.
    Malformed malformed "malformed",
    /// An ICMP error that was translated.
    Errors errors "icmp-error",
    /// Dropped: it would have opened a connection, but its device has too many.
    Limited limited "limited",
    /// Dropped: it would have opened a connection, but the table is full of open ones.
    TableFull table_full "table-full",
    /// Dropped without an answer: its client may not dial the frontend (`loadBalancerSourceRanges`), or
    /// no endpoint may answer it (`externalTrafficPolicy: Local`).
    Denied denied "denied",
    /// Dropped: it would have opened a connection, but each source port that was tried is taken at the
    /// endpoint.
    NoPort no_port "no-port",
    /// Dropped: the kernel refused to change the packet, or had no memory.
    Dropped dropped "dropped",
}
