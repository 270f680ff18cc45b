//! A value for each device, and one for the host.

use base::cuda::MAX_DEVICES;

pub struct PerDevice<T>([T; MAX_DEVICES + 1]);

impl<T: Default> Default for PerDevice<T> {
    fn default() -> Self {
        PerDevice::each(T::default)
    }
}

impl<T> PerDevice<T> {
    pub fn each(mut make: impl FnMut() -> T) -> Self {
        PerDevice(std::array::from_fn(|_| make()))
    }

    /// The value of a device; that of the host for `HOST_DEVICE` and for a number past the last device.
    #[inline]
    pub fn of(&self, device: i16) -> &T {
        &self.0[(device as usize).min(MAX_DEVICES)]
    }

    /// The value of a device; `None` for `HOST_DEVICE` and for a number past the last device.
    #[inline]
    pub fn of_device(&self, device: i16) -> Option<&T> {
        self.0[..MAX_DEVICES].get(device as usize)
    }
}
