//! How many bytes of each device this process may have, and the accounts that processes share.
//!
//! `limits` parses the text of limits, and `account` counts the bytes that each process holds. `file` lets several
//! processes share an account, `glimpse` reads one from outside, `seats` tells which of them are alive, `reclaim` asks
//! them for idle memory, and `locks` calls the kernel. A device with neither a limit nor a shared account has no
//! `DeviceQuota`, so nothing is counted for its allocations here.

mod account;
pub mod file;
pub mod glimpse;
pub mod limits;
mod locks;
pub mod problem;
pub mod reclaim;
pub mod seats;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::sync::OnceCell;

use account::{Account, SeatHandle};
use file::SharedAccount;
use limits::Limits;
use problem::AccountError;
use reclaim::{Asked, Listener};
use seats::Holder;

use base::cuda::MAX_DEVICES;
use base::identity;
use base::named;
use base::sync::lock;
use base::units::size;
use base::uuid::uuid_text;

named! {
    /// Whose memory counts towards a limit.
    #[derive(Default)]
    pub enum Scope {
        #[default]
        Process => "process",
        /// All processes that share an account.
        Group => "group",
    }
}

/// The limits and accounts that the environment asks for.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub limits: Limits,
    /// The environment variable that set the limits.
    pub from: &'static str,
    pub scope: Scope,
    /// The folder of the shared accounts; `None` if accounts are not shared.
    pub accounts: Option<PathBuf>,
    /// Whether a process that has a limit gets no memory if it cannot share its account.
    pub strict: bool,
    /// Bytes that count for a context which nobody measured.
    pub assumed_context: u64,
}

impl Settings {
    /// Whether any device is to have a limit or a shared account.
    pub fn ask_for_anything(&self) -> bool {
        !self.limits.is_empty() || self.accounts.is_some()
    }
}

/// A device as the next layer describes it.
pub struct Device {
    pub ordinal: i32,
    pub uuid: [u8; 16],
    /// Bytes.
    pub total: u64,
}

/// The limit and the account of one device; at least one of a limit and a shared account exists.
pub struct DeviceQuota {
    pub uuid: [u8; 16],
    pub limit: Option<u64>,
    pub scope: Scope,
    /// The environment variable that set the limit.
    pub from: &'static str,
    pub assumed_context: u64,
    /// In memory that only this process has, or in the file of `shared`.
    account: &'static Account,
    shared: Option<&'static SharedAccount>,
    /// The seat of this process in the account.
    seat: Mutex<SeatHandle>,
    /// Bytes that the driver held at the last measurement for this process besides its allocations (its contexts).
    context_bytes: AtomicU64,
}

/// Why a limit refused a request. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub limit: u64,
    /// Bytes used by all processes whose memory counts towards the limit.
    pub used: u64,
}

impl DeviceQuota {
    fn new(quota: &Quota, device: &Device) -> DeviceQuota {
        let settings = &quota.settings;
        let number = u32::try_from(device.ordinal).ok();
        let mut limit = settings.limits.of(number, &uuid_text(device.uuid), device.total);
        let shared = quota.take_seat(device.uuid).unwrap_or_else(|problem| {
            if settings.strict && limit.is_some() {
                base::say::error!(
                    "{problem}; this process gets no memory of the device, because VRAMSHIM_STRICT is set"
                );
                limit = Some(0);
            } else {
                base::say::error!("{problem}; limits hold for this process alone");
            }
            None
        });
        let scope = shared.map_or(Scope::Process, |_| settings.scope);
        let (shared, account, seat) = match shared {
            Some((shared, seat)) => (Some(shared), shared.account(), seat),
            None => {
                // SAFETY: an account may be all zero; no process holds bytes of it then.
                let account: &Account = Box::leak(unsafe { Box::new_zeroed().assume_init() });
                (None, account, account.handle(0))
            }
        };
        if scope == Scope::Group {
            let own = limit.unwrap_or(0);
            let before = account.limit.swap(own, Ordering::SeqCst);
            if own > 0 && before > 0 && own != before && account.used() > 0 {
                let [own, before] = [own, before].map(size);
                base::say::warn!(
                    "the limit of this process is {own}, and another member of its group brought {before}"
                );
            }
        }
        DeviceQuota {
            uuid: device.uuid,
            limit,
            scope,
            from: settings.from,
            assumed_context: settings.assumed_context,
            account,
            shared,
            seat: Mutex::new(seat),
            context_bytes: AtomicU64::new(0),
        }
    }

