//! Which part of the memory serves a request.

/// The kind of requests that a segment serves, so that a policy can keep small requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Main = 0,
    Small = 1,
    /// Each segment was obtained for a single request. It goes back when a free that waits has freed it.
    Dedicated = 2,
}

impl Region {
    pub const ALL: [Region; 3] = [Region::Main, Region::Small, Region::Dedicated];
}

/// The part of a free block that a request gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The first part that is aligned as the request wants it.
    Head,
    /// The last one.
    Tail,
}
