//! Work on memory that `auto_growth` maps itself: what `Work::Map` and `Work::Unmap` carry.

use crate::device_memory::DeviceMemory;

#[derive(Debug)]
pub enum Map {}

impl Map {
    pub fn carry_out(&mut self, _memory: &dyn DeviceMemory) {}
}

#[derive(Debug)]
pub enum Unmap {}

impl Unmap {
    pub fn carry_out(&mut self, _memory: &dyn DeviceMemory) {}

    /// Bytes that were given back to the next layer.
    pub fn given_back(&self) -> u64 {
        0
    }
}
