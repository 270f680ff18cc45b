//! The table of all environment variables that the library and the program read.
//!
//! Error messages, `vramshim variables` and the man page of `vramshim run` are made from the entries. An
//! entry also says whether a journal's header keeps the variable. To add a setting of a policy, add an entry. To add
//! another variable, add an entry and read the variable in `read.rs`.

use std::sync::LazyLock;

use policy::Strategy;

use crate::parse::{boolean, fraction, mebibytes};

/// The part of vramshim that acts on a variable.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// `libvramshim.so`, in the job.
    Library,
    /// A strategy, in the job and in `vramshim replay`. The function parses and stores the value; `None` means that the
    /// value cannot be used.
    Policy(StoreSetting),
    /// The start-up hook in Python (`src/python`), in the job.
    Python,
    Program,
}

impl Part {
    pub const fn name(self) -> &'static str {
        match self {
            Part::Library => "library",
            Part::Policy(_) => "policy",
            Part::Python => "Python hook",
            Part::Program => "program",
        }
    }
}

/// Stores a value that can be used.
fn store<T>(setting: &mut T, value: Option<T>) -> Option<()> {
    *setting = value?;
    Some(())
}

type StoreSetting = fn(&str, &mut policy::Settings) -> Option<()>;

#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    /// The value, or a description of what happens, if the variable is not set.
    pub default: &'static str,
    /// What the variable accepts. A function returns the text, because the list of strategies is made at its first use.
    pub accepted: Accepted,
    /// What the variable does, in one or two plain sentences.
    pub meaning: &'static str,
    pub part: Part,
}

impl Variable {
    /// Whether a journal's header keeps the value, because it explains the job.
    pub const fn in_journal(&self) -> bool {
        !matches!(self.part, Part::Program)
    }
}

type Accepted = fn() -> &'static str;

const MEBIBYTES: &str = "a whole number of MiB, 0 or more";
const BOOLEAN: &str = "1, true, True, TRUE, 0, false, False, FALSE";
const SIZE: &str = "a number with a unit (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), or from 1048576 on bytes; 0";
const HOST_GUARD_SIZE: &str = "1MiB or more, as a number with a unit (MiB, GiB, TiB, MB, GB, TB) or as bytes; 0";
const DURATION: &str = "a number with a unit (ms, s, m or min, h), such as 30s; 0 for never";
const POD_LIMIT_FORMS: &str = "a quantity of Kubernetes in whole bytes (8Gi, 8192Mi, 8G for 8 x 10^9), a share (50%), \
                               or a list of them (0=8Gi,1=50%); inherit; 0 for none";
const LIMIT_FORMS: &str = "a size with a unit or a share (8GiB, 50%), or a list by device number or UUID \
                           (0=8GiB,1=50%,GPU-3f2a=4GiB); inherit takes the limit of a virtualisation layer; 0 for none";
const SURGE_FORMS: &str = "growth/time or from..to/time, with sizes or shares and a time with a unit: 20%/s, 8GiB/500ms, \
                           10%..90%/90s; 0";
static PADDLES_STRATEGIES: LazyLock<String> =
    LazyLock::new(|| format!("{}, thread_local (left to Paddle)", Strategy::accepted()));

/// Makes a constant of each entry, for the code that reads the variable, and `VARIABLES` of all entries.
macro_rules! variables {
    ($($constant:ident = $part:ident(
        $name:literal, $default:literal, $accepted:expr, $meaning:literal $(, $store:expr)?
    );)*) => {
        $(pub const $constant: Variable = Variable {
            name: $name,
            default: $default,
            accepted: $accepted,
            meaning: $meaning,
            part: Part::$part $(($store))?,
        };)*
        /// Every variable, in the order of help texts and pages.
        pub const VARIABLES: &[Variable] = &[$($constant),*];
    };
}