    /// Adds `bytes` to what this process holds, unless a limit would be exceeded.
    pub fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let Some(limit) = self.limit else {
            self.add(bytes);
            return Ok(());
        };
        let refused = |used| Refusal { limit, used };
        let mut seat = lock(&self.seat);
        if self.scope == Scope::Process {
            let held = seat.held;
            let fits = held.checked_add(bytes).is_some_and(|sum| sum <= limit);
            let added = fits && self.account.add(&mut seat, bytes).is_ok();
            return if added { Ok(()) } else { Err(refused(held)) };
        }
        let mut take = || self.account.take(&mut seat, bytes, limit);
        let taken = take().or_else(|_| {
            // The bytes of dead processes may still count as used.
            self.reap();
            take()
        });
        taken.map_err(|refusal| refused(refusal.used))
    }

    /// Adds `bytes` that this process already has, whatever the limit.
    pub fn add(&self, bytes: u64) {
        if bytes > 0 {
            // Fails only if the account would exceed 4 TiB; the bytes are not counted then.
            let _ = self.account.add(&mut lock(&self.seat), bytes);
        }
    }

    pub fn give(&self, bytes: u64) {
        if bytes > 0 {
            self.account.give(&mut lock(&self.seat), bytes);
        }
    }

    /// Sets the bytes that the driver holds for this process besides its allocations. They replace the earlier figure.
    pub fn set_context_bytes(&self, bytes: u64) {
        // The lock is held from the swap to the end. Otherwise a second thread could give back bytes that the first
        // thread has swapped in but not added yet.
        let mut seat = lock(&self.seat);
        let before = self.context_bytes.swap(bytes, Ordering::SeqCst);
        let shown = &self.account.seat(seat.seat).contexts;
        shown.store(bytes, Ordering::SeqCst);
        // Fails only if the account would exceed 4 TiB; the bytes are not counted then.
        let _ = self.account.add(&mut seat, bytes.saturating_sub(before));
        self.account.give(&mut seat, before.saturating_sub(bytes));
    }

    /// Bytes that the driver held for this process besides its allocations when they were last measured.
    pub fn context_bytes(&self) -> u64 {
        self.context_bytes.load(Ordering::SeqCst)
    }

    /// Bytes that this process holds, its contexts included.
    pub fn held(&self) -> u64 {
        lock(&self.seat).held
    }

    /// A copy of this process's seat. Each operation changes the seat's number, so two equal copies show that no bytes
    /// were taken or given back between them.
    pub fn seat(&self) -> SeatHandle {
        *lock(&self.seat)
    }

    /// Bytes used by all processes whose memory counts towards the limit.
    pub fn used(&self) -> u64 {
        if self.scope == Scope::Process {
            return self.held();
        }
        self.reap();
        self.account.used()
    }

    /// Bytes that may still be taken; `None` if there is no limit.
    pub fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.used()))
    }

    /// Subtracts what dead processes held from a shared account.
    fn reap(&self) {
        if let Some(shared) = self.shared {
            shared.reap();
        }
    }

    /// The seat of this process as one that answers requests for memory; `None` if the account is not shared.
    pub fn listener(&self) -> Option<Listener> {
        Some(Listener {
            account: self.shared?,
            seat: lock(&self.seat).seat,
        })
    }

    /// Asks the other processes that share the account to give idle memory back, and waits until they have, but not
    /// longer than `LONGEST_WAIT`.
    pub fn ask_others(&self) -> Asked {
        self.shared.map(SharedAccount::ask_others).unwrap_or_default()
    }

    /// The living processes that hold memory in this device's account.
    pub fn holders(&self) -> Vec<Holder> {
        match self.shared {
            Some(shared) => shared.holders(),
            None => vec![Holder {
                pid: std::process::id(),
                namespace: identity::pid_namespace(),
                held: self.held(),
            }],
        }
    }
}

/// What the limit and the account of a device say, for a caller that only asks. This process need not use the device.
pub struct View {
    pub limit: Option<u64>,
    /// Bytes used by all processes whose memory counts towards the limit.
    pub used: u64,
    pub holders: Vec<Holder>,
}

/// The limits and accounts of one process.
pub struct Quota {
    settings: Settings,
    /// Whether any device may have a limit or a shared account.
    pub is_in_force: bool,
    /// By ordinal; `None` for a device that has neither a limit nor a shared account.
    devices: [OnceCell<Option<DeviceQuota>>; MAX_DEVICES],
    /// The open shared accounts, by the device's UUID. A process opens each account's file once and never closes it.
    opened: Mutex<HashMap<[u8; 16], &'static SharedAccount>>,
}

