//! The stored answers of `doctor --assumptions`: where they are, and what they say of the driver that is here now.

use std::path::PathBuf;

use base::verdict::{Outcome, Subject, Verdict};
use config::{Config, table};
use policy::Strategy;
use policy::needs::FallBack;

use super::probe::Driver;
use super::report::Findings;
use crate::launch::environment::Environment;
use crate::render::format;

const CHECK: &str = "assumptions";

/// The folder of the stored answers.
pub fn folder(environment: &Environment) -> Option<PathBuf> {
    Config::read(|name| environment.get(name)).0.verdicts
}

/// What answers about a device are stored under.
pub fn subject(driver: &Driver, ordinal: usize) -> Option<Subject> {
    let device = driver.devices.get(ordinal)?;
    Some(Subject::new(
        &device.name,
        driver.version?,
        driver.allocates.as_deref()?,
    ))
}

/// Says what the stored answers mean for a job with this config. Says nothing under passthrough, which assumes nothing.
pub fn check(findings: &mut Findings, config: &Config, driver: &Driver) {
    if config.strategy == Strategy::Passthrough {
        return;
    }
    if !config.use_verdicts {
        let found = "stored answers about the driver are not read";
        findings.note(CHECK, found, "", table::ASSUMPTIONS.name);
        return;
    }
    let Some(folder) = &config.verdicts else { return };
    let mut told: Vec<Subject> = Vec::new();
    for ordinal in 0..driver.devices.len() {
        let Some(subject) = subject(driver, ordinal).filter(|subject| !told.contains(subject)) else {
            continue;
        };
        match Verdict::read(folder, &subject) {
            Some(verdict) => describe(findings, config.strategy, &subject, &verdict),
            None => {
                let (device, strategy) = (&subject.device, config.strategy.name());
                let found = format!("{device} was not asked yet whether it does what {strategy} assumes");
                let advice =
                    "vramshim doctor --assumptions asks for about a minute, and stores the answers for all jobs.";
                findings.note(CHECK, found, advice, "");
            }
        }
        told.push(subject);
    }
}

fn describe(findings: &mut Findings, strategy: Strategy, subject: &Subject, verdict: &Verdict) {
    let of = |wanted: &[Outcome]| {
        let outcomes = verdict.outcomes.iter();
        outcomes.filter(|(_, outcome)| wanted.contains(outcome)).count()
    };
    let found = format!(
        "{}: assumptions that hold: {}, that do not: {}, not asked: {}; the answers are of {}",
        subject.device,
        of(&[Outcome::Holds]),
        of(&[Outcome::Differs, Outcome::Hangs]),
        of(&[Outcome::NotAsked]),
        format::time(verdict.asked_s.saturating_mul(1_000_000_000))
    );
    if FallBack::of(strategy, verdict).is_none() {
        return findings.ok(CHECK, found, "");
    }
    let advice = "The lines strategy say what follows. vramshim doctor --assumptions asks again, for example after an \
                  update of the driver.";
    findings.warning(CHECK, found, advice, "");
}
