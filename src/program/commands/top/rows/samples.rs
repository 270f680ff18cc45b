//! Rows for the tests of the tables.

use super::*;
use crate::analysis::device_ledger::Level;

pub fn row(number: u32, reserved: Option<u64>) -> Row {
    let level = |bytes| Level {
        current: bytes,
        peak: 2 * bytes,
    };
    Row {
        id: (1, u64::from(number)),
        pid: 4711 + number,
        job: format!("job {number} \u{4e16}\u{754c}"),
        strategy: "auto_growth".to_owned(),
        device: Some(0),
        limit: None,
        state: "running".to_owned(),
        nvml: None,
        levels: vec![0, 1, 2, 3],
        figures: reserved.map(|reserved| Figures {
            all: Totals {
                reserved: level(reserved),
                allocated: level(reserved / 2),
                ..Totals::default()
            },
            free: Free::default(),
            failures: 0,
            reclaims: 0,
            resident: None,
            rates: Some(Rates {
                allocations: 1234.5,
                ..Rates::default()
            }),
        }),
    }
}