impl Quota {
    pub fn new(settings: Settings) -> Quota {
        Quota {
            is_in_force: settings.ask_for_anything(),
            settings,
            devices: [const { OnceCell::new() }; MAX_DEVICES],
            opened: Mutex::default(),
        }
    }

    /// The quota of a device, if it has one. Calls `find`, which describes the device, until `find` has succeeded once.
    #[inline]
    pub fn device(&self, ordinal: i16, find: impl FnOnce() -> Option<Device>) -> Option<&DeviceQuota> {
        if !self.is_in_force {
            return None;
        }
        let cell = self.devices.get(usize::try_from(ordinal).ok()?)?;
        if let Some(known) = cell.get() {
            return known.as_ref();
        }
        let device = find()?;
        let begin = || {
            let quota = DeviceQuota::new(self, &device);
            (quota.limit.is_some() || self.settings.accounts.is_some()).then_some(quota)
        };
        cell.get_or_init(begin).as_ref()
    }

    /// Whether the limit is what the next layer shows of each device (`VRAMSHIM_MEMORY_LIMIT=inherit`, or 100%).
    pub fn takes_what_is_shown(&self) -> bool {
        self.settings.limits == Limits::whole_devices()
    }

    /// The names in the limits that mean none of these devices.
    pub fn limits_of_none(&self, devices: &[Device]) -> Vec<String> {
        let means = |name: &limits::Name, device: &Device| {
            name.means(u32::try_from(device.ordinal).ok(), &uuid_text(device.uuid))
        };
        let names = self.settings.limits.names().into_iter();
        names
            .filter(|name| !devices.iter().any(|device| means(name, device)))
            .map(|name| name.to_string())
            .collect()
    }

    /// The quotas of the devices that this process has used.
    pub fn in_use(&self) -> impl Iterator<Item = (i16, &DeviceQuota)> {
        let known = self.devices.iter().enumerate();
        known.filter_map(|(ordinal, cell)| Some((ordinal as i16, cell.get()?.as_ref()?)))
    }

    /// The view of the device that has this UUID and `total` bytes; `None` if it has neither a limit nor an account.
    pub fn view(&self, uuid: [u8; 16], total: u64) -> Option<View> {
        if !self.is_in_force {
            return None;
        }
        if let Some((_, quota)) = self.in_use().find(|(_, quota)| quota.uuid == uuid) {
            return Some(View {
                limit: quota.limit,
                used: quota.used(),
                holders: quota.holders(),
            });
        }
        let limit = self.settings.limits.of(None, &uuid_text(uuid), total);
        let mut view = View {
            limit,
            used: 0,
            holders: Vec::new(),
        };
        let Ok(Some(shared)) = self.account(uuid, SharedAccount::find) else {
            return limit.is_some().then_some(view);
        };
        view.holders = shared.holders();
        // This process uses nothing of the device, and to a limit of its own other processes do not count.
        if self.settings.scope == Scope::Group {
            let of_group = shared.account().limit.load(Ordering::SeqCst);
            view.limit = (of_group > 0).then_some(of_group).or(limit);
            view.used = shared.account().used();
        }
        Some(view)
    }

    /// The shared account of a device; `None` if accounts are not shared. `open` is called until it has succeeded once
    /// for the device.
    fn account<E>(
        &self,
        uuid: [u8; 16],
        open: impl FnOnce(&Path, [u8; 16]) -> Result<SharedAccount, E>,
    ) -> Result<Option<&'static SharedAccount>, E> {
        let Some(folder) = self.settings.accounts.as_deref() else {
            return Ok(None);
        };
        let mut opened = lock(&self.opened);
        if let Some(account) = opened.get(&uuid) {
            return Ok(Some(account));
        }
        let account: &'static SharedAccount = Box::leak(Box::new(open(folder, uuid)?));
        opened.insert(uuid, account);
        Ok(Some(account))
    }

    /// Takes a seat in the shared account of a device; `None` if accounts are not shared.
    fn take_seat(&self, uuid: [u8; 16]) -> Result<Option<(&'static SharedAccount, SeatHandle)>, AccountError> {
        let Some(account) = self.account(uuid, SharedAccount::open)? else {
            return Ok(None);
        };
        let seat = account.take_seat().map_err(|why| AccountError {
            path: account.path.clone(),
            why,
        })?;
        Ok(Some((account, seat)))
    }
}
