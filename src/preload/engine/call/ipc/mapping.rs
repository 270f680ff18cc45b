//! How memory of another process comes here: its owner is asked, and granules are mapped as their descriptors arrive.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::answer::{self, Answer};
use super::channel::{self, Channel};
use super::ticket::Ticket;
use super::{FILE_DESCRIPTOR, Refusal, WAY_OUT};
use crate::engine::Place;
use crate::engine::pools::device_memory::access_of;
use crate::next::{self, INVALID_HANDLE, MAP_FAILED, SUCCESS};

/// Undoes `mapped` bytes of mappings and the reservation of `size` bytes they lie in.
pub fn unmap(base: u64, mapped: u64, size: u64) -> i32 {
    // SAFETY: whole mappings of ours in a reservation of ours.
    unsafe {
        if mapped > 0 {
            match next::cuMemUnmap(base, mapped as usize) {
                SUCCESS => {}
                problem => return problem,
            }
        }
        // Address space that cannot be given back costs nothing but addresses.
        next::cuMemAddressFree(base, size as usize);
    }
    SUCCESS
}

pub fn malformed(what: &str) -> Refusal {
    Refusal {
        code: INVALID_HANDLE,
        why: format!("the exporter's answer makes no sense: {what}"),
    }
}

fn unreachable(problem: io::Error) -> Refusal {
    let why = match problem.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => {
            "the exporter is gone, or lives in another network namespace (containers must share it); it must live until \
             every importer has opened the handle"
                .to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the exporter does not answer".to_owned(),
        _ => format!("the exporter cannot be asked: {problem}"),
    };
    Refusal { code: MAP_FAILED, why }
}

/// An exporter that says nothing for so long is as good as gone (stopped in a debugger, say).
const PATIENCE: Duration = Duration::from_secs(30);

/// Shows the ticket to the process that wrote it.
pub fn ask(ticket: &Ticket) -> Result<(Channel, Answer), Refusal> {
    let channel = channel::connect(&ticket.socket_name(), PATIENCE).map_err(unreachable)?;
    if !channel.peer_is_ours() {
        return Err(Refusal {
            code: MAP_FAILED,
            why: "the exporter belongs to another user, who may not share memory with this one".into(),
        });
    }
    let mut bytes = [0; answer::BYTES];
    channel
        .send(&ticket.encode(), &[])
        .and_then(|()| channel.receive(&mut bytes))
        .map_err(unreachable)?;
    let answer = Answer::decode(&bytes).ok_or_else(|| malformed("no answer of this version"))?;
    Ok((channel, answer))
}

/// Takes granules over and maps them side by side, accessible from the current device; all of them or none.
pub fn map_granules(channel: &Channel, size: u64, count: u64, place: Place) -> Result<u64, Refusal> {
    let total = size * count;
    let mut base = 0;
    // SAFETY: room for an address.
    match unsafe { next::cuMemAddressReserve(&mut base, total as usize, size as usize, 0, 0) } {
        SUCCESS => {}
        code => {
            return Err(Refusal {
                code,
                why: format!("no address space for it (CUDA error {code})"),
            });
        }
    }
    let mut mapped = 0;
    let outcome = map_each(channel, base, size, total, &mut mapped).and_then(|()| {
        let access = access_of(i32::from(place.device));
        // SAFETY: the description lives through the call.
        match unsafe { next::cuMemSetAccess(base, total as usize, &access, 1) } {
            SUCCESS => Ok(()),
            code => Err(Refusal {
                code,
                why: format!("this device may not use it (CUDA error {code}): is there peer access between the two?"),
            }),
        }
    });
    match outcome {
        Ok(()) => Ok(base),
        Err(refusal) => {
            unmap(base, mapped, total);
            Err(refusal)
        }
    }
}

fn map_each(channel: &Channel, base: u64, size: u64, total: u64, mapped: &mut u64) -> Result<(), Refusal> {
    while *mapped < total {
        let mut result = [0; 8];
        let descriptors = channel
            .send(&(*mapped / size).to_le_bytes(), &[])
            .and_then(|()| channel.receive(&mut result))
            .map_err(unreachable)?;
        match i64::from_le_bytes(result) as i32 {
            SUCCESS if !descriptors.is_empty() && descriptors.len() as u64 <= (total - *mapped) / size => {}
            SUCCESS => return Err(malformed("another number of granules than it told")),
            code => {
                return Err(Refusal {
                    code,
                    why: format!("the exporter cannot share it (CUDA error {code}); {WAY_OUT}"),
                });
            }
        }
        for descriptor in descriptors {
            map_one(base + *mapped, size, descriptor.as_raw_fd()).map_err(|code| Refusal {
                code,
                why: format!("the driver cannot map memory of another process (CUDA error {code}); {WAY_OUT}"),
            })?;
            *mapped += size;
        }
    }
    Ok(())
}

/// The mapping keeps the memory; neither descriptor nor handle is needed after.
fn map_one(address: u64, size: u64, descriptor: i32) -> Result<(), i32> {
    let mut handle = 0;
    let os_handle = descriptor as usize as *mut std::ffi::c_void;
    // SAFETY: the descriptor is open, and is handed over as the number that this kind of handle is; the handle is mapped
    // into a reservation of ours and released once.
    unsafe {
        match next::cuMemImportFromShareableHandle(&mut handle, os_handle, FILE_DESCRIPTOR) {
            SUCCESS => {}
            problem => return Err(problem),
        }
        let result = next::cuMemMap(address, size as usize, 0, handle, 0);
        next::cuMemRelease(handle);
        if result == SUCCESS { Ok(()) } else { Err(result) }
    }
}