variables! {
    STRATEGY = Library("VRAMSHIM_STRATEGY", "none", Strategy::accepted,
        "The strategy that divides device memory among the job's requests. This variable wins over \
         `FLAGS_allocator_strategy`.");
    PADDLES_STRATEGY = Library("FLAGS_allocator_strategy", "passthrough", || &PADDLES_STRATEGIES,
        "The strategy, in Paddle's variable. With `thread_local` the library passes requests through.");
    DIRECTORY = Library("VRAMSHIM_DIR", "./vramshim-<job>", || "a folder; it need not exist yet",
        "Folder for the journals. Each process writes one file. If the working folder is on a network, the \
         default is `vramshim-UID/vramshim-<job>` in `TMPDIR`, `/tmp`, `/var/tmp` or `/dev/shm`; a message names \
         it.");
    LOG = Library("VRAMSHIM_LOG", "info", || "off, error, warn, info, debug, trace",
        "How much the library writes to standard error.");
    IDLE_RELEASE = Library("VRAMSHIM_IDLE_RELEASE", "0", || DURATION,
        "A pool gives its free memory back after this time without a request. `0` keeps the memory.");
    LIMIT = Library("VRAMSHIM_MEMORY_LIMIT", "none", || LIMIT_FORMS,
        "How many bytes of each device the job may hold. Requests beyond the limit fail with out of memory.");
    POD_LIMIT = Library("VRAMSHIM_POD_LIMIT", "none", || POD_LIMIT_FORMS,
        "The limit of all processes of the pod together: the annotation `vramshim.io/limit`. Wins over \
         `VRAMSHIM_MEMORY_LIMIT`.");
    PADDLES_LIMIT = Library("FLAGS_gpu_memory_limit_mb", "0", || MEBIBYTES,
        "The limit of each process alone, in Paddle's variable. It is read if `VRAMSHIM_MEMORY_LIMIT` is not set. `0` \
         is no limit.");
    LIMIT_OF_HAMI_CORE = Library("CUDA_DEVICE_MEMORY_LIMIT", "none",
        || "as HAMi-core reads it: a whole number, and K, M or G at the end; 0 for none",
        "The limit that HAMi-core was given; `_0` to `_15` behind the name limit one device. The library reads \
         it only if its own limit is `inherit`.");
    LIMIT_OF_VGPU_MANAGER = Library("CUDA_MEM_LIMIT", "none",
        || "as vgpu-manager reads it: a number, and K, M, G or T behind it; 0 for none",
        "The limit that vgpu-manager was given, likewise.");
    ACCOUNTS = Library("VRAMSHIM_ACCOUNTS", "none", || "a folder; it need not exist yet",
        "Folder of the accounts. Processes that name the same folder share one limit.");
    LIMIT_SCOPE = Library("VRAMSHIM_LIMIT_SCOPE", "group with VRAMSHIM_ACCOUNTS, else process", || "process, group",
        "Whether the limit holds for each process alone or for all processes that share the accounts. `group` \
         without a folder uses `/dev/shm/vramshim-UID`.");
    CONTEXT = Library("VRAMSHIM_CONTEXT", "512MiB", || SIZE,
        "What counts towards a limit for the contexts of a process on a device, if it is not known what they take. `0` \
         counts nothing.");
    MAX_REQUEST = Library("VRAMSHIM_MAX_REQUEST", "0", || SIZE,
        "The most bytes that a single request may ask for, also of managed and pinned memory. A larger one fails \
         at once with out of memory, and the driver is not asked. So does a request that is larger than the \
         device, under a strategy or if this is set. `0` is no such bound.");
    SURGE = Library("VRAMSHIM_SURGE", "0", || SURGE_FORMS,
        "How fast memory of a device, or resident memory of the host, may grow. Faster growth is marked in the \
         journal and counted. `0` watches nothing.");
    HOST_GUARD = Library("VRAMSHIM_HOST_GUARD", "0", || HOST_GUARD_SIZE,
        "The most bytes of host memory that a single call may ask for. A larger one gets `ENOMEM`, and standard \
         error its stack. Acts in processes that preload `libvramshim_hostguard.so`, as `vramshim run` does if \
         this is set.");
    JOURNAL_MAX = Library("VRAMSHIM_JOURNAL_MAX", "4GiB", || SIZE,
        "Largest size of a journal. `0` keeps no journal; `vramshim top` then shows what NVML says of the \
         process.");
    JOURNAL_GROUP = Library("VRAMSHIM_JOURNAL_GROUP", "0", || BOOLEAN,
        "If `1`, the group of the journal may read it (mode 0640), such as a `vramshim serve` of another user. \
         In a folder with the set-group-ID bit that is the group of the folder. Stacks and tensors stay private.");
    POD = Library("VRAMSHIM_POD", "none", || "a text, such as namespace/name",
        "The pod of the process. The journal keeps it, and `vramshim serve` shows it. Without it the pod is that \
         of `POD_NAMESPACE` and `POD_NAME`, or in Kubernetes the name of the host.");
    STRICT = Library("VRAMSHIM_STRICT", "0", || "0, 1, limits",
        "`1` refuses every request for memory while a variable has a value that cannot be used; `limits`, while a \
         limit cannot be read or kept. A value that cannot be used does the same as `limits`. With `0` the library uses \
         that variable's default.");
    ASSUMPTIONS = Library("VRAMSHIM_ASSUMPTIONS", "stored", || "stored, ignore",
        "With `stored`, a strategy does without what `vramshim doctor --assumptions` found not to hold of this \
         driver. The answers are in `$XDG_STATE_HOME/vramshim`, or in `~/.local/state/vramshim`. `ignore` does \
         not read them.");
    FRACTION = Policy("FLAGS_fraction_of_gpu_memory_to_use", "0.92, or steps of 32 MiB over a layer with a limit", || "a number above 0, up to 1",
        "`naive_best_fit`: share of the available memory to reserve; 5% of the memory is set aside first.",
        |text, settings| store(&mut settings.fraction, fraction(text).map(Some)));
    INITIAL = Policy("FLAGS_initial_gpu_memory_in_mb", "0", || MEBIBYTES,
        "`naive_best_fit`: size of the first reservation. `0` takes the share.",
        |text, settings| store(&mut settings.initial_bytes, mebibytes(text)));
    REALLOCATE = Policy("FLAGS_reallocate_gpu_memory_in_mb", "0", || MEBIBYTES,
        "`naive_best_fit`: size of later reservations. `0` takes the share.",
        |text, settings| store(&mut settings.reallocate_bytes, mebibytes(text)));
    CHUNK = Policy("FLAGS_auto_growth_chunk_size_in_mb", "0", || MEBIBYTES,
        "`auto_growth`: memory is mapped in multiples of this, rounded up to a power of two, at most 1/16 of the \
         device's memory; `0` is the driver's granule. If there is no virtual memory management, this is the \
         smallest chunk.",
        |text, settings| store(&mut settings.chunk_bytes, mebibytes(text)));
    FREE_IDLE_CHUNK = Policy("FLAGS_free_idle_chunk", "false", || BOOLEAN,
        "`auto_growth` in chunks only: give a chunk back as soon as it is idle.",
        |text, settings| store(&mut settings.free_idle_chunk, boolean(text)));
    FREE_WHEN_NO_CACHE_HIT = Policy("FLAGS_free_when_no_cache_hit", "false", || BOOLEAN,
        "`auto_growth` in chunks only: give idle chunks back before growing.",
        |text, settings| store(&mut settings.free_when_no_cache_hit, boolean(text)));
    STACKS = Library("VRAMSHIM_STACKS", "off", || "off, python, native, both",
        "Which stacks the journal keeps of calls that allocate: the frames of Python, those of C and C++, or \
         both.");
    STACK_DEPTH = Library("VRAMSHIM_STACK_DEPTH", "32", || "a number from 1 to 128",
        "How many frames of a stack are kept, from the innermost on.");
    CONTROL = Library("VRAMSHIM_CONTROL", "0", || BOOLEAN,
        "If `1`, the job answers `vramshim ctl` from its first use of a GPU on: it has a socket that only its \
         user and root reach.");
    TORCH = Python("VRAMSHIM_TORCH", "state", || "state, record, allocator, off",
        "What happens in a Python job that imports PyTorch. `vramshim run` sets the variable, and has a hook for it \
         run when Python starts. Without the hook the library begins when PyTorch uses CUDA, too late for `allocator`.");
    LIBRARY = Program("VRAMSHIM_LIBRARY", "in the program's folder or in ../lib", || "the path of libvramshim.so",
        "The library that `vramshim run` and `doctor` preload into the job.");
    SIMULATOR = Program("VRAMSHIM_SIMGPU", "simgpu in the program's folder or in ../simgpu",
        || "a folder that holds the simulated libcuda.so.1",
        "The simulated GPU that `vramshim run --sim` and `doctor --sim` use.");
    PROBES = Program("VRAMSHIM_PROBES", "in the program's folder or in ../assumptions",
        || "the path of vramshim-assumptions",
        "The program with the probes that `vramshim doctor --assumptions` runs.");
    NO_COLOR = Program("NO_COLOR", "none", || "anything",
        "If it is set and not empty, the program writes to a terminal without colours and bold text.");
}

