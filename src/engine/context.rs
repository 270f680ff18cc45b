//! Contexts die, and take their memory with them.

use super::{BLANK, Call, Engine};
use crate::api::{Api, Class};
use crate::journal::format::{FLAG_CONTEXT_GONE, Kind, Record};
use crate::real::{self, CUcontext, SUCCESS};

/// A device's primary context, where it is active.
fn primary(device: i32) -> Option<CUcontext> {
    let (mut flags, mut active, mut context) = (0u32, 0i32, std::ptr::null_mut());
    // SAFETY: this frame's own values; the retain is given back at once.
    unsafe {
        if real::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) != SUCCESS || active == 0 {
            return None;
        }
        if real::cuDevicePrimaryCtxRetain(&mut context, device) != SUCCESS {
            return None;
        }
        real::cuDevicePrimaryCtxRelease_v2(device);
    }
    Some(context)
}

impl Engine {
    fn context_gone(&self, context: u64, device: i16, api: Api, is_gone: impl Fn(&crate::ledger::Allocation) -> bool) {
        self.write(Record {
            kind: Kind::ContextDestroyed as u8,
            api: api.number(),
            device,
            address: context,
            ..BLANK
        });
        for (key, allocation) in self.ledger.select(|_, allocation| is_gone(allocation)) {
            if self.ledger.remove(key).is_some() {
                let record = super::record(Kind::Free, api, key, &allocation);
                self.write(Record { flags: record.flags | FLAG_CONTEXT_GONE, ..record });
            }
        }
        self.forget_pool(context);
    }
}

impl Call {
    pub fn context_destroyed(&self, context: CUcontext, ask: impl FnOnce() -> i32) -> i32 {
        let device = self.engine.device_of(context as u64);
        let result = ask();
        if result == SUCCESS {
            let context = context as u64;
            self.engine.context_gone(context, device, self.api(), |allocation| allocation.context == context);
        }
        result
    }

    /// A primary context was released (it lives on while others retain it) or reset.
    pub fn primary_released(&self, device: i32, ask: impl FnOnce() -> i32) -> i32 {
        let before = primary(device);
        let result = ask();
        if let (SUCCESS, Some(context), None) = (result, before, primary(device)) {
            let (context, device) = (context as u64, device as i16);
            // Stream-ordered memory belongs to the device, and goes with its primary context.
            self.engine.context_gone(context, device, self.api(), |allocation| {
                allocation.context == context || (allocation.class == Class::Async && allocation.device == device)
            });
            self.engine.forget_stream_pools(device, self.api());
            self.engine.refresh_graphs(device, self.api());
        }
        result
    }
}
