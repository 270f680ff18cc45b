//! How much of each device this process may have, and the accounts that processes share.
//!
//! `limits` is what was asked for, `account` who has how much, `file` where that lies for several processes. A device
//! without a limit and without a shared account costs nothing: it is not here.

mod account;
pub mod file;
pub mod limits;

use std::alloc;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::sync::OnceCell;

use account::{Account, Place};
use file::{Holder, SharedAccount};
use limits::Limits;

use base::cuda::MAX_DEVICES;
use base::identity;
use base::sync::lock;
use base::uuid::uuid_text;

/// Whose memory counts towards a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Process,
    /// All processes that share the accounts.
    Group,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Process => "process",
            Scope::Group => "group",
        }
    }
}

/// What the environment says about limits.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub limits: Limits,
    /// The variable that they came from.
    pub from: &'static str,
    pub scope: Scope,
    /// Folder of the shared accounts; `None`: there are none.
    pub accounts: Option<PathBuf>,
}

impl Settings {
    pub fn ask_for_anything(&self) -> bool {
        !self.limits.is_empty() || self.accounts.is_some()
    }
}

/// A device as the layer below knows it.
pub struct Device {
    pub ordinal: i32,
    pub uuid: [u8; 16],
    pub total: u64,
}

/// Where a device's account lies.
enum Book {
    /// In memory of this process.
    Own(Box<Account>),
    /// In a file.
    Shared(&'static SharedAccount),
}

impl Book {
    fn account(&self) -> &Account {
        match self {
            Book::Own(account) => account,
            Book::Shared(shared) => shared.account(),
        }
    }
}

/// One device with a limit or a shared account.
pub struct DeviceQuota {
    pub uuid: [u8; 16],
    pub limit: Option<u64>,
    pub scope: Scope,
    /// The variable that the limit came from.
    pub from: &'static str,
    book: Book,
    place: Mutex<Place>,
    /// What the driver has for this process beside its allocations, as far as that was measured.
    context: AtomicU64,
}

/// Why memory was refused. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub limit: u64,
    /// By those whose memory counts towards it.
    pub used: u64,
}

impl DeviceQuota {
    fn new(quota: &Quota, device: &Device) -> DeviceQuota {
        let settings = &quota.settings;
        let number = u32::try_from(device.ordinal).ok();
        let limit = settings.limits.of(number, &uuid_text(device.uuid), device.total);
        let shared = match quota.sit(device.uuid) {
            Ok(shared) => shared,
            Err(problem) => {
                tracing::error!("{problem}; limits hold for this process alone");
                None
            }
        };
        let scope = if shared.is_some() {
            settings.scope
        } else {
            Scope::Process
        };
        let (book, place) = match shared {
            Some((account, place)) => (Book::Shared(account), place),
            None => {
                let account = own_account();
                let place = account.sit(0);
                (Book::Own(account), place)
            }
        };
        if scope == Scope::Group {
            book.account().limit.store(limit.unwrap_or(0), Ordering::SeqCst);
        }
        DeviceQuota {
            uuid: device.uuid,
            limit,
            scope,
            from: settings.from,
            book,
            place: Mutex::new(place),
            context: AtomicU64::new(0),
        }
    }

    /// Takes `bytes` where the limit allows it.
    pub fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let Some(limit) = self.limit else {
            self.add(bytes);
            return Ok(());
        };
        let refused = |used| Refusal { limit, used };
        let mut place = lock(&self.place);
        match self.scope {
            Scope::Process => {
                let fits = place.held().checked_add(bytes).is_some_and(|sum| sum <= limit);
                if !fits {
                    return Err(refused(place.held()));
                }
                self.book
                    .account()
                    .add(&mut place, bytes)
                    .map_err(|_| refused(place.held()))
            }
            Scope::Group => {
                let mut take = || self.book.account().take(&mut place, bytes, limit);
                take()
                    .or_else(|_| {
                        // Some of what is used may belong to the dead.
                        self.reap();
                        take()
                    })
                    .map_err(|refusal| refused(refusal.used))
            }
        }
    }

    /// Books `bytes` that this process has already.
    pub fn add(&self, bytes: u64) {
        if bytes > 0 {
            // More than can be counted is no limit's business.
            let _ = self.book.account().add(&mut lock(&self.place), bytes);
        }
    }

    pub fn give(&self, bytes: u64) {
        if bytes > 0 {
            self.book.account().give(&mut lock(&self.place), bytes);
        }
    }

    /// What the driver has for this process beside its allocations changed to `bytes`.
    pub fn context_takes(&self, bytes: u64) {
        // Two threads that measured do not book across each other: nothing is given back before it is there.
        let mut place = lock(&self.place);
        let before = self.context.swap(bytes, Ordering::SeqCst);
        // More than can be counted is no limit's business.
        let _ = self.book.account().add(&mut place, bytes.saturating_sub(before));
        self.book.account().give(&mut place, before.saturating_sub(bytes));
    }

    pub fn context(&self) -> u64 {
        self.context.load(Ordering::SeqCst)
    }

    /// What this process has, its contexts included.
    pub fn held(&self) -> u64 {
        lock(&self.place).held()
    }

    /// Where this process stands: not the same after anything was taken or given back, though it be as much.
    pub fn place(&self) -> Place {
        *lock(&self.place)
    }

    /// What those have whose memory counts towards the limit.
    pub fn used(&self) -> u64 {
        match self.scope {
            Scope::Process => self.held(),
            Scope::Group => {
                self.reap();
                self.book.account().used()
            }
        }
    }

    /// What may be taken yet, where there is a limit.
    pub fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.used()))
    }

    fn reap(&self) {
        if let Book::Shared(shared) = &self.book {
            shared.reap();
        }
    }

    /// The living processes on this device's account.
    fn holders(&self) -> Vec<Holder> {
        match &self.book {
            Book::Shared(shared) => shared.holders(),
            Book::Own(_) => vec![Holder {
                pid: std::process::id(),
                namespace: identity::pid_namespace(),
                start_ticks: 0,
                held: self.held(),
            }],
        }
    }
}

