//! What a request is on its way through a policy.

use base::cuda::DriverError;

use crate::blocks::UNIT;

/// The most units of a request or segment: units are counted in 32 bits, and the sizes of two neighbours are added.
pub(super) const LARGEST_UNITS: u64 = (u32::MAX / 2) as u64;

/// The kind of requests that a segment serves, so that a policy can keep small requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Main = 0,
    Small = 1,
}

/// The part of a free block that a request gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Head,
    Tail,
    /// The part that begins this many units after the beginning of the block.
    At(u32),
}

#[derive(Clone, Copy)]
pub struct Request {
    /// Bytes that the job asked for.
    pub bytes: u64,
    /// The same, rounded up.
    pub units: u32,
    /// The stream that will use the block, if the request names it.
    pub stream: Option<u64>,
}

impl Request {
    pub fn new(bytes: u64, stream: Option<u64>) -> Result<Self, DriverError> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        match bytes {
            0 => Err(DriverError::INVALID_VALUE),
            _ if u64::from(units) > LARGEST_UNITS => Err(DriverError::OUT_OF_MEMORY),
            _ => Ok(Request { bytes, units, stream }),
        }
    }

    /// Bytes that the block for this request has.
    pub fn rounded(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}
