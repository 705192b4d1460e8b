//! What a probe of an endpoint that is ejected has shown.

/// What a probe has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// The endpoint accepts connections.
    Answered,
    /// It does not, and another endpoint of the Service does.
    Failed,
    /// Neither does: perhaps a network policy keeps this host out.
    Unknown,
}

impl Probed {
    /// All, in the order of the metric.
    pub const ALL: [Self; 3] = [Self::Answered, Self::Failed, Self::Unknown];

    /// The name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}
