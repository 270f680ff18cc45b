//! The devices of one comparison, and the bound for their unknown bytes.

use crate::analysis::side_by_side::Device;

pub struct Round {
    pub devices: Vec<Device>,
    pub bound: u64,
}

impl Round {
    pub fn within_bound(&self) -> bool {
        let mut compared = self.devices.iter().filter(|device| device.compared).peekable();
        compared.peek().is_some()
            && compared.all(|device| device.lost == 0 && device.worst().max(device.open()) <= self.bound)
    }
}