/// A variable for each device that a layer numbers.
macro_rules! by_device {
    ($name:literal) => {
        by_device!($name: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($name:literal: $($number:literal)*) => {
        [$(concat!($name, "_", $number)),*]
    };
}

/// The variables that hold the limits of HAMi-core and vgpu-manager for one device; the index is the device's number.
pub const LIMITS_OF_HAMI_CORE: [&str; 16] = by_device!("CUDA_DEVICE_MEMORY_LIMIT");
pub const LIMITS_OF_VGPU_MANAGER: [&str; 16] = by_device!("CUDA_MEM_LIMIT");

/// Variables of launchers and frameworks. The library does not act on them. A journal's header keeps them, because they
/// show which process of a job wrote the journal, in which pod, and how the framework allocates.
const FRAMEWORK_VARIABLES: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "PADDLE_TRAINER_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "POD_NAME",
    "POD_NAMESPACE",
    "KUBERNETES_SERVICE_HOST",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
];

/// Beginnings and ends of the names of settings of frameworks' allocators, which a journal's header keeps, too.
/// Beginnings such as `TF_` alone are not here: other programs keep secrets in variables that begin so.
const ALLOCATOR_SETTINGS: &[(&str, &str)] = &[
    ("PYTORCH_", "ALLOC_CONF"),
    ("FLAGS_", ""),
    ("TF_GPU_", ""),
    ("TF_FORCE_GPU_", ""),
    ("TF_CUDNN_", ""),
    ("TF_XLA_", ""),
    ("XLA_FLAGS", ""),
    ("XLA_PYTHON_CLIENT_", ""),
];

/// Parts of names whose values a journal never keeps.
const SECRETS: &[&str] = &["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY"];

/// Whether the variable of this name sets how a framework allocates.
pub fn is_allocator_setting(name: &str) -> bool {
    let upper = name.to_uppercase();
    let is_secret = SECRETS.iter().any(|part| upper.contains(part));
    let mut settings = ALLOCATOR_SETTINGS.iter();
    !is_secret && settings.any(|(begin, end)| name.starts_with(begin) && name.ends_with(end))
}

/// The names of all variables that a journal's header keeps.
pub fn explaining_variables() -> Vec<&'static str> {
    let own = VARIABLES.iter().filter(|variable| variable.in_journal());
    let own = own.map(|variable| variable.name);
    FRAMEWORK_VARIABLES.iter().copied().chain(own).collect()
}
