//! Explains the memory of one device now: compares NVML's figures for the device and its processes with the ledgers of
//! the processes under the library.

use base::identity;
use journal::reader::Device as Entry;

use super::compared::{Device, LayerBook, Process, incomplete};
use crate::analysis::device_code;
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::held::Held;
use crate::analysis::job::Job;
use crate::analysis::measurements::{Measurements, minus};
use crate::analysis::names::device_uuid;
use crate::analysis::nvml::{Listed, Reading};
use crate::analysis::reconciliation::{Basis, Context, Differences};

/// A process under the library that has used the device.
struct Member<'a> {
    process: Process,
    job: &'a Job,
    ledger: Option<&'a DeviceLedger>,
}

impl Member<'_> {
    fn measurements(&self) -> Option<&Measurements> {
        self.ledger.map(|ledger| &ledger.measurements)
    }

    fn excess(&self) -> Option<i64> {
        self.process
            .nvml_used
            .map(|used| minus(used, self.process.balance.reserved))
    }

    /// The earliest time at which the process may have held memory on the device, on the clock of the journals.
    fn since_ns(&self) -> u64 {
        let first = self.measurements().and_then(|measurements| measurements.first);
        let after = first.map_or(0, |first| first.time_ns);
        self.job.header.mono_start_ns.saturating_add(after)
    }

    fn explain(&mut self, excess: i64) {
        let pid = self.process.pid;
        let (balance, context) = (&self.process.balance, self.process.context);
        self.process.differences = Differences::explain(excess, balance, context, || device_code::mapped_by(pid));
    }
}

pub fn device(uuid: String, name: String, reading: Reading, jobs: &[(u32, Job)]) -> Device {
    let mut notes = Vec::new();
    let (mut name, mut members) = (name, Vec::new());
    let none_listed = Vec::new();
    let listed = match &reading.processes {
        Ok(listed) => listed,
        Err(reason) => {
            notes.push(reason.to_string());
            &none_listed
        }
    };
    for (pid, job) in jobs {
        let devices = job.devices();
        let here = devices.iter().find_map(|(number, entry, ledger)| {
            let is_it = |entry: &&Entry| device_uuid(&entry.uuid).as_deref() == Some(uuid.as_str());
            entry.filter(is_it).map(|entry| (Some((*number, entry)), *ledger))
        });
        // A process can have a context where it obtained nothing; then its journal need not have the device.
        let has_context = || listed.iter().any(|one| one.pid == *pid);
        if let Some((entry, ledger)) = here.or_else(|| has_context().then_some((None, None))) {
            if let Some((_, entry)) = entry {
                name.clone_from(&entry.name);
            }
            notes.extend(incomplete(*pid, job));
            let last = ledger.and_then(|ledger| ledger.measurements.last());
            let process = Process {
                pid: *pid,
                job: job.title(),
                balance: ledger.map(DeviceLedger::balance).unwrap_or_default(),
                held: entry.map_or_else(Held::default, |(number, _)| job.held(number)),
                layer: LayerBook::from_measurements(job, ledger),
                driver: last.and_then(|(measured, _)| measured.driver),
                ..Process::default()
            };
            let given_back = ledger.and_then(|ledger| ledger.measurements.given_back());
            notes.extend(given_back.map(|words| format!("process {pid}: {words}")));
            notes.extend(process.layer.as_ref().map(|book| book.words(*pid)));
            members.push(Member { process, job, ledger });
        }
    }
    if let Some(layer) = &reading.layer {
        notes.push(format!(
            "NVML's figures here are those of a layer, {layer}: its book, which need not have contexts and other processes"
        ));
    }
    if reading.mig {
        notes.push("the GPU is divided into instances (MIG): NVML's figures may be the sums of all instances".into());
    }
    for member in &mut members {
        let process = &mut member.process;
        process.nvml_used = match listed.iter().find(|one| one.pid == process.pid) {
            Some(one) => one.used,
            // NVML does not list a process without a context, and a process without a context holds no memory.
            None if reading.processes.is_ok() && process.balance.reserved == 0 => Some(0),
            None => None,
        };
    }
    let (others, are_known) = others(listed, &members, &mut notes);
    contexts(&mut members, &others, reading.total);
    let (other_processes, unknown) = explain(&reading, &mut members, &others, &mut notes);
    Device {
        uuid: Some(uuid),
        name,
        total: reading.total,
        processes: members.into_iter().map(|member| member.process).collect(),
        other_processes: (reading.processes.is_ok() && are_known).then_some(other_processes),
        others,
        nvml: Some(reading),
        unknown,
        compared: true,
        notes,
        // NVML sees memory of lost events too: it shows as unknown.
        ..Device::default()
    }
}