fn own_account() -> Box<Account> {
    let layout = alloc::Layout::new::<Account>();
    // SAFETY: the layout is the type's, and all zero is an account of nothing.
    unsafe {
        let account = alloc::alloc_zeroed(layout);
        if account.is_null() {
            alloc::handle_alloc_error(layout);
        }
        Box::from_raw(account.cast())
    }
}

/// What a device's account says to one who asks about the device, whether or not he uses it.
pub struct View {
    pub limit: Option<u64>,
    /// Bytes of those whose memory counts towards the limit.
    pub used: u64,
    pub holders: Vec<Holder>,
}

/// The limits and accounts of one process.
pub struct Quota {
    settings: Settings,
    /// By ordinal; `None` for a device without a limit and without a shared account.
    devices: [OnceCell<Option<DeviceQuota>>; MAX_DEVICES],
    /// By UUID: a process opens an account once, and keeps it.
    opened: Mutex<HashMap<[u8; 16], &'static SharedAccount>>,
}

impl Quota {
    pub fn new(settings: Settings) -> Quota {
        Quota {
            settings,
            devices: [const { OnceCell::new() }; MAX_DEVICES],
            opened: Mutex::default(),
        }
    }

    /// Whether any device may have a limit or a shared account.
    pub fn is_in_force(&self) -> bool {
        self.settings.ask_for_anything()
    }

    /// The quota of a device; `find` tells what device it is.
    pub fn device(&self, ordinal: i16, find: impl FnOnce() -> Option<Device>) -> Option<&DeviceQuota> {
        if !self.settings.ask_for_anything() {
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

    /// The quotas of the devices that this process has used.
    pub fn in_use(&self) -> impl Iterator<Item = (i16, &DeviceQuota)> {
        let known = self.devices.iter().enumerate();
        known.filter_map(|(ordinal, cell)| Some((ordinal as i16, cell.get()?.as_ref()?)))
    }

    /// What is to be said of the device with this UUID and total; `None` where nobody limits it or keeps an account.
    pub fn view(&self, uuid: [u8; 16], total: u64) -> Option<View> {
        if !self.settings.ask_for_anything() {
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
        let Some(shared) = self.account(uuid, SharedAccount::look) else {
            return limit.is_some().then(|| View {
                limit,
                used: 0,
                holders: Vec::new(),
            });
        };
        let holders = shared.holders();
        let of_group = shared.account().limit.load(Ordering::SeqCst);
        match self.settings.scope {
            Scope::Group => Some(View {
                limit: (of_group > 0).then_some(of_group).or(limit),
                used: shared.account().used(),
                holders,
            }),
            // What others have is none of this process's share.
            Scope::Process => Some(View {
                limit,
                used: 0,
                holders,
            }),
        }
    }

    /// The account of a device, opened once.
    fn account(
        &self,
        uuid: [u8; 16],
        open: impl FnOnce(&Path, [u8; 16]) -> Option<SharedAccount>,
    ) -> Option<&'static SharedAccount> {
        let folder = self.settings.accounts.as_deref()?;
        let mut opened = lock(&self.opened);
        if let Some(account) = opened.get(&uuid) {
            return Some(account);
        }
        let account: &'static SharedAccount = Box::leak(Box::new(open(folder, uuid)?));
        opened.insert(uuid, account);
        Some(account)
    }

    /// A seat in the account of a device; `None` where accounts are not shared.
    fn sit(&self, uuid: [u8; 16]) -> Result<Option<(&'static SharedAccount, Place)>, String> {
        let mut problem = None;
        let open = |folder: &Path, uuid| {
            SharedAccount::open(folder, uuid)
                .map_err(|error| problem = Some(error.to_string()))
                .ok()
        };
        let Some(account) = self.account(uuid, open) else {
            return problem.map_or(Ok(None), Err);
        };
        let place = account.sit()?;
        Ok(Some((account, place)))
    }
}
