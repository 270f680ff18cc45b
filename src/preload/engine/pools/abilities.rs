//! The policy of a new pool: that of the job's strategy, or a weaker one if the next layer does not carry the strategy.
//!
//! The library asks only what is answered at once. It cannot ask in a job what takes seconds, or what may hang. So it
//! reads what `vramshim doctor --assumptions` stored, if that is there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use base::say::warn;

use crate::next;
use base::kernel::{DMA_BUF_SUPPORTED, PEER_MEMORY_WITHOUT_DMA_BUF, needs_memory_of_cu_mem_alloc};
use base::sync::lock;
use base::verdict::Verdict;
use policy::needs::{FallBack, Instead};
use policy::{Policy, Settings, Strategy};

pub struct Abilities {
    /// The job's.
    pub strategy: Strategy,
    settings: Settings,
    /// The folder of stored answers; `None` if they are not to be read.
    verdicts: Option<PathBuf>,
    /// What is left of strategy and settings, by device.
    decided: Mutex<BTreeMap<i16, (Strategy, Settings)>>,
}

impl Abilities {
    pub fn new(strategy: Strategy, settings: Settings, verdicts: Option<PathBuf>) -> Self {
        Abilities {
            strategy,
            settings,
            verdicts,
            decided: Mutex::default(),
        }
    }

    /// A policy for a pool on this device; `None` if requests pass through.
    pub fn policy_for(&self, device: i16) -> Option<Box<Policy>> {
        let known = lock(&self.decided).get(&device).cloned();
        let (strategy, settings) = known.unwrap_or_else(|| self.decide(device));
        strategy.create(&settings)
    }

    /// Asks without a lock. If two threads ask at the same time, the first one's decision stays, and is told.
    fn decide(&self, device: i16) -> (Strategy, Settings) {
        let lacking = self.missing(device).or_else(|| self.stored(device));
        let mut settings = self.settings.clone();
        if next::driver::limit_of_layer().is_some() {
            settings = settings.for_shared_limit();
        }
        let decision = match &lacking {
            Some((instead, _)) => instead.apply(self.strategy, &settings),
            None => (self.strategy, settings),
        };
        let mut decided = lock(&self.decided);
        if let Some(earlier) = decided.get(&device) {
            return earlier.clone();
        }
        decided.insert(device, decision.clone());
        drop(decided);
        if let Some((instead, why)) = lacking {
            let (strategy, does) = (self.strategy.name(), instead.words());
            warn!("on device {device} {strategy} {does}: {why}");
        }
        decision
    }

    /// What the strategy does instead, because the next layer lacks a function, or network cards could not register what
    /// the strategy maps.
    fn missing(&self, device: i16) -> Option<(Instead, String)> {
        if let Some(front) = next::layer_in_front() {
            let why = format!(
                "{} stands before the library, takes the job's requests, and would not count what is reserved; name \
                 libvramshim.so before it in LD_PRELOAD",
                front.path
            );
            return Some((Instead::Passthrough, why));
        }
        let lacks = |function| format!("the next layer has no {function}");
        if let Some(function) = next::missing_for_policies() {
            return Some((Instead::Passthrough, lacks(function)));
        }
        if !self.strategy.maps_granules() {
            return None;
        }
        let function = next::missing_for_mapping().map(lacks);
        let dma_buf = next::device_attribute(i32::from(device), DMA_BUF_SUPPORTED).is_ok_and(|value| value != 0);
        let network = || needs_memory_of_cu_mem_alloc(dma_buf).then(|| PEER_MEMORY_WITHOUT_DMA_BUF.to_owned());
        let layer = || {
            let path = next::layer_without_mapping()?;
            Some(format!(
                "{path} hooks cuMemAlloc but not cuMemCreate, so its limit would not hold for mapped memory"
            ))
        };
        function
            .or_else(layer)
            .or_else(network)
            .map(|why| (Instead::Chunks, why))
    }

    /// What the strategy does instead, because an assumption was found not to hold.
    fn stored(&self, device: i16) -> Option<(Instead, String)> {
        let subject = next::subject_of(i32::from(device))?;
        let verdict = Verdict::read(self.verdicts.as_deref()?, &subject)?;
        let fall_back = FallBack::of(self.strategy, &verdict)?;
        let why = format!("{}, found vramshim doctor --assumptions", fall_back.why());
        Some((fall_back.instead, why))
    }
}