/// The processes on the device that do not run under the library, and whether NVML's list tells.
fn others(listed: &[Listed], members: &[Member], notes: &mut Vec<String>) -> (Vec<Listed>, bool) {
    let is_member = |pid| members.iter().any(|member| member.process.pid == pid);
    let mut others: Vec<Listed> = listed.iter().filter(|one| !is_member(one.pid)).copied().collect();
    // NVML tells pids of the host. In another pid namespace it lists even the processes under the library by such pids, which
    // name nobody here.
    let missing = members
        .iter()
        .any(|member| !listed.iter().any(|one| one.pid == member.process.pid) && member.process.nvml_used.is_none());
    let are_known = !missing || others.is_empty();
    if !are_known {
        others.clear();
        notes.push(
            "NVML lists processes by pids of the host, which are not visible here: any of them may be one of these"
                .into(),
        );
    }
    let silent = others.iter().filter(|one| one.used.is_none()).count();
    if silent > 0 {
        let are = if silent == 1 {
            "other process is"
        } else {
            "other processes are"
        };
        notes.push(format!(
            "NVML does not report the bytes of {silent} {are} on the device: they are part of the unknown"
        ));
    }
    (others, are_known)
}

/// Determines the context of each process from its own measurements, or else from another process's context.
fn contexts(members: &mut [Member], others: &[Listed], total: u64) {
    for place in 0..members.len() {
        let (member, excess) = (&members[place], members[place].excess());
        let Some(measurements) = member.measurements() else {
            // The process obtained nothing here.
            let bytes = excess.and_then(|excess| u64::try_from(excess).ok());
            let basis = Basis::Nvml;
            members[place].process.context = bytes.map(|bytes| Context { bytes, basis });
            continue;
        };
        let alone = measurements.first.is_some_and(|first| {
            let then = member.since_ns();
            let mut rest = members.iter().enumerate().filter(|&(other, _)| other != place);
            // If the next layer reports only a part of the device, its figures do not show what other processes hold.
            first.driver.is_some_and(|info| info.total >= total - total / 16)
                && !rest.any(|(_, other)| other.since_ns() < then)
                && !others
                    .iter()
                    .any(|other| started_ns(other.pid).is_none_or(|start| start < then))
        });
        members[place].process.context = Context::from_measurements(measurements, Some(alone), excess);
    }
    let named = |member: &Member| {
        let differences = Differences::explain(member.excess()?, &member.process.balance, member.process.context, || 0);
        member.process.context.map(|_| differences.context)
    };
    let alike = members.iter().filter_map(named).min();
    for member in members.iter_mut() {
        let process = &mut member.process;
        process.context = process.context.or(alike.map(|bytes| Context {
            bytes,
            basis: Basis::Alike,
        }));
    }
}

/// Explains the bytes of each process. Returns the bytes of other processes and the unexplained bytes.
fn explain(reading: &Reading, members: &mut [Member], others: &[Listed], notes: &mut Vec<String>) -> (u64, i64) {
    let other_processes = others.iter().filter_map(|one| one.used).fold(0, u64::saturating_add);
    let mut left = minus(reading.used, other_processes);
    let mut unknown = 0i64;
    for member in members.iter_mut() {
        let Some(excess) = member.excess() else { continue };
        member.explain(excess);
        left = left.saturating_sub_unsigned(member.process.nvml_used.unwrap_or(0));
        unknown = unknown.saturating_add(member.process.differences.unknown);
    }
    // The bytes of the device that remain are the excess of the processes whose bytes NVML does not report.
    let unreported = |member: &&mut Member| member.process.nvml_used.is_none();
    for member in members.iter() {
        if member.process.nvml_used.is_none() {
            left = left.saturating_sub_unsigned(member.process.balance.reserved);
            notes.push(format!(
                "NVML does not report the bytes of process {}: the unknown may be its own",
                member.process.pid
            ));
        }
    }
    for member in members.iter_mut().filter(unreported) {
        member.explain(left);
        left = std::mem::take(&mut member.process.differences.unknown);
    }
    (other_processes, unknown.saturating_add(left))
}

/// When a process started, on the clock of the journals (CLOCK_MONOTONIC).
fn started_ns(pid: u32) -> Option<u64> {
    let ticks = identity::start_ticks(&pid.to_string())?;
    // SAFETY: sysconf has no preconditions.
    let a_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) })
        .ok()
        .filter(|&ticks| ticks > 0)?;
    // The time at the end of the tick in which the process started: a process cannot hold device memory earlier.
    let since_boot = (u128::from(ticks) + 1) * 1_000_000_000 / u128::from(a_second);
    // /proc counts from boot including suspended time; CLOCK_MONOTONIC leaves suspended time out.
    let asleep = now_ns(libc::CLOCK_BOOTTIME)?.saturating_sub(now_ns(libc::CLOCK_MONOTONIC)?);
    Some(u64::try_from(since_boot).ok()?.saturating_sub(asleep))
}

fn now_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local variable that outlives the call.
    let read = unsafe { libc::clock_gettime(clock, &mut time) } == 0;
    read.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
